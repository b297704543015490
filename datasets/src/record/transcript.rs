//! HH transcripts: preference pairs with each dialogue as one text (Bai et al. 2022, Anthropic's hh-rlhf).
//!
//! "\n\nHuman: " and "\n\nAssistant: " start the turns. The two dialogues are split before the first turn in
//! which they differ, at the latest before the last turn. After the split each side must have exactly one
//! assistant turn.

use super::fields::Fields;
use super::kind::{Parsed, Preference};
use crate::conversation::{Message, Role};
use crate::error::Result;

const MARKS: [(&str, Role); 2] = [("\n\nHuman:", Role::User), ("\n\nAssistant:", Role::Assistant)];

/// Whether a text begins with a human turn.
pub(super) fn is_transcript(text: &str) -> bool {
    text.trim_start().starts_with("Human:")
}

/// Reads a pair of transcripts.
pub(super) fn preference(
    fields: &Fields<'_>,
    chosen: &str,
    rejected: &str,
    margin: Option<f64>,
) -> Result<Parsed<Preference>> {
    let (mut chosen, mut rejected) = (turns(chosen), turns(rejected));
    if chosen == rejected {
        return Ok(Parsed::Skipped("chosen equals rejected"));
    }
    let prompt = split_shared(&mut chosen, &mut rejected);
    let answers = |turns: &[Message]| matches!(turns, [turn] if turn.role == Role::Assistant);
    if prompt.is_empty() || !answers(&chosen) || !answers(&rejected) {
        return Ok(Parsed::Skipped("the dialogues part before the last turn"));
    }
    if chosen[0].content.is_empty() || rejected[0].content.is_empty() {
        return Ok(Parsed::Skipped("an answer is empty"));
    }
    let prompt = fields.with_system(prompt)?;
    Ok(Parsed::Rows(vec![Preference::Messages { prompt, chosen, rejected, tools: fields.tools()?, margin }]))
}

/// Removes the common turns from the start of two conversations and returns them. Each conversation keeps at
/// least its last turn.
pub(super) fn split_shared(chosen: &mut Vec<Message>, rejected: &mut Vec<Message>) -> Vec<Message> {
    let shared = chosen.iter().zip(rejected.iter()).take_while(|(left, right)| left == right).count();
    let shared = shared.min(chosen.len().saturating_sub(1)).min(rejected.len().saturating_sub(1));
    rejected.drain(..shared);
    chosen.drain(..shared).collect()
}

/// Splits a transcript into turns at its marks. The transcript must begin with a mark.
fn turns(text: &str) -> Vec<Message> {
    let text = format!("\n\n{}", text.trim_start());
    let mut rest = text.as_str();
    let mut messages = Vec::new();
    while let Some((mark, role)) = MARKS.iter().find(|(mark, _)| rest.starts_with(mark)) {
        let behind = &rest[mark.len()..];
        let end = MARKS.iter().filter_map(|(mark, _)| behind.find(mark)).min().unwrap_or(behind.len());
        messages.push(Message::new(*role, behind[..end].trim()));
        rest = &behind[end..];
    }
    messages
}
