//! Small files that unpack to far more than memory: each is refused by name within an address space of 4 GiB.
//!
//! Files that need a compressor are packed by the system's `gzip`.

use std::process::{Command, Stdio};

use crate::harness::{Outcome, Scratch};
use crate::training::copied;

/// The address space of a run in KiB. A run on small rows takes less than a quarter of it.
const ADDRESS_SPACE: u32 = 4 << 20;
/// A run that takes longer hangs. The longest of these takes a few seconds.
const HANGS: &str = "120";

/// Runs the binary in a bounded address space with words split at spaces.
fn run(scratch: &Scratch, line: &str) -> Outcome {
    run_within(scratch, line, ADDRESS_SPACE)
}

fn run_within(scratch: &Scratch, line: &str, kib: u32) -> Outcome {
    let inner = scratch.command(&line.split(' ').collect::<Vec<_>>());
    let script = format!("ulimit -v {kib} && exec timeout {HANGS} \"$0\" \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &script]).arg(inner.get_program()).args(inner.get_args());
    command.current_dir(inner.get_current_dir().expect("the scratch folder"));
    command.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = command.stdin(Stdio::null()).output().expect("the binary ends");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    Outcome {
        code: output.status.code().unwrap_or(-1),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

/// Packs what a shell command prints.
fn pack(scratch: &Scratch, name: &str, command: &str) {
    let script = format!("({command}) | gzip -9 > '{}'", scratch.path(name).display());
    assert!(Command::new("sh").args(["-c", &script]).status().expect("a shell").success(), "{name}");
}

/// Fails unless `data check` and `data convert` refuse the file with an error line that holds the words.
#[track_caller]
fn refused(scratch: &Scratch, name: &str, words: &[&str]) {
    let checked = run(scratch, &format!("data check {name} --json"));
    // What ends a file is the error; a row that cannot be used is listed.
    assert_eq!(checked.code, 3, "{checked:#?}");
    let told = format!("{}{}", checked.stdout, checked.stderr);
    for word in words {
        assert!(told.contains(word), "{word:?} is not in {checked:#?}");
    }
    run(scratch, &format!("data convert {name} --output out.parquet")).fails(3, words);
    assert!(!scratch.path("out.parquet").exists(), "{name}");
}

#[test]
fn packed_files_that_unpack_without_end_are_refused() {
    let scratch = Scratch::new();
    let text = "a".repeat(1000);
    let row = format!(r#"{{"text": "{text}"}}"#);
    let many = |text: &str| format!("yes '{text}' | head -c 300000000");
    pack(&scratch, "rows.jsonl.gz", &many(&row));
    pack(&scratch, "rows.json.gz", &many(&row));
    pack(&scratch, "array.json.gz", &format!("echo '['; {}", many(&format!("{row},"))));
    pack(&scratch, "rows.csv.gz", &format!("echo text; {}", many(&text)));
    for name in ["rows.jsonl.gz", "rows.json.gz", "array.json.gz", "rows.csv.gz"] {
        refused(&scratch, name, &[name, "the gzip data unpacks to more than 200 times its size", "gzip -d"]);
    }
}

#[test]
fn a_header_with_an_open_quote_is_refused_without_reading_it_again_and_again() {
    let scratch = Scratch::new();
    pack(&scratch, "quote.csv.gz", "printf '\"'; yes '' | head -c 400000");
    refused(&scratch, "quote.csv.gz", &["quote.csv.gz"]);
    pack(&scratch, "long.csv.gz", "printf '\"'; yes '' | head -c 4000000");
    refused(&scratch, "long.csv.gz", &["long.csv.gz: its header has more than 1 MiB"]);
    scratch.write("wide.csv", &format!("{}\n", ",".repeat(20_000)));
    refused(&scratch, "wide.csv", &["wide.csv: it has more than 10000 columns"]);
}

#[test]
fn a_row_that_is_no_row_is_refused() {
    let scratch = Scratch::new();
    let zeros = |count: usize| format!("yes '0,' | tr -d '\\n' | head -c {count}");
    // A row of 20 MB of numbers takes 36 times as much in memory.
    for (name, before, after) in [
        ("numbers.jsonl", r#"{"input_ids":["#, "0]}\n"),
        ("numbers.json", r#"[{"input_ids":["#, "0]}]\n"),
        ("numbers.csv", "input_ids\n\"[", "0]\"\n"),
    ] {
        let path = scratch.path(name).display().to_string();
        let script =
            format!("(printf '%s' '{before}'; {}; printf '%s' '{after}') > '{path}'", zeros(20_000_000));
        assert!(Command::new("sh").args(["-c", &script]).status().expect("a shell").success());
        refused(&scratch, name, &[name, "1: it takes more than 512 MiB in memory, which is no row"]);
    }
    // A line, an array of which no element ends, and a cell whose quotes never do.
    for (name, before) in
        [("line.jsonl", "{\"text\": \""), ("line.json", "[{\"text\": \""), ("line.csv", "text\n\"")]
    {
        let path = scratch.path(name).display().to_string();
        let script = format!("(printf '%s' '{before}'; yes a | tr -d '\\n' | head -c 300000000) > '{path}'");
        assert!(Command::new("sh").args(["-c", &script]).status().expect("a shell").success());
        refused(&scratch, name, &[name, "1: it has more than 256 MiB, which is no row"]);
        std::fs::remove_file(path).unwrap();
    }
}

#[test]
fn rows_with_names_without_end_are_refused() {
    let scratch = Scratch::new();
    let names: String = (0..500_000).map(|number| format!("\"k{number}\": 0, ")).collect::<Vec<_>>().concat();
    scratch.write("keys.jsonl", &format!("{{{names}\"text\": \"a\"}}\n"));
    refused(&scratch, "keys.jsonl", &["keys.jsonl line 1", "an object has more than 10000 fields"]);
    // Every row has names of its own.
    let rows: String = (0..200)
        .map(|row| {
            let names: String =
                (0..200).map(|number| format!("\"k{row}-{number}\": 0, ")).collect::<Vec<_>>().concat();
            format!("{{{names}\"text\": \"a\"}}\n")
        })
        .collect::<Vec<_>>()
        .concat();
    scratch.write("names.jsonl", &rows);
    refused(&scratch, "names.jsonl", &["names.jsonl", "it has more than 10000 columns"]);
    scratch.write("deep.jsonl", &format!("{{\"text\": {}\n", "[".repeat(1_000_000)));
    refused(&scratch, "deep.jsonl", &["deep.jsonl line 1", "recursion limit exceeded"]);
}

/// A writer of Thrift's compact protocol.
#[derive(Default)]
struct Thrift {
    bytes: Vec<u8>,
    last: u8,
}

impl Thrift {
    fn field(mut self, number: u8, code: u8) -> Self {
        self.bytes.push((number - self.last) << 4 | code);
        self.last = number;
        self
    }

    fn varint(mut self, mut value: u64) -> Self {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
        self
    }

    fn number(self, number: u8, value: u64) -> Self {
        self.field(number, 6).varint(2 * value)
    }

    fn text(self, number: u8, text: &str) -> Self {
        self.field(number, 8).raw(text)
    }

    fn raw(self, text: &str) -> Self {
        let mut whole = self.varint(text.len() as u64);
        whole.bytes.extend_from_slice(text.as_bytes());
        whole
    }

    fn structure(mut self, number: u8, structure: Self) -> Self {
        self = self.field(number, 12);
        self.bytes.extend(structure.end());
        self
    }

    fn structures(mut self, number: u8, structures: Vec<Self>) -> Self {
        self = self.field(number, 9);
        self.bytes.push(0xf0 | 0x0c);
        self = self.varint(structures.len() as u64);
        for structure in structures {
            self.bytes.extend(structure.end());
        }
        self
    }

    fn end(mut self) -> Vec<u8> {
        self.bytes.push(0);
        self.bytes
    }
}

/// A zstd frame (RFC 8878, section 3.1.1) with `head` and then `count` times `byte`, which takes four bytes for
/// every 128 KiB.
fn zstd(head: &[u8], byte: u8, count: usize) -> Vec<u8> {
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0xa0];
    frame.extend((head.len() as u32 + count as u32).to_le_bytes());
    let block = |is_last: bool, kind: u32, size: usize| {
        (u32::from(is_last) | kind << 1 | (size as u32) << 3).to_le_bytes()[..3].to_vec()
    };
    frame.extend(block(count == 0, 0, head.len()));
    frame.extend(head);
    for start in (0..count).step_by(128 << 10) {
        let size = (count - start).min(128 << 10);
        frame.extend(block(start + size == count, 1, size));
        frame.push(byte);
    }
    frame
}

/// A Parquet file of required text columns, each of whose `rows` is the one text of its dictionary.
fn repeated_text(columns: &[&str], text_bytes: usize, rows: u64) -> Vec<u8> {
    let mut file = b"PAR1".to_vec();
    let mut chunks = Vec::new();
    for column in columns {
        let start = file.len() as u64;
        let header = |kind: u64, unpacked: usize, packed: &[u8]| {
            Thrift::default().number(1, kind).number(2, unpacked as u64).number(3, packed.len() as u64)
        };
        let dictionary = zstd(&(text_bytes as u32).to_le_bytes(), b'a', text_bytes);
        let of_dictionary = Thrift::default().number(1, 1).number(2, 0);
        file.extend(header(2, text_bytes + 4, &dictionary).structure(7, of_dictionary).end());
        file.extend(&dictionary);
        let data = file.len() as u64;
        // Indices of one bit, in one run.
        let indices = [&[1][..], &Thrift::default().varint(2 * rows).bytes, &[0]].concat();
        let packed = zstd(&indices, 0, 0);
        let of_data = Thrift::default().number(1, rows).number(2, 8).number(3, 3).number(4, 3);
        file.extend(header(0, indices.len(), &packed).structure(5, of_data).end());
        file.extend(&packed);
        let size = file.len() as u64 - start;
        let mut meta = Thrift::default().number(1, 6).field(2, 9);
        meta.bytes.extend([0x25, 0, 16]);
        meta = meta.field(3, 9);
        meta.bytes.push(0x18);
        let meta = meta.raw(column).number(4, 6).number(5, rows).number(6, size).number(7, size);
        chunks.push(Thrift::default().number(2, start).structure(3, meta.number(9, data).number(11, start)));
    }
    let size = file.len() as u64;
    let mut schema = vec![Thrift::default().text(4, "rows").number(5, columns.len() as u64)];
    let leaf = |name: &&str| Thrift::default().number(1, 6).number(3, 0).text(4, name).number(6, 0);
    schema.extend(columns.iter().map(leaf));
    let group = Thrift::default().structures(1, chunks).number(2, size).number(3, rows);
    finish(
        file,
        Thrift::default().number(1, 1).structures(2, schema).number(3, rows).structures(4, vec![group]),
    )
}

fn finish(mut file: Vec<u8>, footer: Thrift) -> Vec<u8> {
    let footer = footer.end();
    file.extend(&footer);
    file.extend((footer.len() as u32).to_le_bytes());
    file.extend(b"PAR1");
    file
}

#[test]
fn a_parquet_dictionary_is_in_memory_once_however_often_rows_refer_to_it() {
    let scratch = Scratch::new();
    let columns = ["prompt", "chosen", "rejected"];
    std::fs::write(scratch.path("small.parquet"), repeated_text(&columns, 2, 3)).unwrap();
    let checked = run(&scratch, "data check small.parquet --json");
    let report: serde_json::Value = serde_json::from_str(&checked.stdout).unwrap();
    assert_eq!((&report["rows"], &report["equal_answers"]), (&3.into(), &3.into()), "{checked:#?}");
    // As texts, a batch of these rows takes 1.8 GiB, and again as JSON.
    std::fs::write(scratch.path("rows.parquet"), repeated_text(&["text"], (2 << 20) - 1, 900)).unwrap();
    let checked = run(&scratch, "data check rows.parquet --json");
    let report: serde_json::Value = serde_json::from_str(&checked.stdout).unwrap();
    assert_eq!((checked.code, &report["rows"]), (0, &900.into()), "{checked:#?}");
    // Less than a kilobyte, and 6 GiB.
    let bomb = repeated_text(&columns, (2 << 20) - 1, 1024);
    assert!(bomb.len() < 1000, "{}", bomb.len());
    std::fs::write(scratch.path("bomb.parquet"), bomb).unwrap();
    refused(&scratch, "bomb.parquet", &["the rows up to it take more than 2 GiB and 2000 times"]);
    // A page that unpacks to half a gigabyte.
    std::fs::write(scratch.path("page.parquet"), repeated_text(&["text"], 500 << 20, 1)).unwrap();
    refused(
        &scratch,
        "page.parquet",
        &["page.parquet", "a page of the column text unpacks to 500 MiB, more than 256"],
    );
}

#[test]
fn parquet_columns_without_end_are_refused() {
    let scratch = Scratch::new();
    let group = |children: u64| Thrift::default().number(3, 1).text(4, "g").number(5, children);
    let leaf = || Thrift::default().number(1, 6).number(3, 0).text(4, "text").number(6, 0);
    let root = |children: u64| Thrift::default().text(4, "rows").number(5, children);
    let deep = std::iter::once(root(1)).chain((0..200_000).map(|_| group(1))).chain([leaf()]).collect();
    let wide = std::iter::once(root(20_000)).chain((0..20_000).map(|_| leaf())).collect();
    for (name, schema, words) in [
        ("deep.parquet", deep, "its columns are more than 64 groups deep"),
        ("wide.parquet", wide, "it has more than 10000 columns"),
    ] {
        let footer =
            Thrift::default().number(1, 1).structures(2, schema).number(3, 0).structures(4, Vec::new());
        std::fs::write(scratch.path(name), finish(b"PAR1".to_vec(), footer)).unwrap();
        refused(&scratch, name, &[name, words]);
    }
}

#[test]
fn a_tokenizer_that_expands_is_refused_before_it_does() {
    let scratch = Scratch::new();
    let text = format!("{{\"text\": \"{}\"}}\n", "a".repeat(100_000));
    scratch.write("rows.jsonl", &text);
    scratch.write("words.jsonl", "{\"text\": \"some words\"}\n");
    run(&scratch, "data tokenizer words.jsonl --vocab-size 300 --out plain").succeeds();
    let plain: serde_json::Value = serde_json::from_str(&scratch.read("plain/tokenizer.json")).unwrap();
    let replace = |count: usize| serde_json::json!({"type": "Replace", "pattern": {"String": "a"}, "content": "a".repeat(count)});
    let chain =
        |list: &str, count: usize| serde_json::json!({"type": "Sequence", list: vec![replace(1000); count]});
    let template = serde_json::json!({
        "type": "TemplateProcessing", "pair": [],
        "single": vec![serde_json::json!({"Sequence": {"id": "A", "type_id": 0}}); 100_000], "special_tokens": {}});
    for (key, part, words) in [
        ("normalizer", chain("normalizers", 5), "its normalizer may make 1000000000000000 bytes of one byte"),
        ("decoder", chain("decoders", 5), "its decoder may make 1000000000000000 bytes of one byte"),
        ("post_processor", template, "its post-processor writes the text 100000 times"),
        // One thousand is not refused by itself.
        ("normalizer", replace(1000), "of a text of 100000 bytes; at most"),
    ] {
        let mut bomb = plain.clone();
        bomb[key] = part;
        scratch.write("plain/tokenizer.json", &bomb.to_string());
        let checked = run(&scratch, "data check rows.jsonl --tokenizer plain --json");
        let told = format!("{}{}", checked.stdout, checked.stderr);
        assert!(checked.code == 3 && told.contains(words), "{checked:#?}");
    }
    // The texts of a vocabulary, and a special token of it, have lengths of their own.
    let mut bomb = plain;
    bomb["model"]["unk_token"] = "u".repeat(1 << 20).into();
    scratch.write("plain/tokenizer.json", &bomb.to_string());
    run(&scratch, "data check rows.jsonl --tokenizer plain")
        .fails(3, &["the unk_token of its model has 1048576 bytes"]);
}

#[test]
fn a_training_run_refuses_bombs_before_it_starts() {
    let scratch = copied();
    let mut bomb: serde_json::Value =
        serde_json::from_str(&scratch.read("life/base/final/tokenizer.json")).unwrap();
    let config = "out = 'run'\n[model]\npath = 'life/base/final'\n[data]\ntrain = 'rows.jsonl.gz'\nmax_length = 64\n\
                  [train]\nsteps = 1\nmicro_batch_size = 1\n";
    scratch.write("sft.toml", config);
    pack(&scratch, "rows.jsonl.gz", "yes '{\"text\": \"\"}' | head -c 300000000");
    run(&scratch, "sft --config sft.toml --dry-run")
        .fails(3, &["rows.jsonl.gz: the gzip data unpacks to more than 200 times its size"]);
    let replace =
        serde_json::json!({"type": "Replace", "pattern": {"Regex": ""}, "content": "a".repeat(1 << 20)});
    bomb["normalizer"] = replace;
    scratch.write("life/base/final/tokenizer.json", &bomb.to_string());
    run(&scratch, "sft --config sft.toml --dry-run")
        .fails(3, &["tokenizer.json", "its normalizer may make 1048577 bytes"]);
    assert!(!scratch.path("run").exists());
}

#[test]
fn a_run_without_memory_ends_with_code_4() {
    let scratch = Scratch::new();
    let text = "a".repeat(200 << 20);
    scratch.write("rows.jsonl", &format!("{{\"text\": \"{text}\"}}\n"));
    let ended = run_within(&scratch, "data check rows.jsonl", 1 << 20);
    ended.fails(4, &["error: out of memory: the system has no "]);
    assert_eq!(ended.stderr.lines().count(), 1, "{ended:#?}");
}
