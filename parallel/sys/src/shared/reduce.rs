//! Reduces the tensors of several ranks elementwise: in rank order, block by block, bf16 in fp32.

use tch::Kind;

use crate::Error;
use crate::bfloat16::Bfloat16;
use crate::c10d::Reduction;

/// A reduction for elements of one kind.
#[derive(Clone, Copy)]
pub(super) struct Add {
    kind: Kind,
    reduction: Reduction,
}

impl Add {
    pub(super) fn of(kind: Kind, reduction: Reduction) -> Result<Self, Error> {
        match kind {
            Kind::Float | Kind::Double | Kind::Int64 | Kind::BFloat16 => Ok(Self { kind, reduction }),
            kind => Err(Error::Shared {
                call: "reduce".to_owned(),
                problem: format!("numbers of the kind {kind:?} cannot be reduced"),
            }),
        }
    }

    /// Writes the reduction of `inputs` to `result`; all have the same length.
    pub(super) fn run(self, result: &mut [u8], inputs: &[&[u8]]) {
        match (self.kind, self.reduction) {
            (Kind::Float, Reduction::Sum) => reduce::<f32>(result, inputs, |left, right| left + right),
            (Kind::Float, Reduction::Max) => reduce::<f32>(result, inputs, f32::max),
            (Kind::Float, Reduction::Min) => reduce::<f32>(result, inputs, f32::min),
            (Kind::Double, Reduction::Sum) => reduce::<f64>(result, inputs, |left, right| left + right),
            (Kind::Double, Reduction::Max) => reduce::<f64>(result, inputs, f64::max),
            (Kind::Double, Reduction::Min) => reduce::<f64>(result, inputs, f64::min),
            (Kind::Int64, Reduction::Sum) => reduce::<i64>(result, inputs, i64::wrapping_add),
            (Kind::Int64, Reduction::Max) => reduce::<i64>(result, inputs, i64::max),
            (Kind::Int64, Reduction::Min) => reduce::<i64>(result, inputs, i64::min),
            (_, Reduction::Sum) => reduce::<Bfloat16>(result, inputs, |left, right| left + right),
            (_, Reduction::Max) => reduce::<Bfloat16>(result, inputs, f32::max),
            (_, Reduction::Min) => reduce::<Bfloat16>(result, inputs, f32::min),
        }
    }
}

/// An element type and the type in which it is accumulated.
trait Element: Copy {
    type Accumulator: Copy;
    fn widen(self) -> Self::Accumulator;
    fn narrow(wide: Self::Accumulator) -> Self;
}

impl Element for Bfloat16 {
    type Accumulator = f32;
    fn widen(self) -> f32 {
        Self::widen(self)
    }
    fn narrow(wide: f32) -> Self {
        Self::nearest(wide)
    }
}

macro_rules! plain_number {
    ($($kind:ty),*) => {$(
        impl Element for $kind {
            type Accumulator = Self;
            fn widen(self) -> Self {
                self
            }
            fn narrow(wide: Self) -> Self {
                wide
            }
        }
    )*};
}
plain_number!(f32, f64, i64);

/// The number of elements per block; the sums of a block stay in the L1 cache.
const BLOCK: usize = 1024;

/// Writes the elementwise combination of `inputs`, in order, to `result`.
fn reduce<N: Element>(
    result: &mut [u8],
    inputs: &[&[u8]],
    combine: impl Fn(N::Accumulator, N::Accumulator) -> N::Accumulator,
) {
    let result = numbers_mut::<N>(result);
    let inputs: Vec<&[N]> = inputs.iter().map(|input| numbers(input)).collect();
    let mut sums: Vec<N::Accumulator> = Vec::with_capacity(BLOCK);
    for (block, result) in result.chunks_mut(BLOCK).enumerate() {
        let range = block * BLOCK..block * BLOCK + result.len();
        sums.clear();
        sums.extend(inputs[0][range.clone()].iter().map(|number| number.widen()));
        for input in &inputs[1..] {
            for (sum, number) in sums.iter_mut().zip(&input[range.clone()]) {
                *sum = combine(*sum, number.widen());
            }
        }
        for (number, &sum) in result.iter_mut().zip(&sums) {
            *number = N::narrow(sum);
        }
    }
}

fn numbers<N: Element>(bytes: &[u8]) -> &[N] {
    // SAFETY: any byte pattern is a valid number of these kinds.
    let (before, numbers, after) = unsafe { bytes.align_to::<N>() };
    assert!(before.is_empty() && after.is_empty(), "pieces are whole numbers");
    numbers
}

fn numbers_mut<N: Element>(bytes: &mut [u8]) -> &mut [N] {
    // SAFETY: any byte pattern is a valid number of these kinds, and any number is valid as bytes.
    let (before, numbers, after) = unsafe { bytes.align_to_mut::<N>() };
    assert!(before.is_empty() && after.is_empty(), "pieces are whole numbers");
    numbers
}
