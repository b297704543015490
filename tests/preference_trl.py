"""One optimizer step of every offline algorithm and of distillation beside TRL 1.16.0: the loss and the norm of the gradient
must agree.

    pip install torch==2.11.0 transformers==5.23.0 trl==1.16.0 accelerate==1.15.0 datasets==5.2.0 tokenizers
    python tests/preference_trl.py target/release/colossal-chat

Both sides have the same LLaMA of 0.1 million parameters with random weights, another one as the reference, the same token
ids, and all rows in one step. ORPO and CPO of TRL append an end of text, so our rows end with one.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

os.environ |= {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.gkd import GKDTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

TOLERANCE = 1e-4
VOCABULARY = 64
END, PADDING = 1, 0
TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"

# Name, our stage, our settings, TRL's trainer and its settings.
CASES = [
    (loss, "dpo", [f"dpo.loss={loss}", f"dpo.beta={beta}", *ours], "dpo", {"loss_type": [theirs], "beta": beta, **more})
    for loss, theirs, beta, ours, more in [
        ("sigmoid", "sigmoid", 0.1, [], {}),
        ("hinge", "hinge", 0.1, [], {}),
        ("ipo", "ipo", 0.1, [], {}),
        ("robust", "robust", 0.1, ["dpo.label_smoothing=0.1"], {"label_smoothing": 0.1}),
        ("exo", "exo_pair", 0.1, ["dpo.label_smoothing=0.001"], {"label_smoothing": 1e-3}),
        ("nca", "nca_pair", 0.1, [], {}),
        ("bco", "bco_pair", 0.1, [], {}),
        ("sppo_hard", "sppo_hard", 0.5, [], {}),
        ("aot", "aot", 0.1, [], {}),
        ("aot_unpaired", "aot_unpaired", 0.1, [], {}),
        ("apo_zero", "apo_zero", 0.1, [], {}),
        ("apo_down", "apo_down", 0.1, [], {}),
        ("discopop", "discopop", 0.1, [], {}),
        ("sigmoid_norm", "sigmoid_norm", 2.0, [], {}),
    ]
] + [
    ("forward_kl", "dpo", ["dpo.f_divergence=forward_kl"], "dpo", {"f_divergence_type": "forward_kl"}),
    ("weighting", "dpo", ["dpo.use_weighting=true"], "dpo", {"use_weighting": True}),
    ("ld_alpha", "dpo", ["dpo.ld_alpha=0.4"], "dpo", {"ld_alpha": 0.4}),
    ("sigmoid and sft", "dpo", ["dpo.loss=['sigmoid','sft']", "dpo.loss_weights=[1.0,0.5]"], "dpo",
     {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.5]}),
    ("kto", "kto", [], "kto", {}),
    ("kto, weights", "kto", ["kto.desirable_weight=1.5", "kto.beta=0.3"], "kto", {"desirable_weight": 1.5, "beta": 0.3}),
    ("orpo", "orpo", ["orpo.nll_tokens=all"], "orpo", {"beta": 0.1}),
    ("cpo", "cpo", [], "cpo", {"beta": 0.1, "cpo_alpha": 1.0, "loss_type": "sigmoid"}),
    ("simpo", "simpo", ["simpo.beta=2.0", "simpo.gamma=1.0"], "cpo",
     {"beta": 2.0, "simpo_gamma": 1.0, "cpo_alpha": 0.0, "loss_type": "simpo"}),
    ("distill, forward", "distill", [], "gkd", {"beta": 0.0}),
    ("distill, reverse", "distill", ["distill.divergence=reverse_kl"], "gkd", {"beta": 1.0}),
    ("distill, jsd", "distill", ["distill.divergence=jsd", "distill.beta=0.3"], "gkd", {"beta": 0.3}),
]


# The files of rows and the second models of our stages.
ROWS = {"kto": "unpaired", "distill": "demonstrations"}
OTHER_MODEL = {
    "dpo": '[reference]\nmodel = "{folder}/reference"\n', "kto": '[reference]\nmodel = "{folder}/reference"\n',
    "distill": '[distill]\nteacher = "{folder}/reference"\n',
}


def word(number):
    """No word begins with another one, because TRL's tokenizer looks for the end of text inside of words."""
    return f"w{number:02}"


def words(ids):
    return " ".join(map(word, ids))


def rows():
    """Eight pairs of token ids; the completions have different lengths and end with an end of text."""
    torch.manual_seed(3)
    draw = lambda length: torch.randint(2, VOCABULARY, (length,)).tolist()
    return [
        {"prompt": draw(3 + row % 3), "chosen": draw(2 + row % 4) + [END], "rejected": draw(1 + row % 5) + [END]}
        for row in range(8)
    ]


def unpaired(pairs):
    for row, pair in enumerate(pairs):
        is_good = row % 2 == 0
        yield {"prompt": pair["prompt"], "completion": pair["chosen" if is_good else "rejected"], "label": is_good}


def make_models(folder):
    tokenizer = Tokenizer(models.WordLevel({word(number): number for number in range(VOCABULARY)}, unk_token=word(2)))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=word(END), pad_token=word(PADDING), chat_template=TEMPLATE)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.15, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=END, pad_token_id=PADDING)
    for seed, name in enumerate(("policy", "reference")):
        torch.manual_seed(seed)
        LlamaForCausalLM(config).save_pretrained(folder / name)
        wrapped.save_pretrained(folder / name)
    return wrapped


def ours(binary, folder, stage, settings):
    out = folder / "run"
    subprocess.run(["rm", "-rf", out], check=True)
    (folder / "run.toml").write_text(f"""
out = "{out}"
[model]
path = "{folder}/policy"
[data]
train = "{folder}/{ROWS.get(stage, 'pairs')}.jsonl"
shuffle = false
cache = ""
[train]
steps = 1
micro_batch_size = 4
gradient_accumulation_steps = 2
lr = 1e-4
max_grad_norm = 1e9
""" + OTHER_MODEL.get(stage, "").format(folder=folder))
    sets = [word for setting in settings for word in ("--set", setting)]
    done = subprocess.run([binary, stage, "--config", folder / "run.toml", *sets], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{stage} {settings}: {done.stderr}")
    first = json.loads((out / "metrics.jsonl").read_text().splitlines()[0])
    return first["loss"], first["grad_norm"]


def one_step(folder, pairs):
    """TRL's settings for one step over all rows, without clipping."""
    return {
        "output_dir": str(folder / "trl"), "per_device_train_batch_size": len(pairs), "max_steps": 1, "logging_steps": 1,
        "learning_rate": 1e-4, "max_grad_norm": 1e9, "report_to": [], "use_cpu": True, "save_strategy": "no", "bf16": False,
        "disable_tqdm": True, "gradient_checkpointing": False,
    }


def trl(folder, tokenizer, kind, settings, pairs):
    common = {**one_step(folder, pairs), **settings}
    load = lambda name: LlamaForCausalLM.from_pretrained(folder / name, dtype=torch.float32)
    # TRL tokenizes texts. It appends an end of text where a completion has none; ORPO and CPO always append one.
    text = lambda ids: words(ids) + (" " if ids[-1] != END else "")
    if kind == "dpo":
        data = [{key: text(ids) for key, ids in pair.items()} for pair in pairs]
        trainer = DPOTrainer(
            model=load("policy"), ref_model=load("reference"), args=DPOConfig(**common), train_dataset=Dataset.from_list(data),
            processing_class=tokenizer)
    elif kind == "kto":
        data = [
            {"prompt": text(row["prompt"]), "completion": text(row["completion"]), "label": row["label"]}
            for row in unpaired(pairs)]
        args = KTOConfig(**common, train_sampling_strategy="sequential")
        trainer = KTOTrainer(
            model=load("policy"), ref_model=load("reference"), args=args, train_dataset=Dataset.from_list(data),
            processing_class=tokenizer)
    else:
        data = [{
            "prompt": text(p["prompt"]), "chosen": words(p["chosen"][:-1]), "rejected": words(p["rejected"][:-1]),
        } for p in pairs]
        config, trainer = {"orpo": (ORPOConfig, ORPOTrainer), "cpo": (CPOConfig, CPOTrainer)}[kind]
        trainer = trainer(
            model=load("policy"), args=config(**common), train_dataset=Dataset.from_list(data), processing_class=tokenizer)
    trainer.train()
    row = next(row for row in trainer.state.log_history if "grad_norm" in row)
    return row["loss"], row["grad_norm"]


def gkd(folder, beta, pairs):
    """The loss of TRL's trainer on a padded batch. Its collator reads conversations, so the batch is made here."""
    load = lambda name: LlamaForCausalLM.from_pretrained(folder / name, dtype=torch.float32)
    student, teacher = load("policy"), load("reference")
    ids = [pair["prompt"] + pair["chosen"] for pair in pairs]
    labels = [[-100] * len(pair["prompt"]) + pair["chosen"] for pair in pairs]
    padded = lambda rows, value: torch.tensor([row + [value] * (max(map(len, ids)) - len(row)) for row in rows])
    inputs = {
        "input_ids": padded(ids, PADDING), "labels": padded(labels, -100),
        "attention_mask": padded([[1] * len(row) for row in ids], 0),
    }
    trainer = SimpleNamespace(
        teacher_model=teacher, beta=beta, generalized_jsd_loss=GKDTrainer.generalized_jsd_loss)
    loss = GKDTrainer.compute_loss(trainer, student, inputs)
    loss.backward()
    norm = torch.sqrt(sum(parameter.grad.square().sum() for parameter in student.parameters()))
    return loss.item(), norm.item()


def main():
    binary = Path(sys.argv[1]).resolve()
    bad = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer, pairs = make_models(folder), rows()
        write = lambda file, lines: (folder / file).write_text("".join(json.dumps(line) + "\n" for line in lines))
        write("pairs.jsonl", ({
            "chosen_input_ids": p["prompt"] + p["chosen"], "rejected_input_ids": p["prompt"] + p["rejected"],
            "prompt_length": len(p["prompt"]),
        } for p in pairs))
        write("unpaired.jsonl", (
            {**row, "prompt": words(row["prompt"]), "completion": words(row["completion"])} for row in unpaired(pairs)))
        write("demonstrations.jsonl", ({
            "input_ids": p["prompt"] + p["chosen"], "labels": [-100] * len(p["prompt"]) + p["chosen"],
        } for p in pairs))
        for name, stage, settings, kind, theirs in CASES:
            mine = ours(binary, folder, stage, settings)
            other = gkd(folder, theirs["beta"], pairs) if kind == "gkd" else trl(folder, tokenizer, kind, theirs, pairs)
            errors = [abs(left - right) / max(1, abs(right)) for left, right in zip(mine, other)]
            good = max(errors) <= TOLERANCE
            bad += not good
            print(
                f"{name:<16} loss {mine[0]:.6f} {other[0]:.6f}  gradient {mine[1]:.6f} {other[1]:.6f}  "
                f"{'equal' if good else 'DIFFERENT'}", flush=True)
    print(f"{len(CASES) - bad} of {len(CASES)} are within {TOLERANCE:g}")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
