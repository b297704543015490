//! Means and rates with their 95 % intervals.

use serde::{Deserialize, Serialize};

use super::check::check_finite;
use super::distribution::{normal_quantile, student_t_quantile};
use crate::Error;

/// A mean with a 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The estimate itself.
    pub mean: f64,
    /// Its standard error.
    pub standard_error: f64,
    /// Lower end of the 95 % interval; NaN, in JSON `null`, without one.
    #[serde(with = "crate::nan_as_null")]
    pub low: f64,
    /// Upper end of the 95 % interval; NaN, in JSON `null`, without one.
    #[serde(with = "crate::nan_as_null")]
    pub high: f64,
    /// Number of independent items.
    pub n: usize,
}

impl Estimate {
    /// A mean with the interval that extends `half` to each side. There is none where the values do not vary:
    /// that their spread is zero says nothing about other items.
    pub(super) fn around(mean: f64, standard_error: f64, half: f64, n: usize) -> Self {
        let half = if has_spread(mean, standard_error) { half } else { f64::NAN };
        Self { mean, standard_error, low: mean - half, high: mean + half, n }
    }

    /// The ends of the 95 % interval, if there is one.
    pub fn interval(&self) -> Option<(f64, f64)> {
        (self.low.is_finite() && self.high.is_finite()).then_some((self.low, self.high))
    }

    /// The same estimate of values that cannot lie outside of `low` to `high`.
    ///
    /// The interval ends there at the latest. If all n values were equal, the interval is that of the share
    /// of items with another value, of which 0 of n were seen: Wilson's ends at `z² / (n + z²)`, and each of
    /// these items moves the mean by no more than the distance to an end of the scale.
    #[must_use]
    pub fn within(self, low: f64, high: f64) -> Self {
        if self.interval().is_some() {
            return Self { low: self.low.max(low), high: self.high.min(high), ..self };
        }
        let (_, others) = wilson_interval(0.0, self.n as f64);
        let ends = (self.mean - others * (self.mean - low), self.mean + others * (high - self.mean));
        Self { low: ends.0, high: ends.1, ..self }
    }
}

/// Whether a standard error is more than the rounding errors of equal values.
pub(super) fn has_spread(mean: f64, standard_error: f64) -> bool {
    standard_error > 1e-12 * mean.abs()
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
pub(super) fn wilson_interval(p: f64, n: f64) -> (f64, f64) {
    let z = two_sided_normal();
    let shrink = 1.0 + z * z / n;
    let centre = (p + z * z / (2.0 * n)) / shrink;
    let half = z * (p * (1.0 - p) / n + z * z / (4.0 * n * n)).sqrt() / shrink;
    // At 0 of n and at n of n, one end of the interval is exactly p. Rounding must not push it past p.
    ((centre - half).clamp(0.0, p), (centre + half).clamp(p, 1.0))
}

/// Mean over items, each the average of its own samples, with Student's 95 % interval over the items.
///
/// `items[i]` holds the scores of item i; items may have different numbers of samples. The standard error is
/// `s / sqrt(n)`, where s is computed with `n - 1` and n is the number of items, not of samples: replies to
/// the same prompt are not independent.
pub fn mean_of_items(items: &[Vec<f64>]) -> Result<Estimate, Error> {
    let average = |(item, samples): (usize, &Vec<f64>)| {
        if samples.is_empty() {
            return Err(Error::EmptyItem { item });
        }
        Ok(samples.iter().sum::<f64>() / samples.len() as f64)
    };
    let averages: Vec<f64> = items.iter().enumerate().map(average).collect::<Result<_, _>>()?;
    estimate(&averages)
}

/// Mean of one number per item, with standard error `s / sqrt(n)` and Student's 95 % interval with n - 1
/// degrees of freedom (Student 1908). Needs at least two items.
pub fn estimate(values: &[f64]) -> Result<Estimate, Error> {
    let n = values.len();
    if n < 2 {
        return Err(Error::TooFew { what: "a mean with an interval", needed: 2, got: n });
    }
    check_finite(values)?;
    let mean = values.iter().sum::<f64>() / n as f64;
    let sum_of_squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let standard_error = (sum_of_squares / (n - 1) as f64 / n as f64).sqrt();
    let half = student_factor(n)? * standard_error;
    Ok(Estimate::around(mean, standard_error, half, n))
}

/// How many standard errors of a mean of `n` independent items Student's 95 % interval extends to each side.
pub(super) fn student_factor(n: usize) -> Result<f64, Error> {
    student_t_quantile(f64::midpoint(1.0, CONFIDENCE), (n - 1) as f64)
}

/// The z for which a standard normal variable lies within ± z with probability [`CONFIDENCE`].
pub(super) fn two_sided_normal() -> f64 {
    normal_quantile(f64::midpoint(1.0, CONFIDENCE)).expect("0.975 is a probability")
}
