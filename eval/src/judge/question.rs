//! Questions for a judge, from rows in the forms of MT-Bench, of Arena-Hard, or of our own.

use datasets::Row;
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
    /// Reads a row: `turns` or `prompt`; `question_id`, `uid` or `id`; `category`; `references`. The column
    /// `reference` of the questions of MT-Bench is not what its judges see; see [`add_references`].
    pub fn from_row(row: &Row, number: usize) -> Result<Self, Error> {
        let turns = match (row.get("turns"), row.get("prompt")) {
            (Some(turns), _) => texts("turns", turns)?,
            (None, Some(Value::String(prompt))) => vec![prompt.clone()],
            _ => return Err(wrong("turns", "are no list of texts, and there is no text `prompt`")),
        };
        if turns.is_empty() {
            return Err(wrong("turns", "are empty"));
        }
        let references = row.get("references").map_or(Ok(Vec::new()), |held| texts("references", held))?;
        let category = row.get("category").and_then(Value::as_str).unwrap_or_default().to_owned();
        Ok(Self { id: id(row).unwrap_or_else(|| number.to_string()), category, turns, references })
    }
}

/// Gives the questions their reference answers from rows with `question_id` and `choices[0].turns`, the form
/// of answers in MT-Bench. Rows of other questions are left out.
pub fn add_references(questions: &mut [Question], rows: &[Row]) -> Result<(), Error> {
    for row in rows {
        let Some(id) = id(row) else { return Err(wrong("question_id", "is missing")) };
        let turns =
            row.get("choices").and_then(|choices| choices.get(0)).and_then(|choice| choice.get("turns"));
        let Some(turns) = turns else { return Err(wrong("choices", "have no turns")) };
        let references = texts("choices", turns)?;
        for question in questions.iter_mut().filter(|question| question.id == id) {
            question.references.clone_from(&references);
        }
    }
    Ok(())
}

fn id(row: &Row) -> Option<String> {
    match ["question_id", "uid", "id"].iter().find_map(|name| row.get(*name))? {
        Value::String(id) => Some(id.clone()),
        Value::Number(id) => Some(id.to_string()),
        _ => None,
    }
}

fn texts(key: &'static str, value: &Value) -> Result<Vec<String>, Error> {
    let list = value.as_array().ok_or_else(|| wrong(key, "are no list of texts"))?;
    let text = |item: &Value| {
        item.as_str().map(str::to_owned).ok_or_else(|| wrong(key, "hold something else than text"))
    };
    list.iter().map(text).collect()
}

fn wrong(key: &'static str, problem: &str) -> Error {
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
    fn references_are_found_by_id() {
        let mut questions = vec![question(&json!({"question_id": 1, "turns": ["a"]})).unwrap()];
        let row = |value: Value| value.as_object().unwrap().clone();
        let rows = [
            row(json!({"question_id": 2, "choices": [{"turns": ["no"]}]})),
            row(json!({"question_id": 1, "choices": [{"index": 0, "turns": ["yes"]}]})),
        ];
        add_references(&mut questions, &rows).unwrap();
        assert_eq!(questions[0].references, ["yes"]);
        assert!(add_references(&mut questions, &[row(json!({"question_id": 1, "choices": []}))]).is_err());
    }
}
