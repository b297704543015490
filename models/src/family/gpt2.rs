//! GPT-2 (Radford et al. 2019): learned positions, fused queries, keys and values, and weights stored as
//! `[in, out]`.

use super::defaults::{activation, whole_head_dim};
use crate::Error;
use crate::architecture::{Architecture, Names, NormKind, Position, Qkv, ResidualOrder};
use crate::fields::Fields;

const NAMES: Names = Names {
    class: "GPT2",
    causal_suffix: "LMHeadModel",
    prefix: "transformer.",
    token_embedding: "transformer.wte",
    position_embedding: "transformer.wpe",
    embedding_norm: "",
    project_in: "",
    layers: "transformer.h",
    first_norm: "ln_1",
    qkv: ["attn.c_attn", "", ""],
    out: "attn.c_proj",
    second_norm: "ln_2",
    gate: "",
    up: "mlp.c_fc",
    down: "mlp.c_proj",
    final_norm: "transformer.ln_f",
    project_out: "",
    head: "lm_head",
};

/// Resolves `model_type` gpt2. `reorder_and_upcast_attn` requests attention scores in fp32, which they always
/// are here.
pub(super) fn resolve(fields: &Fields<'_>) -> Result<Architecture, Error> {
    let hidden_size = fields.size(&["n_embd", "hidden_size"])?;
    let num_layers = fields.size(&["n_layer", "num_hidden_layers"])?;
    let num_heads = fields.size(&["n_head", "num_attention_heads"])?;
    let initializer_range = fields.deviation("initializer_range")?;
    let head_dim = whole_head_dim(fields, hidden_size, num_heads)?;

    Ok(Architecture {
        vocab_size: fields.size(&["vocab_size"])?,
        hidden_size,
        embedding_size: hidden_size,
        intermediate_size: fields.optional_size("n_inner", None)?.unwrap_or(4 * hidden_size),
        num_layers,
        num_heads,
        num_kv_heads: num_heads,
        head_dim,
        max_positions: fields.size_or(&["n_positions", "max_position_embeddings"], 1024)?,
        position: Position::Learned { offset: 0 },
        norm: NormKind::Layer,
        norm_eps: fields.positive_or("layer_norm_epsilon", 1e-5)?,
        norm_affine: true,
        residual: ResidualOrder::PreNorm,
        qkv: Qkv::Fused,
        qk_norm: false,
        qkv_bias: true,
        out_bias: true,
        mlp_bias: true,
        gated_mlp: false,
        activation: activation(fields, "activation_function", "gelu_new")?,
        experts: None,
        is_conv1d: true,
        sliding_windows: vec![None; num_layers as usize],
        attention_scales: scales(fields, num_layers, head_dim)?,
        embedding_norm: false,
        final_norm: true,
        tie_word_embeddings: fields.flag_or("tie_word_embeddings", true)?,
        initializer_range,
        residual_initializer_range: initializer_range / (2.0 * num_layers as f64).sqrt(),
        names: NAMES,
    })
}

fn scales(fields: &Fields<'_>, num_layers: i64, head_dim: i64) -> Result<Vec<f64>, Error> {
    let root = if fields.flag_or("scale_attn_weights", true)? { (head_dim as f64).sqrt() } else { 1.0 };
    let by_layer = fields.flag_or("scale_attn_by_inverse_layer_idx", false)?;
    let scale = |layer: i64| (if by_layer { root * (layer + 1) as f64 } else { root }).recip();
    Ok((0..num_layers).map(scale).collect())
}
