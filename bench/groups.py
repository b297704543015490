"""Compares the algorithms that learn from rewards on the world of the demo, and writes docs/groups-compared.md.

    python bench/groups.py --binary target/release/colossal-chat --work DIR [--seeds 1,2,3] [--demo SEED=FOLDER]...

For each seed the demo runs once, unless --demo names the folder of one that has run. Every algorithm starts from its SFT
model and generates as many replies to its prompts as the others, and the verifier is the reward. The learning rate is the
one of RATES whose model answers most training questions of the first seed, with sampled answers. Exact matches of greedy
and of sampled answers to the held-out questions are counted, and the KL divergence from the SFT model is measured, in the
same way for all. Then the reward model of the demo chooses the best of n replies of the SFT model, GRPO learns a task in
two turns, which needs a calculator, and GRPO draws rollouts one step ahead while a slow program scores them. At the end
the runs of the first seed run once more, one after another and with one thread, for their time and memory. Standard
library only; results that are there already are not made again.
"""

import json
import re
import sys
import time
from statistics import mean, median

import demos
import machine

PAGE = demos.ROOT / "docs" / "groups-compared.md"
RATES = ["1e-4", "3e-4", "1e-3"]
ITERATIONS, REPLIES = 40, 256
# Of DAPO, which generates further replies in place of those that teach nothing: about as many in all.
ITERATIONS_DAPO = 26
OPTIMIZER = ["train.micro_batch_size=128", "train.betas=[0.9,0.98]", "train.weight_decay=0.01", "train.scheduler=linear"]
SHARED = [*OPTIMIZER, f"ppo.mini_batch_size={REPLIES}", "ppo.max_new_tokens=24", "log.every=1", "checkpoint.every=0"]
# Log-probabilities that the sampler has computed save a pass of the policy.
SAMPLER = "ppo.old_logprobs=sampler"


def replies_each(samples):
    """The settings of a rollout with some replies to each prompt."""
    return [f"ppo.rollout_batch_size={REPLIES // samples}", f"ppo.samples_per_prompt={samples}"]


GROUPS = [*replies_each(8), SAMPLER]
# Four steps for each rollout, so that ratios differ from 1.
FOUR_STEPS = [f"ppo.mini_batch_size={REPLIES // 4}", "ppo.shuffle=prompts"]
# Name, stage, and settings beside SHARED. Of a name, its last setting counts.
ALGORITHMS = [
    ("PPO", "ppo", [
        *replies_each(1), SAMPLER, "ppo.epochs=1", "ppo.critic_model={demo}/rm/final", "ppo.critic_lr=5e-4",
        "ppo.critic_warmup=5",
    ]),
    ("GRPO", "grpo", GROUPS),
    ("Dr. GRPO", "grpo", ["preset=dr-grpo", *GROUPS]),
    ("DAPO", "grpo", [
        "preset=dapo", *GROUPS, "train.warmup_steps=0", "ppo.overlong_buffer=5", f"ppo.iterations={ITERATIONS_DAPO}",
    ]),
    ("GSPO", "grpo", [*GROUPS, *FOUR_STEPS, "ppo.policy_loss=gspo", "ppo.clip_range=3e-4", "ppo.clip_range_high=4e-4"]),
    ("CISPO", "grpo", [
        *GROUPS, *FOUR_STEPS, "ppo.policy_loss=cispo", "ppo.clip_range_high=4.0", "ppo.loss_agg_mode=token_mean",
    ]),
    ("RLOO", "rloo", [*replies_each(4), SAMPLER]),
    ("REINFORCE++", "reinforce", [*replies_each(1), SAMPLER]),
    ("online DPO", "online-dpo", replies_each(2)),
    ("distillation", "gkd", [*replies_each(1), "distill.teacher={teacher}"]),
    ("rejection sampling", "sft", ["train.steps=60", "train.micro_batch_size=64", "data.max_length=128", "data.train={rows}"]),
]
TEACHER = "GRPO"
# The settings of `reject`: every right reply to as many prompts as the groups have.
REJECT = [
    f"data.limit={ITERATIONS * REPLIES // 8}", *replies_each(8), "ppo.max_new_tokens=24", "train.micro_batch_size=128",
    "reject.keep=above", "reject.threshold=1.0",
]
QUESTIONS = 1000
# Runs whose time is told have one thread, so that another process on the machine slows them little.
ONE_THREAD = ["--threads", "1"]
# What an iteration takes, and its parts.
SECONDS = {"iteration": "seconds", "rollout": "timing/rollout", "models": "timing/score", "update": "timing/update"}
BEST_OF = 16
# The task in two turns. SFT first teaches calls, then shows mostly answers that were computed in the head.
CALLS = 10_000
MIXTURE = {"calls": 1000, "answers": 4000}
TURNS = 2
SFT = [
    "train.micro_batch_size=64", "train.betas=[0.9,0.98]", "train.weight_decay=0.01", "data.max_length=128", "log.every=10",
    "checkpoint.every=0",
]
SFT_CALLS = ["train.steps=220", "train.lr=2e-3", "train.warmup_steps=15"]
SFT_MIXTURE = ["train.steps=100", "train.lr=3e-4", "train.warmup_steps=5"]
GRPO_CALLS = ["ppo.iterations=30", "train.lr=3e-4"]
# The verifier as a program that takes its time, as a judge would.
SCORER_SECONDS = 1.0
SCORER = f"""
import json, sys, time

for line in sys.stdin:
    request = json.loads(line)
    time.sleep({SCORER_SECONDS} if request["replies"] else 0)
    scores = [float(row["reply"].strip() == row["answer"]) for row in request["replies"]]
    print(json.dumps({{"id": request["id"], "scores": scores}}), flush=True)
"""
AHEAD = ["ppo.staleness=1", "ppo.correction=token_truncate"]


def main():
    options = demos.arguments(__doc__.splitlines()[0])
    for name, kind in (("empty", None), ("world", "world"), ("calculator", "exact"), ("program", "command")):
        (options.work / f"{name}.toml").write_text(f'[[reward]]\nkind = "{kind}"\n' if kind else "")
    (options.work / "scorer.py").write_text(SCORER)
    with open(options.work / "program.toml", "a") as file:
        file.write(f"command = {json.dumps([sys.executable, str(options.work / 'scorer.py')])}\nbatch_size = {REPLIES}\n")
    folders = demos.demos_of(options)
    first = next(iter(folders))
    sweep = choose_rates(options, first, folders[first])
    rates = {name: max(found, key=found.get) for name, found in sweep.items()}
    rows = [row for seed, demo in folders.items() for row in compare(options, seed, demo, rates)]
    best = {seed: best_of_n(options, seed, demo) for seed, demo in folders.items()}
    turns = {seed: two_turns(options, seed, demo) for seed, demo in folders.items()}
    ahead = {seed: one_step_ahead(options, seed, demo, rates[TEACHER]) for seed, demo in folders.items()}
    took = costs(options, first, folders[first], rates)
    rows = [row | {"cost": took.get(row["name"])} for row in rows]
    PAGE.write_text(page(rows, list(folders), sweep, best, turns, ahead))
    print(PAGE)


def choose_rates(options, seed, demo):
    """For each algorithm, the share of right sampled answers by learning rate."""
    sweep = {}
    for name, _, _ in ALGORITHMS:
        teacher = max(sweep[TEACHER], key=sweep[TEACHER].get) if TEACHER in sweep else None
        sweep[name] = {}
        for rate in RATES:
            run = train(options, name, label_of(name, seed, rate), seed, demo, rate, teacher)
            asked = measure(
                options, f"rate-{run.name}", run / "final", demo / "data/prompts.parquet", "world", demos.LIMIT, ["ppo.kl_coef=0"],
            )
            sweep[name][rate] = asked["objective/scores"]
    return sweep


def train(options, name, label, seed, demo, rate, teacher_rate, words=()):
    """The run folder of an algorithm. `words` are more words of the command line."""
    stage, settings = next((stage, settings) for known, stage, settings in ALGORITHMS if known == name)
    paths = {
        "demo": demo,
        "teacher": options.work / label_of(TEACHER, seed, teacher_rate) / "final",
        "rows": options.work / f"reject-{seed}" / "rows.parquet",
    }
    common = [f"out={options.work / label}", f"seed={seed}", f"model.path={demo / 'sft/final'}", f"train.lr={rate}"]
    if stage == "sft":
        reject(options, seed, demo)
        common += [*OPTIMIZER, "log.every=1", "checkpoint.every=0"]
    else:
        common += [f"data.train={demo / 'data/prompts.parquet'}", f"ppo.iterations={ITERATIONS}", *SHARED]
    config = "empty.toml" if stage in ("sft", "gkd") else "world.toml"
    settings = [setting.format(**paths) for setting in settings]
    sets = demos.words(last_of_each([*common, *settings]))
    return demos.train(options, label, stage, "--config", config, *sets, *words)


def label_of(name, seed, rate):
    return f"{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')}-{seed}-{rate}"


def last_of_each(settings):
    """The settings without those whose name comes again."""
    return [f"{name}={value}" for name, value in dict(setting.split("=", 1) for setting in settings).items()]


def reject(options, seed, demo, label="reject", words=()):
    """Right replies of the SFT model, as rows for SFT. Beside them is how many seconds they took, which it returns."""
    folder = options.work / f"{label}-{seed}"
    if not (folder / "seconds.json").exists():
        sets = [f"out={folder}", f"seed={seed}", f"model.path={demo / 'sft/final'}"]
        sets += [f"data.train={demo / 'data/prompts.parquet'}", *REJECT]
        began = time.monotonic()
        demos.program(options, f"{folder.name}.log", "reject", "--config", "world.toml", *demos.words(sets), *words)
        (folder / "seconds.json").write_text(json.dumps(time.monotonic() - began))
    return json.loads((folder / "seconds.json").read_text())


def measure(options, label, model, data, reward, questions, settings):
    """The metrics of one rollout of a model, with one reply to each question: a run whose learning rate is 0."""
    sets = [
        f"out={options.work / label}", "seed=1", f"model.path={model}", f"data.train={data}", "train.lr=0", "ppo.iterations=1",
        f"ppo.rollout_batch_size={questions}", f"ppo.mini_batch_size={questions}", "train.micro_batch_size=128",
        "ppo.max_new_tokens=24", SAMPLER, "log.every=1", "checkpoint.every=0", *settings,
    ]
    run = demos.train(options, label, "reinforce", "--config", f"{reward}.toml", *demos.words(sets))
    return demos.metrics_of(run)[-1]


def compare(options, seed, demo, rates):
    """A row of the tables for each model of a seed. The PPO model of the demo has learned from its reward model."""
    models = {"SFT": demo / "sft/final", "PPO of the demo": demo / "ppo/final"}
    runs = {
        name: train(options, name, label_of(name, seed, rates[name]), seed, demo, rates[name], rates[TEACHER])
        for name, _, _ in ALGORITHMS
    }
    models |= {name: run / "final" for name, run in runs.items()}
    scores = demos.evaluate(options, str(seed), models, demo, tasks="world,world_sampled")
    reference = [f"ppo.reference_model={models['SFT']}"]
    data = demo / "data/heldout.parquet"
    rows = []
    for place, (name, model) in enumerate(models.items()):
        kl = measure(options, f"kl-{seed}-{place}", model, data, "world", QUESTIONS, reference) if name != "SFT" else {}
        rows.append({
            "seed": seed, "name": name, "scores": scores[name], "kl": kl.get("objective/kl"),
            "replies": replies_of(name, runs[name]) if name in runs else None,
        })
    return rows


def replies_of(name, run):
    """How many replies the model of a run has generated, those among them that DAPO has replaced."""
    if name != "DAPO":
        return ITERATIONS * REPLIES
    return sum(REPLIES / (1 - row["groups/zero_variance"]) for row in demos.metrics_of(run))


def costs(options, seed, demo, rates):
    """What each algorithm takes by name, from runs that have the machine for themselves."""
    found = {}
    for name, _, _ in ALGORITHMS:
        label = f"cost-{label_of(name, seed, rates[name])}"
        run = train(options, name, label, seed, demo, rates[name], rates[TEACHER], ONE_THREAD)
        found[name] = demos.costs_of(options, [run])
    found["rejection sampling"]["seconds"] += reject(options, seed, demo, "cost-reject", ONE_THREAD)
    return found


def best_of_n(options, seed, demo):
    """By n, the points of the table of `eval rm`: what the reward model chooses among n replies to a held-out question."""
    out = options.work / f"best-{seed}"
    if not (out / "rm.json").exists():
        # The held-out questions and their answers, as the evaluation has written them beside the answers of a model.
        asked = next((options.work / f"eval-{seed}" / "samples").glob("*/world.jsonl"))
        questions = [json.loads(line) for line in asked.read_text().splitlines()]
        prompts, replies, rows = (options.work / f"best-{seed}-{part}.jsonl" for part in ("prompts", "replies", "rows"))
        write_rows(prompts, [{"prompt": question["prompt"]} for question in questions])
        program = lambda part, *words: demos.program(options, f"best-{seed}-{part}.log", *words, "--model", demo / part / "final")
        program(
            "sft", "generate", "--input", prompts, "--output", replies, "--force", "--n", BEST_OF, "--seed", seed,
            "--max-new-tokens", 24, "--batch-size", 256,
        )
        texts = [[sample["text"] for sample in json.loads(line)["samples"]] for line in replies.read_text().splitlines()]
        write_rows(rows, [
            {"prompt": question["prompt"], "responses": found, "gold": [float(text.strip() == question["target"]) for text in found]}
            for question, found in zip(questions, texts, strict=True)
        ])
        program("rm", "eval", "rm", "--data", rows, "--output", out)
    [found] = json.loads((out / "rm.json").read_text())["files"]
    return {point["n"]: point for point in found["best_of_n"]["points"]}


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def two_turns(options, seed, demo):
    """What a model answers to held-out questions before and after GRPO, with and without a turn after its call."""
    label = f"calculator-{seed}"
    data = make_calculator_rows(options, label, seed)
    start = calculator_start(options, label, seed, demo, data)
    environment = {turns: ["environment.kind=calculator", f"environment.max_turns={turns}"] for turns in (1, TURNS)}

    def learn(turns):
        sets = [f"out={options.work / f'{label}-grpo-{turns}'}", f"seed={seed}", f"model.path={start}"]
        sets += [f"data.train={data['prompts']}", *SHARED, *GROUPS, *GRPO_CALLS, *environment[turns]]
        return demos.train(options, f"{label}-grpo-{turns}", "grpo", "--config", "calculator.toml", *demos.words(sets))

    def ask(name, model, turns):
        settings = ["ppo.kl_coef=0", *environment[turns]]
        return measure(options, f"{label}-ask-{name}-{turns}", model, data["heldout"], "calculator", QUESTIONS, settings)

    runs = {turns: learn(turns) for turns in (1, TURNS)}
    return {
        "asked": {
            ("SFT", TURNS): ask("sft", start, TURNS),
            ("SFT", 1): ask("sft", start, 1),
            (f"GRPO with {TURNS} turns", TURNS): ask(f"grpo-{TURNS}", runs[TURNS] / "final", TURNS),
            (f"GRPO with {TURNS} turns", 1): ask(f"grpo-{TURNS}", runs[TURNS] / "final", 1),
            ("GRPO with 1 turn", 1): ask("grpo-1", runs[1] / "final", 1),
        },
        "cost": demos.costs_of(options, [runs[TURNS]]),
    }


def make_calculator_rows(options, label, seed):
    """The files of rows: all conversations with calls, the prompts, the held-out questions, and the two files of the mixture."""
    folder = options.work / f"{label}-data"
    made = {"all": CALLS, **MIXTURE}
    if not (folder / "answers.parquet").exists():
        for part, (name, rows) in enumerate(made.items()):
            out = ["--out", folder / name, "--seed", seed + 1000 * part, "--rows", rows, "--heldout", QUESTIONS]
            demos.program(options, f"{label}-data.log", "data", "calculator", *out)
        convert = [folder / "answers/prompts.parquet", "--map", "response=answer", "--output", folder / "answers.parquet"]
        demos.program(options, f"{label}-data.log", "data", "convert", *convert)
    found = {name: folder / f"all/{name}.parquet" for name in ("sft", "prompts", "heldout")}
    return found | {"mixture": [folder / "calls/sft.parquet", folder / "answers.parquet"]}


def calculator_start(options, label, seed, demo, data):
    """The model that knows how to call the calculator and mostly does not."""
    model = demo / "sft/final"
    mixture = json.dumps([str(path) for path in data["mixture"]])
    for name, rows, settings in (("calls", data["sft"], SFT_CALLS), ("mixture", mixture, SFT_MIXTURE)):
        run = f"{label}-{name}"
        sets = [f"out={options.work / run}", f"seed={seed}", f"model.path={model}", f"data.train={rows}", *SFT, *settings]
        model = demos.train(options, run, "sft", "--config", "empty.toml", *demos.words(sets)) / "final"
    return model


def one_step_ahead(options, seed, demo, rate):
    """GRPO with a slow program as its scorer, without and with rollouts that are drawn one step ahead, by its staleness."""
    found = {}
    for staleness, more in enumerate(([], AHEAD)):
        label = f"ahead-{seed}-{staleness}"
        sets = [f"out={options.work / label}", f"seed={seed}", f"model.path={demo / 'sft/final'}", f"train.lr={rate}"]
        sets += [f"data.train={demo / 'data/prompts.parquet'}", f"ppo.iterations={ITERATIONS}", *SHARED, *GROUPS, *more]
        # A correction needs the log-probabilities of the trainer, and so both have its pass.
        sets.append("ppo.old_logprobs=trainer")
        run = demos.train(options, label, "grpo", "--config", "program.toml", *demos.words(last_of_each(sets)), *ONE_THREAD)
        asked = measure(
            options, f"{label}-ask", run / "final", demo / "data/heldout.parquet", "world", QUESTIONS, ["ppo.kl_coef=0"],
        )
        rows = demos.metrics_of(run)
        found[staleness] = {
            "curve": [mean(row["objective/scores"] for row in rows[start:start + 10]) for start in range(0, ITERATIONS, 10)],
            "asked": asked["objective/scores"],
            **{part: median(row[name] for row in rows) for part, name in SECONDS.items()},
        }
    return found


def page(rows, seeds, sweep, best, turns, ahead):
    baseline = {row["name"]: "SFT" for row in rows if row["name"] != "SFT"}
    lines = [
        "# Algorithms that learn from rewards, compared", "",
        "`bench/groups.py` makes this page. Do not edit it by hand.", "",
        "Every algorithm starts from the SFT model of the demo (0.92 million parameters) and generates replies to its prompts,",
        f"{ITERATIONS * REPLIES:,} of at most 24 tokens. The reward is the verifier of the world: 1 for the bare answer, otherwise 0. Two",
        "lines learn from something else: `PPO of the demo` from the reward model of the demo and 40,960 replies, and distillation on",
        f"replies of the student (`gkd`) from the {TEACHER} model of the same seed. Rejection sampling is `reject`, which keeps the right",
        "replies, and then `sft`. The verifier counts exact matches of the answers to 1,000 held-out questions. Percent, with 95 %",
        "intervals: of a seed by its questions, of the means by the seeds.", "",
        *demos.score_tables(rows, seeds, baseline, "above SFT"),
        *cost_section(rows), "",
        *settings_section(seeds[0], sweep), "",
        *best_of_n_section(best), "",
        *two_turns_section(turns), "",
        *ahead_section(ahead), "",
        f"{machine.processor()}, commit {machine.commit(demos.ROOT)}.",
    ]
    return "\n".join(lines) + "\n"


def cost_section(rows):
    lines = [
        "## KL divergence, time and memory", "",
        "The KL divergence from the SFT model is the mean log-ratio (`k1`) of one sampled reply to each held-out question, in nats,",
        "measured alike for all. DAPO replaces prompts that teach nothing by others, so it has fewer iterations for about as many",
        "replies. Time and memory are of the first seed with one thread: the seconds of all steps, by the median one, and the peak of",
        "the process. PPO is without the reward model as which its critic starts, distillation without its teacher; rejection sampling",
        "has the seconds of `reject` too, and the peak of `sft`.",
        "",
        "| method | KL | replies | seconds | peak, MiB |", "|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(row["name"] for row in rows if row["kl"] is not None):
        found = [row for row in rows if row["name"] == name]
        cells = [name, demos.mean_and_interval([row["kl"] for row in found], digits=2), "", "", ""]
        if found[0]["cost"]:
            cost, replies = found[0]["cost"], mean(row["replies"] for row in found)
            cells[2:] = [f"{replies:,.0f}", f"{cost['seconds']:.0f}", str(cost["peak"])]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def settings_section(seed, sweep):
    lines = [
        "## Settings and learning rates", "",
        "All but rejection sampling have",
        f"`ppo.iterations={ITERATIONS} {' '.join(SHARED)}`.",
        "Rejection sampling has the same optimizer, and in `reject`",
        f"`{' '.join(REJECT)}`.",
        "What neither these nor the table name is the default of the stage or of the preset, such as the KL penalty. The rate is the",
        f"one whose model gives most sampled answers to {demos.LIMIT:,} training questions of seed {seed} right. In percent:", "",
        "| algorithm | stage | settings | " + " | ".join(RATES) + " |", "|---" * (len(RATES) + 3) + "|",
    ]
    for name, stage, settings in ALGORITHMS:
        shown = " ".join(last_of_each(settings)).format(demo="DEMO", teacher=f"{TEACHER}/final", rows="reject/rows.parquet")
        lines.append(f"| {name} | `{stage}` | `{shown}` | " + " | ".join(demos.rate_cells(sweep[name])) + " |")
    return lines


def best_of_n_section(best):
    lines = [
        "## Best of n", "",
        "Without any training, the reward model of the demo chooses among n replies of the SFT model to each held-out question: the",
        f"mean over all subsets of n of {BEST_OF} sampled ones (`generate --n`, then [`eval rm`](eval-rm.md#best-of-n)). With the verifier in",
        "place of the reward model a question is right where one of n replies is; no real judge chooses better. The bound of the KL",
        "divergence from the SFT model is ln n - (n - 1) / n. Percent, and nats:", "",
        "| n | " + " | ".join(f"seed {seed}" for seed in best) + " | mean | by the verifier | KL at most |",
        "|---" * (len(best) + 4) + "|",
    ]
    for n in next(iter(best.values())):
        points = [points[n] for points in best.values()]
        golds = [point["gold"] for point in points]
        cells = [demos.percent({"value": gold["mean"], "interval": (gold["low"], gold["high"])}) for gold in golds]
        cells.append(demos.mean_and_interval([100 * gold["mean"] for gold in golds]))
        cells.append(demos.mean_and_interval([100 * point["gold_best"]["mean"] for point in points]))
        lines.append(f"| {n} | {' | '.join(cells)} | {points[0]['kl_bound']:.2f} |")
    return lines


def two_turns_section(turns):
    lines = [
        "## Two turns with a calculator", "",
        "[Arithmetic](data-synth.md#the-calculator) that a model of this size cannot do in its head, with the environment",
        "[`calculator`](environments.md#calculator): one turn calls it, and the next one repeats what it says. The SFT model of the",
        f"demo learns from {CALLS:,} conversations with calls (`{' '.join(SFT_CALLS)}`), and then from",
        f"{MIXTURE['calls']:,} others among {MIXTURE['answers']:,} answers without a call",
        f"(`{' '.join(SFT_MIXTURE)}`): it knows how to call, and seldom does. GRPO",
        "starts there, with the reward `exact` and",
        f"`{' '.join([*SHARED, *GROUPS, *GRPO_CALLS])}`.",
        f"Right answers to {QUESTIONS:,} held-out questions, with one sampled answer to each, and episodes with a call, in percent:", "",
        "| model | turns | " + " | ".join(f"seed {seed}" for seed in turns) + " | mean | calls |",
        "|---" * (len(turns) + 4) + "|",
    ]
    for name, allowed in next(iter(turns.values()))["asked"]:
        rows = [found["asked"][name, allowed] for found in turns.values()]
        cells = [demos.percent(demos.wilson(row["objective/scores"], QUESTIONS)) for row in rows]
        cells.append(demos.mean_and_interval([100 * row["objective/scores"] for row in rows]))
        calls = [100 * (row.get("monitor/turns", 1) - 1) for row in rows]
        cells.append(demos.mean_and_interval(calls) if allowed > 1 else "")
        lines.append(f"| {name} | {allowed} | {' | '.join(cells)} |")
    costs = [found["cost"] for found in turns.values()]
    lines += ["", f"GRPO with {TURNS} turns takes {max(cost['peak'] for cost in costs)} MiB."]
    return lines


def ahead_section(ahead):
    lines = [
        "## One step ahead", "",
        f"GRPO with the verifier as a program (`kind = \"command\"`) that takes {SCORER_SECONDS:g} s for a rollout, without and with",
        f"`{' '.join(AHEAD)}`: the next",
        "rollout is drawn before the update, and the program scores it meanwhile. Training scores are means of ten iterations, held-out",
        "ones are of sampled answers; percent. Seconds of an iteration and of its parts with one thread, the median of a run, mean over",
        "seeds.", "",
        "| staleness | " + " | ".join(f"{start + 1} to {start + 10}" for start in range(0, ITERATIONS, 10))
        + " | held out | " + " | ".join(SECONDS) + " |",
        "|---" * (ITERATIONS // 10 + 2 + len(SECONDS)) + "|",
    ]
    for staleness in (0, 1):
        found = [runs[staleness] for runs in ahead.values()]
        curve = [demos.mean_and_interval([100 * run["curve"][part] for run in found]) for part in range(ITERATIONS // 10)]
        asked = demos.mean_and_interval([100 * run["asked"] for run in found])
        seconds = [f"{mean(run[part] for run in found):.2f}" for part in SECONDS]
        lines.append(f"| {' | '.join([str(staleness), *curve, asked, *seconds])} |")
    whole, ahead_seconds = (mean(runs[staleness]["iteration"] for runs in ahead.values()) for staleness in (0, 1))
    limit = min(SCORER_SECONDS, mean(runs[0]["models"] + runs[0]["update"] for runs in ahead.values()))
    lines += [
        "", f"An iteration that is drawn ahead is {whole - ahead_seconds:.2f} s shorter. The program works beside the models and the update,",
        f"so it cannot be shorter by more than their {limit:.2f} s.",
    ]
    return lines


if __name__ == "__main__":
    main()
