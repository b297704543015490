"""Golden values from the formulas of the papers, in plain Python floats. Imports no numerical library.

Run:  python paper.py      It reads inputs.json beside it and writes paper.json.

Written in another shape than the Rust code on purpose: advantages as the explicit sum of equation 16 of Schulman et al. 2016
(arXiv 1506.02438) over the tokens that are left when holes are taken out, the clipped surrogate by cases, gradients by hand.
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


def advantages_with_holes(case):
    out = {"advantages": [], "returns": []}
    keys = ["kl", "mask", "values"]
    for kl, mask, values, score in zip(*(rows(case[key], case["lengths"]) for key in keys), case["scores"]):
        kept = [t for t, m in enumerate(mask) if m]
        rewards = [-case["kl_coef"] * kl[t] for t in kept]
        rewards[-1] += score
        estimate = dict(zip(kept, explicit_gae(rewards, [values[t] for t in kept], case["gamma"], case["lambda"])))
        out["advantages"] += [estimate.get(t, 0.0) for t in range(len(mask))]
        out["returns"] += [estimate[t] + values[t] if t in estimate else 0.0 for t in range(len(mask))]
    return out


def whiten(values, mask, biased, shift_mean):
    kept = [v for v, m in zip(values, mask) if m]
    mean = statistics.fmean(kept)
    variance = statistics.pvariance(kept) if biased else statistics.variance(kept)
    back = 0.0 if shift_mean else mean
    return [(v - mean) / math.sqrt(variance + 1e-8) + back if m else 0.0 for v, m in zip(values, mask)]


def policy(case, low, high, dual=math.inf):
    loss, gradient, clipped, approx_kl, ratios, tokens = [], [], 0, [], [], 0
    for new, old, advantage, weight in zip(*(case[k] for k in ["logprobs", "old_logprobs", "advantages", "weights"])):
        ratio = math.exp(new - old)
        if advantage >= 0:
            used, is_clipped, is_bounded = min(ratio, 1 + high), ratio > 1 + high, False
        else:
            used, is_clipped, is_bounded = min(max(ratio, 1 - low), dual), ratio < 1 - low, ratio > dual
        loss.append(-weight * advantage * used)
        gradient.append(0.0 if is_clipped or is_bounded else -weight * advantage * ratio)
        if weight:
            tokens += 1
            clipped += is_clipped
            ratios.append(ratio)
            approx_kl.append(ratio - 1 - (new - old))
    return {"loss": [math.fsum(loss)], "gradient": gradient, "clipped": [clipped / tokens],
            "approx_kl": [math.fsum(approx_kl) / tokens], "ratio": [math.fsum(ratios) / tokens]}


def value(case, clip):
    loss, gradient, clipped, tokens = [], [], 0, 0
    for new, old, goal, weight in zip(*(case[k] for k in ["values", "old_values", "returns", "weights"])):
        limited = new if clip is None else min(max(new, old - clip), old + clip)
        farther = abs(limited - goal) > abs(new - goal)
        error = (limited if farther else new) - goal
        loss.append(0.5 * weight * error**2)
        gradient.append(0.0 if farther else weight * error)
        if weight:
            tokens += 1
            clipped += farther
    return {"loss": [math.fsum(loss)], "gradient": gradient, "clipped": [clipped / tokens]}


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
    ended = [case["stop_id"] in reply for reply in case["replies"]]
    lengths = [r.index(case["stop_id"]) + 1 if e else len(r) for r, e in zip(case["replies"], ended)]
    scaled = [(s - case["mean"]) / case["std"] for s in case["scores"]]
    clipped = [max(-case["clip"], min(case["clip"], s)) for s in scaled]
    return {"lengths": lengths, "clipped": clipped,
            "subtracted": [s if e else s - case["penalty"] for s, e in zip(case["scores"], ended)],
            "replaced": [s if e else case["replacement"] for s, e in zip(case["scores"], ended)]}


def main():
    inputs = json.loads((HERE / "inputs.json").read_text())
    out = {}

    def put(prefix, values):
        out.update({f"{prefix}/{name}": numbers for name, numbers in values.items()})

    put("kl", kl_estimates(inputs["worked"]["logprobs"], inputs["worked"]["reference_logprobs"]))
    for name in ["worked", "ragged"]:
        put(f"{name}/eos", advantages(inputs[name], after_end=False))
        put(f"{name}/after_eos", advantages(inputs[name], after_end=True))
    put("holes", advantages_with_holes(inputs["holes"]))
    case = inputs["whiten"]
    first = advantages(inputs["worked"], after_end=False)["advantages"]
    for name, biased in [("unbiased", False), ("biased", True)]:
        out[f"whiten/{name}"] = whiten(case["values"], case["mask"], biased, True)
        out[f"whiten/{name}_scaled"] = whiten(case["values"], case["mask"], biased, False)
        out[f"whiten/worked_{name}"] = whiten(first, [1] * 4, biased, True)
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
    case = inputs["reduction"]
    sums = [math.fsum(row) for row in rows(case["losses"], case["lengths"])]
    means = [total / length for total, length in zip(sums, case["lengths"])]
    out["reduction"] = [sum(sums) / sum(case["lengths"]), statistics.fmean(means), statistics.fmean(sums),
                        sum(sums) / (len(sums) * case["constant"])]
    put("score", score(inputs["score"]))
    document = {"producer": "paper.py", "versions": {"python": platform.python_version()}, "values": out}
    print(document["versions"])
    (HERE / "paper.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
