//! Files of rows, read and written.

use std::sync::Arc;

use arrow_array::builder::{LargeListBuilder, StringViewBuilder};
use arrow_array::types::Int32Type;
use arrow_array::{ArrayRef, DictionaryArray, Int32Array, LargeStringArray, RecordBatch};
use parquet::arrow::ArrowWriter;

use super::*;
use crate::conversation::Message;
use crate::record::{Demonstration, Preference, Prompt, Unpaired};

fn demonstrations() -> Vec<Demonstration> {
    let turn = |number: usize| {
        vec![Message::user(format!("a, \"b\"\n{number}")), Message::assistant("中文 \u{2028} 😀".to_owned())]
    };
    (0..2500).map(|number| Demonstration::Messages(turn(number))).collect()
}

fn preferences() -> Vec<Preference> {
    let row = |margin| Preference::Messages {
        prompt: vec![Message::user("q")],
        chosen: vec![Message::assistant("a")],
        rejected: vec![Message::assistant("[{not JSON")],
        margin,
    };
    vec![row(None), row(Some(0.25))]
}

#[test]
fn every_format_gives_back_what_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let prompts = vec![Prompt { messages: vec![Message::user("1+1")], answer: Some("2".to_owned()) }];
    let unpaired = vec![Unpaired {
        prompt: vec![Message::user("q")],
        completion: vec![Message::assistant("a")],
        label: false,
    }];
    let tokens = vec![Demonstration::Tokens { input_ids: vec![1, 2], labels: Some(vec![-100, 2]) }];
    let pairs =
        vec![Preference::Tokens { chosen: vec![1, 2], rejected: vec![1, 3], prompt_length: 1, margin: None }];
    for name in ["x.parquet", "x.jsonl", "x.json", "x.csv", "x.jsonl.gz", "x.json.gz", "x.csv.gz"] {
        let path = folder.path().join(name);
        write_records(&path, &demonstrations()).unwrap();
        assert_eq!(read_records::<Demonstration>(&path, None).unwrap(), demonstrations(), "{name}");
        write_records(&path, &preferences()).unwrap();
        assert_eq!(read_records::<Preference>(&path, None).unwrap(), preferences(), "{name}");
        write_records(&path, &prompts).unwrap();
        assert_eq!(read_records::<Prompt>(&path, None).unwrap(), prompts, "{name}");
        write_records(&path, &unpaired).unwrap();
        assert_eq!(read_records::<Unpaired>(&path, None).unwrap(), unpaired, "{name}");
        write_records(&path, &tokens).unwrap();
        assert_eq!(read_records::<Demonstration>(&path, None).unwrap(), tokens, "{name}");
        write_records(&path, &pairs).unwrap();
        assert_eq!(read_records::<Preference>(&path, None).unwrap(), pairs, "{name}");
    }
    // Nothing temporary is left behind.
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 7);
}

#[test]
fn a_failed_write_leaves_the_old_file_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.parquet");
    write_records(&path, &preferences()).unwrap();
    let before = fs::read(&path).unwrap();
    let bad = serde_json::json!({"text": {"not": "text"}});
    let rows = std::iter::once(bad.as_object().unwrap().clone());
    assert!(write_rows(&path, Layout::Text, rows).is_err());
    assert_eq!(fs::read(&path).unwrap(), before);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    let mixed = [Demonstration::Text("a".to_owned()), Demonstration::Messages(vec![Message::user("a")])];
    let error = write_records(&path, &mixed).unwrap_err();
    assert!(matches!(error, Error::MixedLayouts { row: 1, first: "text", found: "messages", .. }));
}

#[test]
fn parquet_columns_of_any_text_and_list_type_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.parquet");
    let mut view = StringViewBuilder::new();
    view.append_value("a long text that does not fit inline");
    view.append_null();
    let mut ids = LargeListBuilder::new(arrow_array::builder::Int16Builder::new());
    ids.append_value([Some(1), Some(2)]);
    ids.append_null();
    let dictionary: DictionaryArray<Int32Type> = vec![Some("x"), Some("y")].into_iter().collect();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("view", Arc::new(view.finish())),
        ("large", Arc::new(LargeStringArray::from(vec!["l", "m"]))),
        ("dictionary", Arc::new(dictionary)),
        ("ids", Arc::new(ids.finish())),
        ("number", Arc::new(Int32Array::from(vec![Some(4), None]))),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let mut writer = ArrowWriter::try_new(File::create(&path).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let rows = |wanted| -> Vec<serde_json::Value> {
        let reader = TableReader::open(&path).unwrap();
        reader.rows(wanted).unwrap().map(|row| serde_json::Value::Object(row.unwrap().1)).collect()
    };
    let whole = rows(None);
    assert_eq!(
        whole[0],
        serde_json::json!({"view": "a long text that does not fit inline", "large": "l", "dictionary": "x", "ids": [1, 2],
                           "number": 4})
    );
    assert_eq!(
        whole[1],
        serde_json::json!({"view": null, "large": "m", "dictionary": "y", "ids": null, "number": null})
    );
    assert_eq!(rows(Some(&["number", "missing"]))[0], serde_json::json!({"number": 4}));
}

#[test]
fn json_comes_in_several_shapes() {
    let folder = tempfile::tempdir().unwrap();
    let texts = |name: &str, content: &str| {
        let path = folder.path().join(name);
        fs::write(&path, content).unwrap();
        read_records::<Demonstration>(&path, None).map_err(|error| error.to_string())
    };
    let wanted = Ok(vec![Demonstration::Text("a".to_owned()), Demonstration::Text("b".to_owned())]);
    assert_eq!(texts("x.json", "[{\"text\": \"a\"}, {\"text\": \"b\"}]"), wanted);
    assert_eq!(texts("x.json", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n"), wanted);
    assert_eq!(texts("x.jsonl", "\u{feff}{\"text\": \"a\"}\r\n\n{\"text\": \"b\"}"), wanted);
    assert_eq!(texts("x.csv", "\u{feff}id,text\n1,a\n2,b\n"), wanted);
    let error = texts("x.jsonl", "{\"text\": \"a\"}\n{\"text\": ").unwrap_err();
    assert!(error.contains("x.jsonl row 1 (counted from 0): is not a JSON object"), "{error}");
    let error = texts("x.jsonl", "[1]").unwrap_err();
    assert!(error.contains("row 0 (counted from 0): is a list where an object"), "{error}");
    let error = texts("x.jsonl", "\n").unwrap_err();
    assert!(error.contains("has no rows"), "{error}");
    let error = texts("x.txt", "a").unwrap_err();
    assert!(error.contains(".parquet .jsonl .json .csv"), "{error}");
}

#[test]
fn folders_and_patterns_expand_in_order() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["b-2.jsonl", "b-1.jsonl", "a.parquet", "readme.txt", ".hidden.jsonl"] {
        fs::write(folder.path().join(name), "").unwrap();
    }
    let names = |input: &str| -> Vec<String> {
        let files = expand(&[folder.path().join(input).to_str().unwrap()]).unwrap();
        files.iter().map(|file| file.file_name().unwrap().to_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(""), ["a.parquet", "b-1.jsonl", "b-2.jsonl"]);
    assert_eq!(names("b-*.jsonl"), ["b-1.jsonl", "b-2.jsonl"]);
    assert_eq!(names("?-1.*"), ["b-1.jsonl"]);
    assert!(matches!(expand(&[folder.path().join("c*").to_str().unwrap()]), Err(Error::NoFiles { .. })));
    let missing = folder.path().join("none.jsonl");
    assert!(matches!(read_records::<Demonstration>(&missing, None), Err(Error::Read { .. })));
}
