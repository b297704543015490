//! The right answers of a row: the text of its `answer`, or with `any_of` the texts of a JSON list.

use std::borrow::Cow;

use serde_json::Value;

use crate::score::{ScoreError, quoted};

/// The answer of a row as it is written. A row with a blank answer has none.
pub(crate) fn given(answer: Option<&str>) -> Result<&str, ScoreError> {
    answer.filter(|answer| !answer.trim().is_empty()).ok_or(ScoreError::NoAnswer)
}

/// The right answers in the answer of a row, without white space around them; at least one.
pub(crate) fn right_answers(answer: Option<&str>, any_of: bool) -> Result<Vec<Cow<'_, str>>, ScoreError> {
    let answer = given(answer)?.trim();
    if !any_of {
        return Ok(vec![Cow::Borrowed(answer)]);
    }
    let wrong = || unreadable("is no JSON list of texts and numbers", answer);
    let list: Vec<Value> = serde_json::from_str(answer).map_err(|_| wrong())?;
    let text = |value: Value| match value {
        Value::String(text) if !text.trim().is_empty() => Ok(Cow::Owned(text.trim().to_owned())),
        Value::Number(number) => Ok(Cow::Owned(number.to_string())),
        _ => Err(wrong()),
    };
    let answers: Vec<_> = list.into_iter().map(text).collect::<Result<_, _>>()?;
    if answers.is_empty() { Err(wrong()) } else { Ok(answers) }
}

/// The error about the answer of a row.
pub(crate) fn unreadable(problem: &'static str, answer: &str) -> ScoreError {
    ScoreError::UnreadableAnswer { problem, answer: quoted(answer) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(answer: Option<&str>, any_of: bool) -> Result<Vec<String>, ScoreError> {
        right_answers(answer, any_of).map(|list| list.into_iter().map(Cow::into_owned).collect())
    }

    #[test]
    fn one_answer_is_its_text() {
        assert_eq!(read(Some(" 42\n"), false).unwrap(), ["42"]);
        assert_eq!(read(Some("[1, 2]"), false).unwrap(), ["[1, 2]"]);
        for missing in [None, Some(""), Some(" \u{3000}\n")] {
            assert_eq!(read(missing, false), Err(ScoreError::NoAnswer));
            assert_eq!(read(missing, true), Err(ScoreError::NoAnswer));
        }
    }

    #[test]
    fn several_answers_are_a_json_list() {
        assert_eq!(read(Some(r#"["Paris ", "75", 75, -0.5]"#), true).unwrap(), ["Paris", "75", "75", "-0.5"]);
        for wrong in ["Paris", "[]", r#"[""]"#, "[null]", "[[1]]", r#"{"a": 1}"#, "[1", "NaN", "[NaN]"] {
            assert!(matches!(read(Some(wrong), true), Err(ScoreError::UnreadableAnswer { .. })), "{wrong}");
        }
        // JSON that is nested deeper than serde_json reads.
        let deep = "[".repeat(100_000);
        assert!(matches!(read(Some(&deep), true), Err(ScoreError::UnreadableAnswer { .. })));
    }
}
