//! Converts records to columns. Turns are always written as lists of `{role, content}`, so that each column
//! has one type. A turn has a field of another name only if it needs it.

use serde_json::{Value, json};

use super::kind::{Demonstration, Preference, Prompt, Unpaired};
use crate::conversation::Message;
use crate::table::Row;

pub(super) fn demonstration(row: &Demonstration) -> Row {
    match row {
        Demonstration::Messages { messages, tools } => {
            columns([("messages", turns(messages)), ("tools", json!(tools))])
        }
        Demonstration::PromptCompletion { prompt, completion, tools } => {
            columns([("prompt", turns(prompt)), ("completion", turns(completion)), ("tools", json!(tools))])
        }
        Demonstration::Text(text) => columns([("text", json!(text))]),
        Demonstration::Tokens { input_ids, labels } => {
            columns([("input_ids", json!(input_ids)), ("labels", json!(labels))])
        }
    }
}

pub(super) fn preference(row: &Preference) -> Row {
    match row {
        Preference::Messages { prompt, chosen, rejected, tools, margin } => columns([
            ("prompt", turns(prompt)),
            ("chosen", turns(chosen)),
            ("rejected", turns(rejected)),
            ("margin", json!(margin)),
            ("tools", json!(tools)),
        ]),
        Preference::Tokens { chosen, rejected, prompt_length, margin } => columns([
            ("chosen_input_ids", json!(chosen)),
            ("rejected_input_ids", json!(rejected)),
            ("prompt_length", json!(prompt_length)),
            ("margin", json!(margin)),
        ]),
    }
}

pub(super) fn prompt(row: &Prompt) -> Row {
    columns([("prompt", turns(&row.messages)), ("answer", json!(row.answer)), ("tools", json!(row.tools))])
}

pub(super) fn unpaired(row: &Unpaired) -> Row {
    columns([
        ("prompt", turns(&row.prompt)),
        ("completion", turns(&row.completion)),
        ("label", json!(row.label)),
        ("tools", json!(row.tools)),
    ])
}

/// Returns the columns in order, without those that have no value.
fn columns<const N: usize>(columns: [(&str, Value); N]) -> Row {
    let named = columns.into_iter().filter(|(_, value)| !value.is_null());
    named.map(|(name, value)| (name.to_owned(), value)).collect()
}

fn turns(messages: &[Message]) -> Value {
    let turn = |message: &Message| {
        let mut turn = json!(message);
        if message.ignore_loss {
            turn["weight"] = json!(0);
        }
        turn
    };
    messages.iter().map(turn).collect()
}
