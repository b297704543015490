"""Benchmarks of language models, in seconds a call, beside lm-evaluation-harness: what eval_lm_eval.py measures."""

import json
import sys

from measure import HERE, NotEqual, figure, run as run_command

# lm-evaluation-harness itself differs by 2e-4 between its batch sizes, on sums of -100 to -400.
TOLERANCE = 1e-3


def run(bench):
    if not bench.has("lm_eval"):
        return []
    if not bench.eval_work or not bench.eval_models:
        print("  left out: --eval-work names the folder of rows and tasks, --eval-model NAME=FOLDER a model")
        print("  (eval/tests/golden/lm_eval/README.md says how to fill the folder)", flush=True)
        return []
    out = bench.folder / "eval.json"
    command = [sys.executable, HERE / "eval_lm_eval.py", "--work", bench.eval_work, "--binary", bench.binary]
    for model in bench.eval_models:
        command += ["--model", model]
    if bench.quick:
        command += ["--calls", "likelihood", "--limit", "3"]
    command += ["--rounds", bench.rounds, "--threads", bench.threads, "--scratch", bench.folder / "eval", "--out", out]
    run_command(command)
    return [row(bench_run) for bench_run in json.loads(out.read_text())["runs"]]


def row(run):
    name = f"{run['model']}, {run['call']}, {run['limit']} rows of each task"
    answers = run["samples"]
    if answers["replies_that_differ"] or not answers["largest_difference"] <= TOLERANCE:
        raise NotEqual(f"{name}: {answers}")
    peers = {setting: seconds for setting, seconds in run["median_seconds"].items() if setting != "ours"}
    best = min(peers, key=peers.get)
    samples = {
        "ours": [{"value": seconds} for seconds in run["seconds"]["ours"]],
        "peer": [{"value": seconds} for seconds in run["seconds"][best]],
    }
    note = f"{run['metrics']} metrics, of which {len(run['metrics_that_differ'])} differ by more than 1e-6"
    return figure(name, "s", samples, setting=best, difference=answers["largest_difference"], note=note)
