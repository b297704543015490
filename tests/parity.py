"""Training on many meshes of processes beside training on one process: the largest differences of losses and final weights.

    python tests/parity.py [BINARY] [--ranks 2,4,8] [--stages sft,rm,ppo] [--only TEXT]

Tiny random models are trained for 20 steps with every way of sharing the work, on as many processes as asked for, and beside that on one
process. Weights are compared in fp32, every tensor; losses are those of every step. Adam divides a gradient by its own size, so `eps` is
1e-4: above the rounding of a gradient that is zero but for it. The script prints one line a run and a table, and fails above 1e-5. It
needs numpy and safetensors.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy
from safetensors.numpy import load_file

HERE = Path(__file__).resolve().parent
LIMIT = 1e-5
SIZES = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=14, num_attention_heads=8, num_key_value_heads=4,
             max_position_embeddings=128, vocab_size=300)
MODELS = {
    "llama": dict(SIZES, model_type="llama", architectures=["LlamaForCausalLM"], tie_word_embeddings=True),
    "gpt2": dict(model_type="gpt2", architectures=["GPT2LMHeadModel"], vocab_size=300, n_embd=32, n_layer=14, n_head=8,
                 n_positions=128),
    "mixtral": dict(SIZES, model_type="mixtral", architectures=["MixtralForCausalLM"], num_hidden_layers=2,
                    num_local_experts=8, num_experts_per_tok=2, output_router_logits=True, router_aux_loss_coef=0.02),
}
# Settings below [parallel]; P is the number of processes.
WAYS = {
    "data": {},
    "tensor": {"tensor.size": "P"},
    "sequence, Megatron": {"tensor.size": "P", "sequence.mode": "megatron"},
    "sequence, Ulysses": {"sequence.size": "P", "sequence.mode": "ulysses"},
    "sequence, ring": {"sequence.size": "P", "sequence.mode": "ring"},
    "pipeline, GPipe": {"pipeline.size": "P", "pipeline.schedule": "gpipe"},
    "pipeline, 1F1B": {"pipeline.size": "P"},
    "pipeline, interleaved": {"pipeline.size": "P", "pipeline.schedule": "interleaved"},
    "pipeline, ZB-H1": {"pipeline.size": "P", "pipeline.schedule": "zb-h1"},
    "pipeline, ZB-V": {"pipeline.size": "P", "pipeline.schedule": "zb-v"},
}
EXPERTS = {"data": {}, "expert": {"expert.size": "P"}}
# On eight processes; what is left over is data parallel.
MIXED = {
    "pipeline 2 x data 2 x tensor 2": {"pipeline.size": 2, "tensor.size": 2},
    "data 2 x ring 2 x tensor 2": {"sequence.size": 2, "sequence.mode": "ring", "tensor.size": 2},
    "pipeline 2 x data 2 x Megatron 2": {"pipeline.size": 2, "tensor.size": 2, "sequence.mode": "megatron"},
    "ZB-V 2 x data 2 x Ulysses 2": {"pipeline.size": 2, "pipeline.schedule": "zb-v", "sequence.size": 2,
                                    "sequence.mode": "ulysses"},
}
MIXED_EXPERTS = {
    "data 2 x expert 2 x tensor 2": {"expert.size": 2, "tensor.size": 2},
    "pipeline 2 x data 2 x expert 2": {"expert.size": 2, "pipeline.size": 2},
}
RUN = """
out = "out"
[parallel]
transport = "auto"
[model]
path = "{model}"
[data]
train = "rows/data/{rows}.parquet"
max_length = 128
[train]
steps = 20
eps = 1e-4
lr = 1e-3
micro_batch_size = 1
{accumulation}
[log]
every = 1
{more}
"""
PPO = """
[ppo]
reward_model = "{reward}"
iterations = 20
rollout_batch_size = 8
mini_batch_size = 8
epochs = 1
max_new_tokens = 6
"""
ROWS = """
seed = 4
out = "rows"
[tokenizer]
vocab_size = 300
[synth]
pretraining = 200
train = 60
preferences = 60
heldout_preferences = 4
prompts = 40
heldout = 4
[data]
max_length = 128
[pipeline]
stages = ["data", "tokenizer"]
"""


class Bench:
    def __init__(self, binary, folder):
        self.binary, self.folder = binary, folder
        (folder / "rows.toml").write_text(ROWS)
        self.call("pipeline", "--config", "rows.toml")
        for name, config in MODELS.items():
            (folder / f"{name}.json").write_text(json.dumps(config))
            self.call("model", "init", f"{name}.json", "--tokenizer", "rows/tokenizer", "--seed", "3", "--out", name)
            self.file(f"{name}-rm", name, "rm")
            self.call("rm", "--config", f"{name}-rm.toml", "--set", f"out=reward-{name}")

    def call(self, *words):
        done = subprocess.run([self.binary, *words], cwd=self.folder, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(words)}: {done.stderr}")

    def file(self, name, model, stage):
        rows = {"sft": "sft", "rm": "preference", "ppo": "prompts"}[stage]
        more = PPO.format(reward=f"reward-{model}/final") if stage == "ppo" else ""
        accumulation = "" if stage == "ppo" else "gradient_accumulation_steps = 8"
        text = RUN.format(model=model, rows=rows, accumulation=accumulation, more=more)
        (self.folder / f"{name}.toml").write_text(text)

    def train(self, model, stage, ranks, settings):
        out = f"run-{len(list(self.folder.glob('run-*')))}"
        self.file("run", model, stage)
        words = ["--nproc", str(ranks), "--set", f"out={out}"]
        for key, value in settings.items():
            value = ranks if value == "P" else value
            words += ["--set", f"parallel.{key}={json.dumps(value)}"]
        self.call(stage, "--config", "run.toml", *words)
        rows = [json.loads(line) for line in (self.folder / out / "metrics.jsonl").read_text().splitlines()]
        names = [name for name in rows[0] if name.startswith(("loss", "objective/"))]
        losses = numpy.array([[row[name] for name in names] for row in rows])
        return losses, load_file(self.folder / out / "final/model.safetensors")


def difference(one, many):
    losses, weights = one
    other, others = many
    assert losses.shape == other.shape == (20, losses.shape[1]) and weights.keys() == others.keys()
    assert numpy.isfinite(other).all() and all(numpy.isfinite(tensor).all() for tensor in others.values())
    relative = numpy.abs(losses - other) / numpy.maximum(1, numpy.abs(losses))
    return relative.max(), max(numpy.abs(weights[name] - others[name]).max() for name in weights)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary", nargs="?", default=HERE.parent / "target/release/colossal-chat")
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--stages", default="sft,rm,ppo")
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    ranks, stages = [int(count) for count in arguments.ranks.split(",")], arguments.stages.split(",")
    worst, table = 0.0, {}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(arguments.binary).resolve(), Path(folder))
        for model in MODELS:
            ways, mixed = (EXPERTS, MIXED_EXPERTS) if model == "mixtral" else (WAYS, MIXED)
            runs = [(f"{way}", count, settings) for way, settings in ways.items() for count in ranks]
            runs += [(way, 8, settings) for way, settings in mixed.items() if 8 in ranks]
            for stage in stages:
                alone = bench.train(model, stage, 1, {})
                for way, count, settings in runs:
                    if arguments.only not in f"{model} {stage} {way}":
                        continue
                    losses, weights = difference(alone, bench.train(model, stage, count, settings))
                    print(f"{model:8} {stage:4} {way:34} {count}  loss {losses:.1e}  weights {weights:.1e}", flush=True)
                    table.setdefault((model, way, count), {})[stage] = (losses, weights)
                    worst = max(worst, losses, weights)
    print("\n| model | way | processes |", " | ".join(f"{stage}: loss, weights" for stage in stages), "|")
    print("|---|---|---|" + "---|" * len(stages))
    for (model, way, count), row in table.items():
        cells = [f"{row[stage][0]:.1e}, {row[stage][1]:.1e}" for stage in stages]
        print(f"| {model} | {way} | {count} |", " | ".join(cells), "|")
    print(f"\nworst {worst:.1e}")
    if worst > LIMIT:
        sys.exit(1)


main()
