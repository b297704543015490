//! Data sets: reads files of rows, tokenizes the rows and cuts them to length, ready for the sampler.
//!
//! Every dropped or cut row is counted and reported. A demonstration that is too long is truncated on the
//! right; it is dropped if no position with a label remains. After truncation, each completion of a
//! preference pair must keep at least one token and the two sides must differ; an unpaired completion must
//! keep at least one token. A prompt that is too long is always dropped, because without its end it is a
//! different question. Of a row that is far too long, only the head is tokenized. Tokenization runs on all
//! cores while the file is read, and the rows keep the order of the files. Tokenized rows are stored in a
//! [`cache`].

pub mod cache;
mod load;
mod parallel;
pub mod split;

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::conversation::Role;
use crate::encode::TokenPrefix;
use crate::error::Result;
use crate::record::{Demonstration, Layout, Notes, Preference, Prompt, Record, Unpaired};
use crate::rows::{PreferenceRow, PromptRow, SftRow, UnpairedRow};
use crate::table::ReadOptions;
use crate::tokenizer::Tokenizer;

/// The policy for rows longer than `max_length`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Overlong {
    /// Truncate them on the right, or drop them if nothing to learn would remain.
    Truncate,
    /// Drop them.
    Drop,
}

/// Options for loading a data set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadOptions {
    /// How rows are read.
    pub reading: ReadOptions,
    /// The longest row, in tokens.
    pub max_length: usize,
    /// The policy for longer rows.
    pub on_overlong: Overlong,
    /// Maximum number of rows to read from the files, counted from the first.
    pub limit: Option<usize>,
    /// The cache for tokenized rows; `None` disables caching.
    pub cache: Option<Cache>,
}

impl LoadOptions {
    /// Creates options that detect the layout from the columns, read all rows and use no cache.
    pub fn new(max_length: usize, on_overlong: Overlong) -> Self {
        Self { reading: ReadOptions::default(), max_length, on_overlong, limit: None, cache: None }
    }
}

/// A folder of cached tokenized rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    /// The folder.
    pub folder: PathBuf,
    /// The smallest total size of the data files, in bytes, for which the cache is used. A few rows are
    /// tokenized faster than they are looked up.
    pub least_bytes: u64,
}

/// How the cache was used while loading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheUse {
    /// The cache was not used.
    Off,
    /// The rows were read from this file.
    Read(PathBuf),
    /// The rows were written to this file.
    Written(PathBuf),
    /// This file was damaged and has been rebuilt.
    Rebuilt(PathBuf),
    /// The rows could not be written, for this reason.
    Failed(String),
}

/// The progress of loading.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Number of rows processed so far, dropped rows included.
    pub rows: usize,
    /// The fraction of all files that has been read, from 0 to 1.
    pub share: f64,
}

/// Counts of rows by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Counts {
    /// Rows read from the files.
    pub read: usize,
    /// Rows kept, cut ones included.
    pub kept: usize,
    /// Rows cut to `max_length`.
    pub truncated: usize,
    /// Rows dropped because they are longer than `max_length`.
    pub dropped_overlong: usize,
    /// Rows dropped because they had nothing to learn, before or after truncation.
    pub dropped_empty: usize,
    /// Rows skipped by their layout. The notes of the file give the reasons.
    pub skipped: usize,
}

/// A data file that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRead {
    /// The file.
    pub path: PathBuf,
    /// The layout of its rows.
    pub layout: Layout,
    /// Unread fields, skipped rows and odd conversations in the file.
    pub notes: Notes,
}

/// A data set in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct EncodedDataset<T> {
    /// The rows, in the order of the files.
    pub rows: Vec<T>,
    /// Counts of rows by outcome.
    pub counts: Counts,
    /// The files.
    pub files: Vec<FileRead>,
    /// How the cache was used.
    pub cache: CacheUse,
}

/// A type of training row: its source record, and how it is encoded and truncated.
pub trait TrainingRow: Sized + Send + serde::Serialize + serde::de::DeserializeOwned {
    /// The untokenized record type.
    type Source: Record;

    /// Tokenizes a row. If the row is far longer than `limit` ids, tokenizes only its beginning.
    fn encode(tokenizer: &Tokenizer, source: &Self::Source, limit: usize) -> Result<TokenPrefix<Self>>;

    /// Whether the source has something to learn from. The result agrees with [`Self::has_labels`] on the
    /// full row.
    fn source_has_labels(source: &Self::Source) -> bool;

    /// The ids that decide whether the row is held out. Rows with equal keys are always on the same side of
    /// the split.
    fn split_key(&self) -> &[i64];

    /// Number of tokens of the longest side.
    fn num_tokens(&self) -> usize;

    /// Whether the row has something to learn from.
    fn has_labels(&self) -> bool;

    /// Truncates the row on the right. Returns `None` if this type of row must not be truncated.
    fn truncated(self, max_length: usize) -> Option<Self>;
}

impl<T: TrainingRow> EncodedDataset<T> {
    /// Number of rows kept.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether no row was kept.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Number of tokens of each row (of its longest side).
    pub fn lengths(&self) -> Vec<usize> {
        self.rows.iter().map(TrainingRow::num_tokens).collect()
    }

    /// Returns the distinct layouts of the files.
    pub fn layouts(&self) -> Vec<Layout> {
        let mut seen = BTreeSet::new();
        self.files.iter().map(|file| file.layout).filter(|layout| seen.insert(layout.name())).collect()
    }
}

impl TrainingRow for SftRow {
    type Source = Demonstration;

    fn encode(tokenizer: &Tokenizer, source: &Demonstration, limit: usize) -> Result<TokenPrefix<Self>> {
        tokenizer.demonstration_prefix(source, limit)
    }

    fn source_has_labels(source: &Demonstration) -> bool {
        source.turns().iter().any(|turn| turn.role == Role::Assistant && !turn.ignore_loss)
            || matches!(source, Demonstration::Text(_))
    }

    fn split_key(&self) -> &[i64] {
        &self.input_ids
    }

    fn num_tokens(&self) -> usize {
        self.input_ids.len()
    }

    fn has_labels(&self) -> bool {
        self.num_label_tokens() > 0
    }

    fn truncated(mut self, max_length: usize) -> Option<Self> {
        self.input_ids.truncate(max_length);
        self.labels.truncate(max_length);
        Some(self)
    }
}

impl TrainingRow for PreferenceRow {
    type Source = Preference;

    fn encode(tokenizer: &Tokenizer, source: &Preference, limit: usize) -> Result<TokenPrefix<Self>> {
        tokenizer.preference_prefix(source, limit)
    }

    fn source_has_labels(source: &Preference) -> bool {
        !matches!(source, Preference::Messages { chosen, rejected, .. } if chosen == rejected)
    }

    fn split_key(&self) -> &[i64] {
        &self.chosen[..self.prompt_length]
    }

    fn num_tokens(&self) -> usize {
        self.chosen.len().max(self.rejected.len())
    }

    fn has_labels(&self) -> bool {
        self.prompt_length < self.chosen.len().min(self.rejected.len()) && self.chosen != self.rejected
    }

    fn truncated(mut self, max_length: usize) -> Option<Self> {
        self.chosen.truncate(max_length);
        self.rejected.truncate(max_length);
        Some(self)
    }
}

impl TrainingRow for UnpairedRow {
    type Source = Unpaired;

    fn encode(tokenizer: &Tokenizer, source: &Unpaired, limit: usize) -> Result<TokenPrefix<Self>> {
        tokenizer.unpaired_prefix(source, limit)
    }

    fn source_has_labels(_: &Unpaired) -> bool {
        true
    }

    fn split_key(&self) -> &[i64] {
        &self.input_ids[..self.prompt_length]
    }

    fn num_tokens(&self) -> usize {
        self.input_ids.len()
    }

    fn has_labels(&self) -> bool {
        self.prompt_length < self.input_ids.len()
    }

    fn truncated(mut self, max_length: usize) -> Option<Self> {
        self.input_ids.truncate(max_length);
        Some(self)
    }
}

impl TrainingRow for PromptRow {
    type Source = Prompt;

    fn encode(tokenizer: &Tokenizer, source: &Prompt, limit: usize) -> Result<TokenPrefix<Self>> {
        tokenizer.prompt_prefix(source, limit)
    }

    fn source_has_labels(_: &Prompt) -> bool {
        true
    }

    fn split_key(&self) -> &[i64] {
        &self.input_ids
    }

    fn num_tokens(&self) -> usize {
        self.input_ids.len()
    }

    fn has_labels(&self) -> bool {
        !self.input_ids.is_empty()
    }

    fn truncated(self, _: usize) -> Option<Self> {
        None
    }
}

#[cfg(test)]
mod tests;
