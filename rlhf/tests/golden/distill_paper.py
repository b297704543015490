"""Golden values of the divergences of distillation in plain Python, from Agarwal et al. 2024 (arXiv 2306.13649).

Run:  python distill_paper.py
It writes distill_inputs.json and distill_paper.json beside it. Gradients are central differences.
"""

import json
import math
import platform
import random
from pathlib import Path

HERE = Path(__file__).parent
STEP = 1e-5
ROWS, TOKENS = 4, 7

CASES = {
    "forward_kl": {"divergence": "forward_kl"},
    "forward_kl_warm": {"divergence": "forward_kl", "temperature": 2.5},
    "reverse_kl": {"divergence": "reverse_kl"},
    "reverse_kl_cold": {"divergence": "reverse_kl", "temperature": 0.6},
    "jsd": {"divergence": "jsd", "beta": 0.5},
    "jsd_teacher": {"divergence": "jsd", "beta": 0.9, "temperature": 1.7},
    "jsd_student": {"divergence": "jsd", "beta": 0.1},
}


def distribution(logits, temperature):
    logits = [logit / temperature for logit in logits]
    total = math.log(sum(math.exp(logit - max(logits)) for logit in logits)) + max(logits)
    return [math.exp(logit - total) for logit in logits]


def kl(left, right):
    return sum(x * math.log(x / y) for x, y in zip(left, right))


def divergence(student, teacher, case):
    temperature = case.get("temperature", 1.0)
    p, q = distribution(student, temperature), distribution(teacher, temperature)
    if case["divergence"] == "forward_kl":
        return kl(q, p)
    if case["divergence"] == "reverse_kl":
        return kl(p, q)
    beta = case["beta"]
    mixture = [beta * y + (1 - beta) * x for x, y in zip(p, q)]
    return beta * kl(q, mixture) + (1 - beta) * kl(p, mixture)


def values(inputs, case):
    def total(student):
        return sum(divergence(row, teacher, case) for row, teacher in zip(student, inputs["teacher"]))

    gradient = []
    for row in range(ROWS):
        for token in range(TOKENS):
            ends = []
            for step in (STEP, -STEP):
                moved = [list(logits) for logits in inputs["student"]]
                moved[row][token] += step
                ends.append(total(moved))
            gradient.append((ends[0] - ends[1]) / (2 * STEP))
    return [total(inputs["student"])] + gradient


def main():
    draw = random.Random(33)
    logits = [[[round(draw.gauss(0, 2), 3) for _ in range(TOKENS)] for _ in range(ROWS)] for _ in range(2)]
    inputs = {"student": logits[0], "teacher": logits[1], "cases": CASES}
    (HERE / "distill_inputs.json").write_text(json.dumps(inputs, indent=1) + "\n")
    result = {"producer": f"Python {platform.python_version()}",
              "values": {name: values(inputs, case) for name, case in CASES.items()}}
    (HERE / "distill_paper.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
