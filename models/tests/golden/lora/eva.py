"""Writes the directions in which the inputs of some layers of the golden models vary, and the ranks that EVA gives to all layers.

Run with torch 2.11.0 and transformers 5.23.0:

    python eva.py

The inputs are those that transformers gives to the layers at the tokens that count. Their centred matrix is decomposed as a whole in fp64
(`torch.linalg.svd`). `a` are the first four right singular vectors, whose largest element is above zero. `ranks` are those of adapters of
rank 4 with rho = 2: the largest of the first eight squares of singular values of each layer, divided by the sum of all squares of the layer.
"""

import json
import pathlib

import torch
import transformers
from transformers.pytorch_utils import Conv1D

HERE = pathlib.Path(__file__).parent
LAYERS = {
    "llama": ["model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.o_proj", "model.layers.1.mlp.down_proj"],
    "gpt2": ["transformer.h.0.mlp.c_fc", "transformer.h.1.attn.c_attn"],
    "opt-after": ["model.decoder.project_in", "model.decoder.project_out", "model.decoder.layers.1.fc2"],
}
R, RHO = 4, 2
# The first tokens of each row do not count.
NOT_COUNTED = 2
ROWS = [[(7 * token + 11 * row + token * token) % 48 for token in range(9 + row)] for row in range(8)]


def inputs(model, modules):
    """The inputs of layers at the tokens that count, in fp64 without their mean."""
    found = {module: [] for module in modules}

    def look(module):
        return lambda layer, arguments, output: found[module].append(arguments[0].flatten(0, -2)[NOT_COUNTED:])

    handles = [model.get_submodule(module).register_forward_hook(look(module)) for module in modules]
    for row in ROWS:
        with torch.no_grad():
            model(torch.tensor([row]))
    for handle in handles:
        handle.remove()
    all_rows = {module: torch.cat(rows).double() for module, rows in found.items()}
    return {module: x - x.mean(0) for module, x in all_rows.items()}


def directions(x):
    _, values, vectors = torch.linalg.svd(x, full_matrices=False)
    a = vectors[:R]
    a = a * a.gather(1, a.abs().argmax(1, keepdim=True)).sign()
    return [[float(f"{number:.8g}") for number in row] for row in a.tolist()]


def ranks(inputs):
    shares = []
    for module, x in inputs.items():
        squares = torch.linalg.svdvals(x).square()
        shares += [(share, module) for share in (squares / squares.sum())[: RHO * R].tolist()]
    shares.sort(key=lambda share: -share[0])
    kept = [module for _, module in shares[: R * len(inputs)]]
    return {module: kept.count(module) for module in inputs}


def main():
    golden = {"rows": ROWS, "not_counted": NOT_COUNTED, "a": {}, "ranks": {}}
    for name, modules in LAYERS.items():
        model = transformers.AutoModelForCausalLM.from_pretrained(HERE.parent / name, dtype=torch.float32, attn_implementation="eager").eval()
        golden["a"][name] = {module: directions(x) for module, x in inputs(model, modules).items()}
        if name in ["llama", "gpt2"]:
            linear = [key for key, module in model.named_modules() if isinstance(module, (torch.nn.Linear, Conv1D)) and key != "lm_head"]
            golden["ranks"][name] = ranks(inputs(model, linear))
    (HERE / "eva.json").write_text(json.dumps(golden) + "\n")
    print("torch", torch.__version__, "transformers", transformers.__version__)


if __name__ == "__main__":
    main()
