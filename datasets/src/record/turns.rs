//! The turns of a row: conversations, prompts and answers, as lists of `{role, content}` or as texts.

use std::borrow::Cow;

use serde_json::Value;

use super::calls;
use super::fields::Fields;
use crate::conversation::{Message, Role};
use crate::error::{Error, Result};
use crate::table::Row;

const TURNS: &str = "a list of {role, content}";
const CONTENT: &str = "text, or a list of {type: \"text\", text}";

impl Fields<'_> {
    /// Returns the prompt turns, after the turn of a `system` column. A text becomes one user turn.
    pub(super) fn prompt(&self, field: &str) -> Result<Vec<Message>> {
        self.with_system(self.turns(field, Some(Role::User))?)
    }

    /// Inserts the text of a `system` column before the turns.
    pub(super) fn with_system(&self, mut turns: Vec<Message>) -> Result<Vec<Message>> {
        let columns = ["system", "system_prompt"].into_iter().filter(|name| self.layout.reads(name));
        for column in columns {
            let text = self.text_or_empty(column)?;
            let first = turns.first().filter(|turn| turn.role == Role::System);
            match first {
                _ if text.trim().is_empty() => {}
                Some(turn) if turn.content == text => {}
                Some(_) => {
                    let reason = format!(
                        "column {column} says something else than the system turn of the conversation"
                    );
                    return Err(Error::BadForeignRow { at: self.at.clone(), reason });
                }
                None => turns.insert(0, Message::system(text)),
            }
        }
        Ok(turns)
    }

    /// Returns the turns of `chosen` and `rejected`. With `lone`, a single turn object is accepted in place
    /// of a list of one turn.
    pub(super) fn sides(&self, lone: Option<Role>) -> Result<[Vec<Message>; 2]> {
        let side = |field: &str| match self.get(field) {
            Some(turn @ Value::Object(_)) if lone.is_some() => Ok(vec![self.turn(field, turn)?]),
            _ => self.turns(field, lone),
        };
        Ok([side("chosen")?, side("rejected")?])
    }

    /// Checks that a completion is exactly one assistant turn with loss that says something or calls tools.
    pub(super) fn one_answer(&self, field: &str, answer: &[Message]) -> Result<()> {
        if !matches!(answer, [message] if message.role == Role::Assistant) {
            return Err(self.not_one_answer(field, answer));
        }
        if answer[0].ignore_loss {
            let expected = "1, or no weight: an answer to compare counts always";
            return Err(self.wrong(&format!("{field}.weight"), &Value::from(0), expected));
        }
        self.filled(field, answer)
    }

    /// Returns an error if an assistant turn is empty.
    pub(super) fn filled(&self, field: &str, turns: &[Message]) -> Result<()> {
        match turns.iter().position(is_empty_answer) {
            None => Ok(()),
            Some(_) if turns.len() == 1 => {
                Err(Error::EmptyCompletion { at: self.at.clone(), field: field.to_owned() })
            }
            Some(turn) => {
                Err(Error::EmptyTurn { at: self.at.clone(), field: field.to_owned(), turn: turn + 1 })
            }
        }
    }

    pub(super) fn not_one_answer(&self, field: &str, answer: &[Message]) -> Error {
        let roles: Vec<&str> = answer.iter().map(|message| message.role.as_str()).collect();
        Error::NotOneAnswer { at: self.at.clone(), field: field.to_owned(), found: roles.join(", ") }
    }

    pub(super) fn some_turns(&self, field: &str, turns: Vec<Message>) -> Result<Vec<Message>> {
        if turns.is_empty() {
            return Err(Error::EmptyConversation { at: self.at.clone(), field: field.to_owned() });
        }
        Ok(turns)
    }

    /// Returns a list of turns. With `lone`, a text is accepted as one turn of that role.
    pub(super) fn turns(&self, field: &str, lone: Option<Role>) -> Result<Vec<Message>> {
        let expected = if lone.is_some() { "text or a list of {role, content}" } else { TURNS };
        let value = self.listed(field, expected)?;
        match (value.as_ref(), lone) {
            (Value::String(text), Some(role)) => Ok(vec![Message::new(role, text)]),
            // A CSV cell such as "[1] is a footnote" parses as a JSON list but is a text.
            (Value::Array(list), Some(role))
                if matches!(value, Cow::Owned(_)) && !list.iter().all(Value::is_object) =>
            {
                Ok(vec![Message::new(role, self.text(field)?)])
            }
            (Value::Array(list), _) => {
                let turn = |(index, turn): (usize, &Value)| self.turn(&format!("{field}[{index}]"), turn);
                self.some_turns(field, list.iter().enumerate().map(turn).collect::<Result<_>>()?)
            }
            (other, _) => Err(self.wrong(field, other, expected)),
        }
    }

    fn turn(&self, field: &str, value: &Value) -> Result<Message> {
        let turn = value.as_object().ok_or_else(|| self.wrong(field, value, "an object {role, content}"))?;
        let part = |name: &str, usual: [&str; 2], expected| {
            let found = self.mapping.field(name, turn, &usual).filter(|value| !value.is_null());
            found.ok_or_else(|| Error::MissingField {
                at: self.at.clone(),
                field: format!("{field}.{name}"),
                expected,
            })
        };
        let role = part("role", ["role", "from"], "text")?;
        let name = role.as_str().ok_or_else(|| self.wrong(&format!("{field}.role"), role, "text"))?;
        let role = self.mapping.role(name).ok_or_else(|| Error::UnknownRole {
            at: self.at.clone(),
            field: format!("{field}.role"),
            found: name.to_owned(),
        })?;

        let mut message = Message { ignore_loss: self.no_loss(field, turn)?, ..Message::new(role, "") };
        self.read_calls(field, turn, &mut message)?;
        match part("content", ["content", "value"], CONTENT) {
            Ok(content) => message.content = self.content(&format!("{field}.content"), content)?,
            // The answers of OpenAI that call tools have null here.
            Err(_) if message.calls_tools() => {}
            Err(missing) => return Err(missing),
        }
        if name == calls::CALLING_ROLE && !self.mapping.names_role(name) {
            self.read_calling_text(field, &mut message)?;
        }
        Ok(message)
    }

    /// Whether a turn has `weight` 0, as in the fine-tuning files of `OpenAI`.
    fn no_loss(&self, field: &str, turn: &Row) -> Result<bool> {
        match turn.get("weight").filter(|weight| !weight.is_null()) {
            None => Ok(false),
            Some(weight) if weight.as_f64() == Some(1.0) => Ok(false),
            Some(weight) if weight.as_f64() == Some(0.0) => Ok(true),
            Some(other) => {
                Err(self.wrong(&format!("{field}.weight"), other, "1, or 0 for a turn without loss"))
            }
        }
    }

    /// Returns the content of a turn: a text, or the concatenation of a list of text parts.
    fn content(&self, field: &str, value: &Value) -> Result<String> {
        match value {
            Value::String(text) => Ok(text.clone()),
            Value::Array(parts) => {
                let part = |part: &Value| part.get("text").and_then(Value::as_str).map(str::to_owned);
                let texts: Option<Vec<String>> = parts.iter().map(part).collect();
                texts.map(|texts| texts.concat()).ok_or_else(|| self.wrong(field, value, CONTENT))
            }
            other => Err(self.wrong(field, other, CONTENT)),
        }
    }
}

pub(super) fn is_empty_answer(message: &Message) -> bool {
    let says_nothing = message.content.trim().is_empty() && !message.calls_tools();
    message.role == Role::Assistant && !message.ignore_loss && says_nothing
}
