"""Golden values of offline losses in plain Python, from the formulas of the papers.

Run:  python preference_paper.py
It writes preference_inputs.json and preference_paper.json beside it. Gradients are central differences.
"""

import json
import math
import platform
import random
from pathlib import Path

HERE = Path(__file__).parent
STEP = 1e-5

# The settings of each case, by the keys of our sections.
DPO_CASES = {
    "sigmoid": {},
    "beta": {"beta": 0.7},
    "hinge": {"loss": ["hinge"], "beta": 0.3},
    "ipo": {"loss": ["ipo"], "beta": 0.2},
    "robust": {"loss": ["robust"], "label_smoothing": 0.15},
    "exo": {"loss": ["exo"], "label_smoothing": 1e-3},
    "nca": {"loss": ["nca"]},
    "bco": {"loss": ["bco"], "beta": 0.2},
    "sppo_hard": {"loss": ["sppo_hard"], "beta": 0.5},
    "aot": {"loss": ["aot"], "label_smoothing": 0.1},
    "aot_unpaired": {"loss": ["aot_unpaired"], "beta": 0.3},
    "apo_zero": {"loss": ["apo_zero"]},
    "apo_down": {"loss": ["apo_down"]},
    "discopop": {"loss": ["discopop"], "discopop_tau": 0.05},
    "sigmoid_norm": {"loss": ["sigmoid_norm"], "beta": 2.0},
    "with_sft": {"loss": ["sigmoid", "sft"], "loss_weights": [1.0, 0.5]},
    "several": {"loss": ["sigmoid", "ipo", "bco"], "loss_weights": [0.8, 0.2, 1.0]},
    "forward_kl": {"f_divergence": "forward_kl", "beta": 0.2},
    "js_divergence": {"f_divergence": "js_divergence", "beta": 0.5},
    "alpha_divergence": {"f_divergence": "alpha_divergence", "f_alpha": 0.5},
    "weighting": {"use_weighting": True},
    "length_desensitized": {"ld_alpha": 0.4},
}
OWN_DPO_CASES = {  # TRL has no such loss
    "cdpo": {"loss": ["cdpo"], "label_smoothing": 0.2},
    "dpop": {"loss": ["dpop"], "dpop_lambda": 5.0, "beta": 0.3},
    "ipo_sum": {"loss": ["ipo"], "ipo_reduction": "sum", "beta": 0.2},
}
CPO_CASES = {
    "cpo": {"beta": 0.1, "loss": "sigmoid", "nll_coef": 1.0},
    "cpo_smoothed": {"beta": 0.3, "loss": "sigmoid", "label_smoothing": 0.1, "nll_coef": 0.5},
    "cpo_hinge": {"beta": 0.2, "loss": "hinge", "nll_coef": 0.0},
    "cpo_ipo": {"beta": 0.2, "loss": "ipo", "nll_coef": 0.0},
}
SIMPO_CASES = {
    "simpo": {"beta": 2.0, "gamma": 1.0, "nll_coef": 0.0},
    "simpo_with_nll": {"beta": 2.5, "gamma": 0.5, "nll_coef": 0.2},
}
ORPO_CASES = {"orpo": {"beta": 0.1}}
KTO_CASES = {
    "kto": {"beta": 0.1},
    "kto_weights": {"beta": 0.4, "desirable_weight": 1.5, "undesirable_weight": 0.75},
    "kto_apo_zero": {"beta": 0.2, "loss": "apo_zero_unpaired"},
}


def inputs():
    source = random.Random(11)
    logprobs = lambda length: [round(-source.expovariate(0.7), 3) for _ in range(length)]
    near = lambda values: [round(value + source.gauss(0, 0.4), 3) for value in values]
    lengths = [(3, 5), (6, 2), (4, 4), (1, 7), (5, 3)]
    policy = [[logprobs(length) for length in pair] for pair in lengths]
    completions = [logprobs(length) for length in (4, 2, 6, 3)]
    mismatched = [logprobs(length) for length in (3, 4, 2, 6)]
    return {
        "policy": policy,
        "reference": [[near(side) for side in pair] for pair in policy],
        "log_sum_squares": [[[round(-abs(source.gauss(1, 0.5)), 3) for _ in side] for side in pair] for pair in policy],
        "unpaired": {
            "policy": completions, "reference": [near(side) for side in completions],
            "policy_mismatched": mismatched, "reference_mismatched": [[value - 0.2 for value in near(side)] for side in mismatched],
            "labels": [True, False, True, False],
        },
        "cases": {
            "dpo": DPO_CASES, "own_dpo": OWN_DPO_CASES, "cpo": CPO_CASES, "simpo": SIMPO_CASES, "orpo": ORPO_CASES,
            "kto": KTO_CASES,
        },
    }


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def log_sigmoid(x):
    return -math.log1p(math.exp(-x))


def smoothed(x, e):
    return -(1 - e) * log_sigmoid(x) - e * log_sigmoid(-x)


def divergence(settings, u):
    kind = settings.get("f_divergence", "reverse_kl")
    ratio = math.exp(u)
    if kind == "forward_kl":
        return 1 - 1 / ratio
    if kind == "js_divergence":
        return math.log(2 * ratio / (ratio + 1))
    if kind == "alpha_divergence":
        power = settings["f_alpha"] - 1
        return (ratio**power - 1) / power
    return u


def dpo(data, policy, settings):
    b, e = settings.get("beta", 0.1), settings.get("label_smoothing", 0.0)
    losses, weights = settings.get("loss", ["sigmoid"]), settings.get("loss_weights")
    sums, references, counts = [], [], []
    for pair, reference in zip(policy, data["reference"]):
        shared = min(map(len, pair))
        tail = settings.get("ld_alpha", 1.0)
        weigh = lambda side: sum(side[:shared]) + tail * sum(side[shared:])
        sums.append([weigh(side) for side in pair])
        references.append([weigh(side) for side in reference])
        counts.append([len(side) for side in pair])
    u = [mine[0] - other[0] for mine, other in zip(sums, references)]
    v = [mine[1] - other[1] for mine, other in zip(sums, references)]
    margins = [mine[0] - mine[1] for mine in sums]
    reference_margins = [other[0] - other[1] for other in references]
    fu, fv = ([divergence(settings, x) for x in xs] for xs in (u, v))
    h = [x - y for x, y in zip(fu, fv)]
    normalized = [x / c[0] - y / c[1] for x, y, c in zip(fu, fv, counts)]
    ranked = lambda xs, ys: [smoothed(b * (x - y), e) for x, y in zip(sorted(xs), sorted(ys))]
    every = range(len(u))
    formulas = {
        "sigmoid": lambda: [-log_sigmoid(b * x) for x in h],
        "cdpo": lambda: [smoothed(b * x, e) for x in h],
        "robust": lambda: [(-(1 - e) * log_sigmoid(b * x) + e * log_sigmoid(-b * x)) / (1 - 2 * e) for x in h],
        "hinge": lambda: [max(0.0, 1 - b * x) for x in h],
        "ipo": lambda: [(x - 1 / (2 * b)) ** 2 for x in (h if settings.get("ipo_reduction") == "sum" else normalized)],
        "sigmoid_norm": lambda: [-log_sigmoid(b * x) for x in normalized],
        "dpop": lambda: [-log_sigmoid(b * (h[i] - settings["dpop_lambda"] * max(0.0, -u[i]))) for i in every],
        "exo": lambda: [
            sum(q * (math.log(q) - math.log(p)) for q, p in ((sigmoid(b * x), 1 - e), (sigmoid(-b * x), e))) for x in h],
        "nca": lambda: [
            -log_sigmoid(b * u[i]) - 0.5 * log_sigmoid(-b * u[i]) - 0.5 * log_sigmoid(-b * v[i]) for i in every],
        "bco": lambda: [-log_sigmoid(b * u[i]) - log_sigmoid(-b * v[i]) for i in every],
        "sppo_hard": lambda: [(u[i] - 0.5 / b) ** 2 + (v[i] + 0.5 / b) ** 2 for i in every],
        "aot": lambda: ranked(margins, reference_margins),
        "aot_unpaired": lambda: ranked(u, v),
        "apo_zero": lambda: [1 - sigmoid(b * u[i]) + sigmoid(b * v[i]) for i in every],
        "apo_down": lambda: [sigmoid(b * u[i]) + 1 - sigmoid(b * (u[i] - v[i])) for i in every],
        "discopop": lambda: [
            -log_sigmoid(b * x) * (1 - sigmoid(b * x / settings["discopop_tau"]))
            + math.exp(-b * x) * sigmoid(b * x / settings["discopop_tau"]) for x in h],
    }
    pair_weights = [1.0] * len(u)
    if settings.get("use_weighting"):
        # The weights are constants of the gradient: those of the unchanged policy.
        means = lambda pair, squares: [
            sum(x - y for x, y in zip(side, square)) / len(side) for side, square in zip(pair, squares)]
        pair_weights = [math.exp(sum(means(*both))) for both in zip(data["policy"], data["log_sum_squares"])]
    total = 0.0
    for loss, weight in zip(losses, weights or [1.0] * len(losses)):
        if loss == "sft":
            total += weight * nll(policy)
        else:
            values = formulas[loss]()
            total += weight * sum(w * x for w, x in zip(pair_weights, values)) / len(values)
    return total


def nll(policy):
    tokens = [x for pair in policy for x in pair[0]]
    return -sum(tokens) / len(tokens)


def mean(values):
    return sum(values) / len(values)


def cpo(_, policy, settings):
    b = settings["beta"]
    x = [b * (sum(pair[0]) - sum(pair[1])) for pair in policy]
    losses = {
        "sigmoid": lambda: [smoothed(value, settings.get("label_smoothing", 0.0)) for value in x],
        "hinge": lambda: [max(0.0, 1 - value) for value in x],
        "ipo": lambda: [(mean(pair[0]) - mean(pair[1]) - 1 / (2 * b)) ** 2 for pair in policy],
    }[settings["loss"]]()
    return mean(losses) + settings["nll_coef"] * nll(policy)


def simpo(_, policy, settings):
    losses = [
        -log_sigmoid(settings["beta"] * (mean(pair[0]) - mean(pair[1])) - settings["gamma"]) for pair in policy]
    return mean(losses) + settings["nll_coef"] * nll(policy)


def orpo(_, policy, settings):
    log_odds = lambda side: mean(side) - math.log(1 - math.exp(mean(side)))
    losses = [-log_sigmoid(log_odds(pair[0]) - log_odds(pair[1])) for pair in policy]
    return nll(policy) + settings["beta"] * mean(losses)


def kto(data, completions, settings):
    data, b = data["unpaired"], settings["beta"]
    pairs = zip(data["policy_mismatched"], data["reference_mismatched"])
    z = max(0.0, mean([sum(mine) - sum(other) for mine, other in pairs]))
    if settings.get("loss") == "apo_zero_unpaired":
        z = 0.0
    losses = []
    for mine, other, label in zip(completions, data["reference"], data["labels"]):
        u = sum(mine) - sum(other)
        if label:
            losses.append(settings.get("desirable_weight", 1.0) * (1 - sigmoid(b * (u - z))))
        else:
            losses.append(settings.get("undesirable_weight", 1.0) * (1 - sigmoid(b * (z - u))))
    return mean(losses)


def with_gradient(loss, data, policy, settings):
    """The loss, and its derivative by every log-probability of a token."""
    sides = [side for pair in policy for side in pair] if isinstance(policy[0][0], list) else policy
    gradient = []
    for side in sides:
        for place, value in enumerate(side):
            moved = []
            for step in (STEP, -STEP):
                side[place] = value + step
                moved.append(loss(data, policy, settings))
            side[place] = value
            gradient.append((moved[0] - moved[1]) / (2 * STEP))
    return [loss(data, policy, settings), *gradient]


def main():
    data = inputs()
    (HERE / "preference_inputs.json").write_text(json.dumps(data, indent=1) + "\n")
    values = {}
    for algorithm, loss in (("dpo", dpo), ("own_dpo", dpo), ("cpo", cpo), ("simpo", simpo), ("orpo", orpo), ("kto", kto)):
        for name, settings in data["cases"][algorithm].items():
            policy = json.loads(json.dumps(data["unpaired"]["policy"] if algorithm == "kto" else data["policy"]))
            values[f"{algorithm}/{name}"] = with_gradient(loss, data, policy, settings)
    content = {"made_with": {"python": platform.python_version()}, "values": values}
    (HERE / "preference_paper.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
