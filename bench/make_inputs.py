"""Writes what both sides of the comparison read: a random LLaMA of 41.7 M parameters and tokenized rows.

    python bench/make_inputs.py OUT

Versions used: torch 2.11.0, transformers 5.23.0, pyarrow.
"""

import json
import random
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 32000


def rows(count, lengths, seed):
    """Token rows with some structure to learn: each row counts upwards from a start, with one stride a row."""
    source = random.Random(seed)
    for _ in range(count):
        start, stride = source.randrange(VOCABULARY), source.randrange(1, 8)
        yield [(start + stride * place) % VOCABULARY for place in range(source.choice(lengths))]


def write(path, table):
    pyarrow.parquet.write_table(pyarrow.table({"input_ids": list(table)}), path)


def main():
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = LlamaForCausalLM(config)
    print(f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters")
    model.save_pretrained(out / "model")
    words = {f"w{token}": token for token in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="w1", eos_token="w2", pad_token="w0").save_pretrained(
        out / "model"
    )
    write(out / "fixed.parquet", rows(256, [256], 1))
    write(out / "ragged.parquet", rows(512, range(32, 257), 2))
    prompts = list(rows(32, [128], 3))
    write(out / "prompts.parquet", prompts)
    with open(out / "prompts.jsonl", "w") as file:
        file.writelines(json.dumps({"ids": prompt}) + "\n" for prompt in prompts)


if __name__ == "__main__":
    main()
