"""Training on many meshes of processes beside training on one process: the largest differences of losses and final weights.

    python tests/parity.py [BINARY] [--ranks 2,4,8] [--stages sft,rm,ppo] [--only TEXT] [--moments bfloat16]

Tiny random models are trained for 20 steps with every way of sharing the work, on as many processes as asked for, and beside that on one
process. Weights are compared in fp32, every tensor; losses are those of every step. Adam divides a gradient by its own size, so `eps` is
1e-4: above the rounding of a gradient that is zero but for it. The script prints one line a run and a table, and fails above 1e-5. It
needs numpy and safetensors.

With `--moments bfloat16` the models have a vocabulary, inner widths and experts that no number of processes divides, and moments whose
rounding is random. Each mesh trains for 50 steps, at the end of which the program compares all copies of every weight and moment bit by
bit and fails if two differ. A run on the same mesh that resumes from step 25 must give the same files, and one that resumes from the
checkpoint of a single process must have equal copies as well.
"""

import argparse
import json
import shutil
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
# What of these models no number of processes divides, in the runs with moments in bfloat16.
UNEVEN = {
    "llama": dict(vocab_size=301, intermediate_size=49),
    "gpt2": dict(vocab_size=301, n_inner=131),
    "mixtral": dict(vocab_size=301, intermediate_size=49, num_local_experts=9),
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
    def __init__(self, binary, folder, stages, is_uneven):
        self.binary, self.folder = binary, folder
        (folder / "rows.toml").write_text(ROWS)
        self.call("pipeline", "--config", "rows.toml")
        for name, config in MODELS.items():
            config = dict(config, **UNEVEN[name]) if is_uneven else config
            (folder / f"{name}.json").write_text(json.dumps(config))
            self.call("model", "init", f"{name}.json", "--tokenizer", "rows/tokenizer", "--seed", "3", "--out", name)
            if "ppo" not in stages:
                continue
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

    def run(self, out, model, stage, ranks, settings, *more):
        self.file("run", model, stage)
        words = ["--nproc", str(ranks), "--set", f"out={out}", *more]
        for key, value in settings.items():
            value = ranks if value == "P" else value
            words += ["--set", f"parallel.{key}={json.dumps(value)}"]
        self.call(stage, "--config", "run.toml", *words)

    def train(self, model, stage, ranks, settings):
        out = f"run-{len(list(self.folder.glob('run-*')))}"
        self.run(out, model, stage, ranks, settings)
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


def moments(stage, *more):
    """The settings of a run with moments in bfloat16 and a checkpoint halfway."""
    length = ("ppo.iterations=8", "checkpoint.every=4") if stage == "ppo" else ("train.steps=50", "checkpoint.every=25")
    sets = ("train.moments_dtype=bfloat16", "checkpoint.keep=9", *length)
    return [word for setting in sets for word in ("--set", setting)] + list(more)


def halfway(bench, name, copy):
    """A copy of a finished run that has got no further than its first checkpoint."""
    shutil.rmtree(bench.folder / copy, ignore_errors=True)
    shutil.copytree(bench.folder / name, bench.folder / copy)
    shutil.rmtree(bench.folder / copy / "final")
    checkpoints = sorted((bench.folder / copy / "checkpoints").iterdir(), key=lambda path: int(path.name.split("-")[1]))
    for path in checkpoints[1:]:
        shutil.rmtree(path)


def check_copies(bench, model, stage, way, count, settings):
    """Trains on this mesh, at the end of which the program compares all copies; resumes there, and from one process."""
    shutil.rmtree(bench.folder / "whole", ignore_errors=True)
    bench.run("whole", model, stage, count, settings, *moments(stage))
    halfway(bench, "whole", "resumed")
    bench.run("resumed", model, stage, count, settings, *moments(stage, "--resume"))
    for path in sorted((bench.folder / "whole").rglob("*.safetensors")):
        other = bench.folder / "resumed" / path.relative_to(bench.folder / "whole")
        if path.read_bytes() != other.read_bytes():
            sys.exit(f"{model} {stage} {way} {count}: {other} differs from that of the run without a break")
    halfway(bench, "alone", "moved")
    bench.run("moved", model, stage, count, settings, *moments(stage, "--resume"))
    print(f"{model:8} {stage:4} {way:34} {count}  copies are equal, and resumed equals uninterrupted", flush=True)


def check_all_copies(bench, model, stage, runs):
    if runs:
        shutil.rmtree(bench.folder / "alone", ignore_errors=True)
        bench.run("alone", model, stage, 1, {}, *moments(stage))
    for run in runs:
        check_copies(bench, model, stage, *run)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary", nargs="?", default=HERE.parent / "target/release/colossal-chat")
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--stages", default="sft,rm,ppo")
    parser.add_argument("--only", default="")
    parser.add_argument("--moments", choices=["float32", "bfloat16"], default="float32")
    arguments = parser.parse_args()
    ranks, stages = [int(count) for count in arguments.ranks.split(",")], arguments.stages.split(",")
    worst, table = 0.0, {}
    with tempfile.TemporaryDirectory() as folder:
        is_uneven = arguments.moments == "bfloat16"
        bench = Bench(Path(arguments.binary).resolve(), Path(folder), stages, is_uneven)
        for model in MODELS:
            ways, mixed = (EXPERTS, MIXED_EXPERTS) if model == "mixtral" else (WAYS, MIXED)
            runs = [(f"{way}", count, settings) for way, settings in ways.items() for count in ranks]
            runs += [(way, 8, settings) for way, settings in mixed.items() if 8 in ranks]
            for stage in stages:
                if is_uneven:
                    check_all_copies(bench, model, stage, [run for run in runs if arguments.only in f"{model} {stage} {run[0]}"])
                    continue
                alone = bench.train(model, stage, 1, {})
                for way, count, settings in runs:
                    if arguments.only not in f"{model} {stage} {way}":
                        continue
                    losses, weights = difference(alone, bench.train(model, stage, count, settings))
                    print(f"{model:8} {stage:4} {way:34} {count}  loss {losses:.1e}  weights {weights:.1e}", flush=True)
                    table.setdefault((model, way, count), {})[stage] = (losses, weights)
                    worst = max(worst, losses, weights)
    if is_uneven:
        return
    print("\n| model | way | processes |", " | ".join(f"{stage}: loss, weights" for stage in stages), "|")
    print("|---|---|---|" + "---|" * len(stages))
    for (model, way, count), row in table.items():
        cells = [f"{row[stage][0]:.1e}, {row[stage][1]:.1e}" for stage in stages]
        print(f"| {model} | {way} | {count} |", " | ".join(cells), "|")
    print(f"\nworst {worst:.1e}")
    if worst > LIMIT:
        sys.exit(1)


main()
