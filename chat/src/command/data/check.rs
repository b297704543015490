//! `data check`: what is in a file of rows, and what is wrong with it.
//!
//! Every row is read. A row that cannot be used is an error, of which the first few are shown; what may be meant so (equal
//! answers, rows twice, the text of a special token in what a person says) is counted.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use datasets::{
    Demonstration, Layout, Message, Preference, Prompt, Record, Role, Row, TableReader, Tokenizer, Unpaired,
};
use serde::Serialize;

use crate::args::CheckArgs;
use crate::command::print;
use crate::exit::Failure;
use crate::session;

/// Errors that are shown.
const SHOWN: usize = 5;

/// What was found.
#[derive(Debug, Default, Serialize)]
struct Report {
    file: PathBuf,
    layout: &'static str,
    columns: Vec<String>,
    rows: usize,
    unusable: usize,
    /// The first few.
    errors: Vec<String>,
    duplicates: usize,
    /// Pairs whose answers are equal.
    equal_answers: usize,
    /// Rows in which somebody writes the text of a special token.
    special_text: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<Tokens>,
}

/// Lengths in tokens.
#[derive(Debug, Serialize)]
struct Tokens {
    total: usize,
    /// Tokens that have a loss.
    learned: usize,
    shortest: usize,
    median: usize,
    longest: usize,
    mean: f64,
}

/// One row, measured.
#[derive(Default)]
struct Measured {
    /// Tokens of its sequences.
    lengths: Vec<usize>,
    learned: usize,
    equal_answers: bool,
    special_text: bool,
}

/// Reads the whole file; fails when a row cannot be used.
pub(crate) fn run(arguments: &CheckArgs) -> anyhow::Result<()> {
    let tokenizer = match &arguments.tokenizer {
        Some(name) => Some(session::tokenizer(&session::folder(name)?, None)?),
        None => None,
    };
    let report = check(&arguments.file, tokenizer.as_ref())?;
    print(&if arguments.json { serde_json::to_string_pretty(&report)? } else { report.text() })?;
    if report.unusable > 0 {
        return Err(Failure::Rows { file: report.file, unusable: report.unusable, rows: report.rows }.into());
    }
    Ok(())
}

fn check(path: &Path, tokenizer: Option<&Tokenizer>) -> Result<Report, datasets::Error> {
    let columns = TableReader::open(path)?.columns().to_vec();
    let report = Report { file: path.to_owned(), columns, ..Report::default() };
    if report.columns.is_empty() {
        return Err(datasets::Error::NoRows { path: path.to_owned() });
    }
    let mut fitting: Vec<(Layout, CheckAs)> = [
        (Demonstration::detect(&report.columns, path), check_as::<Demonstration> as CheckAs),
        (Preference::detect(&report.columns, path), check_as::<Preference>),
        (Prompt::detect(&report.columns, path), check_as::<Prompt>),
        (Unpaired::detect(&report.columns, path), check_as::<Unpaired>),
    ]
    .into_iter()
    .filter_map(|(layout, check)| Some((layout.ok()?, check)))
    .collect();
    // The layout that says most about the columns; with as much, an answer makes a conversation a prompt.
    let has_answer = report.columns.iter().any(|column| column == "answer");
    fitting
        .sort_by_key(|(layout, _)| (layout.required().len(), has_answer == Prompt::LAYOUTS.contains(layout)));
    match fitting.pop() {
        Some((layout, check)) => check(report, layout, tokenizer),
        // Of all messages about columns, the one about demonstrations names the most layouts.
        None => Err(Demonstration::detect(&report.columns, path).expect_err("no layout fits")),
    }
}

/// Reads the rest of the file as rows of one kind.
type CheckAs = fn(Report, Layout, Option<&Tokenizer>) -> Result<Report, datasets::Error>;

fn check_as<R: Measure>(
    mut report: Report,
    layout: Layout,
    tokenizer: Option<&Tokenizer>,
) -> Result<Report, datasets::Error> {
    let mut seen = HashSet::new();
    let (mut lengths, mut learned) = (Vec::new(), 0);
    report.layout = layout.name();
    for row in TableReader::open(&report.file)?.rows(None)? {
        let (at, row) = row?;
        report.rows += 1;
        let record = R::parse(layout, &row, &at);
        let measured = record.and_then(|record| {
            report.duplicates += usize::from(!seen.insert(hash(&record.to_row())));
            record.measure(tokenizer).map_err(|error| error.in_row(&at))
        });
        match measured {
            Ok(measured) => {
                lengths.extend(measured.lengths);
                learned += measured.learned;
                report.equal_answers += usize::from(measured.equal_answers);
                report.special_text += usize::from(measured.special_text);
            }
            Err(error) => {
                report.unusable += 1;
                if report.errors.len() < SHOWN {
                    report.errors.push(error.to_string());
                }
            }
        }
    }
    report.tokens = Tokens::new(lengths, learned);
    Ok(report)
}

fn hash(row: &Row) -> u64 {
    let mut hasher = DefaultHasher::new();
    serde_json::Value::Object(row.clone()).to_string().hash(&mut hasher);
    hasher.finish()
}

/// A kind of rows that can be measured.
trait Measure: Record {
    /// Looks at one row; with a tokenizer, as training would encode it.
    fn measure(&self, tokenizer: Option<&Tokenizer>) -> Result<Measured, datasets::Error>;
}

impl Measure for Demonstration {
    fn measure(&self, tokenizer: Option<&Tokenizer>) -> Result<Measured, datasets::Error> {
        let Some(tokenizer) = tokenizer else { return Ok(Measured::default()) };
        let row = tokenizer.encode_demonstration(self)?;
        let special_text = match self {
            Self::Messages(messages) => injects(tokenizer, messages),
            Self::PromptCompletion { prompt, .. } => injects(tokenizer, prompt),
            Self::Text(_) | Self::Tokens { .. } => false,
        };
        let learned = row.num_labels();
        Ok(Measured { lengths: vec![row.input_ids.len()], learned, special_text, ..Measured::default() })
    }
}

impl Measure for Preference {
    fn measure(&self, tokenizer: Option<&Tokenizer>) -> Result<Measured, datasets::Error> {
        let equal_answers = match self {
            Self::Messages { chosen, rejected, .. } => chosen == rejected,
            Self::Tokens { chosen, rejected, .. } => chosen == rejected,
        };
        let Some(tokenizer) = tokenizer else { return Ok(Measured { equal_answers, ..Measured::default() }) };
        let row = tokenizer.encode_preference(self)?;
        let lengths = vec![row.chosen.len(), row.rejected.len()];
        let learned = lengths.iter().map(|length| length - row.prompt_length).sum();
        let special_text = matches!(self, Self::Messages { prompt, .. } if injects(tokenizer, prompt));
        Ok(Measured { lengths, learned, equal_answers, special_text })
    }
}

impl Measure for Prompt {
    fn measure(&self, tokenizer: Option<&Tokenizer>) -> Result<Measured, datasets::Error> {
        let Some(tokenizer) = tokenizer else { return Ok(Measured::default()) };
        let lengths = vec![tokenizer.encode_prompt_row(self)?.input_ids.len()];
        Ok(Measured { lengths, special_text: injects(tokenizer, &self.messages), ..Measured::default() })
    }
}

impl Measure for Unpaired {
    fn measure(&self, tokenizer: Option<&Tokenizer>) -> Result<Measured, datasets::Error> {
        let Some(tokenizer) = tokenizer else { return Ok(Measured::default()) };
        let row = tokenizer.encode_unpaired(self)?;
        let learned = row.input_ids.len() - row.prompt_length;
        let special_text = injects(tokenizer, &self.prompt);
        Ok(Measured { lengths: vec![row.input_ids.len()], learned, special_text, ..Measured::default() })
    }
}

/// Whether a person writes the text of a special token, which would be taken for a real one.
fn injects(tokenizer: &Tokenizer, messages: &[Message]) -> bool {
    messages
        .iter()
        .any(|message| message.role == Role::User && tokenizer.special_text_in(&message.content).is_some())
}

impl Tokens {
    /// Statistics of sequences; `None` where nothing was measured.
    fn new(mut lengths: Vec<usize>, learned: usize) -> Option<Self> {
        lengths.sort_unstable();
        let (&shortest, &longest) = (lengths.first()?, lengths.last()?);
        let total = lengths.iter().sum();
        let mean = total as f64 / lengths.len() as f64;
        Some(Self { total, learned, shortest, median: lengths[lengths.len() / 2], longest, mean })
    }
}

impl Report {
    fn text(&self) -> String {
        let mut lines = vec![
            format!("file       {}", self.file.display()),
            format!("layout     {} (columns {})", self.layout, self.columns.join(", ")),
            format!("rows       {}, of which {} cannot be used", self.rows, self.unusable),
        ];
        if let Some(tokens) = &self.tokens {
            lines.push(format!("tokens     {} in all, {} of them learned", tokens.total, tokens.learned));
            lines.push(format!(
                "a row      {} to {} tokens, median {}, mean {:.1}",
                tokens.shortest, tokens.longest, tokens.median, tokens.mean
            ));
        }
        for (count, what) in [
            (self.duplicates, "rows that stood before"),
            (self.equal_answers, "pairs with equal answers, from which nothing is learned"),
            (self.special_text, "rows in which a person writes the text of a special token"),
        ] {
            if count > 0 {
                lines.push(format!("warning    {count} {what}"));
            }
        }
        lines.extend(self.errors.iter().map(|error| format!("error      {error}")));
        lines.join("\n")
    }
}
