"""Runs of the program: a training stage, and a generation."""

import json
import statistics
import tempfile
from pathlib import Path


def train(bench, stage, model, rows, steps, micro, accumulation, dtype="float32", sections="", model_keys=""):
    """Runs a stage; returns the rows of its metrics and its peak memory. `model_keys` are more lines of `[model]`."""
    with tempfile.TemporaryDirectory(dir=bench.folder) as folder:
        out, config = Path(folder) / "run", Path(folder) / "run.toml"
        config.write_text(f"""
out = "{out}"
[model]
path = "{model}"
dtype = "{dtype}"
device = "cpu"
{model_keys}
[data]
train = "{rows}"
max_length = 1024
shuffle = false
cache = ""
[train]
steps = {steps}
micro_batch_size = {micro}
gradient_accumulation_steps = {accumulation}
lr = 1e-4
scheduler = "constant"
betas = [0.9, 0.999]
weight_decay = 0.0
max_grad_norm = 1.0
[log]
every = 1
{sections}""")
        return run_stage(bench, stage, config, out)


def run_stage(bench, stage, config, out):
    _, peak = bench.ours(stage, "--config", config)
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()], peak


def speed(tokens, seconds, skipped):
    """Tokens a second of the median step. The first steps, in which memory is taken, do not count."""
    return statistics.median(count / time for count, time in list(zip(tokens, seconds))[skipped:])


def generate(bench, model, prompts, batch, new):
    """Greedy replies of `new` tokens; returns seconds, peak memory and the tokens."""
    with tempfile.TemporaryDirectory(dir=bench.folder) as folder:
        out = Path(folder) / "replies.jsonl"
        seconds, peak = bench.ours(
            "generate", "--model", model, "--input", prompts, "--output", out, "--device", "cpu",
            "--max-new-tokens", new, "--temperature", 0, "--ignore-eos", "--batch-size", batch)
        return seconds, peak, [json.loads(line)["ids"] for line in out.read_text().splitlines()]
