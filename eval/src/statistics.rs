//! Confidence intervals, comparisons and tests for the results of an evaluation.
//!
//! Means and rates:
//!
//! - [`wilson`]: the interval of one rate (Wilson 1927, "Probable inference, the law of succession, and
//!   statistical inference", JASA 22, p. 209).
//! - [`mean_of_items`]: the mean over items when each item was sampled several times. Samples are averaged
//!   within their item first, so items are the independent units (Miller 2024, arXiv 2411.00640, sections 2
//!   and 3).
//! - [`clustered_mean`] and [`clustered_rate`]: the mean over items that come in clusters.
//! - [`group_mean`], [`macro_mean`] and [`weighted_mean`]: one number for a group of tasks.
//! - [`pass_at_k()`]: the probability that one of k samples is correct.
//! - [`bootstrap()`]: standard error and interval of any statistic.
//!
//! Comparisons of systems:
//!
//! - [`paired_difference`]: the mean difference between two systems on the same items, with a normal interval
//!   and a bootstrap interval (Miller 2024, section 4; Efron and Tibshirani 1993, "An Introduction to the
//!   Bootstrap", ch. 13). [`clustered_difference`]: the same for items that come in clusters.
//! - [`paired_rates`]: the interval of the difference of two rates, also where the systems agree on every
//!   item.
//! - [`PairedDifference::p_value`] and [`mcnemar()`]: p-values of such a difference; [`holm()`] corrects many
//!   of them.
//! - [`detectable_difference`]: what a comparison can find.
//! - [`win_rate()`] and [`length_controlled()`]: judgements against one baseline.
//! - [`bradley_terry()`]: ratings of many models from judgements of pairs.
//!
//! Relations: [`pearson`] and [`spearman`] correlation, [`calibration()`] of probabilities.
//!
//! This module does not know what was measured.

mod bootstrap;
mod bradley_terry;
mod calibration;
mod cluster;
mod correlation;
mod distribution;
mod group;
mod holm;
mod length_controlled;
mod mcnemar;
mod newton;
mod paired;
mod paired_rates;
mod pass_at_k;
mod power;
mod win_rate;

use serde::{Deserialize, Serialize};

use crate::Error;
pub(crate) use bootstrap::quantile;
pub use bootstrap::{BOOTSTRAP_RESAMPLES, BOOTSTRAP_SEED, Bootstrap, bootstrap};
pub use bradley_terry::{Anchor, Rating, Ratings, Tally, bradley_terry};
pub use calibration::{Bin, Calibration, calibration};
pub use cluster::{clustered_mean, clustered_rate};
pub use correlation::{pearson, spearman};
pub use distribution::{normal_quantile, student_t_quantile};
pub use group::{Weighting, group_mean, macro_mean, weighted_mean};
pub use holm::holm;
pub use length_controlled::{Judgement, LengthControlled, length_controlled};
pub use mcnemar::mcnemar;
pub use paired::{PairedDifference, clustered_difference, paired_difference};
pub use paired_rates::{PairedCounts, paired_rates};
pub use pass_at_k::pass_at_k;
pub use power::{POWER, detectable_difference};
pub use win_rate::win_rate;

/// A mean with a 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The estimate itself.
    pub mean: f64,
    /// Its standard error.
    pub standard_error: f64,
    /// Lower end of the 95 % interval.
    pub low: f64,
    /// Upper end of the 95 % interval.
    pub high: f64,
    /// Number of independent items.
    pub n: usize,
}

/// The distribution that gives the width of the interval of a mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interval {
    /// Standard normal: accurate from about a hundred items on.
    Normal,
    /// Student's t with n - 1 degrees of freedom (Student 1908): accurate for few items with normal errors.
    StudentT,
}

/// The confidence level of every interval in this crate.
pub const CONFIDENCE: f64 = 0.95;

/// Wilson's 95 % interval of a rate of `successes` out of `n`.
///
/// With p = successes / n and z the normal quantile, the interval is
/// `(p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n)`. It stays within 0 and 1, and it also works for rates of 0 and 1, where the textbook
/// interval has width zero. `standard_error` is the closed form `sqrt(p(1-p)/n)`.
pub fn wilson(successes: u64, n: u64) -> Result<Estimate, Error> {
    if n == 0 {
        return Err(Error::TooFew { what: "a rate", needed: 1, got: 0 });
    }
    if successes > n {
        return Err(Error::NotARate { successes, n });
    }
    let count = n as f64;
    let p = successes as f64 / count;
    let (low, high) = wilson_interval(p, count);
    Ok(Estimate { mean: p, standard_error: (p * (1.0 - p) / count).sqrt(), low, high, n: n as usize })
}

/// The ends of Wilson's interval for the fraction `p` of `n`.
fn wilson_interval(p: f64, n: f64) -> (f64, f64) {
    let z = two_sided_normal();
    let shrink = 1.0 + z * z / n;
    let centre = (p + z * z / (2.0 * n)) / shrink;
    let half = z * (p * (1.0 - p) / n + z * z / (4.0 * n * n)).sqrt() / shrink;
    // At 0 of n and at n of n, one end of the interval is exactly p. Rounding must not push it past p.
    ((centre - half).clamp(0.0, p), (centre + half).clamp(p, 1.0))
}

/// Mean over items, each the average of its own samples, with a 95 % interval over the items.
///
/// `items[i]` holds the scores of item i; items may have different numbers of samples. The standard error is
/// `s / sqrt(n)`, where s is computed with `n - 1` and n is the number of items, not of samples: replies to
/// the same prompt are not independent.
pub fn mean_of_items(items: &[Vec<f64>], interval: Interval) -> Result<Estimate, Error> {
    estimate(&average_items(items)?, interval)
}

/// The average over the samples of each item, in order.
pub fn average_items(items: &[Vec<f64>]) -> Result<Vec<f64>, Error> {
    let average = |(item, samples): (usize, &Vec<f64>)| {
        if samples.is_empty() {
            return Err(Error::EmptyItem { item });
        }
        Ok(samples.iter().sum::<f64>() / samples.len() as f64)
    };
    items.iter().enumerate().map(average).collect()
}

/// Mean of one number per item, with standard error `s / sqrt(n)` and a 95 % interval. Needs at least two
/// items.
pub fn estimate(values: &[f64], interval: Interval) -> Result<Estimate, Error> {
    let n = values.len();
    if n < 2 {
        return Err(Error::TooFew { what: "a mean with an interval", needed: 2, got: n });
    }
    check_finite(values)?;
    let mean = values.iter().sum::<f64>() / n as f64;
    let sum_of_squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let standard_error = (sum_of_squares / (n - 1) as f64 / n as f64).sqrt();
    let half = interval_factor(interval, n)? * standard_error;
    Ok(Estimate { mean, standard_error, low: mean - half, high: mean + half, n })
}

fn check_finite(values: &[f64]) -> Result<(), Error> {
    match values.iter().enumerate().find(|(_, value)| !value.is_finite()) {
        Some((item, &got)) => Err(Error::NotFinite { field: format!("the value of item {item}"), got }),
        None => Ok(()),
    }
}

/// The largest sum of counts. Counts are summed one by one in places, and beyond it that takes too long.
const MOST_COUNTED: u64 = 1_000_000_000_000;

/// The sum of `counts`, which are `what`.
fn total(what: &'static str, counts: &[u64]) -> Result<u64, Error> {
    let sum: u128 = counts.iter().map(|&count| u128::from(count)).sum();
    u64::try_from(sum).ok().filter(|&sum| sum <= MOST_COUNTED).ok_or_else(|| {
        let (field, fix) = (format!("the number of {what}"), "check the file that the counts come from");
        Error::OutOfRange { field, got: sum as f64, low: 0.0, high: MOST_COUNTED as f64, fix }
    })
}

/// How many standard errors of a mean of `n` independent items a 95 % interval extends to each side.
fn interval_factor(interval: Interval, n: usize) -> Result<f64, Error> {
    match interval {
        Interval::Normal => Ok(two_sided_normal()),
        Interval::StudentT => student_t_quantile(f64::midpoint(1.0, CONFIDENCE), (n - 1) as f64),
    }
}

/// The z for which a standard normal variable lies within ± z with probability [`CONFIDENCE`].
fn two_sided_normal() -> f64 {
    normal_quantile(f64::midpoint(1.0, CONFIDENCE)).expect("0.975 is a probability")
}

#[cfg(test)]
mod tests;
