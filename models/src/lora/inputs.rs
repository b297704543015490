//! The inputs of adapted layers, summed up while a model runs.
//!
//! Within [`observed`], each layer with an adapter that this thread runs adds its inputs `x` `[in]` at some
//! tokens to sums of its own: their number, `sum x` and `sum x x^T`, in fp64. What a layer computes stays as
//! it is. This module does not know what the sums are for.

use std::cell::RefCell;
use std::collections::BTreeMap;

use tch::{Device, Kind, Tensor, no_grad};

/// The sums over the inputs of one layer.
#[derive(Debug)]
pub(super) struct InputSums {
    /// The number of inputs.
    pub(super) count: i64,
    /// `sum x`, `[in]`.
    sum: Tensor,
    /// `sum x x^T`, `[in, in]`.
    products: Tensor,
}

/// The sums of several layers, by the [`key`] of each.
pub(super) type SumsByLayer = BTreeMap<usize, InputSums>;

/// The sums that layers on this thread add to.
struct Observer {
    /// The tokens whose inputs count, int64 `[M]`.
    tokens: Tensor,
    sums: SumsByLayer,
}

thread_local! {
    static CURRENT: RefCell<Option<Observer>> = const { RefCell::new(None) };
}

/// Runs `body`, in which adapted layers add their inputs at `tokens`, int64 `[M]`, to `sums`.
pub(super) fn observed<T>(tokens: &Tensor, sums: &mut SumsByLayer, body: impl FnOnce() -> T) -> T {
    let observer = Observer { tokens: tokens.shallow_clone(), sums: std::mem::take(sums) };
    let previous = CURRENT.replace(Some(observer));
    let result = body();
    let observer = CURRENT.replace(previous);
    *sums = observer.map(|observer| observer.sums).unwrap_or_default();
    result
}

/// Adds the inputs `x` `[N, in]` of the layer whose adapter has the matrix `a`, if someone observes them.
pub(super) fn observe(a: &Tensor, x: &Tensor) {
    CURRENT.with_borrow_mut(|current| {
        let Some(Observer { tokens, sums }) = current else { return };
        let x = no_grad(|| x.detach().index_select(0, tokens).to_kind(Kind::Double));
        sums.entry(key(a)).or_insert_with(|| InputSums::new(x.size()[1], x.device())).add(&x);
    });
}

/// What tells layers apart: the address of the matrix `A` of the adapter.
pub(super) fn key(a: &Tensor) -> usize {
    a.data_ptr() as usize
}

impl InputSums {
    fn new(width: i64, device: Device) -> Self {
        let zeros = |shape: &[i64]| Tensor::zeros(shape, (Kind::Double, device));
        Self { count: 0, sum: zeros(&[width]), products: zeros(&[width, width]) }
    }

    /// Adds inputs, fp64 `[M, in]`.
    fn add(&mut self, x: &Tensor) {
        no_grad(|| {
            self.count += x.size()[0];
            self.sum += x.sum_dim_intlist(0, false, Kind::Double);
            let _ = self.products.addmm_(&x.tr(), x);
        });
    }

    /// `sum (x - m)(x - m)^T` with the mean `m` of the inputs, `[in, in]`.
    pub(super) fn scatter(&self) -> Tensor {
        no_grad(|| &self.products - self.sum.outer(&self.sum) / self.count as f64)
    }

    /// Whether another layer has the same sums, as layers with the same inputs have.
    pub(super) fn equals(&self, other: &Self) -> bool {
        self.count == other.count && self.sum.equal(&other.sum) && self.products.equal(&other.products)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The inputs (1, 0), (3, 0) and (2, 3) have the mean (2, 1): sums of squares 2 and 6, and no product.
    #[test]
    fn inputs_at_some_tokens_are_summed_up_over_calls() {
        let a = Tensor::zeros([1, 2], (Kind::Float, Device::Cpu));
        let [first, second] =
            [[[1f32, 0.0], [9.0, 9.0]], [[3.0, 0.0], [2.0, 3.0]]].map(|rows| Tensor::from_slice2(&rows));
        let mut sums = SumsByLayer::new();
        observe(&a, &first);
        observed(&Tensor::from_slice(&[0i64]), &mut sums, || observe(&a, &first));
        observed(&Tensor::from_slice(&[0i64, 1]), &mut sums, || observe(&a, &second));
        observe(&a, &second);
        let found = &sums[&key(&a)];
        assert_eq!((sums.len(), found.count), (1, 3));
        let expected = Tensor::from_slice2(&[[2f64, 0.0], [0.0, 6.0]]);
        assert!(found.scatter().allclose(&expected, 0.0, 1e-12, false), "{:?}", found.scatter());
    }
}
