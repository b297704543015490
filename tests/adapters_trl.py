"""One step of supervised fine-tuning and one of DPO on an adapter, beside PEFT with TRL: the loss, and the gradient of every
number of the adapter, must agree within 1e-5.

    pip install torch==2.11.0 transformers==5.23.0 trl==1.16.0 peft==0.21.2 accelerate==1.15.0 datasets==5.2.0 tokenizers
    python tests/adapters_trl.py target/release/colossal-chat

Both sides begin with the same random LLaMA and the same random adapter, which PEFT has saved. The gradient of our side is read
off the step: with AdamW's eps at 1e6, and 1e6 as the learning rate, the first step subtracts the gradient.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model
from preference_trl import make_models, one_step, rows, words
from safetensors.torch import load_file
from transformers import LlamaForCausalLM, TrainerCallback
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

TOLERANCE = 1e-5
KINDS = {"lora": {}, "rslora": {"use_rslora": True}, "dora": {"use_dora": True}}


def make_adapter(folder, kind):
    torch.manual_seed(5)
    base = LlamaForCausalLM.from_pretrained(folder / "policy", dtype=torch.float32)
    settings = LoraConfig(r=4, lora_alpha=6, target_modules="all-linear", task_type="CAUSAL_LM", **KINDS[kind])
    model = get_peft_model(base, settings)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_A" in name or "lora_B" in name:
                parameter.copy_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder / "adapter")


def ours(binary, folder, stage, more):
    """The loss of the first step, and the adapter's gradients by PEFT's names."""
    out = folder / "run"
    subprocess.run(["rm", "-rf", out], check=True)
    (folder / "run.toml").write_text(f"""
out = "{out}"
[model]
path = "{folder}/adapter"
[tokenizer]
path = "{folder}/policy"
[data]
train = "{folder}/{stage}.jsonl"
shuffle = false
cache = ""
[train]
steps = 1
micro_batch_size = 4
gradient_accumulation_steps = 2
lr = 1e6
eps = 1e6
weight_decay = 0.0
scheduler = "constant"
max_grad_norm = 1e9
{more}
""")
    done = subprocess.run([binary, stage, "--config", folder / "run.toml"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{stage}: {done.stderr}")
    first = json.loads((out / "metrics.jsonl").read_text().splitlines()[0])
    before = load_file(folder / "adapter/adapter_model.safetensors")
    after = load_file(out / "final/adapter_model.safetensors")
    return first["loss"], {name: before[name] - after[name] for name in before}


class Gradients(TrainerCallback):
    """Keeps the gradients of the first step."""

    def __init__(self):
        self.by_name = {}

    def on_pre_optimizer_step(self, args, state, control, model=None, **rest):
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                # A file has no `.weight` at the end of a magnitude, and a module has.
                name = name.replace(".default", "").replace("vector.weight", "vector")
                self.by_name[name] = parameter.grad.clone()


def trl(folder, stage, tokenizer, pairs):
    base = LlamaForCausalLM.from_pretrained(folder / "policy", dtype=torch.float32)
    model = PeftModel.from_pretrained(base, folder / "adapter", is_trainable=True)
    common = one_step(folder, pairs)
    gradients = Gradients()
    if stage == "sft":
        data = [
            {"input_ids": p["prompt"] + p["chosen"], "completion_mask": [0] * len(p["prompt"]) + [1] * len(p["chosen"])}
            for p in pairs]
        trainer = SFTTrainer(
            model=model, args=SFTConfig(**common, completion_only_loss=True), train_dataset=Dataset.from_list(data), processing_class=tokenizer,
            callbacks=[gradients])
    else:
        text = lambda ids: words(ids) + (" " if ids[-1] != 1 else "")
        data = [{key: text(ids) for key, ids in pair.items()} for pair in pairs]
        reference = LlamaForCausalLM.from_pretrained(folder / "policy", dtype=torch.float32)
        trainer = DPOTrainer(
            model=model, ref_model=reference, args=DPOConfig(**common, beta=0.1), train_dataset=Dataset.from_list(data),
            processing_class=tokenizer, callbacks=[gradients])
    trainer.train()
    row = next(row for row in trainer.state.log_history if "grad_norm" in row)
    return row["loss"], gradients.by_name


def main():
    binary = Path(sys.argv[1]).resolve()
    bad = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer, pairs = make_models(folder), rows()
        write = lambda file, lines: (folder / file).write_text("".join(json.dumps(line) + "\n" for line in lines))
        write("sft.jsonl", ({
            "input_ids": p["prompt"] + p["chosen"], "labels": [-100] * len(p["prompt"]) + p["chosen"],
        } for p in pairs))
        write("dpo.jsonl", ({
            "chosen_input_ids": p["prompt"] + p["chosen"], "rejected_input_ids": p["prompt"] + p["rejected"],
            "prompt_length": len(p["prompt"]),
        } for p in pairs))
        for kind in KINDS:
            make_adapter(folder, kind)
            for stage, more in (("sft", ""), ("dpo", f'[reference]\nmodel = "{folder}/policy"\n[dpo]\nbeta = 0.1')):
                loss, mine = ours(binary, folder, stage, more)
                other_loss, other = trl(folder, stage, tokenizer, pairs)
                assert mine.keys() == other.keys(), mine.keys() ^ other.keys()
                worst = max((mine[name] - other[name]).abs().max().item() for name in mine)
                largest = max(gradient.abs().max().item() for gradient in other.values())
                good = abs(loss - other_loss) <= TOLERANCE and worst <= TOLERANCE
                bad += not good
                print(
                    f"{kind:<8}{stage:<5} loss {loss:.6f} {other_loss:.6f}  gradients of up to {largest:.3f} differ by "
                    f"{worst:.1e}  {'equal' if good else 'DIFFERENT'}", flush=True)
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
