//! Refuses tensors that do not go together and numbers that no loss can be made of.
//!
//! Libtorch broadcasts `[B, 1] - [B]` to `[B, B]` without a word; everything here compares shapes exactly instead.

use tch::{Device, Kind, Tensor};

use crate::Error;

/// `tensor` must have exactly the shape `expected`.
pub(crate) fn shape(what: &'static str, tensor: &Tensor, expected: &[i64]) -> Result<(), Error> {
    let got = tensor.size();
    if got == expected {
        return Ok(());
    }
    Err(Error::Shape { what, expected: expected.to_vec(), got })
}

/// The entries of a vector of `length` finite numbers.
pub(crate) fn finite_values(what: &'static str, tensor: &Tensor, length: i64) -> Result<Vec<f64>, Error> {
    shape(what, tensor, &[length])?;
    let values = to_f64_vec(tensor);
    match values.iter().position(|value| !value.is_finite()) {
        Some(index) => Err(Error::NotFinite { what, index, value: values[index] }),
        None => Ok(values),
    }
}

/// The entries of a vector, from any device and of any kind.
pub(crate) fn to_f64_vec(vector: &Tensor) -> Vec<f64> {
    let vector = vector.detach().to_device(Device::Cpu).to_kind(Kind::Double);
    Vec::try_from(vector).expect("callers pass vectors, and every number fits f64")
}

/// A vector on the device of `like`, of its kind but never less than fp32.
pub(crate) fn vector_like(values: &[f64], like: &Tensor) -> Tensor {
    Tensor::from_slice(values).to_kind(wide_kind(like)).to_device(like.device())
}

/// `tensor` itself, or in fp32 when its kind is narrower (bf16, fp16, integers).
pub(crate) fn widen(tensor: &Tensor) -> Tensor {
    tensor.to_kind(wide_kind(tensor))
}

fn wide_kind(tensor: &Tensor) -> Kind {
    match tensor.kind() {
        Kind::Double => Kind::Double,
        _ => Kind::Float,
    }
}
