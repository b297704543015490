"""Golden values of the group algorithms from the formulas of the papers, in plain Python floats. Imports no numerical library.

Run:  python groups_paper.py
It reads groups_inputs.json beside it and writes groups_paper.json.

Papers: GAE arXiv 1506.02438 (equation 16), with two lambdas 2503.01491; GRPO 2402.03300 (section 4.1.2); Dr. GRPO
2503.20783; RLOO 2402.14740 (equation 8); REINFORCE++ 2501.03262; ReMax 2310.10505; OPO 2505.23585; MaxRL 2602.02710; pass@k
2503.19595 (leave-one-out maximum), over all choices of k replies 2505.15201; PPO 1707.06347 (equation 7), dual clip 1912.09729
(equation 5); GSPO 2507.18071; CISPO 2506.13585; GMPO 2507.20673; SAPO 2511.20347; DPPO 2602.04879; GPG 2504.02546; KL
estimators Schulman 2020, their gradients 2510.01555; DAPO 2503.14476 (equations 12 and 13).

Written in another shape than the Rust code on purpose. The tokens of tools are taken out of a reply before anything else is
computed, advantages are explicit sums, the losses of whole replies (GSPO, GMPO) are differentiated as the papers write them
and not token by token, and every gradient is the formula of the derivative, case by case.
"""

import itertools
import json
import math
import platform
import statistics
from pathlib import Path

HERE = Path(__file__).parent
REDUCTIONS = ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm"]
LIMIT = 20.0  # of log-ratios
STOPPING = ["clip", "clip_higher", "clip_dual", "gspo", "cispo", "cispo_tight", "gmpo", "dppo_tv", "dppo_kl"]


def flat(rows):
    return [number for row in rows for number in row]


def tokens_of_policy(row, mask):
    return [number for number, written in zip(row, mask) if written]


def with_gaps(numbers, mask):
    """The inverse of tokens_of_policy, with 0 for the tokens of tools."""
    numbers = iter(numbers)
    return [next(numbers) if written else 0.0 for written in mask]


def whiten(values, counted, biased, epsilon):
    chosen = [value for value, is_counted in zip(values, counted) if is_counted]
    variance = statistics.pvariance(chosen) if biased else statistics.variance(chosen)
    mean = statistics.fmean(chosen)
    return [(value - mean) / math.sqrt(variance + epsilon) if is_counted else 0.0
            for value, is_counted in zip(values, counted)]


# --- Rewards and advantages of tokens ---


def slots_of(case, reply, after_end):
    """Rewards of the policy's slots of a reply, and the mask of all its slots. It acts in no slot of an excluded reply."""
    mask, kl = case["mask"][reply], case["kl"][reply]
    if case["excluded"][reply]:
        return [], [0] * (len(mask) + (after_end and len(mask) < case["max_new_tokens"]))
    rewards = [-case["kl_coef"] * number for number in kl]
    for turn in case["turn_rewards"]:
        if turn["reply"] == reply:
            rewards[turn["token"]] += turn["reward"]
    if after_end and len(mask) < case["max_new_tokens"]:
        return tokens_of_policy(rewards, mask) + [case["scores"][reply]], mask + [1]
    rewards = tokens_of_policy(rewards, mask)
    rewards[-1] += case["scores"][reply]
    return rewards, mask


def discounted(numbers, decay):
    return [math.fsum(decay**step * number for step, number in enumerate(numbers[start:])) for start in range(len(numbers))]


def token_advantages(case, after_end):
    out = {key: [] for key in ["rewards", "advantages", "returns", "critic_returns", "to_go"]}
    for reply in range(len(case["lengths"])):
        rewards, mask = slots_of(case, reply, after_end)
        all_values = case["values"][reply] + [case["values_after_end"][reply]] * (len(mask) - len(case["values"][reply]))
        values = tokens_of_policy(all_values, mask)
        deltas = [r + case["gamma"] * following - v for r, v, following in zip(rewards, values, values[1:] + [0.0])]
        policy, critic = (discounted(deltas, case["gamma"] * case[key]) for key in ["lambda", "critic_lambda"])
        out["rewards"] += with_gaps(rewards, mask)
        out["advantages"] += with_gaps(policy, mask)
        for key, estimates in [("returns", policy), ("critic_returns", critic)]:
            filled = with_gaps(estimates, mask)
            out[key] += [advantage + value for advantage, value in zip(filled, all_values)]
        out["to_go"] += with_gaps(discounted(rewards, case["gamma"]), mask)
    return out


# --- Advantages of replies ---


def advantage(rule, case, totals, reply, group):
    """The advantage of one counted reply of a group of counted replies."""
    rewards, own = [totals[other] for other in group], totals[reply]
    others = [totals[other] for other in group if other != reply]
    estimator, epsilon = rule["estimator"], rule["epsilon"]
    if estimator == "remax":
        return own - case["greedy"][reply]
    if len(group) < 2:
        return 0.0
    if estimator == "rloo":
        return own - statistics.fmean(others)
    if estimator == "opo":
        lengths = [sum(case["mask"][other]) for other in group]
        return own - math.fsum(n * r for n, r in zip(lengths, rewards)) / sum(lengths)
    if estimator == "maxrl":
        solved = math.fsum(rewards)
        if solved == 0.0:
            return 0.0
        if epsilon == 0.0:  # the paper's weight is r / K - 1 / N of the sum over N replies, K of them solved
            return len(group) * (own / solved - 1 / len(group))
        return (own - solved / len(group)) / (solved / len(group) + epsilon)
    if estimator == "pass_at_k":
        choices = itertools.combinations(others, min(rule["pass_k"], len(group)) - 1)
        gain = statistics.fmean(max(0.0, own - max(chosen)) for chosen in choices)
        return gain / scale(rule, case, totals, rewards)
    distance = own - statistics.fmean(rewards)
    return distance / scale(rule, case, totals, rewards) if estimator == "grpo" else distance


def scale(rule, case, totals, rewards):
    if rule["scale"] == "none":
        return 1.0
    counted = [total for total, is_excluded in zip(totals, case["excluded"]) if not is_excluded]
    return statistics.stdev(rewards if rule["scale"] == "group" else counted) + rule["epsilon"]


def groups(case):
    return {number: [reply for reply, (own, is_excluded) in enumerate(zip(case["groups"], case["excluded"]))
                     if own == number and not is_excluded] for number in sorted(set(case["groups"]))}


def reply_advantages(rule, case):
    members, totals = groups(case), case[rule["totals"]]
    return [0.0 if is_excluded else advantage(rule, case, totals, reply, members[number])
            for reply, (number, is_excluded) in enumerate(zip(case["groups"], case["excluded"]))]


def to_tokens(by_reply, case):
    return flat([by_reply[reply] * written for written in mask] for reply, mask in enumerate(case["mask"]))


def put_advantages(put, inputs):
    case = inputs["rollout"]
    for name, after_end in [("eos", False), ("after_eos", True)]:
        put(f"slots/{name}", token_advantages(case, after_end))
    to_go = token_advantages(case, False)["to_go"]
    counted = flat([written and not is_excluded for written in mask]
                   for mask, is_excluded in zip(case["mask"], case["excluded"]))
    put("whitened", {"verl": whiten(to_go, counted, False, 1e-8), "openrlhf": whiten(to_go, counted, True, 0.0)})
    by_rule = {name: reply_advantages(rule, case) for name, rule in inputs["group_rules"].items()}
    put("replies", by_rule)
    baseline = to_tokens(by_rule["reinforce_plus_plus_baseline"], case)
    put("tokens", {
        "grpo": to_tokens(by_rule["grpo_trl"], case),
        "reinforce_plus_plus_baseline": whiten(baseline, counted, False, 1e-8),
    })
    equal = [number for number, group in groups(case).items()
             if len(group) < 2 or len({case["scores"][reply] for reply in group}) == 1]
    put("groups", {"zero_variance": [float(number) for number in equal]})


# --- Reductions ---


def weights(case, reduction, tokens, replies):
    """A weight for each token of each reply; tokens and replies are the counts of the mini-batch."""
    out = []
    for mask, is_excluded in zip(case["mask"], case["excluded"]):
        own = 0.0 if is_excluded else {
            "token_mean": 1 / tokens,
            "seq_mean_token_mean": 1 / (max(1, sum(mask)) * replies),
            "seq_mean_token_sum": 1 / replies,
            "seq_mean_token_sum_norm": 1 / (replies * case["norm"]),
        }[reduction]
        out.append([own * written for written in mask])
    return out


def counts(case):
    counted = [mask for mask, is_excluded in zip(case["mask"], case["excluded"]) if not is_excluded]
    return sum(map(sum, counted)), len(counted)


def first(case, replies):
    return {key: rows[:replies] if isinstance(rows, list) else rows for key, rows in case.items()}


# --- Losses ---


def token_loss(rule, new, old, advantage):
    """The loss of one token and its derivative with respect to the new log-probability."""
    kind, low, high = rule["kind"], rule["low"], rule["high"]
    ratio = math.exp(max(-LIMIT, min(LIMIT, new - old)))
    slope = ratio if abs(new - old) <= LIMIT else 0.0  # of the ratio
    if kind == "gpg":
        return -advantage * new, -advantage
    if kind == "cispo":
        weight = min(1 + high, ratio)
        return -advantage * weight * new, -advantage * weight
    if kind == "sapo":
        temperature = rule["sapo"][0] if advantage > 0 else rule["sapo"][1]
        gate = 1 / (1 + math.exp(-temperature * (ratio - 1))) if ratio < 100 else 1.0
        return -advantage * 4 / temperature * gate, -advantage * 4 * gate * (1 - gate) * slope
    if kind in ("dppo_tv", "dppo_kl"):
        p, q = math.exp(new), math.exp(old)
        if kind == "dppo_tv":
            outside = p - q > high if advantage > 0 else q - p > low
        else:
            divergence = q * (old - new) + (1 - q) * (math.log1p(-q) - math.log1p(-p))
            outside = divergence > (high if advantage > 0 else low) and (p > q if advantage > 0 else p < q)
        weight = 0.0 if outside else min(ratio, rule["dual"])
        return -advantage * weight * new, -advantage * weight
    assert kind == "clip"
    if advantage >= 0:
        return -advantage * min(ratio, 1 + high), 0.0 if ratio > 1 + high else -advantage * slope
    if ratio > rule.get("dual", math.inf):
        return -advantage * rule["dual"], 0.0
    return -advantage * max(ratio, 1 - low), 0.0 if ratio < 1 - low else -advantage * slope


def reply_loss(rule, new, old, advantage):
    """The loss of one whole reply and its derivatives with respect to its tokens, as the paper writes it."""
    log_ratios, count = [p - q for p, q in zip(new, old)], len(new)
    if rule["kind"] == "gspo":
        ratio = math.exp(math.fsum(log_ratios) / count)
        clipped = ratio > 1 + rule["high"] if advantage >= 0 else ratio < 1 - rule["low"]
        bound = 1 + rule["high"] if advantage >= 0 else 1 - rule["low"]
        return (-advantage * bound, [0.0] * count) if clipped else (-advantage * ratio, [-advantage * ratio / count] * count)
    assert rule["kind"] == "gmpo"
    if advantage >= 0:
        limited = [min(x, rule["high"]) for x in log_ratios]
    else:
        limited = [max(x, -rule["low"]) for x in log_ratios]
    mean = math.exp(math.fsum(limited) / count)
    return -advantage * mean, [-advantage * mean / count if x == y else 0.0 for x, y in zip(limited, log_ratios)]


def policy(rule, case, reduction, correction=None):
    total, gradient = [], []
    by_reply = zip(weights(case, reduction, *counts(case)), case["mask"], case["logprobs"], case["old"], case["advantages"],
                   correction or [None] * len(case["mask"]))
    for row, mask, new, old, advantage, factors in by_reply:
        new, old, row = (tokens_of_policy(numbers, mask) for numbers in (new, old, row))
        factors = tokens_of_policy(factors, mask) if factors else [1.0] * len(new)
        if rule["kind"] in ("gspo", "gmpo"):
            loss, derivatives = reply_loss(rule, new, old, advantage)
            total.append(math.fsum(row) * loss)
            derivatives = [math.fsum(row) * derivative for derivative in derivatives]
        else:
            losses = [token_loss(rule, *numbers, advantage) for numbers in zip(new, old)]
            total += [weight * factor * loss for weight, factor, (loss, _) in zip(row, factors, losses)]
            derivatives = [weight * factor * slope for weight, factor, (_, slope) in zip(row, factors, losses)]
        gradient += with_gaps(derivatives, mask)
    return {"loss": [math.fsum(total)], "gradient": gradient}


def clipped(rule, case):
    """How many counted tokens the loss stops: with a negative advantage, and with a positive one. CISPO stops none of them,
    and its truncated tokens are counted whatever their advantage is."""
    low = high = 0
    for mask, is_excluded, new, old, advantage in zip(*(case[key] for key in
                                                       ["mask", "excluded", "logprobs", "old", "advantages"])):
        new, old = tokens_of_policy(new, mask), tokens_of_policy(old, mask)
        for p, q in zip(new, old):
            if is_excluded:
                continue
            if rule["kind"] == "cispo":
                high += math.exp(p - q) > 1 + rule["high"]
                continue
            if rule["kind"] in ("gspo", "gmpo"):
                ratio = math.exp(statistics.fmean(new) - statistics.fmean(old)) if rule["kind"] == "gspo" else 1 + p - q
            else:
                ratio = math.exp(p - q)
            if rule["kind"].startswith("dppo"):
                is_stopped = token_loss(rule, p, q, advantage)[1] == 0.0
                low += advantage < 0 and is_stopped
                high += advantage > 0 and is_stopped
            else:
                low += advantage < 0 and ratio < 1 - rule["low"]
                high += advantage > 0 and ratio > 1 + rule["high"]
    return {"low": [float(low)], "high": [float(high)], "both": [float(low + high)]}


def put_losses(put, inputs):
    case = inputs["policy"]
    for reduction in REDUCTIONS:
        put(f"weights/{reduction}", {
            "whole": flat(weights(case, reduction, *counts(case))),
            "part": flat(weights(first(case, case["part"]), reduction, *counts(case))),
        })
        for name, rule in case["rules"].items():
            put(f"policy/{name}/{reduction}", policy(rule, case, reduction))
    put("policy/clip_corrected", policy(case["rules"]["clip"], case, "token_mean", case["correction"]))
    for name in STOPPING:
        found = clipped(case["rules"][name], case)
        has_sides = case["rules"][name]["kind"] in ("clip", "gmpo")  # the losses whose sides a peer counts
        put(f"clipped/{name}", found if has_sides else {"both": found["both"]})
    put("policy/combined", combined(case))
    case = inputs["extreme"]
    for name, rule in case["rules"].items():
        losses = [token_loss(rule, *numbers) for numbers in zip(case["logprobs"], case["old"], case["advantages"])]
        put(f"extreme/{name}", {"loss": [loss for loss, _ in losses], "gradient": [slope for _, slope in losses]})


def combined(case):
    """The clipped loss with corrections, the k3 estimate with the gradient of k2, and the entropy bonus."""
    settings = case["combined"]
    out = policy(case["rules"]["clip"], case, "token_mean", case["correction"])
    row, mask = flat(weights(case, "token_mean", *counts(case))), flat(case["mask"])
    differences = [p - q for p, q in zip(flat(case["logprobs"]), flat(case["reference"]))]
    bonus = math.fsum(w * h for w, h in zip(row, flat(case["entropy"])))
    penalty = math.fsum(w * (math.exp(-d) - 1 + d) for w, d in zip(row, differences))
    loss = out["loss"][0] + settings["kl_coef"] * penalty - settings["entropy_coef"] * bonus
    gradient = [g + settings["kl_coef"] * w * d for g, w, d in zip(out["gradient"], row, differences)]
    return {"loss": [loss], "gradient": gradient, "entropy_gradient": [-settings["entropy_coef"] * w for w in row],
            "mean_kl": [penalty]}


# --- KL in the loss ---

KL = {  # the estimate, and its derivative with respect to the log-probability
    "k1": (lambda d: d, lambda d: 1.0),
    "k2": (lambda d: d * d / 2, lambda d: d),
    "k3": (lambda d: math.exp(-d) - 1 + d, lambda d: 1 - math.exp(-d)),
    "abs": (abs, lambda d: 0.0 if d == 0 else math.copysign(1.0, d)),
}


def kl_loss(case, estimator, straight_through, importance, clamp):
    values, gradients = [], []
    for new, reference, old in zip(case["logprobs"], case["reference"], case["old"]):
        d = max(-clamp, min(clamp, new - reference))
        value, slope = KL[estimator][0](d), KL["k2" if straight_through else estimator][1](d)
        slope = slope if abs(new - reference) <= clamp else 0.0
        ratio = math.exp(new - old) if importance else 1.0
        values.append(ratio * value)
        # The derivative of the ratio is the ratio. It is a constant where the slope alone is that of the KL divergence.
        gradients.append(ratio * (slope + value) if importance and not straight_through else ratio * slope)
    return {"values": values, "gradient": gradients}


def put_kl(put, inputs):
    case = inputs["kl"]
    for estimator in KL:
        for straight_through in [False, True]:
            for importance in [False, True]:
                name = ("straight_through" if straight_through else "direct") + ("_importance" if importance else "")
                for place, numbers in [("kl", case), ("kl_beyond", case["beyond"])]:
                    found = kl_loss(numbers, estimator, straight_through, importance, case["clamp"])
                    put(f"{place}/{estimator}/{name}", found)


# --- Corrections for what sampled the replies ---


def correct(case, rule):
    mode, low, high = rule["mode"], rule["low"], rule["high"]
    out, cut, replies_cut, ratios, divergences = [], 0, 0, [], []
    for mask, is_excluded, current, sampler in zip(*(case[key] for key in ["mask", "excluded", "current", "sampler"])):
        log_ratios = [p - q for p, q in zip(tokens_of_policy(current, mask), tokens_of_policy(sampler, mask))]
        by_token = [math.exp(x) for x in log_ratios]
        product, mean = math.prod(by_token), math.exp(statistics.fmean(log_ratios))
        if mode == "off":
            row = [1.0] * len(by_token)
        elif mode == "token_truncate":
            row = [min(w, high) for w in by_token]
        elif mode == "token_mask":
            row = [w if low <= w <= high else 0.0 for w in by_token]
        elif mode == "sequence_truncate":
            row = [min(product, high)] * len(by_token)
        elif mode == "sequence_mask":
            row = [product if low <= product <= high else 0.0] * len(by_token)
        else:
            row = [w if low <= mean <= high else 0.0 for w in by_token]
        out += with_gaps([0.0] * len(row) if is_excluded else row, mask)
        if not is_excluded:
            before = [product] * len(row) if mode.startswith("sequence") else by_token
            changed = [mode != "off" and abs(w - v) > 1e-12 for w, v in zip(row, before)]
            cut += sum(changed)
            replies_cut += any(changed)
            ratios += by_token
            divergences += [math.exp(x) - 1 - x for x in log_ratios]
    return {"weights": out, "tokens": [float(len(ratios))], "cut": [float(cut)], "replies_cut": [float(replies_cut)],
            "ratio": [math.fsum(ratios)], "ratio_max": [max(ratios)], "kl": [math.fsum(divergences)]}


def put_the_rest(put, inputs):
    for name, rule in inputs["correction"]["rules"].items():
        put(f"correction/{name}", correct(inputs["correction"], rule))
    case = inputs["overlong"]
    start = case["max_new_tokens"] - case["buffer"]
    share = [max(0, length - start) / case["buffer"] for length in case["lengths"]]
    put("overlong", {"penalty": [-case["penalty"] * min(1, part) + 0.0 for part in share]})
    put("entropy", entropy_coefficients(inputs["entropy"]))


def entropy_coefficients(case):
    """After each step: the coefficient, and the one that the next step applies, which is 0 above the target."""
    coefficients, applied, now = [], [], case["coefficient"]
    for measured in case["measured"]:
        is_low = measured <= case["target"]
        now = min(1.0, now + case["delta"]) if is_low else max(0.0, now - case["delta"])
        coefficients.append(now)
        applied.append(now if is_low else 0.0)
    return {"coefficient": coefficients, "applied": applied}


def main():
    inputs = json.loads((HERE / "groups_inputs.json").read_text())
    out = {}

    def put(prefix, values):
        out.update({f"{prefix}/{name}": list(numbers) for name, numbers in values.items()})

    for part in (put_advantages, put_losses, put_kl, put_the_rest):
        part(put, inputs)
    document = {"producer": "groups_paper.py", "versions": {"python": platform.python_version()}, "values": out}
    (HERE / "groups_paper.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
