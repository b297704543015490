//! Foreign layouts to the canonical columns: what `data convert` does.
//!
//! The layout is named by the user, or told by columns that no other layout has, and reported. `ShareGPT` (`conversations`
//! with `from` and `value`), Alpaca (`instruction`, `input`, `output`), HH transcripts ("\n\nHuman: … \n\nAssistant: …"),
//! OASST message trees, `ColossalChat`'s own (`messages` with `from` and `content`; `context`, `chosen`, `rejected`),
//! LLaMA-Factory's preference and KTO files; and any of the canonical layouts under other names through a [`Mapping`].
//! Knows no tokenizer.

mod alpaca;
mod hh;
mod mapping;
mod oasst;
mod sharegpt;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

use crate::error::{At, Error, Result};
use crate::record::{Demonstration, Layout, Preference, Prompt, Record, Row, Unpaired};
use crate::table::{TableReader, write_records};

pub use mapping::Mapping;

/// A layout that is not canonical.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Foreign {
    /// `conversations`: turns with `from` and `value`; `system` if there is one.
    ShareGpt,
    /// `conversations`, with `chosen` and `rejected` as one turn each.
    ShareGptPreference,
    /// `instruction`, `input`, `output`; `system` if there is one.
    Alpaca,
    /// `instruction`, `input`, `chosen`, `rejected`.
    AlpacaPreference,
    /// `chosen`, `rejected` as transcripts that begin with "Human:".
    HhTranscripts,
    /// A tree of messages with `replies`, ranked: one conversation down the best path each.
    OasstConversations,
    /// A tree of messages with `replies`, ranked: all pairs of siblings of different rank.
    OasstPreference,
    /// `messages` as turns with `from` and `content`.
    ColossalMessages,
    /// `context`, `chosen`, `rejected` as turns with `from` and `content`.
    ColossalPreference,
    /// `messages` that end in an answer, and `label`.
    KtoMessages,
    /// The canonical layout itself, with columns and roles renamed by the mapping.
    Canonical(Layout),
}

impl Foreign {
    const ALL: [(Self, &'static str, &'static [&'static str]); 10] = [
        (Self::ShareGptPreference, "sharegpt-preference", &["conversations", "chosen", "rejected"]),
        (Self::ShareGpt, "sharegpt", &["conversations"]),
        (Self::AlpacaPreference, "alpaca-preference", &["instruction", "chosen", "rejected"]),
        (Self::Alpaca, "alpaca", &["instruction", "output"]),
        (Self::ColossalPreference, "colossal-preference", &["context", "chosen", "rejected"]),
        (Self::OasstPreference, "oasst-preference", &["message_tree_id", "prompt"]),
        (Self::OasstConversations, "oasst", &["message_tree_id", "prompt"]),
        (Self::KtoMessages, "kto-messages", &["messages", "label"]),
        (Self::HhTranscripts, "hh", &["chosen", "rejected"]),
        (Self::ColossalMessages, "colossal", &["messages"]),
    ];

    /// The name for settings and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Canonical(layout) => layout.name(),
            _ => Self::ALL.iter().find(|entry| entry.0 == self).map_or("", |entry| entry.1),
        }
    }

    /// Every foreign layout's name and required columns, for help texts.
    pub fn known() -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
        Self::ALL.iter().map(|&(_, name, columns)| (name, columns))
    }

    /// Tells the layout from the columns and the first row; anything doubtful is an error that names the choices.
    fn detect(columns: &[String], first: &Row, path: &Path) -> Result<Self> {
        let has = |wanted: &[&str]| wanted.iter().all(|name| columns.iter().any(|column| column == name));
        let found = columns.join(", ");
        let fail = |choices: &str| {
            Err(Error::AmbiguousLayout {
                path: path.to_owned(),
                found: found.clone(),
                choices: choices.to_owned(),
            })
        };
        if has(&["message_tree_id", "prompt"]) {
            return fail("oasst-preference or oasst");
        }
        if has(&["instruction", "output", "chosen", "rejected"]) {
            return fail("alpaca-preference or alpaca");
        }
        let from = |turn: &serde_json::Value| turn.get("from").is_some();
        let foreign_turns = first
            .get("messages")
            .and_then(|turns| turns.as_array())
            .is_some_and(|turns| turns.iter().all(from));
        let transcripts =
            ["chosen", "rejected"].iter().all(|side| first.get(*side).is_some_and(hh::is_transcript));
        let fits = |layout: Self, wanted: &[&str]| match layout {
            Self::HhTranscripts => has(wanted) && transcripts,
            Self::ColossalMessages => has(wanted) && foreign_turns,
            _ => has(wanted),
        };
        let known = Self::ALL.iter().find(|(layout, _, wanted)| fits(*layout, wanted));
        known.map(|entry| entry.0).ok_or_else(|| Error::MissingColumn {
            path: path.to_owned(),
            kind: "foreign",
            found: found.clone(),
            wanted: Self::known()
                .map(|(name, wanted)| format!("{name} ({})", wanted.join(", ")))
                .collect::<Vec<_>>()
                .join(" or "),
        })
    }
}

impl fmt::Display for Foreign {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

impl FromStr for Foreign {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        if let Some(entry) = Self::ALL.iter().find(|entry| entry.1 == name) {
            return Ok(entry.0);
        }
        name.parse().map(Self::Canonical).map_err(|error| match error {
            Error::UnknownLayout { given, known } => {
                let foreign: Vec<&str> = Self::known().map(|(name, _)| name).collect();
                Error::UnknownLayout { given, known: format!("{}, {known}", foreign.join(", ")) }
            }
            other => other,
        })
    }
}

/// How to convert.
#[derive(Clone, Debug, Default)]
pub struct ConvertOptions {
    /// The layout of the input; told by its columns where it is `None`.
    pub from: Option<Foreign>,
    /// Other names for columns, fields and roles.
    pub mapping: Mapping,
}

/// What was converted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvertReport {
    /// The layout of the input.
    pub from: Foreign,
    /// The layout of the output.
    pub to: Layout,
    /// Rows read.
    pub read: usize,
    /// Rows written; a tree gives several.
    pub written: usize,
    /// Rows left out, by reason.
    pub skipped: BTreeMap<&'static str, usize>,
}

/// What became of a foreign row.
enum Converted<R> {
    Rows(Vec<R>),
    Skipped(&'static str),
}

/// Converts the file `input` to `output`; the names tell the formats.
pub fn convert(input: &Path, output: &Path, options: &ConvertOptions) -> Result<ConvertReport> {
    let reader = TableReader::open(input)?;
    let columns = reader.columns().to_vec();
    let mut rows = reader.rows(None)?.peekable();
    let from = match (options.from, rows.peek()) {
        (Some(from), _) => from,
        (None, Some(Ok((_, first)))) => options.mapping.layout(&columns, first, input)?,
        (None, Some(Err(_))) => return Err(rows.next().and_then(Result::err).expect("an error was seen")),
        (None, None) => return Err(Error::NoRows { path: input.to_owned() }),
    };
    let job = Job { from, mapping: &options.mapping, output };
    match from {
        Foreign::ShareGpt | Foreign::ColossalMessages => job.run(rows, sharegpt::conversation),
        Foreign::ShareGptPreference => job.run(rows, |row| sharegpt::preference("conversations", row)),
        Foreign::ColossalPreference => job.run(rows, |row| sharegpt::preference("context", row)),
        Foreign::KtoMessages => job.run(rows, sharegpt::unpaired),
        Foreign::Alpaca => job.run(rows, alpaca::demonstration),
        Foreign::AlpacaPreference => job.run(rows, alpaca::preference),
        Foreign::HhTranscripts => job.run(rows, hh::preference),
        Foreign::OasstPreference => job.run(rows, oasst::preferences),
        Foreign::OasstConversations => job.run(rows, oasst::conversations),
        Foreign::Canonical(layout) if Demonstration::LAYOUTS.contains(&layout) => {
            job.run(rows, |row| row.canonical::<Demonstration>(layout))
        }
        Foreign::Canonical(layout) if Preference::LAYOUTS.contains(&layout) => {
            job.run(rows, |row| row.canonical::<Preference>(layout))
        }
        Foreign::Canonical(layout) if Prompt::LAYOUTS.contains(&layout) => {
            job.run(rows, |row| row.canonical::<Prompt>(layout))
        }
        Foreign::Canonical(layout) => job.run(rows, |row| row.canonical::<Unpaired>(layout)),
    }
}

struct Job<'a> {
    from: Foreign,
    mapping: &'a Mapping,
    output: &'a Path,
}

impl Job<'_> {
    fn run<R: Record>(
        &self,
        rows: impl Iterator<Item = Result<(At, Row)>>,
        convert: impl Fn(&ForeignRow<'_>) -> Result<Converted<R>>,
    ) -> Result<ConvertReport> {
        let mut records = Vec::new();
        let mut skipped = BTreeMap::new();
        let mut read = 0;
        for row in rows {
            let (at, row) = row?;
            read += 1;
            let row = self.mapping.rename(row);
            match convert(&ForeignRow { row: &row, at: &at, mapping: self.mapping, from: self.from })? {
                Converted::Rows(found) => records.extend(found),
                Converted::Skipped(reason) => *skipped.entry(reason).or_insert(0) += 1,
            }
        }
        write_records(self.output, &records)?;
        let to = records.first().map_or(R::LAYOUTS[0], Record::layout);
        Ok(ConvertReport { from: self.from, to, read, written: records.len(), skipped })
    }
}

/// A row to convert.
struct ForeignRow<'a> {
    row: &'a Row,
    at: &'a At,
    mapping: &'a Mapping,
    from: Foreign,
}

impl ForeignRow<'_> {
    fn canonical<R: Record>(&self, layout: Layout) -> Result<Converted<R>> {
        let row = self.mapping.canonical_turns(self.row);
        R::parse(layout, &row, self.at).map(|record| Converted::Rows(vec![record]))
    }

    fn bad(&self, reason: impl Into<String>) -> Error {
        Error::BadForeignRow { at: self.at.clone(), reason: reason.into() }
    }

    /// A text, empty where the field is missing or null.
    fn text(&self, field: &str) -> Result<&str> {
        match self.row.get(field) {
            None | Some(serde_json::Value::Null) => Ok(""),
            Some(serde_json::Value::String(text)) => Ok(text),
            Some(_) => Err(self.bad(format!("field {field} is not a text"))),
        }
    }
}

#[cfg(test)]
mod tests;
