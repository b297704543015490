"""The peer of `colossal-chat generate`: greedy `generate` of transformers, with one of its two caches."""

import settings as process
import torch
from transformers import AutoModelForCausalLM, LogitsProcessor, LogitsProcessorList


class Gaps(LogitsProcessor):
    """Keeps how far the largest logit of each row is above the second: a gap of almost zero is a draw."""

    def __init__(self):
        self.steps = []

    def __call__(self, input_ids, scores):
        best = scores.topk(2).values
        self.steps.append((best[:, 0] - best[:, 1]).tolist())
        return scores


def main():
    settings = process.read()
    model = AutoModelForCausalLM.from_pretrained(settings.model, dtype=getattr(torch, settings.dtype), attn_implementation="sdpa")
    model.to(settings.device)
    model.generation_config.eos_token_id = None
    prompts = torch.tensor([row["ids"] for row in process.read_lines(settings.prompts)], device=settings.device)

    def generate(new, processors=()):
        started = process.seconds(settings)
        output = model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=new,
            do_sample=False,
            pad_token_id=0,
            cache_implementation=settings.cache if settings.cache == "static" else None,
            disable_compile=True,
            logits_processor=LogitsProcessorList(processors),
        )
        return output[:, prompts.shape[1] :].tolist(), process.seconds(settings) - started

    with torch.no_grad():
        gaps = Gaps()
        ids, _ = generate(settings.new + 1, [gaps])
        _, first = generate(1)
        _, whole = generate(settings.new + 1)
    process.write({
        "value": (whole - first) / settings.new * 1e3,
        "ids": ids,
        "gaps": [list(row) for row in zip(*gaps.steps)],
    })


if __name__ == "__main__":
    main()
