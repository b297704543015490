//! Rows that `generate`, `logprobs` and `reward` read and write: JSON objects, one a line (Parquet is read as well).
//!
//! An input row has one of `text`, `ids` and `messages`; other fields are left alone. Rows are counted from 1, as in
//! every message about data.

use std::path::Path;

use datasets::{At, Demonstration, Error, Layout, Message, Record, Row, TableReader};
use serde::Serialize;

use crate::command::print_rows;
use crate::output::write_whole;

/// What a row gives.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Given {
    /// Running text.
    Text(String),
    /// Token ids.
    Ids(Vec<i64>),
    /// A conversation.
    Messages(Vec<Message>),
}

/// A row and where it stands.
#[derive(Clone, Debug)]
pub(crate) struct Input {
    /// What it gives.
    pub(crate) given: Given,
    /// Where it stands.
    pub(crate) at: At,
}

/// Reads every row of a file. `fields` are the fields that the command takes.
pub(crate) fn read(path: &Path, fields: &'static str) -> Result<Vec<Input>, Error> {
    let mut inputs = Vec::new();
    for row in TableReader::open(path)?.rows(None)? {
        let (at, row) = row?;
        inputs.push(Input { given: parse(&row, &at, fields)?, at });
    }
    if inputs.is_empty() {
        return Err(Error::NoRows { path: path.to_owned() });
    }
    Ok(inputs)
}

fn parse(row: &Row, at: &At, fields: &'static str) -> Result<Given, Error> {
    let wanted = |name: &str| {
        fields.split(", ").any(|field| field == name) && row.get(name).is_some_and(|value| !value.is_null())
    };
    match (wanted("text"), wanted("ids"), wanted("messages")) {
        (true, false, false) => text_or_messages(Layout::Text, row, at),
        (false, true, false) => ids(row, at),
        (false, false, true) => text_or_messages(Layout::Messages, row, at),
        (false, false, false) => Err(Error::MissingField {
            at: at.clone(),
            field: fields.replace(", ", " or "),
            expected: "one of them",
        }),
        _ => Err(Error::WrongType {
            at: at.clone(),
            field: fields.replace(", ", " and "),
            found: "there more than once".to_owned(),
            expected: "exactly one of them",
        }),
    }
}

fn text_or_messages(layout: Layout, row: &Row, at: &At) -> Result<Given, Error> {
    match Demonstration::parse(layout, row, at)? {
        Demonstration::Messages(messages) => Ok(Given::Messages(messages)),
        Demonstration::Text(text) => Ok(Given::Text(text)),
        other => unreachable!("the layout {layout} does not read as {other:?}"),
    }
}

fn ids(row: &Row, at: &At) -> Result<Given, Error> {
    let wrong = |field: String, found: &serde_json::Value| Error::WrongType {
        at: at.clone(),
        field,
        found: found.to_string(),
        expected: "a list of whole numbers, at least one",
    };
    let list = row["ids"]
        .as_array()
        .filter(|list| !list.is_empty())
        .ok_or_else(|| wrong("ids".into(), &row["ids"]))?;
    let id = |(index, id): (usize, &serde_json::Value)| {
        id.as_i64().ok_or_else(|| wrong(format!("ids[{index}]"), id))
    };
    Ok(Given::Ids(list.iter().enumerate().map(id).collect::<Result<_, _>>()?))
}

/// Refuses ids that the model does not have, rows without a token, and rows longer than the model takes.
pub(crate) fn check_ids(ids: &[i64], at: &At, vocab_size: i64, longest: i64) -> Result<(), Error> {
    if ids.is_empty() {
        return Err(Error::MissingField {
            at: at.clone(),
            field: "text".to_owned(),
            expected: "text with at least one token",
        });
    }
    if let Some(&id) = ids.iter().find(|&&id| id < 0 || id >= vocab_size) {
        return Err(Error::IdOutsideVocabulary {
            place: at.to_string(),
            id,
            vocab_size: vocab_size as usize,
        });
    }
    if ids.len() as i64 > longest {
        let error = Error::RowTooLong { row: at.row, length: ids.len(), max_length: longest as usize };
        return Err(error);
    }
    Ok(())
}

/// Writes one JSON object a line: to `output`, which is whole or absent, or else to stdout.
pub(crate) fn write<T: Serialize>(rows: &[T], output: Option<&Path>) -> anyhow::Result<()> {
    let mut text = Vec::new();
    for row in rows {
        serde_json::to_writer(&mut text, row)?;
        text.push(b'\n');
    }
    match output {
        Some(path) => Ok(write_whole(path, &text)?),
        None => Ok(print_rows(&text)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIELDS: &str = "text, ids, messages";

    fn row(line: &str) -> Row {
        serde_json::from_str(line).unwrap()
    }

    fn one(line: &str) -> Result<Given, String> {
        let at = At { path: "rows.jsonl".into(), row: 3 };
        parse(&row(line), &at, FIELDS).map_err(|error| error.to_string())
    }

    #[test]
    fn a_row_gives_text_ids_or_messages() {
        assert_eq!(one(r#"{"text": "hi", "source": 7}"#).unwrap(), Given::Text("hi".into()));
        assert_eq!(one(r#"{"ids": [1, 2], "text": null}"#).unwrap(), Given::Ids(vec![1, 2]));
        let messages = one(r#"{"messages": [{"role": "user", "content": "hi"}]}"#).unwrap();
        assert_eq!(messages, Given::Messages(vec![Message::user("hi")]));
    }

    #[test]
    fn a_wrong_row_names_file_row_and_field() {
        for (line, words) in [
            ("{}", "field text or ids or messages is missing or null"),
            (r#"{"text": "a", "ids": [1]}"#, "exactly one of them"),
            (r#"{"text": 3}"#, "field text is the number 3"),
            (r#"{"ids": [1, "x"]}"#, "field ids[1] is \"x\""),
            (r#"{"ids": []}"#, "at least one"),
            (r#"{"messages": []}"#, "field messages has no turns"),
            (r#"{"messages": [{"role": "robot", "content": "x"}]}"#, "field messages[0].role is \"robot\""),
        ] {
            let message = one(line).unwrap_err();
            assert!(message.starts_with("rows.jsonl line 3") && message.contains(words), "{line}: {message}");
        }
    }

    #[test]
    fn a_field_that_the_command_does_not_take_is_left_alone() {
        let at = At { path: "rows.jsonl".into(), row: 1 };
        let line = r#"{"text": "x", "messages": 7}"#;
        assert_eq!(parse(&row(line), &at, "text, ids").unwrap(), Given::Text("x".into()));
    }

    #[test]
    fn ids_are_checked_against_the_model() {
        let at = At { path: "rows.jsonl".into(), row: 0 };
        assert!(check_ids(&[0, 4], &at, 5, 2).is_ok());
        assert!(check_ids(&[5], &at, 5, 2).is_err());
        assert!(check_ids(&[-1], &at, 5, 2).is_err());
        assert!(check_ids(&[0, 1, 2], &at, 5, 2).is_err());
        assert!(check_ids(&[], &at, 5, 2).is_err());
    }
}
