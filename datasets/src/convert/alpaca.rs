//! Alpaca: `instruction`, `input` (often empty) and `output`, or `chosen` and `rejected` (Taori et al. 2023).
//!
//! Instruction and input become one user turn, with an empty line between them. `history` of LLaMA-Factory is not read: a
//! row that has one is an error.

use super::{Converted, ForeignRow};
use crate::conversation::Message;
use crate::error::Result;
use crate::record::{Demonstration, Preference};

pub(super) fn demonstration(row: &ForeignRow<'_>) -> Result<Converted<Demonstration>> {
    let mut messages = prompt(row)?;
    let output = row.text("output")?;
    if output.trim().is_empty() {
        return Ok(Converted::Skipped("empty output"));
    }
    messages.push(Message::assistant(output));
    Ok(Converted::Rows(vec![Demonstration::Messages(messages)]))
}

pub(super) fn preference(row: &ForeignRow<'_>) -> Result<Converted<Preference>> {
    let (chosen, rejected) = (row.text("chosen")?, row.text("rejected")?);
    if chosen.trim().is_empty() || rejected.trim().is_empty() {
        return Ok(Converted::Skipped("empty answer"));
    }
    if chosen == rejected {
        return Ok(Converted::Skipped("chosen equals rejected"));
    }
    let (chosen, rejected) = (vec![Message::assistant(chosen)], vec![Message::assistant(rejected)]);
    Ok(Converted::Rows(vec![Preference::Messages { prompt: prompt(row)?, chosen, rejected, margin: None }]))
}

fn prompt(row: &ForeignRow<'_>) -> Result<Vec<Message>> {
    if row.row.get("history").and_then(|history| history.as_array()).is_some_and(|turns| !turns.is_empty()) {
        return Err(row.bad("field history has turns, which are not read"));
    }
    let (instruction, input) = (row.text("instruction")?, row.text("input")?);
    if instruction.trim().is_empty() && input.trim().is_empty() {
        return Err(row.bad("instruction and input are empty"));
    }
    let parts: Vec<&str> = [instruction, input].into_iter().filter(|part| !part.trim().is_empty()).collect();
    let system = Some(row.text("system")?).filter(|text| !text.is_empty()).map(Message::system);
    Ok(system.into_iter().chain([Message::user(parts.join("\n\n"))]).collect())
}
