"""PPO, in seconds an iteration, beside the PPO trainer of TRL.

Sampled replies cannot be equal, so equality is checked in a run of its own: one iteration at a temperature near zero
and a learning rate of zero, with all replies in one mini-batch. Both sides then take the most likely tokens, and the
mean length, the mean score and the value loss must agree. They rest on the sampler, the reward model, the critic, the
KL, the token rewards and the returns.

Both sides take the old log-probabilities from the sampler. With several replies a prompt, a mini-batch of ours has all
replies to its prompts. TRL knows no groups and mixes them.

Ragged replies come from a model that ends a reply with probability 1/32 at each token, up to 64 tokens. Both sides draw
lengths from this distribution, and the mean lengths that they had are recorded. At a temperature near zero this model
would end every reply at once, so the check has another one, whose replies have 1, 8 or 64 tokens.
"""

import math
import statistics
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import inputs
import limits
import ours
from measure import alternate, figure, within
from shapes import SMALL

REPLIES, REPLY_LENGTH, PROMPT_LENGTH, EPOCHS, MINI_BATCH = 32, 64, 32, 2, 8
VF_COEF = 0.5
# Log-odds of the end token: a probability of 1/32, never, and about as likely as the most likely other token.
ENDING, NEVER, RIVAL = math.log(1 / 31), -30.0, -6.0


@dataclass(frozen=True)
class Settings:
    iterations: int
    temperature: float = 1.0
    lr: float = 1e-6
    mini_batch: int = MINI_BATCH


CHECK = Settings(iterations=1, temperature=1e-6, lr=0.0, mini_batch=REPLIES)


class Iterations:
    """One case: its prompts, and the runs of both sides on them."""

    def __init__(self, bench, reward, samples_per_prompt, ends):
        self.bench, self.reward, self.ends = bench, reward, ends
        self.samples_per_prompt = samples_per_prompt
        self.prompt_count = REPLIES // samples_per_prompt
        rows = inputs.random_rows(self.prompt_count, PROMPT_LENGTH, SMALL.vocabulary, seed=4)
        prompts = ({"prompt": " ".join(f"w{token}" for token in row)} for row in rows)
        self.prompts = inputs.write_lines(bench.folder / "prompts.jsonl", prompts)

    def ours(self, policy, settings):
        with tempfile.TemporaryDirectory(dir=self.bench.folder) as folder:
            out, config = Path(folder) / "run", Path(folder) / "run.toml"
            config.write_text(self.configuration(out, policy, settings))
            metrics, peak = ours.run_stage(self.bench, "ppo", config, out)
        length = statistics.mean(row["response_length/mean"] for row in metrics)
        value_loss = metrics[0]["loss/value_avg"]
        phases = {name: phase(metrics, f"timing/{name}") for name in ("rollout", "score", "update")}
        return {
            "value": phase(metrics, "seconds"),
            "peak_bytes": peak,
            "phases": phases,
            "length": length,
            "check": [length, metrics[0]["objective/scores"], value_loss],
        }

    def peer(self, policy, settings):
        run = self.bench.peer(
            "ppo.py", policy=policy, reward=self.reward, prompts=self.prompts, replies=REPLIES, vf_coef=VF_COEF,
            reply_length=REPLY_LENGTH, epochs=EPOCHS, ends=self.ends, **asdict(settings))
        length = statistics.mean(run["lengths"])
        # The first iteration takes memory and is not counted, if there are more.
        return {
            "value": statistics.median(run["seconds"][1:] or run["seconds"]),
            "peak_bytes": run["peak_bytes"],
            "phases": {"rollout": statistics.median(run["rollout_seconds"][1:] or run["rollout_seconds"])},
            "length": length,
            "check": [length, run["scores"][0], run["value_losses"][0]],
        }

    def configuration(self, out, policy, settings):
        return f"""
out = "{out}"
[model]
path = "{policy}"
device = "cpu"
[data]
train = "{self.prompts}"
shuffle = false
cache = ""
[train]
micro_batch_size = {MINI_BATCH}
lr = {settings.lr}
scheduler = "constant"
max_grad_norm = 0.0
[ppo]
reward_model = "{self.reward}"
iterations = {settings.iterations}
rollout_batch_size = {self.prompt_count}
samples_per_prompt = {self.samples_per_prompt}
epochs = {EPOCHS}
{'shuffle = "prompts"' if self.samples_per_prompt > 1 else ''}
mini_batch_size = {settings.mini_batch}
max_new_tokens = {REPLY_LENGTH}
old_logprobs = "sampler"
temperature = {settings.temperature}
kl_coef = 0.05
score_slot = "after_eos"
critic_lr = {settings.lr}
vf_coef = {VF_COEF}
"""


def phase(metrics, name):
    values = [row[name] for row in metrics]
    return statistics.median(values[1:] or values)


def run(bench):
    base = inputs.language_model(bench, SMALL)
    endings = inputs.Endings(bench, base, SMALL)
    equal, ragged, rival = (
        endings.model(f"policy-{name}", log_odds)
        for name, log_odds in (("equal", NEVER), ("ragged", ENDING), ("rival", RIVAL))
    )
    reward = inputs.reward_model(bench, equal, "reward-model-small")
    rows = []
    for kind, policy, checked in (("equal", equal, equal), ("ragged", ragged, rival)):
        for samples_per_prompt in (1, 4):
            case = Iterations(bench, reward, samples_per_prompt, ends=kind == "ragged")
            rows.append(compare(bench, f"{kind} replies, {samples_per_prompt} a prompt", case, policy, checked))
    return rows


def compare(bench, name, case, policy, checked):
    settings = Settings(iterations=2 if bench.quick else 6)
    sides, difference = {"ours": lambda: case.ours(policy, settings)}, None
    if bench.has("trl"):
        difference = equality(name, case, checked)
        sides["peer"] = lambda: case.peer(policy, settings)
    samples, _ = alternate(bench.rounds, sides, None)
    length = statistics.mean(run["length"] for run in samples["ours"])
    limit = limits.ppo_seconds(bench, SMALL, case.prompt_count, PROMPT_LENGTH, REPLIES, length, EPOCHS)
    note = "; ".join(f"{side}: {describe(runs)}" for side, runs in samples.items())
    return figure(name, "s/iteration", samples, limit=limit, difference=difference, note=note)


def equality(name, case, policy):
    """The largest difference of mean length, mean score and value loss. That of the value loss is relative."""
    ours, peer = (side(policy, CHECK)["check"] for side in (case.ours, case.peer))
    ours[2], peer[2] = ours[2] / peer[2], 1.0
    return within(1e-4, f"{name}: mean length, mean score, value loss", ours, peer)


def describe(runs):
    """Seconds of the phases, and the mean length of a reply."""
    names = runs[0]["phases"]
    phases = ", ".join(f"{name} {statistics.median(run['phases'][name] for run in runs):.2f} s" for name in names)
    return f"{phases}, {statistics.mean(run['length'] for run in runs):.1f} tokens a reply"
