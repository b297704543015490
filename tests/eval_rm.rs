//! The report of a reward model through the binary: every kind of rows, equal results, wrong input.

use std::fs;

use serde_json::{Value, json};

use crate::harness::Scratch;
use crate::inference::world;

fn judge() -> String {
    world().path("judge").display().to_string()
}

fn lines(rows: &[Value]) -> String {
    rows.iter().map(|row| row.to_string() + "\n").collect()
}

fn pairs() -> Vec<Value> {
    let pair = |n: usize| {
        let (chosen, rejected, source) = (format!("it is {n}"), "不知道 <b>x</b>", ["web", "book"][n % 2]);
        json!({"prompt": format!("what is {n}?"), "chosen": chosen, "rejected": rejected, "source": source})
    };
    let mut rows: Vec<Value> = (0..7).map(pair).collect();
    rows.push(json!({"prompt": "same", "chosen": "yes", "rejected": "yes", "source": "web"}));
    rows
}

/// A folder with a file of each kind.
fn bench() -> Scratch {
    let scratch = Scratch::new();
    scratch.write("pairs.jsonl", &lines(&pairs()));
    let bench =
        |subset: &str| json!({"prompt": "q", "chosen": "a", "rejected": "", "subset": subset, "id": 1});
    scratch.write("v1.jsonl", &lines(&["hep-go", "math-prm", "donotanswer"].map(bench)));
    let row = |id: &str, subset: &str, chosen: &[&str], rejected: &[&str]| {
        json!({"id": id, "prompt": "q", "chosen": chosen, "rejected": rejected, "num_correct": chosen.len(),
            "total_completions": chosen.len() + rejected.len(), "subset": subset})
    };
    let rows = [
        row("1", "Math", &["one"], &["two", "three", "four"]),
        row("ref:1", "Ties", &["red"], &["dog", "cat"]),
        row("tied:1", "Ties", &["red", "blue"], &["dog"]),
    ];
    scratch.write("v2.jsonl", &lines(&rows));
    let asked = |reply: &str| {
        format!(
            "x\n\n###The instruction to evaluate:\nq?\n\n###Response to evaluate:\n{reply}\n\n###Score Rubrics:\ny"
        )
    };
    let hhh =
        json!([{"source": "honest", "chosen_instruction": asked("a"), "rejected_instruction": asked("b")}]);
    scratch.write("hhh.json", &hhh.to_string());
    let replies = |gold: [f64; 4]| json!({"prompt": "q", "responses": ["a", "b", "c", "d"], "gold": gold});
    scratch.write("replies.jsonl", &lines(&[replies([0.0, 1.0, 0.5, 0.0]), replies([1.0, 0.0, 0.0, 0.0])]));
    fs::create_dir(scratch.path("run")).unwrap();
    let row = |step: usize| json!({"step": step, "objective/kl": 0.5 * step as f64, "objective/scores": step, "loss": 0.1});
    scratch.write("run/metrics.jsonl", &lines(&[row(1), row(2), row(3)]));
    scratch.write("run/run.toml", "");
    scratch.write("gold.jsonl", "{\"checkpoint\": 1, \"gold\": 2.0}\n{\"step\": 3, \"gold\": 1.0}\n");
    scratch
}

#[test]
fn every_kind_of_rows_is_scored_and_reported_twice_alike() {
    let scratch = bench();
    let line = format!(
        "eval rm --model {} --data pairs.jsonl,v1.jsonl,v2.jsonl,hhh.json,replies.jsonl --run run --gold gold.jsonl",
        judge()
    );
    let outcome = scratch.run(&format!("{line} --output one"));
    for words in [
        "pairs.jsonl by source",
        "v1.jsonl: RewardBench",
        "v2.jsonl: RewardBench 2",
        "best of n",
        "run: over-optimization",
    ] {
        assert!(outcome.succeeds().contains(words), "{words}: {outcome:#?}");
    }
    let report: Value = serde_json::from_str(&scratch.read("one/rm.json")).unwrap();
    let kinds: Vec<&str> =
        report["files"].as_array().unwrap().iter().map(|file| file["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["preference", "reward_bench", "reward_bench_2", "hhh_alignment", "best_of_n"]);
    assert_eq!(report["all_pairs"]["accuracy"]["n"], 12);
    assert_eq!(report["over_optimization"]["peak"]["gold_change"], -1.0);

    // The scores are those of `reward`; equal replies have equal scores.
    let samples: Vec<Value> =
        scratch.read("one/samples.jsonl").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(samples.len(), 8 + 3 + 3 + 1 + 2);
    let rows = scratch.run(&format!("reward --model {} --input pairs.jsonl", judge())).rows();
    let mut right = 0;
    for (sample, row) in samples.iter().zip(&rows) {
        for name in ["chosen_score", "rejected_score"] {
            assert!(
                (sample[name].as_f64().unwrap() - row[name].as_f64().unwrap()).abs() < 1e-4,
                "{sample} {row}"
            );
        }
        right += u64::from(sample["margin"].as_f64().unwrap() > 0.0);
    }
    let pairs = &report["files"][0]["pairs"];
    assert_eq!((pairs["ties"].as_u64(), samples[7]["margin"].as_f64()), (Some(1), Some(0.0)));
    assert_eq!(pairs["accuracy"]["mean"].as_f64(), Some(right as f64 / 8.0));

    let page = scratch.read("one/report.html");
    assert!(page.contains("&lt;b&gt;x&lt;/b&gt;") && !page.contains("<b>x</b>") && !page.contains("<script"));
    assert!(scratch.read("one/summary.md").contains("# Reward model judge"));

    // The same command again, in the same folder or another, gives the same report.
    scratch.run(&format!("{line} --output one")).succeeds();
    assert_eq!(serde_json::from_str::<Value>(&scratch.read("one/rm.json")).unwrap(), report);
    let json = scratch.run(&format!("{line} --output two --json")).json();
    assert_eq!(json, report);
}

#[test]
fn rows_too_long_for_the_model_are_cut_and_counted() {
    let scratch = Scratch::new();
    let long = "what is the sum of all numbers ".repeat(30);
    scratch.write("long.jsonl", &lines(&[json!({"prompt": long, "chosen": "a", "rejected": "b"})]));
    let line = format!("eval rm --model {} --data long.jsonl --output out --json", judge());
    let outcome = scratch.run(&line);
    assert_eq!(outcome.json()["files"][0]["cut"], 2);
    assert!(outcome.stderr.contains("2 conversations have more than 96 tokens"), "{outcome:#?}");
}

#[test]
fn scores_are_kept_and_scoring_that_was_broken_off_goes_on_to_the_same_report() {
    let scratch = bench();
    let line = format!("eval rm --model {} --data pairs.jsonl --output out --batch-size 2", judge());
    scratch.run(&line).succeeds();
    let (report, samples) = (scratch.read("out/rm.json"), scratch.read("out/samples.jsonl"));
    let kept = scratch.read("out/score_responses.jsonl");
    let count = kept.lines().count();
    assert!(count > 4);

    // Broken off within the third line.
    let whole: usize = kept.lines().take(2).map(|line| line.len() + 1).sum();
    scratch.write("out/score_responses.jsonl", &kept[..whole + 20]);
    std::fs::remove_file(scratch.path("out/rm.json")).unwrap();
    scratch.run(&line).succeeds();
    assert_eq!((scratch.read("out/rm.json"), scratch.read("out/samples.jsonl")), (report, samples));
    // What was kept is scored no second time: one line more is the one that was cut off.
    let lines = scratch.read("out/score_responses.jsonl");
    assert_eq!(lines.lines().count(), count + 1);
    scratch.run(&line).succeeds();
    assert_eq!(scratch.read("out/score_responses.jsonl"), lines);
}

#[test]
fn wrong_input_is_named_before_a_model_is_loaded() {
    let scratch = bench();
    scratch.write(
        "bad.jsonl",
        &lines(&[pairs()[0].clone(), json!({"prompt": "q", "chosen": 7, "rejected": "b", "source": "web"})]),
    );
    scratch.write("sft.jsonl", "{\"tasks\": []}\n");
    scratch.write("late.jsonl", "{\"checkpoint\": 9, \"gold\": 2.0}\n");
    scratch.write("one.jsonl", "{\"prompt\": \"q\", \"responses\": [\"a\"], \"gold\": [1]}\n");
    let eval = format!("eval rm --model {}", judge());
    for (rest, code, words) in [
        ("--data nowhere.jsonl", 3, &["nowhere.jsonl"][..]),
        ("--data bad.jsonl", 3, &["bad.jsonl line 2", "field chosen"]),
        ("--data sft.jsonl", 3, &["sft.jsonl", "prompt, chosen, rejected"]),
        ("--data pairs.jsonl,pairs.jsonl", 2, &["named twice"]),
        ("--data replies.jsonl --split-by topic", 2, &["--split-by topic", "leave the flag out"]),
        ("--data pairs.jsonl --split-by topic", 3, &["pairs.jsonl line 1", "field topic is missing"]),
        ("--data pairs.jsonl --run nowhere", 2, &["nowhere: there is no such folder"]),
        ("--data pairs.jsonl --run run --gold late.jsonl", 3, &["late.jsonl line 1", "iteration 10"]),
        ("--data pairs.jsonl --gold gold.jsonl", 2, &["--run"]),
        ("--data pairs.jsonl --output pairs.jsonl", 2, &["not a folder"]),
        ("--data pairs.jsonl --output run", 2, &["something else than an evaluation"]),
    ] {
        scratch.run(&format!("{eval} {rest}")).fails(code, words);
    }
    scratch.run("eval rm --model nowhere/final --data pairs.jsonl").fails(2, &["nowhere"]);
    let model = world().path("model").display().to_string();
    let outcome = scratch.run(&format!("eval rm --model {model} --data pairs.jsonl --output none"));
    outcome.fails(3, &["score.weight"]);
    assert!(!scratch.path("none/rm.json").exists());
    scratch
        .run(&format!("{eval} --data one.jsonl --output few"))
        .fails(3, &["a best-of-n curve needs at least 2"]);

    scratch.run(&format!("{eval} --data pairs.jsonl --limit 3 --output mine")).succeeds();
    scratch.run(&format!("{eval} --data pairs.jsonl --output mine")).fails(2, &["other limit", "--force"]);
    scratch.run(&format!("{eval} --data pairs.jsonl --output mine --force")).succeeds();
}
