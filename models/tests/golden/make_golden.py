"""Writes the golden models of this folder: tiny random models and the logits that transformers gives for them.

    OMP_NUM_THREADS=1 python make_golden.py

One folder each: `config.json` and `model.safetensors` as transformers saves them, and `golden.safetensors` with two rows of
token ids, `ids.0` and `ids.1`, and the logits `[T, V]` of each, computed row by row, without padding, in fp32, with eager
attention. Sequence-classification models hold the score of each row's last token instead. Made with torch 2.11.0 and
transformers 5.23.0; the versions used are printed.
"""

import json
import pathlib
import shutil
import sys

import safetensors.torch
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

HERE = pathlib.Path(__file__).parent
VOCAB = 48
LENGTHS = (11, 23)

LLAMA = dict(model_type="llama", vocab_size=VOCAB, hidden_size=24, intermediate_size=40, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=16, rms_norm_eps=1e-5)
QWEN2 = {**LLAMA, "model_type": "qwen2", "sliding_window": 5}
QWEN3 = {**LLAMA, "model_type": "qwen3", "head_dim": 12}
GPT2 = dict(model_type="gpt2", vocab_size=VOCAB, n_embd=24, n_layer=2, n_head=4, n_positions=32)
OPT = dict(model_type="opt", vocab_size=VOCAB, hidden_size=24, ffn_dim=40, num_hidden_layers=2, num_attention_heads=4,
           max_position_embeddings=32)
BLOOM = dict(model_type="bloom", vocab_size=VOCAB, hidden_size=24, n_layer=2, n_head=4)
NEOX = dict(model_type="gpt_neox", vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
            num_attention_heads=4, max_position_embeddings=32)
MIXTRAL = {**LLAMA, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
QWEN2_MOE = {**LLAMA, "model_type": "qwen2_moe", "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 20,
             "shared_expert_intermediate_size": 28}
QWEN3_MOE = {**QWEN3, "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20}


def rope(kind, **parameters):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **parameters}}


MODELS = {
    "llama": LLAMA,
    "llama-tied": {**LLAMA, "tie_word_embeddings": True, "num_key_value_heads": 4},
    "llama-biases": {**LLAMA, "attention_bias": True, "mlp_bias": True, "head_dim": 6, "hidden_act": "gelu"},
    "llama-linear": {**LLAMA, **rope("linear", factor=3.0)},
    "llama-dynamic": {**LLAMA, **rope("dynamic", factor=2.0)},
    "llama-llama3": {**LLAMA, **rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                     original_max_position_embeddings=8)},
    "llama-yarn": {**LLAMA, **rope("yarn", factor=4.0, original_max_position_embeddings=8, beta_fast=4.0)},
    "mistral": {**LLAMA, "model_type": "mistral", "sliding_window": 5},
    "qwen2": {**QWEN2, "tie_word_embeddings": True},
    "qwen2-window": {**QWEN2, "use_sliding_window": True, "max_window_layers": 1},
    "qwen3": QWEN3,
    "gpt2": GPT2,
    "gpt2-scaled": {**GPT2, "scale_attn_by_inverse_layer_idx": True, "n_inner": 40, "activation_function": "relu"},
    "opt": OPT,
    "opt-after": {**OPT, "do_layer_norm_before": False, "word_embed_proj_dim": 16},
    "bloom": BLOOM,
    "bloom-normed": {**BLOOM, "n_head": 6, "apply_residual_connection_post_layernorm": True},
    "neox": NEOX,
    "neox-sequential": {**NEOX, "use_parallel_residual": False, **rope("default", partial_rotary_factor=0.5)},
    "mixtral": MIXTRAL,
    "qwen2-moe": {**QWEN2_MOE, "mlp_only_layers": [0]},
    "qwen3-moe": {**QWEN3_MOE, "norm_topk_prob": True},
    "mixtral-bare": MIXTRAL,
    "qwen2-moe-window": {**QWEN2_MOE, "num_key_value_heads": 4, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    "qwen3-moe-window": {**QWEN3_MOE, "head_dim": 6, "num_key_value_heads": 4, "use_sliding_window": True, "sliding_window": 5,
                         "max_window_layers": 1},
}
# Keys whose values are the defaults of transformers, and that the file leaves out.
BARE = {
    "mixtral-bare": ["rope_parameters", "sliding_window"],
    "qwen2-moe-window": ["rope_parameters", "layer_types"],
    "qwen3-moe-window": ["rope_parameters", "head_dim", "num_key_value_heads"],
}
CLASSIFIERS = {"llama-score": LLAMA, "gpt2-score": GPT2, "opt-score": {**MODELS["opt-after"]}}


def build(settings, auto, seed):
    torch.manual_seed(seed)
    settings = dict(settings)
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    config._attn_implementation = "eager"
    model = auto.from_config(config).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Norms and biases away from one and zero, and attention that is not uniform.
            if parameter.dim() == 1:
                parameter += 0.1 * torch.randn_like(parameter)
            else:
                parameter.copy_(0.2 * torch.randn_like(parameter))
    return model


def write(name, settings, auto, seed, **extra):
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    model = build({**settings, **extra}, auto, seed)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    golden = {}
    for index, length in enumerate(LENGTHS):
        ids = torch.randint(3, VOCAB, (length,))
        with torch.no_grad():
            logits = model(ids[None]).logits[0]
        golden[f"ids.{index}"], golden[f"logits.{index}"] = ids, logits.contiguous()
    safetensors.torch.save_file(golden, folder / "golden.safetensors")
    old_spelling(folder, name)
    bare(folder, BARE.get(name, []))


def bare(folder, keys):
    """Leaves keys out of `config.json`; what transformers makes of the rest must be the same model."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in config.items() if key not in keys}, indent=2) + "\n")
    if keys:
        golden = safetensors.torch.load_file(folder / "golden.safetensors")
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        with torch.no_grad():
            assert torch.equal(model(golden["ids.1"][None]).logits[0], golden["logits.1"]), folder


def old_spelling(folder, name):
    """The spelling of transformers 4 for some, so that both are read."""
    if name not in ("llama-linear", "llama-yarn", "neox"):
        return
    path = folder / "config.json"
    config = json.loads(path.read_text())
    parameters = config.pop("rope_parameters")
    theta, share = parameters.pop("rope_theta"), parameters.pop("partial_rotary_factor", None)
    if name == "neox":
        config["rotary_emb_base"], config["rotary_pct"] = theta, share
    else:
        parameters["type"] = parameters.pop("rope_type")
        config["rope_theta"], config["rope_scaling"] = theta, parameters
    path.write_text(json.dumps(config, indent=2) + "\n")


def main():
    print(f"python {sys.version.split()[0]}, torch {torch.__version__}, transformers {transformers.__version__}")
    torch.set_num_threads(1)
    for seed, (name, settings) in enumerate(MODELS.items()):
        write(name, settings, AutoModelForCausalLM, seed)
    for seed, (name, settings) in enumerate(CLASSIFIERS.items()):
        write(name, settings, AutoModelForSequenceClassification, 100 + seed, num_labels=1, pad_token_id=0)


main()
