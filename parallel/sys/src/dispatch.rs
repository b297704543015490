//! Calls any libtorch operation by its schema name through the dispatcher.
//!
//! Arguments are positional and in the order of the schema. Arguments left off at the end take the defaults
//! of the schema.

use std::ffi::{CString, c_void};

use tch::Tensor;
use torch_sys::C_tensor;

use crate::raw::{self, ShimValue};
use crate::{Error, check};

/// One argument.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// `None` of an optional argument.
    None,
    /// A tensor.
    Tensor(&'a Tensor),
    /// An integer, or the code of an enumeration such as a data type.
    Int(i64),
    /// A floating-point number.
    Double(f64),
    /// A flag.
    Bool(bool),
    /// Text.
    Str(&'a str),
    /// `Tensor[]`.
    Tensors(&'a [&'a Tensor]),
    /// `int[]`.
    Ints(&'a [i64]),
    /// `float[]`.
    Doubles(&'a [f64]),
    /// `bool[]`, or `bool[N]`.
    Bools(&'a [bool]),
}

/// One result. A list of tensors is returned as one result per tensor.
#[derive(Debug)]
pub enum Output {
    /// An absent optional result.
    None,
    /// A tensor.
    Tensor(Tensor),
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Double(f64),
    /// A flag.
    Bool(bool),
}

/// Calls `aten::name.overload` (the namespace is part of `name`; `overload` is often empty) and returns its
/// results in order.
pub fn call(name: &str, overload: &str, arguments: &[Value<'_>]) -> Result<Vec<Output>, Error> {
    let named = |text: &str| CString::new(text).map_err(|_| nul_in(name));
    let (c_name, c_overload) = (named(name)?, named(overload)?);
    let lists: Vec<Vec<*const C_tensor>> = arguments.iter().map(pointers).collect();
    let values: Vec<ShimValue> =
        arguments.iter().zip(&lists).map(|(value, list)| encode(value, list)).collect();
    let mut outputs: Vec<Output> = Vec::new();
    // SAFETY: every pointer in `values` is borrowed from `arguments` or `lists`, which outlive the call, and
    // `collect` is only called during it with `outputs` as its context.
    let code = unsafe {
        raw::shim_call(
            c_name.as_ptr(),
            c_overload.as_ptr(),
            values.as_ptr(),
            values.len(),
            collect,
            (&raw mut outputs).cast(),
        )
    };
    check(name, code)?;
    Ok(outputs)
}

/// Calls an operation that returns only tensors, by [`call`].
pub fn call_tensors(name: &str, overload: &str, arguments: &[Value<'_>]) -> Result<Vec<Tensor>, Error> {
    call(name, overload, arguments)?
        .into_iter()
        .map(|output| match output {
            Output::Tensor(tensor) => Ok(tensor),
            other => Err(Error::Torch {
                call: name.to_owned(),
                message: format!("expected only tensors as results, got {other:?}"),
            }),
        })
        .collect()
}

fn nul_in(name: &str) -> Error {
    Error::Torch { call: name.to_owned(), message: "the operation's name holds a NUL byte".to_owned() }
}

fn pointers(value: &Value<'_>) -> Vec<*const C_tensor> {
    match value {
        Value::Tensors(tensors) => tensors.iter().map(|tensor| tensor.as_ptr()).collect(),
        _ => Vec::new(),
    }
}

fn encode(value: &Value<'_>, list: &[*const C_tensor]) -> ShimValue {
    let empty = ShimValue { tag: raw::NONE, integer: 0, real: 0.0, data: std::ptr::null(), length: 0 };
    match *value {
        Value::None => empty,
        Value::Tensor(tensor) => ShimValue { tag: raw::TENSOR, data: tensor.as_ptr().cast(), ..empty },
        Value::Int(integer) => ShimValue { tag: raw::INT, integer, ..empty },
        Value::Double(real) => ShimValue { tag: raw::DOUBLE, real, ..empty },
        Value::Bool(flag) => ShimValue { tag: raw::BOOL, integer: flag.into(), ..empty },
        Value::Str(text) => {
            ShimValue { tag: raw::STRING, data: text.as_ptr().cast(), length: text.len(), ..empty }
        }
        Value::Tensors(_) => {
            ShimValue { tag: raw::TENSOR_LIST, data: list.as_ptr().cast(), length: list.len(), ..empty }
        }
        Value::Ints(numbers) => {
            ShimValue { tag: raw::INT_LIST, data: numbers.as_ptr().cast(), length: numbers.len(), ..empty }
        }
        Value::Doubles(numbers) => {
            ShimValue { tag: raw::DOUBLE_LIST, data: numbers.as_ptr().cast(), length: numbers.len(), ..empty }
        }
        Value::Bools(flags) => {
            ShimValue { tag: raw::BOOL_LIST, data: flags.as_ptr().cast(), length: flags.len(), ..empty }
        }
    }
}

extern "C" fn collect(context: *mut c_void, value: *const ShimValue) {
    // SAFETY: `call` passes a live `Vec<Output>` as the context and the shim passes a live value; a tensor in
    // it belongs to this function.
    unsafe {
        let outputs = &mut *context.cast::<Vec<Output>>();
        let value = &*value;
        outputs.push(match value.tag {
            raw::TENSOR => Output::Tensor(Tensor::from_ptr(value.data.cast::<C_tensor>().cast_mut())),
            raw::INT => Output::Int(value.integer),
            raw::DOUBLE => Output::Double(value.real),
            raw::BOOL => Output::Bool(value.integer != 0),
            _ => Output::None,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreach_ops_that_tch_leaves_out_are_reachable() {
        let (a, b) = (Tensor::from_slice(&[1.0, 2.0]), Tensor::from_slice(&[3.0]));
        let doubled =
            call_tensors("aten::_foreach_mul", "Scalar", &[Value::Tensors(&[&a, &b]), Value::Double(2.0)])
                .unwrap();
        assert_eq!(Vec::<f64>::try_from(&doubled[0]).unwrap(), [2.0, 4.0]);
        assert_eq!(Vec::<f64>::try_from(&doubled[1]).unwrap(), [6.0]);
    }

    #[test]
    fn defaults_of_the_schema_fill_the_tail() {
        let a = Tensor::from_slice(&[1.0, 5.0]);
        let sum = call_tensors("aten::add", "Tensor", &[Value::Tensor(&a), Value::Tensor(&a)]).unwrap();
        assert_eq!(Vec::<f64>::try_from(&sum[0]).unwrap(), [2.0, 10.0]);
    }

    #[test]
    fn flags_choose_the_gradients_that_are_wanted() {
        let ones = || Tensor::ones([2, 3], (tch::Kind::Float, tch::Device::Cpu));
        let (grad, x, weight) = (ones(), ones(), Tensor::from_slice(&[1f32, 2.0, 3.0]));
        let statistics = Tensor::ones([2, 1], (tch::Kind::Float, tch::Device::Cpu));
        let arguments = |wanted| {
            let grad_and_input = [Value::Tensor(&grad), Value::Tensor(&x), Value::Ints(&[3])];
            let statistics = [Value::Tensor(&statistics), Value::Tensor(&statistics)];
            let weights = [Value::Tensor(&weight), Value::None, Value::Bools(wanted)];
            [&grad_and_input[..], &statistics, &weights].concat()
        };
        let grads =
            call_tensors("aten::native_layer_norm_backward", "", &arguments(&[false, true, false])).unwrap();
        assert_eq!(grads.iter().map(Tensor::defined).collect::<Vec<_>>(), [false, true, false]);
        assert_eq!(Vec::<f32>::try_from(&grads[1]).unwrap(), [0.0; 3]);
    }

    #[test]
    fn an_unknown_operation_is_an_error_that_names_it() {
        let error = call("aten::no_such_operation", "", &[]).unwrap_err().to_string();
        assert!(error.contains("no_such_operation"), "{error}");
    }

    #[test]
    fn a_missing_argument_is_named() {
        let a = Tensor::from_slice(&[1.0]);
        let error = call("aten::add", "Tensor", &[Value::Tensor(&a)]).unwrap_err().to_string();
        assert!(error.contains("`other`"), "{error}");
    }
}
