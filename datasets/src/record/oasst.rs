//! OASST message trees (Köpf et al. 2023). Every node is a message with ranked `replies`; rank 0 is the best.
//!
//! Preference pairs are all pairs of assistant siblings of different rank, with the better one chosen, as in
//! Ouyang et al. 2022, section 3.5: K completions give K(K-1)/2 pairs. Unranked siblings have no order, so
//! they give no pairs. A conversation starts at the prompt and follows the first of the sorted replies at
//! every turn: the one with the best rank, or the first unranked one.

use serde_json::Value;

use super::fields::Fields;
use super::kind::{Demonstration, Parsed, Preference};
use crate::conversation::{Message, Role};
use crate::error::{Error, Result};
use crate::table::limits::{ROW_BYTES, row_too_large};

/// Reads all preference pairs of a tree.
pub(super) fn preferences(row: &Fields<'_>) -> Result<Parsed<Preference>> {
    let mut tree = Tree { row, path: Vec::new(), pairs: Vec::new(), bytes: 0 };
    tree.collect(root(row)?)?;
    let pairs = tree.pairs;
    Ok(if pairs.is_empty() { Parsed::Skipped("the tree has no ranked answers") } else { Parsed::Rows(pairs) })
}

/// Reads the conversation along the best path of a tree, up to its last assistant turn.
pub(super) fn conversations(row: &Fields<'_>) -> Result<Parsed<Demonstration>> {
    let mut node = root(row)?;
    let mut messages = vec![message(row, node)?];
    while let Some(next) = replies(node).into_iter().next() {
        messages.push(message(row, next)?);
        node = next;
    }
    while messages.last().is_some_and(|last| last.role != Role::Assistant) {
        messages.pop();
    }
    if messages.is_empty() {
        return Ok(Parsed::Skipped("the tree has no answer"));
    }
    Ok(Parsed::Rows(vec![Demonstration::without_tools(messages)]))
}

fn root<'a>(row: &Fields<'a>) -> Result<&'a Value> {
    row.row.get("prompt").ok_or_else(|| bad(row, "there is no prompt message"))
}

/// The pairs of a tree. Every pair repeats the messages above it, so a small tree may give pairs without end.
struct Tree<'a> {
    row: &'a Fields<'a>,
    /// The messages above the current one.
    path: Vec<Message>,
    pairs: Vec<Preference>,
    /// The bytes of the pairs.
    bytes: usize,
}

impl Tree<'_> {
    /// Adds the preference pairs below `node`.
    fn collect(&mut self, node: &Value) -> Result<()> {
        self.path.push(message(self.row, node)?);
        let replies = replies(node);
        let ranked: Vec<&Value> = replies.iter().copied().filter(|reply| rank(reply).is_some()).collect();
        let above: usize = self.path.iter().map(bytes).sum();

        for (place, &one) in ranked.iter().enumerate() {
            for &other in &ranked[place + 1..] {
                let (better, worse) = (message(self.row, one)?, message(self.row, other)?);
                let answers = better.role == Role::Assistant && worse.role == Role::Assistant;
                if answers && rank(one) != rank(other) && better != worse {
                    self.bytes += size_of::<Preference>() + above + bytes(&better) + bytes(&worse);
                    if self.bytes > ROW_BYTES {
                        return Err(row_too_large(self.row.at.clone()));
                    }
                    self.pairs.push(Preference::Messages {
                        prompt: self.path.clone(),
                        chosen: vec![better],
                        rejected: vec![worse],
                        tools: None,
                        margin: None,
                    });
                }
            }
        }

        for reply in replies {
            self.collect(reply)?;
        }
        self.path.pop();
        Ok(())
    }
}

/// The bytes of a message in memory.
fn bytes(message: &Message) -> usize {
    size_of::<Message>() + message.content.len()
}

fn rank(node: &Value) -> Option<i64> {
    node.get("rank").and_then(Value::as_i64)
}

/// Returns the replies that are not marked as deleted, sorted by rank, unranked ones last.
fn replies(node: &Value) -> Vec<&Value> {
    let list = node.get("replies").and_then(Value::as_array);
    let mut replies: Vec<&Value> =
        list.into_iter().flatten().filter(|reply| reply["deleted"] != true).collect();
    replies.sort_by_key(|reply| rank(reply).unwrap_or(i64::MAX));
    replies
}

fn message(row: &Fields<'_>, node: &Value) -> Result<Message> {
    let text = node.get("text").and_then(Value::as_str);
    let role = node.get("role").and_then(Value::as_str).and_then(|name| row.mapping.role(name));
    match (role, text) {
        (Some(role), Some(text)) => Ok(Message::new(role, text)),
        _ => Err(bad(row, "a message of the tree lacks text or a known role")),
    }
}

fn bad(row: &Fields<'_>, reason: &str) -> Error {
    Error::BadForeignRow { at: row.at.clone(), reason: reason.to_owned() }
}
