//! `kind = "ifeval"`: the share of the instructions that the reply follows, each verified by a program (Zhou
//! et al. 2023, arXiv 2311.07911; [`eval::ifeval`] lists the 25 kinds).
//!
//! The instructions are those of the entry, the same for every row, or those of the row: its answer is then a
//! JSON list of objects with an `id` and arguments, or one object with the columns `instruction_id_list` and
//! `kwargs` of the data set.

use eval::ifeval::Prompt;
use serde_json::{Map, Value, json};

use crate::answer::{given, unreadable};
use crate::entry::IfevalConfig;
use crate::error::Wrong;
use crate::extract::too_slow;
use crate::score::{Reply, ScoreError};

/// The most instructions of a row.
const MOST_INSTRUCTIONS: usize = 64;

/// Checks instructions.
pub(crate) struct Instructions {
    /// The instructions of every row. If absent, each row has instructions of its own.
    prompt: Option<Prompt>,
    loose: bool,
    share: bool,
}

impl Instructions {
    pub(crate) fn new(config: &IfevalConfig) -> Result<Self, Wrong> {
        let wrong = |problem: String| {
            let fix = "give tables such as { id = \"length_constraints:number_words\", num_words = 100, \
                       relation = \"at least\" }";
            Wrong::new("instructions", problem, fix)
        };
        let prompt = match config.instructions.len() {
            0 => None,
            1..=MOST_INSTRUCTIONS => {
                let (ids, kwargs) = columns(config.instructions.clone());
                let parsed = Prompt::parse("the list", &ids, &kwargs);
                Some(parsed.map_err(|error| wrong(format!("cannot be used: {error}")))?)
            }
            more => return Err(wrong(format!("has {more} entries, more than {MOST_INSTRUCTIONS}"))),
        };
        Ok(Self { prompt, loose: config.loose, share: config.share })
    }

    pub(crate) fn score(&self, reply: &Reply<'_>) -> Result<f64, ScoreError> {
        let own;
        let prompt = if let Some(prompt) = &self.prompt {
            prompt
        } else {
            own = of_row(reply.answer)?;
            &own
        };
        let followed = if self.loose { prompt.loose(reply.text) } else { prompt.strict(reply.text) };
        let followed = followed.map_err(|error| too_slow(&error))?;
        let count = followed.iter().filter(|followed| **followed).count();
        let share = count as f64 / followed.len() as f64;
        Ok(if self.share { share } else { share.floor() })
    }
}

/// The instructions in the answer of a row.
pub(crate) fn of_row(answer: Option<&str>) -> Result<Prompt, ScoreError> {
    let answer = given(answer)?.trim();
    let wrong = || unreadable("is no JSON list of instructions", answer);
    let (ids, kwargs) = match serde_json::from_str(answer).map_err(|_| wrong())? {
        Value::Array(list) => {
            let object = |value| if let Value::Object(object) = value { Ok(object) } else { Err(wrong()) };
            columns(list.into_iter().map(object).collect::<Result<_, _>>()?)
        }
        Value::Object(mut object) => {
            let [ids, kwargs] = ["instruction_id_list", "kwargs"].map(|key| object.remove(key));
            (ids.ok_or_else(wrong)?, kwargs.ok_or_else(wrong)?)
        }
        _ => return Err(wrong()),
    };
    if ids.as_array().is_none_or(|ids| ids.len() > MOST_INSTRUCTIONS) {
        return Err(wrong());
    }
    Prompt::parse("the row", &ids, &kwargs)
        .map_err(|_| unreadable("has instructions that are not known", answer))
}

/// The ids and the arguments of instructions, as two lists.
fn columns(instructions: Vec<Map<String, Value>>) -> (Value, Value) {
    let split =
        |mut table: Map<String, Value>| (table.remove("id").unwrap_or(json!("")), Value::Object(table));
    let (ids, kwargs): (Vec<_>, Vec<_>) = instructions.into_iter().map(split).unzip();
    (ids.into(), kwargs.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hostile_text::hostile_texts;

    const TWO: &str = r#"[{"id": "punctuation:no_comma"},
        {"id": "length_constraints:number_words", "num_words": 3, "relation": "at least"}]"#;

    fn score(config: &IfevalConfig, text: &str, answer: Option<&str>) -> Result<f64, ScoreError> {
        let reply = Reply { prompt: &[], text, answer, tokens: 0, stopped: true };
        Instructions::new(config).unwrap().score(&reply)
    }

    #[test]
    fn the_score_is_the_share_that_is_followed() {
        let of_entry =
            IfevalConfig { instructions: serde_json::from_str(TWO).unwrap(), ..IfevalConfig::default() };
        let of_row = IfevalConfig::default();
        for (text, expected) in [
            ("one two three", 1.0),
            ("one, two three", 0.5),
            ("one", 0.5),
            ("a,b", 0.0),
            (" \u{3000}\n", 0.0),
        ] {
            assert_eq!(score(&of_entry, text, None), Ok(expected), "{text}");
            assert_eq!(score(&of_row, text, Some(TWO)), Ok(expected), "{text}");
            let all = IfevalConfig { share: false, ..of_row.clone() };
            assert_eq!(score(&all, text, Some(TWO)), Ok(f64::from(expected == 1.0)), "{text}");
        }
        let columns = r#"{"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}"#;
        assert_eq!(score(&of_row, "a", Some(columns)), Ok(1.0));
    }

    #[test]
    fn loose_forgives_a_first_line() {
        let instructions = json!([{"id": "startend:end_checker", "end_phrase": "Bye"}]);
        let strict = IfevalConfig {
            instructions: serde_json::from_value(instructions).unwrap(),
            ..IfevalConfig::default()
        };
        let loose = IfevalConfig { loose: true, ..strict.clone() };
        let text = "Well\nBye\n(end)";
        assert_eq!((score(&strict, text, None), score(&loose, text, None)), (Ok(0.0), Ok(1.0)));
    }

    #[test]
    fn rows_without_instructions_have_no_score() {
        let config = IfevalConfig::default();
        assert_eq!(score(&config, "a", None), Err(ScoreError::NoAnswer));
        let many = format!("[{}]", vec![r#"{"id": "punctuation:no_comma"}"#; 65].join(","));
        for answer in ["x", "[]", "7", "[7]", r#"[{"id": "no:such"}]"#, "{}", &many, r#"[{"id": 7}]"#] {
            assert_eq!(
                score(&config, "a", Some(answer)).unwrap_err().name(),
                "unreadable_answer",
                "{answer}"
            );
        }
    }

    #[test]
    fn the_instructions_of_an_entry_are_checked() {
        for instructions in [
            json!([{"id": "no:such"}]),
            json!([{"num_words": 3}]),
            json!([{"id": "length_constraints:number_words", "num_words": 3}]),
            json!([{"id": "keywords:existence", "keywords": ["("]}]),
            json!(vec![json!({"id": "punctuation:no_comma"}); 65]),
        ] {
            let instructions = serde_json::from_value(instructions).unwrap();
            let config = IfevalConfig { instructions, ..IfevalConfig::default() };
            assert_eq!(Instructions::new(&config).err().unwrap().key, "instructions");
        }
    }

    #[test]
    fn odd_texts_have_a_score_or_none() {
        for text in hostile_texts() {
            assert!(score(&IfevalConfig::default(), &text, Some(TWO)).is_ok(), "{text:?}");
            assert!(score(&IfevalConfig::default(), "a", Some(&text)).is_err(), "{text:?}");
        }
    }
}
