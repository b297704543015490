//! Data sets: files of rows, read, tokenised and cut to length, ready for the sampler.
//!
//! What is dropped or cut is counted and reported, never hidden. A row of demonstrations that is too long loses its right
//! end, if a position that counts in the loss remains; of a pair each answer must keep at least one token and differ from
//! the other, and an unpaired answer must keep one; a prompt that is too long is always dropped, for without its end it asks something else.
//! Tokenising runs on several threads; the order of rows is that of the files.

use std::collections::BTreeSet;
use std::num::NonZero;
use std::path::PathBuf;
use std::thread;

use crate::error::{At, Error, Result};
use crate::record::{Demonstration, Layout, Preference, Prompt, Record, Unpaired};
use crate::rows::{PreferenceRow, PromptRow, SftRow, UnpairedRow};
use crate::table::{expand, open_records};
use crate::tokenizer::Tokenizer;

/// Rows read before they are tokenised together.
const CHUNK: usize = 8192;

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
    /// The layout of the rows; told by the columns where it is `None`.
    pub layout: Option<Layout>,
    /// The longest row, in tokens.
    pub max_length: usize,
    /// What happens to longer rows.
    pub on_overlong: Overlong,
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
}

/// A data set in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct EncodedDataset<T> {
    /// The rows, in the order of the files.
    pub rows: Vec<T>,
    /// What became of the rows.
    pub counts: Counts,
    /// The files with the layout that each was read in.
    pub files: Vec<(PathBuf, Layout)>,
}

/// A row after cutting.
enum Fitted<T> {
    Whole(T),
    Cut(T),
    Overlong,
    Empty,
}

/// A kind of training row: which records it is made from, how it is encoded and cut.
pub trait TrainingRow: Sized + Send {
    /// The rows that people write.
    type Source: Record;

    /// Tokenises.
    fn encode(tokenizer: &Tokenizer, source: &Self::Source) -> Result<Self>;

    /// Tokens of the longest side.
    fn num_tokens(&self) -> usize;

    /// Whether the row holds something to learn from.
    fn is_useful(&self) -> bool;

    /// Cuts the right end; `None` where such rows may not be cut.
    fn truncated(self, max_length: usize) -> Option<Self>;
}

impl<T: TrainingRow> EncodedDataset<T> {
    /// Loads files, folders and patterns (see [`expand`]).
    pub fn load<S: AsRef<str>>(paths: &[S], tokenizer: &Tokenizer, options: &LoadOptions) -> Result<Self> {
        let mut dataset = Self { rows: Vec::new(), counts: Counts::default(), files: Vec::new() };
        for path in expand(paths)? {
            let (layout, mut records) = open_records::<T::Source>(&path, options.layout)?;
            dataset.files.push((path, layout));
            loop {
                let chunk: Vec<_> = records.by_ref().take(CHUNK).collect::<Result<_>>()?;
                if chunk.is_empty() {
                    break;
                }
                for fitted in encode_chunk(&chunk, tokenizer, options)? {
                    dataset.take(fitted);
                }
            }
        }
        match dataset.files.first() {
            Some((path, _)) if dataset.counts.read == 0 => Err(Error::NoRows { path: path.clone() }),
            _ => Ok(dataset),
        }
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
        self.files.iter().map(|(_, layout)| *layout).filter(|layout| seen.insert(layout.name())).collect()
    }

    fn take(&mut self, fitted: Fitted<T>) {
        self.counts.read += 1;
        match fitted {
            Fitted::Whole(row) => self.rows.push(row),
            Fitted::Cut(row) => {
                self.counts.truncated += 1;
                self.rows.push(row);
            }
            Fitted::Overlong => self.counts.dropped_overlong += 1,
            Fitted::Empty => self.counts.dropped_empty += 1,
        }
        self.counts.kept = self.rows.len();
    }
}

/// Tokenises and cuts rows on all cores, in order.
fn encode_chunk<T: TrainingRow>(
    chunk: &[(At, T::Source)],
    tokenizer: &Tokenizer,
    options: &LoadOptions,
) -> Result<Vec<Fitted<T>>> {
    let encode = |(at, source): &(At, T::Source)| {
        let row = T::encode(tokenizer, source).map_err(|error| error.in_row(at))?;
        Ok(fit(row, options))
    };
    let threads =
        thread::available_parallelism().map_or(1, NonZero::get).min(chunk.len().div_ceil(64)).max(1);
    let share = chunk.len().div_ceil(threads);
    thread::scope(|scope| {
        let parts = chunk
            .chunks(share)
            .map(|part| scope.spawn(move || part.iter().map(encode).collect::<Result<Vec<_>>>()));
        // All threads start before the first is waited for.
        let parts: Vec<_> = parts.collect();
        let mut rows = Vec::with_capacity(chunk.len());
        for part in parts {
            rows.extend(part.join().expect("encoding a row does not panic")?);
        }
        Ok(rows)
    })
}

fn fit<T: TrainingRow>(row: T, options: &LoadOptions) -> Fitted<T> {
    if !row.is_useful() {
        return Fitted::Empty;
    }
    if row.num_tokens() <= options.max_length {
        return Fitted::Whole(row);
    }
    if options.on_overlong == Overlong::Drop {
        return Fitted::Overlong;
    }
    match row.truncated(options.max_length) {
        None => Fitted::Overlong,
        Some(row) if row.is_useful() => Fitted::Cut(row),
        Some(_) => Fitted::Empty,
    }
}

impl TrainingRow for SftRow {
    type Source = Demonstration;

    fn encode(tokenizer: &Tokenizer, source: &Demonstration) -> Result<Self> {
        tokenizer.encode_demonstration(source)
    }

    fn num_tokens(&self) -> usize {
        self.input_ids.len()
    }

    fn is_useful(&self) -> bool {
        self.num_labels() > 0
    }

    fn truncated(mut self, max_length: usize) -> Option<Self> {
        self.input_ids.truncate(max_length);
        self.labels.truncate(max_length);
        Some(self)
    }
}

impl TrainingRow for PreferenceRow {
    type Source = Preference;

    fn encode(tokenizer: &Tokenizer, source: &Preference) -> Result<Self> {
        tokenizer.encode_preference(source)
    }

    fn num_tokens(&self) -> usize {
        self.chosen.len().max(self.rejected.len())
    }

    fn is_useful(&self) -> bool {
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

    fn encode(tokenizer: &Tokenizer, source: &Unpaired) -> Result<Self> {
        tokenizer.encode_unpaired(source)
    }

    fn num_tokens(&self) -> usize {
        self.input_ids.len()
    }

    fn is_useful(&self) -> bool {
        self.prompt_length < self.input_ids.len()
    }

    fn truncated(mut self, max_length: usize) -> Option<Self> {
        self.input_ids.truncate(max_length);
        Some(self)
    }
}

impl TrainingRow for PromptRow {
    type Source = Prompt;

    fn encode(tokenizer: &Tokenizer, source: &Prompt) -> Result<Self> {
        tokenizer.encode_prompt_row(source)
    }

    fn num_tokens(&self) -> usize {
        self.input_ids.len()
    }

    fn is_useful(&self) -> bool {
        !self.input_ids.is_empty()
    }

    fn truncated(self, _: usize) -> Option<Self> {
        None
    }
}

#[cfg(test)]
mod tests;
