//! AdamW on the host: one pass over flat tensors in the memory of the CPU.
//!
//! ```text
//!   g = g / divisor;  w = w (1 - r d);  m = m + (1 - b1) (g - m);  v = b2 v + (1 - b2) g^2
//!   w = w - r / (1 - b1^t) m / (sqrt(v) / sqrt(1 - b2^t) + eps)
//! ```
//! with weight `w`, gradient `g`, moments `m` and `v`, step `t` (from 1), learning rate `r` and weight decay
//! `d` (Loshchilov and Hutter 2019, arXiv 1711.05101, algorithm 2). A memory manager that keeps the optimizer
//! states on the host updates them there (ZeRO-Offload, Ren et al. 2021, arXiv 2101.06840, section 5.1), and
//! the same pass writes the bfloat16 copy that the model computes with.
//!
//! **Bits.** The result of an element depends on its own inputs only: not on how the elements are cut into
//! calls, their alignment, the number of threads or the instruction set. The arithmetic is written once, with
//! operations that IEEE 754 rounds correctly (the fused multiply-add among them), and compiled once per
//! instruction set; neither Rust nor LLVM reorders or contracts them. Only the payload of a NaN may differ.
//! The bits are those of the vector loop of `aten::_fused_adamw_` on AVX2 and AVX-512. aten's own bits do
//! depend on the cut: the last elements of each thread take a scalar loop, which GCC contracts differently.
//!
//! **Moments in bfloat16** are computed in fp32 and stored with stochastic rounding. Rounding to nearest
//! would freeze `v`: with `b2` = 0.999 a step moves it by a thousandth of `g^2 - v`, and a move of less than
//! half the distance of two bfloat16 numbers, which is 2^-9 to 2^-8 of `v`, is lost (Zamirai et al. 2020,
//! arXiv 2010.06192, section 3, for weights). The random numbers are a hash of seed, step and the number of
//! the element, so they too do not depend on the cut. This module knows no chunk, no schedule and no clipping.

#![expect(
    clippy::inline_always,
    reason = "such a function is compiled with the instruction set of its caller"
)]

use std::ops::Range;

use tch::{Device, Kind, Tensor};

use crate::Error;
use crate::bfloat16::Bfloat16;
use crate::elements::ElementNumbers;
use crate::instruction_set::InstructionSet;

/// The least number of elements for which a thread is worth its start.
const ELEMENTS_PER_THREAD: usize = 128 << 10;
/// Threads begin at multiples of this, so that no two of them write one cache line of an aligned tensor.
const THREAD_ALIGNMENT: usize = 32;

/// The settings of one step.
#[derive(Clone, Copy, Debug)]
pub struct AdamwStep {
    /// The learning rate.
    pub lr: f64,
    /// The decay rates of the two moments.
    pub betas: (f64, f64),
    /// What is added to the denominator.
    pub eps: f64,
    /// The weight decay; the learning rate multiplies it.
    pub weight_decay: f64,
    /// The number of the step, from 1.
    pub step: u64,
    /// Every gradient is divided by it first. The gradient tensor itself stays what it is.
    pub grad_divisor: f64,
    /// Chooses the random numbers that round moments in bfloat16. It has no effect on moments in fp32.
    pub seed: u64,
}

/// The tensors of one step: contiguous, on the CPU, equally long, and apart from each other in memory.
#[derive(Clone, Copy, Debug)]
pub struct AdamwTensors<'a> {
    /// The weights in fp32.
    pub master: &'a Tensor,
    /// Their gradient in fp32.
    pub grad: &'a Tensor,
    /// The first moment, in fp32 or bfloat16.
    pub exp_avg: &'a Tensor,
    /// The second moment, of the same kind as the first.
    pub exp_avg_sq: &'a Tensor,
    /// Where the new weights are also written, in bfloat16 (to nearest, ties to even).
    pub weight: Option<&'a Tensor>,
}

/// Updates `master`, both moments and `weight` in place. The numbers of the `elements`, with the seed and the
/// step, determine the random numbers. Autograd does not see the changes. Large tensors are split among as
/// many threads as libtorch uses.
pub fn adamw(tensors: &AdamwTensors<'_>, step: &AdamwStep, elements: &ElementNumbers) -> Result<(), Error> {
    let threads = tch::get_num_threads().max(1) as usize;
    let threads = threads.min(tensors.master.numel() / ELEMENTS_PER_THREAD).max(1);
    adamw_with(tensors, step, elements, InstructionSet::best(), threads)
}

fn adamw_with(
    tensors: &AdamwTensors<'_>,
    step: &AdamwStep,
    elements: &ElementNumbers,
    instructions: InstructionSet,
    threads: usize,
) -> Result<(), Error> {
    if step.step == 0 {
        return Err(Error::Adamw { argument: "step", problem: "is 0 and counts from 1".to_owned() });
    }
    let count = tensors.check()?;
    if count == 0 {
        return Ok(());
    }

    let coefficients = Coefficients::of(step);
    if tensors.exp_avg.kind() == Kind::BFloat16 {
        let part = Part::<Bfloat16>::of(tensors, count, elements);
        part.in_threads(threads, &|part| part.update(step, coefficients, instructions));
    } else {
        let part = Part::<f32>::of(tensors, count, elements);
        part.in_threads(threads, &|part| part.update(step, coefficients, instructions));
    }
    Ok(())
}

impl AdamwTensors<'_> {
    /// Checks all that [`Part::of`] relies on. Returns the number of elements.
    fn check(&self) -> Result<usize, Error> {
        let count = self.master.numel();
        let moments = match self.exp_avg.kind() {
            Kind::BFloat16 => Kind::BFloat16,
            _ => Kind::Float,
        };
        let mut named = vec![
            ("master", self.master, Kind::Float),
            ("grad", self.grad, Kind::Float),
            ("exp_avg", self.exp_avg, moments),
            ("exp_avg_sq", self.exp_avg_sq, moments),
        ];
        named.extend(self.weight.map(|weight| ("weight", weight, Kind::BFloat16)));

        let mut taken: Vec<(&str, Range<usize>)> = Vec::new();
        for (argument, tensor, kind) in named {
            let fail = |problem: String| Err(Error::Adamw { argument, problem });
            if tensor.device() != Device::Cpu {
                return fail(format!("is on {:?} and must be on the CPU", tensor.device()));
            }
            if tensor.kind() != kind {
                return fail(format!("is of kind {:?} and must be of kind {kind:?}", tensor.kind()));
            }
            if !tensor.is_contiguous() {
                return fail("must be contiguous".to_owned());
            }
            if tensor.numel() != count {
                return fail(format!("has {} elements and `master` has {count}", tensor.numel()));
            }
            let (start, width) = (tensor.data_ptr().addr(), kind.elt_size_in_bytes());
            if start % width != 0 {
                return fail(format!("begins at {start:#x}, which is no multiple of {width}"));
            }
            let bytes = start..start + count * width;
            let overlapped =
                taken.iter().find(|(_, other)| bytes.start < other.end && other.start < bytes.end);
            if let Some((other, _)) = overlapped {
                return fail(format!("shares memory with `{other}`"));
            }
            taken.push((argument, bytes));
        }
        Ok(count)
    }
}

/// A range of the elements.
struct Part<'a, M> {
    master: &'a mut [f32],
    grad: &'a [f32],
    exp_avg: &'a mut [M],
    exp_avg_sq: &'a mut [M],
    /// Empty if no copy is wanted.
    weight: &'a mut [Bfloat16],
    elements: &'a ElementNumbers,
    /// The elements before this part.
    before: u64,
}

impl<'a, M: Moment> Part<'a, M> {
    /// The elements of `tensors`, which have been checked and whose moments are of the kind of `M`.
    fn of(tensors: &AdamwTensors<'a>, count: usize, elements: &'a ElementNumbers) -> Self {
        let weight = tensors.weight.map(|weight| weight.data_ptr().cast());
        // SAFETY: `check` has found that these are `count` contiguous, aligned elements each, of these kinds,
        // on the CPU, and that no two tensors overlap. They live as long as 'a. Any bits are valid numbers.
        unsafe {
            Self {
                master: std::slice::from_raw_parts_mut(tensors.master.data_ptr().cast(), count),
                grad: std::slice::from_raw_parts(tensors.grad.data_ptr().cast(), count),
                exp_avg: std::slice::from_raw_parts_mut(tensors.exp_avg.data_ptr().cast(), count),
                exp_avg_sq: std::slice::from_raw_parts_mut(tensors.exp_avg_sq.data_ptr().cast(), count),
                weight: weight.map_or(&mut [], |start| std::slice::from_raw_parts_mut(start, count)),
                elements,
                before: 0,
            }
        }
    }

    /// Does `work` on about equal parts, one per thread, the last of them on this one.
    fn in_threads(self, threads: usize, work: &(impl Fn(Self) + Sync)) {
        let size = self.master.len().div_ceil(threads).next_multiple_of(THREAD_ALIGNMENT);
        std::thread::scope(|scope| {
            let mut rest = self;
            while rest.master.len() > size {
                let (part, tail) = rest.split_at(size);
                scope.spawn(move || work(part));
                rest = tail;
            }
            work(rest);
        });
    }

    fn split_at(self, count: usize) -> (Self, Self) {
        let (master, master_tail) = self.master.split_at_mut(count);
        let (grad, grad_tail) = self.grad.split_at(count);
        let (exp_avg, exp_avg_tail) = self.exp_avg.split_at_mut(count);
        let (exp_avg_sq, exp_avg_sq_tail) = self.exp_avg_sq.split_at_mut(count);
        let (weight, weight_tail) = self.weight.split_at_mut(count.min(self.weight.len()));
        let (elements, before) = (self.elements, self.before);
        let tail = Self {
            master: master_tail,
            grad: grad_tail,
            exp_avg: exp_avg_tail,
            exp_avg_sq: exp_avg_sq_tail,
            weight: weight_tail,
            elements,
            before: before + count as u64,
        };
        (Self { master, grad, exp_avg, exp_avg_sq, weight, elements, before }, tail)
    }

    fn update(self, step: &AdamwStep, mut coefficients: Coefficients, instructions: InstructionSet) {
        let mut rest = self;
        while !rest.master.is_empty() {
            // The loop takes consecutive numbers. Their upper half is part of the key, and it counts the
            // lower one in 32 bits. Where nothing is rounded, it takes all elements at once.
            let (number, run) = if M::IS_ROUNDED { rest.elements.run_at(rest.before) } else { (0, u64::MAX) };
            let (upper, lower) = (number >> 32, number as u32);
            let left = if M::IS_ROUNDED { run.min((1 << 32) - u64::from(lower)) } else { run };
            let count = rest.master.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            coefficients.random = Random::of([step.seed, step.step, upper], lower);

            let (part, tail) = rest.split_at(count);
            if part.weight.is_empty() {
                instructions.update::<M, false>(part, &coefficients);
            } else {
                instructions.update::<M, true>(part, &coefficients);
            }
            rest = tail;
        }
    }
}

/// The factors of a step: computed in double precision, then rounded, like those of aten.
#[derive(Clone, Copy)]
struct Coefficients {
    divisor: f32,
    /// What decay leaves of a weight.
    kept: f32,
    /// The first moment is `base + lerp (g - m)`, where the base is `g` or `m`.
    lerp: f32,
    lerp_from_grad: bool,
    beta2: f32,
    one_minus_beta2: f32,
    /// The root of the second bias correction.
    bias2_sqrt: f32,
    eps: f32,
    /// The learning rate over the first bias correction.
    step_size: f32,
    random: Random,
}

impl Coefficients {
    fn of(step: &AdamwStep) -> Self {
        let (beta1, beta2) = step.betas;
        let bias = |beta: f64| 1.0 - beta.powf(step.step as f64);
        // torch's `lerp`: it starts at the nearer end.
        let toward_grad = (1.0 - beta1) as f32;
        let lerp_from_grad = toward_grad.abs() >= 0.5;
        Self {
            divisor: step.grad_divisor as f32,
            kept: (1.0 - step.lr * step.weight_decay) as f32,
            lerp: if lerp_from_grad { toward_grad - 1.0 } else { toward_grad },
            lerp_from_grad,
            beta2: beta2 as f32,
            one_minus_beta2: (1.0 - beta2) as f32,
            bias2_sqrt: bias(beta2).sqrt() as f32,
            eps: step.eps as f32,
            step_size: (step.lr / bias(beta1)) as f32,
            random: Random { keys: [0; 2], first: 0 },
        }
    }

    /// The new weight and moments `[w, m, v]` of one element.
    #[inline(always)]
    fn element(&self, [weight, exp_avg, exp_avg_sq]: [f32; 3], grad: f32) -> [f32; 3] {
        let grad = grad / self.divisor;
        let base = if self.lerp_from_grad { grad } else { exp_avg };
        let exp_avg = self.lerp.mul_add(grad - exp_avg, base);
        let exp_avg_sq = (self.one_minus_beta2 * grad).mul_add(grad, self.beta2 * exp_avg_sq);
        let denominator = exp_avg_sq.sqrt() / self.bias2_sqrt + self.eps;
        let weight = weight * self.kept - self.step_size * exp_avg / denominator;
        [weight, exp_avg, exp_avg_sq]
    }
}

/// Random numbers by the lower half of the number of the element.
#[derive(Clone, Copy)]
struct Random {
    keys: [u32; 2],
    /// The lower half of the number of the first element.
    first: u32,
}

impl Random {
    /// Mixes all of `sources` into the keys (the finalizer of splitmix64, Steele et al. 2014).
    fn of(sources: [u64; 3], first: u32) -> Self {
        let mixed = sources.into_iter().fold(0u64, |state, source| {
            let state = (state ^ source).wrapping_add(0x9e37_79b9_7f4a_7c15);
            let state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            state ^ (state >> 31)
        });
        Self { keys: [mixed as u32, (mixed >> 32) as u32], first }
    }

    /// Two numbers of 16 bits for the element `index` of a part: one per moment. The mix is that of Wellons'
    /// hash-prospector (two multiplications), with a key before each.
    #[inline(always)]
    fn pair(&self, index: u32) -> [u32; 2] {
        let mixed = self.first.wrapping_add(index) ^ self.keys[0];
        let mixed = (mixed ^ (mixed >> 16)).wrapping_mul(0x21f0_aaad) ^ self.keys[1];
        let mixed = (mixed ^ (mixed >> 15)).wrapping_mul(0xd35a_2d97);
        let mixed = mixed ^ (mixed >> 15);
        [mixed & 0xffff, mixed >> 16]
    }
}

/// A kind in which moments are stored.
trait Moment: Copy + Send + Sync {
    /// Whether `narrow` rounds, and so uses its random number.
    const IS_ROUNDED: bool;
    fn widen(self) -> f32;
    /// `random` is uniform below 2^16.
    fn narrow(wide: f32, random: u32) -> Self;
}

impl Moment for f32 {
    const IS_ROUNDED: bool = false;
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
    #[inline(always)]
    fn narrow(wide: f32, _: u32) -> Self {
        wide
    }
}

impl Moment for Bfloat16 {
    const IS_ROUNDED: bool = true;
    #[inline(always)]
    fn widen(self) -> f32 {
        Self::widen(self)
    }
    #[inline(always)]
    fn narrow(wide: f32, random: u32) -> Self {
        Self::stochastic(wide, random)
    }
}

/// Updates a part, and writes `weight` if `COPY`.
#[inline(always)]
fn update<M: Moment, const COPY: bool>(
    master: &mut [f32],
    grad: &[f32],
    exp_avg: &mut [M],
    exp_avg_sq: &mut [M],
    weight: &mut [Bfloat16],
    coefficients: &Coefficients,
) {
    let (count, coefficients) = (master.len(), *coefficients);
    let (grad, exp_avg, exp_avg_sq) = (&grad[..count], &mut exp_avg[..count], &mut exp_avg_sq[..count]);
    let weight = &mut weight[..if COPY { count } else { 0 }];
    for index in 0..count {
        let old = [master[index], exp_avg[index].widen(), exp_avg_sq[index].widen()];
        let [new, mean, mean_sq] = coefficients.element(old, grad[index]);
        let random = coefficients.random.pair(index as u32);
        master[index] = new;
        exp_avg[index] = M::narrow(mean, random[0]);
        exp_avg_sq[index] = M::narrow(mean_sq, random[1]);
        if COPY {
            weight[index] = Bfloat16::nearest(new);
        }
    }
}

impl InstructionSet {
    /// Updates a part. `self` is one of [`available`](Self::available).
    fn update<M: Moment, const COPY: bool>(self, part: Part<'_, M>, coefficients: &Coefficients) {
        let Part { master, grad, exp_avg, exp_avg_sq, weight, .. } = part;
        match self {
            Self::Build => update_build::<M, COPY>(master, grad, exp_avg, exp_avg_sq, weight, coefficients),
            // SAFETY: `available` has found these instructions.
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => unsafe {
                update_avx2::<M, COPY>(master, grad, exp_avg, exp_avg_sq, weight, coefficients);
            },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => unsafe {
                update_avx512::<M, COPY>(master, grad, exp_avg, exp_avg_sq, weight, coefficients);
            },
        }
    }
}

// Never inlined: as arguments of a function the slices are known to be apart, so the loop needs no check.
#[inline(never)]
fn update_build<M: Moment, const COPY: bool>(
    master: &mut [f32],
    grad: &[f32],
    exp_avg: &mut [M],
    exp_avg_sq: &mut [M],
    weight: &mut [Bfloat16],
    coefficients: &Coefficients,
) {
    update::<M, COPY>(master, grad, exp_avg, exp_avg_sq, weight, coefficients);
}

#[cfg(target_arch = "x86_64")]
#[inline(never)]
#[target_feature(enable = "avx2,fma")]
fn update_avx2<M: Moment, const COPY: bool>(
    master: &mut [f32],
    grad: &[f32],
    exp_avg: &mut [M],
    exp_avg_sq: &mut [M],
    weight: &mut [Bfloat16],
    coefficients: &Coefficients,
) {
    update::<M, COPY>(master, grad, exp_avg, exp_avg_sq, weight, coefficients);
}

#[cfg(target_arch = "x86_64")]
#[inline(never)]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq")]
fn update_avx512<M: Moment, const COPY: bool>(
    master: &mut [f32],
    grad: &[f32],
    exp_avg: &mut [M],
    exp_avg_sq: &mut [M],
    weight: &mut [Bfloat16],
    coefficients: &Coefficients,
) {
    update::<M, COPY>(master, grad, exp_avg, exp_avg_sq, weight, coefficients);
}

#[cfg(test)]
mod tests;
