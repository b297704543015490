"""The peer of `colossal-chat sft`: HF Trainer on the same model, rows, order, optimizer and threads.

    python bench/sft_transformers.py INPUTS ROWS.parquet --steps 10 --micro 4 --accumulation 2 --threads 2 --out FILE.json
"""

import argparse
import json
import resource
import time

import pyarrow.parquet
import torch
from torch.utils.data import SequentialSampler
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments


class Clock(TrainerCallback):
    """The time of each optimizer step."""

    def __init__(self):
        self.seconds = []

    def on_step_begin(self, *_args, **_kwargs):
        self.started = time.perf_counter()

    def on_step_end(self, *_args, **_kwargs):
        self.seconds.append(time.perf_counter() - self.started)


class InOrder(Trainer):
    """Rows in file order, as the other side reads them."""

    def _get_train_sampler(self, dataset=None):
        return SequentialSampler(self.train_dataset)


def collate(rows):
    """Right padding to the longest row; the padding has no loss and no attention."""
    longest = max(len(row) for row in rows)
    pad = lambda row, value: row + [value] * (longest - len(row))
    return {
        "input_ids": torch.tensor([pad(row, 0) for row in rows]),
        "labels": torch.tensor([pad(row, -100) for row in rows]),
        "attention_mask": torch.tensor([pad([1] * len(row), 0) for row in rows]),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("rows")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--micro", type=int, default=4)
    parser.add_argument("--accumulation", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    rows = pyarrow.parquet.read_table(options.rows)["input_ids"].to_pylist()
    clock = Clock()
    arguments = TrainingArguments(
        output_dir="/tmp/hf-trainer",
        max_steps=options.steps,
        per_device_train_batch_size=options.micro,
        gradient_accumulation_steps=options.accumulation,
        learning_rate=1e-4,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=1.0,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        remove_unused_columns=False,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    trainer = InOrder(model=model, args=arguments, train_dataset=rows, data_collator=collate, callbacks=[clock])
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    used = rows * (1 + options.steps * options.micro * options.accumulation // len(rows))
    tokens = [
        sum(len(row) for row in used[step * options.micro * options.accumulation :][: options.micro * options.accumulation])
        for step in range(options.steps)
    ]
    with open(options.out, "w") as file:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        json.dump({"loss": losses, "seconds": clock.seconds, "tokens": tokens, "peak_rss_bytes": peak}, file)


if __name__ == "__main__":
    main()
