"""The peer of `colossal-chat sft` on quantised weights: PEFT trains an adapter on a model that bitsandbytes holds in NF4."""

import settings as process
import torch
import training
from peft import PeftModel
from transformers import AutoModelForCausalLM, BitsAndBytesConfig


def main():
    settings = process.read()
    rows = [row["input_ids"] for row in process.read_lines(settings.rows)]
    model = load(settings)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    adamw = torch.optim.AdamW(weights, lr=settings.learning_rate, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, fused=True)
    losses, seconds = [], []
    for step in range(settings.steps):
        started = process.seconds(settings)
        ids = training.pad(rows[step * settings.micro : (step + 1) * settings.micro], 0)
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        adamw.step()
        adamw.zero_grad()
        seconds.append(process.seconds(settings) - started)
        losses.append(loss.item())
    process.write({"losses": losses, "seconds": seconds})


def load(settings):
    """The model in NF4 with nested scales, computing in bf16, with the adapter."""
    quantization = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.bfloat16)
    model = AutoModelForCausalLM.from_pretrained(
        settings.model, quantization_config=quantization, dtype=torch.bfloat16, device_map="cpu")
    return PeftModel.from_pretrained(model, settings.adapter, is_trainable=True).train()


if __name__ == "__main__":
    main()
