"""How long a start takes: of a command that computes nothing, and of a generation of one token."""

import sys

import inputs
import ours
from measure import NotEqual, alternate, figure, peer_environment, run as run_command
from shapes import llama


def run(bench):
    return [start(bench), first_token(bench)]


def start(bench):
    sides = {"ours": lambda: timed(run_command([bench.binary, "--help"]))}
    if bench.has("transformers"):
        imports = [sys.executable, "-c", "import transformers"]
        sides["peer"] = lambda: timed(run_command(imports, peer_environment()))
    samples, _ = alternate(bench.rounds, sides, None)
    return figure("`--help`; the peer only imports transformers", "s", samples)


def first_token(bench):
    model = inputs.language_model(bench, llama())
    prompt = inputs.counting_rows(1, [128], llama().vocabulary, seed=3)
    prompts = inputs.write_lines(bench.folder / "first.jsonl", ({"ids": row} for row in prompt))

    def our_run():
        seconds, peak, ids = ours.generate(bench, model, prompts, 1, 1)
        return {"value": seconds, "peak_bytes": peak, "ids": ids}

    def peer_run():
        run = bench.peer("first_token.py", model=model, prompts=prompts)
        return {"value": run["process_seconds"], "peak_bytes": run["peak_bytes"], "ids": run["ids"]}

    sides = {"ours": our_run}
    if bench.has("transformers"):
        sides["peer"] = peer_run
    samples, _ = alternate(bench.rounds, sides, same_token)
    return figure("one token of the 42 M model", "s", samples)


def timed(result):
    seconds, peak = result
    return {"value": seconds, "peak_bytes": peak}


def same_token(ours, peer):
    if ours["ids"] != peer["ids"]:
        raise NotEqual(f"the first token is {ours['ids']}, the peer has {peer['ids']}")
    return 0
