//! Rows that cannot be used.

use crate::harness::Scratch;

const GOOD: &str =
    r#"{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}"#;

#[test]
fn a_wrong_row_is_named_with_file_row_field_and_fix() {
    for (row, words) in [
        (r#"{"messages": []}"#, "the field messages has no turns"),
        (
            r#"{"messages": [{"role": "developer", "content": "x"}]}"#,
            "if it is the system, convert the file with --map developer=system",
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
        assert!(told.starts_with("rows.jsonl line 2: ") && told.contains(words), "{told}");
    }
}

#[test]
fn a_file_without_known_columns_names_the_layouts() {
    let scratch = Scratch::new();
    scratch.write("rows.jsonl", "{\"question\": \"x\"}\n");
    scratch
        .run("data check rows.jsonl")
        .fails(3, &["rows.jsonl: no layout", "fits the columns question", "prompt, completion"]);
    scratch.write("empty.jsonl", "");
    scratch.run("data check empty.jsonl").fails(3, &["empty.jsonl: the file has no rows"]);
    scratch.run("data check absent.jsonl").fails(3, &["absent.jsonl: cannot read"]);
}

#[test]
fn a_failed_conversion_leaves_nothing() {
    let scratch = Scratch::new();
    scratch.write("rows.jsonl", &format!("{GOOD}\n{{\"messages\": 3}}\n"));
    scratch
        .run("data convert rows.jsonl --layout messages --output out.parquet")
        .fails(3, &["rows.jsonl line 2: the field messages is the number 3"]);
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

#[test]
fn a_check_goes_on_behind_broken_lines_and_counts_them() {
    let scratch = Scratch::new();
    let mut lines = vec![GOOD.to_owned(); 30];
    for line in (3..27).step_by(2) {
        lines[line] = "{\"messages\": ".to_owned();
    }
    lines.push("{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"tools\": [1]}".to_owned());
    scratch.write("rows.jsonl", &lines.join("\n"));
    let outcome = scratch.run("data check rows.jsonl");
    outcome.fails(3, &["rows.jsonl: 13 of 31 rows cannot be used: correct or remove them"]);
    for words in [
        "rows.jsonl line 4 column 13: broken JSON: EOF while parsing a value",
        "and 3 more",
        "17 rows that are in the file more than once",
    ] {
        assert!(outcome.stdout.contains(words), "{words}: {}", outcome.stdout);
    }
    // What is dropped by name is no error.
    scratch.write("rows.jsonl", &lines[30].replace("user", "assistant"));
    scratch.run("data check rows.jsonl").fails(3, &["1 of 1 rows cannot be used"]);
    scratch.run("data check rows.jsonl --drop tools").succeeds();
}

#[test]
fn rows_of_kto_are_not_taken_for_demonstrations() {
    let scratch = Scratch::new();
    let row = r#"{"prompt": "q", "completion": "a", "label": false}"#;
    scratch.write("kto.jsonl", row);
    scratch.model();
    scratch.write("run.toml", "out = 'out'\n[model]\npath = 'made'\n[data]\ntrain = 'kto.jsonl'\n");
    let words = [
        "kto.jsonl line 1: the field label is the truth value false",
        "--drop label",
        "drop = [\"label\"] in [data]",
    ];
    scratch.run("sft --config run.toml --dry-run").fails(3, &words);
    scratch.run("sft --config run.toml --dry-run --set data.drop=[\"label\"]").succeeds();
    assert!(!scratch.names().contains(&"out".to_owned()));
}

#[test]
fn foreign_rows_train_without_a_conversion() {
    let scratch = Scratch::new();
    scratch.model();
    scratch.write("run.toml", "out = 'out'\n[model]\npath = 'made'\n[data]\nmax_length = 64\n");
    let turns = |answer: &str| {
        format!(r#"[{{"role": "user", "content": "q"}}, {{"role": "assistant", "content": "{answer}"}}]"#)
    };
    let uf = format!(r#"{{"prompt": "q", "chosen": {}, "rejected": {}}}"#, turns("a"), turns("b"));
    for (stage, row) in [
        ("sft", r#"{"instruction": "add", "input": "1 2", "output": "3"}"#),
        (
            "sft",
            r#"{"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}], "id": "x"}"#,
        ),
        ("sft", r#"{"prompt": "q", "response": "a"}"#),
        ("rm", r#"{"chosen": "\n\nHuman: q\n\nAssistant: a", "rejected": "\n\nHuman: q\n\nAssistant: b"}"#),
        ("rm", uf.as_str()),
    ] {
        scratch.write("rows.jsonl", row);
        let outcome =
            scratch.run(&format!("{stage} --config run.toml --dry-run --set data.train=rows.jsonl"));
        outcome.succeeds();
        assert!(outcome.stderr.contains("1 row"), "{row}: {}", outcome.stderr);
    }
}

#[test]
fn a_part_of_the_rows_is_held_out() {
    let scratch = Scratch::new();
    scratch.model();
    let rows: Vec<String> = (0..200).map(|number| format!("{{\"text\": \"row {number}\"}}")).collect();
    scratch.write("rows.jsonl", &rows.join("\n"));
    let file = "out = 'out'\nseed = 1\n[model]\npath = 'made'\n[data]\ntrain = 'rows.jsonl'\neval_fraction = 0.2\n[train]\nsteps = 2\n\
                micro_batch_size = 2\n[eval]\nevery = 2\n";
    scratch.write("run.toml", file);
    let told = |line: &str| {
        let outcome = scratch.run(line);
        outcome.succeeds();
        outcome.stderr.lines().find(|line| line.contains("are held out")).expect("it is told").to_owned()
    };
    let first = told("sft --config run.toml --dry-run");
    let count: usize = first.split(' ').nth(1).unwrap().parse().unwrap();
    // 40 expected, standard deviation sqrt(200 * 0.2 * 0.8) = 5.7.
    assert!((20..60).contains(&count) && first.ends_with("of 200 rows are held out"), "{first}");
    assert_eq!(told("sft --config run.toml"), first);
    assert!(scratch.read("out/metrics.jsonl").contains("eval/loss"));
    let limited = told("sft --config run.toml --dry-run --set out=other --set data.limit=100");
    assert!(limited.ends_with("of 100 rows are held out"), "{limited}");
    scratch
        .run("sft --config run.toml --dry-run --set data.eval=rows.jsonl")
        .fails(2, &["data.eval_fraction", "leave one"]);
    scratch
        .run("sft --config run.toml --dry-run --set data.eval_fraction=1.0")
        .fails(2, &["must be at least 0 and below 1"]);
    scratch.run("sft --config run.toml --dry-run --set data.limit=0").fails(2, &["must be at least 1"]);
}

#[test]
fn the_second_start_takes_the_rows_from_the_cache() {
    let scratch = Scratch::new();
    scratch.model();
    scratch.write("rows.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n");
    scratch.write(
        "run.toml",
        "out = 'out'\n[model]\npath = 'made'\n[data]\ntrain = 'rows.jsonl'\ncache = 'kept'\n",
    );
    let run = || scratch.run("sft --config run.toml --dry-run");
    assert!(!run().stderr.contains("cache"));
    assert!(run().stderr.contains("2 rows: taken from the cache kept/"));
    let kept = crate::harness::names(&scratch.path("kept"));
    std::fs::write(scratch.path("kept").join(&kept[0]), "damaged").unwrap();
    assert!(run().stderr.contains("was damaged and has been rebuilt"));
    assert!(run().stderr.contains("taken from the cache"));
}

impl Scratch {
    /// Makes a tiny model in the folder `made`, with a tokenizer.
    fn model(&self) {
        let sizes =
            "--train 50 --preferences 1 --prompts 1 --pretraining 50 --heldout 1 --heldout-preferences 1";
        self.run(&format!("data synth --out data {sizes}")).succeeds();
        self.run("data tokenizer data/text.parquet data/sft.parquet --vocab-size 300 --out model").succeeds();
        self.write(
            "model/config.json",
            r#"{"model_type": "llama", "vocab_size": 300, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
                "num_attention_heads": 1, "max_position_embeddings": 2048}"#,
        );
        self.run("model init model/config.json --tokenizer model --out made").succeeds();
    }
}
