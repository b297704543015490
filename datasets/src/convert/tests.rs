//! Foreign layouts, row by row.

use std::fs;
use std::path::PathBuf;

use super::*;
use crate::conversation::Message;
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
    let options = ConvertOptions {
        from: from.map(|name| name.parse().unwrap()),
        mapping: Mapping::parse(map).unwrap(),
    };
    let report = convert(&input, &output, &options)?;
    Ok((report, output, folder))
}

fn pair(path: &Path) -> (Vec<Message>, Message, Message) {
    match read_records::<Preference>(path, None).unwrap().remove(0) {
        Preference::Messages { prompt, mut chosen, mut rejected, .. } => {
            (prompt, chosen.remove(0), rejected.remove(0))
        }
        Preference::Tokens { .. } => panic!("not tokenised"),
    }
}

#[test]
fn sharegpt() {
    let row = r#"{"id": 1, "system": "s", "conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"},
        {"from": "human", "value": "c"}]}"#
        .replace('\n', " ");
    let (report, output, _folder) = run(&row, None, &[]).unwrap();
    assert_eq!((report.from, report.to, report.written), (Foreign::ShareGpt, Layout::Messages, 1));
    let wanted = vec![Message::system("s"), Message::user("a"), Message::assistant("b")];
    assert_eq!(read_records::<Demonstration>(&output, None).unwrap(), [Demonstration::Messages(wanted)]);
    let error = run(&row.replace("gpt", "bot"), None, &[]).unwrap_err().to_string();
    assert!(error.contains("--map bot=assistant"), "{error}");
    assert!(run(&row.replace("gpt", "bot"), None, &["bot=assistant"]).is_ok());
}

#[test]
fn alpaca() {
    let row = r#"{"instruction": "Add.", "input": "1 2", "output": "3"}"#;
    let (report, output, _folder) = run(&format!("{row}\n{}", row.replace('3', "")), None, &[]).unwrap();
    assert_eq!((report.from, report.read, report.written), (Foreign::Alpaca, 2, 1));
    assert_eq!(report.skipped["empty output"], 1);
    let wanted = vec![Message::user("Add.\n\n1 2"), Message::assistant("3")];
    assert_eq!(read_records::<Demonstration>(&output, None).unwrap(), [Demonstration::Messages(wanted)]);
    let both = r#"{"instruction": "Add.", "input": "", "output": "3", "chosen": "3", "rejected": "4"}"#;
    let error = run(both, None, &[]).unwrap_err().to_string();
    assert!(error.contains("alpaca-preference or alpaca"), "{error}");
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
    assert_eq!(report.from, Foreign::HhTranscripts);
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
    assert!(run(&row, None, &[]).unwrap_err().to_string().contains("oasst-preference or oasst"));
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
    assert_eq!(read_records::<Demonstration>(&output, None).unwrap(), [Demonstration::Messages(wanted)]);
}

#[test]
fn colossal_and_factory_files() {
    let row = r#"{"messages": [{"from": "user", "content": "a"}, {"from": "assistant", "content": "b"}]}"#;
    let (report, _, _folder) = run(row, None, &[]).unwrap();
    assert_eq!(report.from, Foreign::ColossalMessages);
    let row = r#"{"context": [{"from": "user", "content": "a"}], "chosen": [{"from": "assistant", "content": "b"}], "rejected": [{"from": "assistant", "content": "c"}]}"#;
    let (report, output, _folder) = run(row, None, &[]).unwrap();
    assert_eq!(report.from, Foreign::ColossalPreference);
    assert_eq!(pair(&output), (vec![Message::user("a")], Message::assistant("b"), Message::assistant("c")));
    let row = r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "label": true}"#;
    let (report, output, _folder) = run(row, None, &[]).unwrap();
    assert_eq!((report.from, report.to), (Foreign::KtoMessages, Layout::Unpaired));
    assert!(read_records::<Unpaired>(&output, None).unwrap()[0].label);
}

#[test]
fn mapped_columns_and_fields() {
    let row = r#"{"dialogue": [{"speaker": "customer", "said": "a"}, {"speaker": "agent", "said": "b"}]}"#;
    let map = ["messages=dialogue", "role=speaker", "content=said", "customer=user", "agent=assistant"];
    let (report, output, _folder) = run(row, None, &map).unwrap();
    assert_eq!(report.from, Foreign::Canonical(Layout::Messages));
    let wanted = vec![Message::user("a"), Message::assistant("b")];
    assert_eq!(read_records::<Demonstration>(&output, None).unwrap(), [Demonstration::Messages(wanted)]);
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
    assert_eq!(report.from, Foreign::Canonical(Layout::Messages));
    let (report, _, _folder) =
        run(r#"{"prompt": "a", "completion": "b", "label": false}"#, None, &[]).unwrap();
    assert_eq!(report.from, Foreign::Canonical(Layout::Unpaired));
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
        ("sft/llamafactory_glaive_toolcall_en_demo.json.gz", None, 300, 300),
    ];
    let out = tempfile::tempdir().unwrap();
    for (name, from, read, at_least) in cases {
        let options =
            ConvertOptions { from: from.map(|name| name.parse().unwrap()), mapping: Mapping::default() };
        let report = convert(&folder.join(name), &out.path().join("out.parquet"), &options).unwrap();
        eprintln!("{name}: {report:?}");
        assert_eq!(report.read, read, "{name}");
        assert!(report.written >= at_least, "{name}: {report:?}");
    }
}
