//! Random draws that are the same on every platform.
//!
//! The generator is `ChaCha8` keyed by the seed, with one stream per split, so that requesting more rows of
//! one split does not change the others. Bounded draws use rejection on 64 bits and are defined here, so an
//! upgrade of `rand` cannot change them.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// The random generator of the synthetic data.
#[derive(Clone, Debug)]
pub(super) struct SynthRng {
    rng: ChaCha8Rng,
}

impl SynthRng {
    /// Creates the generator for one stream of a seed.
    pub(super) fn new(seed: u64, stream: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(stream);
        Self { rng }
    }

    /// Draws a uniform number in `0..bound`; `bound` is at least 1.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        assert!(0 < bound, "a draw needs at least one outcome");
        let bound = bound as u64;
        let zone = u64::MAX - u64::MAX % bound;
        loop {
            let draw = self.rng.next_u64();
            if draw < zone {
                return (draw % bound) as usize;
            }
        }
    }

    /// Draws a uniform number in `low..=high`.
    pub(super) fn between(&mut self, low: u32, high: u32) -> u32 {
        low + self.below((high - low) as usize + 1) as u32
    }

    /// Returns true with probability `share`.
    pub(super) fn chance(&mut self, share: f64) -> bool {
        unit_interval(self.rng.next_u64()) < share
    }

    /// Draws one of `choices` uniformly.
    pub(super) fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len())]
    }

    /// Draws one of `choices` in proportion to its weight.
    pub(super) fn weighted<T: Copy>(&mut self, choices: &[(T, u32)]) -> T {
        let total: u32 = choices.iter().map(|(_, weight)| weight).sum();
        let mut left = self.below(total as usize) as u32;
        for &(choice, weight) in choices {
            if left < weight {
                return choice;
            }
            left -= weight;
        }
        unreachable!("the draw is below the sum of the weights")
    }

    /// Draws `count` different numbers of `low..=high`, in random order.
    pub(super) fn distinct(&mut self, count: usize, low: u32, high: u32) -> Vec<u32> {
        let mut pool: Vec<u32> = (low..=high).collect();
        for place in 0..count {
            let other = place + self.below(pool.len() - place);
            pool.swap(place, other);
        }
        pool.truncate(count);
        pool
    }
}

/// The upper 53 bits as a number in `[0, 1)`, exact in f64.
pub(super) fn unit_interval(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_differ_and_repeat() {
        let draws = |stream| {
            let mut dice = SynthRng::new(7, stream);
            (0..20).map(|_| dice.below(1000)).collect::<Vec<_>>()
        };
        assert_eq!(draws(0), draws(0));
        assert_ne!(draws(0), draws(1));
    }

    #[test]
    fn weights_are_obeyed() {
        let mut dice = SynthRng::new(1, 0);
        let hits = (0..10_000).filter(|_| dice.weighted(&[('a', 1), ('b', 0), ('c', 3)]) == 'a').count();
        // Binomial(10000, 1/4): mean 2500, standard deviation 43.
        assert!(hits.abs_diff(2500) < 220, "{hits}");
    }

    #[test]
    fn distinct_numbers_are_distinct_and_within_bounds() {
        let mut dice = SynthRng::new(3, 0);
        for _ in 0..200 {
            let mut numbers = dice.distinct(4, 2, 6);
            numbers.sort_unstable();
            numbers.dedup();
            assert_eq!(numbers.len(), 4);
            assert!(numbers.iter().all(|number| (2..=6).contains(number)));
        }
    }
}
