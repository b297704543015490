//! Rows as people write them: conversations, pairs, prompts, not yet tokenised.
//!
//! The columns are those of the field (TRL, Hugging Face) and of the sets in common use (`ShareGPT`, Alpaca,
//! HH, OASST): see [`Layout`]. A string is accepted wherever turns are wanted: a prompt is then one user
//! turn, an answer one assistant turn. Training and `data convert` read rows here and nowhere else. Knows no
//! tokenizer and no file format.

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
pub use notes::Notes;
use parse::Fields;

/// A row of a table: column names and values.
pub type Row = Map<String, Value>;

/// A row to learn answers from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Demonstration {
    /// A conversation; every assistant turn is learned.
    Messages(Vec<Message>),
    /// A prompt and what follows; only assistant turns of the completion are learned.
    PromptCompletion {
        /// The turns before.
        prompt: Vec<Message>,
        /// The turns to learn.
        completion: Vec<Message>,
    },
    /// Running text; every token is learned.
    Text(String),
    /// Ready token ids, used as they are.
    Tokens {
        /// Token ids, `[T]`.
        input_ids: Vec<i64>,
        /// Labels, not shifted, -100 for no loss, `[T]`; without them every id is learned.
        labels: Option<Vec<i64>>,
    },
}

/// Two answers to one prompt, the first better.
#[derive(Clone, Debug, PartialEq)]
pub enum Preference {
    /// As turns.
    Messages {
        /// The turns before the answer.
        prompt: Vec<Message>,
        /// The better answer: one assistant turn.
        chosen: Vec<Message>,
        /// The worse answer: one assistant turn.
        rejected: Vec<Message>,
        /// By how much it is better, in units of reward.
        margin: Option<f64>,
    },
    /// As ready token ids.
    Tokens {
        /// Prompt and better answer.
        chosen: Vec<i64>,
        /// Prompt and worse answer.
        rejected: Vec<i64>,
        /// Ids of the prompt at the head of both.
        prompt_length: usize,
        /// By how much it is better, in units of reward.
        margin: Option<f64>,
    },
}

/// A prompt to answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// The turns before the answer.
    pub messages: Vec<Message>,
    /// The expected answer, for verifiers.
    pub answer: Option<String>,
}

/// An answer that is good or bad by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unpaired {
    /// The turns before the answer.
    pub prompt: Vec<Message>,
    /// The answer: one assistant turn.
    pub completion: Vec<Message>,
    /// Whether it is good.
    pub label: bool,
}

/// What a row gives.
#[derive(Clone, Debug, PartialEq)]
pub enum Parsed<R> {
    /// Rows to use: one as a rule, several from a tree.
    Rows(Vec<R>),
    /// Nothing to use, and why.
    Skipped(&'static str),
}

/// A kind of rows that can be read from and written to tables.
pub trait Record: Sized + Clone + Send + Sync + 'static {
    /// The name for messages, as in "preference rows".
    const KIND: &'static str;

    /// The layouts in which such rows may come. No layout belongs to two kinds.
    const LAYOUTS: &'static [Layout];

    /// Columns that say something and that rows of this kind have no use for.
    const UNUSED_COLUMNS: &'static [&'static str];

    /// Reads a row in one of [`Self::LAYOUTS`].
    fn read(layout: Layout, row: &Row, at: &RowLocation, mapping: &Mapping) -> Result<Parsed<Self>>;

    /// The layout in which this row is written.
    fn layout(&self) -> Layout;

    /// The row as columns of [`Self::layout`].
    fn to_row(&self) -> Row;

    /// The turns of the conversation, the better answer of a pair included; none where the row has no turns.
    fn turns(&self) -> Vec<&Message>;

    /// Reads a row that gives exactly one, with the usual names of columns, fields and roles.
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

    /// Checks a layout named by the user: it is one of [`Self::LAYOUTS`] and the columns of the file `path` have it.
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

    /// Tells the layout from the columns of the file `path`.
    ///
    /// Exactly one layout must fit, where one whose required columns are among another's gives way to that other; all else
    /// is an error that names the choices.
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
    const LAYOUTS: &'static [Layout] = &[Layout::Unpaired, Layout::KtoMessages];
    const UNUSED_COLUMNS: &'static [&'static str] = &[];

    fn read(layout: Layout, row: &Row, at: &RowLocation, mapping: &Mapping) -> Result<Parsed<Self>> {
        parse::unpaired(&Fields { row, at, mapping, layout })
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

#[cfg(test)]
mod tests;
