"""Golden values of the divergences of distillation from TRL, in fp64, with gradients by autograd.

Run:  pip install torch==2.11.0 transformers==5.23.0 trl==1.16.0 accelerate==1.15.0 && python distill_trl.py
It reads distill_inputs.json beside it and writes distill_trl.json.
"""

import json
import os
import platform
from pathlib import Path

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import torch
import trl
from trl.experimental.gkd import GKDTrainer

HERE = Path(__file__).parent
BETA = {"forward_kl": 0.0, "reverse_kl": 1.0}


def values(inputs, case):
    student = torch.tensor(inputs["student"], dtype=torch.float64, requires_grad=True)
    teacher = torch.tensor(inputs["teacher"], dtype=torch.float64)
    loss = GKDTrainer.generalized_jsd_loss(
        student[None], teacher[None], beta=BETA.get(case["divergence"], case.get("beta")),
        temperature=case.get("temperature", 1.0), reduction="sum")
    loss.backward()
    return [loss.item()] + student.grad.flatten().tolist()


def main():
    inputs = json.loads((HERE / "distill_inputs.json").read_text())
    result = {"producer": f"TRL {trl.__version__}, torch {torch.__version__}, Python {platform.python_version()}",
              "values": {name: values(inputs, case) for name, case in inputs["cases"].items()}}
    (HERE / "distill_trl.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
