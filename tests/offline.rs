//! The stages that learn from given completions: on every mesh and under budgets, killed and resumed, with a
//! reference of their own, and with rows that people have written.

use serde_json::Value;

use crate::gemini::{same_bits, with_large_model};
use crate::harness::{Scratch, signal};
use crate::training::{LIFE, copied, json, metrics};

const STAGES: [&str; 5] = ["dpo", "kto", "orpo", "simpo", "cpo"];

/// A run file for any of the stages, on the rows of the pipeline.
const RUN: &str = "
out = 'run'
seed = 4

[model]
path = 'life/sft/final'

[data]
train = 'life/data/preference.parquet'
eval = 'life/data/heldout_preference.parquet'
max_length = 128

[train]
steps = 6
micro_batch_size = 4
gradient_accumulation_steps = 2
lr = 1e-3
eps = 1e-4

[checkpoint]
every = 2
keep = 9

[eval]
every = 3
";

fn with_run_file() -> Scratch {
    let scratch = copied();
    scratch.write("run.toml", RUN);
    scratch
}

fn line(stage: &str, out: &str, more: &str) -> String {
    format!("{stage} --config run.toml --set out={out}{more}")
}

fn weights(scratch: &Scratch, out: &str) -> Vec<u8> {
    std::fs::read(scratch.path(&format!("{out}/final/model.safetensors"))).unwrap()
}

/// The largest relative difference of the metrics of two runs.
pub(crate) fn worst(left: &[Value], right: &[Value]) -> f64 {
    assert_eq!(left.len(), right.len());
    let mut worst = 0.0;
    for (left, right) in left.iter().zip(right) {
        for (name, value) in left.as_object().unwrap() {
            let (value, other) = (value.as_f64().unwrap(), right[name].as_f64().unwrap());
            worst = f64::max(worst, (value - other).abs() / value.abs().max(1.0));
        }
    }
    worst
}

#[test]
fn every_algorithm_computes_the_same_on_two_processes() {
    let scratch = with_run_file();
    for stage in STAGES {
        scratch.run(&line(stage, &format!("{stage}-1"), "")).succeeds();
        scratch.run(&line(stage, &format!("{stage}-2"), " --nproc 2")).succeeds();
        let difference =
            worst(&metrics(&scratch, &format!("{stage}-1")), &metrics(&scratch, &format!("{stage}-2")));
        assert!(difference < 1e-5, "{stage}: {difference}");
        let first = &metrics(&scratch, &format!("{stage}-1"))[0];
        assert!(first["rewards/chosen"].is_f64() && first["entropy"].is_f64(), "{first}");
    }
}

#[test]
fn every_mesh_computes_the_same() {
    let scratch = with_run_file();
    for stage in ["dpo", "kto"] {
        // A loss that compares the pairs of a step needs a pass before it, as KTO does.
        let loss = if stage == "dpo" { " --set dpo.loss=['sigmoid','aot']" } else { "" };
        scratch.run(&line(stage, &format!("{stage}-whole"), loss)).succeeds();
        let whole = metrics(&scratch, &format!("{stage}-whole"));
        for (number, mesh) in [
            " --set parallel.zero=3",
            " --set parallel.tensor.size=2",
            " --set parallel.tensor.size=2 --set parallel.sequence.mode='megatron'",
            " --set parallel.sequence.mode='ulysses' --set parallel.sequence.size=2",
            " --set parallel.sequence.mode='ring' --set parallel.sequence.size=2",
            " --set parallel.pipeline.size=2",
            " --set parallel.pipeline.size=2 --set parallel.pipeline.schedule='zb-v'",
        ]
        .into_iter()
        .enumerate()
        {
            let out = format!("{stage}-mesh-{number}");
            scratch.run(&line(stage, &out, &format!("{loss}{mesh} --nproc 2"))).succeeds();
            let difference = worst(&whole, &metrics(&scratch, &out));
            assert!(difference < 1e-5, "{stage}{mesh}: {difference}");
        }
    }
}

/// The model is large enough that chunks leave memory, also before the first step, when it is its own reference.
#[test]
fn every_budget_gives_the_same_bits() {
    let scratch = with_large_model();
    scratch.write("run.toml", RUN);
    let train = " --set model.path=large --set train.micro_batch_size=2 --set train.steps=4 \
                 --set train.activation_checkpointing=true";
    for (stage, loss) in [("dpo", " --set dpo.loss=['sigmoid','aot']"), ("kto", "")] {
        let whole = format!("{stage}-whole");
        scratch.run(&line(stage, &whole, &format!("{train}{loss}"))).succeeds();
        for (number, budget) in
            ["'16MiB'", "'12MiB'", "'12MiB' --set gemini.placement='disk'"].into_iter().enumerate()
        {
            let out = format!("{stage}-{number}");
            let budget = format!(" --set gemini.device_memory={budget}");
            let outcome =
                scratch.run(&line(stage, &out, &format!("{train}{loss}{budget} --set data.cache=")));
            outcome.succeeds();
            assert!(
                !outcome.stderr.contains("; 0 MiB read from the disk"),
                "nothing has left memory: {outcome:#?}"
            );
            same_bits(&scratch, &out, &whole);
        }
    }
}

/// Runs a job whole, and once more killed after its fifth row of metrics and resumed: weights and metrics are the
/// same. `line` is the job in a folder; `before_resume` changes what the killed one has left.
pub(crate) fn killed_and_resumed(
    scratch: &Scratch,
    line: impl Fn(&str) -> String,
    before_resume: impl FnOnce(),
) {
    scratch.run(&line("whole")).succeeds();
    let words = line("killed");
    let mut child = scratch.command(&words.split(' ').collect::<Vec<_>>()).spawn().unwrap();
    scratch.wait_for_rows("killed/metrics.jsonl", 5);
    signal("KILL", child.id());
    child.wait().unwrap();
    before_resume();
    // The other process of a job ends when it misses the first one, and gives the folder back.
    let started = std::time::Instant::now();
    let outcome = loop {
        let outcome = scratch.run(&format!("{words} --resume"));
        if outcome.code != 2 || started.elapsed().as_secs() > 60 {
            break outcome;
        }
        std::thread::sleep(std::time::Duration::from_millis(200));
    };
    outcome.succeeds();
    assert!(weights(scratch, "whole") == weights(scratch, "killed"), "{words}");
    assert_eq!(metrics(scratch, "whole"), metrics(scratch, "killed"), "{words}");
    for folder in ["whole", "killed"] {
        std::fs::remove_dir_all(scratch.path(folder)).unwrap();
    }
}

#[test]
fn a_killed_run_resumes_as_if_it_had_not_been() {
    let scratch = with_run_file();
    for (stage, more) in [("dpo", ""), ("kto", ""), ("dpo", " --nproc 2"), ("kto", " --nproc 2")] {
        let longer = format!(" --set train.steps=12 --set data.cache=cache-{stage}{more}");
        // The numbers of the reference are in the cache, and without it they are computed again.
        let forget = || {
            if more.is_empty() {
                let _ = std::fs::remove_dir_all(scratch.path(&format!("cache-{stage}")));
            }
        };
        killed_and_resumed(&scratch, |out| line(stage, out, &longer), forget);
    }
}

#[test]
fn a_reference_is_scored_once_and_must_read_the_same_tokens() {
    let scratch = with_run_file();
    let cached = " --set data.cache=kept";
    let numbers = || {
        let names = std::fs::read_dir(scratch.path("kept")).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.ends_with(".numbers")).count()
    };
    scratch.run(&line("dpo", "one", cached)).succeeds();
    assert_eq!(numbers(), 1);
    scratch.run(&line("dpo", "two", cached)).succeeds();
    assert_eq!(numbers(), 1);
    assert!(weights(&scratch, "one") == weights(&scratch, "two"));
    let first = &metrics(&scratch, "one")[0];
    assert!((first["loss"].as_f64().unwrap() - std::f64::consts::LN_2).abs() < 1e-6, "{first}");

    // Another reference gives other numbers, and the first step has a preference already.
    scratch.run(&line("dpo", "three", &format!("{cached} --set reference.model=life/base/final"))).succeeds();
    assert_eq!(numbers(), 2);
    let first = &metrics(&scratch, "three")[0];
    assert!(first["rewards/margins"].as_f64().unwrap().abs() > 1e-6, "{first}");

    scratch
        .run(&line("dpo", "four", " --set reference.model=life/rm/final"))
        .fails(3, &["life/rm/final", "this is a reward model"]);
    scratch.run("data tokenizer life/data/text.parquet --vocab-size 280 --out other").succeeds();
    let copied = std::process::Command::new("cp")
        .args(["-r", "life/base/final", "foreign"])
        .current_dir(scratch.path("."))
        .status();
    assert!(copied.unwrap().success());
    std::fs::copy(scratch.path("other/tokenizer.json"), scratch.path("foreign/tokenizer.json")).unwrap();
    scratch.run(&line("dpo", "five", " --set reference.model=foreign")).fails(2, &["reference", "foreign"]);
}

#[test]
fn answers_that_people_have_marked_train_as_they_are() {
    let scratch = with_run_file();
    let row = |number: usize| {
        let (answer, label) = (number + 1, number.is_multiple_of(2));
        format!("{{\"prompt\": \"{number} + 1 =\", \"completion\": \"{answer}\", \"label\": {label}}}\n")
    };
    let rows = (0..12).map(row).collect::<Vec<_>>().concat();
    scratch.write("thumbs.jsonl", &rows);
    let more =
        " --set data.train=thumbs.jsonl --set data.eval=[] --set data.eval_fraction=0.25 --set train.steps=2";
    scratch.run(&line("kto", "thumbs", more)).succeeds();
    let rows = metrics(&scratch, "thumbs");
    assert!(
        rows[0]["rewards/chosen"].is_f64() && rows[0]["rewards/rejected"].is_f64() && rows[0]["kl"].is_f64()
    );
    scratch.run(&line("dpo", "no", more)).fails(3, &["thumbs.jsonl"]);
}

#[test]
fn the_stages_are_parts_of_a_pipeline() {
    let scratch = copied();
    let stages = "\n[pipeline]\nstages = ['data', 'tokenizer', 'base', 'sft', 'rm', 'dpo', 'kto', 'orpo', 'ppo', 'eval', \
                  'report']\n";
    scratch.write("life.toml", &format!("{LIFE}{stages}\n[stage.dpo.dpo]\nbeta = 0.3\n"));
    scratch.run("pipeline --config life.toml --resume").succeeds();
    for stage in ["dpo", "kto", "orpo"] {
        assert_eq!(metrics(&scratch, &format!("life/{stage}")).len(), 6, "{stage}");
    }
    assert!(scratch.read("life/dpo/run.toml").contains("beta = 0.3"));
    let report = json(&scratch, "life/report.json");
    let models = report["benchmarks"]["results"]["models"].as_array().unwrap();
    let names: Vec<&str> = models.iter().map(|model| model["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["base", "sft", "dpo", "kto", "orpo", "ppo"]);
    assert!(report["seconds"]["kto"].is_number() && scratch.read("life/report.md").contains("## orpo"));
    scratch.write("wrong.toml", &format!("{LIFE}{stages}\n[stage.dpo.kto]\nbeta = 0.3\n"));
    scratch
        .run("pipeline --config wrong.toml --set out=other")
        .fails(2, &["`stage.dpo.kto` has no effect on dpo"]);
}
