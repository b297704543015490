//! Products whose backward pass makes the gradient of the input at once and that of the weight later.
//!
//! A pipeline has idle time, and what nobody waits for can be done then (Qi et al. 2024, arXiv 2401.10241). Within [`with_deferred_weight_grads`], the
//! backward pass of a [`linear_deferring_weight_grad`] leaves what the gradient of its weight needs in the collection. Knows no layer and no schedule.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};

use parallel_sys::autograd::{Backward, with_backward};
use tch::{Tensor, no_grad};

use crate::{Error, Parameter};

/// What was put off.
#[derive(Clone, Default)]
pub struct WeightGradStore(Arc<Mutex<Vec<DeferredWeightGrad>>>);

/// The product of one weight: `dW` is `grad^T x`, or `x^T grad` of a weight that is stored the other way round.
struct DeferredWeightGrad {
    weight: Tensor,
    x: Tensor,
    grad: Tensor,
    is_conv1d: bool,
}

thread_local! {
    static CURRENT: RefCell<Option<WeightGradStore>> = const { RefCell::new(None) };
}

/// Runs `body`, in which the products of this thread put their gradients off to `collection`.
pub fn with_deferred_weight_grads<T>(collection: &WeightGradStore, body: impl FnOnce() -> T) -> T {
    let before = CURRENT.replace(Some(collection.clone()));
    let result = body();
    CURRENT.set(before);
    result
}

/// Whether the products of this thread put their gradients off.
pub fn is_deferring() -> bool {
    CURRENT.with_borrow(Option::is_some)
}

/// `x W^T`, or `x W` for a weight `[in, out]`, whose weight's gradient is put off; `None` where nobody collects, or nothing is to be
/// put off.
pub fn linear_deferring_weight_grad(
    x: &Tensor,
    weight: &Tensor,
    is_conv1d: bool,
) -> Option<Result<Tensor, Error>> {
    let collection = CURRENT.with_borrow(Clone::clone)?;
    let wanted = parallel_sys::autograd::is_enabled() && x.requires_grad() && weight.requires_grad();
    if !wanted || !weight.is_leaf() {
        return None;
    }
    let (own_x, own_weight) = (x.detach(), weight.detach());
    let result = no_grad(|| {
        if is_conv1d { own_x.matmul(&own_weight) } else { own_x.linear(&own_weight, None::<&Tensor>) }
    });
    let backward: Backward = Box::new(move |grads| {
        let Some(grad) = &grads[0] else { return Ok(vec![None]) };
        let of_x =
            no_grad(|| if is_conv1d { grad.matmul(&own_weight.tr()) } else { grad.matmul(&own_weight) });
        let (weight, x, grad) = (own_weight.shallow_clone(), own_x.shallow_clone(), grad.shallow_clone());
        let mut waiting = collection.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push(DeferredWeightGrad { weight, x, grad, is_conv1d });
        Ok(vec![Some(of_x)])
    });
    let attached = with_backward(&[&result], &[x], backward);
    Some(attached.map_err(Error::from).map(|mut outputs| outputs.pop().expect("as many as were given")))
}

impl WeightGradStore {
    /// Makes the gradients, each with the index of its weight among `parameters`.
    pub fn flush<'a>(&self, parameters: &'a [Parameter]) -> impl Iterator<Item = (usize, Tensor)> + 'a {
        let waiting = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        waiting.into_iter().map(|DeferredWeightGrad { weight, x, grad, is_conv1d }| {
            let same = |parameter: &Parameter| parameter.tensor.data_ptr() == weight.data_ptr();
            let index = parameters.iter().position(same).expect("a leaf is a parameter");
            (index, no_grad(|| if is_conv1d { x.tr().matmul(&grad) } else { grad.tr().matmul(&x) }))
        })
    }
}
