"""The peer of a one-token generation: loads a model with transformers and generates one token."""

import settings as process
import torch
from transformers import AutoModelForCausalLM


def main():
    settings = process.read()
    model = AutoModelForCausalLM.from_pretrained(settings.model, dtype=torch.float32)
    prompts = torch.tensor([row["ids"] for row in process.read_lines(settings.prompts)])
    with torch.no_grad():
        output = model.generate(prompts, max_new_tokens=1, do_sample=False, pad_token_id=0)
    process.write({"ids": output[:, prompts.shape[1] :].tolist()})


if __name__ == "__main__":
    main()
