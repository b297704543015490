"""Golden values from the formulas of the papers, in plain Python floats. Imports no numerical library.

Run:  python paper.py      It reads inputs.json beside it and writes paper.json.

Written in another shape than the Rust code on purpose: advantages as the explicit sum of equation 16 of Schulman et al. 2016
(arXiv 1506.02438), the clipped surrogate by cases, gradients by hand.
"""

import json
import math
import platform
import statistics
from pathlib import Path

HERE = Path(__file__).parent


def kl_estimates(logprobs, reference):
    differences = [p - q for p, q in zip(logprobs, reference)]
    return {
        "k1": differences,
        "k2": [d * d / 2 for d in differences],
        "k3": [math.exp(-d) - 1 + d for d in differences],
        "abs": [abs(d) for d in differences],
    }


def rows(flat, lengths):
    out, start = [], 0
    for length in lengths:
        out.append(flat[start:start + length])
        start += length
    return out


def explicit_gae(rewards, values, gamma, lam):
    following = values[1:] + [0.0]
    deltas = [r + gamma * n - v for r, n, v in zip(rewards, following, values)]
    decay = gamma * lam
    return [math.fsum(decay**k * delta for k, delta in enumerate(deltas[t:])) for t in range(len(deltas))]


def advantages(case, after_end):
    out = {"rewards": [], "advantages": [], "returns": []}
    kl = kl_estimates(case["logprobs"], case["reference_logprobs"])["k1"]
    per_row = zip(rows(kl, case["lengths"]), rows(case["values"], case["lengths"]), case["scores"], case["values_after_end"])
    for kl, values, score, value_after in per_row:
        rewards = [-case["kl_coef"] * k for k in kl]
        if after_end and len(rewards) < case["max_new_tokens"]:
            rewards, values = rewards + [score], values + [value_after]
        else:
            rewards[-1] += score
        estimate = explicit_gae(rewards, values, case["gamma"], case["lambda"])
        out["rewards"] += rewards
        out["advantages"] += estimate
        out["returns"] += [a + v for a, v in zip(estimate, values)]
    return out


def whiten(values, shift_mean):
    mean = statistics.fmean(values)
    back = 0.0 if shift_mean else mean
    return [(v - mean) / math.sqrt(statistics.variance(values) + 1e-8) + back for v in values]


def policy(case, low, high):
    loss, gradient, clipped, approx_kl, ratios = [], [], 0, [], []
    for new, old, advantage in zip(*(case[k] for k in ["logprobs", "old_logprobs", "advantages"])):
        ratio = math.exp(new - old)
        if advantage >= 0:
            used, is_clipped = min(ratio, 1 + high), ratio > 1 + high
        else:
            used, is_clipped = max(ratio, 1 - low), ratio < 1 - low
        loss.append(-advantage * used)
        gradient.append(0.0 if is_clipped else -advantage * ratio)
        clipped += is_clipped
        ratios.append(ratio)
        approx_kl.append((new - old) ** 2 / 2)
    return {"loss": [math.fsum(loss)], "gradient": gradient, "clipped": [clipped / len(ratios)],
            "approx_kl": [statistics.fmean(approx_kl)], "ratio": [statistics.fmean(ratios)]}


def value(case, clip):
    loss, gradient, clipped = [], [], 0
    for new, old, goal in zip(*(case[k] for k in ["values", "old_values", "returns"])):
        limited = new if clip is None else min(max(new, old - clip), old + clip)
        farther = abs(limited - goal) > abs(new - goal)
        error = (limited if farther else new) - goal
        loss.append(0.5 * error**2)
        gradient.append(0.0 if farther else error)
        clipped += farther
    return {"loss": [math.fsum(loss)], "gradient": gradient, "clipped": [clipped / len(loss)]}


def minus_log_sigmoid(x):
    return math.log1p(math.exp(-x)) if x > 0 else math.log1p(math.exp(x)) - x


def reward(case, use_margins, centering, count):
    loss, gradient = [], []
    for chosen, rejected, margin in list(zip(case["chosen"], case["rejected"], case["margins"]))[:count]:
        difference = chosen - rejected - (margin if use_margins else 0.0)
        loss.append(minus_log_sigmoid(difference) + centering * (chosen + rejected) ** 2)
        gradient.append(-1 / (1 + math.exp(difference)) + 2 * centering * (chosen + rejected))
    return {"loss": [math.fsum(loss)], "gradient": gradient}


def score(case):
    clipped = [max(-case["clip"], min(case["clip"], s)) for s in case["scores"]]
    subtracted = [s if ended else s - case["penalty"] for s, ended in zip(case["scores"], case["ended"])]
    return {"clipped": clipped, "subtracted": subtracted}


def main():
    inputs = json.loads((HERE / "inputs.json").read_text())
    out = {}

    def put(prefix, values):
        out.update({f"{prefix}/{name}": numbers for name, numbers in values.items()})

    put("kl", kl_estimates(inputs["worked"]["logprobs"], inputs["worked"]["reference_logprobs"]))
    for name in ["worked", "ragged"]:
        put(f"{name}/eos", advantages(inputs[name], after_end=False))
        put(f"{name}/after_eos", advantages(inputs[name], after_end=True))
    first = advantages(inputs["worked"], after_end=False)["advantages"]
    put("whiten", {"shifted": whiten(inputs["whiten"]["values"], True), "scaled": whiten(inputs["whiten"]["values"], False),
                   "worked": whiten(first, True)})
    case = inputs["controller"]
    steps = [max(-0.2, min(0.2, kl / case["target"] - 1)) * case["sequences"] / case["horizon"] for kl in case["kl"]]
    out["controller"] = [case["coefficient"] * (1 + step) for step in steps]
    for name, rule in inputs["policy"]["rules"].items():
        put(f"policy/{name}", policy(inputs["policy"], **rule))
    for name, clip in inputs["value"]["clips"].items():
        put(f"value/{name}", value(inputs["value"], clip))
    case = inputs["reward"]
    for name, margins, centering in [("plain", False, 0.0), ("margin", True, 0.0), ("centered", False, case["centering"])]:
        put(f"reward/{name}", reward(case, margins, centering, len(case["chosen"])))
        out[f"reward/worked_{name}"] = reward(case, margins, centering, 1)["loss"]
    put("score", score(inputs["score"]))
    document = {"producer": "paper.py", "versions": {"python": platform.python_version()}, "values": out}
    print(document["versions"])
    (HERE / "paper.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
