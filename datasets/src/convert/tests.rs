//! Foreign layouts, row by row.

use std::fs;
use std::path::PathBuf;

use super::*;
use crate::conversation::Message;
use crate::record::Mapping;
use crate::table::read_records;

fn run(
    content: &str,
    from: Option<&str>,
    map: &[&str],
) -> Result<(ConvertReport, PathBuf, tempfile::TempDir)> {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("in.jsonl");
    let output = folder.path().join("out.parquet");
    fs::write(&input, content).unwrap();
    let reading = ReadOptions {
        layout: from.map(|name| name.parse().unwrap()),
        mapping: Mapping::parse(map).unwrap(),
        ..ReadOptions::default()
    };
    let report = convert(&input, &output, &reading, true)?;
    Ok((report, output, folder))
}

fn pair(path: &Path) -> (Vec<Message>, Message, Message) {
    match read_records::<Preference>(path, None).unwrap().remove(0) {
        Preference::Messages { prompt, mut chosen, mut rejected, .. } => {
            (prompt, chosen.remove(0), rejected.remove(0))
        }
        Preference::Tokens { .. } => panic!("not tokenized"),
    }
}

#[test]
fn sharegpt() {
    let row = r#"{"id": 1, "system": "s", "conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"},
        {"from": "human", "value": "c"}]}"#
        .replace('\n', " ");
    let (report, output, _folder) = run(&row, None, &[]).unwrap();
    assert_eq!((report.from, report.to, report.written), (Layout::ShareGpt, Layout::Messages, 1));
    let wanted = vec![Message::system("s"), Message::user("a"), Message::assistant("b")];
    assert_eq!(read_records::<Demonstration>(&output, None).unwrap(), [Demonstration::without_tools(wanted)]);
    let error = run(&row.replace("gpt", "bot"), None, &[]).unwrap_err().to_string();
    assert!(error.contains("if it is the assistant, convert the file with --map bot=assistant"), "{error}");
    assert!(run(&row.replace("gpt", "bot"), None, &["bot=assistant"]).is_ok());
}

#[test]
fn alpaca() {
    let row = r#"{"instruction": "Add.", "input": "1 2", "output": "3"}"#;
    let (report, output, _folder) = run(&format!("{row}\n{}", row.replace('3', "")), None, &[]).unwrap();
    assert_eq!((report.from, report.read, report.written), (Layout::Alpaca, 2, 1));
    assert_eq!(report.notes.skipped["the answer is empty"].rows, 1);
    let wanted = vec![Message::user("Add.\n\n1 2"), Message::assistant("3")];
    assert_eq!(read_records::<Demonstration>(&output, None).unwrap(), [Demonstration::without_tools(wanted)]);
    let both = r#"{"instruction": "Add.", "input": "", "output": "3", "chosen": "3", "rejected": "4"}"#;
    let error = run(both, None, &[]).unwrap_err().to_string();
    assert!(
        error.contains("alpaca (instruction, output) or alpaca-preference (instruction, chosen, rejected)"),
        "{error}"
    );
    let (report, output, _folder) = run(both, Some("alpaca-preference"), &[]).unwrap();
    assert_eq!(report.to, Layout::Preference);
    assert_eq!(
        pair(&output),
        (vec![Message::user("Add.")], Message::assistant("3"), Message::assistant("4"))
    );
}

#[test]
fn transcripts() {
    let row = r#"{"chosen": "\n\nHuman: q\n\nAssistant: a\n\nHuman: r\n\nAssistant: good", "rejected": "\n\nHuman: q\n\nAssistant: a\n\nHuman: r\n\nAssistant: bad"}"#;
    let (report, output, _folder) = run(row, None, &[]).unwrap();
    assert_eq!(report.from, Layout::ImplicitPreference);
    let prompt = vec![Message::user("q"), Message::assistant("a"), Message::user("r")];
    assert_eq!(pair(&output), (prompt, Message::assistant("good"), Message::assistant("bad")));
}

#[test]
fn trees() {
    let row = r#"{"message_tree_id": "t", "prompt": {"text": "q", "role": "prompter", "replies": [
        {"text": "worse", "role": "assistant", "rank": 1, "replies": []},
        {"text": "gone", "role": "assistant", "rank": 2, "deleted": true, "replies": []},
        {"text": "best", "role": "assistant", "rank": 0, "replies": [{"text": "more", "role": "prompter", "replies": [
            {"text": "yes", "role": "assistant", "rank": 0, "replies": []}]}]},
        {"text": "unranked", "role": "assistant", "replies": []}]}}"#
        .replace('\n', " ");
    assert!(
        run(&row, None, &[])
            .unwrap_err()
            .to_string()
            .contains("oasst (message_tree_id, prompt) or oasst-preference")
    );
    let (report, output, _folder) = run(&row, Some("oasst-preference"), &[]).unwrap();
    assert_eq!(report.written, 1);
    assert_eq!(
        pair(&output),
        (vec![Message::user("q")], Message::assistant("best"), Message::assistant("worse"))
    );
    let (_, output, _folder) = run(&row, Some("oasst"), &[]).unwrap();
    let wanted = vec![
        Message::user("q"),
        Message::assistant("best"),
        Message::user("more"),
        Message::assistant("yes"),
    ];
    assert_eq!(read_records::<Demonstration>(&output, None).unwrap(), [Demonstration::without_tools(wanted)]);
}

#[test]
fn colossal_and_factory_files() {
    let row = r#"{"messages": [{"from": "user", "content": "a"}, {"from": "assistant", "content": "b"}]}"#;
    let (report, _, _folder) = run(row, None, &[]).unwrap();
    assert_eq!(report.from, Layout::Messages);
    let row = r#"{"context": [{"from": "user", "content": "a"}], "chosen": [{"from": "assistant", "content": "b"}], "rejected": [{"from": "assistant", "content": "c"}]}"#;
    let (report, output, _folder) = run(row, None, &[]).unwrap();
    assert_eq!(report.from, Layout::ColossalPreference);
    assert_eq!(pair(&output), (vec![Message::user("a")], Message::assistant("b"), Message::assistant("c")));
    let row = r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "label": true}"#;
    let (report, output, _folder) = run(row, None, &[]).unwrap();
    assert_eq!((report.from, report.to), (Layout::KtoMessages, Layout::Unpaired));
    assert!(read_records::<Unpaired>(&output, None).unwrap()[0].label);
}

#[test]
fn mapped_columns_and_fields() {
    let row = r#"{"dialogue": [{"speaker": "customer", "said": "a"}, {"speaker": "agent", "said": "b"}]}"#;
    let map = ["messages=dialogue", "role=speaker", "content=said", "customer=user", "agent=assistant"];
    let (report, output, _folder) = run(row, None, &map).unwrap();
    assert_eq!(report.from, Layout::Messages);
    let wanted = vec![Message::user("a"), Message::assistant("b")];
    assert_eq!(read_records::<Demonstration>(&output, None).unwrap(), [Demonstration::without_tools(wanted)]);
    let row = r#"{"question": "q", "good": "a", "bad": "b"}"#;
    let (_, output, _folder) = run(row, None, &["prompt=question", "chosen=good", "rejected=bad"]).unwrap();
    assert_eq!(pair(&output), (vec![Message::user("q")], Message::assistant("a"), Message::assistant("b")));
    assert!(run(row, None, &[]).unwrap_err().to_string().contains("sharegpt (conversations)"));
    assert!(Mapping::parse(&["nonsense"]).is_err());
    assert!(Mapping::parse(&["bot=robot"]).is_err());
}

#[test]
fn canonical_rows_pass_through() {
    let row = r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}"#;
    let (report, _, _folder) = run(row, None, &[]).unwrap();
    assert_eq!(report.from, Layout::Messages);
    let (report, _, _folder) =
        run(r#"{"prompt": "a", "completion": "b", "label": false}"#, None, &[]).unwrap();
    assert_eq!(report.from, Layout::Unpaired);
}

#[test]
fn public_files_convert() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data"));
    if !folder.is_dir() {
        eprintln!("skipped: {} is not there", folder.display());
        return;
    }
    // 754 pairs and 2312 dialogues by the list of sources; a dialogue whose sides are equal cannot teach.
    let cases = [
        ("pref/oasst_en_100_tree.jsonl.gz", Some("oasst-preference"), 100, 754),
        ("pref/hh_harmless_base_test.jsonl.gz", None, 2312, 2290),
        ("pref/llamafactory_dpo_en_demo.json.gz", None, 300, 300),
        ("pref/llamafactory_kto_en_demo.json.gz", None, 300, 300),
        ("pref/rasbt_instruction_data_with_preference.json.gz", Some("alpaca-preference"), 1100, 1050),
        ("sft/rasbt_instruction_data.json.gz", None, 1100, 1100),
        ("sft/fastchat_dummy_conversation.json.gz", None, 500, 500),
        ("sft/gpteacher_roleplay.json.gz", None, 1923, 1923),
        ("sft/llamafactory_glaive_toolcall_en_demo.json.gz", None, 300, 300),
    ];
    let out = tempfile::tempdir().unwrap();
    for (name, from, read, at_least) in cases {
        let reading =
            ReadOptions { layout: from.map(|name| name.parse().unwrap()), ..ReadOptions::default() };
        let report = convert(&folder.join(name), &out.path().join("out.parquet"), &reading, true).unwrap();
        eprintln!("{name}: {report:?}");
        assert_eq!(report.read, read, "{name}");
        assert!(report.written >= at_least, "{name}: {report:?}");
    }
}

fn messages(content: &str) -> Vec<Message> {
    let (_, output, _folder) = run(content, None, &[]).unwrap();
    match read_records::<Demonstration>(&output, None).unwrap().remove(0) {
        Demonstration::Messages { messages, .. } => messages,
        Demonstration::PromptCompletion { prompt, completion, .. } => [prompt, completion].concat(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn answers_inputs_and_system_prompts_are_kept() {
    let wanted = [Message::user("q"), Message::assistant("a")];
    assert_eq!(messages(r#"{"prompt": "q", "response": "a"}"#), wanted);
    assert_eq!(messages(r#"{"instruction": "q", "response": "a"}"#), wanted);
    let input = r#"{"instruction": "Add.", "input": "1 2", "response": "3"}"#;
    assert_eq!(messages(input), [Message::user("Add.\n\n1 2"), Message::assistant("3")]);
    let context = input.replace("input", "context");
    assert_eq!(messages(&context), [Message::user("Add.\n\n1 2"), Message::assistant("3")]);
    let system = r#"{"system": "s", "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}"#;
    assert_eq!(messages(system), [Message::system("s"), Message::user("q"), Message::assistant("a")]);
}

#[test]
fn no_field_that_changes_the_meaning_is_dropped_in_silence() {
    let turns = |more: &str, turn: &str| {
        format!(
            r#"{{"messages": [{{"role": "user", "content": "q"}}, {{"role": "assistant", "content": "a"{turn}}}]{more}}}"#
        )
    };
    for (row, field, name) in [
        (turns(r#", "Tools": "[{}, 1]""#, ""), "Tools", "Tools"),
        (turns(r#", "tool_choice": "auto""#, ""), "tool_choice", "tool_choice"),
        (turns(r#", "documents": ["d"]"#, ""), "documents", "documents"),
        (turns("", r#", "audio": "a.wav""#), "messages[].audio", "audio"),
        (r#"{"text": "a", "tools": [{"name": "f"}]}"#.to_owned(), "tools", "tools"),
        (turns("", r#", "reasoning_content": "hm""#), "messages[].reasoning_content", "reasoning_content"),
        (turns(r#", "weight": 0.5"#, ""), "weight", "weight"),
        (turns(r#", "images": ["x.png"]"#, ""), "images", "images"),
        (r#"{"prompt": "q", "completion": "a", "input": "1 2"}"#.to_owned(), "input", "input"),
        (r#"{"prompt": "q", "completion": "a", "response": "b"}"#.to_owned(), "response", "response"),
        (r#"{"prompt": "q", "output": "a"}"#.to_owned(), "output", "output"),
    ] {
        let error = match run(&row, None, &[]) {
            Err(error) => error.to_string(),
            Ok((report, ..)) => panic!("{row}: {report:?}"),
        };
        let fits_two = error.contains("fit more than one layout");
        let refused = error.contains(&format!("in.jsonl line 1: the field {field} is "))
            && error.contains(&format!("--drop {name}"));
        assert!(refused || fits_two, "{error}");
    }
}

#[test]
fn what_is_not_converted_is_told_with_its_count() {
    let row = |more: &str| format!(r#"{{"text": "a", "id": 7, "quality": 0.5{more}}}"#);
    let (report, ..) = run(&format!("{}\n{}\n", row(""), row(r#", "note": "x""#)), None, &[]).unwrap();
    assert_eq!(
        report.notes.lines("line", true),
        ["not read: note (1 row), quality (2 rows)", "not read, as metadata: id (2 rows)",]
    );
}

#[test]
fn weights_of_turns_survive() {
    let row = r#"{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "weight": 0},
        {"role": "user", "content": "r"}, {"role": "assistant", "content": "b", "weight": 1}]}"#
        .replace('\n', " ");
    let turns = messages(&row);
    assert_eq!(turns.iter().map(|turn| turn.ignore_loss).collect::<Vec<_>>(), [false, true, false, false]);
    let error = run(&row.replace("\"weight\": 1", "\"weight\": 2"), None, &[]).unwrap_err().to_string();
    assert!(
        error.contains("messages[3].weight is the number 2; it must be 1, or 0 for a turn without loss"),
        "{error}"
    );
}

#[test]
fn ultrafeedback() {
    let side = |answer: &str| {
        format!(r#"[{{"role": "user", "content": "q"}}, {{"role": "assistant", "content": "{answer}"}}]"#)
    };
    let row = format!(
        r#"{{"prompt": "q", "chosen": {}, "rejected": {}, "score_chosen": 8}}"#,
        side("a"),
        side("b")
    );
    let (report, output, _folder) = run(&row, None, &[]).unwrap();
    assert_eq!(report.from, Layout::Preference);
    assert_eq!(pair(&output), (vec![Message::user("q")], Message::assistant("a"), Message::assistant("b")));
    let error = run(&row.replacen("\"q\"", "\"other\"", 1), None, &[]).unwrap_err().to_string();
    assert!(
        error.contains("the field chosen has the turns user, assistant; it must be one assistant turn"),
        "{error}"
    );
}

#[test]
fn odd_conversations_are_told_and_empty_answers_refused() {
    let turn = |role: &str, text: &str| format!(r#"{{"role": "{role}", "content": "{text}"}}"#);
    let row = |turns: &[String]| format!("{{\"messages\": [{}]}}", turns.join(", "));
    let rows = [
        row(&[turn("user", "q"), turn("assistant", "a")]),
        row(&[turn("assistant", "q"), turn("user", " "), turn("assistant", "a")]),
        row(&[turn("user", "q"), turn("user", "q"), turn("assistant", "a"), turn("assistant", "a")]),
    ];
    let (report, ..) = run(&rows.join("\n"), None, &[]).unwrap();
    assert_eq!(
        report.notes.lines("line", true),
        [
            "1 row has a user turn that says nothing (the first is line 2)",
            "1 row has an assistant turn before any other (the first is line 2)",
            "1 row has two assistant turns in a row (the first is line 3)",
            "1 row has two user turns in a row (the first is line 3)",
        ]
    );
    let empty = row(&[turn("user", "q"), turn("assistant", " ")]);
    let error = run(&empty, None, &[]).unwrap_err().to_string();
    assert!(error.contains("line 1: turn 2 of messages is an assistant turn without text"), "{error}");
    let shared =
        empty.replace("messages", "conversations").replace("role", "from").replace("content", "value");
    let error = run(&shared, None, &[]).unwrap_err().to_string();
    assert!(error.contains("none of its 1 rows can be used: an assistant turn is empty"), "{error}");
}

#[test]
fn hints_name_the_role_that_is_meant() {
    for (name, hint) in [
        ("developer", "--map developer=system"),
        ("model", "--map model=assistant"),
        ("function", "--map function=tool"),
        ("customer", "--map customer=user"),
        ("narrator", "say who it is with --map narrator=user, or =assistant"),
    ] {
        let row = format!(r#"{{"messages": [{{"role": "{name}", "content": "a"}}]}}"#);
        let error = run(&row, None, &[]).unwrap_err().to_string();
        assert!(error.contains(hint), "{error}");
    }
    // Names that are never anything else are read without being mapped.
    let shared = r#"{"messages": [{"role": "human", "content": "q"}, {"role": "gpt", "content": "a"}]}"#;
    assert_eq!(messages(shared), [Message::user("q"), Message::assistant("a")]);
}

#[test]
fn a_weight_in_the_last_row_has_a_column() {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("x.jsonl"), folder.path().join("y.parquet"));
    let row = |weight: &str| {
        format!(
            "{{\"messages\": [{{\"role\": \"user\", \"content\": \"q\"}}, {{\"role\": \"assistant\", \"content\": \"a\"{weight}}}]}}\n"
        )
    };
    std::fs::write(&input, row("").repeat(2000) + &row(", \"weight\": 0") + &row("")).unwrap();
    let report = convert(&input, &output, &ReadOptions::default(), false).unwrap();
    assert_eq!((report.read, report.written), (2002, 2002));
    let rows = table::read_records::<Demonstration>(&output, None).unwrap();
    let ignored = |row: &Demonstration| row.turns().iter().any(|turn| turn.ignore_loss);
    assert_eq!(rows.iter().position(ignored), Some(2000));
}

/// A row whose turns call tools, on one line.
const CALLS: &str = r#"{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": null, "tool_calls": [{"type": "function", "id": "7", "function": {"name": "f", "arguments": {"b": 1, "a": "x"}}}, {"type": "function", "function": {"name": "g", "arguments": "{}"}}]}, {"role": "tool", "content": "r", "tool_call_id": "7", "name": "f"}, {"role": "assistant", "content": "a"}], "tools": [{"type": "function", "function": {"name": "f", "parameters": {"z": 1, "y": []}}}]}"#;

fn record(line: &str) -> Demonstration {
    let at = crate::RowLocation { path: "x.jsonl".into(), row: 1 };
    Demonstration::parse(Layout::Messages, &serde_json::from_str(line).unwrap(), &at).unwrap()
}

#[test]
fn tools_and_calls_survive_in_every_format() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("x.jsonl");
    let plain = r#"{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}"#;
    // The first rows do not say that the others need more fields.
    fs::write(&input, format!("{plain}\n{plain}\n{CALLS}\n")).unwrap();
    let wanted = [record(plain), record(plain), record(CALLS)];
    for name in ["y.parquet", "y.jsonl", "y.json.gz", "y.csv"] {
        let output = folder.path().join(name);
        let report = convert(&input, &output, &ReadOptions::default(), false).unwrap();
        assert_eq!((report.read, report.written), (3, 3), "{name}");
        assert_eq!(read_records::<Demonstration>(&output, None).unwrap(), wanted, "{name}");
        assert_eq!(
            report.notes.lines("line", true),
            [
                "1 row has a tool call whose arguments are text, which most templates expect as an object (the first \
              is line 3)"
            ],
            "{name}"
        );
    }
    // Files without tools have the columns that they always had.
    let output = folder.path().join("plain.parquet");
    fs::write(&input, plain).unwrap();
    convert(&input, &output, &ReadOptions::default(), false).unwrap();
    assert_eq!(TableReader::open(&output).unwrap().columns(), ["messages"]);
}

#[test]
fn the_calls_of_both_answers_survive() {
    let answer = |name: &str| {
        format!(
            r#"[{{"role": "assistant", "tool_calls": [{{"type": "function", "function": {{"name": "{name}"}}}}]}}]"#
        )
    };
    let row = format!(
        r#"{{"prompt": "q", "chosen": "a", "rejected": {}, "tools": "[{{\"name\": \"f\"}}]"}}"#,
        answer("g")
    );
    let (_, output, _folder) = run(&row, None, &[]).unwrap();
    let [Preference::Messages { chosen, rejected, tools, .. }] =
        &read_records::<Preference>(&output, None).unwrap()[..]
    else {
        panic!("one pair")
    };
    assert_eq!((chosen[0].calls_tools(), rejected[0].calls_tools()), (false, true));
    assert_eq!(tools, &Some(serde_json::json!([{"name": "f"}])));
    // A call is an answer to compare.
    let both = format!(r#"{{"prompt": "q", "chosen": {}, "rejected": {}}}"#, answer("f"), answer("g"));
    let (_, output, _folder) = run(&both, None, &[]).unwrap();
    assert!(pair(&output).1.calls_tools());
}

#[test]
fn tools_and_calls_are_left_out_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("x.jsonl"), folder.path().join("y.parquet"));
    let dropped = |line: &str, drop: &[&str]| {
        fs::write(&input, line).unwrap();
        let drop = drop.iter().map(|&name| name.to_owned()).collect();
        convert(&input, &output, &ReadOptions { drop, ..ReadOptions::default() }, true)?;
        Ok::<_, Error>(read_records::<Demonstration>(&output, None)?.remove(0))
    };
    // The turn that was nothing but calls goes with them, and the result stays.
    let (name, id) = (Some("f".to_owned()), Some("7".to_owned()));
    let result = Message { name, tool_call_id: id, ..Message::tool("r") };
    let rest = vec![Message::user("q"), result, Message::assistant("a")];
    assert_eq!(dropped(CALLS, &["tools", "tool_calls"]).unwrap(), Demonstration::without_tools(rest));
    let bare = [Message::user("q"), Message::tool("r"), Message::assistant("a")];
    let all = ["tools", "tool_calls", "tool_call_id", "name"];
    assert_eq!(dropped(CALLS, &all).unwrap(), Demonstration::without_tools(bare.to_vec()));
    // A turn that also says something stays, and tools keep their fields.
    let said = CALLS.replace("\"content\": null", "\"content\": \"wait\"");
    let Demonstration::Messages { messages, tools } = dropped(&said, &["tool_calls", "name"]).unwrap() else {
        panic!("a conversation")
    };
    assert_eq!(messages[1], Message::assistant("wait"));
    assert_eq!(tools.unwrap()[0]["function"]["name"], "f");
    // An answer that only calls tools has nothing to learn from without them.
    let answer = r#"{"prompt": "q", "completion": [{"role": "assistant", "content": "", "tool_calls": [{"name": "f"}]}]}"#;
    let error = dropped(answer, &["tool_calls"]).unwrap_err().to_string();
    assert!(error.contains("x.jsonl line 1: the field completion has no turns; remove the row"), "{error}");
}
