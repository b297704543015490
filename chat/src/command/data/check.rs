//! `data check`: reports the contents of a data file and its problems.
//!
//! The layout is detected and every row is read exactly as in training and in `data convert`. A row that
//! cannot be used is an error, and the first few errors are shown. Findings that may be intended are only
//! counted: equal answers, duplicate rows, the text of a special token in a user turn, and two consecutive
//! turns of one speaker.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;

use datasets::{
    Demonstration, Error, Layout, Message, Notes, Preference, Prompt, ReadOptions, Record, Role, Row,
    RowLocation, TableReader, Tokenizer, Unpaired, open_records, table,
};
use inference::session::load_tokenizer;
use serde::Serialize;
use text::number::median;

use crate::args::CheckArgs;
use crate::console::print;
use crate::failure::Failure;
use crate::{exit, model_folder};

/// The maximum number of errors to show.
const MAX_SHOWN_ERRORS: usize = 10;

/// The findings on one file.
#[derive(Debug, Default, Serialize)]
struct Report {
    file: PathBuf,
    layout: &'static str,
    /// The purpose of rows of this layout, as in "preference rows".
    kind: &'static str,
    columns: Vec<String>,
    rows: usize,
    unusable: usize,
    /// The first few errors.
    errors: Vec<String>,
    duplicates: usize,
    /// The number of pairs with equal answers.
    equal_answers: usize,
    /// The number of rows in which a user turn contains the text of a special token.
    special_text: usize,
    /// Notes on fields that are not read, rows that are skipped, and unusual conversations.
    notes: Notes,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<TokenStats>,
}

/// Lengths in tokens.
#[derive(Debug, Serialize)]
struct TokenStats {
    total: usize,
    /// The number of tokens that contribute to the loss.
    label_tokens: usize,
    shortest: usize,
    median: f64,
    longest: usize,
    mean: f64,
}

/// The statistics of one row.
#[derive(Default)]
struct RowStats {
    /// The length of each sequence of the row in tokens.
    lengths: Vec<usize>,
    label_tokens: usize,
    equal_answers: bool,
    special_text: bool,
}

/// Checks the complete file and prints the report. Fails if a row cannot be used.
pub(crate) fn run(arguments: &CheckArgs) -> anyhow::Result<()> {
    let tokenizer = match &arguments.tokenizer {
        Some(name) => {
            Some(load_tokenizer(model_folder::find(name)?.tokenizer_path(), arguments.template.as_deref())?)
        }
        None => None,
    };
    let report = check(arguments, tokenizer.as_ref())?;
    print(&if arguments.json { serde_json::to_string_pretty(&report)? } else { report.text() })?;
    if report.rows == 0 {
        return Err(Error::NoRows { path: report.file }.into());
    }
    if report.unusable > 0 {
        return Err(Failure::Rows { file: report.file, unusable: report.unusable, rows: report.rows }.into());
    }
    Ok(())
}

fn check(arguments: &CheckArgs, tokenizer: Option<&Tokenizer>) -> Result<Report, Error> {
    let path = &arguments.file;
    table::refuse_stream(path)?;
    let mut reading =
        ReadOptions { drop: arguments.drop.clone(), layout_guessed: true, ..ReadOptions::default() };
    let columns = TableReader::open(path)?.columns().to_vec();
    if columns.is_empty() {
        return Err(Error::NoRows { path: path.clone() });
    }
    let layout = match &arguments.layout {
        Some(name) => {
            reading.layout_guessed = false;
            name.parse()?
        }
        None => Layout::guess(&reading.columns(&columns), path)?,
    };
    reading.layout = Some(layout);

    let report = Report { file: path.clone(), layout: layout.name(), columns, ..Report::default() };
    match layout {
        layout if Demonstration::LAYOUTS.contains(&layout) => {
            check_as::<Demonstration>(report, &reading, tokenizer)
        }
        layout if Preference::LAYOUTS.contains(&layout) => {
            check_as::<Preference>(report, &reading, tokenizer)
        }
        layout if Prompt::LAYOUTS.contains(&layout) => check_as::<Prompt>(report, &reading, tokenizer),
        _ => check_as::<Unpaired>(report, &reading, tokenizer),
    }
}

/// Reads the file as rows of type `R` and completes the report.
fn check_as<R: RowStatistics>(
    mut report: Report,
    reading: &ReadOptions,
    tokenizer: Option<&Tokenizer>,
) -> Result<Report, Error> {
    let mut seen = HashSet::new();
    let (mut lengths, mut learned) = (Vec::new(), 0);
    let mut rows = open_records::<R>(&report.file, reading)?;
    report.kind = R::KIND;

    while let Some(row) = rows.next_row() {
        report.rows += 1;
        let measured = row.and_then(|(at, records)| {
            let measure = |record: &R| {
                report.duplicates += usize::from(!seen.insert(hash(record.to_row())));
                record.measure(tokenizer).map_err(|error| error.in_row(&at))
            };
            records.iter().map(measure).collect::<Result<Vec<_>, _>>()
        });
        match measured {
            Ok(measured) => {
                for measured in measured {
                    lengths.extend(measured.lengths);
                    learned += measured.label_tokens;
                    report.equal_answers += usize::from(measured.equal_answers);
                    report.special_text += usize::from(measured.special_text);
                }
            }
            Err(error) if ends_file(&error) => return Err(error),
            Err(error) => {
                report.unusable += 1;
                if report.errors.len() < MAX_SHOWN_ERRORS {
                    report.errors.push(exit::shortened(error.to_string()));
                }
            }
        }
    }

    report.notes = rows.notes().clone();
    report.tokens = TokenStats::new(lengths, learned);
    Ok(report)
}

/// Whether no further row can be read after this error.
fn ends_file(error: &Error) -> bool {
    match error {
        Error::Read { .. } | Error::DamagedGzip { .. } | Error::Unpacks { .. } | Error::Arrow { .. } => true,
        // A broken line ends only itself.
        Error::BadJson { at, .. } => RowLocation::unit(&at.path) != "line",
        _ => false,
    }
}

fn hash(row: Row) -> u64 {
    let mut hasher = DefaultHasher::new();
    serde_json::Value::Object(row).to_string().hash(&mut hasher);
    hasher.finish()
}

/// A row type with statistics.
trait RowStatistics: Record {
    /// Computes the statistics of the row. With a tokenizer, the row is encoded as in training.
    fn measure(&self, tokenizer: Option<&Tokenizer>) -> Result<RowStats, Error>;
}

impl RowStatistics for Demonstration {
    fn measure(&self, tokenizer: Option<&Tokenizer>) -> Result<RowStats, Error> {
        let Some(tokenizer) = tokenizer else { return Ok(RowStats::default()) };
        let row = tokenizer.encode_demonstration(self)?;
        let special_text = match self {
            Self::Messages { messages, .. } => contains_special_token(tokenizer, messages),
            Self::PromptCompletion { prompt, .. } => contains_special_token(tokenizer, prompt),
            Self::Text(_) | Self::Tokens { .. } => false,
        };
        let label_tokens = row.num_label_tokens();
        Ok(RowStats { lengths: vec![row.input_ids.len()], label_tokens, special_text, ..RowStats::default() })
    }
}

impl RowStatistics for Preference {
    fn measure(&self, tokenizer: Option<&Tokenizer>) -> Result<RowStats, Error> {
        let equal_answers = match self {
            Self::Messages { chosen, rejected, .. } => chosen == rejected,
            Self::Tokens { chosen, rejected, .. } => chosen == rejected,
        };
        let Some(tokenizer) = tokenizer else { return Ok(RowStats { equal_answers, ..RowStats::default() }) };
        let row = tokenizer.encode_preference(self)?;
        let lengths = vec![row.chosen.len(), row.rejected.len()];
        let label_tokens = lengths.iter().map(|length| length - row.prompt_length).sum();
        let special_text =
            matches!(self, Self::Messages { prompt, .. } if contains_special_token(tokenizer, prompt));
        Ok(RowStats { lengths, label_tokens, equal_answers, special_text })
    }
}

impl RowStatistics for Prompt {
    fn measure(&self, tokenizer: Option<&Tokenizer>) -> Result<RowStats, Error> {
        let Some(tokenizer) = tokenizer else { return Ok(RowStats::default()) };
        let lengths = vec![tokenizer.encode_prompt_row(self)?.input_ids.len()];
        Ok(RowStats {
            lengths,
            special_text: contains_special_token(tokenizer, &self.messages),
            ..RowStats::default()
        })
    }
}

impl RowStatistics for Unpaired {
    fn measure(&self, tokenizer: Option<&Tokenizer>) -> Result<RowStats, Error> {
        let Some(tokenizer) = tokenizer else { return Ok(RowStats::default()) };
        let row = tokenizer.encode_unpaired(self)?;
        let label_tokens = row.input_ids.len() - row.prompt_length;
        let special_text = contains_special_token(tokenizer, &self.prompt);
        Ok(RowStats { lengths: vec![row.input_ids.len()], label_tokens, special_text, ..RowStats::default() })
    }
}

/// Whether a user turn contains the text of a special token, which the tokenizer would encode as the real
/// token.
fn contains_special_token(tokenizer: &Tokenizer, messages: &[Message]) -> bool {
    messages
        .iter()
        .any(|message| message.role == Role::User && tokenizer.special_text_in(&message.content).is_some())
}

impl TokenStats {
    /// Computes the statistics of sequence lengths. Returns `None` if there is no sequence.
    fn new(mut lengths: Vec<usize>, label_tokens: usize) -> Option<Self> {
        lengths.sort_unstable();
        let (&shortest, &longest) = (lengths.first()?, lengths.last()?);
        let total = lengths.iter().sum();
        let mean = total as f64 / lengths.len() as f64;
        let median = median(lengths.iter().map(|&length| length as f64).collect())?;
        Some(Self { total, label_tokens, shortest, median, longest, mean })
    }
}

impl Report {
    fn text(&self) -> String {
        let mut lines = vec![
            format!("file       {}", self.file.display()),
            format!("layout     {}: {} rows (columns {})", self.layout, self.kind, self.columns.join(", ")),
            format!("rows       {}, of which {} cannot be used", self.rows, self.unusable),
        ];
        if let Some(tokens) = &self.tokens {
            lines.push(format!(
                "tokens     {} in all, {} of them with a loss",
                tokens.total, tokens.label_tokens
            ));
            lines.push(format!(
                "a row      {} to {} tokens, median {}, mean {:.1}",
                tokens.shortest, tokens.longest, tokens.median, tokens.mean
            ));
        }

        for (count, what) in [
            (self.duplicates, "rows that are in the file more than once"),
            (self.equal_answers, "pairs with equal answers, from which nothing is learned"),
            (self.special_text, "rows in which a person writes the text of a special token"),
        ] {
            if count > 0 {
                lines.push(format!("warning    {count} {what}"));
            }
        }

        let notes = self.notes.lines(RowLocation::unit(&self.file), true);
        lines.extend(notes.iter().map(|note| format!("note       {note}")));
        lines.extend(self.errors.iter().map(|error| format!("error      {error}")));
        if self.unusable > self.errors.len() {
            lines.push(format!("error      and {} more", self.unusable - self.errors.len()));
        }
        lines.join("\n")
    }
}
