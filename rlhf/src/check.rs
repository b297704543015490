//! Checks of shapes and of finite values, and the dtypes in which losses are computed.
//!
//! Libtorch silently broadcasts `[B, 1] - [B]` to `[B, B]`, and `zip` silently drops what the longer side
//! has. This module therefore requires equal shapes.

use parallel::upload;
use tch::{Device, Kind, Tensor};

use crate::Error;

/// Refuses a `tensor` whose shape is not exactly `expected`.
pub(crate) fn shape(what: &'static str, tensor: &Tensor, expected: &[i64]) -> Result<(), Error> {
    let got = tensor.size();
    if got == expected {
        return Ok(());
    }
    Err(Error::Shape { what, expected: expected.to_vec(), got })
}

/// Refuses a vector on the host that has not exactly `expected` entries.
pub(crate) fn length(what: &'static str, got: usize, expected: usize) -> Result<(), Error> {
    if got == expected {
        return Ok(());
    }
    Err(Error::Shape { what, expected: vec![expected as i64], got: vec![got as i64] })
}

/// Refuses numbers that are not finite.
pub(crate) fn finite(what: &'static str, values: &[f64]) -> Result<(), Error> {
    match values.iter().position(|value| !value.is_finite()) {
        Some(index) => Err(Error::NotFinite { what, index, value: values[index] }),
        None => Ok(()),
    }
}

/// Returns the entries of a vector of `length` numbers. Refuses another shape, and numbers that are not
/// finite.
pub(crate) fn finite_values(what: &'static str, tensor: &Tensor, length: i64) -> Result<Vec<f64>, Error> {
    shape(what, tensor, &[length])?;
    let values = to_f64_vec(tensor);
    finite(what, &values)?;
    Ok(values)
}

/// Returns the entries of a vector of any device and dtype.
pub(crate) fn to_f64_vec(vector: &Tensor) -> Vec<f64> {
    let vector = vector.detach().to_device(Device::Cpu).to_kind(Kind::Double);
    Vec::try_from(vector).expect("callers pass vectors, and every number fits f64")
}

/// Creates a vector on the device of `like`, with its dtype but at least fp32.
pub(crate) fn vector_like(values: &[f64], like: &Tensor) -> Tensor {
    upload(values, like.device()).to_kind(wide_kind(like))
}

/// Returns `tensor` itself, or converts it to fp32 if its dtype is narrower (bf16, fp16, integers).
pub(crate) fn upcast_to_fp32(tensor: &Tensor) -> Tensor {
    tensor.to_kind(wide_kind(tensor))
}

/// Returns `values` as a constant of a loss: checked against the shape of `like`, detached, in fp32 at least.
pub(crate) fn detached_like(what: &'static str, values: &Tensor, like: &Tensor) -> Result<Tensor, Error> {
    shape(what, values, &like.size())?;
    Ok(upcast_to_fp32(&values.detach()))
}

fn wide_kind(tensor: &Tensor) -> Kind {
    match tensor.kind() {
        Kind::Double => Kind::Double,
        _ => Kind::Float,
    }
}
