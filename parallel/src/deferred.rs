//! Products whose backward pass makes the gradient of the input at once and that of the weight later.
//!
//! A pipeline has idle time, and what nobody waits for can be done then (Qi et al. 2024, arXiv 2401.10241). Within [`collect`], the
//! backward pass of a [`product`] leaves what the gradient of its weight needs in the collection. Knows no layer and no schedule.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};

use parallel_sys::autograd::{Backward, attach};
use tch::{Tensor, no_grad};

use crate::{Error, Parameter};

/// What was put off.
#[derive(Clone, Default)]
pub struct Collection(Arc<Mutex<Vec<Deferred>>>);

/// The product of one weight: `dW` is `grad^T x`, or `x^T grad` of a weight that is stored the other way round.
struct Deferred {
    weight: Tensor,
    x: Tensor,
    grad: Tensor,
    in_out: bool,
}

thread_local! {
    static CURRENT: RefCell<Option<Collection>> = const { RefCell::new(None) };
}

/// Runs `body`, in which the products of this thread put their gradients off to `collection`.
pub fn collect<T>(collection: &Collection, body: impl FnOnce() -> T) -> T {
    let before = CURRENT.replace(Some(collection.clone()));
    let result = body();
    CURRENT.set(before);
    result
}

/// Whether the products of this thread put their gradients off.
pub fn is_collecting() -> bool {
    CURRENT.with_borrow(Option::is_some)
}

/// `x W^T`, or `x W` for a weight `[in, out]`, whose weight's gradient is put off; `None` where nobody collects, or nothing is to be
/// put off.
pub fn product(x: &Tensor, weight: &Tensor, in_out: bool) -> Option<Result<Tensor, Error>> {
    let collection = CURRENT.with_borrow(Clone::clone)?;
    let wanted = parallel_sys::autograd::is_enabled() && x.requires_grad() && weight.requires_grad();
    if !wanted || !weight.is_leaf() {
        return None;
    }
    let (own_x, own_weight) = (x.detach(), weight.detach());
    let result =
        no_grad(
            || {
                if in_out { own_x.matmul(&own_weight) } else { own_x.linear(&own_weight, None::<&Tensor>) }
            },
        );
    let backward: Backward = Box::new(move |grads| {
        let Some(grad) = &grads[0] else { return Ok(vec![None]) };
        let of_x = no_grad(|| if in_out { grad.matmul(&own_weight.tr()) } else { grad.matmul(&own_weight) });
        let (weight, x, grad) = (own_weight.shallow_clone(), own_x.shallow_clone(), grad.shallow_clone());
        let mut waiting = collection.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push(Deferred { weight, x, grad, in_out });
        Ok(vec![Some(of_x)])
    });
    let attached = attach(&[&result], &[x], backward);
    Some(attached.map_err(Error::from).map(|mut outputs| outputs.pop().expect("as many as were given")))
}

impl Collection {
    /// Makes the gradients, each with the index of its weight among `parameters`.
    pub fn gradients<'a>(&self, parameters: &'a [Parameter]) -> impl Iterator<Item = (usize, Tensor)> + 'a {
        let waiting = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        waiting.into_iter().map(|Deferred { weight, x, grad, in_out }| {
            let same = |parameter: &Parameter| parameter.tensor.data_ptr() == weight.data_ptr();
            let index = parameters.iter().position(same).expect("a leaf is a parameter");
            (index, no_grad(|| if in_out { x.tr().matmul(&grad) } else { grad.tr().matmul(&x) }))
        })
    }
}
