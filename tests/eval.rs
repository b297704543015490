//! Evaluations through the binary: results, an evaluation that is killed, bounds, comparisons, wrong input.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use crate::harness::{Scratch, signal};
use crate::inference::world;

const TASKS: &str = r#"
task = "{{ subset }}"
version = 1
output_type = "multiple_choice"
doc_to_text = "Q: {{ question }}\nA:"
doc_to_choice = "{{ choices }}"
doc_to_target = "{{ answer }}"
metric_list = [{ metric = "acc" }, { metric = "acc_norm" }]

[dataset]
folder = "sums"
split = "test"

[[subset]]
name = "choose"

[[subset]]
name = "write"
output_type = "generate_until"
doc_to_target = "{{ choices[answer] }}"
metric_list = [{ metric = "exact_match" }]
generation_kwargs = { until = ["\n"], max_gen_toks = 6 }

[[subset]]
name = "text"
output_type = "loglikelihood_rolling"
doc_to_target = "{{ question }}"
metric_list = [{ metric = "byte_perplexity" }]

[[group]]
group = "sums"
tasks = ["choose"]
metrics = ["acc"]
"#;

/// A folder with tasks and rows.
fn bench() -> Scratch {
    let scratch = Scratch::new();
    scratch.write("tasks.toml", TASKS);
    fs::create_dir_all(scratch.path("eval-data/sums")).unwrap();
    let row = |n: usize| {
        let (left, right) = (n % 7, n / 7);
        format!(
            "{{\"question\": \"what is {left} + {right}? 多少\", \"choices\": [\"{}\", \"{}\", \"不知道\"], \"answer\": {}}}\n",
            left + right,
            left + right + 1,
            n % 2
        )
    };
    scratch.write("eval-data/sums/test.jsonl", &(0..60).map(row).collect::<String>());
    scratch
}

fn model() -> String {
    world().path("model").display().to_string()
}

#[test]
fn results_are_written_and_a_killed_evaluation_continues_to_the_same() {
    let scratch = bench();
    let words = |output: &str| {
        format!("eval --model {} --tasks sums,write,text --include-path tasks.toml --output {output}", model())
    };
    let outcome = scratch.run(&words("whole"));
    let tables = outcome.succeeds();
    for name in ["choose", "write", "text", "acc_norm", "byte_perplexity", "exact_match"] {
        assert!(tables.contains(name), "{tables}");
    }
    let whole = scratch.read("whole/results.json");
    let results: serde_json::Value = serde_json::from_str(&whole).unwrap();
    assert_eq!(results["tasks"][0]["effective"], 60);
    let harness: serde_json::Value = serde_json::from_str(&scratch.read("whole/lm_eval/model.json")).unwrap();
    assert_eq!(harness["results"]["choose"]["acc,none"], results["models"][0]["scores"][0]["value"]);
    assert_eq!(harness["n-samples"]["choose"]["original"], 60);
    assert_eq!(scratch.read("whole/samples/model/choose.jsonl").lines().count(), 60);
    assert!(scratch.read("whole/summary.csv").starts_with("model,task"));

    // The same command again asks nothing and changes nothing.
    let responses = scratch.read("whole/responses.jsonl");
    scratch.run(&words("whole")).succeeds();
    assert_eq!(scratch.read("whole/responses.jsonl"), responses);
    assert_eq!(scratch.read("whole/results.json"), whole);

    for milliseconds in [100, 200, 300, 450] {
        let output = format!("killed-{milliseconds}");
        let line = words(&output);
        let words: Vec<&str> = line.split(' ').collect();
        let mut child =
            scratch.command(&words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary starts");
        std::thread::sleep(Duration::from_millis(milliseconds));
        signal("KILL", child.id());
        child.wait().unwrap();
        scratch.run(&line).succeeds();
        assert_eq!(scratch.read(&format!("{output}/results.json")), whole, "{output}");
        let samples = |folder: &str| scratch.read(&format!("{folder}/samples/model/write.jsonl"));
        assert_eq!(samples(&output), samples("whole"));
    }
}

#[test]
fn models_are_compared_and_bounds_decide_the_code() {
    let scratch = bench();
    let other = scratch.path("other").display().to_string();
    let line = format!("model init {} --tokenizer {} --seed 9 --out {other}", world().path("config.json").display(), world().path("tokenizer").display());
    scratch.run(&line).succeeds();
    let eval = format!("eval --tasks choose,text --include-path tasks.toml --limit 20 --model {}", model());

    let both = scratch.run(&format!("{eval},{other} --output both"));
    assert!(both.succeeds().contains("differences, paired by document"), "{both:#?}");
    let results: serde_json::Value = serde_json::from_str(&scratch.read("both/results.json")).unwrap();
    assert_eq!(results["models"][1]["name"], "other");
    let comparison = &results["comparisons"][0];
    let count = |name: &str| comparison[name].as_u64().unwrap();
    assert_eq!(count("more") + count("equal") + count("less"), 20);

    scratch.run(&format!("{eval} --output one")).succeeds();
    let line = format!("eval --tasks choose,text --include-path tasks.toml --limit 20 --model {other} --output two");
    scratch.run(&line).succeeds();
    let diff = scratch.run("eval diff one two --json").json();
    assert_eq!(diff[0]["difference"], comparison["difference"]);

    scratch.run(&format!("{eval} --output one --require choose>=0.0 --require text<=1e9")).succeeds();
    scratch.run(&format!("{eval} --output one --require choose>=1.1")).fails(1, &["choose>=1.1: model has"]);
    scratch.run(&format!("{eval} --output one --require choice>=0")).fails(1, &["no such score"]);
    scratch.run(&format!("{eval} --output one --require choose")).fails(2, &["TASK>=NUMBER"]);

    // Another number of examples is another question.
    scratch.run(&format!("{eval} --output shots --num-fewshot 1")).succeeds();
    scratch.run("eval diff one shots").fails(2, &["was asked otherwise", "--force"]);
    scratch.run("eval diff one shots --force").succeeds();
}

#[test]
fn wrong_input_is_named_before_a_model_is_loaded() {
    let scratch = bench();
    let eval = format!("eval --model {} --include-path tasks.toml", model());
    for (rest, code, words) in [
        ("--tasks chose", 2, &["no task \"chose\"", "choose"][..]),
        ("--tasks choose --data nowhere", 3, &["no rows of the split \"test\"", "nowhere/sums"]),
        ("--tasks arc_easy", 3, &["eval-data/arc_easy", "huggingface.co/datasets/allenai/ai2_arc"]),
        ("--tasks choose --num-fewshot 100", 2, &["fewer few-shot examples"]),
        ("--tasks choose --output tasks.toml", 2, &["not a folder"]),
        ("--tasks choose --output eval-data", 2, &["something else than an evaluation"]),
        ("--tasks choose --include-path none.toml", 2, &["none.toml"]),
    ] {
        scratch.run(&format!("{eval} {rest}")).fails(code, words);
    }
    scratch.run("eval --model nowhere/final --tasks choose --include-path tasks.toml").fails(2, &["nowhere"]);
    scratch.run("eval --tasks choose").fails(2, &["--model"]);

    scratch.run(&format!("{eval} --tasks choose --limit 3 --output mine")).succeeds();
    scratch.run(&format!("{eval} --tasks choose --limit 4 --output mine")).fails(2, &["other limit", "--force"]);
    scratch.run(&format!("{eval} --tasks choose --limit 4 --output mine --force")).succeeds();

    // A reply that does not fit beside any prompt is a failure of each document, and nothing else stops.
    scratch.write("tasks.toml", &TASKS.replace("max_gen_toks = 6", "max_gen_toks = 5000"));
    let outcome = scratch.run(&format!("{eval} --tasks write,choose --limit 3 --output long"));
    outcome.fails(1, &["3 documents without an answer", "max_gen_toks"]);
    assert!(outcome.stdout.contains("choose"));
}

#[test]
fn tasks_are_listed_and_prompts_shown() {
    let scratch = bench();
    let list = scratch.run("eval list --include-path tasks.toml");
    for name in ["choose", "mmlu_anatomy", "gsm8k", "sums"] {
        assert!(list.succeeds().contains(name), "{name}");
    }
    let all = scratch.run("eval list mmlu* --json").json();
    assert!(all.as_array().unwrap().len() >= 58);
    let shown = scratch.run("eval show choose --include-path tasks.toml --num-fewshot 1 --rows 2");
    assert!(shown.succeeds().contains("Q: what is 1 + 0? 多少\nA:"), "{shown:#?}");
    assert!(shown.stdout.contains("3) \" 不知道\"") && shown.stdout.contains("target: 1"), "{shown:#?}");
}
