//! The zero-bubble split of the backward pass: linear layers compute the input gradient at once and the
//! weight gradient later.
//!
//! A pipeline has idle time, in which deferred weight gradients can be computed (Qi et al. 2024, arXiv
//! 2401.10241). Within [`with_deferred_weight_grads`], the backward pass of a
//! [`linear_deferring_weight_grad`] puts the tensors that the weight gradient needs into a
//! [`WeightGradStore`]. This module knows no layer and no schedule.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};

use parallel_sys::autograd;
use tch::{Tensor, no_grad};

use crate::{Error, Parameter};

/// The deferred weight gradients (wgrad).
/// Zero-bubble pipelines: `WeightGradStore`; Transformer Engine: `delay_wgrad_compute`.
#[derive(Clone, Default)]
pub struct WeightGradStore(Arc<Mutex<Vec<DeferredWeightGrad>>>);

/// One deferred weight gradient: `grad^T x`, or `x^T grad` for a weight that is stored as `[in, out]`.
struct DeferredWeightGrad {
    weight: Tensor,
    x: Tensor,
    grad: Tensor,
    is_conv1d: bool,
}

thread_local! {
    static CURRENT: RefCell<Option<WeightGradStore>> = const { RefCell::new(None) };
}

/// Runs `body`; the linear layers that this thread runs in it defer their weight gradients to `store`.
pub fn with_deferred_weight_grads<T>(store: &WeightGradStore, body: impl FnOnce() -> T) -> T {
    let previous = CURRENT.replace(Some(store.clone()));
    let result = body();
    CURRENT.set(previous);
    result
}

/// Whether linear layers on this thread defer their weight gradients.
pub fn is_deferring() -> bool {
    CURRENT.with_borrow(Option::is_some)
}

/// Computes `x W^T`, or `x W` for a weight `[in, out]`, and defers the weight gradient. Returns `None` if no
/// store is active or if there is no weight gradient to defer.
pub fn linear_deferring_weight_grad(
    x: &Tensor,
    weight: &Tensor,
    is_conv1d: bool,
) -> Option<Result<Tensor, Error>> {
    let store = CURRENT.with_borrow(Clone::clone)?;
    let needs_grad = autograd::is_enabled() && x.requires_grad() && weight.requires_grad();
    if !needs_grad || !weight.is_leaf() {
        return None;
    }

    // The product itself runs without a graph: the node is all that autograd sees.
    let (detached_x, detached_weight) = (x.detach(), weight.detach());
    let result = no_grad(|| {
        if is_conv1d {
            detached_x.matmul(&detached_weight)
        } else {
            detached_x.linear(&detached_weight, None::<&Tensor>)
        }
    });

    let attached = autograd::node(result, &[x], move |grad| {
        let (weight, x, grad) = (detached_weight, detached_x, grad.shallow_clone());
        let input_grad = grad.matmul(&if is_conv1d { weight.tr() } else { weight.shallow_clone() });
        let mut deferred = store.0.lock().unwrap_or_else(PoisonError::into_inner);
        deferred.push(DeferredWeightGrad { weight, x, grad, is_conv1d });
        vec![Some(input_grad)]
    });
    Some(attached.map_err(Error::from))
}

impl WeightGradStore {
    /// Computes the deferred gradients and returns each with the index of its weight among `parameters`.
    pub fn flush<'a>(&self, parameters: &'a [Parameter]) -> impl Iterator<Item = (usize, Tensor)> + 'a {
        let deferred = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        deferred.into_iter().map(|DeferredWeightGrad { weight, x, grad, is_conv1d }| {
            let is_same_tensor = |parameter: &Parameter| parameter.tensor.data_ptr() == weight.data_ptr();
            let index = parameters.iter().position(is_same_tensor).expect("a leaf is a parameter");
            (index, no_grad(|| if is_conv1d { x.tr().matmul(&grad) } else { grad.tr().matmul(&x) }))
        })
    }
}
