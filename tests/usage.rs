//! Usage and configuration.

use crate::harness::Scratch;

const RUN: &str = "out = 'run'\n[model]\npath = 'base'\n[data]\ntrain = 'sft.jsonl'\n";

#[test]
fn help_and_version_are_data() {
    let scratch = Scratch::new();
    assert!(scratch.run("--help").succeeds().contains("Exit codes"));
    assert!(scratch.run("--version").succeeds().starts_with("colossal-chat "));
    assert!(scratch.run("data synth --help").succeeds().contains("--heldout-preferences"));
}

#[test]
fn words_that_are_no_command_end_with_2() {
    let scratch = Scratch::new();
    scratch.run("sfft").fails(2, &["sfft", "'sft'"]);
    scratch.run("generate --model m").fails(2, &["--prompt"]);
    scratch.run("chat --model m --temperature hot").fails(2, &["hot"]);
}

#[test]
fn a_wrong_file_is_refused_with_its_line_before_anything_is_made() {
    let scratch = Scratch::new();
    scratch.run("sft --config run.toml").fails(2, &["run.toml: "]);
    scratch.write("run.toml", &format!("{RUN}[train]\nlearning_rate = 1.0\n"));
    let words = ["run.toml:7: unknown key `train.learning_rate`", "did you mean `train.lr`?"];
    scratch.run("sft --config run.toml").fails(2, &words);
    scratch.write("run.toml", &format!("{RUN}[train]\nlr = 'fast'\n"));
    scratch
        .run("sft --config run.toml")
        .fails(2, &["run.toml:7: `train.lr` is the text \"fast\", wanted a number"]);
    scratch.write("run.toml", RUN);
    scratch
        .run("sft --config run.toml --set train.epochs=many")
        .fails(2, &["--set train.epochs=many: `train.epochs`"]);
    scratch.run("sft --config run.toml --set train.lr=-1").fails(2, &["[train] lr = -1"]);
    scratch.run("ppo --config run.toml").fails(2, &["[[reward]] is not set"]);
    scratch.run("sft --config run.toml --set model.path=''").fails(2, &["model.path", "is empty"]);
    scratch.run("sft --config run.toml --set tokenizer.path=''").fails(2, &["tokenizer.path", "is empty"]);
    let batch = "sft --config run.toml --set train.micro_batch_size=9223372036854775807 --set train.gradient_accumulation_steps=4";
    scratch
        .run(batch)
        .fails(2, &["[train] micro_batch_size x gradient_accumulation_steps = 9223372036854775807 x 4"]);
    let replies = "ppo --config run.toml --set ppo.rollout_batch_size=4294967296 --set ppo.samples_per_prompt=4294967296";
    scratch
        .run(replies)
        .fails(2, &["[ppo] rollout_batch_size x samples_per_prompt = 4294967296 x 4294967296"]);
    assert_eq!(scratch.names(), ["run.toml"]);
}

#[test]
fn more_threads_than_cores_are_refused() {
    Scratch::new().run("doctor --threads 4000").fails(2, &["4000 threads in each of 1 processes"]);
}
