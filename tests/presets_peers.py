"""The presets of `grpo` beside the programs and papers that they are named after, on one rollout of ours: the loss, the norm of
the gradient and the change of the weights of two optimizer steps must agree.

    pip install torch==2.11.0 transformers==5.23.0 trl==1.16.0 accelerate==1.15.0 datasets==5.2.0 tokenizers peft tensordict \\
        codetiming omegaconf==2.3.0 hydra-core ray==2.60.0
    pip install --no-deps verl==0.9.1 openrlhf==0.11.2
    python tests/presets_peers.py target/release/colossal-chat

A token of the model is a letter, so the reply that our scorer gets is the reply in tokens. The mini-batch is the full rollout.
In the first of its two steps every ratio is 1. In the second one the old log-probabilities are those before the first step, and
the learning rate is so high that many ratios leave the clip range. Our metrics are means over the steps of a rollout, so a run
of one epoch tells the first step, and a run of two epochs on the same rollout tells both.

Whose code runs:
  - TRL: GRPOTrainer, whose `rollout_func` hands out our replies and whose reward function hands out our scores.
  - verl: DAPORewardManager, compute_grpo_outcome_advantage, logprobs_from_logits, ppo_loss of workers/utils/losses.py and
    build_optimizer, called as RayPPOTrainer.fit and FSDPEngine (forward_backward_batch, optimizer_step) call them.
  - OpenRLHF: compute_advantages_and_returns, Actor.forward and ActorPPOTrainer.training_step, with a stand-in for what
    DeepSpeed does in a step.
DAPO and Dr. GRPO are papers, which both TRL and verl have as settings.

Not compared: verl also lets norms decay. verl and OpenRLHF bound k3 by 10, which no estimate reaches here. TRL has no filter
of prompts, and that of verl is a part of its distributed trainer: `kept` says which prompts are expected.
"""

import importlib.abc
import importlib.machinery
import json
import os
import shutil
import subprocess
import sys
import tempfile
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

os.environ |= {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import numpy
import torch
from datasets import Dataset
from safetensors.torch import load_file
from tensordict import TensorDict
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch.nn.utils import clip_grad_norm_
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, PrinterCallback, logging
from trl import GRPOConfig, GRPOTrainer
from trl.rewards import get_soft_overlong_punishment


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Empty packages for what verl and OpenRLHF import and these steps do not use."""

    names = ("deepspeed", "vllm", "aiohttp", "torchdata", "PIL", "flash_attn.bert_padding", "flash_attn.utils")

    def find_spec(self, name, path=None, target=None):
        if any((name + ".").startswith(own + ".") or own.startswith(name + ".") for own in self.names):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return MagicMock(__path__=[], __spec__=spec)

    def exec_module(self, module):
        pass


sys.meta_path.append(StandIns())

from openrlhf.models import Actor, PolicyLoss
from openrlhf.models.utils import compute_approx_kl
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer
from verl import DataProto
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage, kl_penalty
from verl.utils import tensordict_utils
from verl.utils.torch_functional import logprobs_from_logits
from verl.workers.config import ActorConfig, FSDPOptimizerConfig
from verl.workers.config.optimizer import build_optimizer
from verl.workers.reward_manager.dapo import DAPORewardManager
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import no_padding_2_padding

TOLERANCE = 1e-4
LETTERS, END_TEXT = "abcdefgh", "."
END = len(LETTERS)
PROMPTS, SAMPLES, MOST_TOKENS, BUFFER = 8, 4, 16, 4
LEARNING_RATE = 5e-4
NO_DUAL_CLIP = 1e30
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"

# What every run sets above its preset.
RUN = f"""
# With these replies, DAPO has prompts to replace.
seed = 3
data.shuffle = false
data.cache = ""
# The rates of the presets, 1e-6, move no ratio out of the clip range in one step.
train.lr = {LEARNING_RATE}
# Two steps are too few for a schedule and a warm-up.
train.scheduler = "constant"
train.warmup_steps = 0
train.warmup_ratio = 0.0
# One small rollout, which is one mini-batch of several micro-batches.
train.micro_batch_size = 5
ppo.iterations = 1
ppo.rollout_batch_size = {PROMPTS}
ppo.samples_per_prompt = {SAMPLES}
ppo.mini_batch_size = {PROMPTS * SAMPLES}
ppo.max_new_tokens = {MOST_TOKENS}
"""

# A program that scores replies, and keeps what it was asked. The replies to some prompts have one score.
SCORER = """
import json, sys

for line in sys.stdin:
    request = json.loads(line)
    scores = [{"a": 1.0, "b": -1.0}.get(row["reply"][:1], 0.0) for row in request["replies"]]
    with open(sys.argv[1], "a") as file:
        for row, score in zip(request["replies"], scores):
            file.write(json.dumps({**row, "score": score}) + "\\n")
    print(json.dumps({"id": request["id"], "scores": scores}), flush=True)
"""


def cases(folder):
    """Name, preset, what our run sets besides, and the producer with its settings."""
    reference = {"ppo.reference_model": f"{folder}/reference"}
    # The last 4096 of 20480 tokens, in the lengths of this model.
    buffer = {"ppo.overlong_buffer": BUFFER}
    dapo = {"clip_ratio_high": 0.28, "clip_ratio_c": NO_DUAL_CLIP, "weight_decay": 0.1, "overlong": True}
    dapo_of_trl = {"loss_type": "dapo", "epsilon_high": 0.28, "weight_decay": 0.1, "overlong": True}
    dr_grpo = {
        "loss_agg_mode": "seq-mean-token-sum-norm", "loss_scale_factor": MOST_TOKENS, "norm_adv_by_std_in_grpo": False,
        "clip_ratio_c": NO_DUAL_CLIP, "weight_decay": 0.0}
    return [
        ("trl", "trl", {}, trl, {}),
        # Without a penalty, which is the default of TRL, its importance weight is not seen.
        ("trl, beta", "trl", {"ppo.kl_coef": 0.04, **reference}, trl, {"beta": 0.04}),
        ("verl", "verl", reference, verl, {"use_kl_loss": True}),
        # One step triples no ratio, so the dual clip of the preset is not seen.
        ("verl, dual clip", "verl", {"ppo.clip_ratio_c": 1.1, **reference}, verl, {"use_kl_loss": True, "clip_ratio_c": 1.1}),
        ("openrlhf", "openrlhf", reference, openrlhf, {}),
        ("dapo, verl", "dapo", buffer, verl, dapo),
        # TRL always adds 1e-4 to the standard deviation.
        ("dapo, trl", "dapo", {"ppo.advantage_epsilon": 1e-4, **buffer}, trl, dapo_of_trl),
        ("dr-grpo, verl", "dr-grpo", {}, verl, dr_grpo),
        ("dr-grpo, trl", "dr-grpo", {}, trl, {"loss_type": "dr_grpo", "scale_rewards": "none"}),
    ]


def main():
    binary = Path(sys.argv[1]).resolve()
    logging.disable_progress_bar()
    print("case             step       loss    theirs differ  gradient    theirs differ  clipped  weights differ")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer = make_inputs(folder)
        results = [compare(binary, folder, tokenizer, *case) for case in cases(folder)]
    print(f"{sum(results)} of {len(results)} are within {TOLERANCE:g}")
    sys.exit(not all(results))


def compare(binary, folder, tokenizer, name, preset, settings, producer, theirs):
    """Prints both steps of a case. Whether they agree."""
    one, rows = ours(binary, folder, preset, {**settings, "ppo.epochs": 1})
    both, same_rows = ours(binary, folder, preset, {**settings, "ppo.epochs": 2})
    assert rows == same_rows, "the rollouts of the two runs differ"
    steps, model = producer(folder, tokenizer, kept(rows, preset), **theirs)
    # No ratio is clipped in the first step.
    mine = [one, {key: 2 * both[key] - one[key] for key in ["loss", "grad_norm", "policy/clipfrac_avg"]}]
    weights, clipped = weight_difference(folder, model), mine[1]["policy/clipfrac_avg"]
    good = weights <= TOLERANCE and clipped > 0
    for number, (step, (loss, norm)) in enumerate(zip(mine, steps, strict=True), 1):
        errors = abs(step["loss"] - loss) / max(1, abs(loss)), abs(step["grad_norm"] - norm) / norm
        good = good and max(errors) <= TOLERANCE
        line = (
            f"{name:<16}    {number}  {step['loss']:+.6f} {loss:+.6f}  {errors[0]:.0e}  "
            f"{step['grad_norm']:.6f}  {norm:.6f}  {errors[1]:.0e}")
        print(line if number == 1 else f"{line}  {clipped:7.0%}  {weights:.0e} {'equal' if good else 'DIFFERENT'}", flush=True)
    return good


def weight_difference(folder, model):
    """The distance between the weights after both steps, as a share of how far they have moved. It is the sum over all weights,
    because rounding decides about the direction of AdamW where a gradient is near 0."""
    start, mine = load_file(folder / "policy/model.safetensors"), load_file(folder / "run/final/model.safetensors")
    theirs = model.state_dict()
    distance = lambda left, right: sum((left[name] - right[name]).abs().sum().item() for name in start)
    return distance(mine, theirs) / distance(theirs, start)


# --- Ours ---


def make_inputs(folder):
    """A policy, a reference near it, a scorer, and prompts of different lengths. Returns the tokenizer."""
    tokenizer = Tokenizer(models.WordLevel({text: id for id, text in enumerate(LETTERS + END_TEXT)}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END_TEXT, pad_token=END_TEXT, chat_template=TEMPLATE)
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=END + 1, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.15, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=END, pad_token_id=END))
    for name in ("policy", "reference"):
        model.save_pretrained(folder / name)
        wrapped.save_pretrained(folder / name)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.02 * torch.randn_like(parameter)
    draw = lambda length: "".join(LETTERS[id] for id in torch.randint(END, (length,)))
    prompts = [{"prompt": draw(5 + row % 4)} for row in range(8 * PROMPTS)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    (folder / "scorer.py").write_text(SCORER)
    return wrapped


def ours(binary, folder, preset, settings):
    """The metrics of a run, and the replies that it has scored."""
    shutil.rmtree(folder / "run", ignore_errors=True)
    (folder / "replies.jsonl").unlink(missing_ok=True)
    settings = {
        "preset": preset, "out": f"{folder}/run", "model.path": f"{folder}/policy", "data.train": f"{folder}/prompts.jsonl",
        **settings}
    command = [sys.executable, f"{folder}/scorer.py", f"{folder}/replies.jsonl"]
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    reward = f'[[reward]]\nkind = "command"\ncommand = {json.dumps(command)}\n'
    (folder / "run.toml").write_text("\n".join([*lines, RUN, reward]))
    done = subprocess.run([binary, "grpo", "--config", folder / "run.toml"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{preset} {settings}: {done.stderr}")
    metrics = json.loads((folder / "run/metrics.jsonl").read_text().splitlines()[0])
    rows = [json.loads(line) for line in (folder / "replies.jsonl").read_text().splitlines()]
    return metrics, [as_tokens(row) for row in rows]


def as_tokens(row):
    ids = lambda text: [LETTERS.index(letter) for letter in text]
    reply = ids(row["reply"]) + [END] * row["stopped"]
    assert len(reply) == row["tokens"], row
    text = row["prompt"][0]["content"]
    return SimpleNamespace(text=text, prompt=ids(text), reply=reply, score=row["score"])


def kept(rows, preset):
    """The replies of the rollout: in DAPO, those to the first prompts whose rewards differ. A reward has the penalty for length
    in it, as in verl with `filter_groups.metric = "reward"`. The paper (equation 11) compares the scores alone."""
    groups = [list(group) for _, group in groupby(rows, key=lambda row: row.text)]
    if preset == "dapo":
        assert len(groups) > PROMPTS, "no prompt was replaced"
        penalty = get_soft_overlong_punishment(MOST_TOKENS, BUFFER)
        groups = [group for group in groups if len({row.score + penalty([row.reply])[0] for row in group}) > 1]
    assert [len(group) for group in groups] == [SAMPLES] * PROMPTS
    return [row for group in groups for row in group]


# --- TRL ---


def load(folder, name):
    return LlamaForCausalLM.from_pretrained(folder / name, dtype=torch.float32)


def trl(folder, tokenizer, rows, overlong=False, **settings):
    """Loss and norm of two steps, and the model after them."""

    def rollout(prompts, trainer):
        assert prompts == [row.text for row in rows]
        return {
            "prompt_ids": [row.prompt for row in rows], "completion_ids": [row.reply for row in rows], "logprobs": None,
            "score": [row.score for row in rows]}

    def score(prompts, completions, score, **rest):
        return score

    args = GRPOConfig(
        output_dir=str(folder / "trl"), max_steps=2, num_iterations=2, per_device_train_batch_size=len(rows),
        num_generations=SAMPLES, max_completion_length=MOST_TOKENS, learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant", shuffle_dataset=False, logging_steps=1, report_to=[], use_cpu=True, bf16=False,
        save_strategy="no", disable_tqdm=True, gradient_checkpointing=False, **settings)
    trainer = GRPOTrainer(
        model=load(folder, "policy"), args=args, processing_class=tokenizer, rollout_func=rollout,
        reward_funcs=[score, get_soft_overlong_punishment(MOST_TOKENS, BUFFER)] if overlong else [score],
        train_dataset=Dataset.from_list([{"prompt": row.text} for row in rows[::SAMPLES]]))
    if args.beta:
        trainer.ref_model.load_state_dict(load(folder, "reference").state_dict())
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return [(row["loss"], row["grad_norm"]) for row in trainer.state.log_history if "grad_norm" in row], trainer.model


# --- verl ---


def padded(rows):
    """A batch of verl and OpenRLHF: prompts padded on the left, replies on the right."""
    left, right = max(len(row.prompt) for row in rows), max(len(row.reply) for row in rows)
    fill = lambda value, count: [value] * count
    attention = torch.tensor([
        fill(0, left - len(row.prompt)) + fill(1, len(row.prompt) + len(row.reply)) + fill(0, right - len(row.reply))
        for row in rows])
    return {
        "prompts": torch.tensor([fill(END, left - len(row.prompt)) + row.prompt for row in rows]),
        "responses": torch.tensor([row.reply + fill(END, right - len(row.reply)) for row in rows]),
        "attention_mask": attention, "response_mask": attention[:, left:],
    }


def verl(folder, tokenizer, rows, overlong=False, norm_adv_by_std_in_grpo=True, weight_decay=0.01, **settings):
    """Loss and norm of two steps, and the model after them."""
    batch, policy = padded(rows), load(folder, "policy")
    advantages, _ = compute_grpo_outcome_advantage(
        verl_rewards(tokenizer, rows, batch, overlong), batch["response_mask"], numpy.array([row.text for row in rows]),
        norm_adv_by_std_in_grpo=norm_adv_by_std_in_grpo)
    with torch.no_grad():
        old, reference = (
            no_padding_2_padding(verl_logprobs(model, batch), batch) for model in (policy, load(folder, "reference")))
    data = TensorDict(
        {**batch, "advantages": advantages, "old_log_probs": old, "ref_log_prob": reference}, batch_size=len(rows))
    tensordict_utils.assign_non_tensor(
        data, dp_size=1, batch_num_tokens=batch["response_mask"].sum().item(), global_batch_size=len(rows))

    config = ActorConfig(strategy="fsdp", rollout_n=SAMPLES, ppo_micro_batch_size_per_gpu=1, **settings)
    optim = FSDPOptimizerConfig(lr=LEARNING_RATE, weight_decay=weight_decay)
    norms = {"params": [parameter for parameter in policy.parameters() if parameter.dim() == 1], "weight_decay": 0.0}
    matrices = {"params": [parameter for parameter in policy.parameters() if parameter.dim() > 1]}
    optimizer = build_optimizer([norms, matrices], optim)
    steps = []
    for _ in range(2):
        new = verl_logprobs(policy, batch)
        assert kl_penalty(no_padding_2_padding(new, batch), reference, "k3").max() < 10, "verl bounds it, and we do not"
        loss, _ = ppo_loss(config, {"log_probs": new}, data)
        loss.backward()
        steps.append((loss.item(), clip_grad_norm_(policy.parameters(), max_norm=optim.clip_grad).item()))
        optimizer.step()
        optimizer.zero_grad()
    return steps, policy


def verl_rewards(tokenizer, rows, batch, overlong):
    """The rewards of tokens: the score, and the penalty for length, at the last token."""
    manager = DAPORewardManager(
        tokenizer, num_examine=0, compute_score=lambda ground_truth, **rest: ground_truth, max_resp_len=MOST_TOKENS,
        overlong_buffer_cfg=SimpleNamespace(enable=overlong, len=BUFFER, penalty_factor=1.0, log=False))
    others = {"reward_model": [{"ground_truth": row.score} for row in rows], "data_source": [""] * len(rows)}
    return manager(DataProto.from_dict(
        batch, non_tensors={key: numpy.array(values, dtype=object) for key, values in others.items()}))


def verl_logprobs(model, batch):
    """Of the token after each token, without the padding."""
    ids, attention = torch.cat([batch["prompts"], batch["responses"]], dim=1), batch["attention_mask"]
    logits = model(ids, attention_mask=attention, position_ids=(attention.cumsum(1) - 1).clamp(min=0)).logits
    return logprobs_from_logits(logits[attention.bool()], ids[attention.bool()].roll(-1))


# --- OpenRLHF ---


def openrlhf(folder, tokenizer, rows):
    """Loss and norm of two steps, and the model after them."""
    batch, args, policy = padded(rows), openrlhf_args(), load(folder, "policy")
    actor, reference = Actor(policy), Actor(load(folder, "reference"))
    actor.packing_samples = reference.packing_samples = False
    inputs = (
        torch.cat([batch["prompts"], batch["responses"]], dim=1), batch["response_mask"].bool(), batch["attention_mask"])
    with torch.no_grad():
        old, base = actor(*inputs), reference(*inputs)
    experience = Experience(
        sequences=inputs[0], action_mask=inputs[1], attention_mask=inputs[2], action_log_probs=old,
        base_action_log_probs=base, kl=torch.zeros_like(old), rewards=torch.tensor([row.score for row in rows]),
        index=list(range(len(rows))))
    maker = SimpleNamespace(
        strategy=SimpleNamespace(args=args), advantage_estimator=args.algo.advantage.estimator,
        kl_ctl=SimpleNamespace(value=args.algo.kl.init_coef))
    maker.get_cumulative_returns = lambda *values: RemoteExperienceMaker.get_cumulative_returns(maker, *values)
    RemoteExperienceMaker.compute_advantages_and_returns(maker, [experience])

    trainer = SimpleNamespace(
        args=args, strategy=DeepSpeed(policy), actor=actor, actor_optim=None, ema_model=None, aux_loss=False,
        replay_buffer=None, actor_loss_fn=PolicyLoss(*args.actor.eps_clip_low_high, token_level_loss=True),
        actor_scheduler=SimpleNamespace(get_last_lr=lambda: [LEARNING_RATE]))
    for step in range(2):
        with torch.no_grad():
            kl = compute_approx_kl(actor(*inputs), base, kl_estimator="k3")
        assert kl.max() < 10, "OpenRLHF bounds it, and we do not"
        ActorPPOTrainer.training_step(trainer, experience, args.algo.kl.init_coef, step)
    return trainer.strategy.steps, policy


def openrlhf_args():
    """The defaults of train_ppo_ray, but for GRPO and the penalty that its help advises for it."""
    return SimpleNamespace(
        algo=SimpleNamespace(
            advantage=SimpleNamespace(estimator="group_norm", gamma=1.0),
            kl=SimpleNamespace(use_loss=True, init_coef=0.01, estimator="k3", unbiased_gradient=False)),
        actor=SimpleNamespace(entropy_coef=None, eps_clip_low_high=(0.2, 0.2)),
        reward=SimpleNamespace(clip_range=(-10, 10), overlong_buffer_len=None, stop_properly_penalty_coef=None),
        rollout=SimpleNamespace(n_samples_per_prompt=SAMPLES), train=SimpleNamespace(dynamic_batch_enable=False))


class DeepSpeed:
    """The part of a strategy of OpenRLHF that DeepSpeed does, with the defaults: a gradient clipped at 1, and AdamW."""

    ring_attn_group = None

    def __init__(self, model):
        self.model, self.steps = model, []
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)

    def backward(self, loss, actor, optimizer):
        self.loss = loss.item()
        loss.backward()

    def optimizer_step(self, optimizer, actor, scheduler, name):
        self.steps.append((self.loss, clip_grad_norm_(self.model.parameters(), max_norm=1.0).item()))
        self.optimizer.step()
        self.optimizer.zero_grad()

    def get_grad_norm(self, actor):
        return self.steps[-1][1]


if __name__ == "__main__":
    main()
