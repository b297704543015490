//! `pipeline` looks at the inputs of all of its stages before the first one runs.

use crate::harness::Scratch;
use crate::training::copied;

/// Stages that start from the model and the rows of a finished pipeline.
const STAGES: &str = "
seed = 4
out = 'mine'

[tokenizer]
vocab_size = 300

[data]
max_length = 128

[train]
steps = 2
micro_batch_size = 4

[pipeline]
stages = ['sft', 'rm', 'ppo']

[stage.sft.model]
path = 'life/base/final'
[stage.sft.data]
train = 'life/data/sft.parquet'

[stage.rm.data]
train = 'life/data/preference.parquet'

[stage.ppo.data]
train = 'life/data/prompts.parquet'
[stage.ppo.ppo]
iterations = 1
rollout_batch_size = 4
mini_batch_size = 4
max_new_tokens = 4
";

/// A finished pipeline, and the file of another one that is to start from its base model.
fn with_stages() -> Scratch {
    let scratch = copied();
    scratch.write("stages.toml", STAGES);
    scratch
}

#[test]
fn a_mistake_in_any_stage_is_found_before_the_first_one_runs() {
    let scratch = with_stages();
    scratch.write("broken.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\": \n");
    scratch.write("numbers.jsonl", "{\"prompt\": 7}\n");
    std::fs::create_dir(scratch.path("empty")).unwrap();

    let cases: [(&str, i32, &[&str]); 11] = [
        ("stage.ppo.data.train='life/data/promts.parquet'", 3, &["stage ppo", "promts.parquet"]),
        ("stage.ppo.data.train='broken.jsonl'", 3, &["stage ppo", "broken.jsonl"]),
        ("stage.ppo.data.train='numbers.jsonl'", 3, &["stage ppo", "numbers.jsonl", "prompt"]),
        ("stage.rm.data.train='life/data/sft.parquet'", 3, &["stage rm", "chosen, rejected"]),
        ("stage.rm.model.path='empty'", 3, &["stage rm", "config.json"]),
        ("stage.ppo.model.path='life/rm/final'", 2, &["stage ppo", "`model.path`", "reward model"]),
        ("stage.ppo.ppo.reward_model='life/sft/final'", 2, &["stage ppo", "`ppo.reward_model`"]),
        ("stage.ppo.ppo.reference_model='mine/base/final'", 2, &["`ppo.reference_model`", "no earlier part"]),
        ("stage.ppo.tokenizer.template='chatmll'", 2, &["stage ppo", "chatmll"]),
        ("stage.sft.tokenizer.path='empty'", 3, &["stage sft", "empty", "tokenizer.json"]),
        ("pipeline.stages=['rm', 'ppo']", 2, &["stage rm", "mine/sft/final", "[pipeline] stages"]),
    ];
    // Held-out rows are looked at if they are measured.
    let measured = "--set stage.rm.eval.every=1 --set stage.rm.data.eval=life/data/none.parquet";
    scratch.run(&format!("pipeline --config stages.toml {measured}")).fails(3, &["stage rm", "none.parquet"]);
    for (set, code, words) in cases {
        for line in ["pipeline --config stages.toml", "pipeline --config stages.toml --dry-run"] {
            let arguments: Vec<&str> = line.split(' ').chain(["--set", set]).collect();
            let outcome = scratch.run_with(&arguments, "");
            outcome.fails(code, words);
            assert!(!scratch.path("mine").exists(), "{line} --set {set} left a folder");
        }
    }
}

#[test]
fn a_reply_that_a_later_model_has_no_positions_for_is_found_first() {
    let scratch = with_stages();
    let lengths = "--set stage.ppo.data.max_length=2000 --set data.max_length=2000";
    scratch.write("long.jsonl", &format!("{{\"prompt\": \"{}\"}}\n", "one two ".repeat(60)));
    let line = format!("pipeline --config stages.toml --set stage.ppo.data.train='long.jsonl' {lengths}");
    scratch.run(&line).fails(2, &["stage ppo", "128"]);
    assert!(!scratch.path("mine").exists());
}

#[test]
fn a_dry_run_says_what_each_stage_would_do_and_makes_nothing() {
    let scratch = with_stages();
    let outcome = scratch.run("pipeline --config stages.toml --dry-run");
    assert!(outcome.succeeds().contains("[stage.ppo.ppo]") || outcome.stdout.contains("max_new_tokens = 4"));
    for line in
        ["sft: 60 rows", "rm: 40 rows", "2 steps of 4 rows", "ppo: 16 rows", "1 iteration of 4 replies"]
    {
        assert!(outcome.stderr.contains(line), "{line:?} is not in {outcome:#?}");
    }
    assert!(!scratch.path("mine").exists());
}

#[test]
fn stages_that_read_what_earlier_parts_make_run_to_the_end() {
    let scratch = with_stages();
    scratch.run("pipeline --config stages.toml").succeeds();
    assert!(scratch.path("mine/ppo/final/model.safetensors").exists());
}

#[test]
fn what_an_earlier_stage_will_write_may_be_named_in_every_way_that_works_later() {
    let scratch = with_stages();
    let here = scratch.path("mine").display().to_string();
    let sets = [
        // The configuration has `out = 'mine'`.
        format!("stage.rm.model.path='{here}/sft/final'"),
        "stage.rm.model.path='./mine/sft/final'".to_owned(),
        "stage.rm.model.path='mine/sft'".to_owned(),
        "stage.rm.model.path='mine/sft/checkpoints/step-2'".to_owned(),
        format!("out='{here}'"),
    ];
    for set in &sets {
        let words = ["pipeline", "--config", "stages.toml", "--dry-run", "--set", set];
        scratch.run_with(&words, "").succeeds();
    }
    // A pattern over rows that the part `data` makes.
    let line = "pipeline --config life.toml --dry-run --set out=other --set stage.sft.data.train='other/data/s*.parquet'";
    scratch.run(line).succeeds();
    let typo =
        ["pipeline", "--config", "stages.toml", "--dry-run", "--set", "stage.rm.model.path='mine/sft/fnal'"];
    scratch.run_with(&typo, "").fails(2, &["stage rm", "mine/sft/fnal", "no earlier part"]);
}

#[test]
fn the_inputs_are_checked_once_whatever_the_number_of_processes() {
    let scratch = with_stages();
    for line in ["pipeline --config stages.toml", "pipeline --config stages.toml --nproc 2 --set out=pair"] {
        let outcome = scratch.run(line);
        outcome.succeeds();
        assert_eq!(outcome.stderr.matches("ppo: 16 rows").count(), 1, "{line}: {outcome:#?}");
    }
    let wrong =
        "pipeline --config stages.toml --nproc 2 --set out=none --set stage.ppo.data.train='absent.jsonl'";
    scratch.run(wrong).fails(3, &["stage ppo", "absent.jsonl"]);
    assert!(!scratch.path("none").exists());
}
