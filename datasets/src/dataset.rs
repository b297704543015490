//! Data sets: files of rows, read, tokenised and cut to length, ready for the sampler.
//!
//! What is dropped or cut is counted and reported, never hidden. A row of demonstrations that is too long
//! loses its right end, if a position that counts in the loss remains; of a pair each answer must keep at
//! least one token and differ from the other, and an unpaired answer must keep one; a prompt that is too long
//! is always dropped, for without its end it asks something else. Of a row that is far too long only the head
//! is tokenised. Tokenising runs on all cores while the file is read; the order of rows is that of the files.
//! Tokenised rows are kept in a [`cache`].

pub mod cache;
mod parallel;
pub mod split;

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::conversation::Role;
use crate::encode::TokenPrefix;
use crate::error::{Error, Result, RowLocation};
use crate::record::{Demonstration, Layout, Notes, Preference, Prompt, Record, Unpaired};
use crate::rows::{PreferenceRow, PromptRow, SftRow, UnpairedRow};
use crate::table::{ReadOptions, expand, open_records};
use crate::tokenizer::Tokenizer;

use cache::{Cache, CacheUse};

/// What happens to rows longer than `max_length`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Overlong {
    /// They are cut on the right, or dropped where nothing to learn would remain.
    Truncate,
    /// They are dropped.
    Drop,
}

/// How to load a data set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadOptions {
    /// How rows are read.
    pub reading: ReadOptions,
    /// The longest row, in tokens.
    pub max_length: usize,
    /// What happens to longer rows.
    pub on_overlong: Overlong,
    /// Only so many rows of the files, from the first.
    pub limit: Option<usize>,
    /// Where tokenised rows are kept; nowhere if `None`.
    pub cache: Option<Cache>,
}

impl LoadOptions {
    /// Rows as they are told by their columns, all of them, kept nowhere.
    pub fn new(max_length: usize, on_overlong: Overlong) -> Self {
        Self { reading: ReadOptions::default(), max_length, on_overlong, limit: None, cache: None }
    }
}

/// How far the loading is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Rows tokenised.
    pub rows: usize,
    /// The share of all files that has been read, from 0 to 1.
    pub share: f64,
}

/// What became of the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Counts {
    /// Rows in the files.
    pub read: usize,
    /// Rows kept, cut ones included.
    pub kept: usize,
    /// Rows cut to `max_length`.
    pub truncated: usize,
    /// Rows dropped because they are longer than `max_length`.
    pub dropped_overlong: usize,
    /// Rows dropped because nothing to learn was left, or was there at all.
    pub dropped_empty: usize,
    /// Rows that their layout leaves out; the notes of the file say why.
    pub skipped: usize,
}

/// A file that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRead {
    /// The file.
    pub path: PathBuf,
    /// The layout of its rows.
    pub layout: Layout,
    /// What was found beside the rows.
    pub notes: Notes,
}

/// A data set in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct EncodedDataset<T> {
    /// The rows, in the order of the files.
    pub rows: Vec<T>,
    /// What became of the rows.
    pub counts: Counts,
    /// The files.
    pub files: Vec<FileRead>,
    /// What part the cache had.
    pub cache: CacheUse,
}

/// A row after cutting.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum FitResult<T> {
    Whole(T),
    Cut(T),
    Overlong,
    Empty,
}

/// A kind of training row: which records it is made from, how it is encoded and cut.
pub trait TrainingRow: Sized + Send + serde::Serialize + serde::de::DeserializeOwned {
    /// The rows that people write.
    type Source: Record;

    /// Tokenises; of a row that is far longer than `limit` ids only the head.
    fn encode(tokenizer: &Tokenizer, source: &Self::Source, limit: usize) -> Result<TokenPrefix<Self>>;

    /// Whether the source holds something to learn from, as [`Self::has_labels`] would say of all of its ids.
    fn source_has_labels(source: &Self::Source) -> bool;

    /// The ids by which the row is held out or not: rows with the same are never on both sides of a split.
    fn split_key(&self) -> &[i64];

    /// Tokens of the longest side.
    fn num_tokens(&self) -> usize;

    /// Whether the row holds something to learn from.
    fn has_labels(&self) -> bool;

    /// Cuts the right end; `None` where such rows may not be cut.
    fn truncated(self, max_length: usize) -> Option<Self>;
}

impl<T: TrainingRow> EncodedDataset<T> {
    /// Loads files, folders and patterns (see [`expand`]).
    pub fn load<S: AsRef<str>>(paths: &[S], tokenizer: &Tokenizer, options: &LoadOptions) -> Result<Self> {
        Self::load_with(paths, tokenizer, options, &mut |_| {})
    }

    /// As [`Self::load`], and tells now and then how far it is.
    pub fn load_with<S: AsRef<str>>(
        paths: &[S],
        tokenizer: &Tokenizer,
        options: &LoadOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Self> {
        let paths = expand(paths)?;
        match &options.cache {
            Some(cache) if cache.is_large_enough(&paths)? => {
                cache.load(&paths, tokenizer, options, || Self::read(&paths, tokenizer, options, progress))
            }
            _ => Self::read(&paths, tokenizer, options, progress),
        }
    }

    /// Reads and tokenises the files.
    fn read(
        paths: &[PathBuf],
        tokenizer: &Tokenizer,
        options: &LoadOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Self> {
        let mut dataset =
            Self { rows: Vec::new(), counts: Counts::default(), files: Vec::new(), cache: CacheUse::Off };
        let mut left = options.limit.unwrap_or(usize::MAX);
        for (index, path) in paths.iter().enumerate() {
            let mut records = open_records::<T::Source>(path, &options.reading)?;
            let position = records.position();
            let mut read = 0;
            let sources = std::iter::from_fn(|| {
                let row = if left == 0 { None } else { records.next_row() }?;
                left -= 1;
                read += 1;
                Some(row)
            });
            let encode = |(at, source): &(RowLocation, T::Source)| {
                let limit = options.max_length.saturating_add(1);
                let head = T::encode(tokenizer, source, limit).map_err(|error| error.in_row(at))?;
                Ok(fit(head, source, options))
            };
            parallel::encode(sources, &encode, |fitted| {
                for row in fitted {
                    dataset.take(row);
                }
                let share = (index as f64 + position.share()) / paths.len() as f64;
                progress(Progress { rows: dataset.counts.read, share });
            })?;
            let notes = records.notes().clone();
            let skipped: usize = notes.skipped.values().map(|seen| seen.rows).sum();
            dataset.counts.read += skipped;
            dataset.counts.skipped += skipped;
            if read == 0 && left > 0 {
                return Err(Error::NoRows { path: path.clone() });
            }
            dataset.files.push(FileRead { path: path.clone(), layout: records.layout(), notes });
        }
        Ok(dataset)
    }

    /// Rows kept.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether no row was kept.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Tokens of each row (of its longest side).
    pub fn lengths(&self) -> Vec<usize> {
        self.rows.iter().map(TrainingRow::num_tokens).collect()
    }

    /// The layouts that occur.
    pub fn layouts(&self) -> Vec<Layout> {
        let mut seen = BTreeSet::new();
        self.files.iter().map(|file| file.layout).filter(|layout| seen.insert(layout.name())).collect()
    }

    fn take(&mut self, fitted: FitResult<T>) {
        self.counts.read += 1;
        match fitted {
            FitResult::Whole(row) => self.rows.push(row),
            FitResult::Cut(row) => {
                self.counts.truncated += 1;
                self.rows.push(row);
            }
            FitResult::Overlong => self.counts.dropped_overlong += 1,
            FitResult::Empty => self.counts.dropped_empty += 1,
        }
        self.counts.kept = self.rows.len();
    }
}

fn fit<T: TrainingRow>(head: TokenPrefix<T>, source: &T::Source, options: &LoadOptions) -> FitResult<T> {
    let TokenPrefix { row, whole } = head;
    let useful = if whole { row.has_labels() } else { T::source_has_labels(source) };
    if !useful {
        return FitResult::Empty;
    }
    if row.num_tokens() <= options.max_length {
        return FitResult::Whole(row);
    }
    if options.on_overlong == Overlong::Drop {
        return FitResult::Overlong;
    }
    match row.truncated(options.max_length) {
        None => FitResult::Overlong,
        Some(row) if row.has_labels() => FitResult::Cut(row),
        Some(_) => FitResult::Empty,
    }
}

impl TrainingRow for SftRow {
    type Source = Demonstration;

    fn encode(tokenizer: &Tokenizer, source: &Demonstration, limit: usize) -> Result<TokenPrefix<Self>> {
        tokenizer.demonstration_head(source, limit)
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
        tokenizer.preference_head(source, limit)
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
        tokenizer.unpaired_head(source, limit)
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
        tokenizer.prompt_head(source, limit)
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
