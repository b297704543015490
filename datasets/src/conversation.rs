//! A conversation: who says what, in order.
//!
//! The roles are those of the HF chat templates. This file knows no tokenizer and no file format.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions that hold for the whole conversation.
    System,
    /// The person.
    User,
    /// The model: the turns that supervised fine-tuning learns from.
    Assistant,
    /// The result of a tool call.
    Tool,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 4] = [Self::System, Self::User, Self::Assistant, Self::Tool];

    /// The name that templates and files use.
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

/// One turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said.
    pub content: String,
    /// An assistant turn that is not learned: `weight` 0 in the row. Templates do not see it.
    #[serde(skip)]
    pub ignore_loss: bool,
}

impl Message {
    /// A turn that is learned if the assistant speaks it.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self { role, content: content.into(), ignore_loss: false }
    }

    /// A turn of the person.
    pub fn user(content: impl Into<String>) -> Self {
        Self::new(Role::User, content)
    }

    /// A turn of the model.
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::new(Role::Assistant, content)
    }

    /// Instructions for the whole conversation.
    pub fn system(content: impl Into<String>) -> Self {
        Self::new(Role::System, content)
    }

    /// The result of a tool call.
    pub fn tool(content: impl Into<String>) -> Self {
        Self::new(Role::Tool, content)
    }
}
