//! What a report of runs holds, and the tables that both of its readable forms show.

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use crate::Error;
use crate::page::Table;
use crate::page::number::{metric, percent, percent_interval, seconds};
use crate::results::Results;
use crate::statistics::Estimate;

/// A report of runs. Its files leave out the parts that are empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// The title of the report.
    pub title: String,
    /// The command that makes the report again.
    pub command: String,
    /// The settings that hold for all runs, by name.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub settings: Map<String, Value>,
    /// The machine that trained the models, as named properties.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub machine: Map<String, Value>,
    /// What the models answered to tasks, with paired differences.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub benchmarks: Option<Benchmarks>,
    /// The reward model on held-out pairs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reward_model: Option<RewardModel>,
    /// Wall-clock seconds of the parts of a pipeline, by their names, in the order in which they ran.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "as_object")]
    pub seconds: Vec<(&'static str, f64)>,
    /// The peak resident set size of the process, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_rss_bytes: Option<u64>,
    /// The runs.
    pub runs: Vec<RunPart>,
    /// The curves of each metric.
    pub curves: Vec<Overlay>,
}

/// An evaluation on tasks, and where its own report is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Benchmarks {
    /// The path of its report, from the folder of this one.
    pub report: String,
    /// The results.
    pub results: Results,
}

/// How often the reward model prefers the chosen reply on held-out pairs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RewardModel {
    /// The share of pairs where the chosen reply has the strictly higher score.
    pub accuracy: f64,
    /// The lower end of the 95 % interval.
    pub low: f64,
    /// The upper end of the 95 % interval.
    pub high: f64,
    /// The number of pairs.
    pub n: u64,
}

impl From<Estimate> for RewardModel {
    fn from(estimate: Estimate) -> Self {
        let Estimate { mean: accuracy, low, high, n, .. } = estimate;
        Self { accuracy, low, high, n: n as u64 }
    }
}

impl RewardModel {
    /// The accuracy with its interval, as a sentence without an end.
    pub(super) fn text(&self) -> String {
        let Self { accuracy, low, high, n } = *self;
        let interval = percent_interval(low, high);
        format!("{} ({interval}) of {n} held-out pairs ranked right", percent(accuracy))
    }
}

/// One run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RunPart {
    /// The name of the run, usually its folder.
    pub name: String,
    /// The stage.
    pub stage: String,
    /// Whether the run has finished, in words.
    pub status: String,
    /// The number of complete steps.
    pub steps: u64,
    /// The settings that differ from the defaults: key, default and value.
    pub settings: Vec<(String, String, String)>,
    /// The metrics of the run.
    pub numbers: Vec<MetricSummary>,
    /// Some of the samples of the run.
    pub samples: Vec<RunSample>,
}

/// A metric of a run in four numbers. A number that is not finite is `null` in JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MetricSummary {
    /// The name of the metric.
    pub metric: String,
    /// The number of values.
    pub rows: usize,
    /// The first value.
    pub first: f64,
    /// The newest value.
    pub newest: f64,
    /// The lowest finite value.
    pub lowest: f64,
    /// The highest finite value.
    pub highest: f64,
}

/// A reply of the model under training.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RunSample {
    /// The step.
    pub step: u64,
    /// The prompt.
    pub prompt: String,
    /// The reply.
    pub reply: String,
    /// The score of the reply.
    pub score: f64,
}

/// The curves of one metric of one stage.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Overlay {
    /// The stage, such as `sft`. The losses of two stages are not the same quantity.
    pub stage: String,
    /// The metric, such as `loss`.
    pub metric: String,
    /// The name of each run that has the metric, and its pairs of step and value, by ascending step. Values
    /// that are not finite become gaps in the chart and `null` in JSON.
    pub curves: Vec<(String, Vec<(f64, f64)>)>,
}

fn as_object<S: Serializer>(parts: &[(&str, f64)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(parts.iter().copied())
}

impl Report {
    /// Checks that the durations are finite, and that the accuracy lies within its interval.
    pub(super) fn check(&self) -> Result<(), Error> {
        if let Some(RewardModel { accuracy, low, high, .. }) = self.reward_model {
            check_interval("reward_model", accuracy, low, high)?;
        }
        self.seconds.iter().try_for_each(|(part, value)| check_finite(&format!("seconds of {part}"), *value))
    }

    /// The time of each part of the pipeline, and of all of them.
    pub(super) fn times(&self) -> Vec<(&'static str, f64, String)> {
        let mut parts = self.seconds.clone();
        if !parts.is_empty() {
            parts.push(("total", parts.iter().map(|part| part.1).sum()));
        }
        parts.into_iter().map(|(part, value)| (part, value, seconds(value))).collect()
    }
}

fn check_interval(field: &str, mean: f64, low: f64, high: f64) -> Result<(), Error> {
    for value in [mean, low, high] {
        check_finite(field, value)?;
    }
    // The mean may lie on an end of its interval, up to rounding in the last place.
    let slack = 1e-9 * (1.0 + mean.abs());
    if low - slack <= mean && mean <= high + slack {
        return Ok(());
    }
    Err(Error::Interval { field: field.to_owned(), mean, low, high })
}

fn check_finite(field: &str, got: f64) -> Result<(), Error> {
    if got.is_finite() { Ok(()) } else { Err(Error::NotFinite { field: field.to_owned(), got }) }
}

impl RunPart {
    pub(super) fn settings(&self) -> Table {
        Table::of(
            "Settings that differ from the defaults",
            3,
            &self.settings,
            &[
                ("setting", &|(key, _, _)| key.clone()),
                ("value", &|(_, _, value)| value.clone()),
                ("default", &|(_, default, _)| default.clone()),
            ],
        )
    }

    pub(super) fn numbers(&self) -> Table {
        Table::of(
            "Metrics",
            1,
            &self.numbers,
            &[
                ("metric", &|of| of.metric.clone()),
                ("rows", &|of| of.rows.to_string()),
                ("first", &|of| metric(of.first)),
                ("newest", &|of| metric(of.newest)),
                ("lowest", &|of| metric(of.lowest)),
                ("highest", &|of| metric(of.highest)),
            ],
        )
    }

    pub(super) fn samples(&self) -> Table {
        Table::of(
            "Samples",
            3,
            &self.samples,
            &[
                ("step", &|sample| sample.step.to_string()),
                ("prompt", &|sample| sample.prompt.clone()),
                ("reply", &|sample| sample.reply.clone()),
                ("score", &|sample| metric(sample.score)),
            ],
        )
    }
}
