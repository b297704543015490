//! Sums of what a loss reports beside its value.

use tch::{Kind, Tensor};

use crate::check;

/// Sums several quantities over the tokens, with one transfer from the device.
pub(super) fn sums<const K: usize>(quantities: [Tensor; K]) -> [f64; K] {
    check::to_f64_vec(&device_sums(quantities)).try_into().expect("one sum for each quantity")
}

/// Sums several quantities over the tokens, `[K]` in fp64 on their device.
pub(super) fn device_sums<const K: usize>(quantities: [Tensor; K]) -> Tensor {
    let quantities = quantities.map(|quantity| quantity.detach().to_kind(Kind::Double));
    Tensor::stack(&quantities, 0).flatten(1, -1).sum_dim_intlist(1, false, Kind::Double)
}
