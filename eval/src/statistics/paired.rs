//! Comparison of two systems on the same items.
//!
//! With `d_i = b_i - a_i`, the result is the mean, its standard error `s / sqrt(n)`, a normal interval
//! (Miller 2024, arXiv 2411.00640, section 4) and a percentile bootstrap interval (Efron and Tibshirani 1993,
//! section 13.3). For the bootstrap, n differences are drawn with replacement [`BOOTSTRAP_RESAMPLES`] times.
//! The interval ends are the 2.5 % and 97.5 % quantiles of the resampled means, with linear interpolation
//! between order statistics (definition 7 of Hyndman and Fan 1996, numpy's default). Comparing the two
//! unpaired intervals instead would ignore the correlation between the systems, which is usually large.
//!
//! The draws come from `ChaCha8` with a fixed seed, so two reports from the same scores are identical byte by
//! byte.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use serde::{Deserialize, Serialize};

use super::{CONFIDENCE, Estimate, Interval, estimate};
use crate::Error;

/// Number of resamples of a bootstrap interval. Between seeds its ends vary by about 1 % of the interval's
/// width.
pub const BOOTSTRAP_RESAMPLES: usize = 10_000;

/// Seed of the `ChaCha8` stream that draws the resamples.
pub const BOOTSTRAP_SEED: u64 = 20_241_100_640;

/// The mean difference between two systems on the same items.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PairedDifference {
    /// Mean, standard error and normal 95 % interval of the second system minus the first.
    pub normal: Estimate,
    /// Lower end of the 95 % bootstrap interval.
    pub bootstrap_low: f64,
    /// Upper end of the 95 % bootstrap interval.
    pub bootstrap_high: f64,
}

/// Compares `after - before` per item. Each slice holds one number per item (the average over its samples, if
/// any), in the same order.
pub fn paired_difference(before: &[f64], after: &[f64]) -> Result<PairedDifference, Error> {
    if before.len() != after.len() {
        return Err(Error::Unpaired { left: before.len(), right: after.len() });
    }
    let differences: Vec<f64> = before.iter().zip(after).map(|(before, after)| after - before).collect();
    let normal = estimate(&differences, Interval::Normal)?;
    let means = resampled_means(&differences);
    let tail = (1.0 - CONFIDENCE) / 2.0;
    let (bootstrap_low, bootstrap_high) = (quantile(&means, tail), quantile(&means, 1.0 - tail));
    Ok(PairedDifference { normal, bootstrap_low, bootstrap_high })
}

/// The means of [`BOOTSTRAP_RESAMPLES`] resamples, ascending.
fn resampled_means(values: &[f64]) -> Vec<f64> {
    let mut rng = ChaCha8Rng::seed_from_u64(BOOTSTRAP_SEED);
    let n = values.len();
    // The high word of a 64 by 64 bit product is an almost uniform index; its bias is below n / 2^64, which
    // is negligible.
    let mut draw = || values[((u128::from(rng.next_u64()) * n as u128) >> 64) as usize];
    let mean = |_| (0..n).map(|_| draw()).sum::<f64>() / n as f64;
    let mut means: Vec<f64> = (0..BOOTSTRAP_RESAMPLES).map(mean).collect();
    means.sort_by(f64::total_cmp);
    means
}

/// The quantile `p` of ascending values: linear interpolation at position `p (n - 1)`.
fn quantile(ascending: &[f64], p: f64) -> f64 {
    let position = p * (ascending.len() - 1) as f64;
    let below = position.floor() as usize;
    let above = (below + 1).min(ascending.len() - 1);
    ascending[below] + (position - below as f64) * (ascending[above] - ascending[below])
}
