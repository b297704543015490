//! OPT (Zhang et al. 2022, arXiv 2205.01068): learned positions that start at row 2 of the table, and `ReLU`.
//! OPT-350m has norms after the residual connection and a narrower embedding.

use serde_json::json;

use super::defaults::{activation, uniform_scales, whole_head_dim};
use crate::Error;
use crate::architecture::{Architecture, Names, NormKind, Position, Qkv, ResidualOrder};
use crate::fields::Fields;

const NAMES: Names = Names {
    class: "OPT",
    causal_suffix: "ForCausalLM",
    prefix: "model.",
    token_embedding: "model.decoder.embed_tokens",
    position_embedding: "model.decoder.embed_positions",
    embedding_norm: "",
    project_in: "model.decoder.project_in",
    layers: "model.decoder.layers",
    first_norm: "self_attn_layer_norm",
    qkv: ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    out: "self_attn.out_proj",
    second_norm: "final_layer_norm",
    gate: "",
    up: "fc1",
    down: "fc2",
    final_norm: "model.decoder.final_layer_norm",
    project_out: "model.decoder.project_out",
    head: "lm_head",
};

/// Resolves `model_type` opt. The epsilon of the norms is always 1e-5, as in transformers.
pub(super) fn resolve(fields: &Fields<'_>) -> Result<Architecture, Error> {
    let hidden_size = fields.size(&["hidden_size"])?;
    let num_layers = fields.size(&["num_hidden_layers"])?;
    let num_heads = fields.size(&["num_attention_heads"])?;
    let head_dim = whole_head_dim(fields, hidden_size, num_heads)?;
    let norm_first = fields.flag_or("do_layer_norm_before", true)?;
    let initializer_range = fields.deviation("init_std")?;
    let bias = fields.flag_or("enable_bias", true)?;
    fields.require_neutral("layerdrop", &[json!(0)], "layers are never skipped: set it to 0")?;

    Ok(Architecture {
        vocab_size: fields.size(&["vocab_size"])?,
        hidden_size,
        embedding_size: fields.optional_size("word_embed_proj_dim", None)?.unwrap_or(hidden_size),
        intermediate_size: fields.size(&["ffn_dim"])?,
        num_layers,
        num_heads,
        num_kv_heads: num_heads,
        head_dim,
        max_positions: fields.size_or(&["max_position_embeddings"], 2048)?,
        position: Position::Learned { offset: 2 },
        norm: NormKind::Layer,
        norm_eps: 1e-5,
        norm_affine: fields.flag_or("layer_norm_elementwise_affine", true)?,
        residual: if norm_first { ResidualOrder::PreNorm } else { ResidualOrder::PostNorm },
        qkv: Qkv::Separate,
        qk_norm: false,
        qkv_bias: bias,
        out_bias: bias,
        mlp_bias: bias,
        gated_mlp: false,
        activation: activation(fields, "activation_function", "relu")?,
        experts: None,
        is_conv1d: false,
        sliding_windows: vec![None; num_layers as usize],
        attention_scales: uniform_scales(num_layers, head_dim),
        embedding_norm: false,
        final_norm: norm_first && !fields.flag_or("_remove_final_layer_norm", false)?,
        tie_word_embeddings: fields.flag_or("tie_word_embeddings", true)?,
        initializer_range,
        residual_initializer_range: initializer_range,
        names: NAMES,
    })
}
