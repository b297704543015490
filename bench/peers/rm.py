"""The peer of `colossal-chat rm`: a sequence classifier of transformers under the pairwise loss.

The loss is -log sigmoid(c - r), where c and r are the scores of the preferred and of the other reply.
"""

import settings as process
import torch
import training
from transformers import AutoModelForSequenceClassification


def loss_of(model, pairs, step_pairs):
    rows = [pair["chosen_input_ids"] for pair in pairs] + [pair["rejected_input_ids"] for pair in pairs]
    output = model(input_ids=training.pad(rows, 0), attention_mask=training.mask(rows), use_cache=False)
    chosen, rejected = output.logits.squeeze(-1).float().chunk(2)
    return -torch.nn.functional.logsigmoid(chosen - rejected).sum() / len(step_pairs)


def main():
    settings = process.read()
    pairs = process.read_lines(settings.rows)
    process.write(training.train(AutoModelForSequenceClassification, settings, pairs, loss_of))


if __name__ == "__main__":
    main()
