"""Golden values from TRL and torch, in fp64.

Run:  pip install torch==2.11.0 transformers==5.23.0 trl==1.12.0 && python peers.py
It reads inputs.json beside it and writes peers.json. TRL 1.12.0 is the last release with a PPO trainer.

Called as they are: masked_mean, masked_whiten and truncate_response of TRL's PPO, compute_loss of TRL's reward trainer, autograd of
torch. What peers write inside their training loops cannot be called and is rebuilt here in their own layout (padded, with masks):
score placement, advantages and losses after TRL's PPO, advantages over holes and the dual clip after verl, the biased variance
after OpenRLHF.
"""

import json
import platform
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import torch
import transformers
import trl
from torch.nn.functional import logsigmoid
from trl import RewardTrainer
from trl.experimental.ppo.ppo_trainer import masked_mean, masked_whiten, truncate_response

HERE = Path(__file__).parent
torch.set_default_dtype(torch.float64)
tensor = torch.tensor


def padded(flat, lengths, width, fill=0.0):
    out = torch.full((len(lengths), width), fill)
    start = 0
    for row, length in enumerate(lengths):
        out[row, :length] = tensor(flat[start:start + length])
        start += length
    return out


def kl_estimates(logprobs, reference):
    ratio = tensor(reference) - tensor(logprobs)
    return {"k1": -ratio, "k2": 0.5 * ratio.square(), "k3": (ratio.exp() - 1) - ratio, "abs": ratio.abs()}


def advantages(case, after_end):
    lengths, width = tensor(case["lengths"]), case["max_new_tokens"]
    index = torch.arange(width).repeat(len(lengths), 1)
    last = lengths - 1
    padding, padding_p1 = index > last[:, None], index > (last + 1)[:, None]
    logprobs = padded(case["logprobs"], case["lengths"], width, 1.0)
    reference = padded(case["reference_logprobs"], case["lengths"], width, 1.0)
    values = padded(case["values"], case["lengths"], width)
    end, kept = last, ~padding
    if after_end:
        for row, length in enumerate(case["lengths"]):
            if length < width:
                values[row, length] = case["values_after_end"][row]
        end, kept = torch.where(last + 1 < width, last + 1, last), ~padding_p1
    rewards = -case["kl_coef"] * (logprobs - reference)
    rewards[torch.arange(len(lengths)), end] += tensor(case["scores"])
    running, collected = 0.0, []
    for t in reversed(range(width)):
        next_values = values[:, t + 1] if t < width - 1 else 0.0
        delta = rewards[:, t] + case["gamma"] * next_values - values[:, t]
        running = delta + case["gamma"] * case["lambda"] * running
        collected.append(running)
    estimate = torch.stack(collected[::-1], dim=1)
    return {"rewards": rewards[kept], "advantages": estimate[kept], "returns": (estimate + values)[kept]}


def advantages_with_holes(case):
    width = max(case["lengths"])
    mask, kl, values = (padded(case[key], case["lengths"], width) for key in ["mask", "kl", "values"])
    inside = padded([1.0] * sum(case["lengths"]), case["lengths"], width).bool()
    rewards = -case["kl_coef"] * kl * mask
    last = (mask * torch.arange(width)).argmax(dim=1)
    rewards[torch.arange(len(last)), last] += tensor(case["scores"])
    next_values, running, collected = 0.0, 0.0, []
    for t in reversed(range(width)):
        delta = rewards[:, t] + case["gamma"] * next_values - values[:, t]
        candidate = delta + case["gamma"] * case["lambda"] * running
        next_values = values[:, t] * mask[:, t] + (1 - mask[:, t]) * next_values
        running = candidate * mask[:, t] + (1 - mask[:, t]) * running
        collected.append(running)
    estimate = torch.stack(collected[::-1], dim=1)
    return {"advantages": (estimate * mask)[inside], "returns": ((estimate + values) * mask)[inside]}


def whiten_biased(values, mask, shift_mean):
    mean = masked_mean(values, mask)
    kept = values[mask.bool()]
    out = (values - mean) * (kept.var(unbiased=False) + 1e-8).rsqrt() + (0.0 if shift_mean else mean)
    return out.masked_fill(mask == 0, 0.0)


def policy(case, low, high, dual=None):
    new = tensor(case["logprobs"], requires_grad=True)
    old, advantage, weight = (tensor(case[key]) for key in ["old_logprobs", "advantages", "weights"])
    ratio = torch.exp(new - old)
    losses1 = -advantage * ratio
    losses2 = -advantage * torch.clamp(ratio, 1.0 - low, 1.0 + high)
    losses = torch.max(losses1, losses2)
    if dual is not None:
        losses = torch.where(advantage < 0, torch.min(-advantage * dual, losses), losses)
    loss = (losses * weight).sum()
    loss.backward()
    mask = (weight != 0).double()
    return {"loss": loss[None], "gradient": new.grad, "clipped": masked_mean((losses2 > losses1).double(), mask)[None],
            "approx_kl": masked_mean((ratio - 1) - ratio.log(), mask)[None], "ratio": masked_mean(ratio, mask)[None]}


def value(case, clip):
    new = tensor(case["values"], requires_grad=True)
    old, goal, weight = (tensor(case[key]) for key in ["old_values", "returns", "weights"])
    limited = new if clip is None else torch.clamp(new, old - clip, old + clip)
    losses1, losses2 = torch.square(new - goal), torch.square(limited - goal)
    loss = 0.5 * (torch.max(losses1, losses2) * weight).sum()
    loss.backward()
    mask = (weight != 0).double()
    return {"loss": loss[None], "gradient": new.grad, "clipped": masked_mean((losses2 > losses1).double(), mask)[None]}


def reward(case, use_margins, centering, count):
    chosen = tensor(case["chosen"][:count], requires_grad=True)
    logits = torch.cat([chosen, tensor(case["rejected"][:count])])[:, None]
    inputs = {"input_ids": torch.zeros(2 * count, 1), "attention_mask": torch.ones(2 * count, 1)}
    if use_margins:
        inputs["margin"] = tensor(case["margins"][:count])

    class Model:
        training = True

        def __call__(self, **_):
            return SimpleNamespace(logits=logits)

    gather = SimpleNamespace(gather=lambda x: x, gather_for_metrics=lambda x: x)
    trainer = SimpleNamespace(
        model=Model(), accelerator=gather, _total_train_tokens=0, _metrics={"train": defaultdict(list)},
        args=SimpleNamespace(center_rewards_coefficient=centering or None))
    loss = RewardTrainer.compute_loss(trainer, trainer.model, inputs) * count
    loss.backward()
    difference = chosen - tensor(case["rejected"][:count]) - (inputs["margin"] if use_margins else 0.0)
    if not centering:
        assert torch.allclose(loss, -logsigmoid(difference).sum(), rtol=1e-14)
    return {"loss": loss[None], "gradient": chosen.grad}


def score(case):
    pad = -1
    replies = truncate_response(case["stop_id"], pad, tensor(case["replies"]))
    ended = torch.any(replies == case["stop_id"], dim=-1)
    scores = tensor(case["scores"])
    subtracted, replaced = scores.clone(), scores.clone()
    subtracted[~ended] -= case["penalty"]
    replaced[~ended] = case["replacement"]
    clipped = ((scores - case["mean"]) / case["std"]).clamp(-case["clip"], case["clip"])
    return {"lengths": (replies != pad).sum(1), "clipped": clipped, "subtracted": subtracted, "replaced": replaced}


def main():
    inputs = json.loads((HERE / "inputs.json").read_text())
    out = {}

    def put(prefix, values):
        out.update({f"{prefix}/{name}": numbers.tolist() for name, numbers in values.items()})

    put("kl", kl_estimates(inputs["worked"]["logprobs"], inputs["worked"]["reference_logprobs"]))
    for name in ["worked", "ragged"]:
        put(f"{name}/eos", advantages(inputs[name], after_end=False))
        put(f"{name}/after_eos", advantages(inputs[name], after_end=True))
    put("holes", advantages_with_holes(inputs["holes"]))
    values, mask = tensor(inputs["whiten"]["values"]), tensor(inputs["whiten"]["mask"])
    first, ones = advantages(inputs["worked"], after_end=False)["advantages"], torch.ones(4)
    put("whiten", {
        "unbiased": masked_whiten(values, mask).masked_fill(mask == 0, 0.0),
        "unbiased_scaled": masked_whiten(values, mask, shift_mean=False).masked_fill(mask == 0, 0.0),
        "worked_unbiased": masked_whiten(first, ones),
        "biased": whiten_biased(values, mask, True),
        "biased_scaled": whiten_biased(values, mask, False),
        "worked_biased": whiten_biased(first, ones, True),
    })
    case = inputs["controller"]
    error = torch.clip(tensor(case["kl"]) / case["target"] - 1, -0.2, 0.2)
    out["controller"] = (case["coefficient"] * (1 + error * case["sequences"] / case["horizon"])).tolist()
    for name, rule in inputs["policy"]["rules"].items():
        put(f"policy/{name}", policy(inputs["policy"], **rule))
    for name, clip in inputs["value"]["clips"].items():
        put(f"value/{name}", value(inputs["value"], clip))
    case = inputs["reward"]
    for name, margins, centering in [("plain", False, 0.0), ("margin", True, 0.0), ("centered", False, case["centering"])]:
        put(f"reward/{name}", reward(case, margins, centering, len(case["chosen"])))
        out[f"reward/worked_{name}"] = reward(case, margins, centering, 1)["loss"].tolist()
    case = inputs["reduction"]
    losses = padded(case["losses"], case["lengths"], max(case["lengths"]))
    mask = padded([1.0] * len(case["losses"]), case["lengths"], max(case["lengths"]))
    sequences = torch.stack([masked_mean(row, kept) for row, kept in zip(losses, mask)])
    sums = (losses * mask).sum(1)
    out["reduction"] = torch.stack(
        [masked_mean(losses, mask), sequences.mean(), sums.mean(), sums.sum() / (len(sums) * case["constant"])]).tolist()
    put("score", score(inputs["score"]))
    versions = {"python": platform.python_version(), "torch": torch.__version__,
                "transformers": transformers.__version__, "trl": trl.__version__}
    print(versions)
    document = {"producer": "peers.py", "versions": versions, "values": out}
    (HERE / "peers.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
