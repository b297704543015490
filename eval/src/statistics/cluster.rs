//! The standard error of a mean over items that come in clusters: questions about one passage, turns of one
//! conversation, translations of one prompt.
//!
//! Items of one cluster tend to be right or wrong together, so they are less evidence than as many
//! independent items. With s the scores, `m` their mean and n their number (Miller 2024, arXiv 2411.00640,
//! section 2):
//!
//! ```text
//! SE² = SE_CLT² + 1/n² sum over clusters c, over i ≠ j in c, of (s_ic - m)(s_jc - m)
//! ```
//!
//! where `SE_CLT² = sum (s - m)² / (n (n - 1))`. If each item is a cluster of its own, SE is `SE_CLT`.
//!
//! A rate gets Wilson's interval for as many independent items as would give the same standard error (Korn
//! and Graubard 1998, "Confidence intervals for proportions with small expected number of positive counts
//! estimated from survey data", Survey Methodology 24, p. 193): with n items in G clusters
//!
//! ```text
//! effective n = p (1 - p) / SE² (t_(n-1) / t_(G-1))²    at most n
//! ```
//!
//! where the t are quantiles of Student's distribution with those degrees of freedom.
//!
//! This file does not know what makes a cluster.

use std::collections::BTreeMap;

use super::check::check_finite;
use super::estimate::{Estimate, student_factor, wilson_interval};
use crate::Error;

/// Mean over items with the cluster-robust standard error and Student's 95 % interval.
///
/// `clusters[i]` is the cluster of item i. The mean weights items equally. `n` of the result is the number of
/// clusters, which are the independent units; Student's t has that number minus 1 degrees of freedom. Needs
/// at least two clusters, and from a few dozen on the error is accurate.
pub fn clustered_mean<C: Ord>(values: &[f64], clusters: &[C]) -> Result<Estimate, Error> {
    if values.len() != clusters.len() {
        let (left, right) = (values.len(), clusters.len());
        return Err(Error::Lengths { what: "a clustered mean", left, right });
    }
    check_finite(values)?;
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;

    let mut sums: BTreeMap<&C, f64> = BTreeMap::new();
    for (value, cluster) in values.iter().zip(clusters) {
        *sums.entry(cluster).or_default() += value - mean;
    }
    let independent = sums.len();
    if independent < 2 {
        return Err(Error::TooFewClusters { got: independent });
    }

    // The products of all pairs in a cluster, i = j included, sum to the square of the cluster's sum. What
    // the terms with i = j then lack of SE_CLT² is 1/(n (n - 1)) - 1/n² = 1/(n² (n - 1)) of the sum of
    // squares. In this form nothing is subtracted, so rounding cannot make the variance negative.
    let between: f64 = sums.values().map(|sum| sum * sum).sum();
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let standard_error = (between + squares / (n - 1.0)).sqrt() / n;

    let half = student_factor(independent)? * standard_error;
    Ok(Estimate::around(mean, standard_error, half, independent))
}

/// Rate of items that are 0 or 1, with the cluster-robust standard error and a 95 % interval within 0 and 1.
///
/// At rates of 0 and 1 the standard error is 0 and tells nothing: the interval is then that of as many items
/// as there are clusters. `n` of the result is the number of clusters. Needs at least two.
pub fn clustered_rate<C: Ord>(values: &[f64], clusters: &[C]) -> Result<Estimate, Error> {
    let clustered = clustered_mean(values, clusters)?;
    let Estimate { mean, standard_error, n: independent, .. } = clustered;
    let variance = mean * (1.0 - mean);
    let effective = if variance > 0.0 && standard_error > 0.0 {
        let narrow = student_factor(values.len())?;
        let wide = student_factor(independent)?;
        (variance * (narrow / wide / standard_error).powi(2)).min(values.len() as f64)
    } else {
        independent as f64
    };
    let (low, high) = wilson_interval(mean, effective);
    Ok(Estimate { low, high, ..clustered })
}
