//! The fields of a row, read as one type or refused with an error that names the row and the field.
//!
//! Null counts as missing. In CSV files every cell is a text, so a text in a column that expects a list is
//! parsed as JSON; in no other format is it parsed.

use std::borrow::Cow;

use serde_json::Value;

use super::layout::Layout;
use super::mapping::Mapping;
use super::notes;
use crate::conversation::{Message, Role};
use crate::error::{Error, Result, RowLocation};
use crate::table::Row;
use crate::table::json::{self, Problem};
use crate::table::limits::row_too_large;

const TURNS: &str = "a list of {role, content}";
const CONTENT: &str = "text, or a list of {type: \"text\", text}";

/// A row with its location, layout and mapping.
pub(super) struct Fields<'a> {
    pub(super) row: &'a Row,
    pub(super) at: &'a RowLocation,
    pub(super) mapping: &'a Mapping,
    pub(super) layout: Layout,
}

impl Fields<'_> {
    /// Returns a field that is present and not null.
    pub(super) fn get(&self, field: &str) -> Option<&Value> {
        self.row.get(field).filter(|value| !value.is_null())
    }

    pub(super) fn need(&self, field: &str, expected: &'static str) -> Result<&Value> {
        self.get(field).ok_or_else(|| Error::MissingField {
            at: self.at.clone(),
            field: field.to_owned(),
            expected,
        })
    }

    pub(super) fn text(&self, field: &str) -> Result<String> {
        let value = self.need(field, "text")?;
        value.as_str().map(str::to_owned).ok_or_else(|| self.wrong(field, value, "text"))
    }

    pub(super) fn number(&self, field: &str) -> Result<Option<f64>> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let number = value.as_f64().or_else(|| value.as_str()?.trim().parse().ok());
        let finite = number.filter(|number: &f64| number.is_finite());
        finite.map(Some).ok_or_else(|| self.wrong(field, value, "a finite number"))
    }

    pub(super) fn ids(&self, field: &str) -> Result<Vec<i64>> {
        const IDS: &str = "a list of whole numbers";
        let value = self.listed(field, IDS)?;
        let list = value.as_array().ok_or_else(|| self.wrong(field, &value, IDS))?;
        let id = |(index, id): (usize, &Value)| {
            id.as_i64().ok_or_else(|| self.wrong(&format!("{field}[{index}]"), id, "a whole number"))
        };
        list.iter().enumerate().map(id).collect()
    }

    /// Returns a text, or an empty text if the field is missing or null.
    pub(super) fn text_or_empty(&self, field: &str) -> Result<String> {
        self.get(field).map_or_else(|| Ok(String::new()), |_| self.text(field))
    }

    /// Returns a field. A CSV text that holds a JSON list is parsed as that list.
    fn listed(&self, field: &str, expected: &'static str) -> Result<Cow<'_, Value>> {
        let value = self.need(field, expected)?;
        let cell = value.as_str().filter(|text| self.at.is_csv() && text.trim_start().starts_with('['));
        match cell.map(|text| json::parse(text.as_bytes())) {
            Some(Ok(list)) => Ok(Cow::Owned(list)),
            // A list with a field that is there twice, or one that is too large, is no text.
            Some(Err(Problem::Broken(error))) if error.is_data() => {
                let reason = format!("the list in the field {field}: {}", Error::reason_of_json(&error));
                Err(Error::BadForeignRow { at: self.at.clone(), reason })
            }
            Some(Err(Problem::TooLarge)) => Err(row_too_large(self.at.clone())),
            Some(Err(Problem::Broken(_))) | None => Ok(Cow::Borrowed(value)),
        }
    }

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

    /// Checks that a completion is exactly one assistant turn with loss and with text.
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
        let content = part("content", ["content", "value"], CONTENT)?;
        let content = self.content(&format!("{field}.content"), content)?;
        Ok(Message { ignore_loss: self.no_loss(field, turn)?, ..Message::new(role, content) })
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

    pub(super) fn wrong(&self, field: &str, found: &Value, expected: &'static str) -> Error {
        Error::WrongType {
            at: self.at.clone(),
            field: field.to_owned(),
            found: notes::preview(found),
            expected,
        }
    }
}

pub(super) fn is_empty_answer(message: &Message) -> bool {
    message.role == Role::Assistant && !message.ignore_loss && message.content.trim().is_empty()
}
