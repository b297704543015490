//! The RMS norm (Zhang and Sennrich 2019, arXiv 1910.07467): `y = x root w` with `root = 1 / sqrt(mean x^2 +
//! e)` for each row of `H` numbers. Its gradients are `dx = root (g w - n mean(g w n))` and `dw = sum g n`,
//! with `n = x root`.

use std::borrow::Cow;
use std::ops::Range;

use tch::{Kind, Tensor};

use super::{LANES, NUMBERS_PER_SHARE, Number, Writable, common_kind, numbers, rounded};
use crate::bfloat16::Bfloat16;
use crate::instruction_set::{InstructionSet, VectorLoop};
use crate::{openmp, operations};

/// The rows whose terms of the gradient of the weight are summed together, and then with those of other rows.
const ROWS_PER_SUM: usize = 16;

/// The norm of `x` `[.., H]` and the roots, fp32 `[.., 1]`. Without a weight `w` is 1. The norm is rounded to
/// the kind of `x` before it is multiplied by the weight, as in transformers.
pub fn forward(x: &Tensor, weight: Option<&Tensor>, eps: f64) -> Option<(Tensor, Tensor)> {
    let kind = common_kind(&std::iter::once(x).chain(weight).collect::<Vec<_>>())?;
    let (x, weight) = (x.contiguous(), weight.map(Tensor::contiguous));
    operations::record("rms_norm");
    let output = x.empty_like();
    let mut shape = x.size();
    *shape.last_mut()? = 1;
    let roots = Tensor::empty(shape, (Kind::Float, x.device()));
    match kind {
        Kind::Float => Forward::<f32>::run(&x, weight.as_ref(), eps as f32, &output, &roots),
        _ => Forward::<Bfloat16>::run(&x, weight.as_ref(), eps as f32, &output, &roots),
    }
    Some((output, roots))
}

/// The gradients of [`forward`] with respect to `x` and, if it is wanted, to the weight, from the gradient of
/// its first result, its input and its second result.
pub fn backward(
    grad: &Tensor,
    x: &Tensor,
    roots: &Tensor,
    weight: Option<&Tensor>,
    wants_weight: bool,
) -> Option<(Tensor, Option<Tensor>)> {
    let kind = common_kind(&[grad, x].into_iter().chain(weight).collect::<Vec<_>>())?;
    let (grad, x, weight) = (grad.contiguous(), x.contiguous(), weight.map(Tensor::contiguous));
    operations::record("rms_norm_backward");
    let x_grad = x.empty_like();
    let size = *x.size().last()?;
    let sums = roots.numel().div_ceil(ROWS_PER_SUM) as i64;
    let partial = wants_weight.then(|| Tensor::empty([sums, size], (Kind::Float, x.device())));
    let tensors = [&grad, &x, roots];
    match kind {
        Kind::Float => Backward::<f32>::run(tensors, weight.as_ref(), &x_grad, partial.as_ref()),
        _ => Backward::<Bfloat16>::run(tensors, weight.as_ref(), &x_grad, partial.as_ref()),
    }
    let weight_grad = partial.map(|partial| partial.sum_dim_intlist(0, false, Kind::Float).to_kind(kind));
    Some((x_grad, weight_grad))
}

/// The sum of a term over the places of equally long rows: in lanes, and then over the lanes.
#[inline(always)]
fn sum<const ROWS: usize, T: Number>(rows: [&[T]; ROWS], term: impl Fn([f32; ROWS]) -> f32) -> f32 {
    let chunks = rows.map(<[T]>::as_chunks::<LANES>);
    let mut lanes = [0f32; LANES];
    for index in 0..chunks[0].0.len() {
        let chunk = chunks.map(|(body, _)| &body[index]);
        for lane in 0..LANES {
            lanes[lane] += term(chunk.map(|numbers| numbers[lane].widen()));
        }
    }
    let mut total: f64 = lanes.iter().map(|&lane| f64::from(lane)).sum();
    for place in 0..chunks[0].1.len() {
        total += f64::from(term(chunks.map(|(_, tail)| tail[place].widen())));
    }
    total as f32
}

/// The numbers of a weight, or ones.
fn weight_or_ones<T: Number>(weight: Option<&Tensor>, size: usize) -> Cow<'_, [T]> {
    weight
        .map_or_else(|| Cow::Owned(vec![T::narrow(1.0); size]), |weight| Cow::Borrowed(numbers::<T>(weight)))
}

/// Some rows of a forward pass.
struct Forward<'a, T> {
    x: &'a [T],
    weight: &'a [T],
    eps: f32,
    output: &'a mut [T],
    roots: &'a mut [f32],
}

impl<T: Number> Forward<'_, T> {
    fn run(x: &Tensor, weight: Option<&Tensor>, eps: f32, output: &Tensor, roots: &Tensor) {
        let size = x.size().last().map_or(0, |&size| size as usize);
        if x.numel() == 0 {
            return;
        }
        let (x, weight) = (numbers::<T>(x), weight_or_ones::<T>(weight, size));
        let weight = &*weight;
        let (output, roots) = (Writable::<T>::of(output), Writable::<f32>::of(roots));
        openmp::share(x.len() / size, NUMBERS_PER_SHARE.div_ceil(size), &|rows: Range<usize>| {
            let range = rows.start * size..rows.end * size;
            // SAFETY: the shares are disjoint ranges of the rows.
            let (output, roots) = unsafe { (output.range(range.clone()), roots.range(rows)) };
            InstructionSet::best().run(Forward { x: &x[range], weight, eps, output, roots });
        });
    }
}

impl<T: Number> VectorLoop for Forward<'_, T> {
    #[inline(always)]
    fn run(self) {
        let size = self.x.len() / self.roots.len().max(1);
        let rows = self.x.chunks_exact(size).zip(self.output.chunks_exact_mut(size));
        for ((x, output), root) in rows.zip(self.roots) {
            *root = 1.0 / (sum([x], |[x]| x * x) / size as f32 + self.eps).sqrt();
            for ((x, weight), output) in x.iter().zip(self.weight).zip(output) {
                *output = T::narrow(rounded::<T>(x.widen() * *root) * weight.widen());
            }
        }
    }
}

/// Some rows of a backward pass.
struct Backward<'a, T> {
    grad: &'a [T],
    x: &'a [T],
    roots: &'a [f32],
    weight: &'a [T],
    x_grad: &'a mut [T],
    /// The sums of the gradient of the weight, one for each [`ROWS_PER_SUM`] rows; empty if it is not wanted.
    sums: &'a mut [f32],
}

impl<T: Number> Backward<'_, T> {
    fn run([grad, x, roots]: [&Tensor; 3], weight: Option<&Tensor>, x_grad: &Tensor, sums: Option<&Tensor>) {
        let size = x.size().last().map_or(0, |&size| size as usize);
        if x.numel() == 0 {
            if let Some(sums) = sums {
                let _ = sums.shallow_clone().zero_();
            }
            return;
        }
        let (grad, x, roots) = (numbers::<T>(grad), numbers::<T>(x), numbers::<f32>(roots));
        let weight = &*weight_or_ones::<T>(weight, size);
        let (x_grad, sums) = (Writable::<T>::of(x_grad), sums.map(Writable::<f32>::of));
        let blocks = roots.len().div_ceil(ROWS_PER_SUM);
        // Whole blocks, so that the sums do not depend on the number of threads.
        openmp::share(blocks, NUMBERS_PER_SHARE.div_ceil(size * ROWS_PER_SUM), &|blocks: Range<usize>| {
            let rows = blocks.start * ROWS_PER_SUM..(blocks.end * ROWS_PER_SUM).min(roots.len());
            let range = rows.start * size..rows.end * size;
            // SAFETY: the shares are disjoint ranges of the rows.
            let x_grad = unsafe { x_grad.range(range.clone()) };
            let sums = sums.as_ref().map_or(&mut [][..], |sums| {
                // SAFETY: as above.
                unsafe { sums.range(blocks.start * size..blocks.end * size) }
            });
            let (grad, x, roots) = (&grad[range.clone()], &x[range], &roots[rows]);
            InstructionSet::best().run(Backward { grad, x, roots, weight, x_grad, sums });
        });
    }
}

impl<T: Number> VectorLoop for Backward<'_, T> {
    #[inline(always)]
    fn run(self) {
        let size = self.x.len() / self.roots.len().max(1);
        self.sums.fill(0.0);
        let rows = self.grad.chunks_exact(size).zip(self.x.chunks_exact(size));
        for (row, (((grad, x), x_grad), &root)) in
            rows.zip(self.x_grad.chunks_exact_mut(size)).zip(self.roots).enumerate()
        {
            let mean =
                sum([grad, x, self.weight], |[grad, x, weight]| grad * weight * (x * root)) / size as f32;
            for (((grad, x), weight), x_grad) in grad.iter().zip(x).zip(self.weight).zip(x_grad) {
                let normed = x.widen() * root;
                *x_grad = T::narrow((grad.widen() * weight.widen() - normed * mean) * root);
            }
            if !self.sums.is_empty() {
                let block = row / ROWS_PER_SUM * size;
                let sums = &mut self.sums[block..block + size];
                for ((grad, x), sum) in grad.iter().zip(x).zip(sums) {
                    *sum += grad.widen() * (x.widen() * root);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    fn random(shape: &[i64], kind: Kind) -> Tensor {
        (Tensor::randn(shape, (Kind::Float, Device::Cpu)) * 2.0).to_kind(kind)
    }

    /// The norm as operations of libtorch, in double precision, with its gradients.
    fn reference(x: &Tensor, weight: &Tensor, grad: &Tensor, eps: f64) -> [Tensor; 3] {
        let [x, weight, grad] = [x, weight, grad].map(|tensor| tensor.to_kind(Kind::Double));
        let root = (x.square().mean_dim(-1, true, Kind::Double) + eps).rsqrt();
        let normed = &x * &root;
        let scaled = &grad * &weight;
        let mean = (&scaled * &normed).mean_dim(-1, true, Kind::Double);
        let x_grad = (&scaled - &normed * mean) * &root;
        let size = x.size()[1];
        [
            &normed * &weight,
            x_grad,
            (&grad * &normed).view([-1, size]).sum_dim_intlist(0, false, Kind::Double),
        ]
    }

    #[test]
    fn norm_and_gradients_are_those_of_the_formula() {
        tch::manual_seed(5);
        for (rows, size) in [(1, 1), (3, 7), (5, 16), (129, 128), (200, 515), (64, 4096)] {
            for (kind, tolerance) in [(Kind::Float, 2e-6), (Kind::BFloat16, 2e-2)] {
                let (x, grad) = (random(&[rows, size], kind), random(&[rows, size], kind));
                let weight = random(&[size], kind);
                let (output, roots) = forward(&x, Some(&weight), 1e-5).unwrap();
                let (x_grad, weight_grad) = backward(&grad, &x, &roots, Some(&weight), true).unwrap();
                let wanted = reference(&x, &weight, &grad, 1e-5);
                for (name, found, wanted) in [
                    ("norm", output, &wanted[0]),
                    ("gradient of x", x_grad, &wanted[1]),
                    ("gradient of the weight", weight_grad.unwrap(), &wanted[2]),
                ] {
                    let scale = wanted.abs().max().double_value(&[]).max(1.0);
                    let worst = (found.to_kind(Kind::Double) - wanted).abs().max().double_value(&[]);
                    assert!(worst < tolerance * scale, "{rows} x {size} {kind:?} {name}: {worst} at {scale}");
                }
            }
        }
    }

    #[test]
    fn threads_and_missing_weights_change_no_bit() {
        tch::manual_seed(6);
        let (x, grad) = (random(&[1000, 96], Kind::Float), random(&[1000, 96], Kind::Float));
        let ones = Tensor::ones([96], (Kind::Float, Device::Cpu));
        let run = |threads: i32, weight: Option<&Tensor>| {
            let before = tch::get_num_threads();
            tch::set_num_threads(threads);
            let (output, roots) = forward(&x, weight, 1e-6).unwrap();
            let (x_grad, sums) = backward(&grad, &x, &roots, weight, true).unwrap();
            tch::set_num_threads(before);
            [output, x_grad, sums.unwrap()]
        };
        let first = run(1, Some(&ones));
        for (threads, weight) in [(3, Some(&ones)), (2, None)] {
            assert!(
                run(threads, weight).iter().zip(&first).all(|(found, wanted)| found == wanted),
                "{threads}"
            );
        }
    }
}
