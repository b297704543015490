//! The rows of a stage: reads, tokenizes and truncates the files of `[data]`, or loads the rows from the
//! cache, and prints what happened to them.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use datasets::dataset::{EncodedDataset, FileRead, LoadOptions, TrainingRow, split};
use datasets::{Cache, CacheUse, Counts, Names, ReadOptions, RowLocation, Tokenizer, table};
use inference::session::check_vocabulary;
use models::config::Config;
use tui::progress::Progress;
use tui::terminal::{Environment, Mode};

use crate::config::section::DataSection;
use crate::config::{ConfigError, RunConfig, StageSchema};
use crate::console::print_stderr;
use crate::user_folders;

/// Minimum size of the data files in bytes for which tokenized rows are kept in the cache folder of the user.
const MIN_CACHED_BYTES: u64 = 4 << 20;

/// How long loading runs before its progress is shown.
const PROGRESS_DELAY: Duration = Duration::from_secs(2);

/// Tokenized rows, and the number of rows left out.
pub(crate) struct EncodedRows<T> {
    pub(crate) rows: Vec<T>,
    /// Number of rows that were left out.
    pub(crate) dropped: usize,
    /// Number of tokens of all rows.
    pub(crate) tokens: usize,
    /// Number of tokens of the longest row.
    pub(crate) longest: usize,
}

/// The rows of a stage: those that it trains on, and those held out for evaluation.
pub(super) struct TrainEvalRows<T> {
    pub(super) train: EncodedRows<T>,
    pub(super) eval: EncodedRows<T>,
}

/// Loads rows that need no evaluation set: the prompts of PPO, and the rows of its language-modelling term.
pub(crate) fn load_all<T: TrainingRow>(
    files: &Names,
    tokenizer: &Tokenizer,
    data: &DataSection,
) -> anyhow::Result<EncodedRows<T>> {
    Ok(encoded(load(files, tokenizer, data)?))
}

impl<T: TrainingRow> TrainEvalRows<T> {
    /// Loads the training rows and the held-out rows: the files of `[data] eval`, or a fraction of the
    /// training rows.
    pub(super) fn load(tokenizer: &Tokenizer, data: &DataSection, seed: u64) -> anyhow::Result<Self> {
        let mut train = load(&data.train, tokenizer, data)?;
        if data.eval_fraction == 0.0 {
            let eval = encoded(load(&data.eval, tokenizer, data)?);
            return Ok(Self { train: encoded(train), eval });
        }

        let held_out = split::hold_out(&mut train, data.eval_fraction, seed);
        let (trained, evaluated) = (train.rows.len(), held_out.len());
        if trained == 0 || evaluated == 0 {
            let key = "data.eval_fraction".to_owned();
            let message = format!(
                "{}: of the {} rows this leaves {trained} for training and {evaluated} for evaluation; set another \
                 fraction, or name a file in [data] eval",
                data.eval_fraction,
                trained + evaluated
            );
            return Err(ConfigError::Value { place: None, key, message }.into());
        }

        print_stderr(&format!(
            "{}: {evaluated} of {} rows are held out",
            data.train.0.join(", "),
            trained + evaluated
        ));
        Ok(Self { train: encoded(train), eval: with_lengths(held_out, 0) })
    }

    /// Number of tokens of the longest row.
    pub(super) fn longest(&self) -> usize {
        self.train.longest.max(self.eval.longest)
    }
}

/// Reads the rows of a stage and checks them against the configuration of its model: vocabulary, and length,
/// of which `longest` is the subject in messages. Reads no weights.
pub(super) fn inputs<T: TrainingRow>(
    stage: &StageSchema,
    config: &RunConfig,
    (model, tokenizer): (&Config, &Tokenizer),
    longest: &'static str,
) -> anyhow::Result<TrainEvalRows<T>> {
    check_vocabulary(tokenizer, model)?;
    let rows = TrainEvalRows::load(tokenizer, &config.data, config.seed)?;
    refuse_none(&rows.train, stage)?;
    model.check_length(longest, rows.longest())?;
    Ok(rows)
}

/// Refuses a stage without training rows.
pub(crate) fn refuse_none<T>(rows: &EncodedRows<T>, stage: &StageSchema) -> Result<(), rlhf::Error> {
    if !rows.rows.is_empty() {
        return Ok(());
    }
    let fix = "every row of [data] train was left out: see the counts above, and check [data] max_length";
    Err(rlhf::Error::NoRows { stage: stage.name, fix })
}

/// Parses every row of `files` without tokenizing it.
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
    files: &Names,
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
            print_stderr(&format!("{}: was damaged and has been rebuilt", path.display()));
        }
        CacheUse::Failed(reason) => {
            print_stderr(&format!("the rows are not kept for the next start: {reason}"));
        }
    }
    Ok(dataset)
}

/// Returns the cache that `[data] cache` names, or else the cache folder of the user.
pub(super) fn cache(data: &DataSection) -> Option<Cache> {
    match data.cache.as_deref() {
        Some("") => None,
        Some(folder) => Some(Cache { folder: folder.into(), least_bytes: 0 }),
        None => Some(Cache { folder: user_folders::cache()?.join("rows"), least_bytes: MIN_CACHED_BYTES }),
    }
}

/// Prints the findings about a file, such as fields that are not read.
fn report_notes(file: &FileRead) {
    let path = file.path.display();
    for line in file.notes.lines(RowLocation::unit(&file.path), false) {
        print_stderr(&format!("{path}: {line}"));
    }
}

fn report_counts(files: &Names, counts: &Counts, data: &DataSection) {
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
