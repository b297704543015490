//! BLOOM (Le Scao et al. 2022, arXiv 2211.05100): linear attention biases by distance, a norm on the
//! embeddings, and queries, keys and values interleaved by head.

use serde_json::json;

use super::defaults::{uniform_scales, whole_head_dim};
use crate::Error;
use crate::architecture::{Activation, Architecture, Names, NormKind, Position, Qkv, ResidualOrder};
use crate::fields::Fields;

const NAMES: Names = Names {
    class: "Bloom",
    causal_suffix: "ForCausalLM",
    prefix: "transformer.",
    token_embedding: "transformer.word_embeddings",
    position_embedding: "",
    embedding_norm: "transformer.word_embeddings_layernorm",
    project_in: "",
    layers: "transformer.h",
    first_norm: "input_layernorm",
    qkv: ["self_attention.query_key_value", "", ""],
    out: "self_attention.dense",
    second_norm: "post_attention_layernorm",
    gate: "",
    up: "mlp.dense_h_to_4h",
    down: "mlp.dense_4h_to_h",
    final_norm: "transformer.ln_f",
    project_out: "",
    head: "lm_head",
};

/// Resolves `model_type` bloom. In transformers, `slow_but_exact` with `pretraining_tp` above 1 omits two
/// biases of each block, so that combination is an error.
pub(super) fn resolve(fields: &Fields<'_>) -> Result<Architecture, Error> {
    if fields.size_or(&["pretraining_tp"], 1)? > 1 {
        fields.require_neutral(
            "slow_but_exact",
            &[json!(false)],
            "set it to false, or `pretraining_tp` to 1",
        )?;
    }

    let width = if fields.is_null("n_embed") { &["hidden_size"][..] } else { &["n_embed", "hidden_size"] };
    let hidden_size = fields.size(width)?;
    let num_layers = fields.size(&["n_layer", "num_hidden_layers"])?;
    let num_heads = fields.size(&["n_head", "num_attention_heads"])?;
    let head_dim = whole_head_dim(fields, hidden_size, num_heads)?;
    let initializer_range = fields.deviation("initializer_range")?;
    let normed = fields.flag_or("apply_residual_connection_post_layernorm", false)?;

    Ok(Architecture {
        vocab_size: fields.size(&["vocab_size"])?,
        hidden_size,
        embedding_size: hidden_size,
        intermediate_size: 4 * hidden_size,
        num_layers,
        num_heads,
        num_kv_heads: num_heads,
        head_dim,
        max_positions: fields.size_or(&["seq_length"], 2048)?,
        position: Position::Alibi,
        norm: NormKind::Layer,
        norm_eps: fields.positive_or("layer_norm_epsilon", 1e-5)?,
        norm_affine: true,
        residual: if normed { ResidualOrder::NormedResidual } else { ResidualOrder::PreNorm },
        qkv: Qkv::InterleavedByHead,
        qk_norm: false,
        qkv_bias: true,
        out_bias: true,
        mlp_bias: true,
        gated_mlp: false,
        activation: Activation::GeluTanh,
        experts: None,
        is_conv1d: false,
        sliding_windows: vec![None; num_layers as usize],
        attention_scales: uniform_scales(num_layers, head_dim),
        embedding_norm: true,
        final_norm: true,
        tie_word_embeddings: fields.flag_or("tie_word_embeddings", true)?,
        initializer_range,
        residual_initializer_range: initializer_range,
        names: NAMES,
    })
}
