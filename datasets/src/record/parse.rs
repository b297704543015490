//! Parses table rows into records. Errors name the row, the field and the fix.
//!
//! Nothing is repaired. A row that does not fit is an error, but unusable rows of third-party data sets are
//! skipped and counted. Null counts as missing. In CSV files every cell is a text, so a text in a column that
//! expects a list is parsed as JSON; in no other format is it parsed. The supported layouts are those of
//! [`super::Layout`].

use std::borrow::Cow;

use serde_json::Value;

use super::{Demonstration, Layout, Mapping, Parsed, Preference, Prompt, Row, Unpaired, notes, transcript};
use crate::conversation::{Message, Role};
use crate::error::{Error, Result, RowLocation};
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

/// Wraps the only record of a row.
fn only<R>(row: R) -> Parsed<R> {
    Parsed::Rows(vec![row])
}

pub(super) fn demonstration(fields: &Fields<'_>) -> Result<Parsed<Demonstration>> {
    match fields.layout {
        Layout::PromptCompletion => Ok(only(prompt_completion(fields, "completion")?)),
        Layout::PromptResponse => Ok(only(prompt_completion(fields, "response")?)),
        Layout::Text => Ok(only(Demonstration::Text(fields.text("text")?))),
        Layout::Tokens => Ok(only(tokens(fields)?)),
        Layout::ShareGpt => sharegpt(fields),
        _ => {
            let messages = fields.with_system(fields.turns("messages", None)?)?;
            fields.filled("messages", &messages)?;
            Ok(only(Demonstration::Messages(messages)))
        }
    }
}

fn prompt_completion(fields: &Fields<'_>, answer: &str) -> Result<Demonstration> {
    let completion = fields.turns(answer, Some(Role::Assistant))?;
    if !completion.iter().any(|message| message.role == Role::Assistant) {
        return Err(fields.not_one_answer(answer, &completion));
    }
    fields.filled(answer, &completion)?;
    Ok(Demonstration::PromptCompletion { prompt: fields.prompt("prompt")?, completion })
}

/// Reads a `ShareGPT` conversation. Turns after the last assistant turn are dropped.
fn sharegpt(fields: &Fields<'_>) -> Result<Parsed<Demonstration>> {
    let mut messages = fields.with_system(fields.turns("conversations", None)?)?;
    while messages.last().is_some_and(|last| last.role != Role::Assistant) {
        messages.pop();
    }
    if messages.is_empty() {
        return Ok(Parsed::Skipped("no assistant turn"));
    }
    if messages.iter().any(is_empty_answer) {
        return Ok(Parsed::Skipped("an assistant turn is empty"));
    }
    Ok(only(Demonstration::Messages(messages)))
}

fn is_empty_answer(message: &Message) -> bool {
    message.role == Role::Assistant && !message.ignore_loss && message.content.trim().is_empty()
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

pub(super) fn preference(fields: &Fields<'_>) -> Result<Parsed<Preference>> {
    let margin = fields.number("margin")?;
    let prompt = match fields.layout {
        Layout::PreferenceTokens => return Ok(only(tokenized_preference(fields, margin)?)),
        Layout::ImplicitPreference => return implicit_preference(fields, margin),
        Layout::ShareGptPreference => "conversations",
        Layout::ColossalPreference => "context",
        _ => "prompt",
    };

    let mut prompt = fields.prompt(prompt)?;
    let [mut chosen, mut rejected] = fields.sides(Some(Role::Assistant))?;
    if chosen.len() > 1
        && rejected.len() > 1
        && begins_with(&chosen, &prompt)
        && begins_with(&rejected, &prompt)
    {
        // Both sides are full conversations that repeat the prompt (UltraFeedback).
        prompt = split_shared(&mut chosen, &mut rejected);
    }

    fields.one_answer("chosen", &chosen)?;
    fields.one_answer("rejected", &rejected)?;
    if fields.layout.is_foreign() && chosen == rejected {
        return Ok(Parsed::Skipped("chosen equals rejected"));
    }
    Ok(only(Preference::Messages { prompt, chosen, rejected, margin }))
}

/// Whether a conversation begins with the turns of a prompt, ignoring system turns.
fn begins_with(conversation: &[Message], prompt: &[Message]) -> bool {
    let spoken = |turns: &[Message]| {
        turns.iter().filter(|turn| turn.role != Role::System).cloned().collect::<Vec<_>>()
    };
    let (conversation, prompt) = (spoken(conversation), spoken(prompt));
    let same = |(left, right): (&Message, &Message)| {
        left.role == right.role && left.content.trim() == right.content.trim()
    };
    conversation.len() > prompt.len() && conversation.iter().zip(&prompt).all(same)
}

/// Removes the common turns from the start of two conversations and returns them. Each conversation keeps at
/// least its last turn.
pub(super) fn split_shared(chosen: &mut Vec<Message>, rejected: &mut Vec<Message>) -> Vec<Message> {
    let shared = chosen.iter().zip(rejected.iter()).take_while(|(left, right)| left == right).count();
    let shared = shared.min(chosen.len().saturating_sub(1)).min(rejected.len().saturating_sub(1));
    rejected.drain(..shared);
    chosen.drain(..shared).collect()
}

/// Reads a tokenized pair and checks that both sides share the prompt.
fn tokenized_preference(fields: &Fields<'_>, margin: Option<f64>) -> Result<Preference> {
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

/// Splits two full conversations into a shared prompt and their last turns.
fn implicit_preference(fields: &Fields<'_>, margin: Option<f64>) -> Result<Parsed<Preference>> {
    let text = |field| fields.get(field).and_then(Value::as_str);
    if let (Some(chosen), Some(rejected)) = (text("chosen"), text("rejected")) {
        if transcript::is_transcript(chosen) && transcript::is_transcript(rejected) {
            return transcript::preference(fields, chosen, rejected, margin);
        }
        if !fields.at.is_csv() {
            return Err(Error::MissingField {
                at: fields.at.clone(),
                field: "prompt".to_owned(),
                expected: "a prompt beside the texts chosen and rejected, or transcripts that begin with \"Human:\"",
            });
        }
    }
    let [mut chosen, mut rejected] = fields.sides(None)?;
    let prompt = split_shared(&mut chosen, &mut rejected);
    fields.one_answer("chosen", &chosen)?;
    fields.one_answer("rejected", &rejected)?;
    let prompt = fields.with_system(fields.some_turns("prompt", prompt)?)?;
    Ok(only(Preference::Messages { prompt, chosen, rejected, margin }))
}

pub(super) fn prompt(fields: &Fields<'_>) -> Result<Parsed<Prompt>> {
    let messages = if fields.layout == Layout::PromptMessages {
        let mut messages = fields.turns("messages", None)?;
        if messages.last().is_some_and(|last| last.role == Role::Assistant) {
            messages.pop();
        }
        fields.with_system(fields.some_turns("messages", messages)?)?
    } else {
        fields.prompt("prompt")?
    };
    let answer = fields.get("answer").map(|answer| match answer {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        other => Err(fields.wrong("answer", other, "text")),
    });
    Ok(only(Prompt { messages, answer: answer.transpose()? }))
}

pub(super) fn unpaired(fields: &Fields<'_>) -> Result<Parsed<Unpaired>> {
    const LABEL: &str = "true or false";
    let label = match fields.need("label", LABEL)? {
        Value::Bool(label) => *label,
        Value::Number(number) if number.as_i64() == Some(1) => true,
        Value::Number(number) if number.as_i64() == Some(0) => false,
        Value::String(text) if ["true", "True", "1"].contains(&text.as_str()) => true,
        Value::String(text) if ["false", "False", "0"].contains(&text.as_str()) => false,
        other => return Err(fields.wrong("label", other, LABEL)),
    };

    if fields.layout == Layout::Unpaired {
        let completion = fields.turns("completion", Some(Role::Assistant))?;
        fields.one_answer("completion", &completion)?;
        return Ok(only(Unpaired { prompt: fields.prompt("prompt")?, completion, label }));
    }

    let mut prompt = fields.with_system(fields.turns("messages", None)?)?;
    match prompt.pop() {
        Some(answer) if answer.role == Role::Assistant && !prompt.is_empty() => {
            Ok(only(Unpaired { prompt, completion: vec![answer], label }))
        }
        _ => Ok(Parsed::Skipped("no assistant turn at the end")),
    }
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

    fn ids(&self, field: &str) -> Result<Vec<i64>> {
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
    fn prompt(&self, field: &str) -> Result<Vec<Message>> {
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
    fn sides(&self, lone: Option<Role>) -> Result<[Vec<Message>; 2]> {
        let side = |field: &str| match self.get(field) {
            Some(turn @ Value::Object(_)) if lone.is_some() => Ok(vec![self.turn(field, turn)?]),
            _ => self.turns(field, lone),
        };
        Ok([side("chosen")?, side("rejected")?])
    }

    /// Checks that a completion is exactly one assistant turn with loss and with text.
    fn one_answer(&self, field: &str, answer: &[Message]) -> Result<()> {
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
    fn filled(&self, field: &str, turns: &[Message]) -> Result<()> {
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

    fn not_one_answer(&self, field: &str, answer: &[Message]) -> Error {
        let roles: Vec<&str> = answer.iter().map(|message| message.role.as_str()).collect();
        Error::NotOneAnswer { at: self.at.clone(), field: field.to_owned(), found: roles.join(", ") }
    }

    fn some_turns(&self, field: &str, turns: Vec<Message>) -> Result<Vec<Message>> {
        if turns.is_empty() {
            return Err(Error::EmptyConversation { at: self.at.clone(), field: field.to_owned() });
        }
        Ok(turns)
    }

    /// Returns a list of turns. With `lone`, a text is accepted as one turn of that role.
    fn turns(&self, field: &str, lone: Option<Role>) -> Result<Vec<Message>> {
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

    fn wrong(&self, field: &str, found: &Value, expected: &'static str) -> Error {
        Error::WrongType {
            at: self.at.clone(),
            field: field.to_owned(),
            found: notes::preview(found),
            expected,
        }
    }
}
