//! One run as a whole, read once: its numbers, samples, settings and checkpoints.
//!
//! The reading itself, with its distrust of every row, is in [`crate::run_reader`]. This file limits what all
//! rows together may bring: the names of metrics, and the number of warnings.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use gemini::checkpoint;
use serde_json::{Map, Value, json};
use text::number::counted;
use text::single_line;
use tui::dashboard::{Event, RunFacts, Sample, Series, THROUGHPUT};

use crate::config::{self, ConfigError, Difference, RunConfig};
use crate::console::print_stderr;
use crate::folder::CONFIGURATION;
use crate::run_reader::{RunReader, read_small};
use crate::stage;

/// The longest name of a metric, in characters.
const LONGEST_NAME: usize = 200;

/// The most metrics of a run. A stage has less than a hundred.
const MOST_METRICS: usize = 1000;

/// The most warnings that are kept, and the most that are printed.
const MOST_WARNINGS: usize = 100;
const PRINTED_WARNINGS: usize = 10;

/// A run.
pub(crate) struct RunData {
    /// Its folder.
    pub(crate) out: PathBuf,
    /// What is known of it.
    pub(crate) facts: RunFacts,
    /// Its metrics.
    pub(crate) series: Vec<Series>,
    pub(crate) samples: Vec<Sample>,
    /// What is wrong with its files: the first warnings.
    pub(crate) warnings: Vec<String>,
    /// The number of further warnings.
    pub(crate) more_warnings: usize,
    /// Its settings by dotted key.
    pub(crate) settings: BTreeMap<String, String>,
}

impl RunData {
    /// Reads the run in `out`.
    pub(crate) fn read(out: &Path) -> Result<Self, ConfigError> {
        let mut reader = RunReader::open(out)?;
        let mut metrics = Metrics::default();
        let (mut samples, mut warnings, mut more_warnings) = (Vec::new(), Vec::new(), 0);
        loop {
            let (events, is_more) = reader.poll();
            for event in events {
                match event {
                    Event::Row { step, numbers } => metrics.add_row(step, numbers),
                    Event::Sample(sample) => samples.push(sample),
                    // A damaged file has a problem in every line.
                    Event::Problem(text) => {
                        if warnings.len() < MOST_WARNINGS {
                            warnings.push(text);
                        } else {
                            more_warnings += 1;
                        }
                    }
                    _ => {}
                }
            }
            if !is_more {
                break;
            }
        }
        // It comes first, because commands print the first warnings only.
        warnings.splice(..0, metrics.warning());

        let text = read_small(&out.join(CONFIGURATION)).unwrap_or_default();
        let settings = config::flatten_toml(&text).unwrap_or_else(|error| {
            warnings.push(format!("warning: {}: {error}", out.join(CONFIGURATION).display()));
            BTreeMap::new()
        });

        let (out, facts) = (out.to_owned(), reader.run().clone());
        Ok(Self { out, facts, series: metrics.series, samples, warnings, more_warnings, settings })
    }

    /// Prints what is wrong with the files of the run: the first warnings, and how many more there are.
    pub(crate) fn print_warnings(&self) {
        self.warnings.iter().take(PRINTED_WARNINGS).for_each(|warning| print_stderr(warning));
        let more = self.warnings.len().saturating_sub(PRINTED_WARNINGS) + self.more_warnings;
        if more > 0 {
            print_stderr(&format!("warning: {}: {more} more warnings", self.out.display()));
        }
    }

    /// What every list of runs says of the run, as the beginning of a JSON object.
    pub(crate) fn json(&self) -> Map<String, Value> {
        let facts = [
            ("run", json!(self.out)),
            ("stage", json!(self.facts.stage)),
            ("status", json!(self.facts.status.text())),
            ("step", json!(self.step())),
            ("total_steps", json!(self.facts.total_steps)),
        ];
        facts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
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
            let text = RunConfig::default_of(&stage.schema).to_toml(&stage.schema).ok()?;
            config::flatten_toml(&text).ok()
        });
        config::flat_differences(&defaults.unwrap_or_default(), &self.settings)
    }
}

/// The metrics of a run while its rows are read.
#[derive(Default)]
struct Metrics {
    series: Vec<Series>,
    /// The index of each metric in `series`, by its name.
    known: HashMap<String, usize>,
    /// The number of values that were left out, because of the name of their metric, and beyond
    /// [`MOST_METRICS`].
    unnamed: usize,
    beyond: usize,
}

impl Metrics {
    fn add_row(&mut self, step: u64, numbers: Vec<(String, f64)>) {
        let get = |name: &str| numbers.iter().find(|(other, _)| other == name).map(|&(_, value)| value);
        let throughput = get("tokens").zip(get("seconds")).filter(|(_, seconds)| *seconds > 0.0);
        let throughput = throughput.map(|(tokens, seconds)| (THROUGHPUT.to_owned(), tokens / seconds));
        for (name, value) in numbers.into_iter().chain(throughput) {
            match self.known.get(&name) {
                Some(&index) => self.series[index].push(step, value),
                None if !is_name(&name) => self.unnamed += 1,
                None if self.series.len() == MOST_METRICS => self.beyond += 1,
                None => {
                    self.known.insert(name.clone(), self.series.len());
                    self.series.push(Series::new(name, step, value));
                }
            }
        }
    }

    /// What was left out.
    fn warning(&self) -> Option<String> {
        let Self { unnamed, beyond, .. } = self;
        let reasons = [
            (
                unnamed,
                format!(
                    "whose metric has a name beyond {LONGEST_NAME} characters or with control characters"
                ),
            ),
            (beyond, format!("of metrics beyond the first {MOST_METRICS}")),
        ];
        let reasons: Vec<String> = reasons
            .into_iter()
            .filter(|(values, _)| **values > 0)
            .map(|(values, reason)| format!("{} {reason}", counted(*values as u64, "value")))
            .collect();
        (!reasons.is_empty()).then(|| format!("warning: metrics.jsonl: left out: {}", reasons.join("; ")))
    }
}

/// Whether a metric may be called so. Anything else would fill the screen, or look like another name on it.
fn is_name(name: &str) -> bool {
    name.chars().nth(LONGEST_NAME).is_none() && single_line(name) == name
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(rows: &[String]) -> RunData {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("metrics.jsonl"), rows.concat()).unwrap();
        RunData::read(folder.path()).unwrap()
    }

    fn names(run: &RunData) -> Vec<&str> {
        run.series.iter().map(|series| series.name.as_str()).collect()
    }

    #[test]
    fn a_metric_without_a_decent_name_is_left_out_and_counted() {
        let row = |step: u32, name: &str| serde_json::json!({"step": step, name: 1.5}).to_string() + "\n";
        let (longest, too_long) = ("é".repeat(200), "é".repeat(201));
        let run = read(&[
            row(1, &longest),
            row(2, &too_long),
            row(3, "loss\u{1b}[2J"),
            row(4, "lo\u{202e}ss"),
            row(5, "two\nlines"),
            row(6, "loss"),
        ]);
        assert_eq!(names(&run), [longest.as_str(), "loss"]);
        assert_eq!(run.step(), 6);
        let expected = "warning: metrics.jsonl: left out: 4 values whose metric has a name beyond 200 characters or with \
                        control characters";
        assert_eq!(run.warnings, [expected]);
    }

    #[test]
    fn the_first_thousand_metrics_are_kept_with_all_their_rows() {
        let row = |step: usize| {
            let more: Vec<String> = (0..600).map(|i| format!("\"{step}-{i}\": {i}")).collect();
            format!("{{\"step\": {step}, \"loss\": {step}, {}}}\n", more.join(", "))
        };
        let run = read(&[row(1), row(2), row(3)]);
        assert_eq!(run.series.len(), 1000);
        assert_eq!(run.find("loss").unwrap().points, [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)]);
        // 1 + 3 x 600 names.
        assert_eq!(
            run.warnings,
            ["warning: metrics.jsonl: left out: 801 values of metrics beyond the first 1000"]
        );
    }

    #[test]
    fn a_damaged_file_has_a_limited_number_of_warnings() {
        let run = read(&vec!["x\n".to_owned(); 5000]);
        assert_eq!((run.warnings.len(), run.more_warnings), (100, 4900));
    }
}
