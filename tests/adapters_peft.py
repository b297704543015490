"""Adapters beside PEFT: there and back, and trained with the same optimizer.

    python tests/adapters_peft.py [BINARY]

For each family and each kind of adapter, a small random model and a random adapter are made in transformers and PEFT. Then the
log-probabilities of six rows are compared three times: (made) PEFT against ours; (trained) ours after 5 steps of `sft` on adapters that begin
as PEFT's against the same 5 steps of torch's AdamW on them in PEFT; (saved) our trained adapter, loaded in PEFT without a warning, against
ours. The largest difference of each is printed; above 1e-5 for what is only loaded, or 1e-4 after training, the script fails.

Then adapters that begin with a part of the weights, PiSSA and OLoRA, of LLaMA, Qwen2, GPT-2 and GPT-NeoX: (product) the largest difference
of `B A` between `model init-adapter` and PEFT, where the signs of singular vectors cancel; (made) our folder in PEFT, without a warning,
against ours; (trained) ours after 5 steps against PEFT after the same steps from its own beginning; (theirs) that adapter of PEFT, saved with
`path_initial_model_for_weight_conversion`, against ours; (converted) our adapter of `model convert-adapter` in PEFT against ours of the
trained one; (unmerged) the weights of `model unmerge` after PEFT has merged an adapter. All but (trained) have the limit 1e-5.

Then adapters that begin with the inputs of their layers, EVA with rho = 2, of the same families: (ranks) the layers whose rank differs between
`model init-adapter` and PEFT, which must be none; (subspace) the largest difference of the projectors `A^T A`, with the limit 1e-2, because PEFT
approximates; (made) our folder in PEFT, without a warning, against ours; (theirs) the adapter of PEFT with random `B` against ours.

Used with torch 2.11.0, transformers 5.23.0 and peft 0.21.2.
"""

import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import torch
from families_transformers import FAMILIES, ROWS, STEPS, difference, make, ours, rows, theirs
from peft import EvaConfig, LoraConfig, PeftModel, get_peft_model, initialize_lora_eva_weights
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

HERE = Path(__file__).resolve().parent
LOADED, TRAINED, APPROXIMATE = 1e-5, 1e-4, 1e-2
# The first tokens of a row whose inputs do not count for EVA.
NOT_COUNTED = 2
TARGETS = {
    "llama": ["q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"],
    "qwen2": ["q_proj", "k_proj", "up_proj", "down_proj"],
    "gpt2": ["c_attn", "c_proj", "c_fc"],
    "gpt_neox": ["query_key_value", "dense", "dense_h_to_4h"],
    "mixtral": ["q_proj", "v_proj"],
}
KINDS = {
    "lora": {},
    "rslora": {"use_rslora": True},
    "dora": {"use_dora": True},
    "patterns": {"rank_pattern": {"0.*": 2}, "alpha_pattern": {"1.*": 3}},
    "biases": {"bias": "all"},
    "dora_biases": {"bias": "lora_only", "use_dora": True},
    "last_norm": {"bias": "all", "modules_to_save": ["model.norm", "transformer.ln_f", "gpt_neox.final_layer_norm"]},
    "tokens": {"trainable_token_indices": [95, 5, 0, 41]},
    "head_tokens": {},
    "parents": {"bias": "all", "modules_to_save": ["0.self_attn", "0.attn", "0.attention", "norm"]},
    "tables": {},
}
# The embedding and the head of families that do not tie them: `head_tokens` trains other rows of each, `tables` adapts both.
# transformers 5 calls the head of GPT-NeoX `lm_head`, and its checkpoints `embed_out`.
UNTIED = {family: ["embed_tokens", "lm_head"] for family in ["llama", "mixtral"]}


def settings_of(family, kind):
    if kind != "head_tokens":
        return KINDS[kind]
    embedding, head = UNTIED[family]
    return {"trainable_token_indices": {embedding: [95, 5], head: [7, 95, 0]}}


def adapted(family, kind, base, folder):
    """A model of PEFT with a random adapter, which is saved in `folder`."""
    torch.manual_seed(2)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager")
    targets = [*TARGETS[family], *(UNTIED[family] if kind == "tables" else [])]
    settings = dict(r=4, lora_alpha=6, target_modules=targets, fan_in_fan_out=family == "gpt2", task_type="CAUSAL_LM")
    model = get_peft_model(model, LoraConfig(**settings, **settings_of(family, kind))).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name and "magnitude" not in name:
                parameter.copy_(0.1 * torch.randn_like(parameter))
            elif "magnitude" in name:
                parameter.mul_(1 + 0.1 * torch.randn_like(parameter))
            elif parameter.requires_grad:  # a bias, of a norm, or rows of tokens
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return model


def train_here(binary, adapter, rows, scratch):
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"input_ids": rows}), scratch / "rows.parquet")
    (scratch / "run.toml").write_text(
        f"""
out = "{scratch / 'run'}"
[model]
path = "{adapter}"
[data]
train = "{scratch / 'rows.parquet'}"
shuffle = false
[train]
steps = {STEPS}
micro_batch_size = {ROWS // 2}
gradient_accumulation_steps = 2
lr = 1e-3
scheduler = "constant"
"""
    )
    done = subprocess.run([binary, "sft", "--config", scratch / "run.toml"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return scratch / "run/final"


def train_there(model, rows):
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    for step in range(STEPS):
        batch = rows[step * ROWS : (step + 1) * ROWS]
        tokens = sum(len(row) - 1 for row in batch)
        for row in batch:
            ids = torch.tensor([row])
            logprobs = model(ids).logits.log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None])
            (-logprobs.sum() / tokens).backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()


def load_without_warning(base, folder):
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # A warning of transformers about itself, which PEFT causes for every model.
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*")
        return PeftModel.from_pretrained(model, folder).eval()


def check(binary, family, kind, scratch):
    base, adapter = scratch / "base", scratch / "adapter"
    make(family, FAMILIES[family], base)
    model = adapted(family, kind, base, adapter)
    held, train = rows()[-6:], rows()[:-6]
    made = difference(theirs(model, held), ours(binary, adapter, held, scratch))

    final = train_here(binary, adapter, train, scratch)
    train_there(model, train)
    after = ours(binary, final, held, scratch)
    trained = difference(theirs(model, held), after)
    saved = difference(theirs(load_without_warning(base, final), held), after)
    return made, trained, saved


def run(binary, *words):
    done = subprocess.run([binary, *words], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)


def init_there(family, init, rslora, base, initial):
    """A model of PEFT with the initial adapter, which is also saved in `initial`."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager")
    settings = dict(r=4, lora_alpha=6, target_modules=TARGETS[family], fan_in_fan_out=family == "gpt2", task_type="CAUSAL_LM")
    model = get_peft_model(model, LoraConfig(init_lora_weights=init, use_rslora=rslora, **settings))
    model.peft_config["default"].init_lora_weights = True
    model.save_pretrained(initial)
    model.peft_config["default"].init_lora_weights = init
    return model.eval()


def products(folder):
    weights = load_file(folder / "adapter_model.safetensors")
    return {name: weights[name.replace("lora_A", "lora_B")] @ a for name, a in weights.items() if "lora_A" in name}


def check_init(binary, family, init, rslora, scratch):
    base, initial, theirs_initial = scratch / "base", scratch / "initial", scratch / "theirs-initial"
    make(family, FAMILIES[family], base)
    flags = ["--rank", "4", "--alpha", "6", "--target", ",".join(TARGETS[family]), *(["--rslora"] if rslora else [])]
    run(binary, "model", "init-adapter", base, "--init", init, *flags, "--out", initial)
    model = init_there(family, init, rslora, base, theirs_initial)
    one, other = products(initial), products(theirs_initial)
    assert one.keys() == other.keys(), one.keys() ^ other.keys()
    product = max((one[name] - other[name]).abs().max().item() for name in one)

    held, train = rows()[-6:], rows()[:-6]
    made = difference(theirs(load_without_warning(initial / "base", initial), held), ours(binary, initial, held, scratch))
    assert difference(ours(binary, base, held, scratch), ours(binary, initial, held, scratch)) < LOADED

    final = train_here(binary, initial, train, scratch)
    train_there(model, train)
    after, there = ours(binary, final, held, scratch), theirs(model, held)
    trained = difference(there, after)

    model.save_pretrained(scratch / "theirs", path_initial_model_for_weight_conversion=str(theirs_initial))
    saved = difference(there, ours(binary, scratch / "theirs", held, scratch))
    run(binary, "model", "convert-adapter", final, "--initial", initial, "--base", base, "--out", scratch / "converted")
    converted = difference(theirs(load_without_warning(base, scratch / "converted"), held), after)

    merged = load_without_warning(base, scratch / "converted").merge_and_unload()
    merged.save_pretrained(scratch / "merged")
    AutoTokenizer.from_pretrained(base).save_pretrained(scratch / "merged")
    unmerge = ["--adapter", scratch / "converted", "--out", scratch / "unmerged"]
    run(binary, "model", "unmerge", scratch / "merged", *unmerge)
    one, other = (load_file(scratch / folder / "model.safetensors") for folder in ["unmerged", "base"])
    assert one.keys() == other.keys(), one.keys() ^ other.keys()
    unmerged = max((one[name] - other[name]).abs().max().item() for name in one)
    return product, made, trained, saved, converted, unmerged


def check_inits(binary):
    names = ["product", "made", "trained", "theirs", "converted", "unmerged"]
    print(f"\n{'family':<12}{'init':<16}" + "".join(f"{name:>11}" for name in names))
    failed = False
    for family in [family for family in TARGETS if family != "mixtral"]:
        for init, rslora in [("pissa", False), ("pissa", True), ("olora", False), ("olora", True)]:
            if (family, init) == ("gpt2", "olora"):
                continue  # PEFT decomposes the transposed weight of a Conv1D, whose factors have other shapes.
            with tempfile.TemporaryDirectory() as scratch:
                found = check_init(binary, family, init, rslora, Path(scratch))
            limits = [TRAINED if name == "trained" else LOADED for name in names]
            failed |= any(one > limit for one, limit in zip(found, limits, strict=True))
            print(f"{family:<12}{init + ' rslora' * rslora:<16}" + "".join(f"{one:>11.1e}" for one in found), flush=True)
    return failed


def padded(rows):
    """A batch in which the first tokens of each row, and the padding, have no label."""
    longest = max(len(row) for row in rows)
    rest = [longest - len(row) for row in rows]
    ids = [row + [0] * more for row, more in zip(rows, rest, strict=True)]
    mask = [[1] * len(row) + [0] * more for row, more in zip(rows, rest, strict=True)]
    labels = [[-100] * NOT_COUNTED + row[NOT_COUNTED:] + [-100] * more for row, more in zip(rows, rest, strict=True)]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask), "labels": torch.tensor(labels)}


def eva_there(family, base, rows, folder):
    """A model of PEFT that began with EVA, whose `B` are random then. The adapter is saved in `folder`."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager")
    settings = dict(r=4, lora_alpha=6, target_modules=TARGETS[family], fan_in_fan_out=family == "gpt2", task_type="CAUSAL_LM")
    # PEFT ends when directions move less than `tau` from one pass over the rows to the next one.
    model = get_peft_model(model, LoraConfig(init_lora_weights="eva", eva_config=EvaConfig(rho=2.0, tau=0.999999), **settings))
    initialize_lora_eva_weights(model, [padded(rows)], show_progress_bar=False)
    torch.manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return model.eval()


def matrices(folder):
    weights = load_file(folder / "adapter_model.safetensors")
    return {name: a for name, a in weights.items() if "lora_A" in name}


def check_eva(binary, family, scratch):
    import pyarrow.parquet

    base, initial, there = scratch / "base", scratch / "initial", scratch / "there"
    make(family, FAMILIES[family], base)
    held, train = rows()[-6:], rows()[:-6]
    labels = [[-100] * NOT_COUNTED + row[NOT_COUNTED:] for row in train]
    pyarrow.parquet.write_table(pyarrow.table({"input_ids": train, "labels": labels}), scratch / "rows.parquet")
    flags = ["--rank", "4", "--alpha", "6", "--target", ",".join(TARGETS[family]), "--data", scratch / "rows.parquet"]
    run(binary, "model", "init-adapter", base, "--init", "eva", *flags, "--out", initial)
    model = eva_there(family, base, train, there)

    one, other = matrices(initial), matrices(there)
    ranks = sum(name not in one or name not in other or len(one[name]) != len(other[name]) for name in one.keys() | other.keys())
    subspace = max((one[name].T @ one[name] - other[name].T @ other[name]).abs().max().item() for name in one.keys() & other.keys())
    made = difference(theirs(load_without_warning(base, initial), held), ours(binary, initial, held, scratch))
    read = difference(theirs(model, held), ours(binary, there, held, scratch))
    return ranks, subspace, made, read


def check_evas(binary):
    names = ["ranks", "subspace", "made", "theirs"]
    print(f"\n{'family':<12}{'init':<16}" + "".join(f"{name:>11}" for name in names))
    failed = False
    for family in [family for family in TARGETS if family != "mixtral"]:
        with tempfile.TemporaryDirectory() as scratch:
            found = check_eva(binary, family, Path(scratch))
        failed |= any(one > limit for one, limit in zip(found, [0, APPROXIMATE, LOADED, LOADED], strict=True))
        print(f"{family:<12}{'eva':<16}" + "".join(f"{one:>11.1e}" for one in found), flush=True)
    return failed


def main():
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    binary = Path(sys.argv[1] if len(sys.argv) > 1 else HERE.parent / "target/release/colossal-chat").resolve()
    print(f"{'family':<12}{'adapter':<12}{'made':>10}{'trained':>10}{'saved':>10}")
    failed = False
    for family in TARGETS:
        for kind in KINDS:
            if kind in ["head_tokens", "tables"] and family not in UNTIED:
                continue
            with tempfile.TemporaryDirectory() as scratch:
                made, trained, saved = check(binary, family, kind, Path(scratch))
            failed |= made > LOADED or trained > TRAINED or saved > LOADED
            print(f"{family:<12}{kind:<12}{made:>10.1e}{trained:>10.1e}{saved:>10.1e}")
    failed |= check_inits(binary)
    failed |= check_evas(binary)
    sys.exit(failed)


if __name__ == "__main__":
    main()
