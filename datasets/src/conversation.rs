//! Conversations: messages with roles.
//!
//! The roles are those of the Hugging Face chat templates. This file does not depend on a tokenizer or a file
//! format.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The role of the speaker of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions for the full conversation.
    System,
    /// The user.
    User,
    /// The model. Supervised fine-tuning trains on these turns.
    Assistant,
    /// The result of a tool call.
    Tool,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 4] = [Self::System, Self::User, Self::Assistant, Self::Tool];

    /// Returns the name used in templates and files.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.as_str())
    }
}

impl FromStr for Role {
    type Err = UnknownRoleName;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|role| role.as_str() == name);
        known.ok_or_else(|| UnknownRoleName(name.to_owned()))
    }
}

/// A role name that is not one of [`Role::ALL`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown role {0:?}; use system, user, assistant or tool")]
pub struct UnknownRoleName(pub String);

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Message {
    /// The role of the speaker.
    pub role: Role,
    /// The text of the turn.
    pub content: String,
    /// Whether an assistant turn is excluded from the loss (`weight` 0 in the row). Templates do not see this
    /// field.
    #[serde(skip)]
    pub ignore_loss: bool,
}

impl Message {
    /// Creates a turn. An assistant turn takes part in the loss.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self { role, content: content.into(), ignore_loss: false }
    }

    /// Creates a user turn.
    pub fn user(content: impl Into<String>) -> Self {
        Self::new(Role::User, content)
    }

    /// Creates an assistant turn.
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::new(Role::Assistant, content)
    }

    /// Creates a system turn with instructions for the full conversation.
    pub fn system(content: impl Into<String>) -> Self {
        Self::new(Role::System, content)
    }

    /// Creates a turn with the result of a tool call.
    pub fn tool(content: impl Into<String>) -> Self {
        Self::new(Role::Tool, content)
    }
}
