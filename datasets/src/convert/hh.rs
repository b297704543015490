//! HH transcripts: pairs of whole dialogues in one text each (Bai et al. 2022, Anthropic's hh-rlhf).
//!
//! "\n\nHuman: " and "\n\nAssistant: " begin the turns. The pair is split where it first parts, at the latest before the
//! last turn; after that each side must have exactly one assistant turn.

use serde_json::Value;

use super::{Converted, ForeignRow};
use crate::conversation::{Message, Role};
use crate::error::Result;
use crate::record::Preference;

const MARKS: [(&str, Role); 2] = [("\n\nHuman:", Role::User), ("\n\nAssistant:", Role::Assistant)];

/// Whether a value is a text that begins with a turn of the human.
pub(super) fn is_transcript(value: &Value) -> bool {
    value.as_str().is_some_and(|text| text.trim_start().starts_with("Human:"))
}

pub(super) fn preference(row: &ForeignRow<'_>) -> Result<Converted<Preference>> {
    let side = |field: &str| {
        let text = row.text(field)?;
        let turns = turns(text);
        turns.ok_or_else(|| row.bad(format!("field {field} does not begin with \"Human:\"")))
    };
    let (mut chosen, mut rejected) = (side("chosen")?, side("rejected")?);
    if chosen == rejected {
        return Ok(Converted::Skipped("chosen equals rejected"));
    }
    let shared = chosen.iter().zip(&rejected).take_while(|(left, right)| left == right).count();
    let shared = shared.min(chosen.len() - 1).min(rejected.len() - 1);
    let prompt = chosen[..shared].to_vec();
    chosen.drain(..shared);
    rejected.drain(..shared);
    let answers = |turns: &[Message]| matches!(turns, [turn] if turn.role == Role::Assistant);
    if prompt.is_empty() || !answers(&chosen) || !answers(&rejected) {
        return Ok(Converted::Skipped("the dialogues part before the last turn"));
    }
    if chosen[0].content.is_empty() || rejected[0].content.is_empty() {
        return Ok(Converted::Skipped("empty answer"));
    }
    Ok(Converted::Rows(vec![Preference::Messages { prompt, chosen, rejected, margin: None }]))
}

/// Splits a transcript at its marks; `None` where it does not begin with one.
fn turns(text: &str) -> Option<Vec<Message>> {
    let text = format!("\n\n{}", text.trim_start());
    let mut rest = text.as_str();
    let mut messages = Vec::new();
    while !rest.is_empty() {
        let (mark, role) = MARKS.iter().find(|(mark, _)| rest.starts_with(mark))?;
        let behind = &rest[mark.len()..];
        let end = MARKS.iter().filter_map(|(mark, _)| behind.find(mark)).min().unwrap_or(behind.len());
        messages.push(Message { role: *role, content: behind[..end].trim().to_owned() });
        rest = &behind[end..];
    }
    Some(messages)
}
