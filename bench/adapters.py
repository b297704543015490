"""Compares adapters with full fine-tuning on the world of the demo, and writes docs/adapters-compared.md.

    python bench/adapters.py --binary target/release/colossal-chat --work DIR [--seeds 1,2,3] [--demo SEED=FOLDER]...

For each seed the demo runs once, unless --demo names the folder of one that has run. SFT starts from its base model, DPO
and PPO from its SFT model, with the steps and rows of the demo; the stages of PPO with adapters are a reward model and a
policy, which share one copy of the weights. A learning rate is that of the full model times one of FACTORS: the one whose
model answers most training questions of the first seed, with sampled answers. The verifier counts exact matches of greedy
and of sampled answers to the held-out questions. Standard library only; results that are there already are not made again.
"""

import demos
import machine

PAGE = demos.ROOT / "docs" / "adapters-compared.md"
RANK = 16
LORA = [f"model.lora.r={RANK}", f"model.lora.lora_alpha={2 * RANK}"]
FACTORS = [1, 3, 10]
# The learning rates of the full models: DPO has the best one of bench/preference.py, the others those of the demo.
RATES = {"SFT": 2e-3, "DPO": 3e-5, "PPO": 5e-5}
REWARD_RATE, CRITIC_RATE, BETA = 5e-4, 5e-4, 0.1


def main():
    options = demos.arguments(__doc__.splitlines()[0])
    folders = demos.demos_of(options)
    first = next(iter(folders))
    sweep = choose_factors(options, first, folders[first])
    factors = {name: max(found, key=found.get) for name, found in sweep.items()}
    rows = [row for seed, demo in folders.items() for row in compare(options, seed, demo, factors)]
    PAGE.write_text(page(rows, list(folders), sweep))
    print(PAGE)


def choose_factors(options, seed, demo):
    """For each method with adapters, the exact matches of sampled answers by factor of the learning rate."""
    models = {
        (name, factor): with_adapters(options, name, f"-{seed}-x{factor}", seed, demo, factor)[-1] / "final"
        for name in RATES for factor in FACTORS
    }
    exact = demos.score_training_questions(options, demo, models)
    return {name: {factor: exact[name, factor] for factor in FACTORS} for name in RATES}


def with_adapters(options, name, suffix, seed, demo, factor):
    """The run folders of a method with adapters, the one of its model last."""
    rate, label = factor * RATES[name], f"lora-{name.lower()}{suffix}"
    if name == "SFT":
        return [of_demo(options, label, "sft", demo, [*LORA, f"train.lr={rate:g}"])]
    if name == "DPO":
        return [dpo(options, label, seed, demo, rate, LORA)]
    reward = of_demo(options, f"lora-rm{suffix}", "rm", demo, [*LORA, f"train.lr={factor * REWARD_RATE:g}"])
    settings = [*LORA, f"train.lr={rate:g}", f"ppo.critic_lr={factor * CRITIC_RATE:g}", f"ppo.reward_model={reward / 'final'}"]
    return [reward, of_demo(options, label, "ppo", demo, settings)]


def of_demo(options, label, stage, demo, settings):
    """A stage with the file of the demo and some settings. Paths in the file may be relative to the folder of the demo."""
    sets = demos.words([f"out={options.work / label}", *settings])
    return demos.train(options, label, stage, "--config", demo / stage / "run.toml", *sets, folder=demo.parent)


def dpo(options, label, seed, demo, rate, settings):
    return demos.learn_from_pairs(options, label, "dpo", seed, demo, [f"dpo.beta={BETA}", f"train.lr={rate:g}", *settings])


def compare(options, seed, demo, factors):
    """The models of a seed: each method in full, which the demo has but for DPO, and with adapters."""
    runs = {}
    for name in RATES:
        if name == "DPO":
            runs[name] = [dpo(options, f"dpo-{seed}", seed, demo, RATES[name], [])]
        else:
            stages = ["sft"] if name == "SFT" else ["rm", "ppo"]
            runs[name] = [demos.run_again(options, stage, seed, demo) for stage in stages]
        runs[f"{name}, LoRA"] = with_adapters(options, name, f"-{seed}-x{factors[name]}", seed, demo, factors[name])
    scores = demos.evaluate(options, str(seed), {name: found[-1] / "final" for name, found in runs.items()}, demo)
    costs = {name: demos.costs_together(*(demos.costs_of(options, run) for run in found)) for name, found in runs.items()}
    return [{"seed": seed, "name": name, "scores": scores[name], "cost": costs[name]} for name in runs]


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
        *demos.score_tables(rows, seeds, {f"{name}, LoRA": name for name in RATES}, "above full"),
        "## Preferences, time and memory", "",
        "Preferences are how often a model finds the better one of two held-out replies more likely. Seconds are of all steps,",
        "and the peak is of the process; PPO includes its reward model.", "",
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
