"""The peer of bench/gpu.sh on the same GPU: transformers generates and trains with the model of the steps.

It decodes greedily in bf16 with the cache that grows, and trains on equal rows at two settings: fp32 weights under
autocast, and weights in bf16 (without the fp32 copy that colossal-chat keeps). It prints one figure a line. It compares
no losses and no tokens with the program: bench/run.py does that, on the CPU.
"""

import argparse
import json
import statistics
import sys
import time

import torch
import transformers
from transformers import AutoModelForCausalLM

SKIPPED_STEPS = 2


def figure(name, value, unit):
    print(json.dumps({"name": name, "value": value, "unit": unit, "limit": None, "limit_of": None}), flush=True)


def load(model, dtype):
    return AutoModelForCausalLM.from_pretrained(model, dtype=dtype, attn_implementation="sdpa").to("cuda")


def decode(model, batch, options):
    """Milliseconds of a step: a run with many new tokens less one with a single token, the best of two each."""
    ids = [[5 + (row * 31 + at * 7) % 290 for at in range(options.prompt)] for row in range(batch)]
    prompts = torch.tensor(ids, device="cuda")

    def seconds(new):
        started = time.perf_counter()
        model.generate(
            prompts, attention_mask=torch.ones_like(prompts), min_new_tokens=new, max_new_tokens=new, do_sample=False, pad_token_id=0
        )
        torch.cuda.synchronize()
        return time.perf_counter() - started

    seconds(4)
    first = min(seconds(1) for _ in range(2))
    return (min(seconds(1 + options.new) for _ in range(2)) - first) / options.new * 1e3


def train(model, autocast, options):
    """Median seconds of a step of `options.rows` rows, and its memory in bytes."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    times = []
    torch.cuda.reset_peak_memory_stats()
    for step in range(options.steps):
        rows = [[(row * 37 + at * (row % 7 + 1)) % 290 for at in range(options.row)] for row in range(options.rows)]
        ids = torch.tensor(rows, device="cuda") + step
        torch.cuda.synchronize()
        started = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        times.append(time.perf_counter() - started)
    return statistics.median(times[SKIPPED_STEPS:]), torch.cuda.max_memory_allocated()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--batches", nargs="+", type=int, default=[1])
    for name, default in (("prompt", 128), ("new", 128), ("row", 2048), ("rows", 4), ("steps", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    print(f"transformers {transformers.__version__}, torch {torch.__version__}", file=sys.stderr)

    model = load(options.model, torch.bfloat16)
    model.generation_config.eos_token_id = None
    with torch.no_grad():
        for batch in options.batches:
            figure(f"transformers, batch {batch}: decoding step", decode(model, batch, options), "ms")
    del model
    for name, dtype, autocast in (("bf16 weights", torch.bfloat16, False), ("autocast", torch.float32, True)):
        torch.cuda.empty_cache()
        seconds, peak = train(load(options.model, dtype), autocast, options)
        figure(f"transformers, {name}: tokens", options.rows * options.row / seconds, "1/s")
        figure(f"transformers, {name}: step", seconds, "s")
        figure(f"transformers, {name}: peak of device memory", peak / 2**20, "MiB")


if __name__ == "__main__":
    main()
