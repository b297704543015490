//! Several replies to a prompt: samples, the best of them, and rows of the good ones.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::harness::{Scratch, names};
use crate::inference::world;
use crate::training::{copy, json};

/// The command that replies to two prompts of ids.
const GENERATE: &str = "generate --model model --input ids.jsonl --max-new-tokens 6 --ignore-eos --seed 4";

/// A run file for `reject`, on prompts of which one has a reply in it.
const RUN: &str = "
out = 'best'
seed = 7

[model]
path = 'model'

[data]
train = 'prompts.jsonl'
max_length = 64

[ppo]
reward_model = 'judge'
samples_per_prompt = 4
rollout_batch_size = 2
max_new_tokens = 6

[reject]
keep_truncated = true
";

/// A folder with a language model, a reward model, prompts and a run file.
fn scratch() -> Scratch {
    let scratch = Scratch::new();
    for model in ["model", "judge"] {
        copy(&world().path(model), &scratch.path(model));
    }
    scratch.write("ids.jsonl", "{\"ids\": [7, 8, 9]}\n{\"ids\": [30, 31]}\n");
    let turn = |role: &str, text: &str| format!("{{\"role\": \"{role}\", \"content\": \"{text}\"}}");
    let talk = [turn("user", "2?"), turn("assistant", "2"), turn("user", "3?")].join(", ");
    let talk = format!("[{talk}]");
    let prompts = ["\"a\"", "\"b\"", talk.as_str(), "\"d\"", "\"e\""];
    scratch.write("prompts.jsonl", &prompts.map(|prompt| format!("{{\"prompt\": {prompt}}}\n")).concat());
    scratch.write("run.toml", RUN);
    scratch
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

#[test]
fn samples_are_a_list_in_the_row_of_their_prompt() {
    let scratch = scratch();
    let plain = scratch.run(GENERATE).rows();
    assert!(plain.iter().all(|row| row.get("samples").is_none()), "{plain:?}");
    let three = scratch.run(&format!("{GENERATE} --n 3"));
    let rows = three.rows();
    assert_eq!(rows.len(), 2);
    for row in &rows {
        let samples = row["samples"].as_array().unwrap();
        let different: BTreeSet<String> = samples.iter().map(|sample| sample["ids"].to_string()).collect();
        assert_eq!((samples.len(), different.len()), (3, 3), "{row}");
        assert!(
            samples.iter().all(|sample| sample["finish_reason"] == "length" && sample["text"].is_string())
        );
    }
    // The first draws are those of a single reply.
    assert_eq!(rows[0]["samples"][0], plain[0]);
    let one = scratch.run(&format!("{GENERATE} --n 1")).rows();
    assert_eq!([&one[0]["samples"][0], &one[1]["samples"][0]], [&plain[0], &plain[1]]);
    assert_eq!(scratch.run(&format!("{GENERATE} --n 3 --batch-size 1")).stdout, three.stdout);
}

#[test]
fn the_best_sample_has_the_highest_score() {
    let scratch = scratch();
    let samples = scratch.run(&format!("{GENERATE} --n 4")).rows();
    let outcome = scratch.run(&format!("{GENERATE} --best-of 4 --reward-model judge"));
    let rows = outcome.rows();
    // ln 4 - 3/4.
    assert!(outcome.stderr.contains("best of 4: ") && outcome.stderr.contains(" at most 0.6363 nats"));

    let mut asked = Vec::new();
    for (prompt, row) in ["7, 8, 9", "30, 31"].iter().zip(&samples) {
        for sample in row["samples"].as_array().unwrap() {
            let reply = sample["ids"].to_string();
            asked.push(format!("{{\"ids\": [{prompt}, {}]}}\n", reply.trim_matches(['[', ']'])));
        }
    }
    scratch.write("asked.jsonl", &asked.concat());
    let scored = scratch.run("reward --model judge --input asked.jsonl").rows();
    let wanted: Vec<f64> = scored.iter().map(|row| row["score"].as_f64().unwrap()).collect();

    for ((row, samples), wanted) in rows.iter().zip(&samples).zip(wanted.chunks(4)) {
        let scores = numbers(&row["scores"]);
        assert!(scores.iter().zip(wanted).all(|(score, wanted)| (score - wanted).abs() < 1e-4), "{row}");
        let highest = wanted.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        assert!((row["score"].as_f64().unwrap() - highest).abs() < 1e-4, "{row} {wanted:?}");
        let sample = row["sample"].as_u64().unwrap() as usize;
        assert_eq!(row["score"], row["scores"][sample]);
        assert_eq!(
            (&row["ids"], &row["text"]),
            (&samples["samples"][sample]["ids"], &samples["samples"][sample]["text"])
        );
        assert_eq!(row["unscored"], 0);
    }

    // The scores of several reward models are added.
    let twice =
        scratch.run(&format!("{GENERATE} --best-of 4 --reward-model judge --reward-model judge")).rows();
    for (row, single) in twice.iter().zip(&rows) {
        let pairs = numbers(&row["scores"]).into_iter().zip(numbers(&single["scores"]));
        assert!(pairs.into_iter().all(|(both, one)| (both - 2.0 * one).abs() < 1e-4), "{row} {single}");
    }
}

#[test]
fn a_row_whose_samples_have_no_score_has_no_best_reply() {
    let scratch = scratch();
    scratch.write("rewards.toml", "[[reward]]\nkind = 'exact'\nany_of = true\n");
    let good = "{\"prompt\": \"a\", \"answer\": \"[\\\"x\\\"]\"}\n";
    let bad = "{\"prompt\": \"b\", \"answer\": \"no list\"}\n";
    scratch.write("answers.jsonl", &format!("{good}{bad}"));
    let line = "generate --model model --best-of 2 --config rewards.toml --max-new-tokens 3 --input";

    let outcome = scratch.run(&format!("{line} answers.jsonl"));
    let rows = outcome.rows();
    assert!(
        rows[0]["text"].is_string() && rows[0]["score"].is_number() && rows[0]["unscored"] == 0,
        "{}",
        rows[0]
    );
    for key in ["ids", "text", "finish_reason", "sample", "score"] {
        assert!(rows[1].get(key).is_some_and(Value::is_null), "{key}: {}", rows[1]);
    }
    assert_eq!((&rows[1]["scores"], &rows[1]["unscored"]), (&serde_json::json!([null, null]), &2.into()));
    assert!(rows[1]["reason"].as_str().unwrap().contains("exact"), "{}", rows[1]);
    for words in
        ["warning: a sample has no score: ", "2 of 4 samples without a score; 1 row without a best reply"]
    {
        assert!(outcome.stderr.contains(words), "{words}: {}", outcome.stderr);
    }
    assert!(!outcome.stderr.contains("KL"), "{}", outcome.stderr);

    // The rows are written even if none of them has a best reply.
    scratch.write("bad.jsonl", bad);
    let outcome = scratch.run(&format!("{line} bad.jsonl"));
    outcome.fails(1, &["no row has a best reply"]);
    let row: Value = serde_json::from_str(outcome.stdout.trim()).unwrap();
    assert!(row["text"].is_null() && row["unscored"] == 2, "{row}");

    scratch.write("none.jsonl", "{\"prompt\": \"b\"}\n");
    scratch.run(&format!("{line} none.jsonl")).fails(2, &["exact", "answer"]);
    scratch.write("rewards.toml", "[ppo]\nmax_new_tokens = 4\n");
    scratch.run(&format!("{line} none.jsonl")).fails(2, &["--config rewards.toml", "no reward in it counts"]);
}

#[test]
fn samples_that_cannot_differ_or_be_scored_are_refused() {
    let scratch = scratch();
    let cases: [(&str, i32, &[&str]); 8] = [
        ("--n 2 --temperature 0", 2, &["--temperature 0", "all samples of a prompt are the same"]),
        ("--best-of 2 --reward-model judge --top-k 1", 2, &["--top-k 1"]),
        ("--n 0", 2, &["there must be at least 1"]),
        ("--n 2 --best-of 2 --reward-model judge", 2, &["--n", "--best-of"]),
        ("--best-of 2", 2, &["--best-of", "--reward-model DIR"]),
        ("--reward-model judge", 2, &["--best-of"]),
        ("--best-of 2 --reward-model nowhere", 2, &["nowhere"]),
        ("--best-of 2 --reward-model model", 3, &["score.weight"]),
    ];
    for (more, code, words) in cases {
        scratch.run(&format!("{GENERATE} {more}")).fails(code, words);
    }
    // A single greedy reply is what it always was.
    let greedy = format!("{GENERATE} --temperature 0");
    assert_eq!(
        scratch.run(&format!("{greedy} --n 1")).rows()[0]["samples"][0],
        scratch.run(&greedy).rows()[0]
    );
}

/// The rows that `reject` has written, as JSON.
fn rows(scratch: &Scratch, out: &str) -> Vec<Value> {
    scratch.run(&format!("data convert {out}/rows.parquet --output {out}.jsonl")).succeeds();
    scratch.read(&format!("{out}.jsonl")).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn the_best_reply_to_each_prompt_becomes_a_row() {
    let scratch = scratch();
    let outcome = scratch.run("reject --config run.toml");
    outcome.succeeds();
    assert!(outcome.stderr.contains("5 prompts, 20 samples: 5 rows of 5 prompts"), "{}", outcome.stderr);
    assert_eq!(names(&scratch.path("best")), ["reject.toml", "rows.parquet", "summary.json"]);
    let summary = json(&scratch, "best/summary.json");
    for (key, count) in [("prompts", 5), ("prompts_kept", 5), ("samples", 20), ("kept", 5), ("excluded", 0)] {
        assert_eq!(summary[key], count, "{key}: {summary}");
    }
    let score = |key: &str| summary[key].as_f64().unwrap();
    assert!(score("mean_score_kept") > score("mean_score"), "{summary}");

    let rows = rows(&scratch, "best");
    let first = |row: &Value| row["messages"][0]["content"].as_str().unwrap().to_owned();
    assert_eq!(rows.iter().map(first).collect::<Vec<_>>(), ["a", "b", "2?", "d", "e"]);
    for row in &rows {
        let last = row["messages"].as_array().unwrap().last().unwrap();
        assert!(last["role"] == "assistant" && last.get("weight").is_none_or(|weight| weight != 0), "{row}");
    }
    // The reply that stands in the prompt is not learned.
    assert_eq!(
        (rows[2]["messages"].as_array().unwrap().len(), &rows[2]["messages"][1]["weight"]),
        (4, &0.into())
    );
    let report = scratch.run("data check best/rows.parquet --json").json();
    assert_eq!((&report["layout"], &report["rows"]), (&"messages".into(), &5.into()));
    scratch.write(
        "sft.toml",
        "out = 'sft'\n[model]\npath = 'model'\n[data]\ntrain = 'best/rows.parquet'\nmax_length = 80\n",
    );
    scratch.run("sft --config sft.toml --dry-run").succeeds();

    // The seed decides every reply, and nothing is overwritten.
    let bytes = |out: &str| std::fs::read(scratch.path(&format!("{out}/rows.parquet"))).unwrap();
    scratch.run("reject --config run.toml --set out=again --set ppo.rollout_micro_batch_size=3").succeeds();
    assert!(bytes("again") == bytes("best"));
    scratch.run("reject --config run.toml --set out=other --set seed=8").succeeds();
    assert!(bytes("other") != bytes("best"));
    scratch.run("reject --config run.toml").fails(2, &["\"best\"", "there is something in it already"]);
}

#[test]
fn every_reply_above_a_threshold_becomes_a_row() {
    let scratch = scratch();
    let file = RUN
        .replace("reward_model = 'judge'\n", "")
        .replace("samples_per_prompt = 4", "samples_per_prompt = 8");
    let reward = "[[reward]]\nkind = 'regex'\npattern = '[a-z]'\n";
    scratch.write("above.toml", &format!("{file}keep = 'above'\nthreshold = 1.0\n{reward}"));
    scratch.run("reject --config above.toml").succeeds();
    let summary = json(&scratch, "best/summary.json");
    let matched = (summary["mean_score"].as_f64().unwrap() * 40.0).round() as usize;
    let rows = rows(&scratch, "best");
    assert!(!rows.is_empty() && rows.len() <= matched && matched < 40, "{summary}");
    assert_eq!((&summary["kept"], &summary["mean_score_kept"]), (&rows.len().into(), &1.0.into()));
    for row in &rows {
        let reply = row["messages"].as_array().unwrap().last().unwrap()["content"].as_str().unwrap();
        assert!(reply.contains(|letter: char| letter.is_ascii_lowercase()), "{row}");
    }

    let outcome = scratch.run("reject --config above.toml --set out=none --set reject.threshold=2.0");
    outcome.fails(1, &["no reply was kept", "40 samples"]);
    assert!(!scratch.path("none").exists());
}

#[test]
fn a_reject_that_selects_nothing_is_refused() {
    let scratch = scratch();
    let cases: [(&str, &[&str]); 5] = [
        ("reject.keep=above", &["[reject] keep = above", "threshold"]),
        ("reject.threshold=1.0", &["[reject] threshold = 1", "keep"]),
        ("reject.per_prompt=4", &["ppo.samples_per_prompt", "all of them are kept"]),
        ("ppo.kl_coef=0.1", &["ppo.kl_coef", "has no effect on reject"]),
        ("ppo.reward_model=[]", &["reward"]),
    ];
    for (set, words) in cases {
        scratch.run(&format!("reject --config run.toml --set {set}")).fails(2, words);
    }
    scratch.write("turns.toml", &format!("{RUN}[environment]\nkind = 'calculator'\n"));
    scratch.run("reject --config turns.toml").fails(2, &["`environment`", "single replies"]);
    assert!(!scratch.path("best").exists());
}
