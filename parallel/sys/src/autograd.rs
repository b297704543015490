//! Vector-Jacobian products, and autograd nodes whose backward is a Rust function.

use std::ffi::{CString, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use tch::{Tensor, no_grad};
use torch_sys::C_tensor;

use crate::{Error, check, raw};

/// Computes the vector-Jacobian product: for each input, `sum_i grad_outputs[i]^T d outputs[i] / d input`.
///
/// Returns `None` for an input that no output depends on. The graph is freed.
pub fn grad(
    outputs: &[&Tensor],
    grad_outputs: &[&Tensor],
    inputs: &[&Tensor],
) -> Result<Vec<Option<Tensor>>, Error> {
    assert_eq!(outputs.len(), grad_outputs.len(), "one seed for each output");
    let (output_list, seed_list, input_list) = (pointers(outputs), pointers(grad_outputs), pointers(inputs));
    let mut results = vec![std::ptr::null_mut::<C_tensor>(); inputs.len()];

    // SAFETY: the pointers are borrowed from the argument slices, and `results` has room for one tensor per
    // input.
    let code = unsafe {
        raw::shim_grad(
            output_list.as_ptr(),
            seed_list.as_ptr(),
            output_list.len(),
            input_list.as_ptr(),
            input_list.len(),
            false,
            false,
            true,
            results.as_mut_ptr(),
        )
    };
    check("autograd::grad", code)?;
    Ok(results.into_iter().map(owned).collect())
}

/// The backward function of a custom node: from one gradient per output (`None` if there is none) to one
/// gradient per input.
pub type Backward = Box<dyn FnMut(&[Option<Tensor>]) -> Result<Vec<Option<Tensor>>, Error> + Send>;

/// Attaches `backward` to `outputs` (computed without a graph) as their backward function with respect to
/// `inputs`.
///
/// Returns the outputs with this autograd history. A panic in `backward` becomes an error of the backward
/// pass.
pub fn with_backward(
    outputs: &[&Tensor],
    inputs: &[&Tensor],
    backward: Backward,
) -> Result<Vec<Tensor>, Error> {
    let (output_list, input_list) = (pointers(outputs), pointers(inputs));
    let mut results = vec![std::ptr::null_mut::<C_tensor>(); outputs.len()];
    let state: *mut Backward = Box::into_raw(Box::new(backward));

    // SAFETY: the node takes ownership of `state` and passes it to `free` exactly once; the pointer lists
    // outlive the call.
    let code = unsafe {
        raw::shim_attach(
            output_list.as_ptr(),
            output_list.len(),
            input_list.as_ptr(),
            input_list.len(),
            state.cast(),
            run,
            free,
            results.as_mut_ptr(),
        )
    };
    check("autograd::attach", code)?;
    Ok(results.into_iter().filter_map(owned).collect())
}

/// Attaches `backward` to `output` (computed without a graph) as the only node between it and `inputs`,
/// unless no gradient is needed. `backward` runs without a graph, at most once, and returns one gradient for
/// each input. What it owns is freed when it has run. A second backward pass is an error.
/// PyTorch: `torch.autograd.Function`, with `once_differentiable`.
pub fn node(
    output: Tensor,
    inputs: &[&Tensor],
    backward: impl FnOnce(&Tensor) -> Vec<Option<Tensor>> + Send + 'static,
) -> Result<Tensor, Error> {
    if !is_enabled() || !inputs.iter().any(|input| input.requires_grad()) {
        return Ok(output);
    }
    let (count, mut backward) = (inputs.len(), Some(backward));
    let backward: Backward = Box::new(move |grads| {
        let backward = backward.take().ok_or_else(|| Error::Torch {
            call: "autograd::node".to_owned(),
            message: "the graph has run backward already".to_owned(),
        })?;
        Ok(match &grads[0] {
            Some(grad) => no_grad(|| backward(grad)),
            None => (0..count).map(|_| None).collect(),
        })
    });
    let mut attached = with_backward(&[&output], inputs, backward)?;
    Ok(attached.pop().expect("one attached tensor per output"))
}

/// Whether operations on this thread build a graph, which they do not inside `no_grad`.
pub fn is_enabled() -> bool {
    // SAFETY: a plain call that reads a flag of this thread.
    unsafe { raw::shim_grad_enabled() }
}

fn pointers(tensors: &[&Tensor]) -> Vec<*const C_tensor> {
    tensors.iter().map(|tensor| tensor.as_ptr()).collect()
}

fn owned(pointer: *mut C_tensor) -> Option<Tensor> {
    // SAFETY: a non-null result of the shim is a tensor that now belongs to the caller.
    (!pointer.is_null()).then(|| unsafe { Tensor::from_ptr(pointer) })
}

extern "C" fn run(
    state: *mut c_void,
    output_grads: *const *const C_tensor,
    output_count: usize,
    input_grads: *mut *mut C_tensor,
    input_count: usize,
) -> c_int {
    // SAFETY: `state` is the box of `with_backward`; the two arrays have the lengths that the shim states.
    let (backward, grad_outputs, grad_inputs) = unsafe {
        (
            &mut *state.cast::<Backward>(),
            std::slice::from_raw_parts(output_grads, output_count),
            std::slice::from_raw_parts_mut(input_grads, input_count),
        )
    };

    // A panic must not unwind into C++.
    let answer = catch_unwind(AssertUnwindSafe(|| {
        let grads: Vec<Option<Tensor>> = grad_outputs
            .iter()
            .map(|&pointer| {
                // SAFETY: a non-null pointer is a live tensor; `clone_from_ptr` makes a handle of its own.
                (!pointer.is_null()).then(|| unsafe { Tensor::clone_from_ptr(pointer.cast_mut()) })
            })
            .collect();
        backward(&grads)
    }));

    match answer {
        Ok(Ok(grads)) if grads.len() == grad_inputs.len() => {
            for (grad_input, grad) in grad_inputs.iter_mut().zip(grads) {
                *grad_input = grad.map_or(std::ptr::null_mut(), Tensor::into_ptr_owned);
            }
            0
        }
        Ok(Ok(grads)) => {
            fail(&format!("backward gave {} gradients for {} inputs", grads.len(), grad_inputs.len()))
        }
        Ok(Err(error)) => fail(&error.to_string()),
        Err(panic) => fail(&format!("backward panicked: {}", panic_text(panic.as_ref()))),
    }
}

/// Passes the ownership of a tensor to C++.
trait IntoPointer {
    fn into_ptr_owned(self) -> *mut C_tensor;
}

impl IntoPointer for Tensor {
    fn into_ptr_owned(self) -> *mut C_tensor {
        let tensor = std::mem::ManuallyDrop::new(self);
        tensor.as_ptr().cast_mut()
    }
}

/// Leaves a message for the C++ side of a callback, and returns the code of a failure.
pub(crate) fn fail(message: &str) -> c_int {
    let text = CString::new(message.replace('\0', " ")).unwrap_or_default();
    // SAFETY: the text lives until the call returns, and the shim copies it.
    unsafe { raw::shim_fail(text.as_ptr()) };
    1
}

/// The message of a caught panic.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

extern "C" fn free(state: *mut c_void) {
    // SAFETY: `state` came from `Box::into_raw` in `with_backward`, and the node calls this once.
    drop(unsafe { Box::from_raw(state.cast::<Backward>()) });
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Kind;

    fn leaf(values: &[f64]) -> Tensor {
        Tensor::from_slice(values).set_requires_grad(true)
    }

    #[test]
    fn grad_takes_its_seed() {
        let x = leaf(&[1.0, 2.0, 3.0]);
        let y = &x * &x;
        let seed = Tensor::from_slice(&[1.0, 10.0, 100.0]);
        let grads = grad(&[&y], &[&seed], &[&x]).unwrap();
        // d(x^2) = 2x, times the seed.
        assert_eq!(Vec::<f64>::try_from(grads[0].as_ref().unwrap()).unwrap(), [2.0, 40.0, 600.0]);
    }

    #[test]
    fn an_unused_input_has_no_gradient() {
        let (x, z) = (leaf(&[1.0]), leaf(&[1.0]));
        let y = &x * 3.0;
        let grads = grad(&[&y], &[&y.ones_like()], &[&x, &z]).unwrap();
        assert!(grads[0].is_some() && grads[1].is_none());
    }

    #[test]
    fn a_custom_node_runs_its_backward() {
        let x = leaf(&[2.0, 4.0]);
        let value = tch::no_grad(|| &x * 7.0);
        let outputs = with_backward(
            &[&value],
            &[&x],
            Box::new(|grads| Ok(vec![grads[0].as_ref().map(|grad| grad * 5.0)])),
        )
        .unwrap();
        assert_eq!(Vec::<f64>::try_from(&outputs[0]).unwrap(), [14.0, 28.0]);
        let total = (&outputs[0] * 2.0).sum(Kind::Double);
        let grads = grad(&[&total], &[&total.ones_like()], &[&x]).unwrap();
        // The node contributes the factor 5, the product the factor 2.
        assert_eq!(Vec::<f64>::try_from(grads[0].as_ref().unwrap()).unwrap(), [10.0, 10.0]);
    }

    #[test]
    fn a_panic_in_backward_is_an_error() {
        let x = leaf(&[1.0]);
        let value = tch::no_grad(|| &x * 1.0);
        let outputs = with_backward(&[&value], &[&x], Box::new(|_| panic!("rank 3 is gone"))).unwrap();
        let error = grad(&[&outputs[0]], &[&value.ones_like()], &[&x]).unwrap_err().to_string();
        assert!(error.contains("rank 3 is gone"), "{error}");
    }

    #[test]
    fn an_error_in_backward_is_an_error() {
        let x = leaf(&[1.0]);
        let value = tch::no_grad(|| &x * 1.0);
        let outputs = with_backward(&[&value], &[&x], Box::new(|_| Ok(vec![]))).unwrap();
        let error = grad(&[&outputs[0]], &[&value.ones_like()], &[&x]).unwrap_err().to_string();
        assert!(error.contains("0 gradients for 1 inputs"), "{error}");
    }

    #[test]
    fn the_state_is_dropped_once() {
        use std::sync::Arc;
        let counter = Arc::new(());
        let held = Arc::clone(&counter);
        let x = leaf(&[1.0]);
        let value = tch::no_grad(|| &x * 1.0);
        let outputs = with_backward(
            &[&value],
            &[&x],
            Box::new(move |_| {
                let _ = &held;
                Ok(vec![None])
            }),
        )
        .unwrap();
        assert_eq!(Arc::strong_count(&counter), 2);
        drop(outputs);
        assert_eq!(Arc::strong_count(&counter), 1);
    }
}
