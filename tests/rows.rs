//! Rows that cannot be used.

use crate::harness::Scratch;

const GOOD: &str =
    r#"{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}"#;

#[test]
fn a_wrong_row_is_named_with_file_row_field_and_fix() {
    for (row, words) in [
        (r#"{"messages": []}"#, "field messages has no messages"),
        (
            r#"{"messages": [{"role": "gpt", "content": "x"}]}"#,
            "field messages[0].role is \"gpt\"; wanted system, user",
        ),
        (r#"{"messages": 7}"#, "field messages is the number 7"),
        (r#"{"messages": [{"role": "user"}]}"#, "field messages[0].content is missing or null"),
    ] {
        let scratch = Scratch::new();
        scratch.write("rows.jsonl", &format!("{GOOD}\n{row}\n{GOOD}\n"));
        let outcome = scratch.run("data check rows.jsonl --json");
        outcome.fails(3, &["rows.jsonl: 1 of 3 rows cannot be used"]);
        let report: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
        let told = report["errors"][0].as_str().unwrap();
        assert!(told.starts_with("rows.jsonl row 1 ") && told.contains(words), "{told}");
    }
}

#[test]
fn a_file_without_known_columns_names_the_layouts() {
    let scratch = Scratch::new();
    scratch.write("rows.jsonl", "{\"question\": \"x\"}\n");
    scratch
        .run("data check rows.jsonl")
        .fails(3, &["rows.jsonl: has the columns question", "prompt, completion"]);
    scratch.write("empty.jsonl", "");
    scratch.run("data check empty.jsonl").fails(3, &["empty.jsonl: has no rows"]);
    scratch.run("data check absent.jsonl").fails(3, &["absent.jsonl: cannot read"]);
}

#[test]
fn a_failed_conversion_leaves_nothing() {
    let scratch = Scratch::new();
    scratch.write("rows.jsonl", &format!("{GOOD}\n{{\"messages\": 3}}\n"));
    scratch.run("data convert rows.jsonl --layout messages --output out.parquet").fails(3, &["row 1"]);
    assert_eq!(scratch.names(), ["rows.jsonl"]);
}

#[test]
fn a_conversion_reads_back() {
    let scratch = Scratch::new();
    scratch.write("rows.jsonl", &format!("{}\n", GOOD.replace("messages", "dialogue")));
    scratch.run("data convert rows.jsonl --output out.parquet --map messages=dialogue").succeeds();
    let outcome = scratch.run("data check out.parquet --json");
    let report: serde_json::Value = serde_json::from_str(outcome.succeeds()).unwrap();
    assert_eq!((&report["rows"], &report["layout"]), (&1.into(), &"messages".into()));
}

#[test]
fn what_is_odd_is_counted_but_no_error() {
    let scratch = Scratch::new();
    let pair = r#"{"prompt": "q", "chosen": "a", "rejected": "a"}"#;
    scratch.write("pairs.jsonl", &format!("{pair}\n{pair}\n"));
    let outcome = scratch.run("data check pairs.jsonl --json");
    let report: serde_json::Value = serde_json::from_str(outcome.succeeds()).unwrap();
    assert_eq!(report["layout"], "preference");
    assert_eq!((&report["duplicates"], &report["equal_answers"]), (&1.into(), &2.into()));
}

#[test]
fn a_full_disk_is_a_failed_run_with_a_fix() {
    if !std::path::Path::new("/dev/full").exists() {
        eprintln!("skipped: this system has no /dev/full");
        return;
    }
    let scratch = Scratch::new();
    scratch.write("rows.jsonl", "{\"text\": \"a\"}\n");
    let sizes = "--train 1 --preferences 1 --prompts 1 --pretraining 50 --heldout 1 --heldout-preferences 1";
    scratch.run(&format!("data synth --out data {sizes}")).succeeds();
    scratch.run("data tokenizer data/text.parquet --vocab-size 300 --out model").succeeds();
    scratch.write(
        "model/config.json",
        r#"{"model_type": "llama", "vocab_size": 300, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
            "num_attention_heads": 1}"#,
    );
    scratch.run("model init model/config.json --tokenizer model --out made").succeeds();
    scratch
        .run("logprobs --model made --input rows.jsonl --output /dev/full")
        .fails(1, &["/dev/full", "free some space"]);
}
