"""The demo's scores once more, by transformers alone: greedy exact match of each model, and the reward model's accuracy.

    python tests/demo_transformers.py DEMO_DIR

Prints transformers' figure beside that of `report.json`; they must agree to two replies (two pairs) in a thousand.
Used with torch 2.11.0 and transformers 5.23.0.
"""

import json
import sys
from pathlib import Path

import pyarrow.parquet
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer


def exact_match(folder, rows):
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    stop = tokenizer.convert_tokens_to_ids("<|im_end|>")
    right = 0
    for start in range(0, len(rows), 100):
        some = rows[start : start + 100]
        texts = [tokenizer.apply_chat_template(row["prompt"], tokenize=False, add_generation_prompt=True) for row in some]
        batch = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        batch = {name: batch[name] for name in ("input_ids", "attention_mask")}
        ids = model.generate(**batch, do_sample=False, max_new_tokens=24, eos_token_id=[stop, tokenizer.eos_token_id])
        replies = tokenizer.batch_decode(ids[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
        right += sum(reply.strip() == row["answer"] for reply, row in zip(replies, some, strict=True))
    return right / len(rows)


def accuracy(folder, rows):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    end = "<|im_end|>"

    def score(row, side):
        text = tokenizer.apply_chat_template(row["prompt"] + row[side], tokenize=False)
        ids = tokenizer(text[: text.rindex(end) + len(end)], return_tensors="pt", add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            return model(ids).logits[0, 0].item()

    return sum(score(row, "chosen") > score(row, "rejected") for row in rows) / len(rows)


def main():
    demo = Path(sys.argv[1])
    report = json.loads((demo / "report.json").read_text())
    read = lambda name: pyarrow.parquet.read_table(demo / "data" / name).to_pylist()
    questions, figures = read("heldout.parquet"), []
    for model in ("base", "sft", "ppo"):
        scores = next(found["scores"] for found in report["benchmarks"]["results"]["models"] if found["name"] == model)
        ours = next(score["value"] for score in scores if score["task"] == "world")
        figures.append((f"{model} greedy", exact_match(demo / model / "final", questions), ours))
    pairs = read("heldout_preference.parquet")
    figures.append(("reward model", accuracy(demo / "rm/final", pairs), report["reward_model"]["accuracy"]))
    for name, theirs, ours in figures:
        print(f"{name:13} transformers {theirs:.3f}   report {ours:.3f}")
    sys.exit(any(abs(theirs - ours) > 0.002 for _, theirs, ours in figures))


if __name__ == "__main__":
    main()
