"""Writes the safetensors of a LLaMA folder as a GGUF file in fp32, in which every token is one character."""

import json
from pathlib import Path

import gguf
import numpy
import settings as process
from safetensors.numpy import load_file

NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def main():
    settings = process.read()
    folder = Path(settings.model)
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(settings.gguf, "llama")
    add_architecture(writer, config)
    add_tokens(writer, config, settings.first_character)
    for name, values in tensors(load_file(folder / "model.safetensors"), config):
        writer.add_tensor(name, numpy.ascontiguousarray(values, dtype=numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    process.write({})


def add_architecture(writer, config):
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"])
    writer.add_rope_freq_base(config.get("rope_theta", 10000.0))
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)


def add_tokens(writer, config, first_character):
    """A vocabulary of characters, to which nothing is added: neither a space nor a token at the beginning."""
    vocabulary = config["vocab_size"]
    types = [gguf.TokenType.NORMAL] * vocabulary
    types[config["pad_token_id"]] = gguf.TokenType.UNKNOWN
    types[config["bos_token_id"]] = types[config["eos_token_id"]] = gguf.TokenType.CONTROL
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([chr(first_character + token) for token in range(vocabulary)])
    writer.add_token_scores([0.0] * vocabulary)
    writer.add_token_types(types)
    writer.add_unk_token_id(config["pad_token_id"])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)


def tensors(weights, config):
    """Names of llama.cpp with their values. The embedding is also the head, which so has no tensor of its own."""
    yield "token_embd.weight", weights["model.embed_tokens.weight"]
    yield "output_norm.weight", weights["model.norm.weight"]
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for layer in range(config["num_hidden_layers"]):
        for theirs, ours in NAMES.items():
            values = weights[f"model.layers.{layer}.{theirs}.weight"]
            yield f"blk.{layer}.{ours}.weight", interleaved(values, heads[ours]) if ours in heads else values


def interleaved(values, heads):
    """RoPE turns pairs of rows: in safetensors the two are half a head apart, in GGUF they are neighbours."""
    rows, columns = values.shape
    return values.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


if __name__ == "__main__":
    main()
