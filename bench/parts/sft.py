"""Supervised fine-tuning, in tokens a second, beside a training loop around a LLaMA of transformers."""

from dataclasses import dataclass

import inputs
import limits
import ours
from measure import alternate, fastest, figure, within
from shapes import llama

MICRO, ACCUMULATION = 4, 2
EQUAL, RAGGED = [256], range(32, 257)
# Two sides round in another order. bf16 keeps 8 bits, so there a loss near 10 differs more.
TOLERANCE = {"float32": 1e-4, "bfloat16": 5e-3}
# How bench/peers/training.py trains in a dtype.
PRECISIONS = {"float32": ["float32"], "bfloat16": ["autocast", "masters"]}


@dataclass(frozen=True)
class Case:
    name: str
    vocabulary: int
    lengths: object
    dtype: str


QUIET_CASE = Case("equal rows, vocabulary 32,000, fp32", 32_000, EQUAL, "float32")
CASES = [
    QUIET_CASE,
    Case("equal rows, vocabulary 32,000, bf16", 32_000, EQUAL, "bfloat16"),
    Case("ragged rows, vocabulary 32,000, fp32", 32_000, RAGGED, "float32"),
    Case("ragged rows, vocabulary 32,000, bf16", 32_000, RAGGED, "bfloat16"),
    Case("equal rows, vocabulary 16,000, fp32", 16_000, EQUAL, "float32"),
    Case("equal rows, vocabulary 50,000, fp32", 50_000, EQUAL, "float32"),
    Case("equal rows, vocabulary 128,000, fp32", 128_000, EQUAL, "float32"),
]


class Training:
    """One case: its model and rows, and the runs of both sides on them."""

    def __init__(self, bench, case):
        self.bench, self.case = bench, case
        self.steps, self.skipped = (3, 1) if bench.quick else (8, 2)
        self.shape = llama(case.vocabulary)
        self.model = inputs.language_model(bench, self.shape)
        size = MICRO * ACCUMULATION
        rows = list(inputs.counting_rows(self.steps * size, case.lengths, case.vocabulary, seed=1))
        self.lengths = list(map(len, rows))
        self.tokens = [sum(self.lengths[step * size : (step + 1) * size]) for step in range(self.steps)]
        self.rows = inputs.write_lines(bench.folder / "sft.jsonl", ({"input_ids": row} for row in rows))

    def ours(self):
        metrics, peak = ours.train(
            self.bench, "sft", self.model, self.rows, self.steps, MICRO, ACCUMULATION, self.case.dtype)
        return self.sample([row["loss"] for row in metrics], [row["seconds"] for row in metrics], peak)

    def peer(self, precision):
        run = self.bench.peer(
            "sft.py", model=self.model, rows=self.rows, steps=self.steps, micro=MICRO, accumulation=ACCUMULATION,
            precision=precision)
        return self.sample(run["losses"], run["seconds"], run["peak_bytes"])

    def sample(self, losses, seconds, peak):
        return {"value": ours.speed(self.tokens, seconds, self.skipped), "losses": losses, "peak_bytes": peak}


def run(bench):
    rows = [compare(bench, case) for case in CASES]
    add_best_dtype(rows)
    return rows


def compare(bench, case):
    training = Training(bench, case)
    sides, setting = {"ours": training.ours}, None
    if bench.has("transformers"):
        precision = fastest(PRECISIONS[case.dtype], training.peer, higher_is_better=True)
        sides["peer"] = lambda: training.peer(precision)
        setting = precision if case.dtype == "bfloat16" else None
    tolerance = TOLERANCE[case.dtype]
    samples, difference = alternate(
        bench.rounds, sides, lambda one, other: within(tolerance, f"{case.name}: loss", one["losses"], other["losses"]))
    limit = limits.training_speed(bench, training.shape, training.lengths, case.dtype)
    return figure(
        case.name, "tokens/s", samples, higher_is_better=True, limit=limit, setting=setting, difference=difference)


def add_best_dtype(rows):
    """The peer trains in the dtype that is faster for it: each of our two dtypes is also compared with that one."""
    by_name = {row["name"]: row for row in rows}
    for kind in ("equal", "ragged"):
        both = [by_name[f"{kind} rows, vocabulary 32,000, {dtype}"] for dtype in ("fp32", "bf16")]
        if all("peer" in row for row in both):
            best = max(row["peer"]["median"] for row in both)
            for row in both:
                ratio = row["ours"]["median"] / best
                row["note"] = f"{ratio:.2f} times the peer in its faster dtype ({best:.0f} tokens/s)"
