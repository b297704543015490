"""Writes small models as transformers saves them with bitsandbytes, and hashes of the numbers of their codes.

Run with torch 2.11.0, transformers 5.23.0, bitsandbytes 0.50.2 and safetensors 0.8.0 on a processor:

    python saved.py

Each folder has `numbers.json`: for each layer in codes, the FNV-1a hash of the bytes of its weight `[out, in]` in fp32. All
widths are multiples of 64: bitsandbytes 0.50.2 reads the wrong scales of some others on a processor with AVX-512.
"""

import json
import pathlib
import tempfile

import bitsandbytes as bnb
import bitsandbytes.functional as F
import torch
from quantize import fnv1a
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig

LLAMA = dict(
    vocab_size=16,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=32,
)
GPT2 = dict(vocab_size=16, n_embd=64, n_layer=1, n_head=4, n_positions=16, bos_token_id=1, eos_token_id=2)
NF4 = dict(load_in_4bit=True, bnb_4bit_quant_type="nf4")
# Family, sizes, dtype, and how the model is quantised.
MODELS = {
    "llama-nf4": ("llama", LLAMA, torch.bfloat16, dict(NF4, bnb_4bit_use_double_quant=True)),
    # Scales in fp32, and a layer that stays as it is.
    "llama-nf4-plain": ("llama", LLAMA, torch.float32, dict(NF4, llm_int8_skip_modules=["lm_head", "down_proj"])),
    "llama-int8": ("llama", LLAMA, torch.float32, dict(load_in_8bit=True)),
    "gpt2-nf4": ("gpt2", GPT2, torch.float32, dict(NF4, bnb_4bit_use_double_quant=True)),
}


def numbers(weight):
    if isinstance(weight, bnb.nn.Int8Params):
        return F.int8_vectorwise_dequant(weight.data, weight.SCB)
    weight.quant_state.dtype = torch.float32
    return F.dequantize_4bit(weight.data, weight.quant_state)


def main():
    torch.set_num_threads(1)
    for name, (family, sizes, dtype, settings) in MODELS.items():
        folder = pathlib.Path(__file__).with_name(name)
        torch.manual_seed(4)
        with tempfile.TemporaryDirectory() as dense:
            AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **sizes)).to(dtype).save_pretrained(dense)
            config = BitsAndBytesConfig(**settings)
            model = AutoModelForCausalLM.from_pretrained(dense, quantization_config=config, dtype=dtype, device_map="cpu")
        model.save_pretrained(folder)
        (folder / "generation_config.json").unlink()
        coded = (bnb.nn.Params4bit, bnb.nn.Int8Params)
        weights = {key.removesuffix(".weight"): value for key, value in model.named_parameters() if isinstance(value, coded)}
        hashes = {key: f"{fnv1a(numbers(value).contiguous().numpy().tobytes()):016x}" for key, value in weights.items()}
        (folder / "numbers.json").write_text(json.dumps(hashes, indent=2) + "\n")


if __name__ == "__main__":
    main()
