"""How much slower each side becomes when another process keeps one core busy."""

import contextlib
import subprocess
import sys

from measure import alternate, figure
from parts import decode, sft


@contextlib.contextmanager
def busy_process():
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        child.kill()
        child.wait()


def run(bench):
    training = sft.Training(bench, sft.QUIET_CASE)
    generation = decode.Generation(bench, 32)
    rows = []
    for name, ours, peer, higher_is_better in (
        ("training, " + sft.QUIET_CASE.name, training.ours, lambda: training.peer("float32"), True),
        ("generation, batch 32", generation.ours, lambda: generation.peer("dynamic"), False),
    ):
        sides = {"ours": lambda: slowdown(ours, higher_is_better)}
        if bench.has("transformers"):
            sides["peer"] = lambda: slowdown(peer, higher_is_better)
        samples, _ = alternate(bench.rounds, sides, None)
        rows.append(figure(name, "times slower", samples))
    return rows


def slowdown(side, higher_is_better):
    quiet = side()
    with busy_process():
        busy = side()
    ratio = busy["value"] / quiet["value"]
    return {"value": 1 / ratio if higher_is_better else ratio, "peak_bytes": busy["peak_bytes"]}
