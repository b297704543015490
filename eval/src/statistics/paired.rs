//! Comparison of two systems on the same items.
//!
//! With `d_i = b_i - a_i`, the result is the mean, its standard error `s / sqrt(n)`, a normal interval
//! (Miller 2024, arXiv 2411.00640, section 4) and the percentile interval of [`super::bootstrap()`] with
//! [`BOOTSTRAP_RESAMPLES`] resamples. Comparing the two unpaired intervals instead would ignore the
//! correlation between the systems, which is usually large.
//!
//! Where items come in clusters, the standard error is that of [`super::clustered_mean`], the interval is
//! Student's with one degree of freedom less than clusters, and the bootstrap draws whole clusters (Miller
//! 2024, sections 2 and 4).
//!
//! The p-value of [`PairedDifference::p_value`] is that of the paired t test (Student 1908): with `t = mean /
//! SE` and n - 1 degrees of freedom, `P(|T| >= |t|)`, where n counts clusters.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::distribution::student_t_two_sided;
use super::{BOOTSTRAP_RESAMPLES, Estimate, Interval, bootstrap, clustered_mean, estimate};
use crate::Error;

/// The mean difference between two systems on the same items.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PairedDifference {
    /// Mean, standard error and 95 % interval of the second system minus the first. The interval is normal,
    /// and Student's where items come in clusters; `n` counts the clusters then.
    pub normal: Estimate,
    /// Lower end of the 95 % bootstrap interval.
    pub bootstrap_low: f64,
    /// Upper end of the 95 % bootstrap interval.
    pub bootstrap_high: f64,
}

impl PairedDifference {
    /// The two-sided p-value of the paired t test, for example for [`super::holm()`]. It is 1 if the systems
    /// are equal on every item. If they differ by the same number on every item, t is infinite and says
    /// nothing: that is an error.
    pub fn p_value(&self) -> Result<f64, Error> {
        let Estimate { mean, standard_error, n, .. } = self.normal;
        if mean == 0.0 {
            return Ok(1.0);
        }
        if !self.varies() {
            return Err(Error::EqualDifferences { difference: mean });
        }
        Ok(student_t_two_sided(mean / standard_error, (n - 1) as f64))
    }

    /// Whether the difference varies between items. If it does not, its spread says nothing about other
    /// items.
    pub fn varies(&self) -> bool {
        // Equal differences leave a spread of a few rounding errors.
        self.normal.standard_error > 1e-12 * self.normal.mean.abs()
    }
}

/// Compares `after - before` per item. Each slice holds one number per item (the average over its samples, if
/// any), in the same order.
pub fn paired_difference(before: &[f64], after: &[f64]) -> Result<PairedDifference, Error> {
    let differences = differences(before, after)?;
    let normal = estimate(&differences, Interval::Normal)?;
    let mean = |values: &[f64]| Ok(values.iter().sum::<f64>() / values.len() as f64);
    let resampled = bootstrap(&differences, BOOTSTRAP_RESAMPLES, mean)?;
    Ok(PairedDifference { normal, bootstrap_low: resampled.low, bootstrap_high: resampled.high })
}

/// [`paired_difference`] of items that come in clusters. `clusters[i]` is the cluster of item i. Needs at
/// least two clusters; if each item is a cluster of its own, it is [`paired_difference`].
pub fn clustered_difference<C: Ord>(
    before: &[f64],
    after: &[f64],
    clusters: &[C],
) -> Result<PairedDifference, Error> {
    let differences = differences(before, after)?;
    let normal = clustered_mean(&differences, clusters, Interval::StudentT)?;
    if normal.n == differences.len() {
        return paired_difference(before, after);
    }
    let mut sums: BTreeMap<&C, (f64, f64)> = BTreeMap::new();
    for (difference, cluster) in differences.iter().zip(clusters) {
        let (sum, count) = sums.entry(cluster).or_default();
        *sum += difference;
        *count += 1.0;
    }
    let sums: Vec<(f64, f64)> = sums.into_values().collect();
    let mean = |drawn: &[(f64, f64)]| {
        let (sum, count) = drawn.iter().fold((0.0, 0.0), |total, one| (total.0 + one.0, total.1 + one.1));
        Ok(sum / count)
    };
    let resampled = bootstrap(&sums, BOOTSTRAP_RESAMPLES, mean)?;
    Ok(PairedDifference { normal, bootstrap_low: resampled.low, bootstrap_high: resampled.high })
}

/// `after - before` per item.
fn differences(before: &[f64], after: &[f64]) -> Result<Vec<f64>, Error> {
    if before.len() != after.len() {
        return Err(Error::Unpaired { left: before.len(), right: after.len() });
    }
    Ok(before.iter().zip(after).map(|(before, after)| after - before).collect())
}
