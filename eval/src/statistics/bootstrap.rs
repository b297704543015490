//! The percentile bootstrap: draws with replacement, and the quantiles of what a statistic is on them (Efron
//! and Tibshirani 1993, "An Introduction to the Bootstrap", section 13.3), with linear interpolation between
//! order statistics (definition 7 of Hyndman and Fan 1996, numpy's default).
//!
//! The draws come from `ChaCha8` with a fixed seed, so two reports from the same scores are identical byte by
//! byte. This file does not know the statistic.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::estimate::CONFIDENCE;
use crate::Error;

/// Seed of the `ChaCha8` stream that draws the resamples.
const BOOTSTRAP_SEED: u64 = 20_241_100_640;

/// The largest number of resamples.
const MOST_RESAMPLES: usize = 1_000_000;

/// The fixed stream of random numbers of every resampling in this crate.
pub(super) struct Draws(ChaCha8Rng);

impl Draws {
    pub(super) fn new() -> Self {
        Self(ChaCha8Rng::seed_from_u64(BOOTSTRAP_SEED))
    }

    /// A uniform index below `n`.
    pub(super) fn index(&mut self, n: usize) -> usize {
        // The high word of a 64 by 64 bit product is an almost uniform index; its bias is below n / 2^64,
        // which is negligible.
        ((u128::from(self.0.next_u64()) * n as u128) >> 64) as usize
    }
}

/// The ends of the 95 % interval of ascending results. There must be at least one.
pub(super) fn percentile_interval(ascending: &[f64]) -> (f64, f64) {
    let tail = (1.0 - CONFIDENCE) / 2.0;
    (quantile(ascending, tail), quantile(ascending, 1.0 - tail))
}

/// Refuses a number of resamples that would not end in reasonable time.
pub(super) fn check_resamples(resamples: usize) -> Result<(), Error> {
    if resamples <= MOST_RESAMPLES {
        return Ok(());
    }
    let (field, fix) = ("the number of bootstrap resamples".into(), "10000 is the usual choice");
    let (got, high) = (resamples as f64, MOST_RESAMPLES as f64);
    Err(Error::OutOfRange { field, got, low: 0.0, high, fix })
}

/// The quantile `p` of ascending values: linear interpolation at position `p (n - 1)`. There must be at least
/// one.
pub(crate) fn quantile(ascending: &[f64], p: f64) -> f64 {
    let position = p * (ascending.len() - 1) as f64;
    let below = position.floor() as usize;
    let above = (below + 1).min(ascending.len() - 1);
    ascending[below] + (position - below as f64) * (ascending[above] - ascending[below])
}
