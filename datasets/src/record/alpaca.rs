//! Alpaca and related layouts: `instruction`, `input` (often empty) and an answer column (Taori et al. 2023),
//! or `chosen` and `rejected`. `GPTeacher` calls the answer `response`, and Dolly calls the input `context`.
//!
//! Instruction and input become one user turn, with an empty line between them.

use super::fields::Fields;
use super::kind::{Demonstration, Parsed, Preference};
use crate::conversation::Message;
use crate::error::{Error, Result};

/// Reads a demonstration. `answer` is the name of the answer column.
pub(super) fn demonstration(fields: &Fields<'_>, answer: &str) -> Result<Parsed<Demonstration>> {
    let mut messages = prompt(fields)?;
    let output = fields.text_or_empty(answer)?;
    if output.trim().is_empty() {
        return Ok(Parsed::Skipped("the answer is empty"));
    }
    messages.push(Message::assistant(output));
    Ok(Parsed::Rows(vec![Demonstration::Messages { messages, tools: fields.tools()? }]))
}

/// Reads a preference pair.
pub(super) fn preference(fields: &Fields<'_>) -> Result<Parsed<Preference>> {
    let (chosen, rejected) = (fields.text_or_empty("chosen")?, fields.text_or_empty("rejected")?);
    if chosen.trim().is_empty() || rejected.trim().is_empty() {
        return Ok(Parsed::Skipped("an answer is empty"));
    }
    if chosen == rejected {
        return Ok(Parsed::Skipped("chosen equals rejected"));
    }
    Ok(Parsed::Rows(vec![Preference::Messages {
        prompt: prompt(fields)?,
        chosen: vec![Message::assistant(chosen)],
        rejected: vec![Message::assistant(rejected)],
        tools: fields.tools()?,
        margin: fields.number("margin")?,
    }]))
}

/// Builds the prompt: the user turn from the instruction and the input, after the system turn if there is
/// one.
fn prompt(fields: &Fields<'_>) -> Result<Vec<Message>> {
    let mut parts = Vec::new();
    for column in ["instruction", "input", "context"].into_iter().filter(|name| fields.layout.reads(name)) {
        let text = fields.text_or_empty(column)?;
        if !text.trim().is_empty() {
            parts.push(text);
        }
    }
    if parts.is_empty() {
        let reason = "instruction and input are empty".to_owned();
        return Err(Error::BadForeignRow { at: fields.at.clone(), reason });
    }
    fields.with_system(vec![Message::user(parts.join("\n\n"))])
}
