//! Rows of a table to typed rows, with errors that name row, field and fix.
//!
//! Nothing is repaired: what does not fit is an error. Null counts as missing. A text in a column that wants a list (as in
//! CSV) is read as JSON when it begins with `[`. Knows no layouts but those of [`super::Layout`].

use serde_json::Value;

use super::{Demonstration, Layout, Preference, Prompt, Row, Unpaired};
use crate::conversation::{Message, Role};
use crate::error::{At, Error, Result};

const TURNS: &str = "a list of {role, content}";

/// A row with its place.
pub(crate) struct Fields<'a> {
    pub(crate) row: &'a Row,
    pub(crate) at: &'a At,
}

pub(super) fn demonstration(layout: Layout, fields: &Fields<'_>) -> Result<Demonstration> {
    match layout {
        Layout::PromptCompletion => {
            let completion = fields.turns("completion", Some(Role::Assistant))?;
            if !completion.iter().any(|message| message.role == Role::Assistant) {
                return Err(fields.not_one_answer("completion", &completion));
            }
            fields.filled("completion", &completion)?;
            Ok(Demonstration::PromptCompletion { prompt: fields.prompt("prompt")?, completion })
        }
        Layout::Text => Ok(Demonstration::Text(fields.text("text")?)),
        Layout::Tokens => tokens(fields),
        _ => Ok(Demonstration::Messages(fields.turns("messages", None)?)),
    }
}

fn tokens(fields: &Fields<'_>) -> Result<Demonstration> {
    let input_ids = fields.ids("input_ids")?;
    let labels = fields.get("labels").map(|_| fields.ids("labels")).transpose()?;
    match labels {
        Some(labels) if labels.len() != input_ids.len() => Err(Error::LengthMismatch {
            at: fields.at.clone(),
            field: "labels".to_owned(),
            other: "input_ids",
            expected: input_ids.len(),
            got: labels.len(),
        }),
        labels => Ok(Demonstration::Tokens { input_ids, labels }),
    }
}

pub(super) fn preference(layout: Layout, fields: &Fields<'_>) -> Result<Preference> {
    let margin = fields.number("margin")?;
    match layout {
        Layout::PreferenceTokens => tokenised_preference(fields, margin),
        Layout::ImplicitPreference => implicit_preference(fields, margin),
        _ => Ok(Preference::Messages {
            prompt: fields.prompt("prompt")?,
            chosen: fields.answer("chosen")?,
            rejected: fields.answer("rejected")?,
            margin,
        }),
    }
}

fn tokenised_preference(fields: &Fields<'_>, margin: Option<f64>) -> Result<Preference> {
    const COUNT: &str = "a count of ids";
    let (chosen, rejected) = (fields.ids("chosen_input_ids")?, fields.ids("rejected_input_ids")?);
    let value = fields.need("prompt_length", COUNT)?;
    let length = value.as_i64().or_else(|| value.as_str()?.trim().parse().ok());
    let length = length.ok_or_else(|| fields.wrong("prompt_length", value, COUNT))?;
    let shared = chosen.iter().zip(&rejected).take_while(|(left, right)| left == right).count();
    let limit = shared.min(chosen.len().saturating_sub(1)).min(rejected.len().saturating_sub(1));
    match usize::try_from(length) {
        Ok(prompt_length) if prompt_length <= limit => {
            Ok(Preference::Tokens { chosen, rejected, prompt_length, margin })
        }
        _ => Err(Error::BadPromptLength {
            at: fields.at.clone(),
            prompt_length: length,
            shared,
            chosen: chosen.len(),
            rejected: rejected.len(),
        }),
    }
}

/// Splits whole conversations into what they share and their last turns.
fn implicit_preference(fields: &Fields<'_>, margin: Option<f64>) -> Result<Preference> {
    let whole = |field| match fields.need(field, TURNS)? {
        Value::String(text) if !text.trim_start().starts_with('[') => Err(Error::MissingField {
            at: fields.at.clone(),
            field: "prompt".to_owned(),
            expected: "a prompt beside the texts chosen and rejected; transcripts go through `data convert` first",
        }),
        _ => fields.turns(field, None),
    };
    let (mut chosen, mut rejected) = (whole("chosen")?, whole("rejected")?);
    let shared = chosen.iter().zip(&rejected).take_while(|(left, right)| left == right).count();
    let shared = shared.min(chosen.len() - 1).min(rejected.len() - 1);
    let prompt = chosen[..shared].to_vec();
    chosen.drain(..shared);
    rejected.drain(..shared);
    fields.one_answer("chosen", &chosen)?;
    fields.one_answer("rejected", &rejected)?;
    let prompt = fields.some_turns("prompt", prompt)?;
    Ok(Preference::Messages { prompt, chosen, rejected, margin })
}

pub(super) fn prompt(layout: Layout, fields: &Fields<'_>) -> Result<Prompt> {
    let messages = if layout == Layout::PromptMessages {
        let mut messages = fields.turns("messages", None)?;
        if messages.last().is_some_and(|last| last.role == Role::Assistant) {
            messages.pop();
        }
        fields.some_turns("messages", messages)?
    } else {
        fields.prompt("prompt")?
    };
    let answer = fields.get("answer").map(|answer| match answer {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        other => Err(fields.wrong("answer", other, "text")),
    });
    Ok(Prompt { messages, answer: answer.transpose()? })
}

pub(super) fn unpaired(fields: &Fields<'_>) -> Result<Unpaired> {
    const LABEL: &str = "true or false";
    let label = match fields.need("label", LABEL)? {
        Value::Bool(label) => *label,
        Value::Number(number) if number.as_i64() == Some(1) => true,
        Value::Number(number) if number.as_i64() == Some(0) => false,
        Value::String(text) if ["true", "True", "1"].contains(&text.as_str()) => true,
        Value::String(text) if ["false", "False", "0"].contains(&text.as_str()) => false,
        other => return Err(fields.wrong("label", other, LABEL)),
    };
    Ok(Unpaired { prompt: fields.prompt("prompt")?, completion: fields.answer("completion")?, label })
}

impl Fields<'_> {
    /// A field that is there and not null.
    pub(crate) fn get(&self, field: &str) -> Option<&Value> {
        self.row.get(field).filter(|value| !value.is_null())
    }

    pub(crate) fn need(&self, field: &str, expected: &'static str) -> Result<&Value> {
        self.get(field).ok_or_else(|| Error::MissingField {
            at: self.at.clone(),
            field: field.to_owned(),
            expected,
        })
    }

    pub(crate) fn text(&self, field: &str) -> Result<String> {
        let value = self.need(field, "text")?;
        value.as_str().map(str::to_owned).ok_or_else(|| self.wrong(field, value, "text"))
    }

    fn number(&self, field: &str) -> Result<Option<f64>> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let number = value.as_f64().or_else(|| value.as_str()?.trim().parse().ok());
        let finite = number.filter(|number: &f64| number.is_finite());
        finite.map(Some).ok_or_else(|| self.wrong(field, value, "a finite number"))
    }

    fn ids(&self, field: &str) -> Result<Vec<i64>> {
        const IDS: &str = "a list of whole numbers";
        let value = self.listed(field, IDS)?;
        let list = value.as_array().ok_or_else(|| self.wrong(field, &value, IDS))?;
        let id = |(index, id): (usize, &Value)| {
            id.as_i64().ok_or_else(|| self.wrong(&format!("{field}[{index}]"), id, "a whole number"))
        };
        list.iter().enumerate().map(id).collect()
    }

    /// The field, with text that holds a JSON list read as that list.
    fn listed(&self, field: &str, expected: &'static str) -> Result<Value> {
        let value = self.need(field, expected)?;
        match value.as_str().filter(|text| text.trim_start().starts_with('[')) {
            Some(text) => Ok(serde_json::from_str(text).unwrap_or_else(|_| value.clone())),
            None => Ok(value.clone()),
        }
    }

    /// The turns before an answer; a text is one user turn.
    pub(crate) fn prompt(&self, field: &str) -> Result<Vec<Message>> {
        self.turns(field, Some(Role::User))
    }

    /// An answer: exactly one assistant turn with content.
    pub(crate) fn answer(&self, field: &str) -> Result<Vec<Message>> {
        let answer = self.turns(field, Some(Role::Assistant))?;
        self.one_answer(field, &answer)?;
        Ok(answer)
    }

    pub(crate) fn one_answer(&self, field: &str, answer: &[Message]) -> Result<()> {
        if !matches!(answer, [message] if message.role == Role::Assistant) {
            return Err(self.not_one_answer(field, answer));
        }
        self.filled(field, answer)
    }

    fn filled(&self, field: &str, answer: &[Message]) -> Result<()> {
        let empty = |message: &Message| message.role == Role::Assistant && message.content.trim().is_empty();
        if answer.iter().any(empty) {
            return Err(Error::EmptyCompletion { at: self.at.clone(), field: field.to_owned() });
        }
        Ok(())
    }

    fn not_one_answer(&self, field: &str, answer: &[Message]) -> Error {
        let roles: Vec<&str> = answer.iter().map(|message| message.role.as_str()).collect();
        Error::NotOneAnswer { at: self.at.clone(), field: field.to_owned(), found: roles.join(", ") }
    }

    pub(crate) fn some_turns(&self, field: &str, turns: Vec<Message>) -> Result<Vec<Message>> {
        if turns.is_empty() {
            return Err(Error::EmptyConversation { at: self.at.clone(), field: field.to_owned() });
        }
        Ok(turns)
    }

    /// A list of turns; with `lone` a text is accepted as one turn of that role.
    pub(crate) fn turns(&self, field: &str, lone: Option<Role>) -> Result<Vec<Message>> {
        let expected = if lone.is_some() { "text or a list of {role, content}" } else { TURNS };
        let value = self.need(field, expected)?;
        if let (Some(role), Value::String(text)) = (lone, value) {
            // CSV cells are text, so a list of turns is written there as JSON.
            let list = text.starts_with("[{").then(|| serde_json::from_str::<Value>(text).ok()).flatten();
            return match list {
                Some(list) => self.list_of_turns(field, &list, expected),
                None => Ok(vec![Message { role, content: text.clone() }]),
            };
        }
        let value = self.listed(field, expected)?;
        self.list_of_turns(field, &value, expected)
    }

    fn list_of_turns(&self, field: &str, value: &Value, expected: &'static str) -> Result<Vec<Message>> {
        let list = value.as_array().ok_or_else(|| self.wrong(field, value, expected))?;
        let turn = |(index, turn): (usize, &Value)| self.turn(&format!("{field}[{index}]"), turn);
        self.some_turns(field, list.iter().enumerate().map(turn).collect::<Result<_>>()?)
    }

    fn turn(&self, field: &str, value: &Value) -> Result<Message> {
        let turn = value.as_object().ok_or_else(|| self.wrong(field, value, "an object {role, content}"))?;
        let inner = Fields { row: turn, at: self.at };
        let name = inner.text("role").map_err(|error| inside(error, field))?;
        let role = name.parse().map_err(|_| Error::UnknownRole {
            at: self.at.clone(),
            field: format!("{field}.role"),
            found: name,
        })?;
        let unused = |name: &str, value: &Value| !["role", "content"].contains(&name) && !blank(value);
        if let Some((extra, found)) = turn.iter().find(|(name, value)| unused(name, value)) {
            let field = format!("{field}.{extra}");
            return Err(self.wrong(
                &field,
                found,
                "nothing: only role and content are used, so remove the field",
            ));
        }
        Ok(Message { role, content: inner.content().map_err(|error| inside(error, field))? })
    }

    /// Text, or a list of text parts.
    fn content(&self) -> Result<String> {
        const CONTENT: &str = "text, or a list of {type: \"text\", text}";
        let value = self.need("content", CONTENT)?;
        match value {
            Value::String(text) => Ok(text.clone()),
            Value::Array(parts) => {
                let part = |part: &Value| part.get("text").and_then(Value::as_str).map(str::to_owned);
                let texts: Option<Vec<String>> = parts.iter().map(part).collect();
                texts.map(|texts| texts.concat()).ok_or_else(|| self.wrong("content", value, CONTENT))
            }
            other => Err(self.wrong("content", other, CONTENT)),
        }
    }

    pub(crate) fn wrong(&self, field: &str, found: &Value, expected: &'static str) -> Error {
        let found = match found {
            Value::Null => "null".to_owned(),
            Value::Bool(value) => format!("the truth value {value}"),
            Value::Number(number) => format!("the number {number}"),
            Value::String(text) => format!("the text {:?}", text.chars().take(40).collect::<String>()),
            Value::Array(list) => format!("a list of {}", list.len()),
            Value::Object(object) => {
                format!("an object with {}", object.keys().cloned().collect::<Vec<_>>().join(", "))
            }
        };
        Error::WrongType { at: self.at.clone(), field: field.to_owned(), found, expected }
    }
}

/// Puts the name of the outer field before that of the inner one.
fn inside(error: Error, outer: &str) -> Error {
    match error {
        Error::MissingField { at, field, expected } => {
            Error::MissingField { at, field: format!("{outer}.{field}"), expected }
        }
        Error::WrongType { at, field, found, expected } => {
            Error::WrongType { at, field: format!("{outer}.{field}"), found, expected }
        }
        other => other,
    }
}

/// What says nothing: null and empty lists, texts and objects, as tables fill in for missing fields.
fn blank(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(object) => object.values().all(blank),
        _ => false,
    }
}
