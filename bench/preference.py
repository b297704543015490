"""Compares the algorithms of preference learning on the world of the demo, and writes docs/preference-compared.md.

    python bench/preference.py --binary target/release/colossal-chat --work DIR [--seeds 1,2,3] [--demo SEED=FOLDER]...

For each seed the demo runs once, unless --demo names the folder of one that has run. Every algorithm then starts from its
SFT model and learns from its pairs, with the same number of steps and rows. The verifier counts exact matches of greedy
answers to the held-out questions, and how often the model finds the better one of two held-out replies more likely. The
difference to SFT is paired by question. Standard library only; results that are there already are not made again.
"""

import argparse
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import machine

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "preference-compared.md"
# Name, stage, and settings beside those of COMMON.
ALGORITHMS = [
    ("DPO", "dpo", ["dpo.beta=0.1"]),
    ("IPO", "dpo", ["dpo.loss=ipo", "dpo.beta=0.1"]),
    ("KTO", "kto", ["kto.beta=0.1"]),
    ("ORPO", "orpo", ["orpo.beta=0.1"]),
    ("SimPO", "simpo", ["simpo.beta=2.0", "simpo.gamma=1.0"]),
]
COMMON = [
    "train.steps=300", "train.micro_batch_size=64", "train.lr=1e-4", "train.warmup_steps=20", "train.scheduler=linear",
    "log.every=10", "checkpoint.every=0",
]
TASKS = "world,world_preference"


def main():
    options = arguments()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    given = dict(demo.split("=", 1) for demo in options.demo)
    rows = []
    for seed in seeds:
        demo = Path(given[str(seed)]).resolve() if str(seed) in given else run_demo(options, seed)
        rows += compare(options, seed, demo)
    PAGE.write_text(page(rows, seeds, options.binary))
    print(PAGE)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/colossal-chat")
    parser.add_argument("--work", type=Path, required=True, help="the folder of demos and runs")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--demo", action="append", default=[], metavar="SEED=FOLDER", help="a demo that has run")
    options = parser.parse_args()
    options.binary = options.binary.resolve()
    options.work.mkdir(parents=True, exist_ok=True)
    return options


def program(options, log, *words):
    """Runs the program; returns what it wrote to stderr."""
    done = subprocess.run([options.binary, *map(str, words)], cwd=options.work, capture_output=True, text=True)
    (options.work / log).write_text(done.stderr)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stderr[-2000:]}")
    return done.stderr


def run_demo(options, seed):
    out = options.work.resolve() / f"demo-{seed}"
    if not (out / "ppo/final").is_dir():
        # The file of the demo, without its evaluation: all models are evaluated together, below.
        text = (ROOT / "chat/src/demo.toml").read_text().replace(', "eval", "report"]', "]")
        (options.work / "demo.toml").write_text(text)
        program(options, f"demo-{seed}.log", "pipeline", "--config", "demo.toml", "--set", f"out={out}", "--set", f"seed={seed}")
    return out


def compare(options, seed, demo):
    models = {"SFT": demo / "sft/final", "PPO": demo / "ppo/final"}
    costs = {"PPO": costs_of(demo / "ppo", None)}
    for name, stage, settings in ALGORITHMS:
        run = options.work.resolve() / f"{name.lower()}-{seed}"
        log = options.work / f"{name.lower()}-{seed}.log"
        if not (run / "final").is_dir():
            sets = [f"out={run}", f"seed={seed}", f"model.path={demo / 'sft/final'}", "data.max_length=128", *COMMON, *settings]
            sets += [f"data.train={demo / 'data/preference.parquet'}"]
            (options.work / "empty.toml").write_text("")
            words = [word for setting in sets for word in ("--set", setting)]
            program(options, log.name, stage, "--config", "empty.toml", *words)
        models[name], costs[name] = run / "final", costs_of(run, log.read_text())

    out = options.work / f"eval-{seed}"
    if not (out / "results.json").exists():
        folders = ",".join(map(str, models.values()))
        program(
            options, f"eval-{seed}.log", "eval", "--model", folders, "--tasks", TASKS, "--data", demo, "--output", out)
    results = json.loads((out / "results.json").read_text())
    # The models are in the order in which they were named. Of several metrics of a task the first one counts.
    scores = {}
    for name, model in zip(models, results["models"], strict=True):
        scores[name] = {score["task"]: score for score in reversed(model["scores"])}
    return [{"seed": seed, "name": name, "scores": scores[name], "cost": costs.get(name)} for name in models]


def costs_of(run, log):
    """Seconds of all steps, and the peak of memory in MiB, which the program writes at its end."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = max(row["step"] for row in rows)
    seconds = sum(row["seconds"] for row in rows if "seconds" in row) / len(rows) * steps
    peak = re.search(r"peak memory: (\d+) MiB", log) if log else None
    return {"seconds": seconds, "peak": int(peak[1]) if peak else None}


def mean_and_interval(values):
    """The mean over seeds with Student's 95 % interval."""
    quantiles = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}  # of t, by degrees of freedom
    mean, freedom = sum(values) / len(values), len(values) - 1
    if freedom == 0:
        return f"{mean:.1f}"
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / freedom)
    half = quantiles[freedom] * deviation / math.sqrt(len(values))
    return f"{mean:.1f} ± {half:.1f}"


def percent(score):
    low, high = score["interval"]
    return f"{100 * score['value']:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def page(rows, seeds, binary):
    names = list(dict.fromkeys(row["name"] for row in rows))
    of = lambda name: [row for row in rows if row["name"] == name]
    lines = [
        "# Algorithms of preference learning, compared", "",
        "`bench/preference.py` makes this page. Do not edit it by hand.", "",
        "Every algorithm starts from the SFT model of the demo (0.92 million parameters) and learns from the same pairs:",
        f"`{' '.join(COMMON)}`. PPO learns from its own replies and the reward model of these pairs, as in the demo. Exact",
        "matches are of greedy answers to 1,000 held-out questions, by the verifier; preferences are how often the model finds",
        "the better one of two held-out replies more likely. Percent, with 95 % intervals: of a seed by its questions, of the",
        "mean by its seeds.", "",
        "| algorithm | " + " | ".join(f"exact match, seed {seed}" for seed in seeds) + " | mean | preferences, mean | seconds | peak, MiB |",
        "|---" * (len(seeds) + 5) + "|",
    ]
    for name in names:
        cells = [percent(row["scores"]["world"]) for row in of(name)]
        exact = mean_and_interval([100 * row["scores"]["world"]["value"] for row in of(name)])
        likely = mean_and_interval([100 * row["scores"]["world_preference"]["value"] for row in of(name)])
        costs = [row["cost"] for row in of(name) if row["cost"]]
        seconds = f"{sum(cost['seconds'] for cost in costs) / len(costs):.0f}" if costs else ""
        peaks = [cost["peak"] for cost in costs if cost["peak"]]
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {exact} | {likely} | {seconds} | {max(peaks) if peaks else ''} |")
    settings = "; ".join(f"{name}: `{' '.join(sets)}`" for name, _, sets in ALGORITHMS)
    lines += ["", f"Settings: {settings}.", "", f"{machine.processor()}, commit {machine.commit(ROOT)}."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
