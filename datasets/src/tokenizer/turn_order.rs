//! What decides how a template renders a conversation, without what its turns say: the roles, whether a turn
//! has text, calls or both, whether there are tools, and whether the generation prompt is added.

use crate::conversation::{Conversation, Message, Role};

/// The order of the turns of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct TurnOrder {
    turns: Vec<(Role, TurnShape)>,
    has_tools: bool,
    add_generation_prompt: bool,
}

/// What a turn has besides its role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum TurnShape {
    /// Text, which may be empty.
    Text,
    /// Calls of tools and no text.
    Calls { number: usize },
    /// Text and calls of tools.
    TextAndCalls { number: usize },
}

impl TurnOrder {
    pub(super) fn of(conversation: Conversation<'_>, add_generation_prompt: bool) -> Self {
        let shape = |message: &Message| (message.role, TurnShape::of(message));
        Self {
            turns: conversation.messages.iter().map(shape).collect(),
            has_tools: conversation.tools.is_some(),
            add_generation_prompt,
        }
    }
}

impl TurnShape {
    pub(super) fn of(message: &Message) -> Self {
        match message.tool_calls.len() {
            0 => Self::Text,
            number if message.content.is_empty() => Self::Calls { number },
            number => Self::TextAndCalls { number },
        }
    }
}
