//! Verdicts against `tests/golden/ifeval.json`, which `ifeval.py` beside it recorded from
//! lm-evaluation-harness.

mod approximate;
mod rows;

use std::path::Path;

use serde_json::{Value, json};

use super::*;
use crate::hostile_text::hostile_texts;

/// One list of the golden file.
fn golden(list: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/ifeval.json");
    let golden: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    golden[list].as_array().unwrap().clone()
}

/// A reply of the golden file with the verdicts of the harness.
struct Recorded {
    reply: String,
    strict: Vec<bool>,
    loose: Vec<bool>,
}

/// The prompts of the golden file with their replies.
fn recorded() -> Vec<(Prompt, Vec<Recorded>)> {
    let flags = |letters: &Value| letters.as_str().unwrap().chars().map(|c| c == 't').collect::<Vec<_>>();
    let reply = |row: &Value| Recorded {
        reply: row[0].as_str().unwrap().to_owned(),
        strict: flags(&row[1]),
        loose: flags(&row[2]),
    };
    let read = |(index, row): (usize, Value)| {
        let prompt = Prompt::parse(&format!("row {index}"), &row["ids"], &row["kwargs"]).unwrap();
        (prompt, row["replies"].as_array().unwrap().iter().map(reply).collect())
    };
    golden("rows").into_iter().enumerate().map(read).collect()
}

/// A prompt of one instruction.
fn prompt(id: &str, kwargs: &Value) -> Prompt {
    Prompt::parse("row 0", &json!([id]), &json!([kwargs])).unwrap()
}

#[test]
fn exact_kinds_agree_with_the_harness_on_every_reply() {
    let mut seen = std::collections::BTreeMap::<&str, [usize; 2]>::new();
    for (prompt, replies) in recorded() {
        for Recorded { reply, strict, loose } in replies {
            let verdicts = prompt.verdicts(&reply).unwrap();
            for (index, (instruction, verdict)) in prompt.instructions().iter().zip(verdicts).enumerate() {
                if verdict.agreement == Agreement::Exact {
                    let expected = (strict[index], loose[index]);
                    assert_eq!((verdict.strict, verdict.loose), expected, "{}: {reply:?}", instruction.id());
                    seen.entry(instruction.id()).or_default()[usize::from(verdict.strict)] += 1;
                }
            }
        }
    }
    // Every kind has replies that follow it and replies that do not.
    assert_eq!(seen.len(), 20);
    assert!(seen.values().all(|[missed, hit]| *missed >= 3 && *hit >= 3), "{seen:?}");
}

#[test]
fn the_golden_file_has_every_kind() {
    let rows = recorded();
    for id in ids() {
        assert!(
            rows.iter().any(|(prompt, _)| prompt.instructions().iter().any(|one| one.id() == id)),
            "{id}"
        );
    }
    assert_eq!(ids().collect::<std::collections::BTreeSet<_>>().len(), 25);
}

#[test]
fn loose_tries_eight_variants() {
    let lines = variants("a*\nb\n c* ");
    assert_eq!(lines, ["a*\nb\n c* ", "b\n c*", "a*\nb", "b", "a\nb\n c ", "b\n c", "a\nb", "b"]);
    assert_eq!(variants("*a*"), ["*a*", "", "", "", "a", "", "", ""]);
    assert_eq!(variants(""), ["", "", "", "", "", "", "", ""]);

    let quoted = prompt("startend:quotation", &json!({}));
    assert_eq!(quoted.strict("Sure:\n\"yes\"").unwrap(), [false]);
    assert_eq!(quoted.loose("Sure:\n\"yes\"").unwrap(), [true]);
}

#[test]
fn no_text_makes_a_check_panic_or_fail() {
    let prompts: Vec<Prompt> = recorded().into_iter().map(|(prompt, _)| prompt).collect();
    for text in hostile_texts() {
        // A long text goes to one prompt of each kind only, for time.
        let mut seen = std::collections::BTreeSet::new();
        for prompt in &prompts {
            if text.len() < 1000 || seen.insert(prompt.instructions()[0].id()) {
                let strict = prompt.strict(&text).unwrap();
                assert_eq!(strict.len(), prompt.instructions().len());
            }
        }
    }
}

#[test]
fn json_of_a_million_brackets_is_read() {
    assert!(json::is_json(&("[".repeat(1_000_000) + &"]".repeat(1_000_000))));
    assert!(!json::is_json(&"[".repeat(1_000_000)));
    assert!(!json::is_json(&"{\"\":".repeat(1_000_000)));
}
