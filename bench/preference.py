"""Compares the algorithms of preference learning on the world of the demo, and writes docs/preference-compared.md.

    python bench/preference.py --binary target/release/colossal-chat --work DIR [--seeds 1,2,3] [--demo SEED=FOLDER]...

For each seed the demo runs once, unless --demo names the folder of one that has run. Every algorithm then starts from its
SFT model and learns from its pairs, with the same number of steps and rows. Its learning rate is the one of RATES whose
model answers most training questions of the first seed, with sampled answers. The verifier counts exact matches of greedy
and of sampled answers to the held-out questions, and how often the model finds the better one of two held-out replies more
likely. Standard library only; results that are there already are not made again.
"""

import demos
import machine

PAGE = demos.ROOT / "docs" / "preference-compared.md"
# Name, stage, and settings beside those of demos.PAIRS.
ALGORITHMS = [
    ("DPO", "dpo", ["dpo.beta=0.1"]),
    ("IPO", "dpo", ["dpo.loss=ipo", "dpo.beta=0.1"]),
    ("KTO", "kto", ["kto.beta=0.1"]),
    ("ORPO", "orpo", ["orpo.beta=0.1"]),
    ("SimPO", "simpo", ["simpo.beta=2.0", "simpo.gamma=1.0"]),
]
RATES = ["3e-6", "1e-5", "3e-5", "1e-4"]


def main():
    options = demos.arguments(__doc__.splitlines()[0])
    folders = demos.demos_of(options)
    first = next(iter(folders))
    sweep = choose_rates(options, first, folders[first])
    rates = {name: max(found, key=found.get) for name, found in sweep.items()}
    rows = [row for seed, demo in folders.items() for row in compare(options, seed, demo, rates)]
    PAGE.write_text(page(rows, list(folders), sweep))
    print(PAGE)


def train(options, label, seed, demo, stage, settings, rate):
    """The run folder of an algorithm."""
    return demos.learn_from_pairs(options, label, stage, seed, demo, [f"train.lr={rate}", *settings])


def choose_rates(options, seed, demo):
    """For each algorithm, the exact matches of sampled answers by learning rate."""
    models = {}
    for name, stage, settings in ALGORITHMS:
        for rate in RATES:
            run = train(options, f"rate-{name.lower()}-{rate}", seed, demo, stage, settings, rate)
            models[name, rate] = run / "final"
    exact = demos.score_training_questions(options, demo, models)
    return {name: {rate: exact[name, rate] for rate in RATES} for name, _, _ in ALGORITHMS}


def compare(options, seed, demo, rates):
    models, costs = {"SFT": demo / "sft/final"}, {}

    # PPO and its reward model run once more, by themselves, for what they cost.
    rm, ppo = (demos.run_again(options, stage, seed, demo) for stage in ("rm", "ppo"))
    models["PPO"] = ppo / "final"
    costs["PPO"] = demos.costs_together(demos.costs_of(options, [rm]), demos.costs_of(options, [ppo]))

    for name, stage, settings in ALGORITHMS:
        run = train(options, f"{name.lower()}-{seed}", seed, demo, stage, settings, rates[name])
        models[name], costs[name] = run / "final", demos.costs_of(options, [run])
    scores = demos.evaluate(options, str(seed), models, demo)
    return [{"seed": seed, "name": name, "scores": scores[name], "cost": costs.get(name)} for name in models]


def page(rows, seeds, sweep):
    baseline = {row["name"]: "SFT" for row in rows if row["name"] != "SFT"}
    lines = [
        "# Algorithms of preference learning, compared", "",
        "`bench/preference.py` makes this page. Do not edit it by hand.", "",
        "Every algorithm starts from the SFT model of the demo (0.92 million parameters) and learns from the same pairs:",
        f"`{' '.join(demos.PAIRS)}`. PPO learns from its own replies and the reward model of these pairs, with the settings of the",
        "demo. The verifier counts exact matches of the answers to 1,000 held-out questions. Percent, with 95 % intervals: of a",
        "seed by its questions, of the means by the seeds.", "",
        *demos.score_tables(rows, seeds, baseline, "above SFT"),
        "## Preferences, time and memory", "",
        "Preferences are how often a model finds the better one of two held-out replies more likely. Seconds are of all steps, by",
        "the median one, and the peak is of the process; PPO includes its reward model.", "",
        *demos.cost_table(rows),
        "", "## Learning rates", "",
        f"The rate of an algorithm is the one whose model gives most sampled answers to {demos.LIMIT:,} training questions of seed",
        f"{seeds[0]} right. In percent:", "",
        "| algorithm | settings | " + " | ".join(RATES) + " |", "|---" * (len(RATES) + 2) + "|",
    ]
    for name, _, settings in ALGORITHMS:
        lines.append(f"| {name} | `{' '.join(settings)}` | " + " | ".join(demos.rate_cells(sweep[name])) + " |")
    lines += ["", f"{machine.processor()}, commit {machine.commit(demos.ROOT)}."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
