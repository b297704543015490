//! Paired comparisons of models on the same documents (Miller 2024, arXiv 2411.00640, sections 2 and 4).
//!
//! Documents of one cluster, such as questions about one passage, are not independent: where a cluster has
//! several of them, standard errors, intervals and p-values count clusters.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::document::Document;
use crate::evaluation::{Evaluation, ModelRun, Sample};
use crate::score::{Metric, MetricValue};
use crate::statistics::{
    PairedCounts, PairedDifference, clustered_difference, detectable_difference, holm, mcnemar, paired_rates,
};

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
    /// The other model minus the baseline, with the interval that belongs to the p-value: that of
    /// [`paired_rates`] if all scores are 0 or 1, and Student's otherwise and over clusters of several
    /// documents.
    pub difference: PairedDifference,
    /// Documents on which the other model scored more.
    pub more: usize,
    /// Documents on which both scored the same.
    pub equal: usize,
    /// Documents on which the other model scored less.
    pub less: usize,
    /// The p-value: exact McNemar for scores of 0 and 1, the paired t test otherwise. With clusters of
    /// several documents it is the t test over clusters. It is below 0.05 exactly if the interval excludes 0.
    pub p_value: f64,
    /// The p-value after Holm's correction for all comparisons of this model.
    pub p_value_holm: f64,
    /// The difference that as many documents show with a probability of 80 %. For scores of 0 and 1 it
    /// supposes at least one document on which the models differ; NaN, in JSON `null`, if other scores differ
    /// by the same number on every document.
    #[serde(with = "crate::nan_as_null")]
    pub detectable: f64,
    /// Whether more is better.
    pub higher_is_better: bool,
}

impl Comparison {
    /// The ends of the 95 % interval of the difference. `None` if scores other than 0 and 1 differ by the
    /// same number on every document: a width of zero is no knowledge about other documents.
    pub fn interval(&self) -> Option<(f64, f64)> {
        self.difference.estimate.interval()
    }
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
                let names = (baseline.name.as_str(), model.name.as_str());
                let samples = (&baseline.samples[index][..], &model.samples[index][..]);
                let clusters = clusters(&prepared.documents.documents);
                of_model.extend(compare(names, &prepared.task.task, samples, &clusters)?);
            }
        }
        correct(&mut of_model)?;
        comparisons.extend(of_model);
    }
    Ok(comparisons)
}

/// The clusters of documents by the index of their row.
fn clusters(documents: &[Document]) -> BTreeMap<usize, &str> {
    documents.iter().filter_map(|document| Some((document.doc_id, document.cluster.as_deref()?))).collect()
}

/// Replaces the p-values by Holm's for as many comparisons.
fn correct(comparisons: &mut [Comparison]) -> Result<(), Error> {
    let p_values: Vec<f64> = comparisons.iter().map(|comparison| comparison.p_value).collect();
    for (comparison, corrected) in comparisons.iter_mut().zip(holm(&p_values)?) {
        comparison.p_value_holm = corrected;
    }
    Ok(())
}

/// Compares the samples of two models on one task, for each metric and filter that has a number for each
/// document. Documents are matched by their index, metrics and filters by their names.
///
/// `clusters` has the cluster of each document by its index; a document without one is a cluster of its own.
/// Documents that one model could not answer are left out. Without two documents in common, and two clusters
/// among them, there is no comparison.
pub fn compare(
    (baseline, model): (&str, &str),
    task: &str,
    (before, after): (&[Sample], &[Sample]),
    clusters: &BTreeMap<usize, &str>,
) -> Result<Vec<Comparison>, Error> {
    let after: BTreeMap<usize, &Sample> = after.iter().map(|sample| (sample.doc_id, sample)).collect();
    let mut found = Vec::new();
    for (filter, metric) in metrics(before) {
        let pair = |sample: &Sample| {
            let after = number(after.get(&sample.doc_id)?, filter, &metric.name)?;
            let before = number(sample, filter, &metric.name)?;
            let own = Unit::Document(sample.doc_id);
            let unit = clusters.get(&sample.doc_id).map_or(own, |cluster| Unit::Cluster(cluster));
            Some(Pair { unit, before, after })
        };
        let pairs: Vec<Pair<'_>> = before.iter().filter_map(pair).collect();
        let units: BTreeSet<Unit<'_>> = pairs.iter().map(|pair| pair.unit).collect();
        if units.len() < 2 {
            continue;
        }
        found.push(Comparison {
            baseline: baseline.to_owned(),
            model: model.to_owned(),
            task: task.to_owned(),
            metric: metric.name.clone(),
            filter: filter.to_owned(),
            higher_is_better: metric.higher_is_better,
            ..compare_pairs(&pairs)?
        });
    }
    Ok(found)
}

/// The filters and metrics that have numbers, in the order of their first appearance.
fn metrics(samples: &[Sample]) -> Vec<(&str, &Metric)> {
    let mut known: BTreeSet<(&str, &str)> = BTreeSet::new();
    let mut found = Vec::new();
    for scored in samples.iter().flat_map(|sample| &sample.scored) {
        let numbers = scored.metrics.iter().filter(|metric| matches!(metric.value, MetricValue::Number(_)));
        for metric in numbers {
            if known.insert((&scored.filter, &metric.name)) {
                found.push((scored.filter.as_str(), metric));
            }
        }
    }
    found
}

/// The number of a metric under a filter, if it is finite.
fn number(sample: &Sample, filter: &str, metric: &str) -> Option<f64> {
    let scored = sample.scored.iter().find(|scored| scored.filter == filter)?;
    match scored.metrics.iter().find(|known| known.name == metric)?.value {
        MetricValue::Number(number) => Some(number).filter(|number| number.is_finite()),
        _ => None,
    }
}

/// What is independent of the rest: the documents of a cluster, or a document that is in none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Unit<'a> {
    Cluster(&'a str),
    Document(usize),
}

/// What both models scored on a document.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Pair<'a> {
    unit: Unit<'a>,
    before: f64,
    after: f64,
}

/// The numbers of a comparison, without its names.
fn compare_pairs(pairs: &[Pair<'_>]) -> Result<Comparison, Error> {
    let (before, after): (Vec<f64>, Vec<f64>) = pairs.iter().map(|pair| (pair.before, pair.after)).unzip();
    let units: Vec<Unit<'_>> = pairs.iter().map(|pair| pair.unit).collect();
    let mut difference = clustered_difference(&before, &after, &units)?;
    let independent = difference.estimate.n;
    let is_clustered = independent < pairs.len();
    let counts = PairedCounts::of(pairs.iter().map(|pair| (pair.before, pair.after)));
    if let Some(counts) = counts {
        let estimate = &mut difference.estimate;
        if is_clustered && estimate.interval().is_some() {
            *estimate = estimate.within(-1.0, 1.0);
        } else {
            (estimate.low, estimate.high) = paired_rates(counts, independent)?;
        }
    }

    let more = pairs.iter().filter(|pair| pair.after > pair.before).count();
    let less = pairs.iter().filter(|pair| pair.after < pair.before).count();
    let p_value = match difference.p_value() {
        _ if counts.is_some() && !is_clustered => mcnemar(less as u64, more as u64)?,
        Ok(p_value) => p_value,
        // Equal differences leave the t test undefined; their common sign then decides.
        Err(Error::EqualDifferences { .. }) => mcnemar(0, independent as u64)?,
        Err(error) => return Err(error),
    };
    Ok(Comparison {
        baseline: String::new(),
        model: String::new(),
        task: String::new(),
        metric: String::new(),
        filter: String::new(),
        detectable: detectable(&difference, counts.is_some())?,
        difference,
        more,
        equal: pairs.len() - more - less,
        less,
        p_value,
        p_value_holm: p_value,
        higher_is_better: true,
    })
}

/// What the comparison can detect. Where all differences are equal their spread says nothing: rates then get
/// what a single differing item among n would give, whose standard error is exactly 1/n.
fn detectable(difference: &PairedDifference, is_rate: bool) -> Result<f64, Error> {
    if difference.varies() {
        detectable_difference(difference.estimate.standard_error)
    } else if is_rate {
        detectable_difference(1.0 / difference.estimate.n as f64)
    } else {
        Ok(f64::NAN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aggregate::Aggregation;
    use crate::score::Scored;

    fn metric(name: &str, value: f64) -> Metric {
        Metric {
            name: name.to_owned(),
            value: MetricValue::Number(value),
            aggregation: Aggregation::Mean,
            higher_is_better: true,
        }
    }

    fn scored(filter: &str, metrics: Vec<Metric>) -> Scored {
        let (filter, answer, executions) = (filter.to_owned(), String::new(), Vec::new());
        Scored { filter, answer, unparsed: false, correct: None, metrics, executions }
    }

    fn sample(doc_id: usize, scored: Vec<Scored>) -> Sample {
        Sample { doc_id, responses: Vec::new(), scored, problem: None }
    }

    /// A metric `acc` of documents from 0.
    fn samples(values: &[f64]) -> Vec<Sample> {
        let of = |(doc_id, &value)| sample(doc_id, vec![scored("none", vec![metric("acc", value)])]);
        values.iter().enumerate().map(of).collect()
    }

    fn compared(before: &[f64], after: &[f64], clusters: &[&'static str]) -> Vec<Comparison> {
        let clusters = clusters.iter().copied().enumerate().collect();
        compare(("a", "b"), "t", (&samples(before), &samples(after)), &clusters).unwrap()
    }

    fn only(mut comparisons: Vec<Comparison>) -> Comparison {
        assert_eq!(comparisons.len(), 1);
        comparisons.remove(0)
    }

    #[test]
    fn documents_metrics_and_filters_are_matched_by_their_names() {
        // The second model has its filters, metrics and documents in another order, and fewer of them.
        let before: Vec<Sample> = [0.0, 1.0, 0.0]
            .into_iter()
            .enumerate()
            .map(|(doc_id, value)| {
                let (strict, loose) = (vec![metric("acc", value)], vec![metric("acc", 1.0)]);
                let strict = strict.into_iter().chain([metric("f1", 0.5)]).collect();
                sample(doc_id, vec![scored("strict", strict), scored("loose", loose)])
            })
            .collect();
        let after: Vec<Sample> = [2, 0, 1, 7]
            .into_iter()
            .map(|doc_id| {
                let strict = vec![metric("f1", 0.25 * doc_id as f64), metric("acc", 1.0)];
                let strict = if doc_id == 1 { strict[1..].to_vec() } else { strict };
                sample(doc_id, vec![scored("loose", vec![metric("acc", 0.0)]), scored("strict", strict)])
            })
            .collect();
        let found = compare(("a", "b"), "t", (&before, &after), &BTreeMap::new()).unwrap();
        let means: Vec<(&str, &str, f64, usize)> = found
            .iter()
            .map(|one| {
                let documents = one.more + one.equal + one.less;
                (one.filter.as_str(), one.metric.as_str(), one.difference.estimate.mean, documents)
            })
            .collect();
        // By hand: acc 1 - 0, 1 - 1, 1 - 0; f1 0 - 0.5 and 0.5 - 0.5, document 1 has none; loose 0 - 1.
        let wanted = [("strict", "acc", 2.0 / 3.0, 3), ("strict", "f1", -0.25, 2), ("loose", "acc", -1.0, 3)];
        assert_eq!(means, wanted);
    }

    #[test]
    fn documents_of_one_cluster_count_once() {
        let (before, after) = ([0.0, 0.0, 1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]);
        let clustered = only(compared(&before, &after, &["a", "a", "b", "b", "c", "c"]));
        // The numbers are those that the statistics work by hand.
        let error = (157.0_f64 / 1080.0).sqrt();
        assert!((clustered.difference.estimate.standard_error - error).abs() < 1e-12);
        assert!((clustered.detectable - 2.801_585_218 * error).abs() < 1e-8);
        assert!((clustered.p_value - 0.704_69).abs() < 1e-5, "{}", clustered.p_value);
        assert_eq!((clustered.difference.estimate.low, clustered.difference.estimate.high), (-1.0, 1.0));
        assert_eq!((clustered.more, clustered.equal, clustered.less), (2, 3, 1));
        // Exact McNemar without clusters, and with a cluster for each document: 2 of 3, so 1.
        let single = only(compared(&before, &after, &[]));
        assert_eq!((single.p_value, single.difference.estimate.n), (1.0, 6));
        assert_eq!(only(compared(&before, &after, &["a", "b", "c", "d", "e", "f"])), single);
        // One cluster alone says nothing.
        assert_eq!(compared(&before, &after, &["a"; 6]), []);
    }

    #[test]
    fn models_that_agree_everywhere_are_not_proven_equal() {
        let right = [1.0, 0.0, 1.0, 0.0];
        let same = only(compared(&right, &right, &[]));
        // By hand: Wilson's interval of 0 disagreements of 4 ends at 3.841459 / (4 + 3.841459) = 0.489891.
        let (low, high) = same.interval().unwrap();
        assert!((high - 0.489_891).abs() < 1e-6 && low == -high, "{low} {high}");
        assert!((same.detectable - 2.801_585_218 / 4.0).abs() < 1e-8);
        assert_eq!(same.p_value, 1.0);
        // Two clusters of two are two items.
        let clustered = only(compared(&right, &right, &["a", "a", "b", "b"]));
        assert!(clustered.interval().unwrap().1 > high && clustered.detectable > same.detectable);

        // Other scores have no interval, and null stands for what cannot be detected.
        let partial = only(compared(&[0.5, 0.25, 0.125], &[0.5, 0.25, 0.125], &[]));
        assert_eq!((partial.interval(), partial.p_value), (None, 1.0));
        let text = serde_json::to_string(&partial).unwrap();
        assert!(text.contains(r#""detectable":null"#), "{text}");
        assert!(serde_json::from_str::<Comparison>(&text).unwrap().detectable.is_nan());
        // Better by the same on each of three documents: the sign test, 2 / 2³.
        assert_eq!(only(compared(&[0.5, 0.25, 0.125], &[0.75, 0.5, 0.375], &[])).p_value, 0.25);
    }
}
