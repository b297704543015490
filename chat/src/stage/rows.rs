//! The rows of a stage: reads, tokenises and truncates the files of `[data]`, or loads the rows from the
//! cache, and prints what happened to them.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use datasets::dataset::{EncodedDataset, FileRead, LoadOptions, TrainingRow, split};
use datasets::{Cache, CacheUse, Counts, PromptRow, ReadOptions, RowLocation, SftRow, Tokenizer, table};
use tui::progress::Progress;
use tui::terminal::{Environment, Mode};

use crate::config::section::{DataSection, Files};
use crate::config::{ConfigError, Stage};
use crate::console::print_stderr;

/// Minimum size of the data files in bytes for which tokenised rows are kept in the cache folder of the user.
const MIN_CACHED_BYTES: u64 = 4 << 20;

/// How long loading runs before its progress is shown.
const PROGRESS_DELAY: Duration = Duration::from_secs(2);

/// Tokenised rows, and the number of rows left out.
pub(crate) struct EncodedRows<T> {
    /// The rows.
    pub(crate) rows: Vec<T>,
    /// Number of rows that were left out.
    pub(crate) dropped: usize,
    /// Number of tokens of all rows.
    pub(crate) tokens: usize,
    /// Number of tokens of the longest row.
    pub(crate) longest: usize,
}

/// Loads fine-tuning rows without an evaluation set: the rows of the language-modelling term of PPO.
pub(super) fn demonstrations(
    files: &Files,
    tokenizer: &Tokenizer,
    data: &DataSection,
) -> anyhow::Result<EncodedRows<SftRow>> {
    Ok(encoded(load(files, tokenizer, data)?))
}

/// Loads the prompts of PPO.
pub(super) fn prompts(
    files: &Files,
    tokenizer: &Tokenizer,
    data: &DataSection,
) -> anyhow::Result<EncodedRows<PromptRow>> {
    Ok(encoded(load(files, tokenizer, data)?))
}

/// Loads the training rows and the held-out rows: the files of `[data] eval`, or a fraction of the training
/// rows.
pub(super) fn train_and_eval<T: TrainingRow>(
    tokenizer: &Tokenizer,
    data: &DataSection,
    seed: u64,
) -> anyhow::Result<[EncodedRows<T>; 2]> {
    let mut train = load(&data.train, tokenizer, data)?;
    if data.eval_fraction == 0.0 {
        return Ok([encoded(train), encoded(load(&data.eval, tokenizer, data)?)]);
    }

    let held_out = split::hold_out(&mut train, data.eval_fraction, seed);
    let [learned, looked_at] = [train.rows.len(), held_out.len()];
    if learned == 0 || looked_at == 0 {
        let key = "data.eval_fraction".to_owned();
        let message = format!(
            "{}: of the {} rows this leaves {learned} to learn from and {looked_at} to look at; set another fraction, or name a \
             file in [data] eval",
            data.eval_fraction,
            learned + looked_at
        );
        return Err(ConfigError::Value { place: None, key, message }.into());
    }

    print_stderr(&format!(
        "{}: {looked_at} of {} rows are held out",
        data.train.0.join(", "),
        learned + looked_at
    ));
    Ok([encoded(train), with_lengths(held_out, 0)])
}

/// Refuses a stage without training rows.
pub(super) fn refuse_none<T>(rows: &EncodedRows<T>, stage: Stage) -> Result<(), rlhf::Error> {
    if !rows.rows.is_empty() {
        return Ok(());
    }
    let fix = "every row of [data] train was left out: look at the counts above, and at [data] max_length";
    Err(rlhf::Error::NoRows { stage: stage.name(), fix })
}

/// Parses every row of `files` without tokenising it.
pub(super) fn parse<T: TrainingRow>(files: &[&String], data: &DataSection) -> anyhow::Result<()> {
    for path in table::expand(files)? {
        table::open_records::<T::Source>(&path, &reading(data))?.try_for_each(|row| row.map(drop))?;
    }
    Ok(())
}

fn reading(data: &DataSection) -> ReadOptions {
    ReadOptions { drop: data.drop.clone(), ..ReadOptions::default() }
}

fn load<T: TrainingRow>(
    files: &Files,
    tokenizer: &Tokenizer,
    data: &DataSection,
) -> anyhow::Result<EncodedDataset<T>> {
    let options = LoadOptions {
        reading: reading(data),
        limit: data.limit,
        cache: cache(data),
        ..LoadOptions::new(data.max_length, data.overlong)
    };

    let mut shown = LoadProgress { started: Instant::now(), progress: None, percent: 0 };
    let dataset =
        EncodedDataset::load_with(&files.0, tokenizer, &options, &mut |progress| shown.update(&progress))?;
    shown.finish();

    dataset.files.iter().for_each(report_notes);
    report_counts(files, &dataset.counts, data);
    match &dataset.cache {
        CacheUse::Off | CacheUse::Written(_) => {}
        CacheUse::Read(path) => {
            print_stderr(&format!("{} rows: taken from the cache {}", dataset.counts.kept, path.display()));
        }
        CacheUse::Rebuilt(path) => {
            print_stderr(&format!("{}: was damaged and has been made anew", path.display()));
        }
        CacheUse::Failed(reason) => {
            print_stderr(&format!("the rows are not kept for the next start: {reason}"));
        }
    }
    Ok(dataset)
}

/// Returns the cache that `[data] cache` names, or else the cache folder of the user.
fn cache(data: &DataSection) -> Option<Cache> {
    match data.cache.as_deref() {
        Some("") => None,
        Some(folder) => Some(Cache { folder: folder.into(), least_bytes: 0 }),
        None => {
            let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
            // A relative path is not valid (XDG Base Directory Specification).
            let own = variable("XDG_CACHE_HOME").filter(|path| path.is_absolute());
            let own = own.or_else(|| Some(variable("HOME")?.join(".cache")))?;
            Some(Cache { folder: own.join("colossal-chat/rows"), least_bytes: MIN_CACHED_BYTES })
        }
    }
}

/// Prints the findings about a file, such as fields that are not read.
fn report_notes(file: &FileRead) {
    let path = file.path.display();
    for line in file.notes.lines(RowLocation::unit(&file.path), false) {
        print_stderr(&format!("{path}: {line}"));
    }
}

fn report_counts(files: &Files, counts: &Counts, data: &DataSection) {
    if counts.read == counts.kept && counts.truncated == 0 {
        return;
    }
    let mut parts = vec![format!("{} rows read, {} kept", counts.read, counts.kept)];
    for (count, what) in [
        (counts.truncated, format!("cut to {} tokens", data.max_length)),
        (counts.dropped_overlong, format!("left out as longer than {} tokens", data.max_length)),
        (counts.dropped_empty, "left out, with nothing to learn from".to_owned()),
        (counts.skipped, "left out by their layout".to_owned()),
    ] {
        if count > 0 {
            parts.push(format!("{count} {what}"));
        }
    }
    print_stderr(&format!("{}: {}", files.0.join(", "), parts.join(", ")));
}

fn encoded<T: TrainingRow>(dataset: EncodedDataset<T>) -> EncodedRows<T> {
    with_lengths(dataset.rows, dataset.counts.read - dataset.counts.kept)
}

fn with_lengths<T: TrainingRow>(rows: Vec<T>, dropped: usize) -> EncodedRows<T> {
    let tokens = rows.iter().map(TrainingRow::num_tokens).sum();
    let longest = rows.iter().map(TrainingRow::num_tokens).max().unwrap_or(0);
    EncodedRows { rows, dropped, tokens, longest }
}

/// The progress display of a load that takes longer than [`PROGRESS_DELAY`].
struct LoadProgress {
    started: Instant,
    progress: Option<Progress<std::io::Stderr>>,
    percent: u64,
}

impl LoadProgress {
    fn update(&mut self, now: &datasets::Progress) {
        let percent = (now.share * 100.0) as u64;
        if percent == self.percent || self.started.elapsed() < PROGRESS_DELAY {
            return;
        }
        let begun = self.progress.is_some();
        let progress = self.progress.get_or_insert_with(|| {
            let stderr = std::io::stderr();
            let mode = Mode::detect(stderr.is_terminal(), &Environment::read());
            Progress::new(stderr, mode)
        });
        // A display that cannot be written to must not stop the loading.
        let _ = if begun { Ok(()) } else { progress.start_at("reading rows", 100, self.percent) };
        let _ = progress.update(percent, &[("rows", now.rows as f64)]);
        self.percent = percent;
    }

    fn finish(&mut self) {
        if let Some(progress) = &mut self.progress {
            let _ = progress.finish();
        }
    }
}
