//! Questions for a judge, from rows in the forms of MT-Bench, of Arena-Hard, or of our own.

use datasets::{Message, Row};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Error;

/// A question of one or more turns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// What names it in results.
    pub id: String,
    /// Its category, or nothing.
    pub category: String,
    /// What the user says in each turn.
    pub turns: Vec<String>,
    /// For each turn, the reference answer. Without one it is empty.
    pub references: Vec<String>,
}

impl Question {
    /// Reads a row: `turns`, `prompt` or `messages`; `question_id`, `uid` or `id`; `category`; `references`.
    /// In messages, what the user says are the turns, and what the assistant says are the reference answers.
    /// The column `reference` of the questions of MT-Bench is not what its judges see; see
    /// [`add_references`].
    pub fn from_row(row: &Row, number: usize) -> Result<Self, Error> {
        let columns = ["turns", "prompt", "messages"].map(|name| present(row, name));
        let (turns, mut references) = match columns {
            [Some(turns), ..] => (texts("turns", turns)?, Vec::new()),
            [None, Some(Value::String(prompt)), _] => (vec![prompt.clone()], Vec::new()),
            [None, Some(prompt @ Value::Array(_)), _] => conversation("prompt", prompt)?,
            [None, None, Some(messages)] => conversation("messages", messages)?,
            _ => {
                return Err(wrong(
                    "turns",
                    "are no list of texts, and there is no `prompt` and no `messages`",
                ));
            }
        };
        if turns.is_empty() {
            return Err(wrong("turns", "are empty"));
        }
        if let Some(held) = present(row, "references") {
            references = texts("references", held)?;
        }
        let category = row.get("category").and_then(Value::as_str).unwrap_or_default().to_owned();
        Ok(Self { id: id(row).unwrap_or_else(|| number.to_string()), category, turns, references })
    }

    /// The messages before the reply to the turn after `replies`.
    pub fn messages(&self, replies: &[String]) -> Vec<Message> {
        let mut messages = Vec::with_capacity(2 * replies.len() + 1);
        for (turn, text) in self.turns.iter().enumerate().take(replies.len() + 1) {
            messages.push(Message::user(text));
            messages.extend(replies.get(turn).map(|reply| Message::assistant(reply.as_str())));
        }
        messages
    }
}

/// Gives the questions their reference answers from rows with `question_id` and `choices[0].turns`, the form
/// of answers in MT-Bench, or with `references`. Rows of other questions are left out.
pub fn add_references(questions: &mut [Question], rows: &[Row]) -> Result<(), Error> {
    for row in rows {
        let Some(id) = id(row) else { return Err(wrong("question_id", "is missing")) };
        let references = match present(row, "references") {
            Some(references) => texts("references", references)?,
            None => texts("choices", choice(row).ok_or_else(|| wrong("choices", "have no turns"))?)?,
        };
        for question in questions.iter_mut().filter(|question| question.id == id) {
            question.references.clone_from(&references);
        }
    }
    Ok(())
}

/// The turns of the first choice of a row, the form of answers in MT-Bench.
pub(super) fn choice(row: &Row) -> Option<&Value> {
    row.get("choices")?.get(0)?.get("turns")
}

/// The id of a row, if it has one.
pub(super) fn id(row: &Row) -> Option<String> {
    match ["question_id", "uid", "id"].iter().find_map(|name| present(row, name))? {
        Value::String(id) => Some(id.clone()),
        Value::Number(id) => Some(id.to_string()),
        _ => None,
    }
}

/// A column that is there and not null.
pub(super) fn present<'a>(row: &'a Row, name: &str) -> Option<&'a Value> {
    row.get(name).filter(|value| !value.is_null())
}

/// What the user says in a conversation, and what the assistant answers.
fn conversation(key: &'static str, value: &Value) -> Result<(Vec<String>, Vec<String>), Error> {
    let messages = value.as_array().ok_or_else(|| wrong(key, "are no list of messages"))?;
    let (mut turns, mut references) = (Vec::new(), Vec::new());
    for message in messages {
        let (Some(role), Some(content)) = (message["role"].as_str(), message["content"].as_str()) else {
            return Err(wrong(key, "hold a message without the texts `role` and `content`"));
        };
        match role {
            "user" if references.is_empty() || references.len() == turns.len() => {
                turns.push(content.to_owned());
            }
            "assistant" if references.len() + 1 == turns.len() => references.push(content.to_owned()),
            "user" | "assistant" => return Err(wrong(key, "do not alternate between user and assistant")),
            _ => {
                let problem = "hold a message that is neither the user's nor the assistant's, and a question has no \
                               place for it: put its text into the first message of the user";
                return Err(wrong(key, problem));
            }
        }
    }
    Ok((turns, references))
}

pub(super) fn texts(key: &'static str, value: &Value) -> Result<Vec<String>, Error> {
    let list = value.as_array().ok_or_else(|| wrong(key, "are no list of texts"))?;
    let text = |item: &Value| {
        item.as_str().map(str::to_owned).ok_or_else(|| wrong(key, "hold something else than text"))
    };
    list.iter().map(text).collect()
}

pub(super) fn wrong(key: &'static str, problem: &str) -> Error {
    Error::BadColumn { key, problem: problem.to_owned() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn question(row: &Value) -> Result<Question, Error> {
        Question::from_row(row.as_object().unwrap(), 7)
    }

    #[test]
    fn rows_of_three_forms() {
        let found = question(
            &json!({"question_id": 81, "category": "math", "turns": ["a", "b"], "reference": ["x"]}),
        );
        let wanted = Question {
            id: "81".to_owned(),
            category: "math".to_owned(),
            turns: vec!["a".to_owned(), "b".to_owned()],
            references: Vec::new(),
        };
        assert_eq!(found.unwrap(), wanted);
        let found = question(&json!({"uid": "f0", "cluster": "c", "prompt": "中"})).unwrap();
        assert_eq!((found.id.as_str(), found.category.as_str(), found.turns.len()), ("f0", "", 1));
        let found = question(&json!({"turns": ["a"], "references": ["r"]})).unwrap();
        assert_eq!((found.id.as_str(), found.references.len()), ("7", 1));
        for row in [
            json!({}),
            json!({"turns": "a"}),
            json!({"turns": []}),
            json!({"turns": [1]}),
            json!({"prompt": 1}),
        ] {
            assert!(question(&row).unwrap_err().to_string().contains("turns"), "{row}");
        }
    }

    #[test]
    fn the_turns_of_a_conversation_are_the_users() {
        let said = |role: &str, content: &str| json!({"role": role, "content": content});
        let messages = [said("user", "a"), said("assistant", "b"), said("user", "c"), said("assistant", "d")];
        let found = question(&json!({"messages": messages, "turns": null})).unwrap();
        assert_eq!(
            (found.turns, found.references),
            (vec!["a".to_owned(), "c".into()], vec!["b".into(), "d".into()])
        );
        let found = question(&json!({"prompt": messages[..1], "references": ["r"]})).unwrap();
        assert_eq!((found.turns.len(), found.references), (1, vec!["r".to_owned()]));
        let found = question(&json!({"messages": [said("user", "a"), said("user", "b")]})).unwrap();
        assert_eq!((found.turns.len(), found.references.len()), (2, 0));
        let asked: Vec<String> =
            found.messages(&["x".to_owned()]).into_iter().map(|message| message.content).collect();
        assert_eq!((asked, found.messages(&[]).len()), (vec!["a".to_owned(), "x".into(), "b".into()], 1));
        for (messages, words) in [
            (json!([said("system", "s"), said("user", "a")]), "first message of the user"),
            (json!([said("assistant", "b")]), "alternate"),
            (json!([said("user", "a"), said("user", "b"), said("assistant", "c")]), "alternate"),
            (json!([said("user", "a"), said("assistant", "b"), said("assistant", "c")]), "alternate"),
            (json!([{"role": "user"}]), "role"),
            (json!("a"), "list of messages"),
            (json!([]), "empty"),
        ] {
            let error = question(&json!({"messages": messages})).unwrap_err().to_string();
            assert!(error.contains(words), "{messages}: {error}");
        }
    }

    #[test]
    fn references_are_found_by_id() {
        let mut questions = vec![question(&json!({"question_id": 1, "turns": ["a"]})).unwrap()];
        let row = |value: Value| value.as_object().unwrap().clone();
        let rows = [
            row(json!({"question_id": 2, "choices": [{"turns": ["no"]}]})),
            row(json!({"question_id": 1, "choices": [{"index": 0, "turns": ["yes"]}]})),
        ];
        add_references(&mut questions, &rows).unwrap();
        assert_eq!(questions[0].references, ["yes"]);
        add_references(&mut questions, &[row(json!({"id": 1, "references": ["mine"]}))]).unwrap();
        assert_eq!(questions[0].references, ["mine"]);
        assert!(add_references(&mut questions, &[row(json!({"question_id": 1, "choices": []}))]).is_err());
    }
}
