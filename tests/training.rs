//! Training through the binary: a whole pipeline, resuming, Ctrl-C, and runs that go wrong.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;

use crate::harness::{Scratch, names, signal};

/// Every part, as small as it goes.
pub(crate) const LIFE: &str = "
seed = 4
out = 'life'

[tokenizer]
vocab_size = 300

[synth]
pretraining = 200
train = 60
preferences = 40
heldout_preferences = 20
prompts = 16
heldout = 12

[base]
hidden_size = 16
intermediate_size = 32
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
max_position_embeddings = 128

[data]
max_length = 128

[train]
steps = 6
micro_batch_size = 8
lr = 1e-3

[checkpoint]
every = 2
keep = 9

[log]
every = 1

[stage.ppo.ppo]
iterations = 2
rollout_batch_size = 8
rollout_micro_batch_size = 3
mini_batch_size = 4
epochs = 2
max_new_tokens = 6
";

/// One finished pipeline for all tests of this file, which only read it.
pub(crate) fn life() -> &'static Scratch {
    static LIFE_OF_ALL: OnceLock<Scratch> = OnceLock::new();
    LIFE_OF_ALL.get_or_init(|| {
        let scratch = Scratch::new();
        scratch.write("life.toml", LIFE);
        scratch.run("pipeline --config life.toml").succeeds();
        scratch
    })
}

pub(crate) fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-r").args([from, to]).status().unwrap();
    assert!(status.success());
}

/// A scratch folder with the pipeline and its folder.
pub(crate) fn copied() -> Scratch {
    let scratch = Scratch::new();
    scratch.write("life.toml", LIFE);
    copy(&life().path("life"), &scratch.path("life"));
    scratch
}

pub(crate) fn json(scratch: &Scratch, name: &str) -> Value {
    serde_json::from_str(&scratch.read(name)).unwrap()
}

/// The rows of a `metrics.jsonl` without what depends on the clock.
pub(crate) fn metrics(scratch: &Scratch, stage: &str) -> Vec<Value> {
    let clock = |key: &str| key == "seconds" || key.starts_with("timing/");
    let row = |line: &str| {
        let mut row: serde_json::Map<String, Value> = serde_json::from_str(line).unwrap();
        row.retain(|key, _| !clock(key));
        Value::Object(row)
    };
    scratch.read(&format!("{stage}/metrics.jsonl")).lines().map(row).collect()
}

#[test]
fn one_file_makes_a_whole_life() {
    let scratch = life();
    for stage in ["base", "sft", "rm", "ppo"] {
        let folder = names(&scratch.path(&format!("life/{stage}/final")));
        for file in ["config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"] {
            assert!(folder.iter().any(|name| name == file), "{stage}: {file} is not in {folder:?}");
        }
        assert!(scratch.read(&format!("life/{stage}/run.toml")).contains("seed = 4"));
    }
    assert_eq!(metrics(scratch, "life/sft").len(), 6);
    assert_eq!(metrics(scratch, "life/ppo").len(), 2);
    // Eight rows in each of six steps, of the rows that the stage has.
    let rows = json(scratch, "life/sft/plan.json")["rows"].as_f64().unwrap();
    for (step, row) in metrics(scratch, "life/sft").iter().enumerate() {
        let passes = 8.0 * (step + 1) as f64 / rows;
        assert!((row["epoch"].as_f64().unwrap() - passes).abs() < 1e-9, "{row}: {passes}");
    }
    let plan = json(scratch, "life/ppo/plan.json");
    assert_eq!(plan["parameters"]["policy"], plan["parameters"]["reference"]);
    let report = json(scratch, "life/report.json");
    let models = report["benchmarks"]["results"]["models"].as_array().unwrap();
    assert_eq!(models.iter().map(|model| &model["name"]).collect::<Vec<_>>(), ["base", "sft", "ppo"]);
    for model in models {
        let scores = model["scores"].as_array().unwrap();
        for task in ["world", "world_sampled"] {
            let score = scores.iter().find(|score| score["task"] == task).unwrap();
            assert!(score["n"] == 12 && score["value"].is_number(), "{score}");
        }
    }
    assert_eq!(report["reward_model"]["n"], 20);
    assert!(report["peak_rss_bytes"].is_number() && report["seconds"]["eval"].is_number(), "{report}");
    let stages = report["runs"].as_array().unwrap().iter().map(|run| run["stage"].as_str().unwrap());
    assert_eq!(stages.collect::<Vec<_>>(), ["base", "sft", "rm", "ppo"]);
    assert!(names(&scratch.path("life")).iter().all(|name| !name.contains("tmp")));
}

#[test]
fn transformers_is_told_where_a_reply_ends() {
    let ends = json(life(), "life/sft/final/generation_config.json")["eos_token_id"].clone();
    let added = json(life(), "life/sft/final/tokenizer.json")["added_tokens"].clone();
    let id = |text: &str| {
        let mut tokens = added.as_array().unwrap().iter();
        tokens.find(|token| token["content"] == text).unwrap()["id"].clone()
    };
    assert!(ends.as_array().unwrap().contains(&id("<|im_end|>")), "{ends}");
}

#[test]
fn a_pipeline_goes_on_where_it_stopped() {
    let scratch = copied();
    std::fs::remove_dir_all(scratch.path("life/ppo")).unwrap();
    std::fs::remove_file(scratch.path("life/report.json")).unwrap();
    let sft = std::fs::metadata(scratch.path("life/sft/final")).unwrap().modified().unwrap();
    scratch.run("pipeline --config life.toml").fails(2, &["--resume"]);
    scratch.run("pipeline --config life.toml --resume").succeeds();
    assert_eq!(std::fs::metadata(scratch.path("life/sft/final")).unwrap().modified().unwrap(), sft);
    // The same seed, the same bytes: what was made anew is what was there before.
    let bytes = |scratch: &Scratch| std::fs::read(scratch.path("life/ppo/final/model.safetensors")).unwrap();
    assert!(bytes(&scratch) == bytes(life()));
    assert_eq!(metrics(&scratch, "life/ppo"), metrics(life(), "life/ppo"));
    for part in ["models", "comparisons"] {
        let part =
            |scratch: &Scratch| json(scratch, "life/report.json")["benchmarks"]["results"][part].clone();
        assert_eq!(part(&scratch), part(life()));
    }
}

#[test]
fn a_finished_part_with_other_settings_is_refused() {
    let scratch = copied();
    let resume = "pipeline --config life.toml --resume --set";
    scratch
        .run(&format!("{resume} stage.sft.train.lr=0.5"))
        .fails(2, &["life/sft/run.toml", "`train.lr` = 0.001", "0.5"]);
    scratch.run(&format!("{resume} synth.train=61")).fails(2, &["life/run.toml", "`synth.train` = 60"]);
    scratch.run(&format!("{resume} log.every=2")).succeeds();
}

#[test]
fn the_last_part_of_a_pipeline_becomes_longer_and_one_that_others_used_does_not() {
    let scratch = copied();
    let resume = "pipeline --config life.toml --resume --set";
    scratch
        .run(&format!("{resume} stage.sft.train.steps=7"))
        .fails(2, &["stage sft cannot become longer", "already been used by rm, ppo"]);
    assert_eq!(metrics(&scratch, "life/sft"), metrics(life(), "life/sft"));
    let outcome = scratch.run(&format!("{resume} stage.ppo.ppo.iterations=3"));
    outcome.succeeds();
    assert!(outcome.stderr.contains("this run is extended from 2 to 3 steps"), "{outcome:#?}");
    assert_eq!(metrics(&scratch, "life/ppo").len(), 3);
    // Also when the pipeline is started from the file in its own folder.
    scratch.run("pipeline --config life/run.toml --resume --set stage.ppo.ppo.iterations=4").succeeds();
    assert_eq!(metrics(&scratch, "life/ppo").len(), 4);
    scratch.run("pipeline --config life/run.toml --resume").succeeds();
}

/// `stage` resumed from its second checkpoint ends as it did without an interruption, bit for bit.
fn resumes_exactly(stage: &str) {
    let scratch = copied();
    let out = format!("life/{stage}");
    for gone in ["final", "checkpoints/step-4", "checkpoints/step-6"] {
        std::fs::remove_dir_all(scratch.path(&format!("{out}/{gone}"))).unwrap();
    }
    let line = format!("{stage} --config {out}/run.toml --resume");
    scratch.run(&line).succeeds();
    for file in ["final/model.safetensors", "checkpoints/step-6/trainer_state/optimizer.safetensors"] {
        let bytes = |scratch: &Scratch| std::fs::read(scratch.path(&format!("{out}/{file}"))).unwrap();
        assert!(bytes(&scratch) == bytes(life()), "{stage}: {file} differs");
    }
    assert_eq!(metrics(&scratch, &out), metrics(life(), &out));
}

#[test]
fn resumed_sft_equals_uninterrupted_sft() {
    resumes_exactly("sft");
}

#[test]
fn resumed_reward_training_equals_the_uninterrupted_one() {
    resumes_exactly("rm");
}

/// Everything that a checkpoint of PPO has to carry: a coefficient that moves, a critic that begins before
/// the policy, and the order of the rows of the language-modelling term.
pub(crate) const PPO: &str = "--set ppo.iterations=4 --set ppo.kl_target=0.01 --set ppo.kl_horizon=50 --set ppo.critic_warmup=1 \
    --set ppo.ptx_coef=0.1 --set data.ptx=life/data/sft.parquet --set checkpoint.every=1";

/// Runs that PPO into `out`, whole.
pub(crate) fn whole_ppo(scratch: &Scratch, out: &str) {
    scratch.run(&format!("ppo --config life/ppo/run.toml {PPO} --set out={out}")).succeeds();
}

/// Takes from that PPO in `out` everything after the checkpoint of `step`.
pub(crate) fn back_to_step(step: u64, scratch: &Scratch, out: &str) {
    let later = (step + 1..=4).map(|step| format!("checkpoints/step-{step}"));
    for gone in later.chain(["final".to_owned()]) {
        std::fs::remove_dir_all(scratch.path(&format!("{out}/{gone}"))).unwrap();
    }
}

#[test]
fn resumed_ppo_equals_uninterrupted_ppo() {
    for dtype in ["float32", "bfloat16"] {
        let scratch = copied();
        whole_ppo(&scratch, &format!("whole --set model.dtype={dtype}"));
        copy(&scratch.path("whole"), &scratch.path("resumed"));
        back_to_step(2, &scratch, "resumed");
        scratch.run("ppo --config whole/run.toml --set out=resumed --resume").succeeds();
        for file in [
            "final/model.safetensors",
            "checkpoints/step-4/trainer_state/optimizer.safetensors",
            "checkpoints/step-4/trainer_state/state.json",
            "checkpoints/step-4/critic/model.safetensors",
            "checkpoints/step-4/critic/trainer_state/optimizer.safetensors",
        ] {
            let bytes = |out: &str| std::fs::read(scratch.path(&format!("{out}/{file}"))).unwrap();
            assert!(bytes("resumed") == bytes("whole"), "{dtype}: {file} differs");
        }
        assert_eq!(metrics(&scratch, "resumed"), metrics(&scratch, "whole"));
        assert_eq!(scratch.read("resumed/samples.jsonl"), scratch.read("whole/samples.jsonl"));
        let coefficients: Vec<_> =
            metrics(&scratch, "whole").iter().map(|row| row["objective/kl_coef"].as_f64().unwrap()).collect();
        assert!(coefficients.windows(2).all(|pair| pair[0] != pair[1]), "{coefficients:?}");
    }
}

#[test]
fn a_ppo_resume_needs_the_sampler_state_of_its_ptx_rows() {
    let scratch = copied();
    whole_ppo(&scratch, "whole");
    std::fs::remove_dir_all(scratch.path("whole/final")).unwrap();
    let folder = "whole/checkpoints/step-4/trainer_state";
    std::fs::remove_file(scratch.path(&format!("{folder}/files.json"))).unwrap();
    let mut state = json(&scratch, &format!("{folder}/state.json"));
    state["stage"]["ptx"] = Value::Null;
    scratch.write(&format!("{folder}/state.json"), &state.to_string());
    scratch
        .run("ppo --config whole/run.toml --resume")
        .fails(3, &["step-4", "no sampler state for the ptx rows"]);
}

/// Replies to the same prompt are compared with one another: no critic is loaded, trained or saved.
#[test]
fn grpo_and_rloo_need_no_critic_and_resume_exactly() {
    let scratch = copied();
    for estimator in ["grpo", "rloo"] {
        let sets = "--set ppo.iterations=4 --set ppo.rollout_batch_size=4 --set ppo.samples_per_prompt=2 \
                    --set checkpoint.every=1";
        let line = |out: &str| {
            format!(
                "ppo --config life/ppo/run.toml --set ppo.advantage_estimator={estimator} {sets} --set out={out}"
            )
        };
        let whole = format!("{estimator}-whole");
        let outcome = scratch.run(&line(&whole));
        outcome.succeeds();
        // The file that the other run has saved holds the keys of the critic, at their defaults.
        assert!(!outcome.stderr.contains("has no effect"), "{outcome:#?}");
        let plan = json(&scratch, &format!("{whole}/plan.json"));
        assert!(plan["parameters"]["critic"].is_null() && plan["parameters"]["reward"].is_u64(), "{plan}");
        assert!(!scratch.path(&format!("{whole}/checkpoints/step-4/critic")).exists());
        assert!(!scratch.read(&format!("{whole}/run.toml")).contains("critic_lr"));
        for row in metrics(&scratch, &whole) {
            let row = row.as_object().unwrap();
            assert!(row["grad_norm"].as_f64().is_some_and(|norm| norm > 0.0), "{row:?}");
            assert!(!row.keys().any(|key| key.contains("value") || key.contains("critic")), "{row:?}");
        }

        let resumed = format!("{estimator}-resumed");
        copy(&scratch.path(&whole), &scratch.path(&resumed));
        back_to_step(2, &scratch, &resumed);
        scratch.run(&format!("{} --resume", line(&resumed))).succeeds();
        let weights =
            |out: &str| std::fs::read(scratch.path(&format!("{out}/final/model.safetensors"))).unwrap();
        assert!(weights(&resumed) == weights(&whole), "{estimator}");
        assert_eq!(metrics(&scratch, &resumed), metrics(&scratch, &whole));
    }

    let line =
        "ppo --config life/ppo/run.toml --dry-run --set out=x --set ppo.advantage_estimator=rloo --set";
    scratch
        .run(&format!("{line} ppo.samples_per_prompt=1"))
        .fails(2, &["samples_per_prompt = 1", "at least 2"]);
    let sets = "ppo.samples_per_prompt=2 --set ppo.critic_warmup=1";
    scratch.run(&format!("{line} {sets}")).fails(2, &["ppo.critic_warmup", "has no effect on ppo"]);
    let line = "pipeline --config life.toml --resume --dry-run --set ppo.advantage_estimator=rloo --set";
    let sets = "ppo.samples_per_prompt=2 --set stage.ppo.ppo.critic_warmup=1";
    scratch.run(&format!("{line} {sets}")).fails(2, &["critic_warmup", "has no effect on ppo"]);
}

#[test]
fn the_scores_of_several_reward_models_are_added() {
    let scratch = copied();
    let scores = |models: &str, out: &str| {
        let line = "ppo --config life/ppo/run.toml --set ppo.iterations=1 --set ppo.reward_model";
        scratch.run(&format!("{line}={models} --set out={out}")).succeeds();
        metrics(&scratch, out)[0]["objective/scores"].as_f64().unwrap()
    };
    scratch.run("rm --config life/rm/run.toml --set out=other --set seed=9").succeeds();
    let (one, other) = (scores("life/rm/final", "one"), scores("other/final", "two"));
    let both = scores("[\"life/rm/final\",\"other/final\"]", "both");
    // The first rollout does not depend on the reward model.
    assert!((both - one - other).abs() < 1e-5 && (one - other).abs() > 1e-3, "{one} {other} {both}");
    let line = "ppo --config life/ppo/run.toml --set out=x --set ppo.reward_model";
    scratch
        .run(&format!("{line}=[\"life/rm/final\",\"life/sft/final\"]"))
        .fails(3, &["life/sft/final", "not a reward model"]);
    scratch.run(&format!("{line}=[]")).fails(2, &["[[reward]] is not set"]);
}

#[test]
fn a_run_does_not_resume_on_other_rows() {
    let scratch = copied();
    let write_rows = |answer: &str| {
        let turns = format!(
            r#"[{{"role": "user", "content": "what is 1 + 1?"}}, {{"role": "assistant", "content": "{answer}"}}]"#
        );
        scratch.write("rows.jsonl", &format!("{{\"messages\": {turns}}}\n").repeat(8));
    };
    let line = "sft --config life/sft/run.toml --set out=own --set data.train=rows.jsonl --set train.steps=4 \
                --set checkpoint.every=2";
    write_rows("2");
    scratch.run(line).succeeds();
    for gone in ["final", "checkpoints/step-4"] {
        std::fs::remove_dir_all(scratch.path(&format!("own/{gone}"))).unwrap();
    }

    // As many rows with other answers of the same length: only their content differs.
    write_rows("3");
    let resume = format!("{line} --resume");
    scratch.run(&resume).fails(3, &["step-2", "the training rows have changed"]);
    write_rows("2");
    scratch.run(&resume).succeeds();
}

#[test]
fn a_pipeline_goes_on_inside_ppo() {
    let scratch = copied();
    std::fs::remove_dir_all(scratch.path("life/ppo")).unwrap();
    let resume = "pipeline --config life.toml --resume --set stage.ppo.checkpoint.every=1";
    scratch.run(resume).succeeds();
    for gone in ["final", "checkpoints/step-2"] {
        std::fs::remove_dir_all(scratch.path(&format!("life/ppo/{gone}"))).unwrap();
    }
    scratch.run(resume).succeeds();
    let bytes = |scratch: &Scratch| std::fs::read(scratch.path("life/ppo/final/model.safetensors")).unwrap();
    assert!(bytes(&scratch) == bytes(life()));
    assert_eq!(metrics(&scratch, "life/ppo"), metrics(life(), "life/ppo"));
}

#[test]
fn a_run_is_not_resumed_with_other_settings() {
    let scratch = copied();
    std::fs::remove_dir_all(scratch.path("life/sft/final")).unwrap();
    let line = "sft --config life/sft/run.toml --resume";
    let changed = scratch.run(&format!("{line} --set train.weight_decay=0.5"));
    changed.fails(2, &["life/sft/run.toml: the run began with `train.weight_decay`", "choose another `out`"]);
}

#[test]
fn ctrl_c_leaves_a_whole_checkpoint() {
    let scratch = copied();
    let words =
        "sft --config life/sft/run.toml --set out=long --set train.steps=100000 --set checkpoint.every=0";
    let child = scratch.command(&words.split(' ').collect::<Vec<_>>()).spawn().unwrap();
    scratch.wait_for_rows("long/metrics.jsonl", 3);
    signal("INT", child.id());
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{told}");
    let checkpoints = names(&scratch.path("long/checkpoints"));
    assert_eq!(checkpoints.len(), 1, "{checkpoints:?}");
    assert!(told.contains(&checkpoints[0]) && told.contains("--resume"), "{told}");
    let folder = scratch.path("long/checkpoints").join(&checkpoints[0]);
    assert!(names(&folder).contains(&"trainer_state".to_owned()));
    assert!(!scratch.path("long/final").exists());
}

#[test]
fn a_loss_that_is_not_a_number_ends_the_run_with_5() {
    let scratch = copied();
    let sets = "--set out=diverged --set train.lr=1e30 --set train.max_grad_norm=0 --set checkpoint.every=1";
    let outcome = scratch.run(&format!("sft --config life/sft/run.toml {sets}"));
    outcome.fails(5, &["optimizer step", "lower [train] lr"]);
    assert!(!scratch.path("diverged/final").exists());
}

#[test]
fn the_four_models_share_one_vocabulary() {
    let scratch = copied();
    let bigger = LIFE.replace("vocab_size = 300", "vocab_size = 310").replace("'life'", "'other'");
    scratch.write("other.toml", &bigger);
    let stages = "--set pipeline.stages=[\"data\",\"tokenizer\",\"base\",\"sft\",\"rm\"]";
    scratch.run(&format!("pipeline --config other.toml {stages}")).succeeds();
    let line = "ppo --config life/ppo/run.toml --set ppo.reward_model=other/rm/final --set out=mixed";
    scratch.run(line).fails(2, &["other/rm/final: the reward model has another tokenizer", "its token 30"]);
    assert!(!scratch.path("mixed").exists());
}

#[test]
fn models_of_one_size_and_two_tokenizers_are_told_apart() {
    let scratch = copied();
    for part in ["rm", "sft"] {
        copy(&scratch.path(&format!("life/{part}/final")), &scratch.path(part));
        let path = scratch.path(part).join("tokenizer.json");
        let text = std::fs::read_to_string(&path).unwrap();
        let mut tokenizer: Value = serde_json::from_str(&text).unwrap();
        let vocabulary = tokenizer["model"]["vocab"].as_object_mut().unwrap();
        // The digits 3 and 4 change places.
        let (three, four) = (vocabulary["3"].clone(), vocabulary["4"].clone());
        vocabulary.insert("3".to_owned(), four);
        vocabulary.insert("4".to_owned(), three);
        std::fs::write(&path, tokenizer.to_string()).unwrap();
    }
    for (set, role) in
        [("reward_model=rm", "reward"), ("reference_model=sft", "reference"), ("critic_model=rm", "critic")]
    {
        let line = format!("ppo --config life/ppo/run.toml --set out=mixed --set ppo.{set}");
        let words = [format!("the {role} model has another tokenizer than the model in training: its token")];
        scratch.run(&line).fails(2, &[&words[0], "is \"4\", not \"3\""]);
    }
    std::fs::remove_file(scratch.path("rm").join("tokenizer.json")).unwrap();
    let outcome =
        scratch.run("ppo --config life/ppo/run.toml --dry-run --set out=mixed --set ppo.reward_model=rm");
    outcome.succeeds();
    assert!(
        outcome.stderr.contains("warning: rm has no tokenizer.json: whether the reward model"),
        "{outcome:#?}"
    );
    assert!(!scratch.path("mixed").exists());
}

#[test]
fn a_rollout_of_one_token_works() {
    let scratch = copied();
    let first = std::fs::read_to_string(scratch.path("life/ppo/run.toml")).unwrap();
    scratch.write("one.toml", &first);
    scratch.write("one.jsonl", "{\"prompt\": \"1 + 1\"}\n");
    let sets = "--set out=one --set data.train=one.jsonl --set ppo.rollout_batch_size=1 --set ppo.mini_batch_size=1 \
                --set ppo.max_new_tokens=1 --set ppo.whiten_rewards=true --set ppo.iterations=2";
    let outcome = scratch
        .run(&format!("ppo --config one.toml {}", sets.split_whitespace().collect::<Vec<_>>().join(" ")));
    outcome.succeeds();
    let words = ["1 prompt, ", "2 iterations of 1 reply", "2 iterations in"];
    assert!(words.iter().all(|word| outcome.stderr.contains(word)), "{outcome:#?}");
    for row in metrics(&scratch, "one") {
        // One return has no variance, and whatever else is logged is a number.
        for (name, value) in row.as_object().unwrap() {
            assert_eq!(value.is_null(), name == "val/explained_variance", "{name}: {value}");
        }
    }
}

#[test]
fn dropout_that_is_not_applied_is_told_once() {
    let scratch = copied();
    let path = scratch.path("life/base/final/config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replacen("\"attention_dropout\": 0.0", "\"attention_dropout\": 0.1", 1))
        .unwrap();
    let outcome = scratch.run("sft --config life/sft/run.toml --set out=dropped --set train.steps=1");
    outcome.succeeds();
    let told = "warning: dropout of config.json is not applied: `attention_dropout` 0.1 of the model";
    assert_eq!(outcome.stderr.matches(told).count(), 1, "{outcome:#?}");
    assert!(outcome.stderr.contains("; 1 step of 8 rows;"), "{outcome:#?}");
}

#[test]
fn rows_beyond_the_rotations_are_refused() {
    let scratch = copied();
    let path = scratch.path("life/base/final/config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(
        &path,
        text.replacen("\"max_position_embeddings\": 128", "\"max_position_embeddings\": 8", 1),
    )
    .unwrap();
    let outcome = scratch.run("sft --config life/sft/run.toml --set out=long");
    outcome.fails(
        2,
        &[
            "the model has 8 positions and the longest row has",
            "set [data] max_length to 8 or less, or stretch",
        ],
    );
    assert!(!scratch.path("long").exists());
}

#[test]
fn a_score_is_not_trained_as_a_language_model() {
    let scratch = copied();
    for line in ["sft --config life/sft/run.toml", "ppo --config life/ppo/run.toml"] {
        let outcome = scratch.run(&format!("{line} --set out=scored --set model.path=life/rm/final"));
        outcome.fails(3, &["life/rm/final: this is a reward model"]);
    }
    let line = "ppo --config life/ppo/run.toml --set out=scored --set ppo.reference_model=life/rm/final";
    scratch.run(line).fails(3, &["life/rm/final: this is a reward model"]);
}

#[test]
fn a_report_tells_the_sizes_of_the_models_that_it_measured() {
    let scratch = copied();
    let text = LIFE.replace("hidden_size = 16", "hidden_size = 64").replace("'life'", "'later'");
    scratch.write("later.toml", &text);
    let stages = "--set pipeline.stages=[\"data\",\"sft\",\"report\"]";
    let line = format!("pipeline --config later.toml {stages} --set stage.sft.model.path=life/base/final");
    scratch.run(&line).succeeds();
    let report: Value = serde_json::from_str(&scratch.read("later/report.json")).unwrap();
    let settings = &report["settings"];
    assert_eq!(
        (&settings["hidden size"], &settings["layers"]),
        (&Value::from(16), &Value::from(2)),
        "{settings}"
    );
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 1);
    let from = runs[0]["settings"].as_array().unwrap().iter().find(|setting| setting[0] == "model.path");
    assert!(from.unwrap()[2].as_str().unwrap().contains("life/base/final"), "{from:?}");
}

#[test]
fn weights_that_are_cut_short_are_named() {
    let scratch = copied();
    let weights = scratch.path("life/base/final/model.safetensors");
    let file = std::fs::OpenOptions::new().write(true).open(&weights).unwrap();
    file.set_len(file.metadata().unwrap().len() / 2).unwrap();
    let outcome = scratch.run("sft --config life/sft/run.toml --set out=cut");
    outcome.fails(3, &["model.safetensors is truncated", "download or copy it again"]);
    assert!(!scratch.path("cut").exists());
}

#[test]
fn ptx_rows_without_a_weight_are_refused() {
    let outcome =
        copied().run("ppo --config life/ppo/run.toml --set out=x --set data.ptx=life/data/sft.parquet");
    outcome.fails(2, &["`data.ptx`", "ptx_coef"]);
}
