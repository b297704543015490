"""Compare `colossal-chat eval` with lm-evaluation-harness: the same model folder, rows and tasks.

First every metric, standard error and log-likelihood is compared; then the wall time of both is measured in turn
(A B A B). The rows and task files are those of eval/tests/golden/lm_eval (README there: convert.py, make_punkt.py,
make_tasks.py and make_gpt2.py fill WORK). The part `eval` of bench/run.py calls it; alone it runs as

    python bench/eval_lm_eval.py --work WORK --model stories260k=DIR --model gpt2-random=WORK/gpt2-random \\
        --binary target/release/colossal-chat --out FILE.json
"""
import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from machine import processor
from measure import peer_environment

HARNESS = Path(__file__).resolve().parent.parent / "eval/tests/golden/lm_eval"

# (name, tasks, limit, most tokens of a reply)
CALLS = [
    ("likelihood", [
        "arc_easy", "arc_challenge", "hellaswag", "winogrande", "piqa", "openbookqa", "commonsense_qa", "social_iqa",
        "boolq", "truthfulqa_mc1", "truthfulqa_mc2", "lambada_openai", "crows_pairs_english", "wikitext",
    ], 100, None),
    ("mmlu", ["mmlu"], 10, None),
    ("blimp", ["blimp"], 10, None),
    ("generation", ["gsm8k", "hendrycks_math500", "ifeval", "agieval_gaokao_mathcloze"], 20, 48),
]
METRIC_TOLERANCE = 1e-6
SAMPLE_TOLERANCE = 1e-4


def peer(options):
    """Runs lm_eval in this process, as its command line does."""
    sys.path.insert(0, str(HARNESS))
    sys.argv = [sys.argv[0], "--work", options.work]
    import workfolder
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    import torch
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    torch.set_num_threads(options.threads)
    _, tasks, limit, most = next(call for call in CALLS if call[0] == options.call)
    limit = options.limit or limit
    lm = HFLM(pretrained=options.peer_model, device="cpu", dtype="float32", batch_size=options.batch_size)
    began = time.monotonic()
    results = simple_evaluate(
        model=lm, tasks=tasks, limit=limit, task_manager=workfolder.task_manager(), batch_size=options.batch_size,
        gen_kwargs={"max_gen_toks": most} if most else None)
    seconds = time.monotonic() - began
    samples = {
        task: {str(row["doc_id"]): row["resps"] for row in rows} for task, rows in results["samples"].items()
    }
    kept = {"results": results["results"], "groups": results.get("groups", {}), "samples": samples, "seconds": seconds}
    Path(options.out).write_text(json.dumps(kept, default=workfolder.plain))


def run_peer(options, call, model, batch_size, out):
    command = [
        sys.executable, __file__, "--work", options.work, "--call", call[0], "--peer-model", model, "--out", str(out),
        "--batch-size", str(batch_size), "--threads", str(options.threads),
    ]
    command += ["--limit", str(options.limit)] if options.limit else []
    began = time.monotonic()
    environment = peer_environment()
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - began


def run_ours(options, call, model, out):
    shutil.rmtree(out, ignore_errors=True)
    _, tasks, limit, most = call
    limit = options.limit or limit
    command = [
        options.binary, "eval", "--model", model, "--tasks", ",".join(tasks), "--data", f"{options.work}/data",
        "--limit", str(limit), "--output", str(out), "--threads", str(options.threads),
    ]
    command += ["--max-gen-toks", str(most)] if most else []
    began = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - began


def difference(left, right):
    """Relative above 1, absolute below. A number that one of them cannot give is compared as a text."""
    try:
        left, right = float(left), float(right)
    except (TypeError, ValueError):
        return 0.0 if str(left) == str(right) else math.inf
    if math.isnan(left) and math.isnan(right):
        return 0.0
    return abs(left - right) / max(1.0, abs(left))


def compare_metrics(theirs, ours):
    """The number of metrics and standard errors, and those that differ."""
    count, differing = 0, []
    for section in ("results", "groups"):
        for task, metrics in theirs[section].items():
            for key, value in metrics.items():
                if "," not in key:
                    continue
                found = ours[section].get(task, {}).get(key)
                count += 1
                apart = difference(value, found)
                if not apart <= METRIC_TOLERANCE:
                    differing.append({"task": task, "metric": key, "lm_eval": value, "ours": found})
    return count, differing


def compare_samples(theirs, folder):
    """The number of answers, the largest difference of log-likelihoods, and the replies that differ."""
    count, largest, above, replies, differing = 0, 0.0, 0, 0, 0
    for task, rows in theirs["samples"].items():
        lines = (folder / f"{task}.jsonl").read_text().splitlines()
        ours = {str(row["doc_id"]): row for row in map(json.loads, lines)}
        for doc, responses in rows.items():
            for response, mine in zip(responses, ours[doc]["responses"], strict=True):
                response = response[0] if isinstance(response[0], list) else response
                if isinstance(mine, str):
                    replies += 1
                    differing += response[0] != mine
                else:
                    count += 1
                    value = response[0] if isinstance(response, list) else response
                    apart = abs(float(value) - mine[0])
                    largest, above = max(largest, apart), above + (apart > SAMPLE_TOLERANCE)
    return {
        "loglikelihoods": count, "largest_difference": largest, "above_1e-4": above, "replies": replies,
        "replies_that_differ": differing,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", required=True)
    parser.add_argument("--model", action="append", default=[], metavar="NAME=DIR")
    parser.add_argument("--binary", default="target/release/colossal-chat")
    parser.add_argument("--calls", nargs="+", default=[call[0] for call in CALLS])
    parser.add_argument("--limit", type=int, help="the first N rows of each task, in place of the numbers above")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--scratch", default="/tmp/eval_lm_eval")
    parser.add_argument("--out", required=True)
    parser.add_argument("--call", help=argparse.SUPPRESS)
    parser.add_argument("--peer-model", help=argparse.SUPPRESS)
    parser.add_argument("--batch-size", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.work = str(Path(options.work).resolve())
    if options.peer_model:
        peer(options)
        return

    scratch = Path(options.scratch)
    scratch.mkdir(parents=True, exist_ok=True)
    report = {"processor": processor(), "threads": options.threads, "runs": []}
    for name, model in (pair.split("=", 1) for pair in options.model):
        for call in (call for call in CALLS if call[0] in options.calls):
            times = {"ours": [], **{f"lm_eval batch {size}": [] for size in options.batch_sizes}}
            for round_number in range(options.rounds):
                ours = scratch / f"{name}-{call[0]}"
                times["ours"].append(run_ours(options, call, model, ours))
                for size in options.batch_sizes:
                    out = scratch / f"{name}-{call[0]}-{size}.json"
                    times[f"lm_eval batch {size}"].append(run_peer(options, call, model, size, out))
                print(name, call[0], {key: round(value[-1], 1) for key, value in times.items()}, flush=True)
            theirs = json.loads((scratch / f"{name}-{call[0]}-1.json").read_text())
            (shaped,) = (ours / "lm_eval").iterdir()
            count, differing = compare_metrics(theirs, json.loads(shaped.read_text()))
            medians = {key: statistics.median(value) for key, value in times.items()}
            best = min(value for key, value in medians.items() if key != "ours")
            run = {
                "model": name, "call": call[0], "tasks": call[1], "limit": options.limit or call[2], "metrics": count,
                "metrics_that_differ": differing,
                "samples": compare_samples(theirs, ours / "samples" / shaped.stem),
                "seconds": times, "median_seconds": medians, "ratio": best / medians["ours"],
                "lm_eval_seconds_without_start": theirs["seconds"],
            }
            report["runs"].append(run)
            Path(options.out).write_text(json.dumps(report, indent=1) + "\n")
            print(json.dumps({key: value for key, value in run.items() if key != "tasks"}), flush=True)


if __name__ == "__main__":
    main()
