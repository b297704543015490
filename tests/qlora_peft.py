"""Adapters on quantised weights beside PEFT with bitsandbytes: the loss and the adapter gradients of one step.

    python tests/qlora_peft.py [BINARY]

For each family a small random model and a random adapter are made in transformers and PEFT. One step of `sft` with `[model] quantize` is
compared with the same step in PEFT: with "nf4" on the layers of bitsandbytes (double quantisation, blocks of 64, fp32), and with "int8" on
the numbers that bitsandbytes dequantises its codes to, because its own layers also quantise the inputs. A step of AdamW with lr = eps = 1
moves a parameter by g / (|g| + 1), from which the gradient g is found. The relative difference of the losses and the largest difference of
the gradients, divided by the largest gradient, are printed; above 1e-5 for one or 1e-4 for the other, the script fails. The differences to
the step on weights that are not quantised are printed too: they say how far the quantisation itself moves a step.

The widths are multiples of 64: on a processor with AVX-512, bitsandbytes 0.50.2 dequantises a matrix with the wrong scales if its width is a
multiple of 16 but not of 64, which shows as an error three times that of its own formula.

Used with torch 2.11.0, transformers 5.23.0, peft 0.21.2 and bitsandbytes 0.50.2.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import bitsandbytes.functional as bnb
import torch
from adapters_peft import TARGETS
from families_transformers import ROWS, make, rows
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from transformers.utils import logging

HERE = Path(__file__).resolve().parent
LOSSES, GRADIENTS = 1e-5, 1e-4
LLAMA = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2)
FAMILIES = {
    "llama": LLAMA,
    "qwen2": {**LLAMA, "tie_word_embeddings": True},
    "gpt2": dict(n_embd=64, n_layer=3, n_head=4, n_positions=64, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0),
    "gpt_neox": dict(hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4),
}


def load(base, quantize):
    settings = dict(dtype=torch.float32, attn_implementation="eager")
    if quantize == "nf4":
        settings["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.float32
        )
        settings["device_map"] = "cpu"
    model = AutoModelForCausalLM.from_pretrained(base, **settings)
    if quantize == "int8":
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Linear) and module is not model.get_output_embeddings():
                codes, scales, _ = bnb.int8_vectorwise_quant(module.weight.data.clone())
                module.weight.data = bnb.int8_vectorwise_dequant(codes, scales)
    return model


def make_adapter(family, base, folder):
    torch.manual_seed(2)
    settings = dict(r=4, lora_alpha=6, target_modules=TARGETS[family], fan_in_fan_out=family == "gpt2", task_type="CAUSAL_LM")
    model = get_peft_model(load(base, None), LoraConfig(**settings))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)


def step_there(base, adapter, quantize, batch):
    model = PeftModel.from_pretrained(load(base, quantize), adapter, is_trainable=True)
    # bitsandbytes computes in bf16 in models that are not trained.
    model.train()
    tokens, total = sum(len(row) - 1 for row in batch), 0.0
    for row in batch:
        ids = torch.tensor([row])
        logprobs = model(ids).logits.log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None])
        loss = -logprobs.sum() / tokens
        loss.backward()
        total += loss.item()
    clean = lambda name: name.replace(".default", "")
    return total, {clean(name): p.grad for name, p in model.named_parameters() if p.requires_grad}


def step_here(binary, adapter, quantize, batch, scratch):
    import pyarrow.parquet

    run = scratch / f"run-{quantize}"
    pyarrow.parquet.write_table(pyarrow.table({"input_ids": batch}), scratch / "rows.parquet")
    (scratch / "run.toml").write_text(
        f"""
out = "{run}"
[model]
path = "{adapter}"
{f'quantize = "{quantize}"' if quantize else ""}
[data]
train = "{scratch / 'rows.parquet'}"
shuffle = false
[train]
steps = 1
micro_batch_size = {ROWS // 2}
gradient_accumulation_steps = 2
lr = 1.0
eps = 1.0
max_grad_norm = 0
scheduler = "constant"
"""
    )
    done = subprocess.run([binary, "sft", "--config", scratch / "run.toml"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    loss = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])["loss"]
    before, after = (load_file(folder / "adapter_model.safetensors") for folder in (adapter, run / "final"))
    moved = {name: (before[name].double() - after[name].double()) for name in before}
    return loss, {name: move / (1 - move.abs()) for name, move in moved.items()}


def difference(one, other):
    largest = max(grad.abs().max().item() for grad in other.values())
    assert one.keys() == other.keys(), one.keys() ^ other.keys()
    return max((one[name] - other[name]).abs().max().item() for name in one) / largest


def main():
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    binary = Path(sys.argv[1] if len(sys.argv) > 1 else HERE.parent / "target/release/colossal-chat").resolve()
    print(f"{'family':<12}{'weights':<10}{'loss':>10}{'gradients':>12}{'unquantised: loss':>20}{'gradients':>12}")
    failed, batch = False, rows()[:ROWS]
    for family in FAMILIES:
        with tempfile.TemporaryDirectory() as scratch:
            scratch = Path(scratch)
            base, adapter = scratch / "base", scratch / "adapter"
            make(family, FAMILIES[family], base)
            make_adapter(family, base, adapter)
            plain_loss, plain = step_there(base, adapter, None, batch)
            for quantize in ["nf4", "int8"]:
                if (family, quantize) == ("gpt2", "int8"):
                    continue  # Its layers are no torch.nn.Linear.
                loss, grads = step_here(binary, adapter, quantize, batch, scratch)
                other_loss, others = step_there(base, adapter, quantize, batch)
                losses, gradients = abs(loss / other_loss - 1), difference(grads, others)
                far = abs(plain_loss / other_loss - 1), difference(plain, others)
                failed |= losses > LOSSES or gradients > GRADIENTS
                print(f"{family:<12}{quantize:<10}{losses:>10.1e}{gradients:>12.1e}{far[0]:>20.1e}{far[1]:>12.1e}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
