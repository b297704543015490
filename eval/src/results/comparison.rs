//! Paired comparisons of models on the same documents (Miller 2024, arXiv 2411.00640, section 4).

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::evaluation::{Evaluation, ModelRun, Sample};
use crate::score::MetricValue;
use crate::statistics::{PairedDifference, detectable_difference, holm, mcnemar, paired_difference};

/// One model against the baseline on one metric of one task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The name of the baseline.
    pub baseline: String,
    /// The name of the other model.
    pub model: String,
    /// The task.
    pub task: String,
    /// The metric.
    pub metric: String,
    /// The filter pipeline.
    pub filter: String,
    /// The other model minus the baseline, with intervals over the documents.
    pub difference: PairedDifference,
    /// Documents on which the other model scored more.
    pub more: usize,
    /// Documents on which both scored the same.
    pub equal: usize,
    /// Documents on which the other model scored less.
    pub less: usize,
    /// The p-value: exact McNemar for rates, the paired t test otherwise.
    pub p_value: f64,
    /// The p-value after Holm's correction for all comparisons of this model.
    pub p_value_holm: f64,
    /// The difference that as many documents show with a probability of 80 %.
    pub detectable: f64,
    /// Whether more is better.
    pub higher_is_better: bool,
}

/// Every other model against the first one and against the one before it.
pub(super) fn of_runs(evaluation: &Evaluation, runs: &[ModelRun]) -> Result<Vec<Comparison>, Error> {
    let mut comparisons = Vec::new();
    for (place, model) in runs.iter().enumerate().skip(1) {
        let mut baselines = vec![&runs[0]];
        if place > 1 {
            baselines.push(&runs[place - 1]);
        }
        let mut of_model = Vec::new();
        for baseline in baselines {
            for (index, prepared) in evaluation.tasks.iter().enumerate() {
                let samples = (&baseline.samples[index][..], &model.samples[index][..]);
                of_model.extend(compare((&baseline.name, &model.name), &prepared.task.task, samples)?);
            }
        }
        correct(&mut of_model)?;
        comparisons.extend(of_model);
    }
    Ok(comparisons)
}

/// Replaces the p-values by Holm's for as many comparisons.
fn correct(comparisons: &mut [Comparison]) -> Result<(), Error> {
    let p_values: Vec<f64> = comparisons.iter().map(|comparison| comparison.p_value).collect();
    for (comparison, corrected) in comparisons.iter_mut().zip(holm(&p_values)?) {
        comparison.p_value_holm = corrected;
    }
    Ok(())
}

/// Compares the samples of two models on one task, for each metric that has a number for each document.
/// Documents that one of them could not answer are left out. Without two documents in common there is no
/// comparison.
pub fn compare(
    (baseline, model): (&str, &str),
    task: &str,
    (before, after): (&[Sample], &[Sample]),
) -> Result<Vec<Comparison>, Error> {
    let mut found = Vec::new();
    let Some(first) = before.iter().find(|sample| !sample.scored.is_empty()) else { return Ok(found) };
    for (at, scored) in first.scored.iter().enumerate() {
        for (metric_at, metric) in scored.metrics.iter().enumerate() {
            let number = |sample: &Sample| match &sample.scored.get(at)?.metrics.get(metric_at)?.value {
                MetricValue::Number(number) => Some(*number).filter(|number| number.is_finite()),
                _ => None,
            };
            let pairs: Vec<(f64, f64)> = before
                .iter()
                .zip(after)
                .filter(|(before, after)| before.doc_id == after.doc_id)
                .filter_map(|(before, after)| number(before).zip(number(after)))
                .collect();
            if pairs.len() < 2 {
                continue;
            }
            let comparison = Comparison {
                baseline: baseline.to_owned(),
                model: model.to_owned(),
                task: task.to_owned(),
                metric: metric.name.clone(),
                filter: scored.filter.clone(),
                higher_is_better: metric.higher_is_better,
                ..compare_numbers(&pairs)?
            };
            found.push(comparison);
        }
    }
    Ok(found)
}

fn compare_numbers(pairs: &[(f64, f64)]) -> Result<Comparison, Error> {
    let (before, after): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    let difference = paired_difference(&before, &after)?;
    let more = pairs.iter().filter(|(before, after)| after > before).count();
    let less = pairs.iter().filter(|(before, after)| after < before).count();
    let is_rate = pairs
        .iter()
        .all(|&(before, after)| [before, after].iter().all(|&value| value == 0.0 || value == 1.0));
    // Equal differences on every document leave the t test undefined; the counts of signs then decide.
    let p_value = match difference.p_value() {
        Ok(p_value) if !is_rate => p_value,
        _ => mcnemar(less as u64, more as u64)?,
    };
    Ok(Comparison {
        baseline: String::new(),
        model: String::new(),
        task: String::new(),
        metric: String::new(),
        filter: String::new(),
        detectable: detectable_difference(difference.normal.standard_error)?,
        difference,
        more,
        equal: pairs.len() - more - less,
        less,
        p_value,
        p_value_holm: p_value,
        higher_is_better: true,
    })
}
