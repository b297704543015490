//! Untokenized records: conversations, preference pairs and prompts.
//!
//! The column names are those of TRL and Hugging Face and of the common data sets (`ShareGPT`, Alpaca, HH,
//! OASST); see [`Layout`]. A string is accepted wherever a list of turns is expected: a prompt string becomes
//! one user turn, and a completion string one assistant turn. A `tools` column describes the tools that the
//! assistant may call; its calls and their results are fields of turns. Training and `data convert` both read
//! rows through this module. The module does not depend on a tokenizer or a file format.

mod alpaca;
mod calls;
mod fields;
mod kind;
mod layout;
mod mapping;
pub(crate) mod notes;
mod oasst;
mod parse;
mod transcript;
mod turns;
mod write;

use serde_json::Value;

use self::fields::Fields;
use crate::conversation::Message;
use crate::error::{Result, RowLocation};

pub use crate::table::Row;
pub use kind::{Demonstration, Parsed, Preference, Prompt, Record, Unpaired};
pub use layout::Layout;
pub use mapping::Mapping;
pub use notes::{Notes, preview};

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
            Self::Messages { .. } => Layout::Messages,
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
            Self::Messages { messages, .. } => messages.iter().collect(),
            Self::PromptCompletion { prompt, completion, .. } => prompt.iter().chain(completion).collect(),
            Self::Text(_) | Self::Tokens { .. } => Vec::new(),
        }
    }

    fn tools(&self) -> Option<&Value> {
        match self {
            Self::Messages { tools, .. } | Self::PromptCompletion { tools, .. } => tools.as_ref(),
            Self::Text(_) | Self::Tokens { .. } => None,
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

    fn rejected(&self) -> &[Message] {
        match self {
            Self::Messages { rejected, .. } => rejected,
            Self::Tokens { .. } => &[],
        }
    }

    fn tools(&self) -> Option<&Value> {
        match self {
            Self::Messages { tools, .. } => tools.as_ref(),
            Self::Tokens { .. } => None,
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

    fn tools(&self) -> Option<&Value> {
        self.tools.as_ref()
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

    fn tools(&self) -> Option<&Value> {
        self.tools.as_ref()
    }
}

impl Unpaired {
    /// The good and the bad completion of a pair. A tokenized pair has no turns.
    fn of_pair(pair: Preference) -> Vec<Self> {
        match pair {
            Preference::Messages { prompt, chosen, rejected, tools, .. } => vec![
                Self { prompt: prompt.clone(), completion: chosen, tools: tools.clone(), label: true },
                Self { prompt, completion: rejected, tools, label: false },
            ],
            Preference::Tokens { .. } => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests;
