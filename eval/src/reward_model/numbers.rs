//! The numbers of scored files, together.

use serde::Serialize;
use serde_json::Value;

use super::best_of_n::{self, BestOfN};
use super::entry::{DataFile, FileKind};
use super::over_optimization::OverOptimization;
use super::pairs::{self, GroupReport, PairReport};
use super::reward_bench::{self, RewardBench};
use super::reward_bench_2::{self, RewardBench2};
use super::scored::{ScoredFile, ScoredPair};
use crate::Error;

/// The version of `rm.json`.
pub const FORMAT: u32 = 1;

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
