"""Writes docs/performance.md from every file of bench/results that bench/run.py has written."""

import json
from pathlib import Path

SCHEMA = "colossal-chat-bench-1"

TITLES = {
    "gemm": "What the machine can do",
    "sft": "Supervised fine-tuning",
    "rm": "Reward model",
    "qlora": "Adapters on quantised weights",
    "decode": "Greedy generation",
    "ppo": "PPO",
    "eval": "Evaluation",
    "startup": "Start",
    "busy": "Beside a busy process",
    "llama_cpp": "A server and its clients, beside llama-cpp-python",
    "vllm_cpu": "A server and its clients, beside vLLM",
}

EXPLANATIONS = {
    "gemm": "The best rates of torch. The limits below follow from them.",
    "sft": "A LLaMA of 42 M parameters at a vocabulary of 32,000 (hidden 512, inner 1408, 8 layers, 8 heads, tied "
    "embeddings), micro-batches of 4 rows, 2 of them a step, AdamW. Equal rows have 256 tokens, ragged rows 32 to 256. "
    "Padding does not count as tokens. The peer is a training loop around the same model in transformers, with fused "
    "AdamW; it pads ragged rows only. In bf16 it either keeps fp32 weights under autocast, or bf16 weights with fp32 "
    "masters that the optimizer updates. The limit counts the products of weights, head and attention, at the rate of the "
    "same dtype.",
    "rm": "The same model with a score head, micro-batches of 4 pairs, 2 of them a step. Both sides of equal pairs have "
    "128 tokens, those of ragged pairs 32 to 128. The peer is a training loop around a sequence classifier of "
    "transformers.",
    "qlora": "A LLaMA of 1.3 billion parameters (vocabulary 32,000, hidden 2048, inner 5632, 24 layers, 32 heads, tied "
    "embeddings), whose linear layers are held in NF4 with double quantisation; LoRA of rank 8 on all of them, 2 rows of 128 "
    "tokens a step, bf16, AdamW. The peer is PEFT on bitsandbytes in a loop of torch. The limit counts the products of a forward "
    "pass and of the gradients of inputs; that codes become numbers is not part of it.",
    "decode": "The model of supervised fine-tuning, prompts of 128 tokens, 128 new tokens. A step is the time of 129 tokens minus the time of "
    "1 token, divided by 128. The peer is `generate` of transformers without compilation, with its faster cache. The "
    "difference is the number of replies in which the two largest logits of a token were equal up to rounding and the "
    "two sides took different ones. The limit is the time to read weights and cache, or to compute the products, "
    "whichever is longer.",
    "ppo": "A LLaMA of 7.6 M parameters (7,636,224: vocabulary 11,000, hidden 256, inner 704, 6 layers, 4 heads, tied "
    "embeddings) as policy, reference, reward model and critic. An iteration has 32 replies of up to 64 tokens to "
    "prompts of 32 tokens, 2 epochs, and 4 mini-batches of 8 replies in each. Ragged replies end with probability 1/32 "
    "at each token. The peer is the PPO trainer of TRL, which is given each prompt 4 times where a prompt has 4 "
    "replies. It runs in fp32 without gradient checkpointing, and steps its optimizer after every mini-batch, as ours "
    "does. Both sides take old log-probabilities from the sampler. With 4 replies a prompt, a mini-batch of ours has all "
    "replies to its prompts, while TRL knows no groups and mixes them. The replies are sampled, so they differ; the "
    "difference is the largest of mean length, mean score and value "
    "loss (relative) in a greedy iteration.",
    "eval": "Tasks on tiny models, beside lm-evaluation-harness at its faster batch size. The difference is the largest "
    "of all log-likelihoods.",
    "startup": "Wall time and memory of a whole process. `import transformers` alone does not load torch.",
    "busy": "How many times slower the median becomes while another process keeps one core busy.",
    "llama_cpp": "`bench/clients.py --peer llama_cpp` measures this part. The same model, prompts of 64 tokens and greedy "
    "replies of up to 64, which stream. Each client asks its next prompt when its reply has ended. The first token is the median "
    "of all replies. The peer is the server of llama-cpp-python, in fp32 as ours; it answers one request at a time, so its "
    "other clients wait. The difference is the number of replies in which two tokens were equally likely up to rounding and "
    "the two sides took different ones. The limit is the time of the products of all prompts, and of the steps of all "
    "clients together, each of which reads weights and cache or computes its products, whichever is longer.",
    "vllm_cpu": "`bench/clients.py --peer vllm` measures this part, with the same clients. The peer is the server of vLLM for "
    "processors, in fp32 as ours, compiled, with OpenMP of Intel as it advises. It answers all clients together. Its memory "
    "is the sum of the peaks of its processes, in which shared libraries count several times.",
}

INTRODUCTION = """\
# Performance

`bench/run.py` measures these figures and writes this page. Do not edit it by hand.

Before a time counts, both sides must compute the same: the losses of every step agree within 1e-4 (bf16: 0.005), and
greedy tokens are equal. A part that is not equal records no time. Then the program and the peer run in turn, each in a
process of its own, with the same weights, rows, order, optimizer and number of threads. The peer runs at its best
setting: where it has several, each is tried twice, and the fastest is measured.

A figure is the median of the rounds, with the smallest and the largest in brackets. The ratio is the median of the ratios
of the rounds; it says how many times better the program is than the peer. The limit is what the machine could do if
nothing but the necessary products, or the necessary reading of memory, took time. Memory is the peak of the whole
process, of the program and of the peer.

To repeat the figures on another machine, on which nothing else computes:

```sh
make build
python -m venv peers
peers/bin/pip install -r bench/requirements.txt
peers/bin/python bench/run.py --rounds 3 --threads 2
```

`--list` names the parts, `--only sft,decode` runs some of them. Without a peer's package our figures are measured alone.
The results go into a file of `bench/results` that has the name of the processor; parts that did not run keep their earlier
entry.
"""


def render(results, page):
    """Writes the page of all results in a folder."""
    lines = [INTRODUCTION]
    for path in sorted(Path(results).glob("*.json")):
        content = json.loads(path.read_text())
        if isinstance(content, dict) and content.get("schema") == SCHEMA:
            lines += machine(content)
    text = "\n".join(lines).rstrip() + "\n"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text)


def machine(content):
    lines = [f"## {content['processor']}", ""]
    for part, title in TITLES.items():
        if part in content["parts"]:
            lines += section(part, title, content["parts"][part])
    return lines


def section(part, title, entry):
    rows = entry["figures"]
    table = [rate(row) for row in rows] if part == "gemm" else [cells(row) for row in rows]
    notes = [f"- {row['name']}: {row['note']}" for row in rows if row.get("note")]
    lines = [f"### {title}", "", *wrap(EXPLANATIONS[part]), "", *markdown(table), ""]
    return [*lines, *(notes + [""] if notes else []), *wrap(origin(entry)), ""]


def markdown(rows):
    """A table of dictionaries that all have the same keys; columns in which every cell is empty are left out."""
    columns = [column for column in rows[0] if any(row[column] for row in rows)]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return lines + ["| " + " | ".join(row[column] for column in columns) + " |" for row in rows]


def rate(row):
    return {"what": row["name"], "rate": f"{number(row['limit'])} {row['unit']}"}


def cells(row):
    setting = f", {row['setting']}" if row.get("setting") else ""
    limit = row.get("limit")
    peaks = [row[side]["peak_bytes"] for side in ("ours", "peer") if side in row]
    return {
        "what": row["name"],
        "unit": row["unit"],
        "colossal-chat": spread(row["ours"]),
        "peer": spread(row["peer"]) + setting if "peer" in row else "",
        "ratio": f"**{spread(row['ratio'], 2)}**" if "ratio" in row else "",
        "limit": number(limit) if limit else "",
        "of the limit": f"{share(row):.0%}" if limit else "",
        "difference": f"{row['difference']:.2g}" if "difference" in row else "",
        "memory, MiB": " / ".join(f"{peak / 2**20:,.0f}" for peak in peaks if peak),
    }


def share(row):
    reached = row["ours"]["median"] / row["limit"]
    return reached if row["higher_is_better"] else 1 / reached


def spread(values, places=None):
    form = (lambda value: f"{value:.{places}f}") if places else number
    return f"{form(values['median'])} [{form(values['min'])}, {form(values['max'])}]"


def number(value):
    """Three digits, or all digits before the point."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def origin(entry):
    versions = ", ".join(f"{name} {version}" for name, version in entry["versions"].items())
    line = f"{entry['date']}, commit {entry['commit']}, {entry['threads']} threads, rounds: {entry['rounds']}; {versions}."
    if entry["cores_in_use_before"] > 0.1:
        line += f" Other processes used {entry['cores_in_use_before']:.1f} cores just before."
    return line


def wrap(text, width=118):
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return [*lines, line]
