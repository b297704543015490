//! The interval of the difference of two rates on the same items: Newcombe's method 10 (Newcombe 1998,
//! "Improved confidence intervals for the difference between binomial proportions based on paired data",
//! Statistics in Medicine 17, p. 2635).
//!
//! With Wilson's intervals `l1..u1` and `l2..u2` of the two rates p1 and p2, the interval of `p1 - p2` is
//!
//! ```text
//! low  = p1 - p2 - sqrt((p1 - l1)² - 2 phi (p1 - l1)(u2 - p2) + (u2 - p2)²)
//! high = p1 - p2 + sqrt((u1 - p1)² - 2 phi (u1 - p1)(p2 - l2) + (p2 - l2)²)
//! ```
//!
//! phi is the correlation of the two systems, with a correction for continuity. Unlike the textbook interval,
//! this one has width where the systems agree on every item. This file does not know how an answer is judged.

use super::{total, wilson_interval};
use crate::Error;

/// How often two systems are right on the same items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    let [both, first_only, second_only, neither] =
        [both, first_only, second_only, neither].map(|count| count as f64 / all as f64);

    let (first, second) = (both + first_only, both + second_only);
    let ((first_low, first_high), (second_low, second_high)) =
        (wilson_interval(first, n), wilson_interval(second, n));
    let phi = correlation([both, first_only, second_only, neither], n);
    let distance = |one: f64, other: f64| {
        let square = one * one - 2.0 * phi * one * other + other * other;
        square.max(0.0).sqrt()
    };
    let difference = second - first;
    Ok((
        difference - distance(second - second_low, first_high - first),
        difference + distance(second_high - second, first - first_low),
    ))
}

/// The correlation of two systems from the shares of items, corrected for continuity; 0 if one of them is
/// right everywhere or nowhere.
fn correlation([both, first_only, second_only, neither]: [f64; 4], n: f64) -> f64 {
    let margins =
        (both + first_only) * (second_only + neither) * (both + second_only) * (first_only + neither);
    if margins <= 0.0 {
        return 0.0;
    }
    let covariance = both * neither - first_only * second_only;
    // Positive ones are corrected by n/2 in counts, which is 1/2n in shares, but not below zero.
    let corrected = if covariance > 0.0 { (covariance - 1.0 / (2.0 * n)).max(0.0) } else { covariance };
    corrected / margins.sqrt()
}
