//! The rows of public evaluation files in the columns that the tasks read: what
//! `golden/lm_eval/convert.py` made for the recordings, in the same order.
//!
//! The data lie beside the repository. A split `train` that no file has is, as in the recordings, the last
//! rows of the evaluation file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use datasets::{Row, TableReader};
use fancy_regex::Regex;
use serde::Serialize;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Writes the rows of one public data set.
pub(crate) type Conversion = fn(&Data);

/// A data folder for evaluations, made of public files.
pub(crate) struct Data {
    /// Where the public files lie.
    public: PathBuf,
    folder: TempDir,
}

impl Data {
    /// A data folder with what `conversions` write. Without the public files, a line says so.
    pub(crate) fn new(conversions: &[Conversion]) -> Option<Self> {
        let public = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data");
        if !public.join("eval").is_dir() {
            eprintln!("there is no {}/eval, so prompts are not compared with recordings", public.display());
            return None;
        }
        let data = Self { public, folder: tempfile::tempdir().unwrap() };
        for convert in conversions {
            convert(&data);
        }
        Some(data)
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The rows of a public file.
    fn rows(&self, name: &str) -> Vec<Row> {
        let path = self.public.join("eval").join(name);
        let rows = TableReader::open(&path).and_then(|reader| reader.rows(None));
        let rows = rows.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        rows.map(|row| row.unwrap().1).collect()
    }

    fn put(&self, folder: &str, split: &str, rows: &[impl Serialize]) {
        let folder = self.path().join(folder);
        std::fs::create_dir_all(&folder).unwrap();
        let lines: Vec<String> = rows.iter().map(|row| serde_json::to_string(row).unwrap()).collect();
        std::fs::write(folder.join(split).with_extension("jsonl"), lines.join("\n")).unwrap();
    }

    /// Writes a split, and the last `tail` of its rows as the split `train`.
    fn put_with_train(&self, folder: &str, split: &str, tail: usize, rows: &[Value]) {
        self.put(folder, split, rows);
        self.put(folder, "train", &rows[rows.len() - tail.min(rows.len())..]);
    }
}

const LETTERS: &str = "ABCDEFGHIJ";
/// The number of rows that stand in for a missing split.
const TAIL: usize = 100;
/// The same for each subject of the competition problems.
const TAIL_OF_SUBJECT: usize = 50;

fn text<'a>(row: &'a Row, column: &str) -> &'a str {
    row[column].as_str().unwrap()
}

fn number(row: &Row, column: &str) -> usize {
    row[column].as_u64().unwrap() as usize
}

fn choice(row: &Row, index: usize) -> &str {
    row["choices"][index].as_str().unwrap()
}

/// The letter of the right choice.
fn answer_key(row: &Row) -> &'static str {
    let gold = number(row, "gold");
    &LETTERS[gold..=gold]
}

/// The letters of the first `count` choices.
fn labels(count: usize) -> Vec<String> {
    LETTERS.chars().take(count).map(String::from).collect()
}

fn cut<'a>(text: &'a str, prefix: &str, suffix: &str) -> &'a str {
    text.strip_prefix(prefix).and_then(|text| text.strip_suffix(suffix)).unwrap()
}

fn question(row: &Row) -> &str {
    cut(text(row, "query"), "Question: ", "\nAnswer:")
}

/// The converted rows by the value of a column, in the order of the file.
fn grouped(rows: &[Row], column: &str, convert: impl Fn(&Row) -> Value) -> BTreeMap<String, Vec<Value>> {
    let mut groups: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for row in rows {
        groups.entry(text(row, column).to_owned()).or_default().push(convert(row));
    }
    groups
}

pub(crate) fn arc(data: &Data) {
    let convert = |row: &Row| {
        let count = row["choices"].as_array().unwrap().len();
        json!({
            "id": row["id"],
            "question": question(row),
            "choices": { "text": row["choices"], "label": labels(count) },
            "answerKey": answer_key(row),
        })
    };
    for name in ["arc_easy", "arc_challenge"] {
        let rows: Vec<Value> = data.rows(&format!("{name}_test.jsonl.gz")).iter().map(convert).collect();
        data.put_with_train(name, "test", TAIL, &rows);
    }
}

pub(crate) fn openbookqa(data: &Data) {
    let convert = |row: &Row| {
        json!({
            "id": row["id"],
            "question_stem": question(row),
            "choices": { "text": row["choices"], "label": labels(4) },
            "answerKey": answer_key(row),
        })
    };
    let rows: Vec<Value> = data.rows("openbookqa_test.jsonl.gz").iter().map(convert).collect();
    data.put_with_train("openbookqa", "test", TAIL, &rows);
}

pub(crate) fn commonsense_qa(data: &Data) {
    let convert = |row: &Row| {
        json!({
            "id": row["id"],
            "question": question(row),
            "choices": { "label": labels(5), "text": row["choices"] },
            "answerKey": answer_key(row),
        })
    };
    let rows: Vec<Value> = data.rows("commonsenseqa_val.jsonl.gz").iter().map(convert).collect();
    data.put_with_train("commonsense_qa", "validation", TAIL, &rows);
}

/// A raw text that the task cleans to `text`: the public file holds clean text.
fn hellaswag_raw(text: &str) -> String {
    let before = if text.starts_with(char::is_whitespace) { "[header]" } else { "" };
    let after = if text.ends_with(char::is_whitespace) { "[step]" } else { "" };
    format!("{before}{}{after}", text.replace("  ", "    "))
}

pub(crate) fn hellaswag(data: &Data) {
    let convert = |row: &Row| {
        let (label, context) = text(row, "query").split_once(": ").unwrap();
        let context = hellaswag_raw(context);
        let endings = row["choices"].as_array().unwrap().iter();
        let endings: Vec<String> = endings.map(|ending| hellaswag_raw(ending.as_str().unwrap())).collect();
        json!({
            "ind": row["id"],
            "activity_label": label,
            "ctx_a": context,
            "ctx_b": "",
            "ctx": context,
            "endings": endings,
            "label": number(row, "gold").to_string(),
        })
    };
    let rows: Vec<Value> = data.rows("hellaswag_val_1000.jsonl.gz").iter().map(convert).collect();
    data.put_with_train("hellaswag", "validation", TAIL, &rows);
}

pub(crate) fn winogrande(data: &Data) {
    let convert = |row: &Row| {
        json!({
            "sentence": row["sentence"],
            "option1": choice(row, 0),
            "option2": choice(row, 1),
            "answer": (number(row, "gold") + 1).to_string(),
        })
    };
    let rows: Vec<Value> = data.rows("winogrande_val.jsonl.gz").iter().map(convert).collect();
    data.put_with_train("winogrande", "validation", TAIL, &rows);
}

pub(crate) fn piqa(data: &Data) {
    let convert = |row: &Row| {
        json!({
            "goal": cut(text(row, "query"), "Goal: ", "\nAnswer:"),
            "sol1": choice(row, 0),
            "sol2": choice(row, 1),
            "label": row["gold"],
        })
    };
    let rows: Vec<Value> = data.rows("piqa_val.jsonl.gz").iter().map(convert).collect();
    data.put_with_train("piqa", "validation", TAIL, &rows);
}

/// Where the question begins after its context: the space at the last end of a sentence, else the first.
fn social_iqa_cut(body: &str) -> usize {
    let is_end =
        |bytes: &[u8]| b".!?'\"".contains(&bytes[0]) && bytes[1] == b' ' && bytes[2].is_ascii_uppercase();
    let end = body.as_bytes().windows(3).rposition(is_end);
    end.map_or_else(|| body.find(' ').unwrap(), |at| at + 1)
}

pub(crate) fn social_iqa(data: &Data) {
    let convert = |row: &Row| {
        let body = question(row);
        let at = social_iqa_cut(body);
        json!({
            "context": body[..at],
            "question": body[at + 1..],
            "answerA": choice(row, 0),
            "answerB": choice(row, 1),
            "answerC": choice(row, 2),
            "label": (number(row, "gold") + 1).to_string(),
        })
    };
    let rows: Vec<Value> = data.rows("socialiqa_val.jsonl.gz").iter().map(convert).collect();
    data.put_with_train("social_iqa", "validation", TAIL, &rows);
}

pub(crate) fn boolq(data: &Data) {
    let convert = |(index, row): (usize, &Row)| {
        let body = cut(text(row, "query"), "", "?\nAnswer:");
        let (passage, question) = body.rsplit_once("\nQuestion: ").unwrap();
        let right = choice(row, number(row, "gold"));
        json!({
            "question": question,
            "passage": passage,
            "idx": index,
            "label": u8::from(right == "yes"),
        })
    };
    let rows: Vec<Value> = data.rows("boolq_val.jsonl.gz").iter().enumerate().map(convert).collect();
    data.put_with_train("boolq", "validation", TAIL, &rows);
}

pub(crate) fn truthfulqa(data: &Data) {
    let convert = |row: &Row| {
        let targets = |column: &str| {
            let targets = row[column].as_object().unwrap();
            let choices: Vec<&String> = targets.keys().collect();
            let labels: Vec<&Value> = targets.values().collect();
            json!({ "choices": choices, "labels": labels })
        };
        json!({
            "question": row["question"],
            "mc1_targets": targets("mc1_targets"),
            "mc2_targets": targets("mc2_targets"),
        })
    };
    let rows: Vec<Value> = data.rows("truthfulqa_mc_task.json.gz").iter().map(convert).collect();
    data.put("truthfulqa", "validation", &rows);
}

pub(crate) fn lambada(data: &Data) {
    data.put("lambada_openai", "test", &data.rows("lambada_test.jsonl.gz"));
}

pub(crate) fn blimp(data: &Data) {
    let convert =
        |row: &Row| json!({ "sentence_good": row["good"], "sentence_bad": row["bad"], "UID": row["uid"] });
    for (subset, rows) in grouped(&data.rows("blimp.jsonl.gz"), "uid", convert) {
        data.put(&format!("blimp/{subset}"), "train", &rows);
    }
}

pub(crate) fn mmlu(data: &Data) {
    let convert = |row: &Row| {
        json!({
            "question": row["question"],
            "subject": row["subject"],
            "choices": row["choices"],
            "answer": row["gold"],
        })
    };
    for split in ["dev", "test"] {
        let rows = data.rows(&format!("mmlu_{split}.jsonl.gz"));
        for (subject, rows) in grouped(&rows, "subject", convert) {
            data.put(&format!("mmlu/{subject}"), split, &rows);
        }
    }
}

pub(crate) fn gsm8k(data: &Data) {
    for split in ["train", "test"] {
        data.put("gsm8k", split, &data.rows(&format!("gsm8k_{split}.jsonl.gz")));
    }
}

pub(crate) fn math(data: &Data) {
    let convert = |row: &Row| {
        json!({
            "problem": row["problem"],
            "level": row["level"],
            "type": row["type"],
            "solution": row["solution"],
        })
    };
    for (subject, rows) in grouped(&data.rows("math_test.jsonl.gz"), "type", convert) {
        let name = subject.to_lowercase().replace(" & ", "_and_").replace(' ', "_");
        data.put_with_train(&format!("math/{name}"), "test", TAIL_OF_SUBJECT, &rows);
    }
    data.put("math500", "test", &data.rows("math500_test.json.gz"));
}

pub(crate) fn bbh(data: &Data) {
    let convert = |row: &Row| json!({ "input": row["input"], "target": row["target"] });
    for (subset, rows) in grouped(&data.rows("bbh.jsonl.gz"), "task", convert) {
        data.put(&format!("bbh/{subset}"), "test", &rows);
    }
}

pub(crate) fn ifeval(data: &Data) {
    data.put("ifeval", "train", &data.rows("ifeval_input_data.jsonl.gz"));
}

pub(crate) fn humaneval(data: &Data) {
    data.put("humaneval", "test", &data.rows("HumanEval.jsonl.gz"));
}

/// The rows of the split `test` of the configuration `full`.
pub(crate) fn mbpp(data: &Data) {
    let mut rows = data.rows("mbpp.jsonl.gz");
    rows.retain(|row| (11..=510).contains(&number(row, "task_id")));
    data.put("mbpp", "test", &rows);
}

pub(crate) fn aime(data: &Data) {
    let convert = |row: &Row| {
        let answer: u64 = text(row, "answer").parse().unwrap();
        json!({
            "ID": row["id"],
            "Problem": row["problem"],
            "Solution": row["solution"],
            "Answer": answer,
        })
    };
    let rows: Vec<Value> = data.rows("aime24.jsonl.gz").iter().map(convert).collect();
    data.put("aime24", "train", &rows);
}

const ENGLISH_CHOICE: [&str; 9] = [
    "lsat-ar",
    "lsat-lr",
    "lsat-rc",
    "logiqa-en",
    "sat-math",
    "sat-en",
    "aqua-rat",
    "sat-en-without-passage",
    "gaokao-english",
];

/// A row with the `query` that the benchmark's own zero-shot conversion makes.
fn agieval_row(row: &Row) -> Value {
    let (task, asked) = (text(row, "task"), text(row, "question"));
    let passage = row["passage"].as_str().unwrap_or_default();
    if task == "math" {
        let query = format!("{passage}Q: {asked}\nA: The answer is");
        return json!({ "query": query, "answer": row["answer"] });
    }
    if task == "gaokao-mathcloze" {
        return json!({ "query": format!("{passage}问题：{asked}\n答案："), "answer": row["answer"] });
    }

    let texts = |value: &Value| -> Vec<String> {
        value.as_array().unwrap().iter().map(|item| item.as_str().unwrap().to_owned()).collect()
    };
    let options = texts(&row["options"]);
    let (last, joined) = (&LETTERS[options.len() - 1..options.len()], options.join(" "));
    let query = if ENGLISH_CHOICE.contains(&task) {
        format!("{passage}Q: {asked} Answer Choices: {joined}\nA: Among A through {last}, the answer is")
    } else {
        format!("{passage}问题：{asked} 选项：{joined}\n答案：从A到{last}, 我们应选择")
    };
    let label = row["label"].as_str().map_or_else(|| texts(&row["label"]).concat(), str::to_owned);
    let gold: Vec<usize> = label.chars().filter_map(|letter| LETTERS.find(letter)).collect();
    json!({ "query": query, "choices": options, "gold": gold })
}

pub(crate) fn agieval(data: &Data) {
    for (subset, rows) in grouped(&data.rows("agieval_permissive.jsonl.gz"), "task", agieval_row) {
        data.put(&format!("agieval/{subset}"), "test", &rows);
    }
}

pub(crate) fn bbq(data: &Data) {
    let convert = |(index, row): (usize, &Row)| {
        json!({
            "example_id": index,
            "question_polarity": row["polarity"],
            "context_condition": row["condition"],
            "category": row["category"],
            "answer_info": row["answer_info"],
            "additional_metadata": { "stereotyped_groups": row["groups"] },
            "context": row["context"],
            "question": row["question"],
            "ans0": choice(row, 0),
            "ans1": choice(row, 1),
            "ans2": choice(row, 2),
            "label": row["gold"],
        })
    };
    let rows: Vec<Value> = data.rows("bbq.jsonl.gz").iter().enumerate().map(convert).collect();
    data.put("bbq", "test", &rows);
}

pub(crate) fn crows_pairs(data: &Data) {
    let convert = |row: &Row| {
        // The first column has no name.
        let id: u64 = text(row, "").parse().unwrap();
        json!({
            "id": id,
            "sent_more": row["sent_more"],
            "sent_less": row["sent_less"],
            "stereo_antistereo": row["stereo_antistereo"],
            "bias_type": row["bias_type"],
        })
    };
    let rows: Vec<Value> = data.rows("crows_pairs.csv.gz").iter().map(convert).collect();
    data.put("crows_pairs", "test", &rows);
}

/// A paragraph with the spaces of the word-level form, so that the detokenizer has work.
fn in_wikitext_spacing(paragraph: &str) -> String {
    let replaced = |text: &str, pattern: &str, with: &str| {
        Regex::new(pattern).unwrap().replace_all(text, with).into_owned()
    };
    let paragraph = replaced(paragraph, r"\s+", " ");
    let paragraph = replaced(paragraph.trim(), r"([,;:!?.])(?=\s|$)", " ${1}");
    let paragraph = replaced(&paragraph, r"(\w)-(\w)", "${1} @-@ ${2}");
    format!(" {} \n ", paragraph.replace('(', "( ").replace(')', " )"))
}

/// Five pages in the form of the data set: three cut from a book, two made up.
pub(crate) fn wikitext(data: &Data) {
    const CUTS: [(usize, usize); 3] = [(0, 700), (3000, 6500), (9000, 10_200)];
    let path = data.public.join("text/alice_11.txt.gz");
    // No reader of rows reads plain text.
    let unpacked = Command::new("gzip").arg("-dc").arg(&path).output().expect("gzip can be run");
    assert!(unpacked.status.success(), "gzip cannot unpack {}", path.display());
    let book = String::from_utf8(unpacked.stdout).unwrap().replace("\r\n", "\n");
    assert!(book.is_ascii(), "the cuts count characters");

    let start = book.find("CHAPTER I.").unwrap();
    let page = |(from, to): (usize, usize)| {
        let paragraphs = book[start + from..start + to].split("\n\n");
        let paragraphs = paragraphs.filter(|paragraph| !paragraph.trim().is_empty());
        let body = paragraphs.map(in_wikitext_spacing).collect::<Vec<_>>().join("\n");
        json!({ "page": format!(" = Down the Rabbit @-@ Hole = \n \n{body}") })
    };
    let mut pages: Vec<Value> = CUTS.into_iter().map(page).collect();
    let numbers = " = = Numbers = = \n \n In 1865 about 2 @,@ 000 copies , at 7 @.@ 5 shillings each , were \
                   printed ; the title reads \" Alice 's Adventures \" . It was 20 ° that day . \n";
    pages.extend([json!({ "page": numbers }), json!({ "page": "Short page ." })]);
    data.put("wikitext", "test", &pages);
}
