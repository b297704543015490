//! The softmax of one row of logits on the host: weights `w = exp(x)` with `x = (z - max z) / t`, their sum,
//! the entropy, and the token at which their cumulative sum passes a number.
//!
//! One pass finds the largest logit, and a second one computes the weights and the sums of `w` and `w x` over
//! blocks of 256 tokens, so that a draw adds up blocks and then the tokens of one block.
//!
//! **Bits.** The weights of a row depend on the row alone, and not on the instruction set.

#![expect(
    clippy::inline_always,
    reason = "such a function is compiled with the instruction set of its caller"
)]

use crate::exponential::exp;
use crate::instruction_set::InstructionSet;

/// The tokens whose weights are summed together.
const BLOCK: usize = 256;
/// The numbers that a loop handles at once. The order of a sum depends on it.
const LANES: usize = 16;

/// The weights of a row. The memory is used again for the next row.
#[derive(Debug, Default)]
pub struct RowWeights {
    weights: Vec<f32>,
    /// The sums of `w` and of `w x` in each block.
    sums: Vec<[f64; 2]>,
    /// The first token with the largest logit.
    best: usize,
    total: f64,
    entropy: f64,
}

impl RowWeights {
    /// Computes the weights of a row of at least one logit. `inverse` is `1 / t`.
    pub fn compute(&mut self, logits: &[f32], inverse: f32) {
        self.compute_with(logits, inverse, InstructionSet::best());
    }

    fn compute_with(&mut self, logits: &[f32], inverse: f32, instructions: InstructionSet) {
        self.weights.resize(logits.len(), 0.0);
        self.sums.resize(logits.len().div_ceil(BLOCK), [0.0; 2]);
        let highest = instructions.highest(logits);
        self.best = first_index_of(highest, logits);
        instructions.weigh(logits, [highest, inverse], &mut self.weights, &mut self.sums);
        let [total, weighted] = [0, 1].map(|index| self.sums.iter().map(|sums| sums[index]).sum::<f64>());
        (self.total, self.entropy) = (total, total.ln() - weighted / total);
    }

    /// `exp((z - max z) / t)` of each token.
    pub fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// The first token with the largest logit.
    pub fn best(&self) -> usize {
        self.best
    }

    /// The sum of all weights. It is not finite if a logit is NaN or infinity, or if all are minus infinity.
    pub fn total(&self) -> f64 {
        self.total
    }

    /// The entropy of the distribution in nats: `log sum w - (sum w x) / (sum w)`.
    pub fn entropy(&self) -> f64 {
        self.entropy
    }

    /// The first token for which the sum of the weights up to its own exceeds `point`, or if rounding leaves
    /// none, the last token with a weight above zero.
    pub fn find(&self, point: f64) -> usize {
        let mut left = point;
        for (block, (weights, [sum, _])) in self.weights.chunks(BLOCK).zip(&self.sums).enumerate() {
            if left >= *sum {
                left -= sum;
                continue;
            }
            for (index, &weight) in weights.iter().enumerate() {
                left -= f64::from(weight);
                if left < 0.0 {
                    return block * BLOCK + index;
                }
            }
        }
        self.weights.iter().rposition(|&weight| weight > 0.0).unwrap_or(self.best)
    }
}

/// The first index of `highest`, or 0 if there is none, which means that no logit is a number.
fn first_index_of(highest: f32, logits: &[f32]) -> usize {
    let is_there = |logit: &f32| *logit >= highest;
    let in_block = |block: &[f32]| block.iter().fold(false, |found, logit| found | is_there(logit));
    let start = logits.chunks(BLOCK).position(in_block).unwrap_or(0) * BLOCK;
    logits[start..].iter().position(is_there).map_or(0, |index| start + index)
}

/// The largest number of a row. NaN is passed over.
#[inline(always)]
fn highest(logits: &[f32]) -> f32 {
    let larger = |left: f32, right: f32| if right > left { right } else { left };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (body, tail) = logits.as_chunks::<LANES>();
    for chunk in body {
        for (lane, logit) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*lane, *logit);
        }
    }
    lanes.iter().chain(tail).fold(f32::NEG_INFINITY, |most, &logit| larger(most, logit))
}

/// Writes the weight of each logit, and the sums of each block.
#[inline(always)]
fn weigh(logits: &[f32], [highest, inverse]: [f32; 2], weights: &mut [f32], sums: &mut [[f64; 2]]) {
    // Below this exponent the weight is zero in fp32, also times the exponent. Minus infinity would give NaN.
    const LEAST: f32 = -200.0;
    let exponent = |logit: f32| (logit - highest) * inverse;
    let term = |weight: f32, exponent: f32| weight * if exponent < LEAST { LEAST } else { exponent };
    let blocks = logits.chunks(BLOCK).zip(weights.chunks_mut(BLOCK));
    for ((logits, weights), sums) in blocks.zip(sums) {
        let (mut lanes, mut terms) = ([0f32; LANES], [0f32; LANES]);
        let (body, tail) = logits.as_chunks::<LANES>();
        let (body_weights, tail_weights) = weights.as_chunks_mut::<LANES>();
        for (logits, weights) in body.iter().zip(body_weights) {
            for lane in 0..LANES {
                let exponent = exponent(logits[lane]);
                weights[lane] = exp(exponent);
                lanes[lane] += weights[lane];
                terms[lane] += term(weights[lane], exponent);
            }
        }
        let sum = |numbers: &[f32]| numbers.iter().map(|&number| f64::from(number)).sum::<f64>();
        *sums = [sum(&lanes), sum(&terms)];
        for (&logit, weight) in tail.iter().zip(tail_weights) {
            let exponent = exponent(logit);
            *weight = exp(exponent);
            sums[0] += f64::from(*weight);
            sums[1] += f64::from(term(*weight, exponent));
        }
    }
}

impl InstructionSet {
    /// The largest of `logits`. `self` is one of [`available`](Self::available).
    fn highest(self, logits: &[f32]) -> f32 {
        match self {
            Self::Build => highest(logits),
            // SAFETY: `available` has found these instructions.
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => unsafe { highest_avx2(logits) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => unsafe { highest_avx512(logits) },
        }
    }

    /// See [`weigh`]. `self` is one of [`available`](Self::available).
    fn weigh(self, logits: &[f32], scaling: [f32; 2], weights: &mut [f32], sums: &mut [[f64; 2]]) {
        match self {
            Self::Build => weigh(logits, scaling, weights, sums),
            // SAFETY: `available` has found these instructions.
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => unsafe { weigh_avx2(logits, scaling, weights, sums) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => unsafe { weigh_avx512(logits, scaling, weights, sums) },
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn highest_avx2(logits: &[f32]) -> f32 {
    highest(logits)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq")]
fn highest_avx512(logits: &[f32]) -> f32 {
    highest(logits)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn weigh_avx2(logits: &[f32], scaling: [f32; 2], weights: &mut [f32], sums: &mut [[f64; 2]]) {
    weigh(logits, scaling, weights, sums);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq")]
fn weigh_avx512(logits: &[f32], scaling: [f32; 2], weights: &mut [f32], sums: &mut [[f64; 2]]) {
    weigh(logits, scaling, weights, sums);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        for length in [1, 15, 16, 255, 256, 257, 1000, 32_003] {
            let logits: Vec<f32> = (0..length).map(|index| (index as f32 * 12.9898).sin() * 30.0).collect();
            let mut found = InstructionSet::available().into_iter().map(|instructions| {
                let mut row = RowWeights::default();
                row.compute_with(&logits, 0.7, instructions);
                (row.weights, row.sums, row.best, [row.total, row.entropy].map(f64::to_bits))
            });
            let first = found.next().unwrap();
            assert!(found.all(|other| other == first), "{length}");
            let exact: f64 = logits.iter().map(|&z| (f64::from(z - logits[first.2]) * 0.7).exp()).sum();
            assert!((f64::from_bits(first.3[0]) - exact).abs() < 1e-6 * exact, "{length}");
            let surprise = |&z: &f32| {
                let log = f64::from(z - logits[first.2]) * 0.7 - exact.ln();
                -log.exp() * log
            };
            let entropy: f64 = logits.iter().map(surprise).sum();
            assert!((f64::from_bits(first.3[1]) - entropy).abs() < 1e-5, "{length}: {entropy}");
            let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            assert_eq!(logits.iter().position(|&logit| logit == most), Some(first.2));
        }
    }

    #[test]
    fn a_point_is_found_where_the_cumulative_sum_passes_it() {
        // Weights 1/2, 0, 1/4, 1 at every thousandth token, none elsewhere.
        let mut logits = vec![f32::NEG_INFINITY; 3001];
        for (token, weight) in [(0, 0.5f32), (1000, 0.25), (2000, 1.0), (3000, 0.25)] {
            logits[token] = weight.ln();
        }
        let mut row = RowWeights::default();
        row.compute(&logits, 1.0);
        assert_eq!((row.best(), row.total()), (2000, 2.0));
        // Probabilities 1/4, 1/8, 1/2, 1/8; a token of probability 0 adds nothing.
        assert!((row.entropy() - 1.75 * std::f64::consts::LN_2).abs() < 1e-7);
        for (point, token) in
            [(0.0, 0), (0.49, 0), (0.5, 1000), (0.74, 1000), (0.75, 2000), (1.74, 2000), (1.75, 3000)]
        {
            assert_eq!(row.find(point), token, "{point}");
        }
        // Rounding may leave a point beyond the sum.
        assert_eq!(row.find(2.0), 3000);
    }
}
