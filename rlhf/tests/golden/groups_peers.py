"""Golden values of the group algorithms from verl, TRL and OpenRLHF, in fp64, with gradients by autograd of torch.

Run, in an environment of its own:
  pip install torch==2.11.0 transformers==5.23.0 trl==1.16.0 accelerate==1.15.0 datasets peft tensordict codetiming \
      omegaconf==2.3.0 hydra-core ray==2.60.0
  pip install --no-deps verl==0.9.1 openrlhf==0.11.2
  OMP_NUM_THREADS=1 python groups_peers.py
It reads groups_inputs.json beside it and writes groups_peers.json, in which `made_by` names the functions behind each value.
A value that several peers make is stored once, after they agreed to 1e-12 (`Values.put` of groups_peers_calls.py, which also
has the stand-ins for their trainers).

The functions are the peers' own, called with stand-ins for trainers and models. Changed in them, and nothing else:
  - `Tensor.float` is `Tensor.double`: OpenRLHF and verl convert to fp32 before statistics and KL estimates.
  - The 1e-8 that verl and OpenRLHF add to counts of tokens is 0 (`without_count_epsilon`). It changes their means by a share
    of 1e-8 / count.
  - deepspeed and the Ray launcher, which OpenRLHF imports and which take no part in the mathematics, are empty modules.

Which settings of ours are whose:
  - GRPO: `group_epsilon` 1e-4 is TRL, 1e-6 verl, 1e-9 OpenRLHF's group_norm. All three add it to the standard deviation. Scale
    `batch` is TRL's `scale_rewards = "batch"`: the mean is the group's, the standard deviation the batch's. Scale `none` is
    Dr. GRPO in all three.
  - Reductions: token_mean is TRL `bnpo` on the whole mini-batch and `dapo`, verl token-mean, OpenRLHF token-mean;
    seq_mean_token_mean is TRL `grpo`, verl seq-mean-token-mean, OpenRLHF seq-mean-token-mean; seq_mean_token_sum is TRL
    `luspo`, verl seq-mean-token-sum; seq_mean_token_sum_norm is TRL `dr_grpo`, verl seq-mean-token-sum-norm with
    `loss_scale_factor`.
  - Dual clip is verl's `clip_ratio_c` (always on there), TRL's `delta`, OpenRLHF's `dual_clip`.
  - CISPO: high = epsilon_high - 1 is TRL, whose bound is of the ratio itself. verl's bound is a distance from 1, as ours.
  - KL in the loss: `straight_through` is verl's "k1+", "k3+"; `straight_through` with importance has the gradient of
    OpenRLHF's `unbiased_gradient`; k3 and `direct` with importance is TRL's `use_bias_correction_kl`.
  - pass@k: a k of the size of the group is verl's grpo_passk. A smaller k is the mean of what verl gives to a reply in the
    choices of k replies that it is in.
  - Whitening: unbiased with epsilon 1e-8 is verl; biased with epsilon 0 is OpenRLHF, which bounds the variance by 1e-8 from
    below instead of adding it.
  - Corrections: token_truncate is verl's `rollout_is = "token"`, TRL's token_truncate, OpenRLHF's level token, mode clip with
    low 0; token_mask is verl's IcePop "low_high", TRL's token_mask, OpenRLHF's level token, mode mask; sequence_truncate and
    sequence_mask are verl's `rollout_is = "sequence"` and TRL's; geometric_mask is OpenRLHF's level seq, mode mask, and verl's
    `rollout_rs = "seq_mean_k1"` together with token weights. verl's bounds are those of sampler / current there, so our [low,
    high] is its "1/high_1/low".

Differences that remain, and are not in the values:
  - A prompt with one scored reply: verl keeps its reward as the advantage (grpo, rloo, opo, reinforce_plus_plus_baseline), and
    refuses pass@k. TRL gives 0, as we do. TRL's `frac_reward_zero_std` does not count such a group; our list does.
  - verl knows no reply without a score. It gets only the scored ones here. TRL marks them with NaN and gives 0. A group of TRL
    and of OpenRLHF has a fixed size: smaller groups are filled up with replies without a score for TRL, and given to OpenRLHF
    one by one.
  - Gaps: OpenRLHF sets values and rewards to 0 in a gap, so that a gap is one more step. It gets the replies with the tokens
    of tools taken out, which is what carrying across gaps means. verl carries, but gives the tokens of tools the advantage of
    the next token and a return; both are set to what ours are here, 0 and the value.
  - verl whitens the advantages of GAE inside: they are taken from its returns, which come first. Two lambdas are two calls. No
    peer has rewards of turns. They are entries of verl's token rewards, and part of the KL term of OpenRLHF.
  - verl's ReMax is a reward-to-go: it is the reward of the reply minus the baseline only without rewards before the last
    token. OpenRLHF's rloo, group_norm and dr_grpo leave the KL penalty out of the comparison and add its reward-to-go
    afterwards; the KL is 0 here.
  - TRL keeps a reply without a score in the counts of its reductions, where it has the loss 0. verl and we leave a reply out
    of them that has no counted token. The entropy bonus of TRL is a mean over tokens with every reduction; verl reduces it as
    the policy loss, and so do we.
  - verl's SAPO always reduces by seq-mean-token-mean; the other reductions are `agg_loss` on its losses. GMPO of verl and TRL
    is a mean over replies; other reductions are sums of their losses of single replies. OpenRLHF has GSPO, as a mean over
    replies.
  - TRL has no clamp of the log-ratio. verl clamps k3 to +-10 after the exponential, and OpenRLHF every estimate; the inputs
    stay below that, but for those of `kl_beyond`, which are clamped before a peer gets them. k3 is torch's own there.
  - verl clamps the log-ratio of CISPO, SAPO and DPPO to +-20 as that of PPO, the one of GSPO to at most 10, and that of GMPO
    not at all. No input goes beyond in those two.
  - OpenRLHF's importance weight of the KL is at most 10, and changes the gradient only. Ours changes the value too, as TRL's
    does. Estimates with importance are verl's times torch's exp of the difference, a constant with `straight_through`.
  - verl and we add 1e-8 inside the logarithm of the binary divergence of dppo_kl, which the paper does not. It only decides
    about tokens at the bound.
  - verl's CISPO also has a bound below, 1 - low; TRL and we do not, and low is 1 here.
  - verl's GMPO counts as clipped the tokens beyond either bound, whatever the sign of the advantage. TRL and we count those
    that the loss stops. TRL counts neither side of GSPO by tokens, CISPO only with a positive advantage.
  - TRL's adaptive entropy has bounds of the coefficient as settings; ours are its defaults, 0 and 1.
  - verl's rejection takes tokens out of the response mask, so it also changes the counts of the reductions; ours only changes
    weights. verl clamps log-ratios to +-20.
  - verl's overlong penalty is not limited to its buffer, TRL's and OpenRLHF's are. TRL's has no factor.
  - MaxRL is in none of the three: verl's distance from the mean, divided here.
"""

import importlib.metadata
import itertools
import json
import platform
from pathlib import Path
from types import SimpleNamespace

import numpy
import torch
from groups_peers_calls import (
    VERL_LOSSES, VERL_MODES, Replies, Values, experience_maker, of_single_replies, openrlhf, openrlhf_advantages,
    openrlhf_loss, openrlhf_weights, tensor, trl_advantages, trl_loss, trl_rollout, trl_trainer, verl_advantages, verl_config,
    verl_loss)
from trl.experimental.gmpo.gmpo_trainer import GMPOTrainer
from trl.rewards import get_soft_overlong_punishment
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.rloo_trainer import RLOOTrainer
from verl.trainer.ppo import core_algos, rollout_corr_helper

HERE = Path(__file__).parent
TRL_LOSSES = {
    "token_mean": "bnpo", "seq_mean_token_mean": "grpo", "seq_mean_token_sum": "luspo", "seq_mean_token_sum_norm": "dr_grpo",
}
TRL_LOSS, TRL_ROLLOUT = "TRL GRPOTrainer._compute_loss", "TRL GRPOTrainer._generate_and_score_completions"


# --- Rewards and advantages of tokens ---


def with_slot_after_end(case):
    """The case with one more token of the policy after each reply that has room for it."""
    case = json.loads(json.dumps(case))
    for reply, length in enumerate(case["lengths"]):
        if length < case["max_new_tokens"]:
            case["lengths"][reply] += 1
            case["mask"][reply].append(1)
            case["kl"][reply].append(0.0)
            case["values"][reply].append(case["values_after_end"][reply])
    return case


def put_slots(out, name, case):
    replies = Replies(case)
    turns = torch.zeros_like(replies.mask)
    for turn in case["turn_rewards"]:
        turns[replies.kept.index(turn["reply"]), turn["token"]] = turn["reward"]
    kl = replies.padded("kl") - turns / case["kl_coef"]
    rewards = openrlhf.utils.compute_reward(replies.numbers("scores"), case["kl_coef"], kl, replies.mask)
    out.put(f"slots/{name}/rewards", {"OpenRLHF compute_reward": replies.flat(rewards)})

    values, (gamma, decay, critic) = replies.padded("values"), (case[key] for key in ["gamma", "lambda", "critic_lambda"])
    short_values, short_mask = replies.without_tools(values)
    short_rewards, _ = replies.without_tools(rewards)

    def returns(lam):
        verl = core_algos.compute_gae_advantage_return(rewards, values, replies.mask, gamma, lam)[1]
        _, own = openrlhf.maker.get_advantages_and_returns(None, short_values, short_rewards, short_mask, gamma, lam)
        own = torch.where(replies.mask > 0, replies.with_tools(own), values)
        verl = torch.where(replies.mask > 0, verl, values)
        return {"verl compute_gae_advantage_return": replies.flat(verl, "values"),
                "OpenRLHF get_advantages_and_returns": replies.flat(own, "values")}

    out.put(f"slots/{name}/returns", returns(decay))
    out.put(f"slots/{name}/critic_returns", returns(critic))
    out.put(f"slots/{name}/advantages", {peer: own - replies.flat(values, "values") for peer, own in returns(decay).items()})
    whitened, to_go = core_algos.compute_reinforce_plus_plus_outcome_advantage(
        rewards, replies.mask, config=SimpleNamespace(gamma=gamma))
    own = openrlhf.maker.get_cumulative_returns(None, short_rewards, short_mask, gamma)
    out.put(f"slots/{name}/to_go", {
        "verl compute_reinforce_plus_plus_outcome_advantage": replies.flat(to_go),
        "OpenRLHF get_cumulative_returns": replies.flat(replies.with_tools(own))})
    if name == "eos":
        out.put("whitened/verl", {"verl compute_reinforce_plus_plus_outcome_advantage": replies.flat(whitened)})
        experience = SimpleNamespace(index=list(range(len(replies.kept))), rewards=replies.numbers("scores"),
                                     kl=replies.without_tools(kl)[0], action_mask=short_mask, info={})
        maker = experience_maker("reinforce", gamma=gamma, kl_coef=case["kl_coef"])
        openrlhf.maker.compute_advantages_and_returns(maker, [experience])
        own = replies.with_tools(experience.advantages)
        out.put("whitened/openrlhf", {"OpenRLHF compute_advantages_and_returns": replies.flat(own)})


# --- Advantages of replies ---


def put_replies(out, case, rules):
    replies = Replies(case)
    grpo, rloo = core_algos.compute_grpo_outcome_advantage, core_algos.compute_rloo_outcome_advantage
    of_group, unscaled = {"norm_adv_by_std_in_grpo": True}, {"norm_adv_by_std_in_grpo": False}

    def put(name, function=None, trl=None, own=None, scale=None, **settings):
        rewards, peers = replies.numbers(rules[name]["totals"]), {}
        if function is not None:
            rows = verl_advantages(function, replies, rewards, **settings)
            peers[f"verl {function.__name__}"] = replies.by_reply(rows.sum(dim=1) / replies.mask.sum(dim=1))
        if trl is not None:
            found = trl_advantages(replies, rewards, trl, **({} if scale is None else {"scale_rewards": scale}))
            peers[f"TRL {trl.__name__}._generate_and_score_completions"] = replies.by_reply(found)
        if own is not None:
            found = openrlhf_advantages(replies, rewards, own)
            peers["OpenRLHF compute_advantages_and_returns"] = replies.by_reply(found)
        out.put(f"replies/{name}", peers)

    put("grpo_trl", grpo, GRPOTrainer, scale="group", epsilon=1e-4, **of_group)
    put("grpo_verl", grpo, epsilon=1e-6, **of_group)
    put("grpo_openrlhf", grpo, own="group_norm", epsilon=1e-9, **of_group)
    put("grpo_batch", trl=GRPOTrainer, scale="batch")
    put("dr_grpo", grpo, GRPOTrainer, "dr_grpo", scale="none", **unscaled)
    put("rloo", rloo, RLOOTrainer, "rloo")
    # What verl and OpenRLHF whiten.
    put("reinforce_plus_plus_baseline", grpo, own="dr_grpo", **unscaled)
    put("opo", core_algos.compute_opo_outcome_advantage)
    best = core_algos.compute_grpo_passk_outcome_advantage
    put("pass_at_k", best, epsilon=1e-6, config=of_group)
    put("pass_at_k_unscaled", best, epsilon=1e-6, config=unscaled)
    put_pass_at_k(out, replies, rules)

    last = torch.zeros_like(replies.mask)
    last[torch.arange(len(last)), last.shape[1] - 1 - replies.mask.flip(1).argmax(dim=1)] = replies.numbers("scores")
    remax, _ = core_algos.compute_remax_outcome_advantage(last, replies.numbers("greedy"), replies.mask)
    # verl gives a token of a tool the reward-to-go, too, but for those after the last token of the policy.
    remax = (remax * replies.mask).sum(dim=1) / replies.mask.sum(dim=1)
    out.put("replies/remax", {"verl compute_remax_outcome_advantage": replies.by_reply(remax)})

    successes = replies.numbers("successes")
    distance = verl_advantages(grpo, replies, successes, **unscaled).sum(dim=1) / replies.mask.sum(dim=1)
    means = torch.ones(len(replies.kept))
    for rows in replies.groups().values():
        means[rows] = successes[rows].mean()
    for name in ["maxrl", "maxrl_epsilon"]:
        found = torch.where(means > 0, distance / (means + rules[name]["epsilon"]), 0.0)
        out.put(f"replies/{name}", {"verl compute_grpo_outcome_advantage, divided by torch mean": replies.by_reply(found)})

    rewards = replies.numbers("scores")
    rows = verl_advantages(grpo, replies, rewards, epsilon=1e-4, **of_group)
    out.put("tokens/grpo", {"verl compute_grpo_outcome_advantage": replies.flat(rows)})
    put_whitened_baseline(out, replies, rewards)
    equal = [number for number, rows in replies.groups().items() if len(rows) < 2 or trl_rollout(
        GRPOTrainer, rewards[rows], [1] * len(rows), num_generations=len(rows)).metrics["frac_reward_zero_std"] == [1.0]]
    out.put("groups/zero_variance", {f"{TRL_ROLLOUT}, frac_reward_zero_std": equal})


def put_pass_at_k(out, replies, rules):
    """Of a rule that verl does not have: scaled by the batch, or with a k below the number of replies."""
    best, rewards = core_algos.compute_grpo_passk_outcome_advantage, replies.numbers("scores")

    def gains(k):
        total, choices = torch.zeros_like(rewards), torch.zeros_like(rewards)
        for rows in replies.groups().values():
            for chosen in itertools.combinations(rows, min(k, len(rows))) if len(rows) > 1 else []:
                chosen, one = list(chosen), torch.ones(min(k, len(rows)), 1)
                found, _ = best(rewards[chosen, None], one, numpy.zeros(len(one)), config={"norm_adv_by_std_in_grpo": False})
                total[chosen] += found[:, 0]
                choices[chosen] += 1
        return total / choices.clamp(min=1)

    peer = f"verl {best.__name__}"
    for name in ["pass_at_2", "pass_at_3"]:
        out.put(f"replies/{name}", {peer: replies.by_reply(gains(rules[name]["pass_k"]))})
    rule = rules["pass_at_k_batch"]
    scaled = gains(rule["pass_k"]) / (rewards.std() + rule["epsilon"])
    out.put("replies/pass_at_k_batch", {f"{peer}, torch std": replies.by_reply(scaled)})


def put_whitened_baseline(out, replies, rewards):
    """verl whitens inside, and a group of one would have its reward as the advantage: its reward is 0 here."""
    alone = [rows[0] for rows in replies.groups().values() if len(rows) == 1]
    rewards = rewards.clone()
    rewards[alone] = 0.0
    token_rewards = torch.zeros_like(replies.mask)
    token_rewards[:, 0] = rewards
    index = numpy.array([replies.case["groups"][reply] for reply in replies.kept])
    found, _ = core_algos.compute_reinforce_plus_plus_baseline_outcome_advantage(token_rewards, replies.mask, index)
    out.put("tokens/reinforce_plus_plus_baseline",
            {"verl compute_reinforce_plus_plus_baseline_outcome_advantage": replies.flat(found)})


# --- Reductions and losses ---


def put_policy(out, case):
    replies = Replies(case)
    advantages = replies.numbers("advantages")
    rows = advantages[:, None].expand_as(replies.mask)
    for reduction, loss_type in TRL_LOSSES.items():
        weights = put_weights(out, case, reduction)
        for name, rule in case["rules"].items():
            kind, peers = rule["kind"], {}
            if kind == "gmpo":
                plain = {"low": rule["low"], "high": rule["high"]}
                verl = lambda one, own: verl_loss(rule, one, own[:, None].expand_as(one.mask), "token_mean")
                trl = lambda one, own: trl_loss(one, own, None, GMPOTrainer, **plain)
                names = "verl compute_policy_loss_geo_mean", "TRL GMPOTrainer._compute_loss"
                for peer, loss in zip(names, [verl, trl]):
                    peers[f"{peer} of single replies"] = of_single_replies(loss, replies, advantages, weights)
                    if reduction == "seq_mean_token_mean":
                        peers[peer] = loss(replies, advantages)
            else:
                peers[f"verl {VERL_LOSSES[kind].__name__}"] = verl_loss(rule, replies, rows, reduction)
            if kind in ("clip", "gspo"):
                level = "token" if kind == "clip" else "sequence"
                peers[TRL_LOSS] = trl_loss(
                    replies, advantages, loss_type, importance_sampling_level=level, delta=rule.get("dual"), low=rule["low"],
                    high=rule["high"])
            if (kind, reduction) in [("sapo", "seq_mean_token_mean"), ("cispo", "token_mean")]:
                peers[TRL_LOSS] = trl_loss(
                    replies, advantages, kind, high=1 + rule["high"], sapo=rule.get("sapo", [1.0, 1.0]))
            if kind == "clip" and reduction in ("token_mean", "seq_mean_token_mean") or (
                    kind == "gspo" and reduction == "seq_mean_token_mean"):
                peers["OpenRLHF PolicyLoss"] = openrlhf_loss(rule, replies, rows, reduction)
            out.put(f"policy/{name}/{reduction}/loss", {peer: found[0] for peer, found in peers.items()})
            out.put(f"policy/{name}/{reduction}/gradient", {peer: replies.flat(found[1]) for peer, found in peers.items()})
    put_clipped(out, replies, advantages, rows)
    put_corrected_and_combined(out, replies, advantages, rows)


def put_weights(out, case, reduction):
    """The derivatives of verl's reduction: of the whole mini-batch, and of its first replies by the counts of the whole."""
    whole = Replies(case)
    part = Replies({key: value[:case["part"]] if isinstance(value, list) else value for key, value in case.items()})
    counts = {"batch_num_tokens": whole.mask.sum(), "global_batch_size": len(whole.kept)}

    def derivatives(replies, loss):
        losses = torch.zeros_like(replies.mask, requires_grad=True)
        loss(losses, replies.mask).backward()
        return losses.grad

    def verl(replies):
        options = dict(loss_agg_mode=VERL_MODES[reduction], loss_scale_factor=case["norm"], **counts)
        return derivatives(replies, lambda losses, mask: core_algos.agg_loss(losses, mask, **options))

    def own(replies):
        by_token = reduction == "token_mean"
        return derivatives(replies, lambda losses, mask: openrlhf.loss.aggregate_loss(losses, mask, by_token, **counts))

    for name, replies in [("whole", whole), ("part", part)]:
        peers = {"verl agg_loss": replies.flat(verl(replies))}
        if reduction in ("token_mean", "seq_mean_token_mean"):
            peers["OpenRLHF aggregate_loss"] = replies.flat(own(replies))
        out.put(f"weights/{reduction}/{name}", peers)
    return verl(whole)


def put_clipped(out, replies, advantages, rows):
    """How many tokens a loss stops. TRL counts both sides of some losses, verl all tokens of the others."""
    tokens = replies.mask.sum()
    for name in ["clip", "clip_higher", "clip_dual", "gspo", "cispo", "cispo_tight", "gmpo", "dppo_tv", "dppo_kl"]:
        rule = replies.case["rules"][name]
        metrics = verl_loss(rule, replies, rows, "token_mean")[2]
        both = {f"verl {VERL_LOSSES[rule['kind']].__name__}": metrics["actor/pg_clipfrac"]}
        if rule["kind"] in ("clip", "gmpo"):
            trainer = GMPOTrainer if rule["kind"] == "gmpo" else GRPOTrainer
            metrics = trl_loss(replies, advantages, "bnpo", trainer, low=rule["low"], high=rule["high"])[2]
            peer = f"TRL {trainer.__name__}._compute_loss"
            for side in ["low", "high"]:
                out.put(f"clipped/{name}/{side}", {peer: tokens * metrics[f"clip_ratio/{side}_mean"][0]})
            region = {peer: metrics["clip_ratio/region_mean"][0]}
            both = region if rule["kind"] == "gmpo" else both | region
        out.put(f"clipped/{name}/both", {peer: tokens * share for peer, share in both.items()})


def put_corrected_and_combined(out, replies, advantages, rows):
    case, rule, correction = replies.case, replies.case["rules"]["clip"], replies.padded("correction")
    verl = verl_loss(rule, replies, rows, "token_mean", correction)
    trl = trl_loss(replies, advantages, "bnpo", ratio=correction)
    peers = {"verl compute_policy_loss_vanilla": verl, TRL_LOSS: trl}
    out.put("policy/clip_corrected/loss", {peer: found[0] for peer, found in peers.items()})
    out.put("policy/clip_corrected/gradient", {peer: replies.flat(found[1]) for peer, found in peers.items()})

    new, entropy = replies.padded("logprobs", grad=True), replies.padded("entropy", grad=True)
    loss, _ = core_algos.compute_policy_loss_vanilla(
        replies.padded("old"), new, rows, replies.mask, "token-mean", verl_config(rule, case["norm"]), correction)
    kl = core_algos.agg_loss(core_algos.kl_penalty(new, replies.padded("reference"), "k3+"), replies.mask, "token-mean")
    bonus = core_algos.agg_loss(entropy, replies.mask, "token-mean")
    loss = loss + case["combined"]["kl_coef"] * kl - case["combined"]["entropy_coef"] * bonus
    loss.backward()
    for name, numbers in {"loss": loss, "gradient": replies.flat(new.grad), "entropy_gradient": replies.flat(entropy.grad),
                          "mean_kl": kl}.items():
        out.put(f"policy/combined/{name}", {"verl compute_policy_loss_vanilla, kl_penalty, agg_loss": numbers})


def put_extreme(out, case):
    """Each token is a batch of its own."""
    for name, rule in case["rules"].items():
        losses, gradients = [], []
        for place in range(len(case["logprobs"])):
            one = Replies({"lengths": [1], "mask": [[1]], "excluded": [0], "norm": 1,
                           **{key: [[case[key][place]]] for key in ["logprobs", "old"]}})
            loss, gradient, _ = verl_loss(rule, one, tensor([[case["advantages"][place]]]), "token_mean")
            losses.append(loss)
            gradients.append(gradient.flatten())
        peer = f"verl {VERL_LOSSES[rule['kind']].__name__}"
        out.put(f"extreme/{name}/loss", {peer: torch.stack(losses)})
        out.put(f"extreme/{name}/gradient", {peer: torch.cat(gradients)})


# --- KL in the loss ---


def put_kl(out, place, case, clamp):
    for estimator in ["k1", "k2", "k3", "abs"]:
        for straight in [False, True]:
            for importance in [False, True]:
                peers = kl_loss(case, clamp, place == "kl", estimator, straight, importance)
                name = ("straight_through" if straight else "direct") + ("_importance" if importance else "")
                for index, key in enumerate(["values", "gradient"]):
                    known = {peer: found[index] for peer, found in peers.items() if found[index] is not None}
                    out.put(f"{place}/{estimator}/{name}/{key}", known)


def kl_loss(case, clamp, is_within, estimator, straight, importance):
    """Values and gradients of peers. A difference beyond the clamp is clamped before a peer gets it."""
    reference, old = tensor(case["reference"]), tensor(case["old"])

    def of(function):
        new = tensor(case["logprobs"], requires_grad=True)
        values = function(reference + (new - reference).clamp(-clamp, clamp))
        if importance:
            ratio = (new - old).exp()
            values = values * (ratio.detach() if straight else ratio)
        return values.detach(), *torch.autograd.grad(values.sum(), new)

    plus = "+" if straight and estimator != "k2" else ""
    verl = lambda new: core_algos.kl_penalty(new, reference, estimator + plus)
    own = lambda new: openrlhf.utils.compute_approx_kl(new, reference, None, estimator, straight)
    if estimator == "k3" and not is_within:
        peers = {"torch": of(lambda new: own_k3(new, reference, straight))}
    else:
        peers = {"verl kl_penalty": of(verl)}
    if is_within and estimator != "abs" and not importance:
        peers["OpenRLHF compute_approx_kl"] = of(own)
    if is_within and estimator != "abs" and importance and straight:
        new = tensor(case["logprobs"], requires_grad=True)
        openrlhf.utils.compute_approx_kl(new, reference, old, estimator, True).sum().backward()
        peers["OpenRLHF compute_approx_kl"] = None, new.grad
    if estimator == "k3" and not straight:
        values, gradient = trl_kl(case, clamp, importance)
        peers[TRL_LOSS] = values, gradient if is_within else None
    return peers


def trl_kl(case, clamp, importance):
    """k3 of each token, from TRL's loss with advantages of 0."""
    found = []
    for new, other, old in zip(case["logprobs"], case["reference"], case["old"]):
        limited = max(-clamp, min(clamp, new - other))
        one = Replies({"lengths": [1], "mask": [[1]], "excluded": [0], "norm": 1, "logprobs": [[new]], "old": [[old]],
                       "reference": [[new - limited]]})
        loss, slope, _ = trl_loss(one, torch.zeros(1), "bnpo", beta=1.0, use_bias_correction_kl=importance)
        found.append((loss, slope.flatten()[0]))
    return [torch.stack(column) for column in zip(*found)]


def own_k3(new, reference, straight):
    difference = new - reference
    values, square = (-difference).exp() - 1 + difference, difference.square() / 2
    return values.detach() + square - square.detach() if straight else values


# --- Corrections, overlong replies, entropy ---


def put_corrections(out, case):
    replies = Replies(case)
    current, sampler, mask = (replies.padded(key) for key in ["current", "sampler", "mask"])
    tokens, count, ratios = mask.sum(), len(replies.kept), current - sampler
    weigh = rollout_corr_helper.compute_rollout_correction_weights
    weights_by, off_policy_by = "verl compute_rollout_correction_weights", "verl compute_offpolicy_metrics"
    raw = {level: weigh(ratios, mask, level, 1e9) for level in ["token", "sequence"]}
    off_policy = rollout_corr_helper.compute_offpolicy_metrics(current, sampler, mask)

    def trl(mode, low, high):
        found = trl_rollout(
            GRPOTrainer, torch.zeros(count), [case["lengths"][reply] for reply in replies.kept], old=current, sampler=sampler,
            mask=mask, num_generations=1, vllm_importance_sampling_mode=mode, vllm_importance_sampling_clip_min=low,
            vllm_importance_sampling_clip_max=high)
        return replies.flat(found.importance_sampling_ratio * mask)

    for name, rule in case["rules"].items():
        level, low, high = name.split("_")[0], rule["low"], rule["high"]
        before = raw["sequence" if level == "sequence" else "token"][0]
        if name == "off":
            weights, before, peers = mask, mask, {"the mask": replies.flat(mask)}
        elif name == "geometric_mask":
            kept, metrics = rollout_corr_helper.compute_rollout_rejection_mask(
                ratios, mask, "seq_mean_k1", f"{1 / high}_{1 / low}")
            weights = before * kept
            own, filtered = openrlhf_weights(replies, "seq", "mask", low, high)
            torch.testing.assert_close(filtered.item(), metrics["rollout_rs_seq_masked_fraction"])
            peers = {"verl compute_rollout_rejection_mask": replies.flat(weights), "OpenRLHF PolicyLoss": own}
        else:
            is_mask = name.endswith("mask")
            weights, _ = weigh(ratios, mask, level, f"{low}_{high}" if is_mask else high)
            peers = {weights_by: replies.flat(weights), TRL_ROLLOUT: trl(name, low if is_mask else None, high)}
            if level == "token":
                own, filtered = openrlhf_weights(replies, level, "mask" if is_mask else "clip", low, high)
                torch.testing.assert_close(filtered * tokens, (weights != before).double().sum())
                peers["OpenRLHF PolicyLoss"] = own
        changed = (weights != before) & (mask > 0)
        for key, made_by in {
            "weights": peers,
            "cut": {list(peers)[0]: changed.sum()},
            "replies_cut": {list(peers)[0]: changed.any(dim=1).sum()},
            "tokens": {off_policy_by: tokens},
            "ratio": {weights_by: tokens * raw["token"][1]["rollout_is_mean"]},
            "ratio_max": {weights_by: raw["token"][1]["rollout_is_max"]},
            "kl": {off_policy_by: tokens * off_policy["k3_kl"]},
        }.items():
            out.put(f"correction/{name}/{key}", made_by)


def put_overlong(out, case):
    soft = get_soft_overlong_punishment(case["max_new_tokens"], case["buffer"])
    trl = case["penalty"] * tensor(soft([[1] * length for length in case["lengths"]]))
    experience = SimpleNamespace(response_length=tensor(case["lengths"]), rewards=torch.zeros(len(case["lengths"])))
    openrlhf.length_penalty.apply_overlong_penalty([experience], case["max_new_tokens"], case["buffer"], case["penalty"])
    peers = {"TRL get_soft_overlong_punishment": trl, "OpenRLHF apply_overlong_penalty": experience.rewards}
    out.put("overlong/penalty", peers)


def put_entropy(out, case):
    mine = trl_trainer(
        loss_type="bnpo", epsilon_low=0.2, epsilon_high=0.2, _entropy_bonus_enabled=True, use_adaptive_entropy=True,
        entropy_coef=case["coefficient"], _last_world_entropy=float("inf"), _entropy_window_stats=None,
        entropy_target=case["target"], entropy_coef_delta=case["delta"])
    mine.args.entropy_coef_min, mine.args.entropy_coef_max = 0.0, 1.0
    ones, coefficients, applied = torch.ones(1, 1), [], []
    for measured in case["measured"] + [0.0]:
        entropy, new = tensor([[measured]], requires_grad=True), torch.zeros(1, 1, requires_grad=True)
        mine._get_per_token_logps_and_entropies = lambda *_, **__: (new, entropy, None)
        inputs = {"prompt_ids": ones, "prompt_mask": ones, "completion_ids": ones, "completion_mask": ones,
                  "advantages": torch.zeros(1)}
        GRPOTrainer._compute_loss(mine, None, inputs).backward()
        coefficients.append(mine.entropy_coef)
        applied.append(-entropy.grad.item())
    # The last step only shows what was applied after the last measured one, and the first applies nothing.
    out.put("entropy/coefficient", {f"{TRL_LOSS}, use_adaptive_entropy": coefficients[:-1]})
    out.put("entropy/applied", {f"{TRL_LOSS}, use_adaptive_entropy": applied[1:]})


def main():
    inputs = json.loads((HERE / "groups_inputs.json").read_text())
    out = Values()
    put_slots(out, "eos", inputs["rollout"])
    put_slots(out, "after_eos", with_slot_after_end(inputs["rollout"]))
    put_replies(out, inputs["rollout"], inputs["group_rules"])
    put_policy(out, inputs["policy"])
    put_extreme(out, inputs["extreme"])
    put_kl(out, "kl", inputs["kl"], inputs["kl"]["clamp"])
    put_kl(out, "kl_beyond", inputs["kl"]["beyond"], inputs["kl"]["clamp"])
    put_corrections(out, inputs["correction"])
    put_overlong(out, inputs["overlong"])
    put_entropy(out, inputs["entropy"])
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    versions |= {name: importlib.metadata.version(name) for name in ["transformers", "trl", "verl", "openrlhf"]}
    print(versions)
    document = {"producer": "groups_peers.py", "versions": versions, "made_by": out.made_by, "values": out.values}
    (HERE / "groups_peers.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
