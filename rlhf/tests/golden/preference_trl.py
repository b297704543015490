"""Golden values of offline losses from TRL, in fp64, with gradients by autograd.

Run:  pip install torch==2.11.0 transformers==5.23.0 trl==1.16.0 accelerate==1.15.0 && python preference_trl.py
It reads preference_inputs.json beside it and writes preference_trl.json.

The losses are TRL's own: DPOTrainer and KTOTrainer compute theirs on stand-ins of the models that return the given
log-probabilities of tokens; cpo_loss and odds_ratio_loss get sums and means of them. The cross-entropy of ORPO and CPO is
computed here, as a mean over the tokens of the batch, which is what TRL's is.
"""

import contextlib
import json
import os
import platform
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import torch
import transformers
import trl
from trl.experimental.cpo import cpo_trainer
from trl.experimental.orpo import orpo_trainer
from trl.trainer import dpo_trainer, kto_trainer

HERE = Path(__file__).parent
KIND = torch.float64
TRL_NAMES = {"exo": "exo_pair", "nca": "nca_pair", "bco": "bco_pair"}


class Leaves:
    """Log-probabilities of tokens with gradients, in the order of the inputs."""

    def __init__(self, sides):
        self.sides = [torch.tensor(side, dtype=KIND, requires_grad=True) for side in sides]

    def gradient(self):
        return [number for side in self.sides for number in side.grad.tolist()]


def padded(sides):
    """Numbers of tokens after a prompt of one token, padded on the right: [S, T - 1]."""
    width = max(map(len, sides))
    return torch.stack([torch.cat([side, side.new_zeros(width - len(side))]) for side in sides])


def completion_mask(sides):
    width = max(map(len, sides))
    return torch.tensor([[0] + [1] * len(side) + [0] * (width - len(side)) for side in sides])


def outputs(log_probs, log_sum_sq_probs=None):
    zeros = torch.zeros_like(log_probs)
    return SimpleNamespace(
        log_probs=log_probs, entropy=zeros, mean_logits=zeros, is_top1=zeros.bool(),
        log_sum_sq_probs=zeros if log_sum_sq_probs is None else log_sum_sq_probs)


def trainer(**settings):
    accelerator = SimpleNamespace(device=torch.device("cpu"), gather=lambda x: x, gather_for_metrics=lambda x: x)
    metrics = {mode: defaultdict(list) for mode in ("train", "eval")}
    return SimpleNamespace(
        accelerator=accelerator, model=SimpleNamespace(training=True), aux_loss_enabled=False, precompute_ref_logps=False,
        _metrics=metrics, _total_train_tokens=0, _tp_size=1,
        args=SimpleNamespace(
            gradient_checkpointing=False, gradient_checkpointing_kwargs=None,
            discopop_tau=settings.get("discopop_tau", 0.05)),
        **{key: value for key, value in settings.items() if key != "discopop_tau"})


def sides_of(pairs):
    """TRL's batch: all chosen completions, then all rejected ones."""
    return [pair[0] for pair in pairs] + [pair[1] for pair in pairs]


def tensors(sides):
    return [torch.tensor(side, dtype=KIND) for side in sides]


def in_our_order(leaves):
    """The gradients of TRL's batch, pair by pair."""
    count = len(leaves.sides) // 2
    sides = [leaves.sides[place] for pair in range(count) for place in (pair, pair + count)]
    return [number for side in sides for number in side.grad.tolist()]


def dpo(data, settings):
    losses = settings.get("loss", ["sigmoid"])
    leaves = Leaves(sides_of(data["policy"]))
    log_probs = padded(leaves.sides)
    squares = padded(tensors(sides_of(data["log_sum_squares"])))
    reference = padded(tensors(sides_of(data["reference"])))
    mine = trainer(
        beta=settings.get("beta", 0.1),
        f_divergence_type=settings.get("f_divergence", "reverse_kl"),
        f_alpha_divergence_coef=settings.get("f_alpha", 0.5),
        loss_types=[TRL_NAMES.get(loss, loss) for loss in losses],
        loss_weights=settings.get("loss_weights", [1.0] * len(losses)),
        label_smoothing=settings.get("label_smoothing", 0.0),
        use_weighting=settings.get("use_weighting", False),
        ld_alpha=settings.get("ld_alpha"),
        discopop_tau=settings.get("discopop_tau", 0.05),
        ref_model=lambda **_: outputs(reference))
    mask = completion_mask(leaves.sides)
    batch = {"input_ids": torch.zeros_like(mask), "attention_mask": torch.ones_like(mask), "completion_mask": mask}
    model = lambda **_: outputs(log_probs, squares)
    loss = dpo_trainer.DPOTrainer._compute_loss(mine, model, batch, return_outputs=False)
    loss.backward()
    return [loss.item(), *in_our_order(leaves)]


def kto(data, settings):
    data = data["unpaired"]
    leaves = Leaves(data["policy"])
    log_probs = padded(leaves.sides)
    mismatched = padded(tensors(data["policy_mismatched"]))
    references = [padded(tensors(data[key])) for key in ("reference", "reference_mismatched")]
    mine = trainer(
        beta=settings["beta"],
        loss_type=settings.get("loss", "kto"),
        calculate_KL=settings.get("loss", "kto") == "kto",
        desirable_weight=settings.get("desirable_weight", 1.0),
        undesirable_weight=settings.get("undesirable_weight", 1.0))

    def model_of(own, other):
        # The ids of the mismatched sequences are ones.
        return lambda input_ids, **_: outputs(other if input_ids[0, 0] == 1 else own)

    mine.ref_model = model_of(*references)
    mine._compute_kl_logps = lambda model, batch: kto_trainer.KTOTrainer._compute_kl_logps(mine, model, batch)
    mask, kl_mask = completion_mask(leaves.sides), completion_mask(data["policy_mismatched"])
    batch = {
        "input_ids": torch.zeros_like(mask), "attention_mask": torch.ones_like(mask), "completion_mask": mask,
        "KL_input_ids": torch.ones_like(kl_mask), "KL_attention_mask": torch.ones_like(kl_mask),
        "KL_completion_mask": kl_mask, "label": torch.tensor(data["labels"]),
    }
    loss = kto_trainer.KTOTrainer._compute_loss(mine, model_of(log_probs, mismatched), batch, return_outputs=False)
    loss.backward()
    return [loss.item(), *leaves.gradient()]


def cross_entropy(chosen):
    return -torch.cat(chosen).mean()


def without_reference(data, losses_of, reduction, nll_coef):
    leaves = Leaves(sides_of(data["policy"]))
    count = len(leaves.sides) // 2
    logps = torch.stack([reduction(side) for side in leaves.sides])
    loss = losses_of(logps[:count], logps[count:]).mean() + nll_coef * cross_entropy(leaves.sides[:count])
    loss.backward()
    return [loss.item(), *in_our_order(leaves)]


def cpo(data, settings):
    kind = settings["loss"]
    mine = trainer(
        alpha=0.0, beta=settings["beta"], loss_type=kind, label_smoothing=settings.get("label_smoothing", 0.0),
        simpo_gamma=settings.get("gamma", 0.0))
    losses_of = lambda chosen, rejected: cpo_trainer.CPOTrainer.cpo_loss(mine, chosen, rejected)[0]
    reduction = torch.mean if kind in ("ipo", "simpo") else torch.sum
    return without_reference(data, losses_of, reduction, settings["nll_coef"])


def simpo(data, settings):
    return cpo(data, {**settings, "loss": "simpo"})


def orpo(data, settings):
    # TRL computes the odds in fp32, whatever the model's dtype is.
    mine = trainer(beta=settings["beta"])
    losses_of = lambda chosen, rejected: -orpo_trainer.ORPOTrainer.odds_ratio_loss(mine, chosen, rejected)[0]
    return without_reference(data, losses_of, torch.mean, 1.0)


def main():
    global KIND
    dpo_trainer.disable_gradient_checkpointing = kto_trainer.disable_gradient_checkpointing = (
        lambda *_: contextlib.nullcontext())
    data = json.loads((HERE / "preference_inputs.json").read_text())
    values = {}
    for algorithm, losses in (("dpo", dpo), ("cpo", cpo), ("simpo", simpo), ("orpo", orpo), ("kto", kto)):
        for name, settings in data["cases"][algorithm].items():
            # TRL has no bound of exp in fp64 for this divergence.
            KIND = torch.float32 if name == "alpha_divergence" else torch.float64
            torch.set_default_dtype(KIND)
            values[f"{algorithm}/{name}"] = losses(data, settings)
    made_with = {
        "python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__,
        "trl": trl.__version__,
    }
    (HERE / "preference_trl.json").write_text(json.dumps({"made_with": made_with, "values": values}, indent=1) + "\n")


if __name__ == "__main__":
    main()
