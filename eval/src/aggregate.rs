//! From the scores of documents to one number with its uncertainty.
//!
//! Values and standard errors are those of lm-evaluation-harness 0.4.13 (`api/metrics.py`); intervals are
//! ours: Wilson's for a rate, Student's t for other means, none where no standard error is known. Where
//! several documents share a cluster, intervals count clusters (Miller 2024, arXiv 2411.00640, section 2).

use std::collections::BTreeSet;
use std::thread;

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::bbq::{self, Bias};
use crate::metric_value::MetricValue;
use crate::python_random::PythonRandom;
use crate::statistics::{clustered_mean, clustered_rate, estimate, wilson};

/// How the scores of documents become one number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Aggregation {
    /// The mean.
    #[default]
    Mean,
    /// The mean over the numbers of all documents, without a standard error: they come in clusters.
    MeanOfAll,
    /// `exp(-mean)`.
    Perplexity,
    /// `exp(-Σ total / Σ weight)`.
    WeightedPerplexity,
    /// `-Σ total / Σ weight / ln 2`.
    BitsPerByte,
    /// BBQ: the accuracy in contexts of one kind.
    BiasAccuracy {
        /// Whether these contexts say the answer.
        disambiguated: bool,
    },
    /// BBQ: the bias score in contexts of one kind.
    BiasScore {
        /// Whether these contexts say the answer.
        disambiguated: bool,
    },
}

/// One number for a task.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Aggregated {
    /// The value. NaN where no document counts, such as the accuracy of BBQ in contexts that a task does not
    /// have; JSON holds it as `null`.
    #[serde(with = "crate::nan_as_null")]
    pub value: f64,
    /// Its standard error, where one is defined.
    pub standard_error: Option<f64>,
    /// The ends of the 95 % interval, where both are finite.
    pub interval: Option<(f64, f64)>,
}

/// The draws of a bootstrap of lm-evaluation-harness.
pub const BOOTSTRAP_ITERATIONS: usize = 100_000;
/// Draws with the same seed.
const CHUNK: usize = 1000;

/// The number for a task. `clusters` names the cluster of each document, where rows are not independent: the
/// interval then allows for it, and the standard error stays that of lm-evaluation-harness.
pub fn aggregate(
    aggregation: Aggregation,
    values: &[&MetricValue],
    clusters: Option<&[&str]>,
) -> Result<Aggregated, Error> {
    if values.is_empty() {
        return Err(Error::TooFew { what: "a score", needed: 1, got: 0 });
    }
    let numbers: Vec<f64> = values.iter().flat_map(|value| numbers(value)).collect();
    let alone = |value| Aggregated { value, standard_error: None, interval: None };
    let found = match aggregation {
        Aggregation::Mean => mean(&numbers, clusters),
        Aggregation::MeanOfAll => Ok(alone(numbers.iter().sum::<f64>() / numbers.len() as f64)),
        Aggregation::Perplexity => {
            let error = bootstrap_error(&numbers, BOOTSTRAP_ITERATIONS);
            let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
            // The interval is that of the mean, carried through exp.
            let interval = estimate(&numbers).ok().and_then(|mean| mean.interval());
            let interval = interval.map(|(low, high)| ((-high).exp(), (-low).exp()));
            Ok(Aggregated { value: (-mean).exp(), standard_error: error, interval })
        }
        Aggregation::WeightedPerplexity => Ok(alone((-ratio(values)).exp())),
        Aggregation::BiasAccuracy { disambiguated } => {
            Ok(alone(bbq::accuracy(&biases(values), disambiguated)))
        }
        Aggregation::BiasScore { disambiguated } => Ok(alone(bbq::score(&biases(values), disambiguated))),
        Aggregation::BitsPerByte => Ok(alone(-ratio(values) / std::f64::consts::LN_2)),
    }?;
    Ok(Aggregated {
        standard_error: found.standard_error.filter(|error| error.is_finite()),
        interval: found.interval.filter(|(low, high)| low.is_finite() && high.is_finite()),
        ..found
    })
}

/// The numbers of a value.
pub(crate) fn numbers(value: &MetricValue) -> Vec<f64> {
    match value {
        MetricValue::Number(number) => vec![*number],
        MetricValue::Weighted { total, weight } => vec![total / weight],
        MetricValue::Several(numbers) => numbers.clone(),
        MetricValue::Bias(bias) => vec![bias.correct],
    }
}

fn biases(values: &[&MetricValue]) -> Vec<Bias> {
    let bias = |value: &&MetricValue| match value {
        MetricValue::Bias(bias) => Some(*bias),
        _ => None,
    };
    values.iter().filter_map(bias).collect()
}

fn ratio(values: &[&MetricValue]) -> f64 {
    let parts = values.iter().map(|value| match value {
        MetricValue::Weighted { total, weight } => (*total, *weight),
        other => (numbers(other).iter().sum(), 1.0),
    });
    let (total, weight) = parts.fold((0.0, 0.0), |sum, part| (sum.0 + part.0, sum.1 + part.1));
    total / weight
}

fn mean(numbers: &[f64], clusters: Option<&[&str]>) -> Result<Aggregated, Error> {
    let n = numbers.len();
    let value = numbers.iter().sum::<f64>() / n as f64;
    if n < 2 || !value.is_finite() {
        return Ok(Aggregated { value, standard_error: None, interval: None });
    }
    let standard = estimate(numbers)?;
    let is_rate = numbers.iter().all(|&number| number == 0.0 || number == 1.0);
    let shared = clusters.filter(|clusters| clusters.iter().collect::<BTreeSet<_>>().len() < clusters.len());
    let interval = match shared {
        Some(clusters) => clustered_interval(numbers, clusters, is_rate)?,
        None if is_rate => {
            let hits = numbers.iter().filter(|&&number| number == 1.0).count();
            let rate = wilson(hits as u64, n as u64)?;
            Some((rate.low, rate.high))
        }
        None => standard.interval(),
    };
    Ok(Aggregated { value, standard_error: Some(standard.standard_error), interval })
}

/// The interval of a mean over documents in clusters. A single cluster says nothing about others.
fn clustered_interval(
    numbers: &[f64],
    clusters: &[&str],
    is_rate: bool,
) -> Result<Option<(f64, f64)>, Error> {
    let found = if is_rate { clustered_rate(numbers, clusters) } else { clustered_mean(numbers, clusters) };
    match found {
        Ok(found) => Ok(found.interval()),
        Err(Error::TooFewClusters { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The standard error of `exp(-mean)` by the bootstrap of lm-evaluation-harness: chunks of a thousand draws,
/// each with Python's generator seeded by the number of the chunk. `None` for a single value.
pub fn bootstrap_error(values: &[f64], iterations: usize) -> Option<f64> {
    if values.len() < 2 || iterations < 2 {
        return None;
    }
    let chunk = CHUNK.min(iterations);
    let chunks = iterations / chunk;
    let draws = |seed: usize| -> Vec<f64> {
        let mut random = PythonRandom::new(seed as u64);
        let one = |_| {
            let total: f64 = random.choices(values.len(), values.len()).iter().map(|&at| values[at]).sum();
            (-total / values.len() as f64).exp()
        };
        (0..chunk).map(one).collect()
    };

    // Chunks are independent, so the threads of the machine share them. Their order stays that of the seeds.
    let threads = thread::available_parallelism().map_or(1, usize::from).min(chunks);
    let mut by_seed: Vec<(usize, Vec<f64>)> = thread::scope(|scope| {
        let draws = &draws;
        let share = |first: usize| {
            move || (first..chunks).step_by(threads).map(|seed| (seed, draws(seed))).collect::<Vec<_>>()
        };
        let running: Vec<_> = (0..threads).map(|first| scope.spawn(share(first))).collect();
        running.into_iter().flat_map(|thread| thread.join().expect("a draw does not panic")).collect()
    });
    by_seed.sort_by_key(|(seed, _)| *seed);
    let replicates: Vec<f64> = by_seed.into_iter().flat_map(|(_, values)| values).collect();
    let mean = replicates.iter().sum::<f64>() / replicates.len() as f64;
    let squares: f64 = replicates.iter().map(|replicate| (replicate - mean).powi(2)).sum();
    Some((squares / (replicates.len() - 1) as f64).sqrt())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::Value;

    use super::*;

    #[test]
    fn the_bootstrap_is_that_of_the_harness() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/lm_eval/rng.json");
        let golden: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let mut checked = 0;
        for case in golden["bootstrap"].as_array().unwrap() {
            if case["metric"] != "perplexity" {
                continue;
            }
            let values: Vec<f64> = serde_json::from_value(case["xs"].clone()).unwrap();
            let iterations = case["iters"].as_u64().unwrap() as usize;
            let (got, wanted) =
                (bootstrap_error(&values, iterations).unwrap(), case["stderr"].as_f64().unwrap());
            assert!((got - wanted).abs() <= 1e-9 * wanted, "{iterations}: {got} and {wanted}");
            checked += 1;
        }
        assert!(checked >= 3);
    }

    #[test]
    fn rolling_values_are_those_of_the_harness() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/lm_eval/rng.json");
        let golden: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let items: Vec<(f64, f64)> = serde_json::from_value(golden["rolling"]["items"].clone()).unwrap();
        let values: Vec<MetricValue> =
            items.iter().map(|&(total, weight)| MetricValue::Weighted { total, weight }).collect();
        let values: Vec<&MetricValue> = values.iter().collect();
        let value = |aggregation| aggregate(aggregation, &values, None).unwrap().value;
        let close = |got: f64, wanted: &Value| (got / wanted.as_f64().unwrap() - 1.0).abs() < 1e-12;
        assert!(close(value(Aggregation::WeightedPerplexity), &golden["rolling"]["weighted_perplexity"]));
        assert!(close(value(Aggregation::BitsPerByte), &golden["rolling"]["bits_per_byte"]));
    }

    #[test]
    fn intervals_of_rates_in_clusters_count_clusters_and_stay_within_0_and_1() {
        let of = |numbers: &[f64], clusters: &[&str]| {
            let values: Vec<MetricValue> =
                numbers.iter().map(|&number| MetricValue::Number(number)).collect();
            let values: Vec<&MetricValue> = values.iter().collect();
            aggregate(Aggregation::Mean, &values, Some(clusters)).unwrap().interval
        };
        let clusters = ["a", "a", "b", "b", "c", "c"];
        // All right: Wilson's interval of 3 of 3, by hand 1 / (1 + 1.959964² / 3) = 0.438503.
        let (low, high) = of(&[1.0; 6], &clusters).unwrap();
        assert!((low - 0.438_503).abs() < 1e-6 && high == 1.0, "{low}");
        // One cluster wrong: Student's t with 2 degrees of freedom would reach beyond 1.
        let (low, high) = of(&[1.0, 1.0, 1.0, 1.0, 0.0, 0.0], &clusters).unwrap();
        assert!(0.0 < low && low < 2.0 / 3.0 && 2.0 / 3.0 < high && high < 1.0, "{low} {high}");
        // A cluster for each document changes nothing, and a single cluster has no interval.
        let single = of(&[1.0, 0.0, 1.0], &["a", "b", "c"]).unwrap();
        let wilson = wilson(2, 3).unwrap();
        assert_eq!(single, (wilson.low, wilson.high));
        assert_eq!(of(&[1.0, 0.0], &["a", "a"]), None);
    }

    #[test]
    fn a_single_value_and_nan_have_no_error() {
        let one = MetricValue::Number(1.0);
        let nan = MetricValue::Number(f64::NAN);
        let single = aggregate(Aggregation::Mean, &[&one], None).unwrap();
        assert_eq!((single.value, single.standard_error), (1.0, None));
        assert!(aggregate(Aggregation::Mean, &[&one, &nan], None).unwrap().value.is_nan());
        assert!(aggregate(Aggregation::Mean, &[], None).is_err());
    }
}
