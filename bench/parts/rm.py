"""Training of a reward model, in tokens a second, beside a loop around a sequence classifier of transformers."""

import inputs
import limits
import ours
from measure import alternate, figure, within
from shapes import llama

MICRO, ACCUMULATION = 4, 2  # pairs
PROMPT_LENGTH = 16
CASES = {"equal pairs, fp32": [128], "ragged pairs, fp32": range(32, 129)}


def run(bench):
    return [compare(bench, name, lengths) for name, lengths in CASES.items()]


def compare(bench, name, lengths):
    steps, skipped = (3, 1) if bench.quick else (8, 2)
    shape = llama()
    model = inputs.reward_model(bench, inputs.language_model(bench, shape), "reward-model")
    pairs = list(inputs.pairs(steps * MICRO * ACCUMULATION, lengths, PROMPT_LENGTH, shape.vocabulary, seed=2))
    rows = inputs.write_lines(bench.folder / "rm.jsonl", pairs)
    sides = [[len(pair["chosen_input_ids"]), len(pair["rejected_input_ids"])] for pair in pairs]
    size = MICRO * ACCUMULATION
    tokens = [sum(map(sum, sides[step * size : (step + 1) * size])) for step in range(steps)]

    def our_run():
        metrics, peak = ours.train(bench, "rm", model, rows, steps, MICRO, ACCUMULATION)
        return sample([row["loss"] for row in metrics], [row["seconds"] for row in metrics], peak)

    def peer_run():
        run = bench.peer(
            "rm.py", model=model, rows=rows, steps=steps, micro=MICRO, accumulation=ACCUMULATION, precision="float32")
        return sample(run["losses"], run["seconds"], run["peak_bytes"])

    def sample(losses, seconds, peak):
        return {"value": ours.speed(tokens, seconds, skipped), "losses": losses, "peak_bytes": peak}

    both = {"ours": our_run, "peer": peer_run} if bench.has("transformers") else {"ours": our_run}
    samples, difference = alternate(
        bench.rounds, both, lambda one, other: within(1e-4, f"{name}: loss", one["losses"], other["losses"]))
    all_lengths = [length for pair in sides for length in pair]
    limit = limits.training_speed(bench, shape, all_lengths, with_head=False, outputs=len(all_lengths))
    return figure(name, "tokens/s", samples, higher_is_better=True, limit=limit, difference=difference)
