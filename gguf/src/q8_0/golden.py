"""Writes golden.txt: numbers and their Q8_0 blocks, as the Python package gguf makes them.

    pip install gguf==0.19.0 numpy==2.4.6 && python golden.py > golden.txt

Each line has 32 numbers of fp32 and one block of 34 bytes, both as bytes in hexadecimal.
"""

import numpy as np
from gguf.quants import Q8_0

rng = np.random.default_rng(7)
blocks = [rng.normal(0, scale, 32) for scale in (1, 0.02, 1e-4, 1e-7, 1e3, 3e5)]
blocks.append(np.zeros(32))  # the scale is zero
blocks.append(np.arange(-16, 16) / 2.0)
blocks.append(np.concatenate([[127.0], np.arange(31) + 0.5]))  # halves, with the scale 1
blocks.append(np.concatenate([[-127.0], -np.arange(31) - 0.5]))
for block in blocks:
    block = np.asarray(block, np.float32)
    print(block.astype("<f4").tobytes().hex(), Q8_0.quantize_blocks(block[None])[0].tobytes().hex())
