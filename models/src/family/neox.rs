//! GPT-NeoX (Black et al. 2022, arXiv 2204.06745) and Pythia: partially rotated heads, attention and MLP in
//! parallel.

use serde_json::json;

use super::defaults::{activation, uniform_scales, whole_head_dim};
use crate::Error;
use crate::architecture::{Architecture, Names, NormKind, Position, Qkv, ResidualOrder};
use crate::fields::Fields;
use crate::rope::{Rope, RopeDefaults};

const NAMES: Names = Names {
    class: "GPTNeoX",
    causal_suffix: "ForCausalLM",
    prefix: "gpt_neox.",
    token_embedding: "gpt_neox.embed_in",
    position_embedding: "",
    embedding_norm: "",
    project_in: "",
    layers: "gpt_neox.layers",
    first_norm: "input_layernorm",
    qkv: ["attention.query_key_value", "", ""],
    out: "attention.dense",
    second_norm: "post_attention_layernorm",
    gate: "",
    up: "mlp.dense_h_to_4h",
    down: "mlp.dense_4h_to_h",
    final_norm: "gpt_neox.final_layer_norm",
    project_out: "",
    head: "embed_out",
};

/// Resolves `model_type` `gpt_neox`. Here transformers reads `rotary_emb_base` and `rotary_pct` instead of
/// the keys of other families.
pub(super) fn resolve(fields: &Fields<'_>) -> Result<Architecture, Error> {
    let hidden_size = fields.size(&["hidden_size"])?;
    let num_layers = fields.size(&["num_hidden_layers"])?;
    let num_heads = fields.size(&["num_attention_heads"])?;
    let head_dim = whole_head_dim(fields, hidden_size, num_heads)?;
    let max_positions = fields.size_or(&["max_position_embeddings"], 2048)?;
    let initializer_range = fields.deviation("initializer_range")?;
    let bias = fields.flag_or("attention_bias", true)?;
    let parallel = fields.flag_or("use_parallel_residual", true)?;
    for (key, family_key) in [("rope_theta", "rotary_emb_base"), ("partial_rotary_factor", "rotary_pct")] {
        let instead = format!("this family reads `{family_key}` or `rope_parameters` instead");
        fields.require_neutral(key, &[], &instead)?;
    }
    let neutral = [json!(head_dim)];
    fields.require_neutral("head_dim", &neutral, "this family's heads have hidden_size / heads numbers")?;

    let rotation = RopeDefaults {
        head_dim,
        max_positions,
        theta: 1e4,
        theta_key: "rotary_emb_base",
        partial_rotary_factor: 0.25,
        partial_rotary_factor_key: "rotary_pct",
    };
    Ok(Architecture {
        vocab_size: fields.size(&["vocab_size"])?,
        hidden_size,
        embedding_size: hidden_size,
        intermediate_size: fields.size(&["intermediate_size"])?,
        num_layers,
        num_heads,
        num_kv_heads: num_heads,
        head_dim,
        max_positions,
        position: Position::Rope(Rope::from_fields(fields, &rotation)?),
        norm: NormKind::Layer,
        norm_eps: fields.positive_or("layer_norm_eps", 1e-5)?,
        norm_affine: true,
        residual: if parallel { ResidualOrder::Parallel } else { ResidualOrder::PreNorm },
        qkv: Qkv::InterleavedByHead,
        qk_norm: false,
        qkv_bias: bias,
        out_bias: bias,
        mlp_bias: true,
        gated_mlp: false,
        activation: activation(fields, "hidden_act", "gelu")?,
        experts: None,
        is_conv1d: false,
        sliding_windows: vec![None; num_layers as usize],
        attention_scales: uniform_scales(num_layers, head_dim),
        embedding_norm: false,
        final_norm: true,
        tie_word_embeddings: fields.flag_or("tie_word_embeddings", false)?,
        initializer_range,
        residual_initializer_range: initializer_range,
        names: NAMES,
    })
}
