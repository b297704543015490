//! Turns with `from` and `value` or `content`: `ShareGPT`, LLaMA-Factory, `ColossalChat`.

use serde_json::Value;

use super::{Converted, Foreign, ForeignRow};
use crate::conversation::{Message, Role};
use crate::error::{Error, Result};
use crate::record::{Demonstration, Preference, Unpaired};

pub(super) fn conversation(row: &ForeignRow<'_>) -> Result<Converted<Demonstration>> {
    let field = if row.from == Foreign::ColossalMessages { "messages" } else { "conversations" };
    let mut messages = row.turns(field)?;
    // A last turn of the user has no answer to learn.
    while messages.last().is_some_and(|last| last.role != Role::Assistant) {
        messages.pop();
    }
    if messages.is_empty() {
        return Ok(Converted::Skipped("no assistant turn"));
    }
    Ok(Converted::Rows(vec![Demonstration::Messages(messages)]))
}

pub(super) fn preference(context: &str, row: &ForeignRow<'_>) -> Result<Converted<Preference>> {
    let prompt = row.turns(context)?;
    let (chosen, rejected) = (row.answer("chosen")?, row.answer("rejected")?);
    if chosen == rejected {
        return Ok(Converted::Skipped("chosen equals rejected"));
    }
    Ok(Converted::Rows(vec![Preference::Messages { prompt, chosen, rejected, margin: None }]))
}

pub(super) fn unpaired(row: &ForeignRow<'_>) -> Result<Converted<Unpaired>> {
    let mut prompt = row.turns("messages")?;
    let Some(label) = row.row.get("label").and_then(Value::as_bool) else {
        return Err(row.bad("field label is not true or false"));
    };
    match prompt.pop() {
        Some(answer) if answer.role == Role::Assistant && !prompt.is_empty() => {
            Ok(Converted::Rows(vec![Unpaired { prompt, completion: vec![answer], label }]))
        }
        _ => Ok(Converted::Skipped("no assistant turn at the end")),
    }
}

impl ForeignRow<'_> {
    /// The turns in a field, after those of a `system` column.
    fn turns(&self, field: &str) -> Result<Vec<Message>> {
        let list = self.row.get(field).and_then(Value::as_array);
        let list = list.ok_or_else(|| self.bad(format!("field {field} is not a list of turns")))?;
        let system = if self.from == Foreign::ColossalMessages { "" } else { self.text("system")? };
        let system = Some(system).filter(|text| !text.is_empty()).map(Message::system);
        let turn = |(index, turn)| self.turn(&format!("{field}[{index}]"), turn);
        system.map(Ok).into_iter().chain(list.iter().enumerate().map(turn)).collect()
    }

    /// One assistant turn, given as a turn, a list of one turn, or a text.
    fn answer(&self, field: &str) -> Result<Vec<Message>> {
        let answer = match self.row.get(field) {
            Some(Value::Array(list)) if list.len() == 1 => self.turn(field, &list[0])?,
            Some(Value::String(text)) => Message::assistant(text),
            Some(turn @ Value::Object(_)) => self.turn(field, turn)?,
            _ => return Err(self.bad(format!("field {field} is not one turn"))),
        };
        if answer.role != Role::Assistant || answer.content.trim().is_empty() {
            return Err(self.bad(format!("field {field} is not an assistant turn with content")));
        }
        Ok(vec![answer])
    }

    fn turn(&self, field: &str, value: &Value) -> Result<Message> {
        let turn = value.as_object().ok_or_else(|| self.bad(format!("{field} is not an object")))?;
        let part = |name: &str, usual: &[&str]| {
            let found = self.mapping.field(name, turn, usual).and_then(Value::as_str);
            let wanted = usual.join(" or ");
            found.ok_or_else(|| {
                self.bad(format!("{field} has no text {wanted}: name the field with --map {name}=FIELD"))
            })
        };
        let name = part("role", &["from", "role"])?;
        let role = self.mapping.role(name).ok_or_else(|| Error::UnknownRole {
            at: self.at.clone(),
            field: field.to_owned(),
            found: name.to_owned(),
        })?;
        Ok(Message { role, content: part("content", &["value", "content"])?.to_owned() })
    }
}
