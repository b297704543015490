"""The figures of bench/gpu.sh: compares runs, computes speeds with their limits, keeps the results. Standard library only.

A figure is `{"name", "value", "unit", "limit", "limit_of"}`: the limit is what the device could do at best, from the numbers of
its maker, or what a difference may be. A speed is never above its limit, a difference must not be.
"""

import argparse
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from measure import Bench, CommandFailed, NotEqual, within
from parts import decode as decoding, sft

# Dense bf16 operations and bytes of memory per second, from NVIDIA's data sheets, by the name that nvidia-smi gives.
PEAKS = {
    "H100 80GB HBM3": (989e12, 3.35e12),
    "H100 PCIe": (756e12, 2.0e12),
    "H200": (989e12, 4.8e12),
    "A100-SXM4-80GB": (312e12, 2.04e12),
    "A100-SXM4-40GB": (312e12, 1.56e12),
}
# First steps of a run, in which kernels are loaded and memory is taken.
SKIPPED_STEPS = 2
SUMMARY_LINES = 80
KERNEL_LINES = 40


def add_figure(figures, name, value, unit, limit=None, limit_of=None, shown=True):
    figure = {"name": name, "value": value, "unit": unit, "limit": limit, "limit_of": limit_of}
    with open(figures, "a") as file:
        file.write(json.dumps(figure) + "\n")
    if shown:
        print(figure)


def lines_of(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def rows_of(run):
    return lines_of(Path(run) / "metrics.jsonl")


def nvidia_smi(query):
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.splitlines()[0].strip() if done.returncode == 0 and done.stdout.strip() else None


def peaks():
    name = nvidia_smi("name") or ""
    return next((peak for part, peak in PEAKS.items() if part in name), (None, None))


def parameters_of(model):
    """The parameters of a LLaMA; its embedding, where it is the head as well, once."""
    config = json.loads((Path(model) / "config.json").read_text())
    width, layers, vocabulary = (config[key] for key in ("hidden_size", "num_hidden_layers", "vocab_size"))
    kv_width = width // config["num_attention_heads"] * config["num_key_value_heads"]
    layer = 2 * width * (width + kv_width) + 3 * width * config["intermediate_size"]
    return layers * layer + vocabulary * width * (1 if config["tie_word_embeddings"] else 2), 2 * layers * kv_width, vocabulary * width


def compare(options):
    """The losses of two runs, step by step. PPO's second iteration has other replies once a token differs."""
    left, right = rows_of(options.left), rows_of(options.right)
    if len(left) != len(right):
        sys.exit(f"{options.left} has {len(left)} steps, and {options.right} {len(right)}")
    if "objective/scores" in left[0]:
        left, right = left[:1], right[:1]
    differences = [abs(a["loss"] - b["loss"]) / max(1.0, abs(a["loss"])) for a, b in zip(left, right)]
    worst = max(differences)
    add_figure(options.figures, f"{options.name}: largest difference of losses", worst, "", options.tolerance, "tolerance")
    if not worst <= options.tolerance:
        sys.exit(f"the losses differ by {worst}: {[row['loss'] for row in left]} {[row['loss'] for row in right]}")


def training(options):
    rows = rows_of(options.run)
    measured = rows[min(SKIPPED_STEPS, len(rows) - 1) :]
    speed = statistics.median(row["tokens"] / row["seconds"] for row in measured)
    limit = None
    flops, _ = peaks()
    if options.model and flops:
        # Forward and backward of every product with a weight; attention and recomputation come on top.
        parameters, _, embedding = parameters_of(options.model)
        config = json.loads((Path(options.model) / "config.json").read_text())
        used = parameters - (0 if config["tie_word_embeddings"] else embedding)
        limit = flops / (6 * used)
    add_figure(options.figures, f"{options.name}: tokens", speed, "1/s", limit, "6 operations per weight and token")
    add_figure(options.figures, f"{options.name}: step", statistics.median(row["seconds"] for row in measured), "s")
    add_figure(options.figures, f"{options.name}: last loss", rows[-1]["loss"], "")
    for part in ("rollout", "score", "update"):
        if f"timing/{part}" in rows[-1]:
            seconds = statistics.median(row[f"timing/{part}"] for row in measured)
            add_figure(options.figures, f"{options.name}: {part}", seconds, "s")


def prompts_of(batch):
    return f"prompts-{batch}.jsonl"


def replies_of(batch, dtype):
    return f"replies-{batch}-{dtype}.jsonl"


def generate(options, new):
    """Greedy replies to the prompts of a batch, which stay in a file; returns the seconds."""
    command = [options.binary, "generate", "--model", options.model, "--device", options.device]
    command += ["--input", prompts_of(options.batch), "--output", replies_of(options.batch, options.dtype), "--force"]
    command += ["--dtype", options.dtype, "--raw", "--ignore-eos", "--temperature", "0", "--batch-size", str(options.batch)]
    started = time.perf_counter()
    subprocess.run(
        command + ["--max-new-tokens", str(new)],
        check=True,
        env=os.environ | ({"LD_PRELOAD": options.preload} if options.preload else {}),
    )
    return time.perf_counter() - started


def decode(options):
    """The time of a step: that of a run with many new tokens less that of a run with one."""
    with open(prompts_of(options.batch), "w") as file:
        for row in range(options.batch):
            ids = [5 + (row * 31 + at * 7) % 290 for at in range(options.prompt)]
            file.write(json.dumps({"ids": ids}) + "\n")
    if options.rounds == 0:
        # Only the replies are wanted.
        generate(options, 1 + options.new)
        return
    generate(options, 1)
    once = min(generate(options, 1) for _ in range(options.rounds))
    whole = min(generate(options, 1 + options.new) for _ in range(options.rounds))
    milliseconds = (whole - once) / options.new * 1e3
    limit = None
    _, bytes_per_second = peaks()
    if bytes_per_second:
        # Every weight once, and the keys and values of all tokens so far.
        parameters, kv_per_token, _ = parameters_of(options.model)
        cached = options.batch * (options.prompt + options.new / 2) * kv_per_token
        limit = {"bfloat16": 2, "float32": 4}[options.dtype] * (parameters + cached) / bytes_per_second * 1e3
    name = options.name
    add_figure(options.figures, f"{name}: decoding step", milliseconds, "ms", limit, "bytes of weights and cache")
    add_figure(options.figures, f"{name}: new tokens", options.batch / milliseconds * 1e3, "1/s")


def kernels(options):
    """Prints the kernels of a run that took longest, and adds the time in which none ran to the figures."""
    runs = [line.rsplit("\t", 2) for line in Path(options.trace).read_text().splitlines()]
    spans = sorted((int(start), int(end)) for _, start, end in runs)
    busy, until = 0, 0
    for start, end in spans:
        busy += max(0, end - max(start, until))
        until = max(until, end)
    totals = {}
    for name, start, end in runs:
        nanoseconds, count = totals.get(name, (0, 0))
        totals[name] = nanoseconds + int(end) - int(start), count + 1
    whole = until - spans[0][0]
    print(f"{options.name}: kernels run for {busy / 1e6:.1f} of {whole / 1e6:.1f} ms")
    for name, (nanoseconds, count) in sorted(totals.items(), key=lambda item: -item[1][0])[:KERNEL_LINES]:
        print(f"{nanoseconds / 1e6:10.3f} ms {count:7}  {name[:150]}")
    print()
    add_figure(options.figures, f"{options.name}: time with a kernel", busy / whole * 100, "%", shown=False)


class Peers:
    """transformers on the rows and prompts that the program has had: what it computes must be equal, then its time counts."""

    def __init__(self, options):
        self.options = options
        self.bench = Bench(options.binary, options.threads, 1, False, ".", None, [])

    def decode(self, batch, dtype, cache):
        replies = lines_of(replies_of(batch, dtype))
        ids = [reply["ids"] for reply in replies]
        run = self.bench.peer(
            "decode.py", model=self.options.model, prompts=prompts_of(batch), new=len(ids[0]) - 1, cache=cache, dtype=dtype,
            device="cuda")
        name = f"transformers, batch {batch}, {dtype}, {cache} cache"
        if dtype == "float32":
            draws = decoding.same_tokens({"ids": ids}, run)
            add_figure(self.options.figures, f"{name}: replies that part at a draw", draws, "", batch, "replies")
            return
        # In bf16 two programs round so differently that no bound on their logits would be exact.
        parted = sum(mine != theirs for mine, theirs in zip(ids, run["ids"], strict=True))
        add_figure(self.options.figures, f"{name}: replies that are not equal", parted, "")
        add_figure(self.options.figures, f"{name}: decoding step", run["value"], "ms")

    def train(self, precision):
        metrics = rows_of(self.options.run)
        run = self.bench.peer(
            "sft.py", model=self.options.model, rows=self.options.rows, steps=len(metrics), micro=self.options.micro,
            accumulation=1, precision=precision, learning_rate=metrics[0]["lr"], device="cuda")
        tolerance = sft.TOLERANCE["bfloat16"]
        name = f"transformers, {precision}"
        difference = within(tolerance, name, [row["loss"] for row in metrics], run["losses"])
        seconds = statistics.median(run["seconds"][SKIPPED_STEPS:])
        add_figure(self.options.figures, f"{name}: largest difference of losses", difference, "", tolerance, "tolerance")
        add_figure(self.options.figures, f"{name}: tokens", statistics.median(row["tokens"] for row in metrics) / seconds, "1/s")
        add_figure(self.options.figures, f"{name}: step", seconds, "s")
        add_figure(self.options.figures, f"{name}: peak of device memory", run["device_peak_bytes"] / 2**20, "MiB")


def peers(options):
    """Exit code 1 if something was not equal, after everything else has run."""
    side, failed = Peers(options), []
    parts = [(side.train, precision) for precision in sft.PRECISIONS["bfloat16"]]
    parts += [(side.decode, options.exact_batch, "float32", "dynamic")]
    parts += [(side.decode, batch, "bfloat16", cache) for batch in options.batches for cache in ("dynamic", "static")]
    for part, *arguments in parts:
        try:
            part(*arguments)
        except (NotEqual, CommandFailed) as error:
            failed.append(f"{arguments}: {error}")
    if failed:
        sys.exit("\n".join(failed))


def tokenizer(options):
    """Names every token of a model: that of a small tokenizer with further words, which no text has."""
    source, folder = Path(options.source), Path(options.folder)
    shutil.copytree(source, folder, dirs_exist_ok=True)
    content = json.loads((source / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    used = set(vocabulary.values()) | {token["id"] for token in content["added_tokens"]}
    count = json.loads(Path(options.config).read_text())["vocab_size"]
    vocabulary |= {f"word{number}": number for number in range(count) if number not in used}
    (folder / "tokenizer.json").write_text(json.dumps(content))


def machine(options):
    """Starts the file of results, or goes on with one of the same machine. Prints its path."""
    device = "the accelerator of the tests" if options.stand_in == "yes" else nvidia_smi("name") or "a GPU of NVIDIA"
    name = options.name or re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")
    folder = Path(options.root) / "bench/results"
    # What the accelerator says is no result.
    default = Path("gpu-stand-in.json") if options.stand_in == "yes" else folder / f"gpu-{name}.json"
    out = Path(options.out) if options.out else default
    revision = ["git", "-C", options.root, "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        commit = options.commit or subprocess.run(revision, capture_output=True, text=True).stdout.strip()
    except OSError:
        commit = ""
    flops, bytes_per_second = peaks() if options.stand_in == "no" else (None, None)
    facts = {
        "device": device,
        "stand_in": options.stand_in == "yes",
        "memory_mib": nvidia_smi("memory.total"),
        "driver": nvidia_smi("driver_version"),
        "torch": options.torch,
        "bf16_flops_per_second": flops,
        "bytes_per_second": bytes_per_second,
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
    }
    results = json.loads(out.read_text()) if out.exists() else {"steps": []}
    if results["steps"] and results.get("device") != device:
        sys.exit(f"gpu.sh: {out} has results of {results.get('device')}: name another file with --out")
    write(out, facts | {"commit": commit or "not known", "steps": results["steps"]})
    print(out.resolve())


def write(out, results):
    partial = out.with_name(out.name + ".partial")
    partial.write_text(json.dumps(results, indent=1) + "\n")
    partial.rename(out)


def record(options):
    """Adds a step to the results, in place of an earlier run of the same step."""
    out, work = Path(options.out), Path(options.work)
    results = json.loads(out.read_text())
    figures = work / f"{options.step}.figures"
    log = (work / f"{options.step}.log").read_text(errors="replace").splitlines()
    status = {0: "ok", 77: "not run here", 124: "out of time", 137: "out of time"}.get(options.rc, "failed")
    step = {
        "step": options.step,
        "status": status,
        "rc": options.rc,
        "seconds": options.seconds,
        "limit_seconds": options.limit,
        "commit": results["commit"],
        "figures": [json.loads(line) for line in figures.read_text().splitlines()] if figures.exists() else [],
    }
    notes = [line for line in log if " differ by " in line or line.startswith("transformers ")]
    if notes:
        step["notes"] = notes
    skipped = sorted({line.split("skipped: ", 1)[1] for line in log if "skipped: " in line})
    if skipped:
        step["skipped"] = skipped
    if status in ("failed", "out of time"):
        step["log"] = log[-40:]
    results["steps"] = [other for other in results["steps"] if other["step"] != options.step] + [step]
    write(out, results)


NOT_RUN = {
    "nccl": "it needs a GPU and its NCCL",
    "peers": "python3 has no torch for GPUs, or no transformers",
    "kernels": "it needs a compiler of C, and CUPTI",
}


def summary(options):
    results = json.loads(Path(options.out).read_text())
    lines = [f"{results['device']}, driver {results['driver']}, torch {results['torch']}"]
    for step in (step for step in results["steps"] if step["step"] in options.steps):
        why = f": {NOT_RUN[step['step']]}" if step["status"] == "not run here" and step["step"] in NOT_RUN else ""
        lines.append(f"{step['step']:<15}{step['status']:<13}{step['seconds']:>5} s of {step['limit_seconds']} s{why}")
        for figure in step["figures"]:
            limit = "" if figure["limit"] is None else f"  (limit {figure['limit']:.4g}, {figure['limit_of']})"
            lines.append(f"    {figure['name']}: {figure['value']:.4g} {figure['unit']}{limit}")
        lines += [f"    skipped: {reason}" for reason in step.get("skipped", [])]
        lines += [f"    | {line[:150]}" for line in step.get("log", [])[-3:]]
    if results["stand_in"]:
        lines.insert(1, "The accelerator proves no kernel of CUDA, no stream, no NCCL and no speed: these need a GPU.")
    if len(lines) > SUMMARY_LINES - 1:
        lines = lines[: SUMMARY_LINES - 2] + ["    ... the rest is in the file"]
    print("\n".join([*lines, options.out]))
    bad = [step for step in results["steps"] if step["step"] in options.steps and step["status"] not in ("ok", "not run here")]
    sys.exit(1 if bad else 0)


def main():
    parser = argparse.ArgumentParser()
    verbs = parser.add_subparsers(dest="verb", required=True)

    def verb(function, *words, **options):
        child = verbs.add_parser(function.__name__)
        for word in words:
            child.add_argument(word)
        for option, default in options.items():
            child.add_argument("--" + option.replace("_", "-"), default=default, type=type(default))
        child.set_defaults(function=function)
        return child

    verb(compare, "figures", "name", "left", "right", tolerance=1e-3)
    verb(training, "figures", "name", "run").add_argument("model", nargs="?")
    verb(decode, "figures", "name", "binary", "model", "device", batch=1, new=128, prompt=128, preload="", dtype="bfloat16", rounds=3)
    child = verb(peers, "figures", "binary", "model", "run", "rows", micro=4, exact_batch=1, threads=os.cpu_count())
    child.add_argument("--batches", nargs="+", type=int, default=[1])
    verb(kernels, "figures", "name", "trace")
    verb(tokenizer, "source", "config", "folder")
    verb(machine, out="", name="", stand_in="no", torch="", root="", commit="")
    child = verb(record, "out", "step")
    for number in ("rc", "seconds", "limit"):
        child.add_argument(number, type=int)
    child.add_argument("work")
    verb(summary, "out").add_argument("steps", nargs="*")
    options = parser.parse_args()
    options.function(options)


if __name__ == "__main__":
    main()
