//! The final report of a pipeline run: exact match of the base model, after SFT and after PPO, the paired
//! gain, the reward model, training curves, time and memory, and replies side by side.
//!
//! [`Report`] is the data. [`write()`] writes it into a folder in three forms: `report.json` for programs
//! (the serde form of [`Report`], without the stages that did not run), `report.md` and `report.html` for
//! people. The HTML page is one file without scripts or network access: inline SVG, light and dark by
//! `prefers-color-scheme`, printable. Replies are untrusted text, so all text is escaped. In addition, the
//! page's content security policy forbids loading anything.
//!
//! This module does not know how the numbers were measured. It rejects impossible numbers: a score that is
//! not finite or that lies outside its own interval.

mod chart;
mod curve;
mod escape;
mod html;
mod layout;
mod markdown;
mod plane;
mod runs;

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Error;
use crate::results::Results;
use crate::statistics::Estimate;
pub(crate) use chart::{IntervalRow, interval_chart};
pub(crate) use escape::{escape_html, escape_markdown, isolated};
pub use html::html;
pub(crate) use html::{head, section};
pub use markdown::markdown;
pub(crate) use plane::{LINE_COLOURS, Line, Plane, histogram};
pub use runs::{MetricSummary, Overlay, RunPart, RunSample, RunsReport, overlay_svg, write_runs};

/// A rate or mean with its 95 % interval and the number of items behind it. Exact match is a fraction between
/// 0 and 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// With greedy decoding (temperature 0).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub greedy: Option<Score>,
    /// With the sampling settings of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampled: Option<Score>,
}

/// One value per model of the run; `None` where the stage did not run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// The models in training order, with the names used in the report.
    fn named(&self) -> [(&'static str, Option<&T>); 3] {
        [("base", self.base.as_ref()), ("SFT", self.sft.as_ref()), ("PPO", self.ppo.as_ref())]
    }
}

/// A mean difference on the same items, with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gain {
    /// Mean of the differences.
    pub mean: f64,
    /// Lower end of the 95 % interval.
    pub low: f64,
    /// Upper end of the 95 % interval.
    pub high: f64,
}

/// How often the reward model prefers the chosen reply on held-out pairs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
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

/// Wall-clock seconds of each stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Seconds {
    /// Preparing data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<f64>,
    /// Training or loading the base model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<f64>,
    /// Supervised fine-tuning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sft: Option<f64>,
    /// Training the reward model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rm: Option<f64>,
    /// PPO.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ppo: Option<f64>,
    /// Evaluation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval: Option<f64>,
}

impl Seconds {
    /// The stages that ran, in order, with their times.
    fn named(&self) -> Vec<(&'static str, f64)> {
        let all = [
            ("data", self.data),
            ("base", self.base),
            ("SFT", self.sft),
            ("reward model", self.rm),
            ("PPO", self.ppo),
            ("evaluation", self.eval),
        ];
        all.into_iter().filter_map(|(name, seconds)| Some((name, seconds?))).collect()
    }
}

/// Scores on one family of tasks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Family {
    /// Name of the family.
    pub name: String,
    /// Scores of each model on it.
    pub exact_match: PerModel<Scores>,
}

/// One training metric of one stage, by step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// Stage, such as `sft`.
    pub stage: String,
    /// Metric, such as `loss`.
    pub metric: String,
    /// Pairs of step and value, by ascending step. Values that are not finite become gaps in the chart and
    /// `null` in JSON.
    #[serde(deserialize_with = "curve::points_with_gaps")]
    pub points: Vec<(f64, f64)>,
}

/// One model's reply to one prompt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// The text as generated.
    pub text: String,
    /// Whether the reply matches the answer.
    #[serde(alias = "right")]
    pub correct: bool,
}

/// One prompt with the reply of each model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Benchmarks {
    /// The path of its report, from the folder of this one.
    pub report: String,
    /// The results.
    pub results: Results,
}

/// All contents of the report of a run. Missing sections are left out of all three files.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
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
    /// Wall-clock time per stage.
    pub seconds: Seconds,
    /// Peak resident set size of the run, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_rss_bytes: Option<u64>,
    /// Scores per family of tasks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub families: Vec<Family>,
    /// The tasks that every model was asked, with paired differences.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub benchmarks: Option<Benchmarks>,
    /// Training curves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub curves: Vec<Curve>,
    /// Replies side by side.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<Sample>,
}

impl Report {
    /// Checks that every number is finite and that every mean lies within its interval.
    pub fn check(&self) -> Result<(), Error> {
        check_scores("exact_match", &self.exact_match)?;
        for family in &self.families {
            check_scores(&format!("families.{}", family.name), &family.exact_match)?;
        }
        for (name, gain) in
            [("paired_gain", self.paired_gain), ("paired_gain_greedy", self.paired_gain_greedy)]
        {
            if let Some(Gain { mean, low, high }) = gain {
                check_interval(name, mean, low, high)?;
            }
        }
        if let Some(RewardModel { accuracy, low, high, .. }) = self.reward_model {
            check_interval("reward_model", accuracy, low, high)?;
        }
        let seconds =
            self.seconds.named().into_iter().map(|(name, value)| (format!("seconds of {name}"), value));
        let kl = self.kl.map(|kl| ("kl".to_owned(), kl));
        seconds.chain(kl).try_for_each(|(field, value)| check_finite(&field, value))
    }
}

/// Checks `report` and writes `report.json`, `report.md` and `report.html` into `dir`, which is created if
/// missing.
///
/// Each file is written under a temporary name, synced and renamed, so that a reader never sees a
/// half-written report.
pub fn write(report: &Report, dir: &Path) -> Result<(), Error> {
    report.check()?;
    let mut json = serde_json::to_string_pretty(report)?;
    json.push('\n');
    write_files(dir, [("report.json", json), ("report.md", markdown(report)), ("report.html", html(report))])
}

/// Writes `files` into `dir`, which is created if missing.
fn write_files(dir: &Path, files: [(&str, String); 3]) -> Result<(), Error> {
    fs::create_dir_all(dir).map_err(|source| Error::Write { path: dir.into(), source })?;
    for (name, text) in files {
        write_atomically(dir, name, &text).map_err(|source| Error::Write { path: dir.join(name), source })?;
    }
    Ok(())
}

fn write_atomically(dir: &Path, name: &str, text: &str) -> std::io::Result<()> {
    // The temporary name is new: no existing file is overwritten, and no link is followed. The file is
    // removed unless it is renamed.
    let mut file = tempfile::Builder::new()
        .prefix(&format!(".{name}.{}-", std::process::id()))
        .suffix(".tmp")
        .permissions(fs::Permissions::from_mode(0o666))
        .tempfile_in(dir)?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    file.persist(dir.join(name)).map_err(|error| error.error)?;
    // The new name is on disk only after the directory is synced.
    File::open(dir)?.sync_all()
}

fn check_scores(field: &str, models: &PerModel<Scores>) -> Result<(), Error> {
    for (model, scores) in models.named() {
        let Some(scores) = scores else { continue };
        for (decoding, score) in [("greedy", scores.greedy), ("sampled", scores.sampled)] {
            if let Some(Score { mean, low, high, .. }) = score {
                check_interval(&format!("{field}.{model}.{decoding}"), mean, low, high)?;
            }
        }
    }
    Ok(())
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
