"""Training and generation beside HF transformers: same weights, rows, order, optimizer and threads, alternating in one run.

    python bench/make_inputs.py INPUTS
    python bench/compare_transformers.py INPUTS RESULT.json [--pairs 3] [--threads 2]

Equality comes first: the run stops when a loss differs by more than 1e-4 or a greedy token differs. Then medians of the pairs'
ratios, peak memory of the whole process of each side, and the limit of this machine, measured in the same run.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
BINARY = HERE.parent / "target/release/colossal-chat"
STEPS, MICRO, ACCUMULATION, NEW, BATCH = 8, 4, 2, 128, 32
SKIPPED = 2  # first steps, in which both sides warm up


def command(arguments):
    """Runs a command; returns its wall seconds and its peak resident bytes."""
    started = time.perf_counter()
    child = subprocess.Popen([str(part) for part in arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    errors = child.stderr.read()
    _, status, usage = os.wait4(child.pid, 0)
    if status != 0:
        sys.exit(f"{arguments}\n{errors.decode()}")
    return time.perf_counter() - started, usage.ru_maxrss * 1024


def our_training(inputs, rows, threads, folder):
    config = folder / "run.toml"
    out = folder / "run"
    config.write_text(
        f"""
out = "{out}"
[model]
path = "{inputs / 'model'}"
[data]
train = "{rows}"
max_length = 1024
shuffle = false
[train]
steps = {STEPS}
micro_batch_size = {MICRO}
gradient_accumulation_steps = {ACCUMULATION}
lr = 1e-4
scheduler = "constant"
betas = [0.9, 0.999]
weight_decay = 0.0
max_grad_norm = 1.0
[log]
every = 1
"""
    )
    _, peak = command([BINARY, "sft", "--config", config, "--threads", threads])
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    pick = lambda name: [row[name] for row in rows]
    return {"loss": pick("loss"), "seconds": pick("seconds"), "tokens": pick("tokens"), "peak_rss_bytes": peak}


def their_training(inputs, rows, threads, folder):
    out = folder / "hf.json"
    shape = ["--steps", STEPS, "--micro", MICRO, "--accumulation", ACCUMULATION, "--threads", threads]
    command([sys.executable, HERE / "sft_transformers.py", inputs / "model", rows, *shape, "--out", out])
    return json.loads(out.read_text())


def tokens_per_second(run):
    return statistics.median(
        tokens / seconds for tokens, seconds in list(zip(run["tokens"], run["seconds"]))[SKIPPED:]
    )


def compare_training(inputs, name, options):
    pairs = []
    for _ in range(options.pairs):
        with tempfile.TemporaryDirectory() as folder:
            arguments = (inputs, inputs / f"{name}.parquet", options.threads, Path(folder))
            ours, theirs = our_training(*arguments), their_training(*arguments)
        difference = max(abs(left - right) for left, right in zip(ours["loss"], theirs["loss"], strict=True))
        if difference > 1e-4:
            sys.exit(f"{name}: losses differ by {difference}: {ours['loss']} {theirs['loss']}")
        pairs.append((ours, theirs, difference))
    speeds = [(tokens_per_second(ours), tokens_per_second(theirs)) for ours, theirs, _ in pairs]
    ratios = [ours / theirs for ours, theirs in speeds]
    return {
        "tokens_per_second": statistics.median(speed for speed, _ in speeds),
        "transformers_tokens_per_second": statistics.median(speed for _, speed in speeds),
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "largest_loss_difference": max(difference for *_, difference in pairs),
        "peak_rss_bytes": max(ours["peak_rss_bytes"] for ours, *_ in pairs),
        "transformers_peak_rss_bytes": max(theirs["peak_rss_bytes"] for _, theirs, _ in pairs),
    }


def our_generation(inputs, new, threads, folder):
    out = folder / f"{new}.jsonl"
    seconds, peak = command(
        [BINARY, "generate", "--model", inputs / "model", "--input", inputs / "prompts.jsonl", "--output", out, "--force"]
        + ["--max-new-tokens", new, "--temperature", 0, "--ignore-eos", "--batch-size", BATCH, "--threads", threads]
    )
    return seconds, peak, [json.loads(line)["ids"] for line in out.read_text().splitlines()]


def their_generation(inputs, threads, folder):
    out = folder / "hf.json"
    script = [sys.executable, HERE / "generate_transformers.py", inputs / "model", inputs / "prompts.parquet"]
    command([*script, "--new", NEW, "--threads", threads, "--out", out])
    return json.loads(out.read_text())


def compare_generation(inputs, options):
    ours, theirs, peaks = [], [], []
    # A step's time is the difference of two runs: noisier than a training step, and taken more often.
    for _ in range(2 * options.pairs + 1):
        with tempfile.TemporaryDirectory() as folder:
            first, _, _ = our_generation(inputs, 1, options.threads, Path(folder))
            whole, peak, ids = our_generation(inputs, NEW, options.threads, Path(folder))
            peer = their_generation(inputs, options.threads, Path(folder))
        if ids != peer["ids"]:
            sys.exit("the greedy tokens differ")
        ours.append((whole - first) / (NEW - 1) * 1e3)
        theirs.append(peer["decode_ms_per_step"])
        peaks.append((peak, peer["peak_rss_bytes"]))
    ratios = [peer / own for own, peer in zip(ours, theirs)]
    return {
        "decode_ms_per_step": statistics.median(ours),
        "transformers_decode_ms_per_step": statistics.median(theirs),
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "peak_rss_bytes": max(peak for peak, _ in peaks),
        "transformers_peak_rss_bytes": max(peak for _, peak in peaks),
    }


def limits(threads):
    """Gigaflops of an fp32 product (by MKL and by oneDNN) and gigabytes a second of a read, the best of several."""
    import torch

    torch.set_num_threads(threads)

    def best(run):
        times = []
        for _ in range(7):
            started = time.perf_counter()
            run()
            times.append(time.perf_counter() - started)
        return min(times)

    square, long = torch.randn(1536, 1536), torch.randn(64 << 20)
    onednn = torch.ops.mkldnn._linear_pointwise
    products = [lambda: square @ square, lambda: onednn(square, square, None, "none", [], "")]
    return {
        "gigaflops": 2 * 1536**3 / min(map(best, products)) / 1e9,
        "read_gigabytes_per_second": long.numel() * 4 / best(lambda: long.sum()) / 1e9,
    }


def add_limits(result, limit):
    """What the arithmetic alone takes: 6 operations a parameter and token to train, 2 to decode."""
    parameters = 42_082_816
    peak = limit["gigaflops"] * 1e9
    for name in ("sft_fixed", "sft_ragged"):
        result[name]["limit_tokens_per_second"] = peak / (6 * parameters)
    arithmetic = 2 * parameters * BATCH / peak
    reading = 4 * parameters / (limit["read_gigabytes_per_second"] * 1e9)
    result["decode"]["limit_ms_per_step"] = max(arithmetic, reading) * 1e3


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("inputs", type=Path)
    parser.add_argument("result", type=Path)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    inputs = options.inputs.resolve()
    before = limits(options.threads)
    result = {
        "machine": next(line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")),
        "threads": options.threads,
        "commit": subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, text=True).strip(),
        "decode": compare_generation(inputs, options),
        "sft_fixed": compare_training(inputs, "fixed", options),
        "sft_ragged": compare_training(inputs, "ragged", options),
    }
    after = limits(options.threads)
    result["limits"] = {"before": before, "after": after}
    add_limits(result, {name: max(before[name], after[name]) for name in before})
    options.result.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
