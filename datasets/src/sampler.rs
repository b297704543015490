//! Samples row indices: a new permutation of the data set for every epoch, and a position that can be saved.
//!
//! The order of epoch e is the Fisher-Yates shuffle (Knuth, TAOCP vol. 2, algorithm 3.4.2 P) of 0..len,
//! driven by `ChaCha8` with key `seed` and stream e. It depends only on (seed, epoch, len), not on the
//! platform. A batch may cross the end of an epoch. The sampler uses only the number of rows, not their
//! contents.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The position of a sampler: everything that a resumed run needs.
/// Megatron: `consumed_samples`; torchdata: `StatefulDataLoader.state_dict`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SamplerState {
    /// Number of rows of the data set.
    pub rows: usize,
    /// Number of epochs completed.
    pub epoch: u64,
    /// Number of rows of this epoch that have been returned.
    pub position: usize,
    /// The seed of the shuffle.
    pub seed: u64,
    /// Whether rows are shuffled.
    pub shuffle: bool,
}

/// An endless sampler of row indices.
#[derive(Clone, Debug)]
pub struct Sampler {
    order: Vec<usize>,
    state: SamplerState,
}

impl Sampler {
    /// Creates a sampler over `len` rows at the start of epoch 0. Without `shuffle`, every epoch runs from 0
    /// to `len - 1`.
    pub fn new(len: usize, seed: u64, shuffle: bool) -> Result<Self> {
        Self::resume(len, SamplerState { rows: len, epoch: 0, position: 0, seed, shuffle })
    }

    /// Creates a sampler that continues from `state`, over the same rows.
    pub fn resume(len: usize, state: SamplerState) -> Result<Self> {
        if len == 0 {
            return Err(Error::NothingToSample);
        }
        if state.rows != len || state.position > len {
            return Err(Error::SamplerState { rows: state.rows, position: state.position, len });
        }
        Ok(Self { order: epoch_order(len, &state), state })
    }

    /// Returns the next `count` rows. The batch continues into the next epoch where this one ends.
    pub fn next_batch(&mut self, count: usize) -> Vec<usize> {
        (0..count).map(|_| self.next_row()).collect()
    }

    /// Returns the position to resume from.
    pub fn state(&self) -> SamplerState {
        self.state
    }

    /// Returns the number of passes over the rows so far, including the fraction of the current one.
    pub fn progress(&self) -> f64 {
        self.state.epoch as f64 + self.state.position as f64 / self.order.len() as f64
    }

    fn next_row(&mut self) -> usize {
        if self.state.position == self.order.len() {
            self.state.epoch += 1;
            self.state.position = 0;
            self.order = epoch_order(self.order.len(), &self.state);
        }
        let row = self.order[self.state.position];
        self.state.position += 1;
        row
    }
}

/// Returns the row order of the current epoch.
fn epoch_order(len: usize, state: &SamplerState) -> Vec<usize> {
    let mut order: Vec<usize> = (0..len).collect();
    if state.shuffle {
        let mut rng = ChaCha8Rng::seed_from_u64(state.seed);
        rng.set_stream(state.epoch);
        for last in (1..len).rev() {
            order.swap(last, below(&mut rng, last as u64 + 1) as usize);
        }
    }
    order
}

/// Draws a uniform number in 0..bound by rejection, so that every order is equally likely.
fn below(rng: &mut ChaCha8Rng, bound: u64) -> u64 {
    let zone = u64::MAX - u64::MAX % bound;
    loop {
        let draw = rng.next_u64();
        if draw < zone {
            return draw % bound;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_epoch_is_a_fresh_permutation() {
        let mut sampler = Sampler::new(100, 7, true).unwrap();
        let first = sampler.next_batch(100);
        let second = sampler.next_batch(100);
        assert_ne!(first, second);
        for epoch in [first, second] {
            let mut sorted = epoch.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..100).collect::<Vec<_>>());
            assert_ne!(sorted, epoch);
        }
    }

    #[test]
    fn resumed_anywhere_equals_uninterrupted() {
        let whole = Sampler::new(13, 3, true).unwrap().next_batch(60);
        for cut in 0..60 {
            let mut sampler = Sampler::new(13, 3, true).unwrap();
            let mut rows = sampler.next_batch(cut);
            let saved = serde_json::to_string(&sampler.state()).unwrap();
            let mut resumed = Sampler::resume(13, serde_json::from_str(&saved).unwrap()).unwrap();
            rows.extend(resumed.next_batch(60 - cut));
            assert_eq!(rows, whole, "cut after {cut}");
        }
    }

    #[test]
    fn batches_of_any_size_give_the_same_rows() {
        let whole = Sampler::new(10, 0, true).unwrap().next_batch(35);
        let mut sampler = Sampler::new(10, 0, true).unwrap();
        let pieces: Vec<usize> = (0..5).flat_map(|_| sampler.next_batch(7)).collect();
        assert_eq!(pieces, whole);
        assert_eq!(sampler.progress(), 3.5);
    }

    #[test]
    fn the_progress_counts_the_rows_of_an_unfinished_epoch() {
        let mut sampler = Sampler::new(8, 0, true).unwrap();
        let progress: Vec<f64> = (0..5)
            .map(|_| {
                sampler.next_batch(2);
                sampler.progress()
            })
            .collect();
        assert_eq!(progress, [0.25, 0.5, 0.75, 1.0, 1.25]);
    }

    #[test]
    fn without_shuffle_the_order_is_that_of_the_file() {
        let mut sampler = Sampler::new(3, 9, false).unwrap();
        assert_eq!(sampler.next_batch(7), [0, 1, 2, 0, 1, 2, 0]);
    }

    #[test]
    fn the_seed_decides_the_order() {
        let order = |seed| Sampler::new(50, seed, true).unwrap().next_batch(50);
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
    }

    #[test]
    fn every_order_of_three_is_about_equally_likely() {
        let mut counts = std::collections::BTreeMap::new();
        let mut sampler = Sampler::new(3, 5, true).unwrap();
        for _ in 0..6000 {
            *counts.entry(sampler.next_batch(3)).or_insert(0) += 1;
        }
        // Six orders, 1000 each expected, standard deviation sqrt(6000 * 1/6 * 5/6) = 29.
        assert_eq!(counts.len(), 6);
        assert!(counts.values().all(|&count: &i32| (count - 1000).abs() < 150), "{counts:?}");
    }

    #[test]
    fn impossible_states_are_errors() {
        assert!(matches!(Sampler::new(0, 0, true), Err(Error::NothingToSample)));
        let state = SamplerState { rows: 4, epoch: 0, position: 9, seed: 0, shuffle: true };
        assert!(matches!(Sampler::resume(4, state), Err(Error::SamplerState { position: 9, len: 4, .. })));
        // A different number of rows gives a different order, even if the position fits.
        let state = SamplerState { position: 2, ..state };
        assert!(Sampler::resume(4, state).is_ok());
        assert!(matches!(Sampler::resume(5, state), Err(Error::SamplerState { rows: 4, len: 5, .. })));
    }
}
