"""Compares adapters with full fine-tuning on the world of the demo, and writes docs/adapters-compared.md.

    python bench/adapters.py --binary target/release/colossal-chat --work DIR [--seeds 1,2,3] [--demo SEED=FOLDER]...

For each seed the demo runs once, unless --demo names the folder of one that has run. SFT starts from its base model, DPO
and PPO from its SFT model, with the steps and rows of the demo; the stages of PPO with adapters are a reward model and a
policy, which share one copy of the weights. A learning rate is that of the full model times one of FACTORS: the one whose
model answers most training questions of the first seed, with sampled answers. The verifier counts exact matches of greedy
and of sampled answers to the held-out questions. Time and memory are those of short runs, in full and with adapters in
turn, so that what else the machine does meets both; --costs-only runs them and writes no page. Standard library only;
results that are there already are not made again.
"""

import demos
import machine

PAGE = demos.ROOT / "docs" / "adapters-compared.md"
RANK = 16
LORA = [f"model.lora.r={RANK}", f"model.lora.lora_alpha={2 * RANK}"]
FACTORS = [1, 3, 10]
ROUNDS = 3
# What SFT trains beside its adapters: rows of the embedding, which is the head, too. The base model has never seen the
# tokens that begin and end a message.
ROWS = {"rows of the template's tokens": [3, 4], "rows of all tokens": list(range(512))}
# The settings of a run that shows what a step takes. The policy learns from the first iteration on.
SHORT = {
    "sft": ["train.steps=40", "log.every=1"],
    "dpo": ["train.steps=20", "train.warmup_steps=5", "log.every=1"],
    "rm": ["train.steps=30", "log.every=1"],
    "ppo": ["ppo.iterations=6", "ppo.critic_warmup=0", "log.every=1"],
}
# The learning rates of the full models: DPO has the best one of bench/preference.py, the others those of the demo.
RATES = {"SFT": 2e-3, "DPO": 3e-5, "PPO": 5e-5}
REWARD_RATE, CRITIC_RATE, BETA = 5e-4, 5e-4, 0.1


def main():
    options = demos.arguments(__doc__.splitlines()[0], "--costs-only")
    folders = demos.demos_of(options)
    first = next(iter(folders))
    if options.costs_only:
        return print(costs(options, first, folders[first]))
    sweep = choose_factors(options, first, folders[first])
    factors = {name: max(found, key=found.get) for name, found in sweep.items()}
    scores = {
        seed: compare(options, seed, demo, factors) | compare_rows(options, seed, demo, factors["SFT"])
        for seed, demo in folders.items()
    }
    took = costs(options, first, folders[first])
    rows = [
        {"seed": seed, "name": name, "scores": found, "cost": took.get(name)}
        for seed, models in scores.items() for name, found in models.items()
    ]
    PAGE.write_text(page(rows, list(folders), sweep))
    print(PAGE)


def choose_factors(options, seed, demo):
    """For each method with adapters, the exact matches of sampled answers by factor of the learning rate."""
    models = {
        (name, factor): train(options, name, f"-{seed}-x{factor}", seed, demo, factor)[-1] / "final"
        for name in RATES for factor in FACTORS
    }
    exact = demos.score_training_questions(options, demo, models)
    return {name: {factor: exact[name, factor] for factor in FACTORS} for name in RATES}


def train(options, name, suffix, seed, demo, factor, short=False):
    """The run folders of a method, the one of its model last: with adapters, or in full where the factor is none."""
    start, lora, factor = ("lora-", LORA, factor) if factor else ("", [], 1)

    def stage(stage, rate, *settings):
        settings = [*lora, f"train.lr={factor * rate:g}", *settings, *(SHORT[stage] if short else [])]
        if stage == "dpo":
            settings.append(f"dpo.beta={BETA}")
            return demos.learn_from_pairs(options, f"{start}dpo{suffix}", stage, seed, demo, settings)
        return of_demo(options, f"{start}{stage}{suffix}", stage, demo, settings)

    if name != "PPO":
        return [stage(name.lower(), RATES[name])]
    reward = stage("rm", REWARD_RATE)
    return [reward, stage("ppo", RATES[name], f"ppo.critic_lr={factor * CRITIC_RATE:g}", f"ppo.reward_model={reward / 'final'}")]


def of_demo(options, label, stage, demo, settings):
    """A stage with the file of the demo and some settings. Paths in the file may be relative to the folder of the demo."""
    sets = demos.words([f"out={options.work / label}", *settings])
    return demos.train(options, label, stage, "--config", demo / stage / "run.toml", *sets, folder=demo.parent)


def compare(options, seed, demo, factors):
    """The scores of the models of a seed: each method in full, which the demo has but for DPO, and with adapters."""
    models = {}
    for name in RATES:
        in_demo = demo / name.lower() / "final"
        models[name] = train(options, name, f"-{seed}", seed, demo, None)[-1] / "final" if name == "DPO" else in_demo
        models[f"{name}, LoRA"] = train(options, name, f"-{seed}-x{factors[name]}", seed, demo, factors[name])[-1] / "final"
    return demos.evaluate(options, str(seed), models, demo)


def compare_rows(options, seed, demo, factor):
    """The scores of SFT with adapters that trains rows of the embedding beside them."""
    models = {}
    for index, (name, tokens) in enumerate(ROWS.items()):
        settings = [*LORA, f"train.lr={factor * RATES['SFT']:g}", f"model.lora.trainable_token_indices={tokens}"]
        models[f"SFT, LoRA, {name}"] = of_demo(options, f"lora-sft-{seed}-rows-{index}", "sft", demo, settings) / "final"
    return demos.evaluate(options, f"rows-{seed}", models, demo)


def costs(options, seed, demo):
    """What each method takes by name: seconds of all its steps, by the median step of short runs, and the largest peak."""
    runs = {}
    for turn in range(ROUNDS):
        for name in RATES:
            for label, factor in ((name, None), (f"{name}, LoRA", 1)):
                found = train(options, name, f"-cost-{turn}", seed, demo, factor, short=True)
                for stage, run in zip(["rm", "ppo"] if name == "PPO" else [name.lower()], found, strict=True):
                    runs.setdefault(label, {}).setdefault(stage, []).append(run)
    steps = {stage: steps_of(demo / stage) for stage in ("sft", "rm", "ppo")} | {"dpo": demos.PAIR_STEPS}
    return {
        label: demos.costs_together(*(demos.costs_of(options, found, steps[stage]) for stage, found in stages.items()))
        for label, stages in runs.items()
    }


def baselines():
    """The name of the full method by that of each with adapters."""
    return {f"{name}, LoRA": name for name in RATES} | {f"SFT, LoRA, {name}": "SFT" for name in ROWS}


def steps_of(run):
    """The number of steps of a run."""
    return demos.metrics_of(run)[-1]["step"]


def page(rows, seeds, sweep):
    lines = [
        "# Adapters and full fine-tuning, compared", "",
        "`bench/adapters.py` makes this page. Do not edit it by hand.", "",
        f"LoRA of rank {RANK} on every linear layer (`{' '.join(LORA)}`) beside full fine-tuning, on the models of the demo (0.92",
        "million parameters). SFT starts from the base model, DPO and PPO from the SFT model that was trained in full. All methods",
        f"have the rows and steps of the demo; DPO has `dpo.beta={BETA} {' '.join(demos.PAIRS)}`.",
        "The reward model of PPO with adapters is an adapter too, so its policy, reference, critic and reward model share one copy",
        "of the weights. The verifier counts exact matches of the answers to 1,000 held-out questions. Percent, with 95 %",
        "intervals: of a seed by its questions, of the means by the seeds.", "",
        *demos.score_tables(rows, seeds, baselines(), "above full"),
        "## What adapters cannot learn", "",
        "Adapters leave the embedding as it is, and in this model the embedding is the head, too. The base model has read texts",
        "without a chat template, so the rows of the tokens that begin and end a message are random: SFT with adapters alone hardly",
        "learns to end an answer, and its sampled answers go on. DPO and PPO start from the SFT model, whose rows were trained.",
        "`trainable_token_indices` trains rows beside the adapters: those of the template's two tokens (3 and 4), or all 512, and",
        "full fine-tuning has nothing more than these but the norms. A template that *adds* tokens gets their rows without the setting ([docs/adapters.md](adapters.md#rows-of-single-tokens)); these were in the vocabulary already.", "",
        "## Preferences, time and memory", "",
        "Preferences are how often a model finds the better one of two held-out replies more likely. Seconds are of all steps, by",
        f"the median step of {ROUNDS} short runs, in full and with adapters in turn; the peak is of the process. PPO includes its",
        "reward model.", "",
        *demos.cost_table(rows),
        "", "## Learning rates", "",
        f"The full models have the rates {', '.join(f'{rate:g} ({name})' for name, rate in RATES.items())}. Those of the adapters are",
        f"these times the factor whose model gives most sampled answers to {demos.LIMIT:,} training questions of seed {seeds[0]} right. In",
        "percent:", "",
        "| method | " + " | ".join(f"x {factor}" for factor in FACTORS) + " |", "|---" * (len(FACTORS) + 1) + "|",
    ]
    lines += [f"| {name}, LoRA | " + " | ".join(demos.rate_cells(found)) + " |" for name, found in sweep.items()]
    lines += ["", f"{machine.processor()}, commit {machine.commit(demos.ROOT)}."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
