//! The percentile bootstrap: standard error and interval of a statistic that has no formula for them.
//!
//! The n items are drawn n times with replacement, and the statistic is computed on what was drawn, over and
//! over. The standard error is the standard deviation of the results, with their number minus 1 (Efron and
//! Tibshirani 1993, "An Introduction to the Bootstrap", equation 6.6). The interval ends are the 2.5 % and
//! 97.5 % quantiles of the results (section 13.3), with linear interpolation between order statistics
//! (definition 7 of Hyndman and Fan 1996, numpy's default).
//!
//! The draws come from `ChaCha8` with a fixed seed, so two reports from the same scores are identical byte by
//! byte. This file does not know the statistic.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use serde::{Deserialize, Serialize};

use super::CONFIDENCE;
use crate::Error;

/// Number of resamples of a bootstrap interval. Between seeds its ends vary by about 1 % of the interval's
/// width.
pub const BOOTSTRAP_RESAMPLES: usize = 10_000;

/// Seed of the `ChaCha8` stream that draws the resamples.
pub const BOOTSTRAP_SEED: u64 = 20_241_100_640;

/// The largest number of resamples.
const MOST_RESAMPLES: usize = 1_000_000;

/// A statistic with its bootstrap standard error and percentile interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bootstrap {
    /// The statistic of the items themselves. A biased statistic can lie outside the interval.
    pub value: f64,
    /// Its standard error.
    pub standard_error: f64,
    /// Lower end of the 95 % interval.
    pub low: f64,
    /// Upper end of the 95 % interval.
    pub high: f64,
}

/// Bootstraps `statistic` over `items` with `resamples` resamples.
///
/// [`BOOTSTRAP_RESAMPLES`] is a good number for a cheap statistic, 100 the least for one over a whole corpus.
/// The statistic must be defined and finite on every resample: an error of it ends the bootstrap.
pub fn bootstrap<T: Clone>(
    items: &[T],
    resamples: usize,
    mut statistic: impl FnMut(&[T]) -> Result<f64, Error>,
) -> Result<Bootstrap, Error> {
    if items.len() < 2 {
        return Err(Error::TooFew { what: "a bootstrap", needed: 2, got: items.len() });
    }
    check_resamples(resamples, 2)?;
    let value = finite(statistic(items)?, || "the statistic of all items".into())?;

    let mut draws = Draws::new();
    let mut resample = items.to_vec();
    let mut results = Vec::with_capacity(resamples);
    for index in 0..resamples {
        for slot in &mut resample {
            slot.clone_from(&items[draws.index(items.len())]);
        }
        results
            .push(finite(statistic(&resample)?, || format!("the statistic of bootstrap resample {index}"))?);
    }

    results.sort_by(f64::total_cmp);
    let (low, high) = percentile_interval(&results);
    Ok(Bootstrap { value, standard_error: standard_deviation(&results), low, high })
}

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

/// Refuses a number of resamples below `fewest`, or one that would not end in reasonable time.
pub(super) fn check_resamples(resamples: usize, fewest: usize) -> Result<(), Error> {
    if (fewest..=MOST_RESAMPLES).contains(&resamples) {
        return Ok(());
    }
    let (field, fix) = ("the number of bootstrap resamples".into(), "10000 is the usual choice");
    let (got, low, high) = (resamples as f64, fewest as f64, MOST_RESAMPLES as f64);
    Err(Error::OutOfRange { field, got, low, high, fix })
}

fn finite(got: f64, field: impl FnOnce() -> String) -> Result<f64, Error> {
    if got.is_finite() { Ok(got) } else { Err(Error::NotFinite { field: field(), got }) }
}

fn standard_deviation(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1.0)).sqrt()
}

/// The quantile `p` of ascending values: linear interpolation at position `p (n - 1)`. There must be at least
/// one.
pub(crate) fn quantile(ascending: &[f64], p: f64) -> f64 {
    let position = p * (ascending.len() - 1) as f64;
    let below = position.floor() as usize;
    let above = (below + 1).min(ascending.len() - 1);
    ascending[below] + (position - below as f64) * (ascending[above] - ascending[below])
}
