//! Detects the layout of a table from its columns. The layout defines what the rows mean.
//!
//! Every layout belongs to one record type ([`super::Record::LAYOUTS`]). A file fits a layout if it has all
//! required columns of the layout. A layout is ignored if its required columns are a subset of another
//! fitting layout's required columns. Training, `data check` and `data convert` all use this module, so they
//! agree.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use crate::error::{Error, Result};

/// The columns of a table, which define the meaning of its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Layout {
    /// `messages`.
    Messages,
    /// `conversations`, with turns in the format of `ShareGPT`.
    ShareGpt,
    /// `prompt`, `completion`.
    PromptCompletion,
    /// `prompt`, `response`.
    PromptResponse,
    /// `instruction`, `output`, and optionally `input` (Alpaca).
    Alpaca,
    /// `instruction`, `response`, and optionally `input` or `context` (`GPTeacher`, Dolly).
    InstructionResponse,
    /// A tree of messages with ranked `replies` (OASST), read as the conversation along the best path.
    Oasst,
    /// `text`.
    Text,
    /// `input_ids`, and optionally `labels`.
    Tokens,
    /// `prompt`, `chosen`, `rejected`, and optionally `margin`.
    Preference,
    /// `chosen` and `rejected` as full conversations or HH transcripts that share all but the last turn.
    ImplicitPreference,
    /// `conversations`, with `chosen` and `rejected` as one turn each.
    ShareGptPreference,
    /// `instruction`, `chosen`, `rejected`, and optionally `input`.
    AlpacaPreference,
    /// `context`, `chosen`, `rejected` (`ColossalChat`).
    ColossalPreference,
    /// A tree of messages with ranked `replies` (OASST), read as all pairs of siblings of different rank.
    OasstPreference,
    /// `chosen_input_ids`, `rejected_input_ids`, `prompt_length`, and optionally `margin`.
    PreferenceTokens,
    /// `prompt`, and optionally `answer`.
    Prompt,
    /// `messages` as a prompt, without a final assistant turn, and optionally `answer`.
    PromptMessages,
    /// `prompt`, `completion`, `label`.
    Unpaired,
    /// `messages` that end with an assistant turn, and `label`.
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

    /// Returns the name used in messages and settings.
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

    /// Returns the required columns.
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

    /// Returns the optional columns. `system` and `system_prompt` become the first turn, and `tools` describes
    /// the tools that the assistant may call.
    pub fn optional(self) -> &'static [&'static str] {
        match self {
            Self::Text | Self::Oasst | Self::OasstPreference => &[],
            Self::Tokens => &["labels"],
            Self::PreferenceTokens => &["margin"],
            Self::Alpaca => &["input", "system", "system_prompt", "tools"],
            Self::InstructionResponse => &["input", "context", "system", "system_prompt", "tools"],
            Self::AlpacaPreference => &["input", "margin", "system", "system_prompt", "tools"],
            Self::Preference
            | Self::ImplicitPreference
            | Self::ShareGptPreference
            | Self::ColossalPreference => &["margin", "system", "system_prompt", "tools"],
            Self::Prompt | Self::PromptMessages => &["answer", "system", "system_prompt", "tools"],
            _ => &["system", "system_prompt", "tools"],
        }
    }

    /// Whether this layout reads a column of this name.
    pub fn reads(self, column: &str) -> bool {
        self.required().contains(&column) || self.optional().contains(&column)
    }

    /// Whether the layout is a third-party format. Unusable rows of these layouts are skipped; in our own
    /// layouts they are errors.
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

    /// Whether the columns include all required ones.
    pub(super) fn fits(self, columns: &[String]) -> bool {
        self.required().iter().all(|wanted| columns.iter().any(|column| column == wanted))
    }

    /// Detects the layout for any record type.
    ///
    /// `messages` alone is read as conversations to train on. With `answer` it is read as prompts.
    pub fn guess(columns: &[String], path: &Path) -> Result<Self> {
        let has_answer = columns.iter().any(|column| column == "answer");
        let other = if has_answer { Self::Messages } else { Self::PromptMessages };
        let among: Vec<Self> = Self::ALL.into_iter().filter(|&layout| layout != other).collect();
        Self::among(&among, columns, "training", path)
    }

    /// Returns the one of `layouts` that fits the columns. `kind` is used in error messages.
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

/// Lists column names with control characters escaped, up to a maximum number.
pub(super) fn named(columns: &[String]) -> String {
    const MOST: usize = 30;
    let mut names: Vec<String> =
        columns.iter().take(MOST).map(|name| name.escape_debug().to_string()).collect();
    if columns.len() > MOST {
        names.push(format!("and {} more", columns.len() - MOST));
    }
    names.join(", ")
}

/// Lists layouts with their required columns, for error messages.
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
        // HH transcripts have the columns of the implicit preference layout, so each row is checked for a
        // transcript when it is parsed.
        let name = if name == "hh" { Self::ImplicitPreference.name() } else { name };
        Self::ALL.into_iter().find(|layout| layout.name() == name).ok_or_else(|| Error::UnknownLayout {
            given: name.to_owned(),
            known: Self::ALL.map(Self::name).join(", "),
        })
    }
}
