//! The rate of items between 0 and 1 that count differently and come in clusters: the votes of a judge, of
//! which a strong one counts three, on the turns of one question.
//!
//! With values y, weights w and clusters c, the rate is the ratio `p = sum(w y) / sum(w)`. Its standard error
//! is that of a ratio of totals over G clusters (Cochran 1977, "Sampling Techniques", section 6.4):
//!
//! ```text
//! SE² = G / (G - 1) sum over c of (sum over i in c of w_i (y_i - p))² / (sum w)²
//! ```
//!
//! The interval is Wilson's for as many independent items of equal weight as would give this standard error,
//! as in [`super::clustered_rate`] (Korn and Graubard 1998). With weights, n items are worth `(sum w)² / sum
//! w²` (Kish 1965, "Survey Sampling", section 11.7), so that
//!
//! ```text
//! effective n = p (1 - p) / SE² n / (n - 1) (t_(n-1) / t_(G-1))²    at most n
//! ```
//!
//! where n is Kish's number of items. If no item differs from the others, or there is one cluster, the
//! standard error tells nothing; the interval is then that of Kish's number of clusters, and never of width
//! zero.
//!
//! This file does not know who voted.

use std::collections::BTreeMap;

use super::check::total_weight;
use super::distribution::student_t_quantile;
use super::estimate::{CONFIDENCE, Estimate, student_factor, wilson_interval};
use crate::Error;

/// One item of a weighted rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Vote<C> {
    /// From 0 to 1.
    pub value: f64,
    /// How much it counts: above 0.
    pub weight: f64,
    /// Items of one cluster are not independent.
    pub cluster: C,
}

/// The rate of at least one vote, with its standard error and a 95 % interval within 0 and 1. `n` of the
/// result is the number of clusters.
pub fn weighted_rate<C: Ord>(votes: &[Vote<C>]) -> Result<Estimate, Error> {
    check(votes)?;
    let whole: f64 = votes.iter().map(|vote| vote.weight).sum();
    let mean = votes.iter().map(|vote| vote.weight * vote.value).sum::<f64>() / whole;

    let mut clusters: BTreeMap<&C, (f64, f64)> = BTreeMap::new();
    for vote in votes {
        let (weight, surplus) = clusters.entry(&vote.cluster).or_default();
        *weight += vote.weight;
        *surplus += vote.weight * (vote.value - mean);
    }
    let independent = clusters.len();
    let squares: f64 = clusters.values().map(|(_, surplus)| surplus * surplus).sum();
    let scale = if independent > 1 { independent as f64 / (independent - 1) as f64 } else { 0.0 };
    let standard_error = (scale * squares).sqrt() / whole;

    let items = kish(votes.iter().map(|vote| vote.weight));
    let varies = standard_error > 1e-12 && mean * (1.0 - mean) > 0.0;
    let effective = if varies {
        effective_items(mean, standard_error, items, independent)?
    } else {
        kish(clusters.values().map(|(weight, _)| *weight))
    };
    let (low, high) = wilson_interval(mean, effective);
    Ok(Estimate { mean, standard_error, low, high, n: independent })
}

fn check<C>(votes: &[Vote<C>]) -> Result<(), Error> {
    if votes.is_empty() {
        return Err(Error::TooFew { what: "a weighted rate", needed: 1, got: 0 });
    }
    for (item, vote) in votes.iter().enumerate() {
        if !(0.0..=1.0).contains(&vote.value) {
            let (field, fix) = (format!("the value of vote {item}"), "give 1 for a win and 0 for a loss");
            return Err(Error::OutOfRange { field, got: vote.value, low: 0.0, high: 1.0, fix });
        }
    }
    total_weight(votes.iter().map(|vote| vote.weight)).map(|_| ())
}

/// The number of items of equal weight that are worth as much: `(sum w)² / sum w²`.
fn kish(weights: impl Iterator<Item = f64>) -> f64 {
    let (sum, squares) =
        weights.fold((0.0, 0.0), |(sum, squares), weight| (sum + weight, squares + weight * weight));
    sum * sum / squares
}

/// The number of independent items that would give this standard error, at most `items`.
fn effective_items(mean: f64, standard_error: f64, items: f64, independent: usize) -> Result<f64, Error> {
    // With fewer than two items' worth of weight, Student's t has no degrees of freedom.
    let degrees = (items - 1.0).max(1.0);
    let narrow = student_t_quantile(f64::midpoint(1.0, CONFIDENCE), degrees)?;
    let wide = student_factor(independent)?;
    let of_error = mean * (1.0 - mean) / standard_error.powi(2) * ((degrees + 1.0) / degrees);
    Ok((of_error * (narrow / wide).powi(2)).min(items))
}
