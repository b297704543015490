//! The interval of a binomial probability from exact tests (Clopper and Pearson 1934, Biometrika 26, p. 404).
//!
//! With k of n successes, the ends are the probabilities at which each of the two tails has half of what the
//! level leaves:
//!
//! ```text
//! P(X >= k; low) = 0.025    P(X <= k; high) = 0.025
//! ```
//!
//! The tails are values of the regularized incomplete beta function (Abramowitz and Stegun 1964, 26.5.24),
//! which also takes counts that are no whole numbers. The interval excludes 1/2 exactly if the exact
//! two-sided test of 1/2, which doubles the smaller tail, has a p-value below 0.05. This file does not know
//! what was counted.

use super::distribution::regularized_beta;
use super::estimate::CONFIDENCE;

/// The ends of the interval of the probability of `successes` out of `n`, which is above 0.
pub(super) fn clopper_pearson(successes: f64, n: f64) -> (f64, f64) {
    let tail = (1.0 - CONFIDENCE) / 2.0;
    let failures = n - successes;
    let low = if successes > 0.0 { beta_quantile(tail, successes, failures + 1.0) } else { 0.0 };
    let high = if failures > 0.0 { beta_quantile(1.0 - tail, successes + 1.0, failures) } else { 1.0 };
    (low, high)
}

/// The x at which the regularized incomplete beta function `I_x(a, b)` is `probability`, by bisection.
fn beta_quantile(probability: f64, a: f64, b: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..1100 {
        let middle = f64::midpoint(low, high);
        if middle <= low || middle >= high {
            break;
        }
        if regularized_beta(middle, a, b) < probability { low = middle } else { high = middle }
    }
    f64::midpoint(low, high)
}
