"""The peer of `colossal-chat sft`: a LLaMA of transformers learns every token of its rows."""

import settings as process
import torch
import training
from transformers import AutoModelForCausalLM


def loss_of(model, rows, step_rows):
    targets = sum(len(row) - 1 for row in step_rows)
    return model(
        input_ids=training.pad(rows, 0, model.device),
        labels=training.pad(rows, -100, model.device),
        attention_mask=training.mask(rows, model.device),
        num_items_in_batch=torch.tensor(targets, device=model.device),
        use_cache=False,
    ).loss


def main():
    settings = process.read()
    rows = [row["input_ids"] for row in process.read_lines(settings.rows)]
    process.write(training.train(AutoModelForCausalLM, settings, rows, loss_of))


if __name__ == "__main__":
    main()
