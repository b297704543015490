"""The peer of `colossal-chat ppo`: the PPO trainer of TRL on the same models, prompts and settings.

TRL has no groups: for several replies a prompt is repeated. Three of its defaults are changed in its favour, because
they cost time on a processor: gradient checkpointing, bf16, and sampling for a table of examples. And one changes what
it computes: TRL steps the optimizer once in `gradient_accumulation_steps` micro-batches and counts this over all
mini-batches, so with one micro-batch a mini-batch it would step once an epoch. Here it steps after every mini-batch, as
the other side does.
"""

import tempfile
import time

import settings as process
import torch
import trl.experimental.ppo.ppo_trainer as ppo_trainer
from datasets import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedTokenizerFast,
    TrainerCallback,
)
from trl.experimental.ppo import PPOConfig, PPOTrainer


class Iterations(TrainerCallback):
    """The time of each iteration, and what the trainer logs about it."""

    def __init__(self):
        self.seconds, self.logs = [], []

    def on_train_begin(self, *_arguments, **_named):
        self.started = time.perf_counter()

    def on_log(self, _arguments, _state, _control, logs=None, **_named):
        if "objective/scores" in logs:
            self.logs.append(logs)

    def on_step_end(self, *_arguments, **_named):
        now = time.perf_counter()
        self.seconds.append(now - self.started)
        self.started = now


class Rollouts:
    """Stands in for the trainer's function that generates: takes its time and the lengths of the replies."""

    def __init__(self, generate, end):
        self.generate, self.end = generate, end
        self.seconds, self.lengths = [], []

    def __call__(self, model, queries, *arguments):
        started = time.perf_counter()
        sequences, logits = self.generate(model, queries, *arguments)
        self.seconds.append(time.perf_counter() - started)
        replies = sequences[:, queries.shape[1] :].tolist()
        lengths = [reply.index(self.end) + 1 if self.end in reply else len(reply) for reply in replies]
        self.lengths.append(sum(lengths) / len(lengths))
        return sequences, logits


def configuration(settings, folder):
    return PPOConfig(
        output_dir=folder,
        learning_rate=settings.lr,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        optim="adamw_torch_fused",
        per_device_train_batch_size=settings.mini_batch,
        gradient_accumulation_steps=settings.replies // settings.mini_batch,
        num_mini_batches=settings.replies // settings.mini_batch,
        num_ppo_epochs=settings.epochs,
        total_episodes=settings.replies * settings.iterations,
        local_rollout_forward_batch_size=settings.replies,
        response_length=settings.reply_length,
        stop_token="eos" if settings.ends else None,
        temperature=settings.temperature,
        kl_coef=0.05,
        vf_coef=settings.vf_coef,
        cliprange=0.2,
        cliprange_value=0.2,
        gamma=1.0,
        lam=0.95,
        num_sample_generations=0,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
        seed=0,
    )


def main():
    settings = process.read()
    language_model = lambda: AutoModelForCausalLM.from_pretrained(settings.policy, dtype=torch.float32)
    classifier = lambda: AutoModelForSequenceClassification.from_pretrained(settings.reward, dtype=torch.float32)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(settings.policy)
    # The words of a prompt are the tokens of the same number.
    prompts = [[int(word[1:]) for word in row["prompt"].split()] for row in process.read_lines(settings.prompts)]
    repeated = [prompt for prompt in prompts for _ in range(settings.replies // len(prompts))]
    policy = language_model()
    policy.generation_config.pad_token_id = 0
    clock = Iterations()
    rollouts = Rollouts(ppo_trainer.batch_generation, tokenizer.eos_token_id if settings.ends else None)
    ppo_trainer.batch_generation = rollouts
    with tempfile.TemporaryDirectory() as folder:
        rows = Dataset.from_dict({"input_ids": repeated})
        trainer = PPOTrainer(
            args=configuration(settings, folder),
            processing_class=tokenizer,
            model=policy,
            ref_model=language_model(),
            reward_model=classifier(),
            value_model=classifier(),
            train_dataset=rows,
            eval_dataset=rows,
            callbacks=[clock],
        )
        trainer.accelerator.gradient_accumulation_steps = 1
        trainer.train()
    mini_batches = settings.replies // settings.mini_batch
    process.write({
        "seconds": clock.seconds,
        "rollout_seconds": rollouts.seconds,
        "lengths": rollouts.lengths,
        "scores": [log["objective/scores"] for log in clock.logs],
        # The trainer divides by the micro-batches that it expects in a mini-batch, also where there is one.
        "value_losses": [log["loss/value_avg"] * mini_batches for log in clock.logs],
    })


if __name__ == "__main__":
    main()
