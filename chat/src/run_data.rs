//! One run as a whole, read once: its numbers, samples, settings and checkpoints.
//!
//! The reading itself, with its distrust, is in [`crate::run_reader`].

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use gemini::checkpoint;
use tui::dashboard::{Event, RunFacts, Sample, Series, THROUGHPUT};

use crate::config::{self, ConfigError, Difference, RunConfig};
use crate::folder::CONFIGURATION;
use crate::run_reader::{RunReader, read_small};
use crate::stage;

/// A run.
pub(crate) struct RunData {
    /// Its folder.
    pub(crate) out: PathBuf,
    /// What is known of it.
    pub(crate) facts: RunFacts,
    /// Its metrics.
    pub(crate) series: Vec<Series>,
    /// Its samples.
    pub(crate) samples: Vec<Sample>,
    /// What is wrong with its files.
    pub(crate) warnings: Vec<String>,
    /// Its settings by dotted key.
    pub(crate) settings: BTreeMap<String, String>,
}

impl RunData {
    /// Reads the run in `out`.
    pub(crate) fn read(out: &Path) -> Result<Self, ConfigError> {
        let mut reader = RunReader::open(out)?;
        let (mut series, mut samples, mut warnings) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            let (events, is_more) = reader.poll();
            for event in events {
                match event {
                    Event::Row { step, numbers } => add_row(&mut series, step, numbers),
                    Event::Sample(sample) => samples.push(sample),
                    Event::Message(text) if text.starts_with("warning: ") => warnings.push(text),
                    _ => {}
                }
            }
            if !is_more {
                break;
            }
        }
        let text = read_small(&out.join(CONFIGURATION)).unwrap_or_default();
        let settings = config::flatten_toml(&text).unwrap_or_else(|error| {
            warnings.push(format!("warning: {}: {error}", out.join(CONFIGURATION).display()));
            BTreeMap::new()
        });
        Ok(Self { out: out.to_owned(), facts: reader.run().clone(), series, samples, warnings, settings })
    }

    /// The metric called `name`.
    pub(crate) fn find(&self, name: &str) -> Option<&Series> {
        self.series.iter().find(|series| series.name == name)
    }

    /// The number of the newest step with a row.
    pub(crate) fn step(&self) -> u64 {
        let newest = self.series.iter().filter_map(|series| series.points.last()).map(|point| point.0);
        newest.fold(0.0, f64::max) as u64
    }

    /// The metric that tells most about the run: the reward of PPO, the loss of the other stages.
    pub(crate) fn main_metric(&self) -> Option<&Series> {
        ["objective/scores", "loss"].into_iter().find_map(|name| self.find(name))
    }

    /// The seconds of the logged steps together.
    pub(crate) fn seconds(&self) -> f64 {
        let seconds = self.find("seconds").map(|series| series.points.as_slice()).unwrap_or_default();
        seconds.iter().map(|point| point.1).filter(|seconds| seconds.is_finite()).sum()
    }

    /// The names of its checkpoints and of the finished model, in order.
    pub(crate) fn checkpoints(&self) -> Vec<String> {
        let checkpoints = checkpoint::list(&self.out.join("checkpoints")).unwrap_or_default();
        let mut names: Vec<String> = checkpoints.iter().map(|(step, _)| format!("step-{step}")).collect();
        if self.out.join("final").exists() {
            names.push("final".to_owned());
        }
        names
    }

    /// The settings that differ from the defaults of the stage: key, default, value.
    pub(crate) fn changed_settings(&self) -> Vec<Difference> {
        let defaults = stage::find(&self.facts.stage).and_then(|stage| {
            let text = RunConfig::default().to_toml(&stage.schema).ok()?;
            config::flatten_toml(&text).ok()
        });
        config::flat_differences(&defaults.unwrap_or_default(), &self.settings)
    }
}

fn add_row(list: &mut Vec<Series>, step: u64, numbers: Vec<(String, f64)>) {
    let get = |name: &str| numbers.iter().find(|(other, _)| other == name).map(|&(_, value)| value);
    let throughput = get("tokens").zip(get("seconds")).filter(|(_, seconds)| *seconds > 0.0);
    let throughput = throughput.map(|(tokens, seconds)| (THROUGHPUT.to_owned(), tokens / seconds));
    for (name, value) in numbers.into_iter().chain(throughput) {
        match list.iter_mut().find(|series| series.name == name) {
            Some(series) => series.push(step, value),
            None => list.push(Series::new(name, step, value)),
        }
    }
}

/// The lowest and the highest finite value.
pub(crate) fn extremes(series: &Series) -> Option<(f64, f64)> {
    let values = series.points.iter().map(|point| point.1).filter(|value| value.is_finite());
    values.fold(None, |found, value| {
        let (low, high): (f64, f64) = found.unwrap_or((value, value));
        Some((low.min(value), high.max(value)))
    })
}

/// The bytes of all files in a folder. Links are not followed.
pub(crate) fn folder_bytes(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes = |entry: fs::DirEntry| match entry.metadata() {
        Ok(found) if found.is_dir() => folder_bytes(&entry.path()),
        Ok(found) => found.len(),
        Err(_) => 0,
    };
    entries.map(bytes).sum()
}

/// When the run last wrote a row, in seconds since 1970.
pub(crate) fn modified_seconds(out: &Path) -> Option<u64> {
    let modified = fs::metadata(out.join("metrics.jsonl")).ok()?.modified().ok()?;
    Some(modified.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs())
}
