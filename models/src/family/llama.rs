//! LLaMA 1, 2 and 3 (Touvron et al. 2023, arXiv 2302.13971), Mistral (Jiang et al. 2023, arXiv 2310.06825)
//! and Mixtral (Jiang et al. 2024, arXiv 2401.04088).

use serde_json::json;

use super::defaults::{activation, uniform_scales, whole_head_dim};
use crate::Error;
use crate::architecture::{
    Architecture, ExpertNames, MoeConfig, Names, NormKind, Position, Qkv, ResidualOrder,
};
use crate::fields::Fields;
use crate::rope::{Rope, RopeDefaults};

const NAMES: Names = Names {
    class: "Llama",
    causal_suffix: "ForCausalLM",
    prefix: "model.",
    token_embedding: "model.embed_tokens",
    position_embedding: "",
    embedding_norm: "",
    project_in: "",
    layers: "model.layers",
    first_norm: "input_layernorm",
    qkv: ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    out: "self_attn.o_proj",
    second_norm: "post_attention_layernorm",
    gate: "mlp.gate_proj",
    up: "mlp.up_proj",
    down: "mlp.down_proj",
    final_norm: "model.norm",
    project_out: "",
    head: "lm_head",
};

/// The defaults in which families of this architecture differ. The values are those of transformers'
/// configuration classes.
pub(super) struct Variant {
    /// The class name of transformers.
    pub(super) class: &'static str,
    /// `head_dim`.
    pub(super) head_dim: HeadDim,
    /// `num_key_value_heads`; `None` for the number of query heads, which is also the meaning of null in
    /// every family.
    pub(super) num_kv_heads: Option<i64>,
    /// `max_position_embeddings`.
    pub(super) max_positions: i64,
    /// `rope_theta`.
    pub(super) theta: f64,
    /// `rms_norm_eps`.
    pub(super) norm_eps: f64,
}

/// The default of `head_dim`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum HeadDim {
    /// `hidden_size / heads`; null is an error.
    Quotient,
    /// `hidden_size / heads`, also for null.
    QuotientOrNull,
    /// A fixed value of the family; null is an error.
    Fixed(i64),
}

impl HeadDim {
    fn read(self, fields: &Fields<'_>, hidden_size: i64, heads: i64) -> Result<i64, Error> {
        let given = match self {
            Self::QuotientOrNull => fields.optional_size("head_dim", None)?,
            Self::Quotient | Self::Fixed(_) if fields.has("head_dim") => Some(fields.size(&["head_dim"])?),
            Self::Quotient => None,
            Self::Fixed(dim) => Some(dim),
        };
        given.map_or_else(|| whole_head_dim(fields, hidden_size, heads), Ok)
    }
}

/// Resolves the architecture that LLaMA, Mistral and Qwen share, without biases and sliding windows.
pub(super) fn llama_like(fields: &Fields<'_>, variant: &Variant) -> Result<Architecture, Error> {
    let hidden_size = fields.size(&["hidden_size"])?;
    let num_layers = fields.size(&["num_hidden_layers"])?;
    let num_heads = fields.size(&["num_attention_heads"])?;
    let head_dim = variant.head_dim.read(fields, hidden_size, num_heads)?;
    let max_positions = fields.size_or(&["max_position_embeddings"], variant.max_positions)?;
    let num_kv_heads = fields.optional_size("num_key_value_heads", variant.num_kv_heads)?;
    let initializer_range = fields.deviation("initializer_range")?;

    let rotation = RopeDefaults {
        head_dim,
        max_positions,
        theta: variant.theta,
        theta_key: "rope_theta",
        partial_rotary_factor: 1.0,
        partial_rotary_factor_key: "partial_rotary_factor",
    };

    Ok(Architecture {
        vocab_size: fields.size(&["vocab_size"])?,
        hidden_size,
        embedding_size: hidden_size,
        intermediate_size: fields.size(&["intermediate_size"])?,
        num_layers,
        num_heads,
        num_kv_heads: num_kv_heads.unwrap_or(num_heads),
        head_dim,
        max_positions,
        position: Position::Rope(Rope::from_fields(fields, &rotation)?),
        norm: NormKind::Rms,
        norm_eps: fields.positive_or("rms_norm_eps", variant.norm_eps)?,
        norm_affine: true,
        residual: ResidualOrder::PreNorm,
        qkv: Qkv::Separate,
        qk_norm: false,
        qkv_bias: false,
        out_bias: false,
        mlp_bias: false,
        gated_mlp: true,
        activation: activation(fields, "hidden_act", "silu")?,
        experts: None,
        is_conv1d: false,
        sliding_windows: vec![None; num_layers as usize],
        attention_scales: uniform_scales(num_layers, head_dim),
        embedding_norm: false,
        final_norm: true,
        tie_word_embeddings: fields.flag_or("tie_word_embeddings", false)?,
        initializer_range,
        residual_initializer_range: initializer_range,
        names: Names { class: variant.class, ..NAMES },
    })
}

/// Resolves `model_type` llama. `pretraining_tp` above 1 only splits matrix products and is ignored.
pub(super) fn llama(fields: &Fields<'_>) -> Result<Architecture, Error> {
    let bias = fields.flag_or("attention_bias", false)?;
    let variant = Variant { class: "Llama", num_kv_heads: None, max_positions: 2048, ..MISTRAL };
    Ok(Architecture {
        qkv_bias: bias,
        out_bias: bias,
        mlp_bias: fields.flag_or("mlp_bias", false)?,
        ..llama_like(fields, &variant)?
    })
}

const MISTRAL: Variant = Variant {
    class: "Mistral",
    head_dim: HeadDim::QuotientOrNull,
    num_kv_heads: Some(8),
    max_positions: 4096 * 32,
    theta: 1e4,
    norm_eps: 1e-6,
};

/// Resolves `model_type` mistral. Every layer has a sliding window of `sliding_window` tokens: 4096 if the
/// key is absent, and full attention if it is null.
pub(super) fn mistral(fields: &Fields<'_>) -> Result<Architecture, Error> {
    windowed(fields, &MISTRAL, Some(4096))
}

/// Resolves a family with the same sliding window in all layers; `window` is the default.
fn windowed(fields: &Fields<'_>, variant: &Variant, window: Option<i64>) -> Result<Architecture, Error> {
    let fix = "alternating attention is implemented for model_type qwen2, qwen2_moe and qwen3";
    fields.require_neutral("layer_types", &[], fix)?;
    let architecture = llama_like(fields, variant)?;
    let window = fields.optional_size("sliding_window", window)?;
    Ok(Architecture { sliding_windows: vec![window; architecture.num_layers as usize], ..architecture })
}

/// Resolves `model_type` mixtral: Mistral with experts in every layer.
pub(super) fn mixtral(fields: &Fields<'_>) -> Result<Architecture, Error> {
    fields.require_neutral(
        "router_jitter_noise",
        &[json!(0), json!(0.0)],
        "noise on the router is not implemented",
    )?;

    let variant = Variant { class: "Mixtral", theta: 1e6, norm_eps: 1e-5, ..MISTRAL };
    let architecture = windowed(fields, &variant, None)?;
    let experts = MoeConfig {
        num_experts: fields.size_or(&["num_local_experts", "num_experts"], 8)?,
        num_experts_per_tok: fields.size_or(&["num_experts_per_tok"], 2)?,
        norm_topk_prob: true,
        intermediate_size: architecture.intermediate_size,
        shared_expert_intermediate_size: None,
        is_moe_layer: vec![true; architecture.num_layers as usize],
        router_aux_loss_coef: router_aux_loss_coef(fields)?,
        names: ExpertNames {
            router: "block_sparse_moe.gate",
            experts: "block_sparse_moe.experts",
            matrices: ["w1", "w3", "w2"],
            shared: ["", ""],
        },
    };
    Ok(Architecture { experts: Some(experts), ..architecture })
}

/// The coefficient of the load-balancing auxiliary loss, which transformers adds only if
/// `output_router_logits` is true.
pub(super) fn router_aux_loss_coef(fields: &Fields<'_>) -> Result<f64, Error> {
    let coefficient = fields.number_or("router_aux_loss_coef", 0.001)?;
    Ok(if fields.flag_or("output_router_logits", false)? { coefficient } else { 0.0 })
}
