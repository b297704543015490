//! Rotary position embeddings: the pairs `(x[j], x[j + dim / 2])` of a head's first `dim` numbers are
//! rotated.

use std::ops::Range;

use tch::{Kind, Tensor};

use super::{NUMBERS_PER_SHARE, Number, Writable, common_kind, numbers, rounded};
use crate::bfloat16::Bfloat16;
use crate::instruction_set::{InstructionSet, VectorLoop};
use crate::{openmp, operations};

/// Computes `x cos + (x2, x1) sin` for the halves `(x1, x2)` of the rotated numbers of `x` `[N, heads, D]`,
/// whose last dimension is contiguous, from tables `[N, 1, dim]`. If `is_backward`, the halves of `sin`
/// change places, which rotates in the other direction. Products and sums are rounded to the kind of `x`. The
/// result is contiguous.
pub fn rotate(x: &Tensor, cos: &Tensor, sin: &Tensor, is_backward: bool) -> Option<Tensor> {
    let kind = common_kind(&[x, cos, sin])?;
    let ([_, heads, size], [.., dim]): ([i64; 3], [i64; 3]) =
        (x.size().try_into().ok()?, cos.size().try_into().ok()?);
    let x = if x.stride()[2] == 1 { x.shallow_clone() } else { x.contiguous() };
    operations::record("rotary");
    let tables = [cos.contiguous(), sin.contiguous()];
    let output = Tensor::empty(x.size(), (kind, x.device()));
    let sizes = [heads as usize, size as usize, dim as usize];
    match kind {
        Kind::Float => Rotation::<f32>::run(&x, &tables, sizes, is_backward, &output),
        _ => Rotation::<Bfloat16>::run(&x, &tables, sizes, is_backward, &output),
    }
    Some(output)
}

/// The rotation of some tokens.
struct Rotation<'a, T> {
    /// The numbers from the first token of `x` on, with what lies between its rows.
    x: &'a [T],
    /// The distance of two tokens, and of two heads, in `x`.
    strides: [usize; 2],
    cos: &'a [T],
    sin: &'a [T],
    sizes: [usize; 3],
    is_backward: bool,
    output: &'a mut [T],
}

impl<T: Number> Rotation<'_, T> {
    fn run(x: &Tensor, tables: &[Tensor; 2], sizes: [usize; 3], is_backward: bool, output: &Tensor) {
        let [heads, size, dim] = sizes;
        let tokens = x.size()[0] as usize;
        if x.numel() == 0 {
            return;
        }
        let strides = [x.stride()[0] as usize, x.stride()[1] as usize];
        let [cos, sin] = tables.each_ref().map(numbers::<T>);
        let start = SharedStart(x.data_ptr().cast::<T>());
        let output = Writable::<T>::of(output);
        openmp::share(tokens, NUMBERS_PER_SHARE.div_ceil(heads * size), &|share: Range<usize>| {
            let last = (share.len() - 1) * strides[0] + (heads - 1) * strides[1] + size;
            // SAFETY: these are the numbers of the tensor between the first and the last token of the share.
            let x = unsafe { std::slice::from_raw_parts(start.at(share.start * strides[0]), last) };
            // SAFETY: the shares are disjoint ranges of the tokens.
            let output = unsafe { output.range(share.start * heads * size..share.end * heads * size) };
            let table = share.start * dim..share.end * dim;
            let (cos, sin) = (&cos[table.clone()], &sin[table]);
            InstructionSet::best().run(Rotation { x, strides, cos, sin, sizes, is_backward, output });
        });
    }
}

/// The address of the first number of a tensor that threads read.
struct SharedStart<T>(*const T);

// SAFETY: the tensor is only read.
unsafe impl<T: Sync> Sync for SharedStart<T> {}

impl<T> SharedStart<T> {
    /// # Safety
    /// The place lies within the tensor.
    unsafe fn at(&self, place: usize) -> *const T {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(place) }
    }
}

impl<T: Number> VectorLoop for Rotation<'_, T> {
    #[inline(always)]
    fn run(self) {
        let [heads, size, dim] = self.sizes;
        let half = dim / 2;
        let tables = self.cos.chunks_exact(dim).zip(self.sin.chunks_exact(dim));
        for (token, ((cos, sin), output)) in
            tables.zip(self.output.chunks_exact_mut(heads * size)).enumerate()
        {
            // The halves of the table differ in sign, so that they rotate back when they change places.
            let (low, high) = sin.split_at(half);
            let [sin1, sin2] = if self.is_backward { [high, low] } else { [low, high] };
            let (cos1, cos2) = cos.split_at(half);
            for (head, output) in output.chunks_exact_mut(size).enumerate() {
                let start = token * self.strides[0] + head * self.strides[1];
                let x = &self.x[start..start + size];
                let ((x1, x2), rest) = (x[..dim].split_at(half), &x[dim..]);
                let (rotated, same) = output.split_at_mut(dim);
                let (output1, output2) = rotated.split_at_mut(half);

                for place in 0..half {
                    let (left, right) = (x1[place].widen(), x2[place].widen());
                    let turned = |a: f32, cos: T, b: f32, sin: T| {
                        T::narrow(rounded::<T>(a * cos.widen()) + rounded::<T>(b * sin.widen()))
                    };
                    output1[place] = turned(left, cos1[place], right, sin1[place]);
                    output2[place] = turned(right, cos2[place], left, sin2[place]);
                }
                same.copy_from_slice(rest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    /// The rotation as operations of libtorch, each of which rounds.
    fn composed(x: &Tensor, cos: &Tensor, sin: &Tensor, is_backward: bool) -> Tensor {
        let dim = cos.size()[2];
        let half = dim / 2;
        let [x1, x2] = [0, half].map(|start| x.narrow(2, start, half));
        let [low, high] = [0, half].map(|start| sin.narrow(2, start, half));
        let (sin1, sin2) = if is_backward { (high, low) } else { (low, high) };
        let products = Tensor::cat(&[x2 * sin1, x1 * sin2], 2);
        let rest = x.narrow(2, dim, x.size()[2] - dim);
        Tensor::cat(&[x.narrow(2, 0, dim) * cos + products, rest], 2)
    }

    #[test]
    fn every_bit_is_that_of_single_operations() {
        tch::manual_seed(7);
        let options = (Kind::Float, Device::Cpu);
        for (tokens, heads, size, dim) in [(1, 1, 2, 2), (5, 3, 20, 8), (700, 4, 64, 64)] {
            for kind in [Kind::Float, Kind::BFloat16] {
                let wide = Tensor::randn([tokens, heads + 2, size], options).to_kind(kind);
                let angles = Tensor::randn([tokens, 1, dim], options);
                let (cos, sin) = (angles.cos().to_kind(kind), angles.sin().to_kind(kind));
                // The heads of a fused projection lie between others.
                let between = wide.narrow(1, 1, heads);
                let interleaved = wide.transpose(0, 1).contiguous().transpose(0, 1).narrow(1, 1, heads);
                for is_backward in [false, true] {
                    let wanted = composed(&between, &cos, &sin, is_backward);
                    for x in [&between, &interleaved] {
                        assert_eq!(rotate(x, &cos, &sin, is_backward).unwrap(), wanted, "{tokens} {kind:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn other_kinds_are_left_to_others() {
        let x = Tensor::ones([2, 1, 4], (Kind::Double, Device::Cpu));
        assert!(rotate(&x, &x, &x, false).is_none());
    }
}
