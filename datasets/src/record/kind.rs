//! The four kinds of records, and what all of them have.

use std::path::Path;

use serde_json::Value;

use super::layout::{self, Layout};
use super::mapping::Mapping;
use crate::conversation::Message;
use crate::error::{Error, Result, RowLocation};
use crate::table::Row;

/// A row for supervised fine-tuning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Demonstration {
    /// A conversation. The loss covers every assistant turn without [`Message::ignore_loss`].
    Messages {
        /// The turns.
        messages: Vec<Message>,
        /// The tools that the assistant may call: a list of descriptions.
        tools: Option<Value>,
    },
    /// A prompt and a completion. The loss covers only assistant turns of the completion.
    PromptCompletion {
        /// The turns before the completion.
        prompt: Vec<Message>,
        /// The turns to train on.
        completion: Vec<Message>,
        /// The tools that the assistant may call.
        tools: Option<Value>,
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

impl Demonstration {
    /// A conversation in which there are no tools to call.
    pub fn without_tools(messages: Vec<Message>) -> Self {
        Self::Messages { messages, tools: None }
    }
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
        /// The tools that the assistant may call.
        tools: Option<Value>,
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
    /// The tools that the assistant may call.
    pub tools: Option<Value>,
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
    /// The tools that the assistant may call.
    pub tools: Option<Value>,
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

    /// Returns the worse completion of a pair. Empty in records that have none.
    fn rejected(&self) -> &[Message] {
        &[]
    }

    /// Returns the descriptions of the tools that the assistant may call.
    fn tools(&self) -> Option<&Value>;

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
