//! The interval of the difference of two rates on the same items that belongs to the exact test of
//! [`super::mcnemar()`].
//!
//! Of n items, b are right for the first system alone and c for the second alone. The difference of the rates
//! is a product: how often the systems disagree, times the direction of the disagreement,
//!
//! ```text
//! (c - b) / n = rho theta    rho = (b + c) / n    theta = (c - b) / (b + c) = 2 pi - 1
//! ```
//!
//! Given b + c, c is binomial with the probability pi of the second system's being right, and `McNemar`'s
//! exact test is that of pi = 1/2. theta has the interval `t1..t2` of Clopper and Pearson, which belongs to
//! that test; rho has Wilson's `r1..r2`. The interval of the product of two independent estimates solves, for
//! its lower end D (Newcombe 2016, "MOVER-R confidence intervals for ratios and products of two independently
//! estimated quantities", Statistical Methods in Medical Research 25, p. 1774),
//!
//! ```text
//! theta - D / rho = sqrt((theta - t1)² + D² (1 / r - 1 / rho)²)    r = r1 where D > 0, r = r2 where D < 0
//! ```
//!
//! and alike for the upper end. At D = 0 the interval of rho drops out: an end is 0 exactly if that of theta
//! is, so that the interval excludes 0 exactly if the exact p-value is below 0.05. Where the systems agree on
//! every item, theta is anything and the interval is -r2..r2: it always has a width. Its coverage, summed
//! over all tables of 5, 12, 30 and 60 items at 42 pairs of rho and theta each, is between 94.8 % and 100 %
//! (`paired_rates` in `eval/tests/golden/statistics.py`).
//!
//! This file does not know how an answer is judged.

use super::binomial::clopper_pearson;
use super::check::total;
use super::estimate::wilson_interval;
use crate::Error;

/// How often two systems are right on the same items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PairedCounts {
    /// Items that both have right.
    pub both: u64,
    /// Items that the first one alone has right.
    pub first_only: u64,
    /// Items that the second one alone has right.
    pub second_only: u64,
    /// Items that both have wrong.
    pub neither: u64,
}

impl PairedCounts {
    /// Counts pairs of scores of the first and the second system. `None` if a score is neither 0 nor 1.
    pub fn of(pairs: impl Iterator<Item = (f64, f64)>) -> Option<Self> {
        let mut counts = Self::default();
        for pair in pairs {
            let count = match pair {
                (1.0, 1.0) => &mut counts.both,
                (1.0, 0.0) => &mut counts.first_only,
                (0.0, 1.0) => &mut counts.second_only,
                (0.0, 0.0) => &mut counts.neither,
                _ => return None,
            };
            *count += 1;
        }
        Some(counts)
    }
}

/// The ends of the 95 % interval of the rate of the second system minus that of the first.
///
/// `independent` is the number of independent items: all of them, or fewer where items come in clusters. The
/// counts are then scaled down to it.
pub fn paired_rates(counts: PairedCounts, independent: usize) -> Result<(f64, f64), Error> {
    let PairedCounts { both, first_only, second_only, neither } = counts;
    let all = total("items of a paired comparison", &[both, first_only, second_only, neither])?;
    if all == 0 || independent == 0 {
        return Err(Error::TooFew { what: "a paired comparison of rates", needed: 1, got: 0 });
    }
    let n = independent as f64;
    let scale = n / all as f64;
    let (first_only, second_only) = (first_only as f64 * scale, second_only as f64 * scale);
    let disagreements = first_only + second_only;
    let rate = disagreements / n;
    let rates = wilson_interval(rate, n);
    if disagreements == 0.0 {
        return Ok((-rates.1, rates.1));
    }

    let direction = (second_only - first_only) / disagreements;
    let (low, high) = clopper_pearson(second_only, disagreements);
    let (low, high) = (2.0 * low - 1.0, 2.0 * high - 1.0);
    // The upper end is the lower one of the first system against the second.
    Ok((lower_end((rate, rates), (direction, low)), -lower_end((rate, rates), (-direction, -high))))
}

/// The lower end of the interval of `rate` times `direction`, of which `low` is the lower end.
fn lower_end((rate, (rate_low, rate_high)): (f64, (f64, f64)), (direction, low): (f64, f64)) -> f64 {
    // The equation in D / rho is (1 - r²) x² - 2 theta x + t1 (2 theta - t1) = 0, with r the distance of
    // rho / r1 or rho / r2 from 1. The smaller root is the one that lies below theta.
    let product = low * (2.0 * direction - low);
    let root = |spread: f64| ((direction - low).powi(2) + spread * spread * product).max(0.0).sqrt();
    if low > 0.0 {
        rate * product / (direction + root(rate / rate_low - 1.0))
    } else {
        let spread = 1.0 - rate / rate_high;
        rate * (direction - root(spread)) / (1.0 - spread * spread)
    }
}
