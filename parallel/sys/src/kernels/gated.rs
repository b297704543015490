//! The gate of a `SwiGLU` (Shazeer 2020, arXiv 2002.05202): `silu(gate) up` with `silu(x) = x / (1 + e^-x)`.

use std::ops::Range;

use tch::{Kind, Tensor};

use super::{NUMBERS_PER_SHARE, Number, Writable, common_kind, numbers, rounded};
use crate::bfloat16::Bfloat16;
use crate::exponential::exp;
use crate::instruction_set::{InstructionSet, VectorLoop};
use crate::{openmp, operations};

/// `silu(gate) up`, of equal shapes. The first factor is rounded to the kind of the tensors.
pub fn forward(gate: &Tensor, up: &Tensor) -> Option<Tensor> {
    let kind = common_kind(&[gate, up])?;
    let (gate, up) = (gate.contiguous(), up.contiguous());
    assert_eq!(gate.size(), up.size(), "gate and up have one shape");
    operations::record("gated");
    let output = gate.empty_like();
    match kind {
        Kind::Float => forward_of::<f32>(&gate, &up, &output),
        _ => forward_of::<Bfloat16>(&gate, &up, &output),
    }
    Some(output)
}

/// Overwrites gate and up with their gradients, computed from `grad`, that of the result of [`forward`].
/// Returns whether it has done so.
#[must_use]
pub fn backward_(grad: &Tensor, gate: &mut Tensor, up: &mut Tensor) -> bool {
    let Some(kind) = common_kind(&[grad, gate, up]) else { return false };
    operations::record("gated_backward");
    let grad = grad.contiguous();
    (*gate, *up) = (gate.contiguous(), up.contiguous());
    assert!(grad.size() == gate.size() && gate.size() == up.size(), "gradient, gate and up have one shape");
    match kind {
        Kind::Float => backward_of::<f32>(&grad, gate, up),
        _ => backward_of::<Bfloat16>(&grad, gate, up),
    }
    true
}

fn forward_of<T: Number>(gate: &Tensor, up: &Tensor, output: &Tensor) {
    let (gate, up) = (numbers::<T>(gate), numbers::<T>(up));
    let output = Writable::<T>::of(output);
    openmp::share(gate.len(), NUMBERS_PER_SHARE, &|range: Range<usize>| {
        // SAFETY: the shares are disjoint.
        let output = unsafe { output.range(range.clone()) };
        InstructionSet::best().run(Forward { gate: &gate[range.clone()], up: &up[range], output });
    });
}

fn backward_of<T: Number>(grad: &Tensor, gate: &Tensor, up: &Tensor) {
    let grad = numbers::<T>(grad);
    let [gate, up] = [gate, up].map(Writable::<T>::of);
    openmp::share(grad.len(), NUMBERS_PER_SHARE, &|range: Range<usize>| {
        // SAFETY: the shares are disjoint.
        let (gate, up) = unsafe { (gate.range(range.clone()), up.range(range.clone())) };
        InstructionSet::best().run(Backward { grad: &grad[range], gate, up });
    });
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    let small = exp(-x.abs());
    let numerator = if x < 0.0 { small } else { 1.0 };
    numerator / (1.0 + small)
}

struct Forward<'a, T> {
    gate: &'a [T],
    up: &'a [T],
    output: &'a mut [T],
}

impl<T: Number> VectorLoop for Forward<'_, T> {
    #[inline(always)]
    fn run(self) {
        for ((gate, up), output) in self.gate.iter().zip(self.up).zip(self.output) {
            let gate = gate.widen();
            *output = T::narrow(rounded::<T>(gate * sigmoid(gate)) * up.widen());
        }
    }
}

struct Backward<'a, T> {
    grad: &'a [T],
    gate: &'a mut [T],
    up: &'a mut [T],
}

impl<T: Number> VectorLoop for Backward<'_, T> {
    #[inline(always)]
    fn run(self) {
        for ((grad, gate), up) in self.grad.iter().zip(self.gate).zip(self.up) {
            let (grad, x) = (grad.widen(), gate.widen());
            let share = sigmoid(x);
            let slope = share * (1.0 + x * (1.0 - share));
            *gate = T::narrow(rounded::<T>(grad * up.widen()) * slope);
            *up = T::narrow(rounded::<T>(x * share) * grad);
        }
    }
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    #[test]
    fn product_and_gradients_are_those_of_the_formula() {
        tch::manual_seed(8);
        for (count, kind, tolerance) in
            [(1, Kind::Float, 1e-6), (70_001, Kind::Float, 1e-6), (70_001, Kind::BFloat16, 1e-2)]
        {
            let random =
                |scale: f64| (Tensor::randn([count], (Kind::Float, Device::Cpu)) * scale).to_kind(kind);
            let (gate, up, grad) = (random(20.0), random(1.0), random(1.0));
            let output = forward(&gate, &up).unwrap();
            let (mut gate_grad, mut up_grad) = (gate.copy(), up.copy());
            assert!(backward_(&grad, &mut gate_grad, &mut up_grad));

            let [gate, up, grad] = [gate, up, grad].map(|tensor| tensor.to_kind(Kind::Double));
            let share = gate.sigmoid();
            let silu = &gate * &share;
            let slope = &share * (1.0 + &gate * (1.0 - &share));
            for (name, found, wanted) in [
                ("product", output, &silu * &up),
                ("gradient of the gate", gate_grad, &grad * &up * slope),
                ("gradient of up", up_grad, &grad * &silu),
            ] {
                let error = (found.to_kind(Kind::Double) - &wanted).abs() / (wanted.abs() + 1.0);
                let worst = error.max().double_value(&[]);
                assert!(worst < tolerance, "{count} {kind:?} {name}: {worst}");
            }
        }
    }

    #[test]
    fn extreme_gates_have_finite_results_and_nan_stays() {
        let gate = Tensor::from_slice(&[-1e30f32, -100.0, 0.0, 100.0, 1e30, f32::NAN]);
        let up = gate.ones_like();
        let found = Vec::<f32>::try_from(forward(&gate, &up).unwrap()).unwrap();
        assert_eq!(found[..5], [0.0, 0.0, 0.0, 100.0, 1e30]);
        assert!(found[5].is_nan());
        let (mut gate_grad, mut up_grad) = (gate.copy(), up.copy());
        assert!(backward_(&up, &mut gate_grad, &mut up_grad));
        assert_eq!(Vec::<f32>::try_from(gate_grad).unwrap()[..5], [0.0, 0.0, 0.5, 1.0, 1.0]);
    }
}
