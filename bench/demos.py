"""What comparisons on the world of the demo share: its runs, their scores and costs, and tables. Standard library only.

Results that are in the folder of work already are not made again.
"""

import argparse
import json
import math
import re
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TASKS = "world,world_sampled,world_preference"
# Of the training questions, which are many.
LIMIT = 2000
# What every run has that learns from the pairs of a demo.
PAIR_STEPS = 300
PAIRS = [
    f"train.steps={PAIR_STEPS}", "train.micro_batch_size=64", "train.warmup_steps=20", "train.scheduler=linear", "log.every=10",
    "checkpoint.every=0", "data.max_length=128",
]


def arguments(description, *flags):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/colossal-chat")
    parser.add_argument("--work", type=Path, required=True, help="the folder of demos and runs")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--demo", action="append", default=[], metavar="SEED=FOLDER", help="a demo that has run")
    for flag in flags:
        parser.add_argument(flag, action="store_true")
    options = parser.parse_args()
    options.binary = options.binary.resolve()
    options.work = options.work.resolve()
    options.work.mkdir(parents=True, exist_ok=True)
    return options


def demos_of(options):
    """The folder of the demo of each seed. Those that `--demo` does not name run now."""
    given = dict(demo.split("=", 1) for demo in options.demo)
    seeds = [int(seed) for seed in options.seeds.split(",")]
    return {seed: Path(given[str(seed)]).resolve() if str(seed) in given else run_demo(options, seed) for seed in seeds}


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


def run_again(options, stage, seed, demo):
    """A stage of the demo, run once more by itself for what it costs.

    Paths in its file may be relative to the folder in which the demo ran.
    """
    run = options.work / f"{stage}-{seed}"
    return train(options, run.name, stage, "--config", demo / stage / "run.toml", "--set", f"out={run}", folder=demo.parent)


def train(options, label, stage, *words, folder=None):
    """The run folder of a stage, which the words must name as `out`."""
    run = options.work / label
    if not (run / "final").is_dir():
        program(options, f"{label}.log", stage, *words, folder=folder)
    return run


def learn_from_pairs(options, label, stage, seed, demo, settings):
    """The run folder of a stage that starts from the SFT model of a demo and learns from its pairs."""
    sets = [f"out={options.work / label}", f"seed={seed}", f"model.path={demo / 'sft/final'}"]
    sets += [f"data.train={demo / 'data/preference.parquet'}", *PAIRS, *settings]
    (options.work / "empty.toml").write_text("")
    return train(options, label, stage, "--config", "empty.toml", *words(sets))


def words(settings):
    """Settings as words of a command line."""
    return [word for setting in settings for word in ("--set", setting)]


def evaluate(options, label, models, data, *words, tasks=TASKS):
    """The scores of the models by name and task."""
    out = options.work / f"eval-{label}"
    if not (out / "results.json").exists():
        folders = ",".join(map(str, models.values()))
        program(options, f"eval-{label}.log", "eval", "--model", folders, "--tasks", tasks, "--data", data, "--output", out, *words)
    results = json.loads((out / "results.json").read_text())
    # The models are in the order in which they were named. Of several metrics of a task the first one counts.
    found = zip(models, results["models"], strict=True)
    return {name: {score["task"]: score for score in reversed(model["scores"])} for name, model in found}


def score_training_questions(options, demo, models):
    """The exact matches of sampled answers to training questions, by model. No held-out question is asked."""
    data = options.work / "training-questions/data"
    data.mkdir(parents=True, exist_ok=True)
    shutil.copy(demo / "data/prompts.parquet", data / "heldout.parquet")
    shutil.copy(demo / "data/heldout_preference.parquet", data / "heldout_preference.parquet")
    scores = evaluate(options, "rates", models, data.parent, "--limit", LIMIT)
    return {name: found["world_sampled"]["value"] for name, found in scores.items()}


def metrics_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def costs_of(options, runs, steps=None):
    """Seconds of all steps, by the median step of the runs, and the peak of memory in MiB, which the program writes at its end.

    `steps` is the number of steps, if it is not that of the runs.
    """
    rows = [row for run in runs for row in metrics_of(run)]
    seconds = statistics.median(row["seconds"] for row in rows if "seconds" in row)
    logs = [(options.work / f"{run.name}.log").read_text() for run in runs]
    peak = max(int(re.search(r"peak memory: (\d+) MiB", log)[1]) for log in logs)
    return {"seconds": seconds * (steps or max(row["step"] for row in rows)), "peak": peak}


def costs_together(*costs):
    """What stages cost that run one after the other."""
    return {"seconds": sum(cost["seconds"] for cost in costs), "peak": max(cost["peak"] for cost in costs)}


def wilson(share, count):
    """A share of a number of questions as a score, with Wilson's 95 % interval."""
    z = 1.959964
    middle, scale = share + z * z / (2 * count), 1 + z * z / count
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return {"value": share, "interval": (max(0, (middle - half) / scale), min(1, (middle + half) / scale))}


def mean_and_interval(values, digits=1):
    """The mean over seeds with Student's 95 % interval."""
    quantiles = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}  # of t, by degrees of freedom
    mean, freedom = sum(values) / len(values), len(values) - 1
    if freedom == 0:
        return f"{mean:.{digits}f}"
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / freedom)
    half = quantiles[freedom] * deviation / math.sqrt(len(values))
    return f"{mean:.{digits}f} ± {half:.{digits}f}"


def percent(score):
    low, high = score["interval"]
    return f"{100 * score['value']:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def score_tables(rows, seeds, baseline, above):
    """Tables of exact matches, sampled and greedy: a line for each method, a column for each seed.

    `baseline` maps the methods that are compared with another one to its name; `above` is the title of what they gain.
    """
    value = lambda row, task: 100 * row["scores"][task]["value"]
    of = {name: [row for row in rows if row["name"] == name] for name in dict.fromkeys(row["name"] for row in rows)}
    lines = []
    for task, title in (("world_sampled", "Sampled answers"), ("world", "Greedy answers")):
        lines += [
            f"## {title}", "",
            "| method | " + " | ".join(f"seed {seed}" for seed in seeds) + f" | mean | {above} |",
            "|---" * (len(seeds) + 3) + "|",
        ]
        for name, found in of.items():
            cells = [percent(row["scores"][task]) for row in found]
            values = [value(row, task) for row in found]
            gains = [x - value(row, task) for x, row in zip(values, of.get(baseline.get(name), []))]
            gain = mean_and_interval(gains) if gains else ""
            lines.append(f"| {name} | " + " | ".join(cells) + f" | {mean_and_interval(values)} | {gain} |")
        lines.append("")
    return lines


def cost_table(rows):
    """A line for each method: how often it prefers the better reply, and what its training took."""
    lines = ["| method | preferences | seconds | peak, MiB |", "|---|---|---|---|"]
    for name in dict.fromkeys(row["name"] for row in rows):
        found = [row for row in rows if row["name"] == name]
        likely = mean_and_interval([100 * row["scores"]["world_preference"]["value"] for row in found])
        costs = [row["cost"] for row in found if row["cost"]]
        seconds = f"{sum(cost['seconds'] for cost in costs) / len(costs):.0f}" if costs else ""
        peak = max((cost["peak"] for cost in costs), default="")
        lines.append(f"| {name} | {likely} | {seconds} | {peak} |")
    return lines


def rate_cells(sweep):
    """The scores of the learning rates of one method, in percent, and the best one in bold."""
    best = max(sweep, key=sweep.get)
    return [f"**{100 * value:.1f}**" if rate == best else f"{100 * value:.1f}" for rate, value in sweep.items()]
