//! Qwen2 and 2.5 (arXiv 2407.10671): biases on queries, keys and values. Qwen3 (arXiv 2505.09388): norms on queries and keys. Both with
//! experts too.

use serde_json::{Value, json};

use super::llama::{Variant, balance, gated};
use crate::Error;
use crate::architecture::{Architecture, ExpertNames, Experts, Names};
use crate::config::Fields;

/// `model_type` qwen2.
pub(super) fn qwen2(fields: &Fields<'_>) -> Result<Architecture, Error> {
    let variant = Variant { class: "Qwen2", head_dim: None, num_kv_heads: Some(32), max_positions: 32_768 };
    let architecture = gated(fields, &variant)?;
    Ok(Architecture { qkv_bias: true, windows: windows(fields, architecture.num_layers)?, ..architecture })
}

/// `model_type` qwen3.
pub(super) fn qwen3(fields: &Fields<'_>) -> Result<Architecture, Error> {
    let bias = fields.flag_or("attention_bias", false)?;
    let variant =
        Variant { class: "Qwen3", head_dim: Some(128), num_kv_heads: Some(32), max_positions: 32_768 };
    let architecture = gated(fields, &variant)?;
    let windows = windows(fields, architecture.num_layers)?;
    Ok(Architecture { qk_norm: true, qkv_bias: bias, out_bias: bias, windows, ..architecture })
}

/// `model_type` `qwen2_moe`: one more expert that every token takes.
pub(super) fn qwen2_moe(fields: &Fields<'_>) -> Result<Architecture, Error> {
    let architecture = qwen2(fields)?;
    let bias = fields.flag_or("qkv_bias", true)?;
    let shared = fields.size_or(&["shared_expert_intermediate_size"], 5632)?;
    let experts = Experts { shared_size: Some(shared), ..experts(fields, &architecture, [60, 4, 1408])? };
    let names = Names { class: "Qwen2Moe", ..architecture.names };
    Ok(Architecture { qkv_bias: bias, experts: Some(experts), names, ..architecture })
}

/// `model_type` `qwen3_moe`.
pub(super) fn qwen3_moe(fields: &Fields<'_>) -> Result<Architecture, Error> {
    let architecture = qwen3(fields)?;
    let experts = experts(fields, &architecture, [128, 8, 768])?;
    let names = Names { class: "Qwen3Moe", ..architecture.names };
    Ok(Architecture { experts: Some(experts), names, ..architecture })
}

/// Experts in every `decoder_sparse_step`-th layer that is not among `mlp_only_layers`. The defaults are their count, those of a token,
/// and their width.
fn experts(
    fields: &Fields<'_>,
    architecture: &Architecture,
    [count, per_token, width]: [i64; 3],
) -> Result<Experts, Error> {
    let step = fields.size_or(&["decoder_sparse_step"], 1)?;
    let dense: Vec<i64> = match fields.get("mlp_only_layers") {
        None => Vec::new(),
        Some(list) => serde_json::from_value(list.clone())
            .map_err(|_| fields.wrong("mlp_only_layers", "a list of layers", list))?,
    };
    let has = |layer: i64| (layer + 1) % step == 0 && !dense.contains(&layer);
    Ok(Experts {
        count: fields.size_or(&["num_experts", "num_local_experts"], count)?,
        per_token: fields.size_or(&["num_experts_per_tok"], per_token)?,
        normalized: fields.flag_or("norm_topk_prob", false)?,
        intermediate_size: fields.size_or(&["moe_intermediate_size"], width)?,
        shared_size: None,
        layers: (0..architecture.num_layers).map(has).collect(),
        balance: balance(fields)?,
        names: ExpertNames {
            router: "mlp.gate",
            list: "mlp.experts",
            parts: ["gate_proj", "up_proj", "down_proj"],
            shared: ["mlp.shared_expert", "mlp.shared_expert_gate"],
        },
    })
}

/// `layer_types` where the file has them; otherwise the layers from `max_window_layers` on have the window, if
/// `use_sliding_window`.
fn windows(fields: &Fields<'_>, num_layers: i64) -> Result<Vec<Option<i64>>, Error> {
    let window = if fields.flag_or("use_sliding_window", false)? {
        Some(fields.size_or(&["sliding_window"], 4096)?)
    } else {
        None
    };
    let Some(types) = fields.get("layer_types") else {
        let first = match fields.get("max_window_layers") {
            None => 28,
            Some(value) => {
                value.as_i64().ok_or_else(|| fields.wrong("max_window_layers", "a whole number", value))?
            }
        };
        return Ok((0..num_layers).map(|layer| window.filter(|_| layer >= first)).collect());
    };
    let list = types
        .as_array()
        .filter(|list| list.len() as i64 == num_layers)
        .ok_or_else(|| fields.wrong("layer_types", &format!("a list of {num_layers} names"), types))?;
    let of = |kind: &Value| match (kind.as_str(), window) {
        (Some("full_attention"), _) => Ok(None),
        (Some("sliding_attention"), Some(window)) => Ok(Some(window)),
        (Some("sliding_attention"), None) => Err(fields.unsupported(
            "layer_types",
            kind,
            "set `use_sliding_window` to true, or make all layers full_attention",
        )),
        _ => Err(fields.unsupported(
            "layer_types",
            &json!(kind),
            "the known ones are full_attention and sliding_attention",
        )),
    };
    list.iter().map(of).collect()
}
