//! The rows of a stage: the files of `[data]`, read, tokenised and cut.

use datasets::dataset::{EncodedDataset, LoadOptions, TrainingRow};
use datasets::{PreferenceRow, PromptRow, SftRow, Tokenizer, table};

use crate::command::tell;
use crate::config::section::{DataSection, Files};

/// Tokenised rows, and what became of the others.
pub(crate) struct Encoded<T> {
    /// The rows.
    pub(crate) rows: Vec<T>,
    /// Rows that were left out.
    pub(crate) dropped: usize,
    /// Tokens of all rows.
    pub(crate) tokens: usize,
    /// Tokens of the longest row.
    pub(crate) longest: usize,
}

/// Rows of supervised fine-tuning.
pub(super) fn demonstrations(
    files: &Files,
    tokenizer: &Tokenizer,
    data: &DataSection,
) -> anyhow::Result<Encoded<SftRow>> {
    load(files, tokenizer, data)
}

/// Pairs of a reward model.
pub(super) fn preferences(
    files: &Files,
    tokenizer: &Tokenizer,
    data: &DataSection,
) -> anyhow::Result<Encoded<PreferenceRow>> {
    load(files, tokenizer, data)
}

/// Prompts of a rollout.
pub(super) fn prompts(
    files: &Files,
    tokenizer: &Tokenizer,
    data: &DataSection,
) -> anyhow::Result<Encoded<PromptRow>> {
    load(files, tokenizer, data)
}

/// Reads every row of `files` without tokenising it.
pub(super) fn parse<T: TrainingRow>(files: &[&String]) -> anyhow::Result<()> {
    for path in table::expand(files)? {
        let (_, mut rows) = table::open_records::<T::Source>(&path, None)?;
        rows.try_for_each(|row| row.map(drop))?;
    }
    Ok(())
}

fn load<T: TrainingRow>(
    files: &Files,
    tokenizer: &Tokenizer,
    data: &DataSection,
) -> anyhow::Result<Encoded<T>> {
    let options = LoadOptions { layout: None, max_length: data.max_length, on_overlong: data.overlong };
    let dataset = EncodedDataset::<T>::load(&files.0, tokenizer, &options)?;
    let counts = dataset.counts;
    if counts.read > counts.kept || counts.truncated > 0 {
        tell(&format!(
            "{}: {} rows read, {} kept ({} cut to {} tokens), {} left out as longer, {} left out as empty",
            files.0.join(", "),
            counts.read,
            counts.kept,
            counts.truncated,
            data.max_length,
            counts.dropped_overlong,
            counts.dropped_empty,
        ));
    }
    let lengths = dataset.lengths();
    Ok(Encoded {
        dropped: counts.read - counts.kept,
        tokens: lengths.iter().sum(),
        longest: lengths.into_iter().max().unwrap_or(0),
        rows: dataset.rows,
    })
}
