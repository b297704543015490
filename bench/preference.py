"""Compares the algorithms of preference learning on the world of the demo, and writes docs/preference-compared.md.

    python bench/preference.py --binary target/release/colossal-chat --work DIR [--seeds 1,2,3] [--demo SEED=FOLDER]...

For each seed the demo runs once, unless --demo names the folder of one that has run. Every algorithm then starts from its
SFT model and learns from its pairs, with the same number of steps and rows. Its learning rate is the one of RATES whose
model answers most training questions of the first seed, with sampled answers. The verifier counts exact matches of greedy
and of sampled answers to the held-out questions, and how often the model finds the better one of two held-out replies more
likely. Standard library only; results that are there already are not made again.
"""

import argparse
import json
import math
import re
import shutil
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
RATES = ["3e-6", "1e-5", "3e-5", "1e-4"]
COMMON = [
    "train.steps=300", "train.micro_batch_size=64", "train.warmup_steps=20", "train.scheduler=linear", "log.every=10",
    "checkpoint.every=0",
]
TASKS = "world,world_sampled,world_preference"
# Of the training questions, which are many.
LIMIT = 2000


def main():
    options = arguments()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    given = dict(demo.split("=", 1) for demo in options.demo)
    demos = {seed: Path(given[str(seed)]).resolve() if str(seed) in given else run_demo(options, seed) for seed in seeds}
    sweep = choose_rates(options, seeds[0], demos[seeds[0]])
    rates = {name: max(found, key=found.get) for name, found in sweep.items()}
    rows = [row for seed in seeds for row in compare(options, seed, demos[seed], rates)]
    PAGE.write_text(page(rows, seeds, sweep, rates))
    print(PAGE)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/colossal-chat")
    parser.add_argument("--work", type=Path, required=True, help="the folder of demos and runs")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--demo", action="append", default=[], metavar="SEED=FOLDER", help="a demo that has run")
    options = parser.parse_args()
    options.binary = options.binary.resolve()
    options.work = options.work.resolve()
    options.work.mkdir(parents=True, exist_ok=True)
    return options


def program(options, log, *words, folder=None):
    """Runs the program in `folder`, or in the folder of work; returns what it wrote to stderr."""
    command = [options.binary, *map(str, words)]
    done = subprocess.run(command, cwd=folder or options.work, capture_output=True, text=True)
    (options.work / log).write_text(done.stderr)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stderr[-2000:]}")
    return done.stderr


def run_demo(options, seed):
    out = options.work / f"demo-{seed}"
    if not (out / "ppo/final").is_dir():
        # The file of the demo, without its evaluation: all models are evaluated together, below.
        text = (ROOT / "chat/src/demo.toml").read_text().replace(', "eval", "report"]', "]")
        (options.work / "demo.toml").write_text(text)
        program(options, f"demo-{seed}.log", "pipeline", "--config", "demo.toml", "--set", f"out={out}", "--set", f"seed={seed}")
    return out


def train(options, label, seed, demo, stage, settings, rate):
    """The run folder of an algorithm that starts from the SFT model of a demo."""
    run = options.work / label
    if not (run / "final").is_dir():
        sets = [f"out={run}", f"seed={seed}", f"model.path={demo / 'sft/final'}", "data.max_length=128"]
        sets += [f"data.train={demo / 'data/preference.parquet'}", f"train.lr={rate}", *COMMON, *settings]
        (options.work / "empty.toml").write_text("")
        words = [word for setting in sets for word in ("--set", setting)]
        program(options, f"{label}.log", stage, "--config", "empty.toml", *words)
    return run


def evaluate(options, label, models, data, *words):
    """The scores of the models by name and task."""
    out = options.work / f"eval-{label}"
    if not (out / "results.json").exists():
        folders = ",".join(map(str, models.values()))
        program(options, f"eval-{label}.log", "eval", "--model", folders, "--tasks", TASKS, "--data", data, "--output", out, *words)
    results = json.loads((out / "results.json").read_text())
    # The models are in the order in which they were named. Of several metrics of a task the first one counts.
    found = zip(models, results["models"], strict=True)
    return {name: {score["task"]: score for score in reversed(model["scores"])} for name, model in found}


def choose_rates(options, seed, demo):
    """For each algorithm, the exact matches of sampled answers by learning rate. No held-out question is asked."""
    data = options.work / "training-questions/data"
    data.mkdir(parents=True, exist_ok=True)
    shutil.copy(demo / "data/prompts.parquet", data / "heldout.parquet")
    shutil.copy(demo / "data/heldout_preference.parquet", data / "heldout_preference.parquet")
    models = {}
    for name, stage, settings in ALGORITHMS:
        for rate in RATES:
            run = train(options, f"rate-{name.lower()}-{rate}", seed, demo, stage, settings, rate)
            models[name, rate] = run / "final"
    scores = evaluate(options, "rates", models, data.parent, "--limit", LIMIT)
    exact = lambda name, rate: scores[name, rate]["world_sampled"]["value"]
    return {name: {rate: exact(name, rate) for rate in RATES} for name, _, _ in ALGORITHMS}


def compare(options, seed, demo, rates):
    models, costs = {"SFT": demo / "sft/final"}, {}

    # PPO and its reward model run once more, by themselves, for what they cost. Paths in their files may be relative to
    # the folder in which the demo ran.
    for stage in ("rm", "ppo"):
        run, log = options.work / f"{stage}-{seed}", options.work / f"{stage}-{seed}.log"
        if not (run / "final").is_dir():
            program(options, log.name, stage, "--config", demo / stage / "run.toml", "--set", f"out={run}", folder=demo.parent)
        costs[stage] = costs_of(run, log)
    models["PPO"] = options.work / f"ppo-{seed}/final"
    costs["PPO"] = {
        "seconds": costs["rm"]["seconds"] + costs["ppo"]["seconds"], "peak": max(costs["rm"]["peak"], costs["ppo"]["peak"]),
    }

    for name, stage, settings in ALGORITHMS:
        label = f"{name.lower()}-{seed}"
        run = train(options, label, seed, demo, stage, settings, rates[name])
        models[name], costs[name] = run / "final", costs_of(run, options.work / f"{label}.log")
    scores = evaluate(options, str(seed), models, demo)
    return [{"seed": seed, "name": name, "scores": scores[name], "cost": costs.get(name)} for name in models]


def costs_of(run, log):
    """Seconds of all steps, and the peak of memory in MiB, which the program writes at its end."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = max(row["step"] for row in rows)
    seconds = sum(row["seconds"] for row in rows if "seconds" in row) / len(rows) * steps
    return {"seconds": seconds, "peak": int(re.search(r"peak memory: (\d+) MiB", log.read_text())[1])}


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


def page(rows, seeds, sweep, rates):
    names = list(dict.fromkeys(row["name"] for row in rows))
    of = lambda name: [row for row in rows if row["name"] == name]
    value = lambda row, task: 100 * row["scores"][task]["value"]
    lines = [
        "# Algorithms of preference learning, compared", "",
        "`bench/preference.py` makes this page. Do not edit it by hand.", "",
        "Every algorithm starts from the SFT model of the demo (0.92 million parameters) and learns from the same pairs:",
        f"`{' '.join(COMMON)}`. PPO learns from its own replies and the reward model of these pairs, with the settings of the",
        "demo. The verifier counts exact matches of the answers to 1,000 held-out questions. Percent, with 95 % intervals: of a",
        "seed by its questions, of the means by the seeds.", "",
    ]
    for task, title in (("world_sampled", "Sampled answers"), ("world", "Greedy answers")):
        lines += [
            f"## {title}", "",
            "| algorithm | " + " | ".join(f"seed {seed}" for seed in seeds) + " | mean | above SFT |",
            "|---" * (len(seeds) + 3) + "|",
        ]
        sft = {row["seed"]: value(row, task) for row in of("SFT")}
        for name in names:
            cells = [percent(row["scores"][task]) for row in of(name)]
            exact = mean_and_interval([value(row, task) for row in of(name)])
            above = mean_and_interval([value(row, task) - sft[row["seed"]] for row in of(name)]) if name != "SFT" else ""
            lines.append(f"| {name} | " + " | ".join(cells) + f" | {exact} | {above} |")
        lines.append("")

    lines += [
        "## Preferences, time and memory", "",
        "Preferences are how often a model finds the better one of two held-out replies more likely. Seconds are of all steps,",
        "and the peak is of the process; PPO includes its reward model.", "",
        "| algorithm | preferences | seconds | peak, MiB |", "|---|---|---|---|",
    ]
    for name in names:
        likely = mean_and_interval([value(row, "world_preference") for row in of(name)])
        costs = [row["cost"] for row in of(name) if row["cost"]]
        seconds = f"{sum(cost['seconds'] for cost in costs) / len(costs):.0f}" if costs else ""
        peak = max((cost["peak"] for cost in costs), default="")
        lines.append(f"| {name} | {likely} | {seconds} | {peak} |")

    lines += [
        "", "## Learning rates", "",
        f"The rate of an algorithm is the one whose model gives most sampled answers to {LIMIT:,} training questions of seed",
        f"{seeds[0]} right. In percent:", "",
        "| algorithm | settings | " + " | ".join(RATES) + " |", "|---" * (len(RATES) + 2) + "|",
    ]
    for name, _, settings in ALGORITHMS:
        found = [f"{100 * sweep[name][rate]:.1f}" for rate in RATES]
        found = [f"**{cell}**" if rate == rates[name] else cell for rate, cell in zip(RATES, found)]
        lines.append(f"| {name} | `{' '.join(settings)}` | " + " | ".join(found) + " |")
    lines += ["", f"{machine.processor()}, commit {machine.commit(ROOT)}."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
