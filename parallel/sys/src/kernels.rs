//! Operations of a layer on the host, in one pass over memory where libtorch takes several.
//!
//! A pass costs the start of a kernel and the time to read and write its tensors. In training of a small
//! model the norms, the rotations and the gates of the layers take a third of the time; in decoding all
//! operations read much and compute little. Each operation returns `None` for tensors that it is not made
//! for, such as those of a GPU, and its caller then composes it of the operations of libtorch.
//!
//! | operation | rows |
//! |---|---|
//! | [`rms_norm`], [`rotary`], [`gated`] | any number, forward and backward, in fp32 and bfloat16 |
//! | [`linear`] | few, in fp32 |
//! | [`quantized`] | few, in fp32 and bfloat16, with a matrix of codes; and the matrix that the codes stand for |
//! | [`attention`] | one for each sequence, in fp32 and bfloat16 |
//!
//! The first three round where the composed operations do.
//!
//! **Bits.** The result of a row depends on that row alone, and not on the number of threads or the
//! instruction set.

#![expect(
    clippy::inline_always,
    reason = "such a function is compiled with the instruction set of its caller"
)]
#![expect(
    clippy::needless_range_loop,
    reason = "a loop over registers is unrolled, and its index is a constant"
)]

pub mod attention;
pub mod gated;
mod lanes;
pub mod linear;
mod prefetch;
pub mod quantized;
pub mod rms_norm;
pub mod rotary;

use std::ops::Range;

use tch::{Device, Kind, Tensor};

use crate::bfloat16::Bfloat16;

/// The numbers for which another thread is worth its start. It is the grain size of aten.
const NUMBERS_PER_SHARE: usize = 32 << 10;
/// The numbers that a loop handles at once. The order of a sum depends on it.
const LANES: usize = 16;

/// A number in memory. Every operation computes in fp32.
trait Number: Copy + Send + Sync {
    fn widen(self) -> f32;
    /// Rounds to nearest, ties to even.
    fn narrow(wide: f32) -> Self;
    /// The numbers in fp32: the slice itself, or a copy in `memory`. `ahead` is the distance to numbers that
    /// are fetched meanwhile, or 0 for none; the result has the distance that is left to fetch.
    fn widened<'a>(numbers: &'a [Self], ahead: isize, memory: &'a mut Vec<f32>) -> (&'a [f32], isize);
}

impl Number for f32 {
    #[inline(always)]
    fn widened<'a>(numbers: &'a [Self], ahead: isize, _: &'a mut Vec<f32>) -> (&'a [f32], isize) {
        (numbers, ahead)
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }

    #[inline(always)]
    fn narrow(wide: f32) -> Self {
        wide
    }
}

impl Number for Bfloat16 {
    #[inline(always)]
    fn widened<'a>(numbers: &'a [Self], ahead: isize, memory: &'a mut Vec<f32>) -> (&'a [f32], isize) {
        /// The numbers of a cache line.
        const LINE: usize = 32;
        memory.resize(numbers.len(), 0.0);
        for (line, wide) in numbers.chunks(LINE).zip(memory.chunks_mut(LINE)) {
            if ahead != 0 {
                prefetch::prefetch(line.as_ptr().wrapping_offset(ahead).cast());
            }
            for (number, wide) in line.iter().zip(wide) {
                *wide = number.widen();
            }
        }
        (memory, 0)
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        Self::widen(self)
    }

    #[inline(always)]
    fn narrow(wide: f32) -> Self {
        Self::nearest(wide)
    }
}

/// `wide` as it would be after a trip through memory.
#[inline(always)]
fn rounded<T: Number>(wide: f32) -> f32 {
    T::narrow(wide).widen()
}

/// The kind of tensors that all have one kind of [`Number`] and lie on the host, if they do.
fn common_kind(tensors: &[&Tensor]) -> Option<Kind> {
    let kind = tensors.first()?.kind();
    let fits = |tensor: &&Tensor| tensor.kind() == kind && tensor.device() == Device::Cpu;
    (matches!(kind, Kind::Float | Kind::BFloat16) && tensors.iter().all(fits)).then_some(kind)
}

/// The numbers of a contiguous tensor on the host whose kind is that of `T`.
fn numbers<T: Number>(tensor: &Tensor) -> &[T] {
    assert!(tensor.is_contiguous() && tensor.device() == Device::Cpu, "the caller made it so");
    assert_eq!(tensor.kind().elt_size_in_bytes(), size_of::<T>(), "the caller chose the kind");
    if tensor.numel() == 0 {
        return &[];
    }
    // SAFETY: the tensor holds so many aligned numbers of this size in a row, and any bits are a number.
    unsafe { std::slice::from_raw_parts(tensor.data_ptr().cast(), tensor.numel()) }
}

/// The numbers of a tensor that several threads write, in disjoint ranges.
struct Writable<T>(*mut T);

// SAFETY: the pointer is only used by `range`, whose callers keep to disjoint ranges.
unsafe impl<T: Send> Sync for Writable<T> {}

impl<T: Number> Writable<T> {
    /// `tensor` is contiguous, and nothing but this value reads or writes its memory.
    fn of(tensor: &Tensor) -> Self {
        assert!(tensor.is_contiguous() && tensor.device() == Device::Cpu, "the caller made it so");
        assert_eq!(tensor.kind().elt_size_in_bytes(), size_of::<T>(), "the caller chose the kind");
        Self(tensor.data_ptr().cast())
    }

    /// # Safety
    /// The range lies within the tensor, and no other thread has a range that overlaps it.
    #[expect(clippy::mut_from_ref, reason = "the ranges are disjoint")]
    unsafe fn range(&self, range: Range<usize>) -> &mut [T] {
        if range.is_empty() {
            return &mut [];
        }
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(range.start), range.len()) }
    }
}

/// What `compute` returns with each instruction set that has [`lanes`].
#[cfg(test)]
fn on_each_set<T>(compute: impl Fn(crate::instruction_set::InstructionSet) -> T) -> Vec<T> {
    use crate::instruction_set::InstructionSet;
    let sets = InstructionSet::available().into_iter();
    sets.filter(|&set| set != InstructionSet::Build).map(compute).collect()
}
