//! Collects notes about the rows of a file: unread fields, skipped rows and odd conversations.
//!
//! Every column or turn field is accounted for. It is read, or it is empty (null, empty text, list or
//! object), or the user dropped it by name. Of the remaining fields, those that would change what the model
//! learns are an error, metadata such as `id` are counted separately, and all others are counted and
//! reported. This module does not print.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::kind::Record;
use super::layout::Layout;
use super::mapping::Mapping;
use crate::conversation::{Message, Role, function};
use crate::error::{Error, Result, RowLocation};
use crate::table::Row;
use crate::table::limits::{COLUMNS, too_many_columns};

/// Fields of rows and turns that are part of the model input or the training target. They are an error where
/// no layout reads them.
pub(crate) const SEMANTIC_FIELDS: [&str; 33] = [
    "tools",
    "tool_calls",
    "functions",
    "function_call",
    "tool_choice",
    "system",
    "system_prompt",
    "input",
    "context",
    "history",
    "documents",
    "images",
    "image",
    "videos",
    "video",
    "audios",
    "audio",
    "weight",
    "weights",
    "loss_mask",
    "loss",
    "mask",
    "masked",
    "train",
    "reasoning_content",
    "reasoning",
    "thinking",
    "completion",
    "response",
    "output",
    "label",
    "labels",
    "margin",
];

/// Fields that describe a row and are not part of its content.
const METADATA: [&str; 62] = [
    "id",
    "_id",
    "idx",
    "index",
    "uuid",
    "uid",
    "row_id",
    "prompt_id",
    "message_id",
    "parent_id",
    "question_id",
    "conversation_id",
    "conversation_hash",
    "__index_level_0__",
    "source",
    "sources",
    "src",
    "dataset",
    "dataset_name",
    "data_source",
    "subset",
    "split",
    "origin",
    "url",
    "link",
    "license",
    "author",
    "user_id",
    "date",
    "time",
    "timestamp",
    "created",
    "created_at",
    "updated_at",
    "lang",
    "language",
    "category",
    "categories",
    "domain",
    "topic",
    "topics",
    "tag",
    "tags",
    "type",
    "task",
    "task_name",
    "task_type",
    "subject",
    "level",
    "difficulty",
    "score",
    "score_chosen",
    "score_rejected",
    "rating",
    "model",
    "model_name",
    "generator",
    "num_turns",
    "num_tokens",
    "hash",
    "metadata",
    "meta",
];

/// The number of rows with a finding, and the first of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldCount {
    /// Number of rows.
    pub rows: usize,
    /// The number of the first such row, counted from 1. For JSONL it is the line number.
    pub first: usize,
}

/// Findings about a file that are not part of its records.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notes {
    /// Fields that are not read, such as `quality` or `messages[].mood`, without metadata.
    pub unread: BTreeMap<String, FieldCount>,
    /// Metadata fields that are not read.
    pub metadata: BTreeMap<String, FieldCount>,
    /// Skipped rows, by reason.
    pub skipped: BTreeMap<String, FieldCount>,
    /// Odd conversations, which are used as they are.
    pub odd: BTreeMap<String, FieldCount>,
}

/// The treatment of a field that no layout reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Refused,
    Metadata,
    Told,
}

/// Classifies a field by its name. `needless` lists semantic names that this record type does not use.
pub(crate) fn class(name: &str, needless: &[&str]) -> Class {
    let name = name.to_ascii_lowercase();
    let is = |list: &[&str]| list.contains(&name.as_str());
    if is(needless) || is(&METADATA) {
        Class::Metadata
    } else if is(&SEMANTIC_FIELDS) {
        Class::Refused
    } else {
        Class::Told
    }
}

/// A row with everything that decides which of its fields are read.
pub(crate) struct ReadRow<'a> {
    pub(crate) row: &'a Row,
    pub(crate) at: &'a RowLocation,
    pub(crate) layout: Layout,
    pub(crate) mapping: &'a Mapping,
    pub(crate) needless: &'a [&'static str],
    pub(crate) kind: &'static str,
}

impl Notes {
    /// Counts the unread fields of a row. Returns an error for a field that would change the meaning of the
    /// row.
    pub(crate) fn unread(&mut self, looked: &ReadRow<'_>) -> Result<()> {
        for (name, value) in looked.row {
            if !looked.layout.reads(name) {
                self.field(looked, name, name, value)?;
            } else if name != "tools" && !matches!(looked.layout, Layout::Oasst | Layout::OasstPreference) {
                self.turns(looked, name, value)?;
            }
        }
        Ok(())
    }

    /// Checks the turn fields of a column. Each field counts once per row.
    fn turns(&mut self, looked: &ReadRow<'_>, column: &str, value: &Value) -> Result<()> {
        let turns = match value {
            Value::Array(turns) => turns.as_slice(),
            turn @ Value::Object(_) => std::slice::from_ref(turn),
            _ => return Ok(()),
        };
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        for turn in turns.iter().filter_map(Value::as_object) {
            for (name, value) in turn {
                if !looked.mapping.reads_turn_field(name) && !is_blank(value) && seen.insert(name) {
                    self.field(looked, name, &format!("{column}[].{name}"), value)?;
                }
            }
        }
        Ok(())
    }

    /// Counts or refuses one unread field.
    fn field(&mut self, looked: &ReadRow<'_>, name: &str, place: &str, value: &Value) -> Result<()> {
        if is_blank(value) {
            return Ok(());
        }
        match class(name, looked.needless) {
            Class::Refused => Err(Error::UnreadField {
                at: looked.at.clone(),
                field: place.escape_debug().to_string(),
                found: preview(value),
                layout: looked.layout.name(),
                kind: looked.kind,
                name: name.escape_debug().to_string(),
            }),
            // A file whose every row has fields of its own would fill the memory with their names.
            Class::Metadata | Class::Told if self.metadata.len() + self.unread.len() > COLUMNS => {
                Err(too_many_columns(looked.at.clone()))
            }
            Class::Metadata => {
                count(&mut self.metadata, place, looked.at);
                Ok(())
            }
            Class::Told => {
                count(&mut self.unread, place, looked.at);
                Ok(())
            }
        }
    }

    /// Counts a column that is not read, for `rows` rows.
    pub(crate) fn column(&mut self, name: &str, rows: usize, needless: &[&str]) {
        let counts =
            if class(name, needless) == Class::Metadata { &mut self.metadata } else { &mut self.unread };
        counts.insert(name.to_owned(), FieldCount { rows, first: 1 });
    }

    /// Counts a skipped row.
    pub(crate) fn skip(&mut self, reason: &str, at: &RowLocation) {
        count(&mut self.skipped, reason, at);
    }

    /// Counts the oddities of a conversation.
    pub(crate) fn note_oddities<R: Record>(&mut self, record: &R, at: &RowLocation) {
        let turns = record.turns();
        let spoken: Vec<&&Message> = turns.iter().filter(|turn| turn.role != Role::System).collect();
        if spoken.first().is_some_and(|turn| turn.role == Role::Assistant) {
            count(&mut self.odd, "have an assistant turn before any other", at);
        }
        for (role, what) in [
            (Role::User, "have two user turns in a row"),
            (Role::Assistant, "have two assistant turns in a row"),
        ] {
            if spoken.windows(2).any(|pair| pair[0].role == role && pair[1].role == role) {
                count(&mut self.odd, what, at);
            }
        }
        let silent = |turn: &&Message| turn.role == Role::User && turn.content.trim().is_empty();
        if turns.iter().any(silent) {
            count(&mut self.odd, "have a user turn that says nothing", at);
        }
        let mut calls = turns.iter().flat_map(|turn| &turn.tool_calls);
        if calls.any(|call| function(call).get("arguments").is_some_and(Value::is_string)) {
            let what = "have a tool call whose arguments are text, which most templates expect as an object";
            count(&mut self.odd, what, at);
        }
    }

    /// Adds the notes of another part of the same file.
    pub fn add(&mut self, other: &Self) {
        for (own, others) in [
            (&mut self.unread, &other.unread),
            (&mut self.metadata, &other.metadata),
            (&mut self.skipped, &other.skipped),
            (&mut self.odd, &other.odd),
        ] {
            for (what, seen) in others {
                own.entry(what.clone()).and_modify(|own| own.rows += seen.rows).or_insert(*seen);
            }
        }
    }

    /// Formats the notes as text lines. `row` is the word for a row: `line` for JSONL, `row` otherwise.
    pub fn lines(&self, row: &str, with_metadata: bool) -> Vec<String> {
        let rows = |count: usize| if count == 1 { "1 row".to_owned() } else { format!("{count} rows") };
        let mut lines = Vec::new();
        let fields = |fields: &BTreeMap<String, FieldCount>| {
            let field = |(name, seen): (&String, &FieldCount)| {
                format!("{} ({})", name.escape_debug(), rows(seen.rows))
            };
            fields.iter().map(field).collect::<Vec<_>>().join(", ")
        };

        if !self.unread.is_empty() {
            lines.push(format!("not read: {}", fields(&self.unread)));
        }
        if with_metadata && !self.metadata.is_empty() {
            lines.push(format!("not read, as metadata: {}", fields(&self.metadata)));
        }

        for (reason, seen) in &self.skipped {
            lines.push(format!("{} left out: {reason} (the first is {row} {})", rows(seen.rows), seen.first));
        }
        for (what, seen) in &self.odd {
            let what = if seen.rows == 1 { what.replacen("have ", "has ", 1) } else { what.clone() };
            lines.push(format!("{} {what} (the first is {row} {})", rows(seen.rows), seen.first));
        }
        lines
    }
}

/// Counts a row under the key `what`.
fn count(counts: &mut BTreeMap<String, FieldCount>, what: &str, at: &RowLocation) {
    match counts.get_mut(what) {
        Some(seen) => seen.rows += 1,
        None => {
            counts.insert(what.to_owned(), FieldCount { rows: 1, first: at.row });
        }
    }
}

/// Whether a value is empty. Tables fill missing fields with null or with empty texts, lists and objects.
pub(crate) fn is_blank(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => ["", "[]", "{}", "null"].contains(&text.trim()),
        Value::Array(list) => list.is_empty(),
        Value::Object(object) => object.values().all(is_blank),
        _ => false,
    }
}

/// The most names of an object in a message.
const SHOWN_NAMES: usize = 20;

/// Describes a value in a few words.
pub fn preview(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => format!("the truth value {value}"),
        Value::Number(number) => format!("the number {number}"),
        Value::String(text) => format!("the text {:?}", text.chars().take(40).collect::<String>()),
        Value::Array(list) => format!("a list of {}", list.len()),
        Value::Object(object) => {
            let names = object.keys().take(SHOWN_NAMES).map(|name| name.escape_debug().to_string());
            let more = if object.len() > SHOWN_NAMES { ", ..." } else { "" };
            format!("an object with {}{more}", names.collect::<Vec<_>>().join(", "))
        }
    }
}
