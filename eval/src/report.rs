//! The final report of a pipeline run: exact match of the base model, after SFT and after PPO, the paired
//! gain, the reward model, training curves, time and memory, and replies side by side.
//!
//! [`Report`] is the data. [`files`] makes three forms of it: `report.json` for programs
//! (the serde form of [`Report`], without the stages that did not run), `report.md` and `report.html` for
//! people.
//!
//! This module does not know how the numbers were measured. It rejects impossible numbers: a score that is
//! not finite or that lies outside its own interval.

mod contents;
mod html;
mod markdown;
mod runs;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use crate::Error;
use crate::results::Results;
use crate::statistics::Estimate;
pub use html::html;
pub use markdown::markdown;
pub use runs::{MetricSummary, Overlay, RunPart, RunSample, RunsReport, overlay_svg, run_files};

/// A rate or mean with its 95 % interval and the number of items behind it. Exact match is a fraction between
/// 0 and 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Score {
    /// The estimate.
    pub mean: f64,
    /// Lower end of the 95 % interval.
    pub low: f64,
    /// Upper end of the 95 % interval.
    pub high: f64,
    /// Number of items (prompts, not samples).
    pub n: u64,
}

impl From<Estimate> for Score {
    fn from(estimate: Estimate) -> Self {
        let Estimate { mean, low, high, n, .. } = estimate;
        Self { mean, low, high, n: n as u64 }
    }
}

/// The score of one model, with greedy decoding and with sampling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Scores {
    /// With greedy decoding (temperature 0).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub greedy: Option<Score>,
    /// With the sampling settings of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampled: Option<Score>,
}

impl Scores {
    /// Each score with its decoding.
    fn decodings(&self) -> Vec<(&'static str, Score)> {
        let all = [("greedy", self.greedy), ("sampled", self.sampled)];
        all.into_iter().filter_map(|(decoding, score)| Some((decoding, score?))).collect()
    }

    /// A score for the number of its items, which is that of the other one.
    fn any(&self) -> Option<Score> {
        self.greedy.or(self.sampled)
    }
}

/// The names of the models in the report, in the order of their training.
const MODELS: [&str; 3] = ["base", "SFT", "PPO"];

/// One value per model of the run; `None` where the stage did not run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PerModel<T> {
    /// The model that the run started from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<T>,
    /// After supervised fine-tuning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sft: Option<T>,
    /// After PPO.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ppo: Option<T>,
}

impl<T> PerModel<T> {
    /// The value of a model by its name in [`MODELS`].
    fn get(&self, name: &str) -> Option<&T> {
        let all = [&self.base, &self.sft, &self.ppo];
        MODELS.iter().zip(all).find(|(model, _)| **model == name)?.1.as_ref()
    }

    /// What `make` makes of each value.
    pub fn map<U>(&self, make: impl Fn(&T) -> U) -> PerModel<U> {
        let [base, sft, ppo] = [&self.base, &self.sft, &self.ppo].map(|value| value.as_ref().map(&make));
        PerModel { base, sft, ppo }
    }

    /// The models with a value, by their names in the report.
    pub fn known(&self) -> Vec<(&'static str, &T)> {
        MODELS.into_iter().filter_map(|name| Some((name, self.get(name)?))).collect()
    }
}

impl<T, E> PerModel<Result<T, E>> {
    /// The values, or the first error.
    pub fn transpose(self) -> Result<PerModel<T>, E> {
        let [base, sft, ppo] = [self.base, self.sft, self.ppo].map(Option::transpose);
        Ok(PerModel { base: base?, sft: sft?, ppo: ppo? })
    }
}

/// A mean difference on the same items, with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Gain {
    /// Mean of the differences.
    pub mean: f64,
    /// Lower end of the 95 % interval.
    pub low: f64,
    /// Upper end of the 95 % interval.
    pub high: f64,
}

/// How often the reward model prefers the chosen reply on held-out pairs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RewardModel {
    /// Share of pairs where the chosen reply has the strictly higher score.
    pub accuracy: f64,
    /// Lower end of the 95 % interval.
    pub low: f64,
    /// Upper end of the 95 % interval.
    pub high: f64,
    /// Number of pairs.
    pub n: u64,
}

impl From<Estimate> for RewardModel {
    fn from(estimate: Estimate) -> Self {
        let Estimate { mean: accuracy, low, high, n, .. } = estimate;
        Self { accuracy, low, high, n: n as u64 }
    }
}

/// One training metric of one stage, by step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Curve {
    /// Stage, such as `sft`.
    pub stage: String,
    /// Metric, such as `loss`.
    pub metric: String,
    /// Pairs of step and value, by ascending step. Values that are not finite become gaps in the chart and
    /// `null` in JSON.
    pub points: Vec<(f64, f64)>,
}

/// One model's reply to one prompt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reply {
    /// The text as generated.
    pub text: String,
    /// Whether the reply matches the answer.
    pub correct: bool,
}

/// One prompt with the reply of each model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Sample {
    /// The prompt.
    pub prompt: String,
    /// The expected answer.
    pub answer: String,
    /// Replies of the models.
    #[serde(flatten)]
    pub replies: PerModel<Reply>,
}

/// An evaluation on tasks, and where its own report is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Benchmarks {
    /// The path of its report, from the folder of this one.
    pub report: String,
    /// The results.
    pub results: Results,
}

/// All contents of the report of a run. Missing sections are left out of all three files.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// Title of the report.
    pub title: String,
    /// The command that reproduces the run.
    pub command: String,
    /// The main settings, by name.
    pub settings: Map<String, Value>,
    /// The machine that ran it, as named properties.
    pub machine: Map<String, Value>,
    /// Exact match on the held-out prompts.
    pub exact_match: PerModel<Scores>,
    /// PPO minus SFT on the same prompts, with sampling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paired_gain: Option<Gain>,
    /// PPO minus SFT on the same prompts, with greedy decoding.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paired_gain_greedy: Option<Gain>,
    /// The reward model on held-out pairs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reward_model: Option<RewardModel>,
    /// KL divergence of the policy from the reference model in the last rollout, in nats per reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kl: Option<f64>,
    /// Wall-clock seconds by part: data, base, sft, rm, ppo and eval.
    #[serde(serialize_with = "as_object")]
    pub seconds: Vec<(&'static str, f64)>,
    /// Peak resident set size of the run, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_rss_bytes: Option<u64>,
    /// The tasks that every model was asked, with paired differences.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub benchmarks: Option<Benchmarks>,
    /// Training curves.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub curves: Vec<Curve>,
    /// Replies side by side.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<Sample>,
}

fn as_object<S: Serializer>(parts: &[(&str, f64)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(parts.iter().copied())
}

impl Report {
    /// Checks that every number is finite and that every mean lies within its interval.
    pub fn check(&self) -> Result<(), Error> {
        for (model, scores) in self.exact_match.known() {
            for (decoding, Score { mean, low, high, .. }) in scores.decodings() {
                check_interval(&format!("exact_match.{model}.{decoding}"), mean, low, high)?;
            }
        }
        let gains = [("paired_gain", self.paired_gain), ("paired_gain_greedy", self.paired_gain_greedy)];
        for (name, gain) in gains {
            if let Some(Gain { mean, low, high }) = gain {
                check_interval(name, mean, low, high)?;
            }
        }
        if let Some(RewardModel { accuracy, low, high, .. }) = self.reward_model {
            check_interval("reward_model", accuracy, low, high)?;
        }
        let seconds = self.seconds.iter().map(|(name, value)| (format!("seconds of {name}"), *value));
        let kl = self.kl.map(|kl| ("kl".to_owned(), kl));
        seconds.chain(kl).try_for_each(|(field, value)| check_finite(&field, value))
    }
}

/// The name and the text of each file of a report.
pub type Files = [(&'static str, String); 3];

/// Checks `report` and makes `report.json`, `report.md` and `report.html` of it.
pub fn files(report: &Report) -> Result<Files, Error> {
    report.check()?;
    of_texts(report, markdown(report), html(report))
}

fn of_texts(report: &impl Serialize, text: String, page: String) -> Result<Files, Error> {
    let json = serde_json::to_string_pretty(report)? + "\n";
    Ok([("report.json", json), ("report.md", text), ("report.html", page)])
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

#[cfg(test)]
mod tests;
