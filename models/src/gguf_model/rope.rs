//! The scaling of rotary frequencies in GGUF files: none, `linear`, and `llama3` as a tensor.
//!
//! llama.cpp divides the frequency of pair `j` by number `j` of the tensor `rope_freqs.weight`. The tensor
//! does not say by which settings it was made, and settings with the same ratios make the same numbers, so a
//! reader tries those of the published models.

use gguf::{Metadata, TensorInfo, TensorType, Value};
use serde_json::{Value as Json, json};
use tch::{Device, Kind, Tensor};

use super::Family;
use super::names::ROPE_FREQS;
use crate::Error;
use crate::architecture::Position;
use crate::config::Config;
use crate::rope::{Rope, Scaling};

/// The settings of LLaMA 3.1 to 3.3 beside the factor.
const LLAMA3: [f64; 3] = [1.0, 4.0, 8192.0];

/// How far a number of the tensor may be from one that is computed here. A rounded frequency is off by 1e-7,
/// and a factor of 32 makes 32 times as much of it.
const TOLERANCE: f64 = 1e-5;

/// The rotation of a configuration that was found to have one.
pub(super) fn rope_of(config: &Config) -> &Rope {
    match &config.architecture().position {
        Position::Rope(rope) => rope,
        _ => unreachable!("the families of this module rotate"),
    }
}

/// Returns an error if the scaling of the frequencies cannot be written.
pub(super) fn check(config: &Config, family: Family) -> Result<(), Error> {
    let value = match rope_of(config).scaling {
        Scaling::None | Scaling::Linear { .. } => return Ok(()),
        Scaling::Llama3 { .. } if family == Family::Llama => return Ok(()),
        Scaling::Llama3 { .. } => "llama3 in a family other than llama",
        Scaling::Dynamic { .. } => "dynamic",
        Scaling::Yarn { .. } => "yarn",
    };
    let fix = "the scalings none, linear and (for llama) llama3 can be written: remove rope_scaling if the model is \
               used within the length that it was trained for";
    Err(Error::NoGguf {
        origin: config.origin().to_owned(),
        key: "rope_scaling",
        value: value.to_owned(),
        fix,
    })
}

/// Adds the keys of the rotation.
pub(super) fn describe(config: &Config, family: Family, metadata: &mut Metadata) {
    let rope = rope_of(config);
    let key = |key: &str| format!("{}.rope.{key}", family.name());
    metadata.set(key("dimension_count"), Value::u32(rope.dim as u32));
    metadata.set(key("freq_base"), Value::f32(rope.theta as f32));
    if let Scaling::Linear { factor } = rope.scaling {
        metadata.set(key("scaling.type"), Value::text("linear"));
        metadata.set(key("scaling.factor"), Value::f32(factor as f32));
    }
}

/// The divisors of the frequencies with their entry, if they are a tensor of the file: fp32 `[head_dim / 2]`.
pub(super) fn divisors(config: &Config) -> Option<(TensorInfo, Tensor)> {
    let rope = rope_of(config);
    if !matches!(rope.scaling, Scaling::Llama3 { .. }) {
        return None;
    }
    let plain = Rope { scaling: Scaling::None, ..rope.clone() };
    let divisors = plain.inv_freq(0, Device::Cpu) / rope.inv_freq(0, Device::Cpu);
    let shape = vec![rope.dim as u64 / 2];
    Some((TensorInfo { name: ROPE_FREQS.to_owned(), shape, tensor_type: TensorType::F32 }, divisors))
}

/// The `rope_scaling` of a file without a tensor of divisors; null without scaling.
pub(super) fn scaling(metadata: &Metadata, family: Family) -> Result<Json, Error> {
    let key = |key: &str| format!("{}.rope.{key}", family.name());
    let kind = metadata.optional_text(&key("scaling.type"))?;
    let factor = match metadata.optional_number(&key("scaling.factor"))? {
        None => metadata.optional_number(&key("scale_linear"))?,
        factor => factor,
    };
    // llama.cpp takes a factor without a type, and a type without a factor, as linear and as 1.
    match kind {
        Some("none") => Ok(Json::Null),
        None | Some("linear") => Ok(match factor {
            None | Some(0.0 | 1.0) => Json::Null,
            Some(factor) => json!({"rope_type": "linear", "factor": factor}),
        }),
        Some(_) => {
            let fix = "take a model without scaled positions, or with linear ones";
            Err(metadata.unsupported(&key("scaling.type"), fix).into())
        }
    }
}

/// The `rope_scaling` that makes these divisors. `config` is the configuration without scaling.
pub(super) fn llama3_scaling(config: &Config, divisors: &Tensor, metadata: &Metadata) -> Result<Json, Error> {
    // The largest divisor is the factor, but for the rounding of a quotient.
    let factor = (divisors.max().double_value(&[]) * 1e4).round() / 1e4;
    let [low, high, original] = LLAMA3;
    let made = Rope { scaling: Scaling::Llama3 { factor, low, high, original }, ..rope_of(config).clone() };
    let plain = rope_of(config).inv_freq(0, Device::Cpu);
    let expected = plain / made.inv_freq(0, Device::Cpu);
    let off = (divisors / expected - 1.0).abs().max().double_value(&[]);
    if factor >= 1.0 && off <= TOLERANCE && divisors.kind() == Kind::Float {
        return Ok(json!({
            "rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
            "original_max_position_embeddings": original as i64
        }));
    }
    let fix = "only the scaling of LLaMA 3.1 to 3.3 can be read from it: take the model's HF folder";
    let (path, found) = (metadata.origin().to_owned(), format!("the tensor `{ROPE_FREQS}`"));
    Err(gguf::Error::Unsupported { path, found, fix }.into())
}
