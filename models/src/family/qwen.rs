//! Qwen2 and 2.5 (arXiv 2407.10671): biases on queries, keys and values. Qwen3 (arXiv 2505.09388): norms on queries and keys.

use serde_json::{Value, json};

use super::llama::{Variant, gated};
use crate::Error;
use crate::architecture::Architecture;
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
