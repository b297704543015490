//! One number for a group of tasks.
//!
//! [`group_mean`] computes what lm-evaluation-harness reports for a group (`aggregate_subtask_metrics` and
//! `pooled_sample_stderr`): with k tasks, `n_i` items and mean `m_i` of task i and `N = sum n_i`, the mean is
//! `sum(n_i m_i) / N` or, not weighted by size, `sum(m_i) / k`. The standard error is in both cases
//!
//! ```text
//! sqrt( sum((n_i - 1) n_i se_i²) / (N - k) / N )
//! ```
//!
//! that is, `sqrt(s² / N)` with the variance s² within tasks pooled over the tasks. It belongs to the
//! weighted mean. [`macro_mean`] has the standard error of the unweighted mean of independent tasks,
//! `sqrt(sum se_i²) / k`, in which a small task with a wide interval weighs as much as a large one.
//!
//! [`stratified_rate`] is for rates with given weights w: the mean `sum(w_i m_i) / sum(w_i)`, and the
//! standard error `sqrt(sum(w_i² se_i²)) / sum(w_i)`. Its interval is Wilson's for as many independent items
//! as would give this standard error, `p (1 - p) / SE²`, at most N (Korn and Graubard 1998). If every rate is
//! 0 or 1, the standard error is 0 and tells nothing, and the items are worth `(sum w_i)² / sum(w_i² / n_i)`
//! of equal weight (Kish 1965, "Survey Sampling", section 11.7).
//!
//! All of them treat the tasks as fixed: the error is that of the items, not that of the choice of tasks.
//! This file does not know what the tasks are.

use super::check::total_weight;
use super::estimate::{Estimate, two_sided_normal, wilson_interval};
use crate::Error;

/// What a task counts in the mean of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weighting {
    /// Each item counts the same: the micro mean.
    BySize,
    /// Each task counts the same: the macro mean.
    Equal,
}

/// Mean and standard error of a group, equal to those of lm-evaluation-harness.
///
/// `standard_error` of each task must come from a variance with n - 1, as [`super::estimate()`] computes it.
/// The result has `n` = N, and a normal 95 % interval. At least one task needs two items.
pub fn group_mean(tasks: &[Estimate], weighting: Weighting) -> Result<Estimate, Error> {
    check(tasks)?;
    let items: f64 = tasks.iter().map(|task| task.n as f64).sum();
    let degrees = items - tasks.len() as f64;
    if degrees < 1.0 {
        return Err(Error::TooFew { what: "the largest task of a group", needed: 2, got: 1 });
    }

    let mean = match weighting {
        Weighting::BySize => tasks.iter().map(|task| task.mean * task.n as f64).sum::<f64>() / items,
        Weighting::Equal => unweighted(tasks),
    };

    let squares = |task: &Estimate| (task.n as f64 - 1.0) * task.n as f64 * task.standard_error.powi(2);
    let pooled_variance = tasks.iter().map(squares).sum::<f64>() / degrees;
    Ok(normal(tasks, mean, (pooled_variance / items).sqrt()))
}

/// The unweighted mean of independent tasks, with its own standard error `sqrt(sum se_i²) / k` and a normal
/// 95 % interval. `n` of the result is the number of items of all tasks.
pub fn macro_mean(tasks: &[Estimate]) -> Result<Estimate, Error> {
    check(tasks)?;
    let variance: f64 = tasks.iter().map(|task| task.standard_error.powi(2)).sum();
    Ok(normal(tasks, unweighted(tasks), variance.sqrt() / tasks.len() as f64))
}

/// The mean of independent rates with given weights, which are positive, with a 95 % interval within 0 and 1.
/// `n` of the result is the number of items of all rates.
pub fn stratified_rate(rates: &[(Estimate, f64)]) -> Result<Estimate, Error> {
    if rates.is_empty() {
        return Err(Error::TooFew { what: "a weighted mean", needed: 1, got: 0 });
    }
    let whole = total_weight(rates.iter().map(|(_, weight)| *weight))?;
    let n: usize = rates.iter().map(|(rate, _)| rate.n).sum();
    let mean = rates.iter().map(|(rate, weight)| weight * rate.mean).sum::<f64>() / whole;
    let variance: f64 = rates.iter().map(|(rate, weight)| (weight * rate.standard_error).powi(2)).sum();
    let standard_error = variance.sqrt() / whole;
    let effective = if standard_error > 0.0 {
        (mean * (1.0 - mean) / standard_error.powi(2)).min(n as f64)
    } else {
        whole * whole / rates.iter().map(|(rate, weight)| weight * weight / rate.n as f64).sum::<f64>()
    };
    let (low, high) = wilson_interval(mean, effective);
    Ok(Estimate { mean, standard_error, low, high, n })
}

fn unweighted(tasks: &[Estimate]) -> f64 {
    tasks.iter().map(|task| task.mean).sum::<f64>() / tasks.len() as f64
}

fn normal(tasks: &[Estimate], mean: f64, standard_error: f64) -> Estimate {
    let half = two_sided_normal() * standard_error;
    let n = tasks.iter().map(|task| task.n).sum();
    Estimate::around(mean, standard_error, half, n)
}

fn check(tasks: &[Estimate]) -> Result<(), Error> {
    if tasks.is_empty() {
        return Err(Error::TooFew { what: "a group of tasks", needed: 1, got: 0 });
    }
    for (index, task) in tasks.iter().enumerate() {
        // One item has no standard error, and 0 in its place would make the group look too certain.
        if task.n < 2 {
            return Err(Error::TooFew { what: "a task of a group", needed: 2, got: task.n });
        }
        if task.standard_error < 0.0 {
            let (field, fix) = (format!("the standard error of task {index}"), "give its absolute value");
            return Err(Error::OutOfRange {
                field,
                got: task.standard_error,
                low: 0.0,
                high: f64::INFINITY,
                fix,
            });
        }
        for (name, got) in [("mean", task.mean), ("standard error", task.standard_error)] {
            if !got.is_finite() {
                return Err(Error::NotFinite { field: format!("the {name} of task {index}"), got });
            }
        }
    }
    Ok(())
}
