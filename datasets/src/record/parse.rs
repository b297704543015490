//! Parses table rows into records. Errors name the row, the field and the fix.
//!
//! Nothing is repaired. A row that does not fit is an error, but unusable rows of third-party data sets are
//! skipped and counted. The supported layouts are those of [`super::Layout`].

use serde_json::Value;

use super::Layout;
use super::fields::Fields;
use super::kind::{Demonstration, Parsed, Preference, Prompt, Unpaired};
use super::transcript::{self, split_shared};
use super::turns::is_empty_answer;
use crate::conversation::{Message, Role};
use crate::error::{Error, Result};

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
            Ok(only(Demonstration::Messages { messages, tools: fields.tools()? }))
        }
    }
}

fn prompt_completion(fields: &Fields<'_>, answer: &str) -> Result<Demonstration> {
    let completion = fields.turns(answer, Some(Role::Assistant))?;
    if !completion.iter().any(|message| message.role == Role::Assistant) {
        return Err(fields.not_one_answer(answer, &completion));
    }
    fields.filled(answer, &completion)?;
    let (prompt, tools) = (fields.prompt("prompt")?, fields.tools()?);
    Ok(Demonstration::PromptCompletion { prompt, completion, tools })
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
    Ok(only(Demonstration::Messages { messages, tools: fields.tools()? }))
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
    Ok(only(Preference::Messages { prompt, chosen, rejected, tools: fields.tools()?, margin }))
}

/// Whether a conversation begins with the turns of a prompt, ignoring system turns.
fn begins_with(conversation: &[Message], prompt: &[Message]) -> bool {
    let spoken = |turns: &[Message]| {
        turns.iter().filter(|turn| turn.role != Role::System).cloned().collect::<Vec<_>>()
    };
    let (conversation, prompt) = (spoken(conversation), spoken(prompt));
    let same = |(left, right): (&Message, &Message)| {
        left.role == right.role
            && left.content.trim() == right.content.trim()
            && left.tool_calls == right.tool_calls
    };
    conversation.len() > prompt.len() && conversation.iter().zip(&prompt).all(same)
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
    Ok(only(Preference::Messages { prompt, chosen, rejected, tools: fields.tools()?, margin }))
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
    Ok(only(Prompt { messages, tools: fields.tools()?, answer: answer.transpose()? }))
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
        let (prompt, tools) = (fields.prompt("prompt")?, fields.tools()?);
        return Ok(only(Unpaired { prompt, completion, tools, label }));
    }

    let mut prompt = fields.with_system(fields.turns("messages", None)?)?;
    match prompt.pop() {
        Some(answer) if answer.role == Role::Assistant && !prompt.is_empty() => {
            Ok(only(Unpaired { prompt, completion: vec![answer], tools: fields.tools()?, label }))
        }
        _ => Ok(Parsed::Skipped("no assistant turn at the end")),
    }
}
