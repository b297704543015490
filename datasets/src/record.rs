//! Rows as people write them: conversations, pairs, prompts, not yet tokenised.
//!
//! The columns are those of the field (TRL, Hugging Face): see [`Layout`]. A string is accepted wherever turns are wanted:
//! a prompt is then one user turn, an answer one assistant turn. Knows no tokenizer and no file format.

mod parse;
mod write;

use std::fmt;
use std::str::FromStr;

use serde_json::{Map, Value};

use crate::conversation::Message;
use crate::error::{At, Error, Result};

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

/// Which columns a table has, and so what its rows mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// `messages`.
    Messages,
    /// `prompt`, `completion`.
    PromptCompletion,
    /// `text`.
    Text,
    /// `input_ids`, and `labels` if there are any.
    Tokens,
    /// `prompt`, `chosen`, `rejected`, and `margin` if there is one.
    Preference,
    /// `chosen` and `rejected` as whole conversations that share all but the last turn.
    ImplicitPreference,
    /// `chosen_input_ids`, `rejected_input_ids`, `prompt_length`, and `margin` if there is one.
    PreferenceTokens,
    /// `prompt`, and `answer` if there is one.
    Prompt,
    /// `messages` as a prompt, a last assistant turn left out, and `answer` if there is one.
    PromptMessages,
    /// `prompt`, `completion`, `label`.
    Unpaired,
}

impl Layout {
    const ALL: [Self; 10] = [
        Self::Messages,
        Self::PromptCompletion,
        Self::Text,
        Self::Tokens,
        Self::Preference,
        Self::ImplicitPreference,
        Self::PreferenceTokens,
        Self::Prompt,
        Self::PromptMessages,
        Self::Unpaired,
    ];

    /// The name for messages and settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Messages => "messages",
            Self::PromptCompletion => "prompt-completion",
            Self::Text => "text",
            Self::Tokens => "tokens",
            Self::Preference => "preference",
            Self::ImplicitPreference => "implicit-preference",
            Self::PreferenceTokens => "preference-tokens",
            Self::Prompt => "prompt",
            Self::PromptMessages => "prompt-messages",
            Self::Unpaired => "unpaired",
        }
    }

    /// The columns that must be there.
    pub fn required(self) -> &'static [&'static str] {
        match self {
            Self::Messages | Self::PromptMessages => &["messages"],
            Self::PromptCompletion => &["prompt", "completion"],
            Self::Text => &["text"],
            Self::Tokens => &["input_ids"],
            Self::Preference => &["prompt", "chosen", "rejected"],
            Self::ImplicitPreference => &["chosen", "rejected"],
            Self::PreferenceTokens => &["chosen_input_ids", "rejected_input_ids", "prompt_length"],
            Self::Prompt => &["prompt"],
            Self::Unpaired => &["prompt", "completion", "label"],
        }
    }

    /// The columns that are read when they are there.
    pub fn optional(self) -> &'static [&'static str] {
        match self {
            Self::Tokens => &["labels"],
            Self::Preference | Self::ImplicitPreference | Self::PreferenceTokens => &["margin"],
            Self::Prompt | Self::PromptMessages => &["answer"],
            _ => &[],
        }
    }

    fn fits(self, columns: &[String]) -> bool {
        self.required().iter().all(|wanted| columns.iter().any(|column| column == wanted))
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

impl FromStr for Layout {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|layout| layout.name() == name).ok_or_else(|| Error::UnknownLayout {
            given: name.to_owned(),
            known: Self::ALL.map(Self::name).join(", "),
        })
    }
}

/// A kind of rows that can be read from and written to tables.
pub trait Record: Sized + Clone + Send + Sync {
    /// The name for messages, as in "preference rows".
    const KIND: &'static str;

    /// The layouts in which such rows may come. A layout whose columns contain another's comes first and wins.
    const LAYOUTS: &'static [Layout];

    /// Reads a row in one of [`Self::LAYOUTS`].
    fn parse(layout: Layout, row: &Row, at: &At) -> Result<Self>;

    /// The layout in which this row is written.
    fn layout(&self) -> Layout;

    /// The row as columns of [`Self::layout`].
    fn to_row(&self) -> Row;

    /// Checks a layout named by the user: it is one of [`Self::LAYOUTS`] and the columns of the file `path` have it.
    fn require(layout: Layout, columns: &[String], path: &std::path::Path) -> Result<Layout> {
        if !Self::LAYOUTS.contains(&layout) {
            let known = Self::LAYOUTS.iter().map(|layout| layout.name()).collect::<Vec<_>>().join(", ");
            return Err(Error::UnknownLayout { given: layout.name().to_owned(), known });
        }
        if !layout.fits(columns) {
            return Err(Error::MissingColumn {
                path: path.to_owned(),
                kind: Self::KIND,
                found: columns.join(", "),
                wanted: describe(&[layout]),
            });
        }
        Ok(layout)
    }

    /// Tells the layout from the columns of the file `path`.
    ///
    /// Exactly one layout must fit, where one whose required columns are among another's gives way to that other; all else
    /// is an error that names the choices.
    fn detect(columns: &[String], path: &std::path::Path) -> Result<Layout> {
        let fitting: Vec<Layout> =
            Self::LAYOUTS.iter().copied().filter(|layout| layout.fits(columns)).collect();
        let covered = |layout: Layout| {
            fitting.iter().any(|other| {
                other.required().len() > layout.required().len()
                    && layout.required().iter().all(|column| other.required().contains(column))
            })
        };
        let best: Vec<Layout> = fitting.iter().copied().filter(|&layout| !covered(layout)).collect();
        let path = path.to_owned();
        let found = columns.join(", ");
        match best[..] {
            [layout] => Ok(layout),
            [] => {
                Err(Error::MissingColumn { path, kind: Self::KIND, found, wanted: describe(Self::LAYOUTS) })
            }
            _ => Err(Error::AmbiguousLayout { path, found, choices: describe(&best) }),
        }
    }
}

fn describe(layouts: &[Layout]) -> String {
    let one = |layout: &Layout| format!("{layout} ({})", layout.required().join(", "));
    layouts.iter().map(one).collect::<Vec<_>>().join(" or ")
}

impl Record for Demonstration {
    const KIND: &'static str = "demonstration";
    const LAYOUTS: &'static [Layout] =
        &[Layout::Messages, Layout::PromptCompletion, Layout::Text, Layout::Tokens];

    fn parse(layout: Layout, row: &Row, at: &At) -> Result<Self> {
        parse::demonstration(layout, &parse::Fields { row, at })
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
}

impl Record for Preference {
    const KIND: &'static str = "preference";
    const LAYOUTS: &'static [Layout] =
        &[Layout::Preference, Layout::ImplicitPreference, Layout::PreferenceTokens];

    fn parse(layout: Layout, row: &Row, at: &At) -> Result<Self> {
        parse::preference(layout, &parse::Fields { row, at })
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
}

impl Record for Prompt {
    const KIND: &'static str = "prompt";
    const LAYOUTS: &'static [Layout] = &[Layout::Prompt, Layout::PromptMessages];

    fn parse(layout: Layout, row: &Row, at: &At) -> Result<Self> {
        parse::prompt(layout, &parse::Fields { row, at })
    }

    fn layout(&self) -> Layout {
        Layout::Prompt
    }

    fn to_row(&self) -> Row {
        write::prompt(self)
    }
}

impl Record for Unpaired {
    const KIND: &'static str = "unpaired";
    const LAYOUTS: &'static [Layout] = &[Layout::Unpaired];

    fn parse(_: Layout, row: &Row, at: &At) -> Result<Self> {
        parse::unpaired(&parse::Fields { row, at })
    }

    fn layout(&self) -> Layout {
        Layout::Unpaired
    }

    fn to_row(&self) -> Row {
        write::unpaired(self)
    }
}

#[cfg(test)]
mod tests;
