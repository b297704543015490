"""Writes what bitsandbytes makes of a few matrices: codes, scales and the numbers they stand for.

Run with torch 2.11.0, bitsandbytes 0.50.2, numpy 2.4.6 and safetensors 0.8.0 on a processor:

    python quantize.py

The matrices are fp32, and so is what they are dequantised to. One thread: the mean of the scales is a sum whose
rounding depends on the number of threads.
"""

import pathlib

import bitsandbytes.functional as bnb
import numpy as np
import torch
from safetensors.torch import save_file

# Rows, columns, and how much the rows differ. The number of elements of a matrix is or is not a multiple of 64, of
# 2 and of 64 * 256.
SHAPES = {
    "blocks": (48, 200, 3.0),
    "ragged": (37, 51, 5.0),
    "nested": (130, 150, 2.0),
    "row": (1, 7, 0.0),
    "zeros": (4, 64, None),
}
# More scales than one thread of torch adds up, compared by a hash.
LARGE = (1100, 2051, 4.0)


def matrix(rows, columns, spread):
    """Numbers that another program can make exactly: 32 bits of a product, scaled by powers of two."""
    if spread is None:
        return torch.zeros(rows, columns)
    index = np.arange(rows * columns, dtype=np.uint64)
    mixed = (index * np.uint64(2654435761) + np.uint64(12345)) & np.uint64(0xFFFFFFFF)
    mixed = (mixed ^ (mixed >> np.uint64(15))) * np.uint64(2246822519) & np.uint64(0xFFFFFFFF)
    numbers = mixed.astype(np.uint32).view(np.int32).astype(np.float32) * np.float32(2.0**-31)
    # The third power leaves more small numbers than large ones.
    numbers = numbers * numbers * numbers
    row = np.arange(rows * columns) // columns
    scale = (np.float32(1) + np.float32(spread) * (row % 7).astype(np.float32)).astype(np.float32)
    return torch.from_numpy((numbers * scale).astype(np.float32)).view(rows, columns)


def fnv1a(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def main():
    torch.set_num_threads(1)
    tensors = {"nf4_book": bnb.get_4bit_type("nf4", "cpu"), "scale_book": bnb.create_dynamic_map()}
    for name, shape in SHAPES.items():
        weight = matrix(*shape)
        codes, state = bnb.quantize_4bit(weight, blocksize=64, compress_statistics=True, quant_type="nf4")
        tensors[f"{name}.nf4.codes"] = codes.reshape(-1)
        tensors[f"{name}.nf4.scales"] = state.absmax
        tensors[f"{name}.nf4.nested_scales"] = state.state2.absmax
        tensors[f"{name}.nf4.offset"] = state.offset.reshape(1)
        tensors[f"{name}.nf4.numbers"] = bnb.dequantize_4bit(codes, state)
        codes, scales, _ = bnb.int8_vectorwise_quant(weight.clone())
        tensors[f"{name}.int8.codes"] = codes
        tensors[f"{name}.int8.scales"] = scales
        tensors[f"{name}.int8.numbers"] = bnb.int8_vectorwise_dequant(codes, scales)
    weight = matrix(*LARGE)
    codes, state = bnb.quantize_4bit(weight, blocksize=64, compress_statistics=True, quant_type="nf4")
    tensors["large.offset"] = state.offset.reshape(1)
    tensors["large.nested_scales"] = state.state2.absmax
    hashes = [fnv1a(part.numpy().tobytes()) for part in (codes, state.absmax)]
    tensors["large.hashes"] = torch.tensor([list(hash.to_bytes(8, "little")) for hash in hashes], dtype=torch.uint8)
    path = pathlib.Path(__file__).with_name("quantize.safetensors")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)


if __name__ == "__main__":
    main()
