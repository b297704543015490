//! Loads a data set: reads the files, and tokenizes the rows and cuts them to length, or takes them from the
//! cache.

use std::path::PathBuf;

use super::{
    CacheUse, Counts, EncodedDataset, FileRead, LoadOptions, Overlong, Progress, TrainingRow, parallel,
};
use crate::encode::TokenPrefix;
use crate::error::{Error, Result, RowLocation};
use crate::table::{expand, open_records};
use crate::tokenizer::Tokenizer;

/// A row after the length limit was applied.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum FitResult<T> {
    Whole(T),
    Cut(T),
    Overlong,
    Empty,
}

impl<T: TrainingRow> EncodedDataset<T> {
    /// Loads the rows of files, folders and patterns (see [`expand`]).
    pub fn load<S: AsRef<str>>(paths: &[S], tokenizer: &Tokenizer, options: &LoadOptions) -> Result<Self> {
        Self::load_with(paths, tokenizer, options, &mut |_| {})
    }

    /// Like [`Self::load`], and calls `progress` after each batch of rows.
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

    /// Reads and tokenizes the files.
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

            // The row limit holds for all files together, so the iterator stops in the middle of a file if
            // the limit is reached there.
            let sources = std::iter::from_fn(|| {
                let row = if left == 0 { None } else { records.next_row() }?;
                left -= 1;
                read += 1;
                Some(row.map(|(at, sources)| (at, sources, records.row_bytes())))
            });

            // One id more than the limit is enough to see that a row is too long.
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

            // The reader counts rows skipped by the layout; they never reach the encoder.
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

    /// Adds a row to the data set and updates the counts.
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

/// Applies the length limit to an encoded row.
pub(super) fn fit<T: TrainingRow>(
    head: TokenPrefix<T>,
    source: &T::Source,
    options: &LoadOptions,
) -> FitResult<T> {
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
