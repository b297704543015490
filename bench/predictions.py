"""Compares what `plan` predicts of memory and time with runs, and writes docs/predictions.md.

    python bench/predictions.py --binary target/release/colossal-chat --work DIR [--only "NAME; NAME"]

`doctor --bench` measures the machine first, with the threads of one process and with those of two. Then each run of RUNS
trains a model of random weights for some steps: its plan holds the predicted peak and seconds, its log the peak and the
median step. No constant of the predictions was fitted to these runs. Standard library only; runs that are there already
are not made again.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

import inputs
import machine
import shapes

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "predictions.md"
STEPS, SKIPPED = 10, 3
# 7.6 M parameters, and 42 M with a vocabulary of 32,000.
SMALL, LARGE = shapes.SMALL, shapes.llama()
CHECKPOINTING = "train.activation_checkpointing=true"
BF16 = "model.dtype=bfloat16"
LORA = ["model.lora.r=16", "model.lora.lora_alpha=32"]
TWO = "parallel.transport=shared"
PPO = [
    "ppo.iterations=6", "ppo.rollout_batch_size=16", "ppo.mini_batch_size=16", "ppo.epochs=2", "ppo.max_new_tokens=32",
]
GRPO = [
    "ppo.iterations=6", "ppo.rollout_batch_size=4", "ppo.samples_per_prompt=4", "ppo.mini_batch_size=16",
    "ppo.max_new_tokens=32",
]
# Name, model, stage, processes, settings.
RUNS = [
    ("SFT, small", SMALL, "sft", 1, []),
    ("SFT, small, bf16", SMALL, "sft", 1, [BF16]),
    ("SFT, small, checkpointing", SMALL, "sft", 1, [CHECKPOINTING]),
    ("SFT, small, packed", SMALL, "sft", 1, ["data.packing=true"]),
    ("SFT", LARGE, "sft", 1, []),
    ("SFT, bf16", LARGE, "sft", 1, [BF16]),
    ("SFT, checkpointing", LARGE, "sft", 1, [CHECKPOINTING]),
    ("SFT, checkpointing, bf16", LARGE, "sft", 1, [CHECKPOINTING, BF16]),
    ("SFT, 500 MiB", LARGE, "sft", 1, [CHECKPOINTING, 'gemini.device_memory="500MiB"']),
    ("SFT, 600 MiB, static", LARGE, "sft", 1, [
        CHECKPOINTING, 'gemini.device_memory="600MiB"', 'gemini.placement="static"',
    ]),
    ("SFT, LoRA", LARGE, "sft", 1, LORA),
    ("SFT, QLoRA", LARGE, "sft", 1, [*LORA, 'model.quantize="nf4"']),
    ("SFT, data 2", LARGE, "sft", 2, [TWO]),
    ("SFT, data 2, ZeRO 2", LARGE, "sft", 2, [TWO, "parallel.zero=2"]),
    ("SFT, data 2, ZeRO 3", LARGE, "sft", 2, [TWO, "parallel.zero=3"]),
    ("SFT, tensor 2", LARGE, "sft", 2, [TWO, "parallel.tensor.size=2"]),
    ("SFT, tensor 2, Megatron", LARGE, "sft", 2, [
        TWO, "parallel.tensor.size=2", 'parallel.sequence.mode="megatron"',
    ]),
    ("SFT, pipeline 2", LARGE, "sft", 2, [TWO, "parallel.pipeline.size=2"]),
    ("SFT, Ulysses 2", LARGE, "sft", 2, [TWO, 'parallel.sequence.mode="ulysses"', "parallel.sequence.size=2"]),
    ("reward model", LARGE, "rm", 1, []),
    ("DPO", LARGE, "dpo", 1, []),
    ("DPO, LoRA, bf16", LARGE, "dpo", 1, [*LORA, BF16]),
    ("PPO, small", SMALL, "ppo", 1, PPO),
    ("GRPO, small, data 2", SMALL, "grpo", 2, [TWO, *GRPO]),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/colossal-chat")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--only", help="names of runs, with semicolons between them")
    options = parser.parse_args()
    bench = Bench(options.binary.resolve(), options.work.resolve())
    names = [name.strip() for name in options.only.split(";")] if options.only else [name for name, *_ in RUNS]
    for threads in (os.cpu_count(), os.cpu_count() // 2):
        if not (bench.home / f".cache/colossal-chat/hardware-{threads}-threads.toml").exists():
            bench.ours("doctor", "--bench", "--disk-path", bench.folder, "--threads", threads)
    found = {run[0]: measure(bench, *run) for run in RUNS if run[0] in names}
    for name, row in found.items():
        print(f"{name:28} {row['predicted_mib']:6.0f} {row['mib']:6.0f} {share(row, 'mib'):+7.1%}   "
              f"{row['predicted_seconds']:7.3f} {row['seconds']:7.3f} {share(row, 'seconds'):+7.1%}")
    if not options.only:
        PAGE.write_text(page(found))
        print(PAGE)


class Bench:
    """The program with a home of its own, and a folder for inputs and runs."""

    def __init__(self, binary, work):
        self.binary, self.folder, self.home = binary, work, work / "home"
        self.home.mkdir(parents=True, exist_ok=True)

    def ours(self, *words):
        """Runs the program; returns what it wrote to stderr."""
        environment = {**os.environ, "HOME": str(self.home)}
        done = subprocess.run([self.binary, *map(str, words)], capture_output=True, text=True, env=environment)
        if done.returncode != 0:
            sys.exit(f"{' '.join(map(str, words))}\n{done.stderr[-2000:]}")
        return done.stderr


def measure(bench, name, shape, stage, processes, settings):
    run = bench.folder / "-".join(re.findall("[a-z0-9]+", name.lower()))
    if not (run / "final").is_dir():
        model = inputs.language_model(bench, shape)
        config = bench.folder / "run.toml"
        config.write_text('[[reward]]\nkind = "repetition"\n' if stage == "grpo" else "")
        sets = {
            "out": run, "model.path": model, "data.train": rows(bench, shape, stage), "data.max_length": 512, "log.every": 1,
            "checkpoint.every": 0, "train.micro_batch_size": 4, "train.lr": 1e-4,
        }
        if stage in ("ppo", "grpo"):
            sets["train.micro_batch_size"] = 8
        else:
            sets |= {"train.steps": STEPS, "train.gradient_accumulation_steps": 2}
        if stage == "ppo":
            sets["ppo.reward_model"] = inputs.reward_model(bench, model, f"reward-{shape.hidden}")
        words = [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
        words += [word for setting in settings for word in ("--set", setting)]
        log = bench.ours(stage, "--config", config, "--nproc", processes, *words)
        (run / "stderr.log").write_text(log)
    plan = json.loads((run / "plan.json").read_text())
    seconds = [json.loads(line)["seconds"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    # The last one; the first one is that of the loaded models.
    peaks = re.findall(r"peak memory[^:]*: ([\d, ]+) MiB", (run / "stderr.log").read_text())[-1]
    return {
        "predicted_mib": plan["peak_memory"]["total"] / 2**20, "mib": max(map(int, peaks.split(", "))),
        "predicted_seconds": plan["step_time"]["seconds"], "seconds": statistics.median(seconds[SKIPPED:]),
    }


def rows(bench, shape, stage):
    """A file of rows of 64 to 256 tokens."""
    path = bench.folder / f"{stage}-{shape.vocabulary}.jsonl"
    if not path.exists():
        lengths = list(range(64, 257, 16))
        if stage in ("rm", "dpo"):
            made = inputs.pairs(400, lengths, 32, shape.vocabulary, seed=3)
        elif stage in ("ppo", "grpo"):
            words = inputs.counting_rows(400, [32], shape.vocabulary, seed=4)
            made = ({"prompt": " ".join(f"w{token}" for token in row)} for row in words)
        else:
            made = ({"input_ids": row} for row in inputs.counting_rows(400, lengths, shape.vocabulary, seed=5))
        inputs.write_lines(path, made)
    return path


def share(row, what):
    """How far the prediction is above what was measured."""
    return row[f"predicted_{what}"] / row[what] - 1


def page(found):
    lines = [
        "# Predictions and runs", "",
        "`bench/predictions.py` makes this page. Do not edit it by hand.", "",
        "What `plan` predicts of the peak of a process and of the seconds of a step, beside a run of a model of random weights",
        "(42 million parameters with a vocabulary of 32,000; the small one has 7.6 million and 11,000). Rows have 64 to 256 tokens,",
        f"and a step has 8 of them. The seconds are the median of the steps from {SKIPPED + 1} on. No constant of the predictions was",
        "fitted to these runs; `doctor --bench` measured the machine before them.", "",
        "| run | peak, predicted | measured, MiB | | step, predicted | measured, s | |", "|---|---|---|---|---|---|---|",
    ]
    for name, row in found.items():
        lines.append(
            f"| {name} | {row['predicted_mib']:.0f} | {row['mib']} | {share(row, 'mib'):+.0%} "
            f"| {row['predicted_seconds']:.3f} | {row['seconds']:.3f} | {share(row, 'seconds'):+.0%} |"
        )
    for what, title in (("mib", "memory"), ("seconds", "time")):
        off = sorted(abs(share(row, what)) for row in found.values())
        lines += ["", f"Predictions of {title} are off by {statistics.median(off):.0%} in the median, and by {off[-1]:.0%} at most."]
    lines += ["", f"{machine.processor()}, commit {machine.commit(ROOT)}."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
