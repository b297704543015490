//! Files of rows, read and written.

use std::fs::File;
use std::sync::Arc;

use arrow_array::builder::{LargeListBuilder, StringViewBuilder};
use arrow_array::types::Int32Type;
use arrow_array::{ArrayRef, DictionaryArray, Int32Array, LargeStringArray, RecordBatch};
use parquet::arrow::ArrowWriter;

use super::*;
use crate::conversation::Message;
use crate::error::RowLocation;
use crate::record::{Demonstration, Layout, Preference, Prompt, Unpaired};

fn demonstrations() -> Vec<Demonstration> {
    let turn = |number: usize| {
        vec![Message::user(format!("a, \"b\"\n{number}")), Message::assistant("中文 \u{2028} 😀".to_owned())]
    };
    (0..2500).map(|number| Demonstration::without_tools(turn(number))).collect()
}

fn preferences() -> Vec<Preference> {
    let row = |margin| Preference::Messages {
        prompt: vec![Message::user("q")],
        chosen: vec![Message::assistant("a")],
        rejected: vec![Message::assistant("[{not JSON")],
        tools: None,
        margin,
    };
    vec![row(None), row(Some(0.25))]
}

#[test]
fn every_format_gives_back_what_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let prompts =
        vec![Prompt { messages: vec![Message::user("1+1")], tools: None, answer: Some("2".to_owned()) }];
    let unpaired = vec![Unpaired {
        prompt: vec![Message::user("q")],
        completion: vec![Message::assistant("a")],
        tools: None,
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
    let mixed = [Demonstration::Text("a".to_owned()), Demonstration::without_tools(vec![Message::user("a")])];
    let error = write_records(&path, &mixed).unwrap_err();
    assert!(matches!(error, Error::MixedLayouts { row: 2, first: "text", found: "messages", .. }));
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
    let rows = |wanted: Option<&dyn Fn(&str) -> bool>| -> Vec<serde_json::Value> {
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
    assert_eq!(
        rows(Some(&|name| ["number", "missing"].contains(&name)))[0],
        serde_json::json!({"number": 4})
    );
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
    assert!(error.contains("x.jsonl line 2 column 9: broken JSON: EOF while parsing a value"), "{error}");
    let error = texts("x.jsonl", "[1]").unwrap_err();
    assert!(error.contains("x.jsonl line 1: the row is a list, not an object"), "{error}");
    let error = texts("x.jsonl", "\n").unwrap_err();
    assert!(error.contains("the file has no rows"), "{error}");
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

    // Packed rows are part of the folder, so that reading it refuses them; other files are not.
    for name in ["b-3.jsonl.zst", "b-4.zip", "c.txt.xz", "d.jsonl.bak"] {
        fs::write(folder.path().join(name), "").unwrap();
    }
    assert_eq!(names(""), ["a.parquet", "b-1.jsonl", "b-2.jsonl", "b-3.jsonl.zst"]);
    let packed = folder.path().join("b-3.jsonl.zst");
    let error = read_records::<Demonstration>(&packed, None).unwrap_err().to_string();
    assert!(
        error.ends_with("b-3.jsonl.zst: this compression is not read; unpack the file first with `zstd -d`"),
        "{error}"
    );

    let missing = folder.path().join("none.jsonl");
    assert!(matches!(read_records::<Demonstration>(&missing, None), Err(Error::Read { .. })));
}

#[test]
fn a_link_to_nothing_in_a_folder_is_named() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.jsonl"), "{\"text\": \"a\"}\n").unwrap();
    std::os::unix::fs::symlink("gone", folder.path().join("readme.md")).unwrap();
    let input = folder.path().to_str().unwrap();
    assert_eq!(expand(&[input]).unwrap().len(), 1);
    std::os::unix::fs::symlink("gone", folder.path().join("b.jsonl")).unwrap();
    for input in [input.to_owned(), format!("{input}/*.jsonl")] {
        let error = expand(&[input]).unwrap_err().to_string();
        assert!(error.contains("b.jsonl: cannot read"), "{error}");
    }
}

#[test]
fn the_last_row_of_a_csv_file_needs_no_line_break() {
    let folder = tempfile::tempdir().unwrap();
    let cells = |content: &str| -> Vec<Vec<String>> {
        let path = folder.path().join("x.csv");
        fs::write(&path, content).unwrap();
        let cells = |row: &Row| row.values().map(|cell| cell.as_str().unwrap().to_owned()).collect();
        TableReader::open(&path).unwrap().rows(None).unwrap().map(|row| cells(&row.unwrap().1)).collect()
    };
    // Each file has the same rows with and without the line break after its last row.
    let of_a_batch = |count: usize| "\n\"a row\"".repeat(count);
    for content in [
        "text\nabc".to_owned(),
        "text\nabc\ndef".to_owned(),
        "text\r\nabc\r\ndef".to_owned(),
        "text\n\"abc\"\n\"def\"".to_owned(),
        "text\na\nlast \"x\"".to_owned(),
        "text,b\n\"abc\",1\n\"def\",2".to_owned(),
        format!("text{}", of_a_batch(1023)),
        format!("text{}", of_a_batch(1024)),
        format!("text{}", of_a_batch(1025)),
    ] {
        let rows = cells(&content);
        assert_eq!(rows, cells(&format!("{content}\n")), "{content:.60}");
        assert_eq!(rows.len(), content.lines().count() - 1, "{content:.60}");
    }
    assert_eq!(cells("text\nabc\ndef"), [["abc"], ["def"]]);
    assert_eq!(cells("text,b\n\"abc\",1\n\"def\",2"), [["abc", "1"], ["def", "2"]]);
}

#[test]
fn the_rows_of_a_csv_file_end_behind_a_broken_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.csv");
    for content in [b"text,id\nx,1\ny\n".as_slice(), b"text\ncaf\xe9\n", b"text,id\nx,1\n\"open,3\n"] {
        fs::write(&path, content).unwrap();
        let rows = TableReader::open(&path).unwrap().rows(None).unwrap();
        assert!(rows.take(9).count() < 9, "{}", String::from_utf8_lossy(content));
    }
}

#[test]
fn a_pipe_is_written_to_and_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe.jsonl");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let reader = std::thread::spawn({
        let path = path.clone();
        move || fs::read_to_string(path).unwrap()
    });
    write_records(&path, &[Demonstration::Text("a".to_owned())]).unwrap();
    assert_eq!(reader.join().unwrap(), "{\"text\":\"a\"}\n");
    assert!(refuse_stream(&path).unwrap_err().to_string().contains("this is no file"));
}

#[test]
fn a_file_that_came_meanwhile_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.jsonl");
    fs::write(&path, "mine").unwrap();
    let rows = [Demonstration::Text("a".to_owned())];
    assert!(write_records_over(&path, &rows, false).is_err());
    assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    write_records_over(&path, &rows, true).unwrap();
    assert_ne!(fs::read_to_string(&path).unwrap(), "mine");
}

#[test]
fn a_column_of_a_type_that_is_not_read_is_named() {
    use arrow_array::{ArrayRef, BinaryArray, RecordBatch};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.parquet");
    let column = Arc::new(BinaryArray::from(vec![b"a".as_slice()])) as ArrayRef;
    let batch = RecordBatch::try_from_iter([("text", column)]).unwrap();
    let mut writer = ArrowWriter::try_new(fs::File::create(&path).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let error = read_records::<Demonstration>(&path, None).unwrap_err().to_string();
    assert!(error.contains("`text`: a column of type Binary"), "{error}");
}

fn message(name: &str, content: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, content).unwrap();
    let error = read_records::<Demonstration>(&path, None).unwrap_err().to_string();
    error.replace(&format!("{}/", folder.path().display()), "")
}

#[test]
fn places_are_those_of_an_editor() {
    let text = b"{\"text\": \"a\"}\n\n{\"text\": \"b\"}\n{\"text\": x}\n";
    let error = message("x.jsonl", text);
    assert!(error.starts_with("x.jsonl line 4 column 10: broken JSON: expected value;"), "{error}");
    let error = message("x.jsonl", b"{\"text\": \r\n{\"text\": \"b\"}\r\n");
    assert!(error.starts_with("x.jsonl line 1 column 9: broken JSON: EOF while parsing a value;"), "{error}");
    let error = message("x.json", b"[\n {\"text\": \"a\"},\n {\"text\": x}\n]");
    assert!(error.starts_with("x.json line 3 column 11: broken JSON: expected value;"), "{error}");
    let error = message("x.json", b"[{\"text\": \"a\"}, {\"text\": 3}]");
    assert!(error.starts_with("x.json row 2: the field text is the number 3; it must be text"), "{error}");
    let error = message("x.csv", b"text,input_ids\na,\n,\n");
    assert!(error.contains("fit more than one layout: text (text) or tokens (input_ids)"), "{error}");
    let error = message("x.csv", b"text,id\na,1\n,2\n");
    assert!(error.starts_with("x.csv row 2: the field text is missing or null"), "{error}");
    let error = message("x.csv", b"text,id\na,1\nb\n");
    assert!(error.contains("broken CSV") && error.contains("line 3"), "{error}");
}

#[test]
fn a_file_that_is_not_what_its_name_says_is_refused_by_name() {
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use std::io::Write as _;
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(b"{\"text\": \"a\"}\n{\"text\": \"a long text to cut off\"}\n").unwrap();
    let packed = encoder.finish().unwrap();
    for (name, content, words) in [
        (
            "x.jsonl",
            packed.as_slice(),
            "this file is gzip, which its name does not say; rename it to end in .gz",
        ),
        (
            "x.jsonl.gz",
            b"{\"text\": \"a\"}\n".as_slice(),
            "this file is not gzip, which its name does not say; rename it without .gz",
        ),
        ("x.jsonl.gz", &packed[..packed.len() - 12], "the gzip data is damaged or cut off"),
        (
            "x.jsonl",
            b"\x28\xb5\x2f\xfd\0\0\0\0",
            "this file is zstd, which its name does not say; unpack it first with `zstd -d`",
        ),
        (
            "x.json",
            b"PAR1\0\0\0\0",
            "this file is Parquet, which its name does not say; rename it to end in .parquet",
        ),
        ("x.parquet", b"{\"text\": \"a\"}\n", "this file is not Parquet"),
        ("x.parquet", b"PAR1PAR1", "this is not a Parquet file that can be read"),
        ("x.csv", b"", "the file has no rows"),
        ("x.csv", b"text,text\na,b\n", "the column text is there twice"),
        (
            "x.jsonl",
            b"{\"text\": \"a\", \"text\": \"b\"}\n",
            "line 1 column 26: broken JSON: the field \"text\" is there twice",
        ),
        ("x.jsonl.br", b"abc", "cannot tell the format from its name"),
    ] {
        let error = message(name, content);
        assert!(error.contains(words) && error.starts_with(name), "{error}");
    }
}

#[test]
fn a_list_in_a_text_is_a_list_in_csv_alone() {
    let turns = r#"[{"role": "user", "content": "a"}]"#;
    let folder = tempfile::tempdir().unwrap();
    let prompt = |name: &str, content: String| {
        let path = folder.path().join(name);
        fs::write(&path, content).unwrap();
        read_records::<Prompt>(&path, None).unwrap().remove(0).messages
    };
    let row = serde_json::json!({"prompt": turns}).to_string();
    assert_eq!(prompt("x.jsonl", row), [Message::user(turns)]);
    let quoted = turns.replace('"', "\"\"");
    assert_eq!(prompt("x.csv", format!("prompt\n\"{quoted}\"\n")), [Message::user("a")]);
    assert_eq!(
        prompt("x.csv", "prompt\n[1] is a footnote\n".to_owned()),
        [Message::user("[1] is a footnote")]
    );
    assert_eq!(prompt("x.csv", "prompt\n[1]\n".to_owned()), [Message::user("[1]")]);
    let path = folder.path().join("x.parquet");
    let rows = [Prompt { messages: vec![Message::user(turns)], tools: None, answer: None }];
    let column: ArrayRef = Arc::new(LargeStringArray::from(vec![turns]));
    write_parquet(&path, vec![("prompt", column)]);
    assert_eq!(read_records::<Prompt>(&path, None).unwrap(), rows);
}

fn write_parquet(path: &Path, columns: Vec<(&str, ArrayRef)>) {
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let mut writer = ArrowWriter::try_new(File::create(path).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

#[test]
fn margins_that_are_no_numbers_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.parquet");
    for (margin, words) in [(f64::NAN, "NaN"), (f64::INFINITY, "inf")] {
        let text = |text: &str| -> ArrayRef { Arc::new(LargeStringArray::from(vec![text])) };
        let margins: ArrayRef = Arc::new(arrow_array::Float64Array::from(vec![margin]));
        write_parquet(
            &path,
            vec![("prompt", text("q")), ("chosen", text("a")), ("rejected", text("b")), ("margin", margins)],
        );
        let error = read_records::<Preference>(&path, None).unwrap_err().to_string();
        assert!(
            error.contains(&format!(
                "x.parquet row 1: the field margin is the text {words:?}; it must be a finite number"
            )),
            "{error}"
        );
    }
}

#[test]
fn columns_of_parquet_that_nothing_reads_are_counted_without_being_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.parquet");
    let text = |cells: Vec<Option<&str>>| -> ArrayRef { Arc::new(LargeStringArray::from(cells)) };
    let binary: ArrayRef = Arc::new(arrow_array::BinaryArray::from_vec(vec![b"x", b"y"]));
    let columns = |tools: Option<&'static str>| {
        vec![
            ("text", text(vec![Some("a"), Some("b")])),
            ("quality", text(vec![None, Some("good")])),
            ("id", text(vec![Some("1"), Some("2")])),
            ("thumbnail", Arc::clone(&binary)),
            ("tools", text(vec![None, tools])),
        ]
    };
    write_parquet(&path, columns(None));
    let mut rows = open_records::<Demonstration>(&path, &ReadOptions::default()).unwrap();
    assert_eq!(rows.by_ref().flatten().count(), 2);
    assert_eq!(
        rows.notes().lines("row", true),
        ["not read: quality (1 row), thumbnail (2 rows)", "not read, as metadata: id (2 rows)",]
    );
    write_parquet(&path, columns(Some("search")));
    let error = read_records::<Demonstration>(&path, None).unwrap_err().to_string();
    assert!(error.contains("x.parquet row 2: the field tools is the text \"search\""), "{error}");
}

/// Texts in the delta encodings, plain and in lists, in pages of both versions.
#[test]
fn texts_in_delta_encodings_are_read_within_limits() {
    use arrow_array::builder::{ListBuilder, StringBuilder};
    use parquet::basic::Encoding;
    use parquet::file::properties::{WriterProperties, WriterVersion};

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.parquet");
    let write = |columns: Vec<(&str, ArrayRef)>, encoding, version| {
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let properties = WriterProperties::builder()
            .set_writer_version(version)
            .set_dictionary_enabled(false)
            .set_encoding(encoding)
            .build();
        let mut writer =
            ArrowWriter::try_new(File::create(&path).unwrap(), batch.schema(), Some(properties)).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
    };
    let read = || -> Result<Vec<serde_json::Value>> {
        let rows = TableReader::open(&path)?.rows(None)?;
        rows.map(|row| Ok(serde_json::Value::Object(row?.1))).collect()
    };

    let texts: Vec<Option<String>> =
        (0..3000).map(|row| (row % 7 > 0).then(|| format!("the same beginning of {row}"))).collect();
    let mut lists = ListBuilder::new(StringBuilder::new());
    texts.chunks(3).for_each(|three| lists.append_value(three.iter().map(Option::as_deref)));
    let lists: ArrayRef = Arc::new(lists.finish());
    let flat: ArrayRef = Arc::new(texts.iter().take(1000).collect::<arrow_array::StringArray>());
    for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
        for encoding in [Encoding::DELTA_BYTE_ARRAY, Encoding::DELTA_LENGTH_BYTE_ARRAY] {
            write(vec![("flat", Arc::clone(&flat)), ("lists", Arc::clone(&lists))], encoding, version);
            let rows = read().unwrap();
            assert_eq!(rows.len(), 1000);
            for (row, found) in rows.iter().enumerate() {
                let wanted = serde_json::json!({"flat": texts[row], "lists": texts[3 * row..3 * row + 3]});
                assert_eq!(*found, wanted);
            }
        }
    }

    // 300 times a text of 3 MiB, of which the file holds one.
    let long = "a".repeat(3 << 20);
    let bomb: DictionaryArray<Int32Type> = std::iter::repeat_n(long.as_str(), 300).collect();
    write(vec![("text", Arc::new(bomb))], Encoding::DELTA_BYTE_ARRAY, WriterVersion::PARQUET_1_0);
    assert!(fs::metadata(&path).unwrap().len() < 4 << 20);
    let error = read().unwrap_err().to_string();
    assert!(error.contains("its next rows take more than 768 MiB with the column text"), "{error}");
}

#[test]
fn a_json_file_is_read_one_element_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.json");
    let read = |content: &str| -> Vec<std::result::Result<String, String>> {
        fs::write(&path, content).unwrap();
        let rows = TableReader::open(&path).unwrap().rows(None).unwrap();
        let text = |row: Result<(RowLocation, Row)>| match row {
            Ok((at, row)) => Ok(format!("{} {}", at.row, row["text"].as_str().unwrap().len())),
            Err(error) => Err(error.to_string().rsplit('/').next().unwrap().to_owned()),
        };
        rows.map(text).collect()
    };

    // Elements that end inside of the window, at its end, and beyond it.
    let lengths: Vec<usize> =
        (0..400).map(|row| (row * 7919) % 3000 + 200_000 * usize::from(row % 100 == 7)).collect();
    let element = |&length: &usize| format!("{{\"text\": \"{}\"}}", "x".repeat(length));
    let elements: Vec<String> = lengths.iter().map(element).collect();
    let wanted: Vec<_> =
        lengths.iter().enumerate().map(|(row, length)| Ok(format!("{} {length}", row + 1))).collect();
    assert_eq!(read(&format!(" [{}] ", elements.join(" ,\n"))), wanted);
    assert_eq!(read(&elements.concat()), wanted);
    assert_eq!(read(&format!("\u{feff}[]{}", elements.join("\n"))), wanted);

    let ok = || Ok("1 1".to_owned());
    let broken = |place: &str, reason: &str| {
        let fix = "write one object per line in .jsonl, and one array of objects in .json";
        Err(format!("x.json line {place}: broken JSON: {reason}; {fix}"))
    };
    let a = "{\"text\": \"a\"}";
    assert_eq!(read(&format!("[{a},\n]")), [ok(), broken("2 column 1", "trailing comma")]);
    assert_eq!(read(&format!("[{a}\n {a}]")), [ok(), broken("2 column 2", "expected `,` or `]`")]);
    assert_eq!(read(&format!("[{a}\n")), [ok(), broken("2 column 0", "EOF while parsing a list")]);
    assert_eq!(read(&format!("[{a},")), [ok(), broken("1 column 15", "EOF while parsing a value")]);
    assert_eq!(read(&format!("{a} x")), [ok(), broken("1 column 15", "expected value")]);
    // An element that is no object ends nothing.
    let found = read(&format!("[{a}, 12, {a}]"));
    assert_eq!((found.len(), &found[2]), (3, &Ok("3 1".to_owned())));
    assert!(found[1].as_ref().unwrap_err().contains("x.json row 2: the row is a number"), "{found:?}");
}

#[test]
fn the_notes_of_a_row_with_many_names_take_no_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.jsonl");
    let names: String = (0..9000).map(|number| format!("\"k{number}\": 0, ")).collect::<Vec<_>>().concat();
    fs::write(&path, format!("{{{names}\"text\": \"a\"}}\n").repeat(3)).unwrap();
    let mut rows = open_records::<Demonstration>(&path, &ReadOptions::default()).unwrap();
    assert_eq!(rows.by_ref().flatten().count(), 3);
    assert_eq!(rows.notes().unread.len(), 9000);
}

#[test]
fn scores_stand_beside_the_columns_of_the_records() {
    let folder = tempfile::tempdir().unwrap();
    let ignored = Message { ignore_loss: true, ..Message::assistant("a") };
    let talk = vec![Message::user("q"), ignored, Message::user("r"), Message::assistant("b")];
    let records = vec![Demonstration::without_tools(talk), demonstrations().remove(0)];
    for name in ["x.parquet", "x.jsonl"] {
        let path = folder.path().join(name);
        write_scored_records(&path, &records, &[0.25, -3.0]).unwrap();
        assert_eq!(read_records::<Demonstration>(&path, None).unwrap(), records, "{name}");
        let rows = TableReader::open(&path).unwrap().rows(None).unwrap();
        let scores: Vec<f64> = rows.map(|row| row.unwrap().1["score"].as_f64().unwrap()).collect();
        assert_eq!(scores, [0.25, -3.0], "{name}");
        assert!(write_scored_records(&path, &records, &[0.0, 0.0]).is_err(), "{name} is there already");
    }
}
