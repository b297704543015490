//! Conversations: messages with roles, calls of tools and their results.
//!
//! The roles are those of the Hugging Face chat templates, and a call has the form of `OpenAI`: `{"type":
//! "function", "id": ..., "function": {"name": ..., "arguments": ...}}`. The arguments are an object or a
//! text; neither is turned into the other. This file does not depend on a tokenizer or a file format.

use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The role of the speaker.
    pub role: Role,
    /// The text of the turn. It may be empty in a turn that calls tools.
    pub content: String,
    /// Whether an assistant turn is excluded from the loss (`weight` 0 in the row). Templates do not see this
    /// field, and it is not stored.
    pub ignore_loss: bool,
    /// The calls of an assistant turn, as templates get them. Empty if the turn calls no tool.
    pub tool_calls: Vec<Value>,
    /// The name of the speaker, in a tool turn the name of the tool.
    pub name: Option<String>,
    /// In a tool turn: the `id` of the call that it answers.
    pub tool_call_id: Option<String>,
}

impl Message {
    /// Creates a turn. An assistant turn takes part in the loss.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self {
            role,
            content: content.into(),
            ignore_loss: false,
            tool_calls: Vec::new(),
            name: None,
            tool_call_id: None,
        }
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

    /// Whether the turn calls tools.
    pub fn calls_tools(&self) -> bool {
        !self.tool_calls.is_empty()
    }

    /// The content as templates get it: null in a turn that calls tools and says nothing, as in the answers
    /// of `OpenAI`. Some templates render the calls only then.
    pub(crate) fn content_or_null(&self) -> Option<&str> {
        let says_nothing = self.calls_tools() && self.content.is_empty();
        (!says_nothing).then_some(self.content.as_str())
    }
}

/// The object that holds the name and the arguments of a call, or the name and the parameters of a tool: the
/// one below `function`, or the call or tool itself, which templates accept as well.
pub(crate) fn function(call: &Value) -> &Value {
    call.get("function").filter(|function| function.is_object()).unwrap_or(call)
}

/// The name of the function of a call or of a tool.
pub(crate) fn function_name(call: &Value) -> Option<&str> {
    function(call).get("name").and_then(Value::as_str)
}

/// A turn in a format that names its fields.
#[derive(Serialize)]
struct NamedFields<'a> {
    role: Role,
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "<[Value]>::is_empty")]
    tool_calls: &'a [Value],
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<&'a str>,
}

/// A turn that is read from a format that names its fields.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OwnedFields {
    role: Role,
    content: Option<String>,
    #[serde(default)]
    tool_calls: Option<Vec<Value>>,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    tool_call_id: Option<String>,
}

/// A turn in a format that has neither names nor types, such as that of the row cache. No field may be left
/// out there, and the calls are one JSON text.
#[derive(Serialize, Deserialize)]
struct BareFields {
    role: Role,
    content: String,
    tool_calls: String,
    name: Option<String>,
    tool_call_id: Option<String>,
}

impl Serialize for Message {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            let fields = NamedFields {
                role: self.role,
                content: self.content_or_null(),
                tool_calls: &self.tool_calls,
                name: self.name.as_deref(),
                tool_call_id: self.tool_call_id.as_deref(),
            };
            return fields.serialize(serializer);
        }
        let fields = BareFields {
            role: self.role,
            content: self.content.clone(),
            tool_calls: serde_json::to_string(&self.tool_calls).map_err(S::Error::custom)?,
            name: self.name.clone(),
            tool_call_id: self.tool_call_id.clone(),
        };
        fields.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            let OwnedFields { role, content, tool_calls, name, tool_call_id } =
                OwnedFields::deserialize(deserializer)?;
            let tool_calls = tool_calls.unwrap_or_default();
            let content = match content {
                Some(content) => content,
                None if tool_calls.is_empty() => return Err(D::Error::missing_field("content")),
                None => String::new(),
            };
            return Ok(Self { tool_calls, name, tool_call_id, ..Self::new(role, content) });
        }
        let BareFields { role, content, tool_calls, name, tool_call_id } =
            BareFields::deserialize(deserializer)?;
        let tool_calls = serde_json::from_str(&tool_calls).map_err(D::Error::custom)?;
        Ok(Self { tool_calls, name, tool_call_id, ..Self::new(role, content) })
    }
}

/// Turns, and the tools that the assistant may call.
#[derive(Clone, Copy, Debug)]
pub struct Conversation<'a> {
    /// The turns.
    pub messages: &'a [Message],
    /// The descriptions of the tools, as templates get them: a list of objects.
    pub tools: Option<&'a Value>,
}

impl<'a> Conversation<'a> {
    /// Creates a conversation with tools.
    pub fn with_tools(messages: &'a [Message], tools: Option<&'a Value>) -> Self {
        Self { messages, tools }
    }

    /// Returns the same tools with other turns.
    pub(crate) fn with_messages<'b>(self, messages: &'b [Message]) -> Conversation<'b>
    where
        'a: 'b,
    {
        Conversation { messages, tools: self.tools }
    }
}

impl<'a, M: AsRef<[Message]> + ?Sized> From<&'a M> for Conversation<'a> {
    fn from(messages: &'a M) -> Self {
        Self { messages: messages.as_ref(), tools: None }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn call() -> Message {
        let call =
            json!({"type": "function", "function": {"name": "add", "arguments": {"b": 1, "a": [2.5, null]}}});
        Message { tool_calls: vec![call], ..Message::assistant("") }
    }

    fn result() -> Message {
        let (name, id) = (Some("add".to_owned()), Some("7".to_owned()));
        Message { name, tool_call_id: id, ..Message::tool("3.5") }
    }

    #[test]
    fn a_turn_has_the_fields_that_it_needs() {
        let json = |message: &Message| serde_json::to_string(message).unwrap();
        assert_eq!(json(&Message::user("a")), r#"{"role":"user","content":"a"}"#);
        assert_eq!(json(&Message::assistant("")), r#"{"role":"assistant","content":""}"#);
        let wanted = r#"{"role":"assistant","content":null,"tool_calls":[{"type":"function","function":{"name":"add","arguments":{"b":1,"a":[2.5,null]}}}]}"#;
        assert_eq!(json(&call()), wanted);
        assert_eq!(json(&result()), r#"{"role":"tool","content":"3.5","name":"add","tool_call_id":"7"}"#);
        for message in [Message::user("a"), call(), result()] {
            assert_eq!(serde_json::from_str::<Message>(&json(&message)).unwrap(), message);
        }
        let error = |text: &str| serde_json::from_str::<Message>(text).unwrap_err().to_string();
        assert!(error(r#"{"role":"user","content":null}"#).contains("missing field `content`"));
        assert!(error(r#"{"role":"user","content":"a","extra":1}"#).contains("unknown field `extra`"));
    }

    #[test]
    fn turns_survive_a_format_without_names_and_types() {
        let turns = vec![Message::user("a"), call(), result(), Message::assistant("b")];
        let bytes = postcard::to_allocvec(&turns).unwrap();
        assert_eq!(postcard::from_bytes::<Vec<Message>>(&bytes).unwrap(), turns);
    }
}
