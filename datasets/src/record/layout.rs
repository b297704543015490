//! Which columns a table has, and so what its rows mean.
//!
//! Every layout belongs to one kind of rows ([`super::Record::LAYOUTS`]). A file has a layout when it has all
//! of the layout's required columns; a layout whose required columns are among those of another that fits
//! gives way to it. Training, `data check` and `data convert` all decide here, so that they agree.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use crate::error::{Error, Result};

/// Which columns a table has, and so what its rows mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Layout {
    /// `messages`.
    Messages,
    /// `conversations`, as `ShareGPT` names the turns.
    ShareGpt,
    /// `prompt`, `completion`.
    PromptCompletion,
    /// `prompt`, `response`.
    PromptResponse,
    /// `instruction`, `output`, and `input` if there is one (Alpaca).
    Alpaca,
    /// `instruction`, `response`, and `input` or `context` if there is one (`GPTeacher`, Dolly).
    InstructionResponse,
    /// A tree of messages with ranked `replies` (OASST): the conversation along the best path.
    Oasst,
    /// `text`.
    Text,
    /// `input_ids`, and `labels` if there are any.
    Tokens,
    /// `prompt`, `chosen`, `rejected`, and `margin` if there is one.
    Preference,
    /// `chosen` and `rejected` as whole conversations, or as HH transcripts, that share all but the last
    /// turn.
    ImplicitPreference,
    /// `conversations`, with `chosen` and `rejected` as one turn each.
    ShareGptPreference,
    /// `instruction`, `chosen`, `rejected`, and `input` if there is one.
    AlpacaPreference,
    /// `context`, `chosen`, `rejected` (`ColossalChat`).
    ColossalPreference,
    /// A tree of messages with ranked `replies` (OASST): all pairs of siblings of different rank.
    OasstPreference,
    /// `chosen_input_ids`, `rejected_input_ids`, `prompt_length`, and `margin` if there is one.
    PreferenceTokens,
    /// `prompt`, and `answer` if there is one.
    Prompt,
    /// `messages` as a prompt, a last assistant turn left out, and `answer` if there is one.
    PromptMessages,
    /// `prompt`, `completion`, `label`.
    Unpaired,
    /// `messages` that end in an answer, and `label`.
    KtoMessages,
}

impl Layout {
    /// Every layout.
    pub const ALL: [Self; 20] = [
        Self::Messages,
        Self::ShareGpt,
        Self::PromptCompletion,
        Self::PromptResponse,
        Self::Alpaca,
        Self::InstructionResponse,
        Self::Oasst,
        Self::Text,
        Self::Tokens,
        Self::Preference,
        Self::ImplicitPreference,
        Self::ShareGptPreference,
        Self::AlpacaPreference,
        Self::ColossalPreference,
        Self::OasstPreference,
        Self::PreferenceTokens,
        Self::Prompt,
        Self::PromptMessages,
        Self::Unpaired,
        Self::KtoMessages,
    ];

    /// The name for messages and settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Messages => "messages",
            Self::ShareGpt => "sharegpt",
            Self::PromptCompletion => "prompt-completion",
            Self::PromptResponse => "prompt-response",
            Self::Alpaca => "alpaca",
            Self::InstructionResponse => "instruction-response",
            Self::Oasst => "oasst",
            Self::Text => "text",
            Self::Tokens => "tokens",
            Self::Preference => "preference",
            Self::ImplicitPreference => "implicit-preference",
            Self::ShareGptPreference => "sharegpt-preference",
            Self::AlpacaPreference => "alpaca-preference",
            Self::ColossalPreference => "colossal-preference",
            Self::OasstPreference => "oasst-preference",
            Self::PreferenceTokens => "preference-tokens",
            Self::Prompt => "prompt",
            Self::PromptMessages => "prompt-messages",
            Self::Unpaired => "unpaired",
            Self::KtoMessages => "kto-messages",
        }
    }

    /// The columns that must be there.
    pub fn required(self) -> &'static [&'static str] {
        match self {
            Self::Messages | Self::PromptMessages => &["messages"],
            Self::ShareGpt => &["conversations"],
            Self::PromptCompletion => &["prompt", "completion"],
            Self::PromptResponse => &["prompt", "response"],
            Self::Alpaca => &["instruction", "output"],
            Self::InstructionResponse => &["instruction", "response"],
            Self::Oasst | Self::OasstPreference => &["message_tree_id", "prompt"],
            Self::Text => &["text"],
            Self::Tokens => &["input_ids"],
            Self::Preference => &["prompt", "chosen", "rejected"],
            Self::ImplicitPreference => &["chosen", "rejected"],
            Self::ShareGptPreference => &["conversations", "chosen", "rejected"],
            Self::AlpacaPreference => &["instruction", "chosen", "rejected"],
            Self::ColossalPreference => &["context", "chosen", "rejected"],
            Self::PreferenceTokens => &["chosen_input_ids", "rejected_input_ids", "prompt_length"],
            Self::Prompt => &["prompt"],
            Self::Unpaired => &["prompt", "completion", "label"],
            Self::KtoMessages => &["messages", "label"],
        }
    }

    /// The columns that are read when they are there. `system` and `system_prompt` become the first turn.
    pub fn optional(self) -> &'static [&'static str] {
        match self {
            Self::Text | Self::Oasst | Self::OasstPreference => &[],
            Self::Tokens => &["labels"],
            Self::PreferenceTokens => &["margin"],
            Self::Alpaca => &["input", "system", "system_prompt"],
            Self::InstructionResponse => &["input", "context", "system", "system_prompt"],
            Self::AlpacaPreference => &["input", "margin", "system", "system_prompt"],
            Self::Preference
            | Self::ImplicitPreference
            | Self::ShareGptPreference
            | Self::ColossalPreference => &["margin", "system", "system_prompt"],
            Self::Prompt | Self::PromptMessages => &["answer", "system", "system_prompt"],
            _ => &["system", "system_prompt"],
        }
    }

    /// Whether rows of this layout have a column of this name.
    pub fn reads(self, column: &str) -> bool {
        self.required().contains(&column) || self.optional().contains(&column)
    }

    /// Whether the rows come from elsewhere: such rows are left out where one of our own would be refused.
    pub(crate) fn is_foreign(self) -> bool {
        matches!(
            self,
            Self::ShareGpt
                | Self::Alpaca
                | Self::InstructionResponse
                | Self::Oasst
                | Self::ShareGptPreference
                | Self::AlpacaPreference
                | Self::ColossalPreference
                | Self::OasstPreference
                | Self::KtoMessages
        )
    }

    pub(super) fn fits(self, columns: &[String]) -> bool {
        self.required().iter().all(|wanted| columns.iter().any(|column| column == wanted))
    }

    /// The layout of the columns, whatever they are used for.
    ///
    /// `messages` alone are conversations to learn; with `answer` they are prompts.
    pub fn guess(columns: &[String], path: &Path) -> Result<Self> {
        let has_answer = columns.iter().any(|column| column == "answer");
        let other = if has_answer { Self::Messages } else { Self::PromptMessages };
        let among: Vec<Self> = Self::ALL.into_iter().filter(|&layout| layout != other).collect();
        Self::among(&among, columns, "training", path)
    }

    /// The one of `layouts` that fits the columns. `kind` is for messages.
    pub(super) fn among(
        layouts: &[Self],
        columns: &[String],
        kind: &'static str,
        path: &Path,
    ) -> Result<Self> {
        let fitting: Vec<Self> = layouts.iter().copied().filter(|layout| layout.fits(columns)).collect();
        let covered = |layout: Self| {
            fitting.iter().any(|other| {
                other.required().len() > layout.required().len()
                    && layout.required().iter().all(|column| other.required().contains(column))
            })
        };
        let best: Vec<Self> = fitting.iter().copied().filter(|&layout| !covered(layout)).collect();
        let (path, found) = (path.to_owned(), named(columns));
        match best[..] {
            [layout] => Ok(layout),
            [] => Err(Error::MissingColumn { path, kind, found, wanted: describe(layouts) }),
            _ => Err(Error::AmbiguousLayout { path, found, choices: describe(&best) }),
        }
    }
}

/// Names of columns, with control characters escaped and not too many of them.
pub(super) fn named(columns: &[String]) -> String {
    const MOST: usize = 30;
    let mut names: Vec<String> =
        columns.iter().take(MOST).map(|name| name.escape_debug().to_string()).collect();
    if columns.len() > MOST {
        names.push(format!("and {} more", columns.len() - MOST));
    }
    names.join(", ")
}

pub(super) fn describe(layouts: &[Layout]) -> String {
    let one = |layout: &Layout| format!("{layout} ({})", layout.required().join(", "));
    layouts.iter().map(one).collect::<Vec<_>>().join(" or ")
}

impl fmt::Display for Layout {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

impl FromStr for Layout {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        // HH transcripts have the columns of the implicit preference, and so are told apart row by row.
        let name = if name == "hh" { Self::ImplicitPreference.name() } else { name };
        Self::ALL.into_iter().find(|layout| layout.name() == name).ok_or_else(|| Error::UnknownLayout {
            given: name.to_owned(),
            known: Self::ALL.map(Self::name).join(", "),
        })
    }
}
