"""The training loop of the peers of `sft` and `rm`: accumulation, clipping and fused AdamW around a transformers model.

A plain loop, because the Trainer of transformers does the same with more around it.

Two precisions of bf16 are offered. `autocast` keeps fp32 weights and casts them at each product. `masters` has bf16
weights and gradients, and fp32 copies of the weights that the optimizer updates. Both begin with the weights that
colossal-chat begins with, which reads the file in bf16: a weight that begins between two numbers of bf16 takes other steps.
"""

import contextlib

import settings as process
import torch


def pad(rows, value, device="cpu"):
    """Right padding to the longest row."""
    longest = max(map(len, rows))
    return torch.tensor([row + [value] * (longest - len(row)) for row in rows], device=device)


def mask(rows, device="cpu"):
    """The attention mask, and none when no row is padded: attention is faster without one."""
    return None if len(set(map(len, rows))) == 1 else pad([[1] * len(row) for row in rows], 0, device)


def load(model_class, settings):
    dtype = torch.float32 if settings.precision == "float32" else torch.bfloat16
    model = model_class.from_pretrained(settings.model, dtype=dtype, attn_implementation="sdpa").to(settings.device)
    return (model.float() if settings.precision == "autocast" else model).train()


class Optimizer:
    """Fused AdamW with clipping, on the weights themselves or on fp32 copies of bf16 weights."""

    def __init__(self, model, masters, learning_rate):
        self.weights = list(model.parameters())
        self.masters = masters
        self.adamw = torch.optim.AdamW(
            masters or self.weights, lr=learning_rate, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, fused=True)

    def step(self):
        if self.masters:
            for master, weight in zip(self.masters, self.weights):
                master.grad = weight.grad.float()
        torch.nn.utils.clip_grad_norm_(self.masters or self.weights, 1.0)
        self.adamw.step()
        if self.masters:
            with torch.no_grad():
                torch._foreach_copy_(self.weights, self.masters)
        for weight in self.weights:
            weight.grad = None


def train(model_class, settings, rows, loss_of):
    """Trains on `rows` in their order. `loss_of(model, micro_batch, step_rows)` is the share of one micro-batch.

    Returns the loss and the seconds of each step.
    """
    model = load(model_class, settings)
    masters = [weight.detach().float() for weight in model.parameters()] if settings.precision == "masters" else None
    optimizer = Optimizer(model, masters, settings.learning_rate)
    autocast = contextlib.nullcontext()
    if settings.precision == "autocast":
        autocast = torch.autocast(settings.device, dtype=torch.bfloat16)
    size = settings.micro * settings.accumulation
    losses, seconds = [], []
    for step in range(settings.steps):
        step_rows = rows[step * size : (step + 1) * size]
        started = process.seconds(settings)
        total = 0.0
        for first in range(0, size, settings.micro):
            with autocast:
                loss = loss_of(model, step_rows[first : first + settings.micro], step_rows)
            loss.backward()
            total += loss.item()
        optimizer.step()
        seconds.append(process.seconds(settings) - started)
        losses.append(total)
    return {"losses": losses, "seconds": seconds}
