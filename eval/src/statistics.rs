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
//! - [`weighted_rate`]: the rate of items that count differently and come in clusters.
//! - [`group_mean`], [`macro_mean`] and [`stratified_rate`]: one number for a group of tasks.
//! - [`pass_at_k()`]: the probability that one of k samples is correct.
//!
//! Comparisons of systems. An interval excludes 0 exactly where its p-value is below 0.05, because both come
//! from one distribution:
//!
//! - [`paired_difference`]: the mean difference between two systems on the same items, with Student's
//!   interval and [`PairedDifference::p_value`] (Miller 2024, section 4). [`clustered_difference`]: the same
//!   for items that come in clusters.
//! - [`paired_rates`] and [`mcnemar()`]: interval and p-value of the difference of two rates.
//! - [`independent_difference`]: the interval of a difference between different items.
//! - [`holm()`] corrects many p-values; [`detectable_difference`]: what a comparison can find.
//! - [`win_rate()`] and [`length_controlled()`]: judgements against one baseline.
//! - [`bradley_terry()`]: ratings of many models from judgements of pairs.
//!
//! No interval has width zero: equal values say nothing about other items. Where they lie on a known scale,
//! [`Estimate::within`] has the interval; elsewhere there is none.
//!
//! Relations: [`pearson`] and [`spearman`] correlation, [`calibration()`] of probabilities.
//!
//! This module does not know what was measured.

mod binomial;
mod bootstrap;
mod bradley_terry;
mod calibration;
mod check;
mod cluster;
mod correlation;
mod distribution;
mod estimate;
mod group;
mod holm;
mod independent_difference;
mod length_controlled;
mod mcnemar;
mod newton;
mod paired;
mod paired_rates;
mod pass_at_k;
mod power;
mod weighted_rate;
mod win_rate;

pub(crate) use bootstrap::quantile;
pub use bradley_terry::{Anchor, Rating, Ratings, Tally, bradley_terry};
pub use calibration::{Bin, Calibration, calibration};
pub use cluster::{clustered_mean, clustered_rate};
pub use correlation::{pearson, spearman};
pub use distribution::{normal_quantile, student_t_quantile};
pub use estimate::{CONFIDENCE, Estimate, estimate, mean_of_items, wilson};
pub use group::{Weighting, group_mean, macro_mean, stratified_rate};
pub use holm::holm;
pub use independent_difference::independent_difference;
pub use length_controlled::{Judgement, LengthControlled, length_controlled};
pub use mcnemar::mcnemar;
pub use paired::{PairedDifference, clustered_difference, paired_difference};
pub use paired_rates::{PairedCounts, paired_rates};
pub use pass_at_k::pass_at_k;
pub use power::{POWER, detectable_difference};
pub use weighted_rate::{Vote, weighted_rate};
pub use win_rate::win_rate;

#[cfg(test)]
mod tests;
