//! Reads the rows that a reward model scores: a prompt with its replies, and what is known of them.
//!
//! The columns of a file decide what its rows are:
//!
//! | rows | columns |
//! |---|---|
//! | preference pairs | those of every layout of [`Preference`] with turns |
//! | `RewardBench` | `prompt`, `chosen`, `rejected`, `subset`, with the names of its subsets |
//! | `RewardBench` 2 | `id`, `prompt`, `chosen`, `rejected`, `num_correct`, `total_completions`, `subset` |
//! | HHH alignment | `chosen_instruction`, `rejected_instruction`, as prometheus-eval has them |
//! | best of n | `prompt`, `responses`, `gold` |
//!
//! `chosen` and `rejected` of `RewardBench` 2 are lists of texts; `responses` and `gold` are lists of equal
//! length.
//!
//! Rows of the benchmarks are taken as they are, also those with an empty reply: a benchmark without them
//! would be another one. A reply is a text here, so a row with tools, or with a reply that calls one, is
//! refused. This file knows no tokenizer and no score.

use std::path::Path;

use datasets::record::{Mapping, Parsed, preview};
use datasets::{Layout, Message, Preference, Prompt, Record, Row, RowLocation, TableReader};
use serde_json::Value;

use super::entry::{Found, need, text, texts, wrong};
use super::{hhh, reward_bench, reward_bench_2};
use crate::Error;

pub use super::entry::{DataFile, Entry, Facts, FileKind};

/// The columns that split preference pairs into groups, if no column is named.
const SOURCE_COLUMNS: [&str; 3] = ["subset", "source", "category"];
/// What the fields must be that a scored text would lack.
const NO_TOOLS: &str = "absent, because conversations are scored without tools here: leave out the rows that \
    have them; the command `reward` scores pairs with tools";
const NO_CALLS: &str = "absent, because only the text of a reply is scored here: leave out the rows whose \
    replies call tools; the command `reward` scores pairs with calls";

/// Reads the first `limit` rows of `path`. `split_by` names the column that splits pairs into groups.
pub fn read(
    path: &Path,
    name: String,
    limit: Option<usize>,
    split_by: Option<&str>,
) -> Result<DataFile, Error> {
    let reader = TableReader::open(path)?;
    let columns = reader.columns().to_vec();
    let mut rows = Vec::new();
    for row in reader.rows(None)?.take(limit.unwrap_or(usize::MAX)) {
        rows.push(row?);
    }
    if rows.is_empty() {
        return Err(datasets::Error::NoRows { path: path.to_owned() }.into());
    }

    let kind = kind(&columns, &rows);
    let has = |column: &str| columns.iter().any(|other| other == column);
    let split_by = match kind {
        FileKind::Preference => split_by.or_else(|| SOURCE_COLUMNS.into_iter().find(|column| has(column))),
        FileKind::HhhAlignment => Some("source"),
        FileKind::RewardBench | FileKind::RewardBench2 => Some("subset"),
        FileKind::BestOfN => None,
    };
    let mut file = DataFile {
        name,
        kind,
        split_by: split_by.map(str::to_owned),
        entries: Vec::with_capacity(rows.len()),
        skipped: 0,
    };

    let layout = if kind == FileKind::Preference { Some(Preference::detect(&columns, path)?) } else { None };
    let mut skipped = None;
    for (at, row) in &rows {
        match layout {
            None => file.entries.push(benchmark(kind, row, at)?),
            Some(layout) => {
                if let Some(reason) = preference(&mut file, layout, row, at)? {
                    file.skipped += 1;
                    skipped.get_or_insert((at, reason));
                }
            }
        }
    }
    // Intervals are over prompts.
    if kind == FileKind::BestOfN && file.entries.len() < 2 {
        return Err(Error::TooFew { what: "a best-of-n curve", needed: 2, got: file.entries.len() });
    }
    match skipped {
        Some((at, reason)) if file.entries.is_empty() => {
            Err(datasets::Error::BadForeignRow { at: at.clone(), reason: reason.to_owned() }.into())
        }
        _ => Ok(file),
    }
}

fn kind(columns: &[String], rows: &[(RowLocation, Row)]) -> FileKind {
    let has = |wanted: &[&str]| wanted.iter().all(|name| columns.iter().any(|column| column == name));
    let is_of_reward_bench = |row: &Row| {
        let is_text = |column: &str| row.get(column).is_some_and(Value::is_string);
        let subset = row.get("subset").and_then(Value::as_str);
        is_text("chosen") && subset.is_some_and(|subset| reward_bench::section_of(subset).is_some())
    };
    if has(&["responses", "gold"]) {
        FileKind::BestOfN
    } else if has(&["chosen_instruction", "rejected_instruction"]) {
        FileKind::HhhAlignment
    } else if has(&["chosen", "rejected", "num_correct", "total_completions"]) {
        FileKind::RewardBench2
    } else if has(&["prompt", "chosen", "rejected", "subset"]) && is_of_reward_bench(&rows[0].1) {
        FileKind::RewardBench
    } else {
        FileKind::Preference
    }
}

/// Adds the pairs of a row of preferences, or says why it holds none.
fn preference(
    file: &mut DataFile,
    layout: Layout,
    row: &Row,
    at: &RowLocation,
) -> Found<Option<&'static str>> {
    let pairs = match Preference::read(layout, row, at, &Mapping::default())? {
        Parsed::Rows(pairs) => pairs,
        Parsed::Skipped(reason) => return Ok(Some(reason)),
    };
    let group = file.split_by.as_ref().map_or_else(|| Ok(String::new()), |column| group(row, column, at))?;
    for pair in pairs {
        let Preference::Messages { prompt, chosen, rejected, tools, .. } = pair else {
            let found = "token ids".to_owned();
            let expected = "text: give the rows that the ids were made of";
            return Err(wrong(at, "chosen_input_ids", found, expected));
        };
        refuse_tools(tools.as_ref(), at)?;
        let replies = vec![reply("chosen", chosen, at)?, reply("rejected", rejected, at)?];
        let (at, group) = (at.clone(), group.clone());
        file.entries.push(Entry { at, group, prompt, replies, facts: Facts::Pair });
    }
    Ok(None)
}

/// Refuses the tools of a row: the reward model would not see them.
fn refuse_tools(tools: Option<&Value>, at: &RowLocation) -> Found<()> {
    match tools {
        None => Ok(()),
        Some(tools) => Err(wrong(at, "tools", preview(tools), NO_TOOLS)),
    }
}

/// The text of one side of a pair.
fn reply(field: &str, turns: Vec<Message>, at: &RowLocation) -> Found<String> {
    match turns.iter().find(|turn| turn.calls_tools()) {
        None => Ok(turns.into_iter().map(|turn| turn.content).collect()),
        Some(turn) => {
            let calls = preview(&Value::Array(turn.tool_calls.clone()));
            Err(wrong(at, &format!("{field}.tool_calls"), calls, NO_CALLS))
        }
    }
}

/// The value of the column that splits the rows.
fn group(row: &Row, column: &str, at: &RowLocation) -> Found<String> {
    match need(row, column, at, "text, a number, or true or false: the part of the file")? {
        Value::String(text) => Ok(text.clone()),
        value @ (Value::Number(_) | Value::Bool(_)) => Ok(value.to_string()),
        other => Err(wrong(at, column, preview(other), "text, a number, or true or false")),
    }
}

fn benchmark(kind: FileKind, row: &Row, at: &RowLocation) -> Result<Entry, Error> {
    let found = match kind {
        FileKind::HhhAlignment => hhh::entry(row, at),
        FileKind::RewardBench2 => completions(row, at),
        FileKind::BestOfN => best_of_n(row, at),
        FileKind::RewardBench | FileKind::Preference => reward_bench_pair(row, at),
    };
    Ok(found?)
}

fn reward_bench_pair(row: &Row, at: &RowLocation) -> Found<Entry> {
    let subset = text(row, "subset", at)?;
    if reward_bench::section_of(&subset).is_none() {
        let found = preview(&row["subset"]);
        return Err(wrong(at, "subset", found, "a subset of RewardBench, as in the first row of this file"));
    }
    Ok(Entry {
        at: at.clone(),
        group: subset,
        prompt: vec![Message::user(text(row, "prompt", at)?)],
        replies: vec![text(row, "chosen", at)?, text(row, "rejected", at)?],
        facts: Facts::Pair,
    })
}

fn completions(row: &Row, at: &RowLocation) -> Found<Entry> {
    let (chosen, rejected) = (texts(row, "chosen", at)?, texts(row, "rejected", at)?);
    for (field, number) in
        [("num_correct", chosen.len()), ("total_completions", chosen.len() + rejected.len())]
    {
        let value = need(row, field, at, "a whole number")?;
        if value.as_f64() != Some(number as f64) {
            let expected = "the number of replies: num_correct in chosen, total_completions in both lists";
            return Err(wrong(at, field, preview(value), expected));
        }
    }
    let (subset, id) = (text(row, "subset", at)?, text(row, "id", at)?);
    let correct = chosen.len();
    if !reward_bench::is_ties(&subset) && correct != 1 {
        let found = format!("a list of {correct}");
        return Err(wrong(
            at,
            "chosen",
            found,
            "a list of one right reply; only the subset Ties has several",
        ));
    }
    if reward_bench::is_ties(&subset) {
        reward_bench_2::prompt_of_ties(&id, correct, at)?;
    }
    Ok(Entry {
        at: at.clone(),
        group: subset,
        prompt: vec![Message::user(text(row, "prompt", at)?)],
        replies: [chosen, rejected].concat(),
        facts: Facts::Completions { id, correct },
    })
}

fn best_of_n(row: &Row, at: &RowLocation) -> Found<Entry> {
    const NUMBERS: &str = "a list of finite numbers, one for each of responses";
    let Prompt { messages: prompt, tools, .. } = Prompt::parse(Layout::Prompt, row, at)?;
    refuse_tools(tools.as_ref(), at)?;
    let replies = texts(row, "responses", at)?;
    let value = need(row, "gold", at, NUMBERS)?;
    let list = value.as_array().filter(|list| list.len() == replies.len());
    let list = list.ok_or_else(|| wrong(at, "gold", preview(value), NUMBERS))?;
    let number = |(index, value): (usize, &Value)| {
        let number = value.as_f64().filter(|number| number.is_finite());
        number.ok_or_else(|| wrong(at, &format!("gold[{index}]"), preview(value), "a finite number"))
    };
    let gold = list.iter().enumerate().map(number).collect::<Found<Vec<f64>>>()?;
    Ok(Entry { at: at.clone(), group: String::new(), prompt, replies, facts: Facts::Gold(gold) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(name: &str, text: &str) -> Result<DataFile, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        read(&path, name.to_owned(), None, None).map_err(|error| error.to_string())
    }

    #[test]
    fn columns_decide_what_rows_are() {
        let cases = [
            (
                r#"{"prompt": "q", "chosen": "a", "rejected": "b", "source": "web"}"#,
                FileKind::Preference,
                "web",
            ),
            (
                r#"{"prompt": "q", "chosen": "a", "rejected": "b", "subset": "mine"}"#,
                FileKind::Preference,
                "mine",
            ),
            (
                r#"{"prompt": "q", "chosen": "a", "rejected": "", "subset": "hep-go", "id": 4}"#,
                FileKind::RewardBench,
                "hep-go",
            ),
            (
                r#"{"id": "7", "prompt": "q", "chosen": ["a"], "rejected": ["b", "c", "d"], "num_correct": 1,
                    "total_completions": 4, "subset": "Math"}"#,
                FileKind::RewardBench2,
                "Math",
            ),
            (r#"{"prompt": "q", "responses": ["a", "b"], "gold": [1, 0.5]}"#, FileKind::BestOfN, ""),
        ];
        for (row, kind, group) in cases {
            let row = row.replace('\n', " ");
            let file = rows("rows.jsonl", &format!("{row}\n{row}\n")).unwrap();
            assert_eq!((file.kind, file.entries[0].group.as_str()), (kind, group), "{row}");
            assert_eq!(file.entries[0].prompt, [Message::user("q")]);
            assert_eq!(file.entries[0].replies[0], "a");
        }
    }

    #[test]
    fn a_wrong_row_is_named_with_file_row_field_and_fix() {
        let good = r#"{"prompt": "q", "responses": ["a", "b"], "gold": [1, 0.5]}"#;
        let two = r#"{"id": "tied:1", "prompt": "q", "chosen": ["a", "b"], "rejected": ["c"], "num_correct": 2, "total_completions": 3, "subset": "Ties"}"#;
        let cases = [
            (
                good,
                good.replace("0.5]", "0.5, 2]"),
                "line 2: the field gold is a list of 3; it must be a list of finite",
            ),
            (good, good.replace("0.5", "\"x\""), "line 2: the field gold[1] is the text \"x\""),
            (good, good.replace("\"b\"", "7"), "line 2: the field responses[1] is the number 7"),
            (two, two.replace("\"Ties\"", "\"Math\""), "only the subset Ties has several"),
            (
                two,
                two.replace("\"num_correct\": 2", "\"num_correct\": 1"),
                "line 2: the field num_correct is the number 1",
            ),
            (two, two.replace("\"id\": \"tied:1\", ", ""), "line 2: the field id is missing"),
        ];
        for (first, second, words) in cases {
            let error = rows("rows.jsonl", &format!("{first}\n{second}\n")).unwrap_err();
            assert!(error.contains("rows.jsonl") && error.contains(words), "{error}");
        }
        let bench = r#"{"prompt": "q", "chosen": "a", "rejected": "b", "subset": "hep-go"}"#;
        let error = rows("b.jsonl", &format!("{bench}\n{}\n", bench.replace("hep-go", "other"))).unwrap_err();
        assert!(error.contains("b.jsonl line 2") && error.contains("a subset of RewardBench"), "{error}");
        let tokens = r#"{"chosen_input_ids": [1, 2], "rejected_input_ids": [1, 3], "prompt_length": 1}"#;
        assert!(rows("t.jsonl", tokens).unwrap_err().contains("the rows that the ids were made of"));
        assert!(rows("n.jsonl", r#"{"words": "x"}"#).unwrap_err().contains("n.jsonl"));
    }

    #[test]
    fn tools_and_their_calls_are_refused_because_they_would_not_be_scored() {
        let call = r#"{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}"#;
        let calls = format!(r#"[{{"role": "assistant", "content": null, "tool_calls": [{call}]}}]"#);
        let pair = |chosen: &str, rejected: &str, tools: &str| {
            format!(r#"{{"prompt": "q", "chosen": {chosen}, "rejected": {rejected}, "tools": {tools}}}"#)
        };
        let tools = r#"[{"name": "add", "parameters": {}}]"#;
        let best = |tools: &str| {
            format!(r#"{{"prompt": "q", "responses": ["a", "b"], "gold": [1, 2], "tools": {tools}}}"#)
        };
        for (good, bad, words) in [
            (
                pair(r#""a""#, r#""b""#, "null"),
                pair(r#""a""#, r#""b""#, tools),
                "line 2: the field tools is a list of 1; it must be absent",
            ),
            (
                pair(r#""a""#, r#""b""#, "[]"),
                pair(&calls, r#""b""#, "[]"),
                "line 2: the field chosen.tool_calls is a list of 1; it must be absent",
            ),
            (
                pair(r#""a""#, r#""b""#, "null"),
                pair(r#""a""#, &calls, "null"),
                "line 2: the field rejected.tool_calls is a list of 1; it must be absent",
            ),
            (best("[]"), best(tools), "line 2: the field tools is a list of 1; it must be absent"),
        ] {
            let error = rows("rows.jsonl", &format!("{good}\n{bad}\n")).unwrap_err();
            assert!(error.contains("rows.jsonl") && error.contains(words), "{error}");
            assert!(error.contains("the command `reward`"), "{error}");
            assert!(rows("rows.jsonl", &format!("{good}\n{good}\n")).is_ok(), "{good}");
        }
        // Calls before the reply are turns like others.
        let asked = format!(
            r#"[{{"role": "user", "content": "q"}}, {}, {{"role": "tool", "content": "2"}}]"#,
            calls.trim_start_matches('[').trim_end_matches(']')
        );
        let row = format!(r#"{{"prompt": {asked}, "chosen": "a", "rejected": "b"}}"#);
        assert_eq!(rows("rows.jsonl", &row).unwrap().entries[0].prompt[1].tool_calls.len(), 1);
    }
}
