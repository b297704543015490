//! Untokenized records: conversations, preference pairs and prompts.
//!
//! The column names are those of TRL and Hugging Face and of the common data sets (`ShareGPT`, Alpaca, HH,
//! OASST); see [`Layout`]. A string is accepted wherever a list of turns is expected: a prompt string becomes
//! one user turn, and a completion string one assistant turn. Training and `data convert` both read rows
//! through this module. The module does not depend on a tokenizer or a file format.

mod alpaca;
mod layout;
mod mapping;
pub(crate) mod notes;
mod oasst;
mod parse;
mod transcript;
mod write;

use std::path::Path;

use serde_json::{Map, Value};

use crate::conversation::Message;
use crate::error::{Error, Result, RowLocation};

pub use layout::Layout;
pub use mapping::Mapping;
pub use notes::{Notes, preview};
use parse::Fields;

/// A row of a table: column names and values.
pub type Row = Map<String, Value>;

/// A row for supervised fine-tuning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Demonstration {
    /// A conversation. The loss covers every assistant turn without [`Message::ignore_loss`].
    Messages(Vec<Message>),
    /// A prompt and a completion. The loss covers only assistant turns of the completion.
    PromptCompletion {
        /// The turns before the completion.
        prompt: Vec<Message>,
        /// The turns to train on.
        completion: Vec<Message>,
    },
    /// Plain text. The loss covers every token.
    Text(String),
    /// Token ids from the file, used as they are.
    Tokens {
        /// Token ids, `[T]`.
        input_ids: Vec<i64>,
        /// Labels, not shifted, with -100 for no loss, `[T]`. Without labels the loss covers every id.
        labels: Option<Vec<i64>>,
    },
}

/// Two completions of one prompt; the chosen one is better.
#[derive(Clone, Debug, PartialEq)]
pub enum Preference {
    /// A pair of conversations.
    Messages {
        /// The turns before the completion.
        prompt: Vec<Message>,
        /// The better completion: one assistant turn.
        chosen: Vec<Message>,
        /// The worse completion: one assistant turn.
        rejected: Vec<Message>,
        /// How much better the chosen completion is, in units of reward.
        margin: Option<f64>,
    },
    /// A pair of token id sequences from the file.
    Tokens {
        /// Prompt and better completion.
        chosen: Vec<i64>,
        /// Prompt and worse completion.
        rejected: Vec<i64>,
        /// Number of prompt ids at the start of both sides.
        prompt_length: usize,
        /// How much better the chosen completion is, in units of reward.
        margin: Option<f64>,
    },
}

/// A prompt for generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// The turns before the completion.
    pub messages: Vec<Message>,
    /// The expected answer, for verifiers.
    pub answer: Option<String>,
}

/// A completion that is labelled good or bad by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unpaired {
    /// The turns before the completion.
    pub prompt: Vec<Message>,
    /// The completion: one assistant turn.
    pub completion: Vec<Message>,
    /// Whether the completion is good.
    pub label: bool,
}

/// The result of parsing a row.
#[derive(Clone, Debug, PartialEq)]
pub enum Parsed<R> {
    /// Records to use: usually one, several from a message tree.
    Rows(Vec<R>),
    /// The row was skipped, for this reason.
    Skipped(&'static str),
}

/// A type of record that can be read from and written to tables.
pub trait Record: Sized + Clone + Send + Sync + 'static {
    /// The name used in messages, as in "preference rows".
    const KIND: &'static str;

    /// The layouts in which these records may be stored. No layout belongs to two record types.
    const LAYOUTS: &'static [Layout];

    /// Semantic columns that this record type does not use. They count as metadata.
    const UNUSED_COLUMNS: &'static [&'static str];

    /// Reads a row in one of [`Self::LAYOUTS`].
    fn read(layout: Layout, row: &Row, at: &RowLocation, mapping: &Mapping) -> Result<Parsed<Self>>;

    /// Returns the layout in which this record is written.
    fn layout(&self) -> Layout;

    /// Converts the record to the columns of [`Self::layout`].
    fn to_row(&self) -> Row;

    /// Returns the turns of the conversation, with the better completion of a pair. Empty if the record has
    /// no turns.
    fn turns(&self) -> Vec<&Message>;

    /// Reads a row that gives exactly one record, with the usual names of columns, fields and roles.
    fn parse(layout: Layout, row: &Row, at: &RowLocation) -> Result<Self> {
        match Self::read(layout, row, at, &Mapping::default())? {
            Parsed::Rows(mut rows) if rows.len() == 1 => Ok(rows.remove(0)),
            Parsed::Rows(rows) => {
                Err(Error::BadForeignRow { at: at.clone(), reason: format!("it gives {} rows", rows.len()) })
            }
            Parsed::Skipped(reason) => {
                Err(Error::BadForeignRow { at: at.clone(), reason: reason.to_owned() })
            }
        }
    }

    /// Checks a layout named by the user: it must be one of [`Self::LAYOUTS`], and the file `path` must have
    /// its columns.
    fn require(layout: Layout, columns: &[String], path: &Path) -> Result<Layout> {
        if !Self::LAYOUTS.contains(&layout) {
            let known = Self::LAYOUTS.iter().map(|layout| layout.name()).collect::<Vec<_>>().join(", ");
            return Err(Error::UnknownLayout { given: layout.name().to_owned(), known });
        }
        if !layout.fits(columns) {
            return Err(Error::MissingColumn {
                path: path.to_owned(),
                kind: Self::KIND,
                found: layout::named(columns),
                wanted: layout::describe(&[layout]),
            });
        }
        Ok(layout)
    }

    /// Detects the layout from the columns of the file `path`.
    ///
    /// Exactly one layout must fit. A layout whose required columns are a subset of another fitting layout's
    /// required columns is ignored. Any other result is an error that names the choices.
    fn detect(columns: &[String], path: &Path) -> Result<Layout> {
        Layout::among(Self::LAYOUTS, columns, Self::KIND, path)
    }
}

impl Record for Demonstration {
    const KIND: &'static str = "demonstration";
    const LAYOUTS: &'static [Layout] = &[
        Layout::Messages,
        Layout::ShareGpt,
        Layout::PromptCompletion,
        Layout::PromptResponse,
        Layout::Alpaca,
        Layout::InstructionResponse,
        Layout::Oasst,
        Layout::Text,
        Layout::Tokens,
    ];
    const UNUSED_COLUMNS: &'static [&'static str] = &[];

    fn read(layout: Layout, row: &Row, at: &RowLocation, mapping: &Mapping) -> Result<Parsed<Self>> {
        let fields = Fields { row, at, mapping, layout };
        match layout {
            Layout::Alpaca => alpaca::demonstration(&fields, "output"),
            Layout::InstructionResponse => alpaca::demonstration(&fields, "response"),
            Layout::Oasst => oasst::conversations(&fields),
            _ => parse::demonstration(&fields),
        }
    }

    fn layout(&self) -> Layout {
        match self {
            Self::Messages(_) => Layout::Messages,
            Self::PromptCompletion { .. } => Layout::PromptCompletion,
            Self::Text(_) => Layout::Text,
            Self::Tokens { .. } => Layout::Tokens,
        }
    }

    fn to_row(&self) -> Row {
        write::demonstration(self)
    }

    fn turns(&self) -> Vec<&Message> {
        match self {
            Self::Messages(messages) => messages.iter().collect(),
            Self::PromptCompletion { prompt, completion } => prompt.iter().chain(completion).collect(),
            Self::Text(_) | Self::Tokens { .. } => Vec::new(),
        }
    }
}

impl Record for Preference {
    const KIND: &'static str = "preference";
    const LAYOUTS: &'static [Layout] = &[
        Layout::Preference,
        Layout::ImplicitPreference,
        Layout::ShareGptPreference,
        Layout::AlpacaPreference,
        Layout::ColossalPreference,
        Layout::OasstPreference,
        Layout::PreferenceTokens,
    ];
    const UNUSED_COLUMNS: &'static [&'static str] = &["messages", "output", "response", "completion"];

    fn read(layout: Layout, row: &Row, at: &RowLocation, mapping: &Mapping) -> Result<Parsed<Self>> {
        let fields = Fields { row, at, mapping, layout };
        match layout {
            Layout::AlpacaPreference => alpaca::preference(&fields),
            Layout::OasstPreference => oasst::preferences(&fields),
            _ => parse::preference(&fields),
        }
    }

    fn layout(&self) -> Layout {
        match self {
            Self::Messages { .. } => Layout::Preference,
            Self::Tokens { .. } => Layout::PreferenceTokens,
        }
    }

    fn to_row(&self) -> Row {
        write::preference(self)
    }

    fn turns(&self) -> Vec<&Message> {
        match self {
            Self::Messages { prompt, chosen, .. } => prompt.iter().chain(chosen).collect(),
            Self::Tokens { .. } => Vec::new(),
        }
    }
}

impl Record for Prompt {
    const KIND: &'static str = "prompt";
    const LAYOUTS: &'static [Layout] = &[Layout::Prompt, Layout::PromptMessages];
    const UNUSED_COLUMNS: &'static [&'static str] =
        &["completion", "response", "output", "chosen", "rejected", "label", "labels", "margin"];

    fn read(layout: Layout, row: &Row, at: &RowLocation, mapping: &Mapping) -> Result<Parsed<Self>> {
        parse::prompt(&Fields { row, at, mapping, layout })
    }

    fn layout(&self) -> Layout {
        Layout::Prompt
    }

    fn to_row(&self) -> Row {
        write::prompt(self)
    }

    fn turns(&self) -> Vec<&Message> {
        self.messages.iter().collect()
    }
}

impl Record for Unpaired {
    const KIND: &'static str = "unpaired";
    const LAYOUTS: &'static [Layout] = &[
        Layout::Unpaired,
        Layout::KtoMessages,
        // A pair is a good and a bad completion.
        Layout::Preference,
        Layout::ImplicitPreference,
        Layout::ShareGptPreference,
        Layout::AlpacaPreference,
        Layout::ColossalPreference,
        Layout::OasstPreference,
    ];
    const UNUSED_COLUMNS: &'static [&'static str] = &[];

    fn read(layout: Layout, row: &Row, at: &RowLocation, mapping: &Mapping) -> Result<Parsed<Self>> {
        if !Preference::LAYOUTS.contains(&layout) {
            return parse::unpaired(&Fields { row, at, mapping, layout });
        }
        Ok(match Preference::read(layout, row, at, mapping)? {
            Parsed::Rows(pairs) => Parsed::Rows(pairs.into_iter().flat_map(Self::of_pair).collect()),
            Parsed::Skipped(reason) => Parsed::Skipped(reason),
        })
    }

    fn layout(&self) -> Layout {
        Layout::Unpaired
    }

    fn to_row(&self) -> Row {
        write::unpaired(self)
    }

    fn turns(&self) -> Vec<&Message> {
        self.prompt.iter().chain(&self.completion).collect()
    }
}

impl Unpaired {
    /// The good and the bad completion of a pair. A tokenized pair has no turns.
    fn of_pair(pair: Preference) -> Vec<Self> {
        match pair {
            Preference::Messages { prompt, chosen, rejected, .. } => vec![
                Self { prompt: prompt.clone(), completion: chosen, label: true },
                Self { prompt, completion: rejected, label: false },
            ],
            Preference::Tokens { .. } => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests;
