//! The names of tensors in GGUF files. llama.cpp: `gguf-py/gguf/tensor_mapping.py`.

/// The tensor of the scaled frequencies.
pub(super) const ROPE_FREQS: &str = "rope_freqs.weight";

/// The modules outside the blocks.
const OUTSIDE: [(&str, &str); 3] =
    [("model.embed_tokens", "token_embd"), ("model.norm", "output_norm"), ("lm_head", "output")];

/// The modules of a block.
const INSIDE: [(&str, &str); 11] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

/// The name in a file of a parameter with its name in HF folders; `None` for a parameter that no file has.
pub(super) fn gguf_name(name: &str) -> Option<String> {
    let (module, end) = name.rsplit_once('.')?;
    let find = |table: &[(&str, &'static str)], module: &str| {
        table.iter().find(|(own, _)| *own == module).map(|(_, theirs)| *theirs)
    };
    let Some(inside) = module.strip_prefix("model.layers.") else {
        return Some(format!("{}.{end}", find(&OUTSIDE, module)?));
    };
    let (layer, module) = inside.split_once('.')?;
    Some(format!("blk.{layer}.{}.{end}", find(&INSIDE, module)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_have_their_names_in_both_formats() {
        for (own, theirs) in [
            ("model.embed_tokens.weight", Some("token_embd.weight")),
            ("model.layers.12.self_attn.o_proj.weight", Some("blk.12.attn_output.weight")),
            ("model.layers.0.self_attn.q_proj.bias", Some("blk.0.attn_q.bias")),
            ("model.layers.0.mlp.experts.0.up_proj.weight", None),
            ("score.weight", None),
        ] {
            assert_eq!(gguf_name(own).as_deref(), theirs, "{own}");
        }
    }
}
