"""The peer of `colossal-chat generate`: HF `generate` on the same model, prompts and threads.

    python bench/generate_transformers.py MODEL PROMPTS.parquet --new 128 --threads 2 --out FILE.json [--sample]
"""

import argparse
import json
import resource
import time

import pyarrow.parquet
import torch
from transformers import AutoModelForCausalLM


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("prompts")
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sample", action="store_true")
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    prompts = torch.tensor(pyarrow.parquet.read_table(options.prompts)["input_ids"].to_pylist())
    settings = dict(do_sample=options.sample, pad_token_id=0, attention_mask=torch.ones_like(prompts))
    if options.sample:
        settings.update(temperature=1.0, top_k=0, top_p=1.0)
    with torch.no_grad():
        model.generate(prompts[:, :16], max_new_tokens=4, do_sample=False, pad_token_id=0)
        started = time.perf_counter()
        model.generate(prompts, max_new_tokens=1, **settings)
        first = time.perf_counter() - started
        started = time.perf_counter()
        output = model.generate(prompts, max_new_tokens=options.new, **settings)
        seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    result = {
        "ids": output[:, prompts.shape[1] :].tolist(),
        "first_token_seconds": first,
        "seconds": seconds,
        "decode_ms_per_step": (seconds - first) / (options.new - 1) * 1e3,
        "peak_rss_bytes": peak,
    }
    with open(options.out, "w") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main()
