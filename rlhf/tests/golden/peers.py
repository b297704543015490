"""Golden values from TRL and torch, in fp64.

Run:  pip install torch==2.11.0 transformers==5.23.0 trl==1.12.0 && python peers.py
It reads inputs.json beside it and writes peers.json. TRL 1.12.0 is the last release with a PPO trainer.

Called as they are: masked_mean and masked_whiten of TRL's PPO, compute_loss of TRL's reward trainer, autograd of torch. What TRL's
PPO writes inside its training loop cannot be called and is rebuilt here in its own layout (padded, with masks): score
placement, advantages and losses.
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
from trl.experimental.ppo.ppo_trainer import masked_mean, masked_whiten

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


def policy(case, low, high):
    new = tensor(case["logprobs"], requires_grad=True)
    old, advantage = (tensor(case[key]) for key in ["old_logprobs", "advantages"])
    ratio = torch.exp(new - old)
    losses1 = -advantage * ratio
    losses2 = -advantage * torch.clamp(ratio, 1.0 - low, 1.0 + high)
    loss = torch.max(losses1, losses2).sum()
    loss.backward()
    mask = torch.ones_like(new)
    return {"loss": loss[None], "gradient": new.grad, "clipped": masked_mean((losses2 > losses1).double(), mask)[None],
            "approx_kl": masked_mean(0.5 * (new - old) ** 2, mask)[None], "ratio": masked_mean(ratio, mask)[None]}


def value(case, clip):
    new = tensor(case["values"], requires_grad=True)
    old, goal = (tensor(case[key]) for key in ["old_values", "returns"])
    limited = new if clip is None else torch.clamp(new, old - clip, old + clip)
    losses1, losses2 = torch.square(new - goal), torch.square(limited - goal)
    loss = 0.5 * torch.max(losses1, losses2).sum()
    loss.backward()
    mask = torch.ones_like(new)
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
    scores, ended = tensor(case["scores"]), tensor(case["ended"], dtype=torch.bool)
    subtracted = scores.clone()
    subtracted[~ended] -= case["penalty"]
    return {"clipped": scores.clamp(-case["clip"], case["clip"]), "subtracted": subtracted}


def main():
    inputs = json.loads((HERE / "inputs.json").read_text())
    out = {}

    def put(prefix, values):
        out.update({f"{prefix}/{name}": numbers.tolist() for name, numbers in values.items()})

    put("kl", kl_estimates(inputs["worked"]["logprobs"], inputs["worked"]["reference_logprobs"]))
    for name in ["worked", "ragged"]:
        put(f"{name}/eos", advantages(inputs[name], after_end=False))
        put(f"{name}/after_eos", advantages(inputs[name], after_end=True))
    values, first = tensor(inputs["whiten"]["values"]), advantages(inputs["worked"], after_end=False)["advantages"]
    put("whiten", {
        "shifted": masked_whiten(values, torch.ones_like(values)),
        "scaled": masked_whiten(values, torch.ones_like(values), shift_mean=False),
        "worked": masked_whiten(first, torch.ones_like(first)),
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
    put("score", score(inputs["score"]))
    versions = {"python": platform.python_version(), "torch": torch.__version__,
                "transformers": transformers.__version__, "trl": trl.__version__}
    print(versions)
    document = {"producer": "peers.py", "versions": versions, "values": out}
    (HERE / "peers.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
