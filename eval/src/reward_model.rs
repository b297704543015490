//! The report of a reward model: how often it prefers the better reply, how far apart its scores are, how
//! well they are calibrated, whether they follow length, and what picking or training by them gains.
//!
//! [`data`] reads the rows. Somebody scores each reply; this module does not know how. From the scores,
//! [`RewardModelReport::new`] makes the numbers: those of pairs ([`PairReport`]), of `RewardBench`
//! ([`RewardBench`], [`RewardBench2`]), of best of n ([`BestOfN`]) and of a run that trained against the
//! model ([`OverOptimization`]). They come as JSON (the serde form), Markdown, an HTML page, and tables
//! for a terminal. Nothing in them depends on the time or the machine.

mod best_of_n;
pub mod data;
mod hhh;
mod length;
mod over_optimization;
mod page;
mod pairs;
mod reward_bench;
mod reward_bench_2;
mod tables;

use serde::Serialize;
use serde_json::{Value, json};

use crate::Error;
pub use best_of_n::{BestOfN, BestOfNPoint};
use data::{DataFile, Entry, Facts, FileKind};
pub use length::LengthReport;
pub use over_optimization::{CurvePoint, GoldValue, OverOptimization, Peak, over_optimization, read_gold};
pub use page::{Notes, html};
pub use pairs::{GroupReport, PairReport, Spread};
pub use reward_bench::{RewardBench, Section};
pub use reward_bench_2::{RewardBench2, SubsetScore, Ties};
pub use tables::{markdown, tables};

/// The version of `rm.json`.
pub const FORMAT: u32 = 1;

/// A file with the scores of its replies.
#[derive(Clone, Debug)]
pub struct ScoredFile {
    /// The rows.
    pub data: DataFile,
    /// The score of each reply of each entry; all are finite.
    pub scores: Vec<Vec<f64>>,
    /// The replies whose conversation was cut, because it was too long for the model.
    pub cut: usize,
}

/// An entry with its scores.
#[derive(Clone, Copy, Debug)]
struct ScoredEntry<'a> {
    entry: &'a Entry,
    scores: &'a [f64],
}

impl<'a> ScoredEntry<'a> {
    fn pair(self) -> Option<ScoredPair<'a>> {
        let Self { entry, scores: &[chosen, rejected] } = self else { return None };
        let length = |index: usize| entry.replies[index].chars().count();
        (entry.facts == Facts::Pair).then(|| ScoredPair {
            group: &entry.group,
            chosen,
            rejected,
            chosen_length: length(0),
            rejected_length: length(1),
        })
    }
}

/// A pair with its scores and the lengths of its replies, in characters.
#[derive(Clone, Copy, Debug)]
struct ScoredPair<'a> {
    group: &'a str,
    chosen: f64,
    rejected: f64,
    chosen_length: usize,
    rejected_length: usize,
}

impl ScoredPair<'_> {
    fn margin(&self) -> f64 {
        self.chosen - self.rejected
    }

    fn is_right(&self) -> bool {
        self.chosen > self.rejected
    }

    fn is_tie(&self) -> bool {
        self.chosen == self.rejected
    }
}

/// The model that was evaluated.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelInfo {
    /// Its name.
    pub name: String,
    /// The hash of its files.
    pub digest: String,
}

/// Everything that is known of a reward model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RewardModelReport {
    /// [`FORMAT`].
    pub format: u32,
    /// The program and its version.
    pub program: String,
    /// The model.
    pub model: ModelInfo,
    /// The settings.
    pub settings: Value,
    /// The numbers of all pairs, if several files have pairs.
    pub all_pairs: Option<PairReport>,
    /// The numbers of each file.
    pub files: Vec<FileReport>,
    /// The curve of a run that trained against a reward model.
    pub over_optimization: Option<OverOptimization>,
}

/// The numbers of a file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FileReport {
    /// The file.
    pub file: String,
    /// What its rows are.
    pub kind: FileKind,
    /// The rows that were scored.
    pub rows: usize,
    /// The rows that hold no pair and were left out.
    pub skipped: usize,
    /// The replies that were cut.
    pub cut: usize,
    /// The numbers of its pairs.
    pub pairs: Option<PairReport>,
    /// The column that splits its pairs.
    pub split_by: Option<String>,
    /// The numbers of its parts, if it has parts.
    pub groups: Vec<GroupReport>,
    /// The sections of `RewardBench`.
    pub reward_bench: Option<RewardBench>,
    /// The subsets of `RewardBench` 2.
    pub reward_bench_2: Option<RewardBench2>,
    /// The best-of-n curve.
    pub best_of_n: Option<BestOfN>,
}

impl RewardModelReport {
    /// The numbers of scored files.
    pub fn new(
        program: String,
        model: ModelInfo,
        settings: Value,
        files: &[ScoredFile],
        over_optimization: Option<OverOptimization>,
    ) -> Result<Self, Error> {
        let all: Vec<Vec<ScoredPair<'_>>> = files.iter().map(ScoredFile::pairs).collect();
        let with_pairs = all.iter().filter(|pairs| !pairs.is_empty()).count();
        let all_pairs = if with_pairs > 1 { Some(pairs::pair_report(&all.concat())?) } else { None };
        let reports = files.iter().zip(&all).map(|(file, pairs)| file_report(file, pairs));
        let files = reports.collect::<Result<_, Error>>()?;
        Ok(Self { format: FORMAT, program, model, settings, all_pairs, files, over_optimization })
    }
}

impl ScoredFile {
    fn entries(&self) -> Vec<ScoredEntry<'_>> {
        let entries = self.data.entries.iter().zip(&self.scores);
        entries.map(|(entry, scores)| ScoredEntry { entry, scores }).collect()
    }

    fn pairs(&self) -> Vec<ScoredPair<'_>> {
        self.entries().into_iter().filter_map(ScoredEntry::pair).collect()
    }

    /// One row for each entry: the conversation, the replies, and their scores.
    pub fn sample_rows(&self) -> impl Iterator<Item = Value> + '_ {
        self.data.entries.iter().zip(&self.scores).map(|(entry, scores)| {
            let mut row = json!({
                "file": self.data.name,
                "row": entry.at.row,
                "group": entry.group,
                "prompt": entry.prompt,
            });
            match (&entry.facts, scores.as_slice()) {
                (Facts::Pair, &[chosen, rejected]) => {
                    row["chosen"] = json!(entry.replies[0]);
                    row["rejected"] = json!(entry.replies[1]);
                    row["chosen_score"] = json!(chosen);
                    row["rejected_score"] = json!(rejected);
                    row["margin"] = json!(chosen - rejected);
                }
                (facts, scores) => {
                    row["replies"] = json!(entry.replies);
                    row["scores"] = json!(scores);
                    match facts {
                        Facts::Gold(gold) => row["gold"] = json!(gold),
                        Facts::Completions { id, correct } => {
                            row["id"] = json!(id);
                            row["num_correct"] = json!(correct);
                        }
                        Facts::Pair => {}
                    }
                }
            }
            row
        })
    }
}

fn file_report(file: &ScoredFile, pairs: &[ScoredPair<'_>]) -> Result<FileReport, Error> {
    let DataFile { name, kind, split_by, entries, skipped } = &file.data;
    let groups = if split_by.is_some() { pairs::group_reports(pairs)? } else { Vec::new() };
    let has = |wanted: FileKind| *kind == wanted;
    Ok(FileReport {
        file: name.clone(),
        kind: *kind,
        rows: entries.len(),
        skipped: *skipped,
        cut: file.cut,
        pairs: if pairs.is_empty() { None } else { Some(pairs::pair_report(pairs)?) },
        split_by: split_by.clone(),
        reward_bench: if has(FileKind::RewardBench) { Some(reward_bench::score(&groups)?) } else { None },
        groups,
        reward_bench_2: if has(FileKind::RewardBench2) {
            Some(reward_bench_2::score(&file.entries())?)
        } else {
            None
        },
        best_of_n: if has(FileKind::BestOfN) { Some(best_of_n::curve(&file.entries())?) } else { None },
    })
}

#[cfg(test)]
mod tests;
