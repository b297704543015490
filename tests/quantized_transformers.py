"""Model folders in codes beside transformers with bitsandbytes, both ways.

    python tests/quantized_transformers.py [BINARY]

For each family a small random model is made in transformers. (written) `model quantize` writes it in codes, transformers loads the folder
with bitsandbytes, and the numbers of every matrix must be those that bitsandbytes makes of the original matrix in fp32. (read) transformers
quantises the model and saves it, `model dequantize` makes numbers of the folder, and they must be those of transformers' codes. Every number
is compared bit for bit; the script prints how many matrices agree, and fails if one does not.

The widths are multiples of 64, as in `tests/qlora_peft.py`, which says why.

Used with torch 2.11.0, transformers 5.23.0 and bitsandbytes 0.50.2.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import bitsandbytes as bnb
import bitsandbytes.functional as F
import torch
from families_transformers import make
from qlora_peft import FAMILIES
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from transformers.pytorch_utils import Conv1D
from transformers.utils import logging

HERE = Path(__file__).resolve().parent
# Of each row of the table: how the model is quantised here, if it can be written so, and there.
WAYS = {
    "nf4": ("nf4", dict(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)),
    "nf4, fp32": (None, dict(load_in_4bit=True, bnb_4bit_quant_type="nf4")),
    "int8": ("int8", dict(load_in_8bit=True)),
}


def load(folder, **settings):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, device_map="cpu", **settings)


def quantised(weight, quantize):
    """The numbers that bitsandbytes makes of a matrix."""
    if quantize == "int8":
        return F.int8_vectorwise_dequant(*F.int8_vectorwise_quant(weight.clone())[:2])
    return F.dequantize_4bit(*F.quantize_4bit(weight, blocksize=64, compress_statistics=True, quant_type="nf4"))


def numbers(model):
    """The numbers [out, in] of the codes of a model."""
    found = {}
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if isinstance(weight, bnb.nn.Int8Params):
            found[name] = F.int8_vectorwise_dequant(weight.data, weight.SCB)
        elif isinstance(weight, bnb.nn.Params4bit):
            found[name] = F.dequantize_4bit(weight.data, weight.quant_state)
    return found


def matrices(model):
    """The weights [out, in] of the linear layers but the head."""
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, (torch.nn.Linear, Conv1D)) and module is not model.get_output_embeddings():
            found[name] = module.weight.data.T.contiguous() if isinstance(module, Conv1D) else module.weight.data
    return found


def run(binary, *words):
    done = subprocess.run([binary, "model", *map(str, words)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)


def agree(found, wanted):
    assert found.keys() == wanted.keys() and found, found.keys() ^ wanted.keys()
    return sum(torch.equal(found[name], wanted[name]) for name in wanted)


def main():
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    # The mean of scales is a sum whose rounding depends on the number of threads.
    torch.set_num_threads(1)
    binary = Path(sys.argv[1] if len(sys.argv) > 1 else HERE.parent / "target/release/colossal-chat").resolve()
    print(f"{'family':<12}{'codes':<12}{'matrices':>10}{'written':>10}{'read':>10}")
    failed = False
    for family in FAMILIES:
        for way, (quantize, settings) in WAYS.items():
            with tempfile.TemporaryDirectory() as scratch:
                base, codes, saved, dense = (Path(scratch) / name for name in ["base", "codes", "saved", "dense"])
                make(family, FAMILIES[family], base)
                originals, written = matrices(load(base)), "-"
                if quantize:
                    run(binary, "quantize", base, "--quantize", quantize, "--out", codes)
                    wanted = {name: quantised(weight, quantize) for name, weight in originals.items()}
                    written = agree(numbers(load(codes)), wanted)
                    failed |= written != len(wanted)

                model = load(base, quantization_config=BitsAndBytesConfig(**settings))
                model.save_pretrained(saved)
                for name in ["tokenizer.json", "tokenizer_config.json"]:
                    shutil.copy(base / name, saved / name)
                run(binary, "dequantize", saved, "--out", dense)
                read = agree(matrices(load(dense)), numbers(model))
                failed |= read != len(originals)
                print(f"{family:<12}{way:<12}{len(originals):>10}{written:>10}{read:>10}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
