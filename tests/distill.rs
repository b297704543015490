//! The stage `distill`: on every mesh and under a budget, resumed, and with teachers that do not fit.

use crate::gemini::{same_bits, with_large_model};
use crate::harness::Scratch;
use crate::offline::{killed_and_resumed, worst};
use crate::training::metrics;

/// A run file for a student as small as that of the pipeline, and the larger model as its teacher.
const RUN: &str = "
seed = 4

[model]
path = 'life/sft/final'

[data]
train = 'life/data/sft.parquet'
eval_fraction = 0.2
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

[distill]
teacher = 'large'
divergence = 'jsd'
temperature = 2.0
nll_coef = 0.5
";

fn with_teacher() -> Scratch {
    let scratch = with_large_model();
    scratch.write("run.toml", RUN);
    scratch
}

fn line(out: &str, more: &str) -> String {
    format!("distill --config run.toml --set out={out}{more}")
}

#[test]
fn every_mesh_computes_the_same() {
    let scratch = with_teacher();
    scratch.run(&line("whole", "")).succeeds();
    let whole = metrics(&scratch, "whole");
    assert!(whole[0]["divergence"].is_f64() && whole[0]["nll"].is_f64(), "{}", whole[0]);
    for (number, mesh) in [
        "",
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
        let out = format!("mesh-{number}");
        scratch.run(&line(&out, &format!("{mesh} --nproc 2"))).succeeds();
        let difference = worst(&whole, &metrics(&scratch, &out));
        assert!(difference < 1e-5, "{mesh}: {difference}");
    }
}

#[test]
fn every_budget_gives_the_same_bits() {
    let scratch = with_teacher();
    let large = " --set model.path=large --set distill.teacher=large --set train.micro_batch_size=2 \
                 --set train.activation_checkpointing=true";
    scratch.run(&line("whole", large)).succeeds();
    for (out, budget) in [("auto", "'16MiB'"), ("disk", "'12MiB' --set gemini.placement='disk'")] {
        let outcome = scratch.run(&line(out, &format!("{large} --set gemini.device_memory={budget}")));
        outcome.succeeds();
        assert!(!outcome.stderr.contains("; 0 MiB read from the disk"), "nothing left memory: {outcome:#?}");
        same_bits(&scratch, out, "whole");
    }
}

#[test]
fn a_killed_run_resumes_as_if_it_had_not_been() {
    let scratch = with_teacher();
    killed_and_resumed(&scratch, |out| line(out, " --set train.steps=12"), || {});
}

#[test]
fn a_student_that_is_its_teacher_has_nothing_to_learn() {
    let scratch = with_teacher();
    let more =
        " --set model.path=life/sft/final --set distill.teacher=life/sft/final --set distill.nll_coef=0";
    scratch.run(&line("same", more)).succeeds();
    for row in metrics(&scratch, "same") {
        assert!(row["loss"].as_f64().unwrap_or(0.0).abs() < 1e-6, "{row}");
    }
    let rows = metrics(&scratch, "same");
    let evaluated: Vec<_> = rows.iter().filter(|row| row["eval/agreement"].is_f64()).collect();
    assert!(!evaluated.is_empty() && evaluated.iter().all(|row| row["eval/agreement"] == 1.0), "{rows:?}");
}

#[test]
fn teachers_that_do_not_fit_are_refused_and_unused_rows_are_left_out() {
    let scratch = with_teacher();
    let refused = |more: &str, code: i32, words: &[&str]| scratch.run(&line("no", more)).fails(code, words);
    refused(" --set distill.teacher=life/rm/final", 3, &["life/rm/final", "this is a reward model"]);
    refused(" --set distill.teacher=nowhere", 2, &["nowhere"]);
    refused(" --set distill.beta=1.5", 2, &["[distill] beta", "forward_kl"]);
    scratch.write("without.toml", &RUN.replace("teacher = 'large'", ""));
    scratch
        .run("distill --config without.toml --set out=no")
        .fails(2, &["distill.teacher", "a model to learn from"]);

    // A table that is longer than the tokenizer, as those of large models often are, has rows without a token.
    let wide = scratch.read("large.json").replace("\"vocab_size\": 300", "\"vocab_size\": 320");
    scratch.write("wide.json", &wide);
    scratch.run("model init wide.json --tokenizer life/sft/final --seed 3 --out wide").succeeds();
    scratch.run(&line("of-wide", " --set distill.teacher=wide")).succeeds();
    refused(" --set model.path=wide", 2, &["its vocabulary has 300 tokens, and the student's 320"]);
}
