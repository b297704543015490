"""Greedy generation, in milliseconds a step, beside `generate` of transformers.

A step is the time of 1 + N tokens minus the time of 1 token, divided by N. So neither the start of the program nor the
pass over the prompt is part of it.
"""

import inputs
import limits
import ours
from measure import NotEqual, alternate, fastest, figure
from shapes import llama

BATCHES = [1, 8, 32]
PROMPT_LENGTH = 128
DRAW = 1e-4  # two logits this close may change places by rounding


class Generation:
    """One batch size: its prompts, and the runs of both sides on them."""

    def __init__(self, bench, batch):
        self.bench, self.batch = bench, batch
        self.new = 16 if bench.quick else 128
        self.shape = llama()
        self.model = inputs.language_model(bench, self.shape)
        prompts = inputs.counting_rows(batch, [PROMPT_LENGTH], self.shape.vocabulary, seed=3)
        self.prompts = inputs.write_lines(bench.folder / f"prompts-{batch}.jsonl", ({"ids": row} for row in prompts))

    def ours(self):
        first, _, _ = ours.generate(self.bench, self.model, self.prompts, self.batch, 1)
        whole, peak, ids = ours.generate(self.bench, self.model, self.prompts, self.batch, 1 + self.new)
        return {"value": (whole - first) / self.new * 1e3, "peak_bytes": peak, "ids": ids}

    def peer(self, cache):
        return self.bench.peer("decode.py", model=self.model, prompts=self.prompts, new=self.new, cache=cache)


def run(bench):
    return [compare(bench, batch) for batch in BATCHES]


def compare(bench, batch):
    generation = Generation(bench, batch)
    sides, setting = {"ours": generation.ours}, None
    if bench.has("transformers"):
        setting = fastest(["dynamic", "static"], generation.peer, higher_is_better=False)
        sides["peer"] = lambda: generation.peer(setting)
    samples, difference = alternate(bench.rounds, sides, same_tokens)
    limit = limits.decode_seconds(bench, generation.shape, batch, PROMPT_LENGTH + generation.new / 2)
    return figure(
        f"batch {batch}", "ms/step", samples, limit=limit and limit * 1e3, difference=difference,
        setting=setting and f"{setting} cache")


def same_tokens(ours, peer):
    """Stops the part when a token differs, unless the peer's two largest logits were equal up to rounding there.

    After such a draw the rest of the reply is another text, so it is not compared. Returns the number of draws.
    """
    draws = 0
    for row, (mine, theirs) in enumerate(zip(ours["ids"], peer["ids"], strict=True)):
        if mine == theirs:
            continue
        place = next(place for place, pair in enumerate(zip(mine, theirs)) if pair[0] != pair[1])
        gap = peer["gaps"][row][place]
        if gap > DRAW:
            raise NotEqual(f"token {place} of reply {row} is {mine[place]}, the peer has {theirs[place]} ({gap=:.2g})")
        draws += 1
    return draws
