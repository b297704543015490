"""How groups_peers.py calls the functions of verl, TRL and OpenRLHF: stand-ins for their trainers, configurations and models.

Replies are padded on the right, as the peers have them, and go back to flat vectors. groups_peers.py documents what is changed
in the peers, and where their conventions are not ours.
"""

import importlib.util
import os
import sys
import types
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import numpy
import torch
import verl.utils.torch_functional as verl_functional
from trl.trainer.grpo_trainer import GRPOTrainer
from verl.trainer.ppo import core_algos
from verl.workers.config import ActorConfig

VERL_MODES = {
    "token_mean": "token-mean", "seq_mean_token_mean": "seq-mean-token-mean",
    "seq_mean_token_sum": "seq-mean-token-sum", "seq_mean_token_sum_norm": "seq-mean-token-sum-norm",
}
NO_DUAL_CLIP = 1e30

torch.set_default_dtype(torch.float64)
torch.Tensor.float = torch.Tensor.double
tensor = torch.tensor


def without_count_epsilon(function):
    constants = tuple(0.0 if constant == 1e-8 else constant for constant in function.__code__.co_consts)
    assert constants != function.__code__.co_consts, function
    function.__code__ = function.__code__.replace(co_consts=constants)


def load_openrlhf():
    """Its modules of mathematics, without the packages around them."""
    place = Path(importlib.util.find_spec("openrlhf").origin).parent
    for name in ["", ".models", ".trainer", ".trainer.ppo_utils", ".trainer.ray", ".utils"]:
        package = types.ModuleType(f"openrlhf{name}")
        package.__path__ = [str(place / name.strip(".").replace(".", "/"))]
        sys.modules[package.__name__] = package
    sys.modules["deepspeed"] = types.ModuleType("deepspeed")
    sys.modules["openrlhf.trainer.ray.launcher"] = SimpleNamespace(RayActorGroup=None)
    from openrlhf.models import loss, utils
    from openrlhf.trainer.ppo_utils import experience_maker, length_penalty
    return SimpleNamespace(loss=loss, utils=utils, maker=experience_maker.RemoteExperienceMaker, length_penalty=length_penalty)


openrlhf = load_openrlhf()
for function in [verl_functional.masked_mean, core_algos.agg_loss, core_algos.compute_policy_loss_geo_mean,
                 openrlhf.loss.aggregate_loss]:
    without_count_epsilon(function)


class Values:
    """Values by name, with the functions that made them."""

    def __init__(self):
        self.values, self.made_by = {}, {}

    def put(self, name, peers):
        """One value, from functions of peers that must agree: numbers by the name of the function."""
        stored = None
        for peer, numbers in peers.items():
            numbers = torch.as_tensor(numbers, dtype=torch.float64).detach().flatten()
            stored = numbers if stored is None else stored
            explain = lambda text: f"{name}: {peer} differs from {list(peers)[0]}. {text}"
            torch.testing.assert_close(numbers, stored, rtol=1e-12, atol=1e-12, msg=explain)
        assert name not in self.values and torch.isfinite(stored).all(), name
        self.values[name] = stored.tolist()
        self.made_by[name] = list(peers)


class Replies:
    """The scored replies of a case, padded on the right."""

    def __init__(self, case):
        self.case, self.lengths = case, case["lengths"]
        self.kept = [reply for reply, is_excluded in enumerate(case["excluded"]) if not is_excluded]
        self.mask = self.padded("mask")

    def padded(self, key, grad=False):
        rows = self.case[key] if isinstance(key, str) else key
        width = max(self.lengths)
        rows = [[float(number) for number in rows[reply]] + [0.0] * (width - self.lengths[reply]) for reply in self.kept]
        return tensor(rows, requires_grad=grad)

    def numbers(self, key):
        return tensor([float(self.case[key][reply]) for reply in self.kept])

    def flat(self, rows, unscored=None):
        """Of all replies; those without a score have 0, or the numbers of a key."""
        rows_of = lambda length, reply: torch.zeros(length) if unscored is None else tensor(self.case[unscored][reply])
        out = [rows_of(length, reply) for reply, length in enumerate(self.lengths)]
        for row, reply in zip(rows, self.kept):
            out[reply] = row.detach()[:self.lengths[reply]]
        return torch.cat(out)

    def by_reply(self, numbers):
        out = torch.zeros(len(self.lengths))
        out[self.kept] = numbers
        return out

    def groups(self):
        members = defaultdict(list)
        for row, reply in enumerate(self.kept):
            members[self.case["groups"][reply]].append(row)
        return {number: members[number] for number in sorted(members)}

    def without_tools(self, rows):
        """The rows with the tokens of tools taken out, and the mask of what is left."""
        counts = self.mask.sum(dim=1).long()
        out, left = torch.zeros_like(rows), torch.zeros_like(rows)
        for row, count in enumerate(counts):
            out[row, :count] = rows[row][self.mask[row] > 0]
            left[row, :count] = 1.0
        return out, left

    def with_tools(self, rows):
        out = torch.zeros_like(rows)
        for row, mask in enumerate(self.mask):
            out[row, mask > 0] = rows[row, :int(mask.sum())]
        return out


def experience_maker(estimator, samples=1, gamma=1.0, kl_coef=0.0):
    advantage = SimpleNamespace(estimator=estimator, gamma=gamma, lambd=1.0, no_std_norm=False)
    args = SimpleNamespace(algo=SimpleNamespace(advantage=advantage), reward=SimpleNamespace(clip_range=None),
                           rollout=SimpleNamespace(n_samples_per_prompt=samples))
    maker = SimpleNamespace(strategy=SimpleNamespace(args=args), advantage_estimator=estimator,
                            kl_ctl=SimpleNamespace(value=kl_coef))
    maker.get_cumulative_returns = lambda *args: openrlhf.maker.get_cumulative_returns(maker, *args)
    return maker


def trl_trainer(**settings):
    accelerator = SimpleNamespace(
        device=torch.device("cpu"), gather=lambda x: x, gather_for_metrics=lambda x: x, reduce=lambda x, reduction: x,
        process_index=0, num_processes=1, sync_gradients=True, is_main_process=False)
    args = dict(steps_per_generation=1, per_device_train_batch_size=1, gradient_accumulation_steps=1, delta=None,
                gradient_checkpointing_kwargs=None, use_bias_correction_kl=False, entropy_coef_delta=0.0, entropy_target=0.0)
    attributes = dict(
        accelerator=accelerator, model=SimpleNamespace(training=True, is_gradient_checkpointing=False), beta=0.0,
        environment_factories=None, environments=None, tools=None, pad_to_multiple_of=None, use_vllm=False,
        vllm_importance_sampling_correction=False, _tokenizer=SimpleNamespace(pad_token_id=0), num_iterations=1,
        mask_truncated_completions=False, reward_func_names=["reward"], reward_funcs=[None], reward_weights=torch.ones(1),
        multi_objective_aggregation="sum_then_normalize", scale_rewards="group", reward_clip_range=None,
        normalize_advantages=False, _pending_extra_logs={}, _pending_metrics={}, log_multimodal=False, ref_model=None,
        _logs=defaultdict(list, {key: defaultdict(list) for key in ["rewards", "extra"]}),
        _metrics={"train": defaultdict(list)},
        aux_loss_enabled=False, top_entropy_quantile=1.0, off_policy_mask_threshold=None, importance_sampling_level="token",
        current_gradient_accumulation_steps=1, _entropy_bonus_enabled=False, use_adaptive_entropy=False)
    args.update({key: settings.pop(key) for key in list(settings) if key in args or key.startswith("sapo_")})
    return SimpleNamespace(args=SimpleNamespace(**args), **{**attributes, **settings})


def trl_rollout(trainer_class, rewards, lengths, old=None, sampler=None, mask=None, **settings):
    """TRL's scoring of a rollout: advantages, and importance weights of what sampled it."""
    ids = [[1] * length for length in lengths]
    rows = None if sampler is None else [row.tolist()[:length] for row, length in zip(sampler, lengths)]
    tools = None if mask is None else [row.long().tolist()[:length] for row, length in zip(mask, lengths)]
    mine = trl_trainer(use_vllm=sampler is not None, vllm_importance_sampling_correction=sampler is not None, **settings)
    mine._calculate_rewards = lambda *_: rewards[:, None]
    mine._get_per_token_logps_and_entropies = lambda *_, **__: (
        torch.zeros(len(lengths), max(lengths)) if old is None else old, None, None)
    generated = (ids, ids, tools, ids, rows, None, None, None)
    mine._generate = lambda _: generated if trainer_class is GRPOTrainer else (ids, ids, ids)
    found = trainer_class._generate_and_score_completions(mine, [{"prompt": ""}] * len(lengths))
    return SimpleNamespace(metrics=mine._metrics["train"], **found)


def trl_loss(replies, advantages, loss_type, trainer_class=GRPOTrainer, ratio=None, **settings):
    """The loss of TRL, its gradient, and its metrics."""
    new = replies.padded("logprobs", grad=True)
    sapo = settings.pop("sapo", [1.0, 1.0])
    mine = trl_trainer(
        loss_type=loss_type, epsilon_low=settings.pop("low", 0.2), epsilon_high=settings.pop("high", 0.2),
        max_completion_length=replies.case.get("norm"), use_vllm=ratio is not None,
        vllm_importance_sampling_correction=ratio is not None, sapo_temperature_pos=tensor(sapo[0]),
        sapo_temperature_neg=tensor(sapo[1]), **settings)
    mine._get_per_token_logps_and_entropies = lambda *_, **__: (new, torch.zeros_like(new), None)
    ids = torch.zeros_like(replies.mask)
    inputs = {
        "prompt_ids": ids[:, :1], "prompt_mask": ids[:, :1], "completion_ids": ids, "completion_mask": torch.ones_like(ids),
        "tool_mask": replies.mask, "advantages": advantages, "old_per_token_logps": replies.padded("old"),
        "ref_per_token_logps": replies.padded("reference"), "importance_sampling_ratio": ratio,
        "num_items_in_batch": replies.mask.sum(),
    }
    loss = trainer_class._compute_loss(mine, None, inputs)
    loss.backward()
    return loss.detach(), new.grad, mine._metrics["train"]


def trl_advantages(replies, rewards, trainer_class, **settings):
    """Groups of one size, filled up with replies that no reward function could score."""
    groups = list(replies.groups().values())
    size = max(map(len, groups))
    filled = torch.full((len(groups) * size,), torch.nan)
    places = {row: group * size + place for group, rows in enumerate(groups) for place, row in enumerate(rows)}
    for row, place in places.items():
        filled[place] = rewards[row]
    found = trl_rollout(trainer_class, filled, [1] * len(filled), num_generations=size, **settings)
    return torch.stack([found.advantages[places[row]] for row in range(len(replies.kept))])


def openrlhf_advantages(replies, rewards, estimator):
    out = torch.zeros(len(replies.kept))
    for rows in replies.groups().values():
        if len(rows) > 1:
            zeros = torch.zeros(len(rows), 1)
            experience = SimpleNamespace(index=list(range(len(rows))), rewards=rewards[rows], kl=zeros,
                                         action_mask=torch.ones_like(zeros), info={})
            openrlhf.maker.compute_advantages_and_returns(experience_maker(estimator, len(rows)), [experience])
            out[rows] = experience.advantages[:, 0]
    return out


def verl_advantages(function, replies, rewards, **settings):
    """Of the replies of groups of two and more: the advantages of their tokens."""
    compared = [row for rows in replies.groups().values() if len(rows) > 1 for row in rows]
    mask = replies.mask[compared]
    last = mask.shape[1] - 1 - mask.flip(1).argmax(dim=1)
    token_rewards = torch.zeros_like(mask)
    token_rewards[torch.arange(len(compared)), last] = rewards[compared]
    index = numpy.array([replies.case["groups"][replies.kept[row]] for row in compared])
    found, _ = function(token_level_rewards=token_rewards, response_mask=mask, index=index, **settings)
    out = torch.zeros_like(replies.mask)
    out[compared] = found
    return out


def verl_config(rule, norm, **counts):
    """counts: those of the mini-batch; without them, of the batch at hand."""
    config = ActorConfig(
        strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, clip_ratio=rule["low"], clip_ratio_low=rule["low"],
        clip_ratio_high=rule["high"], clip_ratio_c=rule.get("dual", NO_DUAL_CLIP),
        **dict(zip(["tau_pos", "tau_neg"], rule.get("sapo", []))))
    # The mini-batch is a field that the trainer fills in.
    object.__setattr__(config, "global_batch_info", {"loss_scale_factor": norm, **counts})
    return config


VERL_LOSSES = {
    "clip": core_algos.compute_policy_loss_vanilla, "gspo": core_algos.compute_policy_loss_gspo,
    "cispo": core_algos.compute_policy_loss_cispo, "gmpo": core_algos.compute_policy_loss_geo_mean,
    "sapo": core_algos.compute_policy_loss_sapo, "dppo_tv": core_algos.compute_policy_loss_dppo_tv,
    "dppo_kl": core_algos.compute_policy_loss_dppo_kl, "gpg": core_algos.compute_policy_loss_gpg,
}


def verl_loss(rule, replies, advantages, reduction, correction=None):
    """The loss of verl, its gradient, and its metrics."""
    new, mode, agg_loss = replies.padded("logprobs", grad=True), VERL_MODES[reduction], core_algos.agg_loss
    if rule["kind"] == "sapo":
        core_algos.agg_loss = lambda loss_agg_mode, **rest: agg_loss(loss_agg_mode=mode, **rest)
    loss, metrics = VERL_LOSSES[rule["kind"]](
        replies.padded("old"), new, advantages, replies.mask, mode, verl_config(rule, replies.case.get("norm")), correction)
    core_algos.agg_loss = agg_loss
    loss.backward()
    return loss.detach(), new.grad, metrics


def openrlhf_loss(rule, replies, advantages, reduction):
    kind = {"clip": "ppo", "gspo": "gspo"}[rule["kind"]]
    new = replies.padded("logprobs", grad=True)
    module = openrlhf.loss.PolicyLoss(
        rule["low"], rule["high"], rule.get("dual"), token_level_loss=reduction == "token_mean", policy_loss_type=kind)
    loss = module(new, replies.padded("old"), advantages, replies.mask)[0]
    loss.backward()
    return loss.detach(), new.grad


def single(replies, row):
    """A case of one reply."""
    reply = replies.kept[row]
    return Replies({key: [value[reply]] if isinstance(value, list) else value for key, value in replies.case.items()})


def of_single_replies(loss, replies, advantages, weights):
    """The sum of the losses of single replies, each with the sum of the weights of its tokens."""
    total, gradient = tensor(0.0), torch.zeros_like(replies.mask)
    for row, weight in enumerate(weights.sum(dim=1)):
        own, slopes = loss(single(replies, row), advantages[row:row + 1])[:2]
        total += weight * own
        gradient[row, :slopes.shape[1]] = weight * slopes[0]
    return total, gradient


def openrlhf_weights(replies, level, mode, low, high):
    """The weights of OpenRLHF, as derivatives of its loss with respect to the advantages at ratio 1."""
    advantages = torch.zeros_like(replies.mask, requires_grad=True)
    current, sampler = replies.padded("current"), replies.padded("sampler")
    module = openrlhf.loss.PolicyLoss(is_correction_level=level, is_correction_mode=mode, is_correction_threshold=[low, high])
    loss, *_, filtered = module(current, current, advantages, replies.mask, sampler, batch_num_tokens=1)
    loss.backward()
    return replies.flat(-advantages.grad), filtered
