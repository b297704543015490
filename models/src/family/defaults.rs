//! Keys that several families read in the same way.

use serde_json::json;

use crate::Error;
use crate::architecture::Activation;
use crate::fields::Fields;

/// The default head size `hidden_size / heads`, which must be a whole number.
pub(super) fn whole_head_dim(fields: &Fields<'_>, hidden_size: i64, heads: i64) -> Result<i64, Error> {
    if hidden_size % heads == 0 {
        return Ok(hidden_size / heads);
    }
    Err(fields.wrong(
        "hidden_size",
        &format!("a multiple of the {heads} attention heads"),
        &json!(hidden_size),
    ))
}

/// The activation function under `key`.
pub(super) fn activation(fields: &Fields<'_>, key: &str, default: &str) -> Result<Activation, Error> {
    let name = fields.text_or(key, default)?;
    by_name(name).ok_or_else(|| {
        let fix = "the known ones are silu, gelu, gelu_new, gelu_fast, gelu_pytorch_tanh and relu";
        fields.unsupported(key, &json!(name), fix)
    })
}

fn by_name(name: &str) -> Option<Activation> {
    match name {
        "silu" | "swish" => Some(Activation::Silu),
        "gelu" | "gelu_python" => Some(Activation::Gelu),
        "gelu_new" | "gelu_fast" | "gelu_pytorch_tanh" | "gelu_python_tanh" => Some(Activation::GeluTanh),
        "relu" => Some(Activation::Relu),
        _ => None,
    }
}

/// The factor `1 / sqrt(head_dim)` of the attention scores, for all layers.
pub(super) fn uniform_scales(num_layers: i64, head_dim: i64) -> Vec<f64> {
    vec![(head_dim as f64).sqrt().recip(); num_layers as usize]
}
