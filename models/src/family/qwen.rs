//! Qwen2 and Qwen2.5 (arXiv 2407.10671) have biases on queries, keys and values. Qwen3 (arXiv 2505.09388) has
//! norms on queries and keys. Both also exist with experts.

use serde_json::{Value, json};

use super::llama::{HeadDim, Variant, llama_like, router_aux_loss_coef};
use crate::Error;
use crate::architecture::{Architecture, ExpertNames, MoeConfig};
use crate::fields::Fields;

const QWEN2: Variant = Variant {
    class: "Qwen2",
    head_dim: HeadDim::Quotient,
    num_kv_heads: Some(32),
    max_positions: 32_768,
    theta: 1e4,
    norm_eps: 1e-6,
};

/// Resolves `model_type` qwen2.
pub(super) fn qwen2(fields: &Fields<'_>) -> Result<Architecture, Error> {
    let architecture = llama_like(fields, &QWEN2)?;
    let sliding_windows = windows(fields, architecture.num_layers, from_layer)?;
    Ok(Architecture { qkv_bias: true, sliding_windows, ..architecture })
}

/// Resolves `model_type` qwen3.
pub(super) fn qwen3(fields: &Fields<'_>) -> Result<Architecture, Error> {
    let variant = Variant { class: "Qwen3", head_dim: HeadDim::Fixed(128), ..QWEN2 };
    let architecture = normed(fields, &variant)?;
    Ok(Architecture {
        sliding_windows: windows(fields, architecture.num_layers, from_layer)?,
        ..architecture
    })
}

/// Resolves `model_type` `qwen2_moe`, which has a shared expert.
pub(super) fn qwen2_moe(fields: &Fields<'_>) -> Result<Architecture, Error> {
    let variant = Variant { class: "Qwen2Moe", num_kv_heads: Some(16), ..QWEN2 };
    let architecture = llama_like(fields, &variant)?;
    let shared = fields.size_or(&["shared_expert_intermediate_size"], 5632)?;
    // Unlike the other families with experts, this family has only one spelling of `num_experts`.
    let experts = experts(fields, &architecture, &["num_experts"], [60, 4, 1408])?;
    Ok(Architecture {
        qkv_bias: fields.flag_or("qkv_bias", true)?,
        experts: Some(MoeConfig { shared_expert_intermediate_size: Some(shared), ..experts }),
        sliding_windows: windows(fields, architecture.num_layers, every_other)?,
        ..architecture
    })
}

/// Resolves `model_type` `qwen3_moe`. With `use_sliding_window` all layers have the window;
/// `max_window_layers` is ignored.
pub(super) fn qwen3_moe(fields: &Fields<'_>) -> Result<Architecture, Error> {
    let variant = Variant { class: "Qwen3Moe", num_kv_heads: Some(4), ..QWEN2 };
    let architecture = normed(fields, &variant)?;
    let experts = experts(fields, &architecture, &["num_experts", "num_local_experts"], [128, 8, 768])?;
    let sliding_windows = vec![window(fields)?; architecture.num_layers as usize];
    let kind = if sliding_windows[0].is_some() { "sliding_attention" } else { "full_attention" };
    let neutral = json!(vec![kind; sliding_windows.len()]);
    let fix =
        "this family has one window for all layers, or none: remove the key, or set `use_sliding_window`";
    fields.require_neutral("layer_types", &[neutral], fix)?;
    Ok(Architecture { experts: Some(experts), sliding_windows, ..architecture })
}

/// Resolves the architecture of Qwen3: norms on queries and keys, and optional attention biases.
fn normed(fields: &Fields<'_>, variant: &Variant) -> Result<Architecture, Error> {
    let bias = fields.flag_or("attention_bias", false)?;
    Ok(Architecture { qk_norm: true, qkv_bias: bias, out_bias: bias, ..llama_like(fields, variant)? })
}

/// Reads the experts. Every `decoder_sparse_step`-th layer has experts, except the layers in
/// `mlp_only_layers`. The defaults are the number of experts, the number of experts per token, and the width
/// of an expert.
fn experts(
    fields: &Fields<'_>,
    architecture: &Architecture,
    counts: &[&'static str],
    [count, per_token, width]: [i64; 3],
) -> Result<MoeConfig, Error> {
    let step = fields.size_or(&["decoder_sparse_step"], 1)?;
    let dense: Vec<i64> = match fields.get("mlp_only_layers") {
        None => Vec::new(),
        Some(list) => serde_json::from_value(list.clone())
            .map_err(|_| fields.wrong("mlp_only_layers", "a list of layers", list))?,
    };
    let has = |layer: i64| (layer + 1) % step == 0 && !dense.contains(&layer);

    Ok(MoeConfig {
        num_experts: fields.size_or(counts, count)?,
        num_experts_per_tok: fields.size_or(&["num_experts_per_tok"], per_token)?,
        norm_topk_prob: fields.flag_or("norm_topk_prob", false)?,
        intermediate_size: fields.size_or(&["moe_intermediate_size"], width)?,
        shared_expert_intermediate_size: None,
        is_moe_layer: (0..architecture.num_layers).map(has).collect(),
        router_aux_loss_coef: router_aux_loss_coef(fields)?,
        names: ExpertNames {
            router: "mlp.gate",
            experts: "mlp.experts",
            matrices: ["gate_proj", "up_proj", "down_proj"],
            shared: ["mlp.shared_expert", "mlp.shared_expert_gate"],
        },
    })
}

/// The size of the sliding window; `None` without `use_sliding_window`.
fn window(fields: &Fields<'_>) -> Result<Option<i64>, Error> {
    if !fields.flag_or("use_sliding_window", false)? {
        // In this case transformers saves `sliding_window` as 0, so the key is not read.
        return Ok(None);
    }
    fields.optional_size("sliding_window", Some(4096))
}

/// Whether a layer has a sliding window in Qwen2 and Qwen3 without `layer_types`: all layers from
/// `max_window_layers` on.
fn from_layer(layer: i64, max_window_layers: i64) -> bool {
    layer >= max_window_layers
}

/// Whether a layer has a sliding window in Qwen2-MoE, as in transformers: every other layer before
/// `max_window_layers`.
fn every_other(layer: i64, max_window_layers: i64) -> bool {
    layer % 2 == 0 && layer < max_window_layers
}

/// The sliding window of each layer, from `layer_types` if present. Otherwise `has_window` decides from the
/// layer and `max_window_layers`.
fn windows(
    fields: &Fields<'_>,
    num_layers: i64,
    has_window: fn(i64, i64) -> bool,
) -> Result<Vec<Option<i64>>, Error> {
    let window = window(fields)?;
    let bound = fields.count_or("max_window_layers", 28)?;

    let Some(types) = fields.get("layer_types") else {
        return Ok((0..num_layers).map(|layer| window.filter(|_| has_window(layer, bound))).collect());
    };

    let list = types
        .as_array()
        .filter(|list| list.len() as i64 == num_layers)
        .ok_or_else(|| fields.wrong("layer_types", &format!("a list of {num_layers} names"), types))?;
    let window_of = |kind: &Value| match (kind.as_str(), window) {
        (Some("full_attention"), _) => Ok(None),
        (Some("sliding_attention"), Some(window)) => Ok(Some(window)),
        (Some("sliding_attention"), None) => Err(fields.unsupported(
            "layer_types",
            kind,
            "set `use_sliding_window` to true and `sliding_window`, or make all layers full_attention",
        )),
        _ => Err(fields.unsupported(
            "layer_types",
            &json!(kind),
            "the known ones are full_attention and sliding_attention",
        )),
    };

    list.iter().map(window_of).collect()
}
