//! Comparison of two systems on the same items.
//!
//! With `d_i = b_i - a_i`, the result is the mean, its standard error `s / sqrt(n)` and Student's interval
//! (Student 1908; Miller 2024, arXiv 2411.00640, section 4). Comparing the two unpaired intervals instead
//! would ignore the correlation between the systems, which is usually large.
//!
//! Where items come in clusters, the standard error is that of [`super::clustered_mean`], and Student's t has
//! one degree of freedom less than clusters (Miller 2024, sections 2 and 4).
//!
//! The p-value of [`PairedDifference::p_value`] is that of the paired t test: with `t = mean / SE` and n - 1
//! degrees of freedom, `P(|T| >= |t|)`, where n counts clusters. It is below 0.05 exactly if the interval
//! excludes 0, because both compare the same t with the same distribution.

use serde::{Deserialize, Serialize};

use super::cluster::clustered_mean;
use super::distribution::student_t_two_sided;
use super::estimate::{Estimate, estimate, has_spread};
use crate::Error;

/// The mean difference between two systems on the same items.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PairedDifference {
    /// Mean, standard error and 95 % interval of the second system minus the first. Where items come in
    /// clusters, `n` counts the clusters.
    #[serde(alias = "normal")]
    pub estimate: Estimate,
}

impl PairedDifference {
    /// The two-sided p-value of the paired t test, for example for [`super::holm()`]. It is 1 if the systems
    /// are equal on every item. If they differ by the same number on every item, t is infinite and says
    /// nothing: that is an error.
    pub fn p_value(&self) -> Result<f64, Error> {
        let Estimate { mean, standard_error, n, .. } = self.estimate;
        if mean == 0.0 {
            return Ok(1.0);
        }
        if !self.varies() {
            return Err(Error::EqualDifferences { difference: mean });
        }
        Ok(student_t_two_sided(mean / standard_error, (n - 1) as f64))
    }

    /// Whether the difference varies between items. If it does not, its spread says nothing about other
    /// items, and there is no interval.
    pub fn varies(&self) -> bool {
        has_spread(self.estimate.mean, self.estimate.standard_error)
    }
}

/// Compares `after - before` per item. Each slice holds one number per item (the average over its samples, if
/// any), in the same order.
pub fn paired_difference(before: &[f64], after: &[f64]) -> Result<PairedDifference, Error> {
    Ok(PairedDifference { estimate: estimate(&differences(before, after)?)? })
}

/// [`paired_difference`] of items that come in clusters. `clusters[i]` is the cluster of item i. Needs at
/// least two clusters; if each item is a cluster of its own, it is [`paired_difference`].
pub fn clustered_difference<C: Ord>(
    before: &[f64],
    after: &[f64],
    clusters: &[C],
) -> Result<PairedDifference, Error> {
    let clustered = clustered_mean(&differences(before, after)?, clusters)?;
    if clustered.n == before.len() {
        return paired_difference(before, after);
    }
    Ok(PairedDifference { estimate: clustered })
}

/// `after - before` per item.
fn differences(before: &[f64], after: &[f64]) -> Result<Vec<f64>, Error> {
    if before.len() != after.len() {
        return Err(Error::Unpaired { left: before.len(), right: after.len() });
    }
    Ok(before.iter().zip(after).map(|(before, after)| after - before).collect())
}
