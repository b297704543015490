"""Writes the singular values of some weights of the golden models, largest first.

Run with numpy 2.4.6 and safetensors 0.8.0:

    python singular_values.py

They are the roots of the eigenvalues of `W W^T` or `W^T W`, whichever is smaller, in fp64.
"""

import json
import pathlib

import numpy as np
from safetensors.numpy import load_file

HERE = pathlib.Path(__file__).parent
WEIGHTS = {
    "llama": ["model.layers.0.self_attn.k_proj", "model.layers.1.mlp.down_proj"],
    "gpt2": ["transformer.h.0.attn.c_attn", "transformer.h.1.mlp.c_proj"],
    "neox": ["gpt_neox.layers.1.attention.query_key_value"],
    "mixtral": ["model.layers.0.block_sparse_moe.experts.1.w2"],
}


def singular_values(weight):
    weight = weight.astype(np.float64)
    if weight.shape[0] > weight.shape[1]:
        weight = weight.T
    squares = np.linalg.eigvalsh(weight @ weight.T)
    return [float(f"{root:.9g}") for root in np.sqrt(np.maximum(squares, 0.0))[::-1]]


def main():
    values = {}
    for model, modules in WEIGHTS.items():
        tensors = load_file(HERE.parent / model / "model.safetensors")
        values[model] = {module: singular_values(tensors[f"{module}.weight"]) for module in modules}
    (HERE / "singular_values.json").write_text(json.dumps(values, indent=1) + "\n")
    print("numpy", np.__version__)


if __name__ == "__main__":
    main()
