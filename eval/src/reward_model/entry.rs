//! Prompts with their replies, the file that they are from, and what its columns are read with.

use datasets::record::preview;
use datasets::{Message, Row, RowLocation};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(super) type Found<T> = Result<T, datasets::Error>;

/// What the rows of a file are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    /// Preference pairs.
    Preference,
    /// The pairs of HHH alignment.
    HhhAlignment,
    /// The pairs of `RewardBench`.
    RewardBench,
    /// The completions of `RewardBench` 2.
    #[serde(rename = "reward_bench_2")]
    RewardBench2,
    /// Replies with a gold value each.
    BestOfN,
}

impl FileKind {
    /// The name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Preference => "preference pairs",
            Self::HhhAlignment => "HHH alignment",
            Self::RewardBench => "RewardBench",
            Self::RewardBench2 => "RewardBench 2",
            Self::BestOfN => "best of n",
        }
    }
}

/// The rows of one file.
#[derive(Clone, Debug, PartialEq)]
pub struct DataFile {
    /// The name that reports show.
    pub name: String,
    /// What the rows are.
    pub kind: FileKind,
    /// The column that splits the rows into groups.
    pub split_by: Option<String>,
    /// The rows.
    pub entries: Vec<Entry>,
    /// The rows of a third-party layout that hold no pair.
    pub skipped: usize,
}

/// What is known of the replies of an entry.
#[derive(Clone, Debug, PartialEq)]
pub enum Facts {
    /// The first of two replies is the better one.
    Pair,
    /// The first `correct` replies are right.
    Completions {
        /// The id of the row.
        id: String,
        /// The number of right replies.
        correct: usize,
    },
    /// The gold value of each reply.
    Gold(Vec<f64>),
}

/// A prompt with its replies.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Where it is from.
    pub at: RowLocation,
    /// The part of the file that it belongs to; empty if the file has no parts.
    pub group: String,
    /// The turns before the reply.
    pub prompt: Vec<Message>,
    /// The replies; the better or right ones come first.
    pub replies: Vec<String>,
    /// What is known of them.
    pub facts: Facts,
}

impl Entry {
    /// The conversation that ends with a reply.
    pub fn conversation(&self, reply: usize) -> Vec<Message> {
        let mut turns = self.prompt.clone();
        turns.push(Message::assistant(self.replies[reply].clone()));
        turns
    }
}

/// A list of at least one text.
pub(super) fn texts(row: &Row, field: &str, at: &RowLocation) -> Found<Vec<String>> {
    const TEXTS: &str = "a list of texts, at least one";
    let value = need(row, field, at, TEXTS)?;
    let list = value.as_array().filter(|list| !list.is_empty());
    let list = list.ok_or_else(|| wrong(at, field, preview(value), TEXTS))?;
    let one = |(index, value): (usize, &Value)| {
        let text = value.as_str().map(str::to_owned);
        text.ok_or_else(|| wrong(at, &format!("{field}[{index}]"), preview(value), "text"))
    };
    list.iter().enumerate().map(one).collect()
}

/// A text, which may be empty.
pub(super) fn text(row: &Row, field: &str, at: &RowLocation) -> Found<String> {
    let value = need(row, field, at, "text")?;
    value.as_str().map(str::to_owned).ok_or_else(|| wrong(at, field, preview(value), "text"))
}

pub(super) fn need<'a>(
    row: &'a Row,
    field: &str,
    at: &RowLocation,
    expected: &'static str,
) -> Found<&'a Value> {
    let value = row.get(field).filter(|value| !value.is_null());
    value.ok_or_else(|| datasets::Error::MissingField { at: at.clone(), field: field.to_owned(), expected })
}

pub(super) fn wrong(at: &RowLocation, field: &str, found: String, expected: &'static str) -> datasets::Error {
    datasets::Error::WrongType { at: at.clone(), field: field.to_owned(), found, expected }
}
