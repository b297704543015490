"""LoRA on weights in NF4, in tokens a second, beside PEFT on bitsandbytes."""

import inputs
import limits
import ours
from measure import alternate, figure, within
from shapes import LARGE

MICRO, LENGTH, RANK = 2, 128, 8
TOLERANCE = 5e-3  # both sides compute in bf16


class Training:
    """The model, the adapter that both sides begin with and the rows, and the runs of both sides on them."""

    def __init__(self, bench):
        self.bench, self.steps, self.skipped = bench, 3, 1
        self.model = inputs.large_model(bench, LARGE)
        self.adapter = inputs.adapter(bench, LARGE, self.model, RANK)
        rows = inputs.counting_rows(self.steps * MICRO, [LENGTH], LARGE.vocabulary, seed=1)
        self.rows = inputs.write_lines(bench.folder / "qlora.jsonl", ({"input_ids": row} for row in rows))

    def ours(self):
        metrics, peak = ours.train(
            self.bench, "sft", self.adapter, self.rows, self.steps, MICRO, 1, "bfloat16", model_keys='quantize = "nf4"')
        return self.sample([row["loss"] for row in metrics], [row["seconds"] for row in metrics], peak)

    def peer(self):
        run = self.bench.peer("qlora.py", model=self.model, adapter=self.adapter, rows=self.rows, steps=self.steps, micro=MICRO)
        return self.sample(run["losses"], run["seconds"], run["peak_bytes"])

    def sample(self, losses, seconds, peak):
        speed = ours.speed([MICRO * LENGTH] * self.steps, seconds, self.skipped)
        return {"value": speed, "losses": losses, "peak_bytes": peak}


def run(bench):
    training = Training(bench)
    sides = {"ours": training.ours}
    if bench.has("bitsandbytes") and bench.has("peft"):
        sides["peer"] = training.peer
    samples, difference = alternate(
        bench.rounds, sides, lambda one, other: within(TOLERANCE, "loss", one["losses"], other["losses"]))
    limit = limits.adapter_training_speed(bench, LARGE, [LENGTH] * MICRO)
    return [figure("1.3 B parameters, NF4, bf16", "tokens/s", samples, True, limit=limit, difference=difference)]
