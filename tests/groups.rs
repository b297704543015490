//! Algorithms that compare the replies to a prompt, through the binary: presets and estimators, rollouts that
//! are filled up and drawn ahead, killed and resumed, every mesh and budget, adapters, and episodes of
//! several turns. How programs and servers give scores is in `verifiers.rs`.

use std::collections::HashSet;
use std::path::PathBuf;

use serde_json::Value;

use crate::gemini::{same_bits, with_large_model};
use crate::harness::Scratch;
use crate::offline::{self, killed_and_resumed};
use crate::ranks;
use crate::training::{copied, copy, json, metrics};

/// A run file for any of the stages, with two verifiers whose scores differ from reply to reply.
pub(crate) const RUN: &str = "
out = 'run'
seed = 4

[model]
path = 'life/sft/final'

[data]
train = 'life/data/prompts.parquet'
max_length = 128

[train]
micro_batch_size = 3
lr = 1e-3
eps = 1e-4

[checkpoint]
every = 1
keep = 30

[log]
every = 1

[ppo]
iterations = 3
rollout_batch_size = 4
samples_per_prompt = 4
mini_batch_size = 8
max_new_tokens = 6

[[reward]]
kind = 'regex'
name = 'vowel'
pattern = '[aeiou]'

[[reward]]
kind = 'repetition'
ngram = 1
weight = 0.5
";

/// Everything that a checkpoint has to carry between two rollouts: one that was drawn ahead, the place in the
/// prompts after refills, and the moments of a reward. Two replies with the scores 0 or 1 are often equal.
const AHEAD: &str = "--set reward=[{kind='regex',name='vowel',pattern='[aeiou]',normalize='running'}] \
    --set ppo.samples_per_prompt=2 --set ppo.mini_batch_size=4 --set ppo.dynamic_sampling=true \
    --set ppo.max_refills=3 --set ppo.staleness=1 --set ppo.correction=token_truncate";

pub(crate) fn with_run_file() -> Scratch {
    let scratch = copied();
    scratch.write("run.toml", RUN);
    scratch
}

/// The command of a stage.
pub(crate) fn line(stage: &str, out: &str, more: &str) -> String {
    let line = format!("{stage} --config run.toml --set out={out} {more}");
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The models that a run has loaded, the policy first.
pub(crate) fn roles(scratch: &Scratch, out: &str) -> Vec<String> {
    let plan = json(scratch, &format!("{out}/plan.json"));
    let models = plan["memory"].as_array().unwrap();
    models.iter().map(|model| model["role"].as_str().unwrap().to_owned()).collect()
}

/// A metric of each iteration.
pub(crate) fn column(scratch: &Scratch, out: &str, name: &str) -> Vec<f64> {
    let number = |row: &Value| row[name].as_f64().unwrap_or_else(|| panic!("no {name} in {row}"));
    metrics(scratch, out).iter().map(number).collect()
}

/// The file that a run has trained: a model, or an adapter.
fn weights(scratch: &Scratch, out: &str) -> PathBuf {
    let file = |name: &str| scratch.path(&format!("{out}/final/{name}"));
    let adapter = file("adapter_model.safetensors");
    if adapter.exists() { adapter } else { file("model.safetensors") }
}

/// The metrics of a run, without those of how the work was split and of how the sampler rounds.
fn numbers(scratch: &Scratch, out: &str) -> Vec<Value> {
    let mut rows = metrics(scratch, out);
    for row in &mut rows {
        let of_split = |name: &str| name.starts_with("units/") || name.starts_with("sampling/");
        row.as_object_mut().unwrap().retain(|name, _| !of_split(name));
    }
    rows
}

/// Two runs have equal metrics and weights, up to rounding.
#[track_caller]
pub(crate) fn nearly_equal(scratch: &Scratch, left: &str, right: &str) {
    let difference = offline::worst(&numbers(scratch, left), &numbers(scratch, right));
    assert!(difference < 1e-5, "{left} and {right}: metrics differ by {difference}");
    let difference = ranks::worst(&weights(scratch, left), &weights(scratch, right));
    assert!(difference < 1e-5, "{left} and {right}: weights differ by {difference}");
}

/// A stage with these settings gives the same numbers on one process and on each mesh.
#[track_caller]
pub(crate) fn equals_one_process(scratch: &Scratch, stage: &str, settings: &str, meshes: &[&str]) {
    scratch.run(&line(stage, "alone", settings)).succeeds();
    for (number, mesh) in meshes.iter().enumerate() {
        let out = format!("mesh-{number}");
        scratch.run(&line(stage, &out, &format!("{settings} {mesh}"))).succeeds();
        nearly_equal(scratch, "alone", &out);
    }
}

/// Takes away what a run of `iterations` has saved after the checkpoint of `step`.
pub(crate) fn back_to_step(scratch: &Scratch, out: &str, step: u64, iterations: u64) {
    let later = (step + 1..=iterations).map(|step| format!("checkpoints/step-{step}"));
    for gone in later.chain(["final".to_owned()]) {
        std::fs::remove_dir_all(scratch.path(&format!("{out}/{gone}"))).unwrap();
    }
}

pub(crate) const DATA: &str = "--nproc 2";
pub(crate) const ZERO: &str = "--nproc 2 --set parallel.zero=3";
pub(crate) const TENSOR: &str = "--nproc 2 --set parallel.tensor.size=2";
pub(crate) const PIPELINE: &str = "--nproc 2 --set parallel.pipeline.size=2";
pub(crate) const ULYSSES: &str =
    "--nproc 2 --set parallel.sequence.mode='ulysses' --set parallel.sequence.size=2";
const RING: &str = "--nproc 2 --set parallel.sequence.mode='ring' --set parallel.sequence.size=2";

#[test]
fn verifiers_are_enough_and_without_a_penalty_there_is_no_reference() {
    let scratch = with_run_file();
    scratch.run(&line("grpo", "free", "--set ppo.kl_coef=0")).succeeds();
    assert_eq!(roles(&scratch, "free"), ["policy"]);
    let vowel = column(&scratch, "free", "rewards/vowel/mean");
    let repetition = column(&scratch, "free", "rewards/repetition/mean");
    for (row, scores) in column(&scratch, "free", "objective/scores").into_iter().enumerate() {
        let expected = vowel[row] + 0.5 * repetition[row];
        assert!((scores - expected).abs() < 1e-12, "{scores} {expected}");
    }
    assert!(vowel.iter().any(|&mean| mean > 0.0 && mean < 1.0), "{vowel:?}");
    for row in metrics(&scratch, "free") {
        assert!(row["rewards/vowel/failed"] == 0.0 && row["rewards/repetition/std"].is_f64(), "{row}");
        assert!(row["objective/kl"].is_null() && row["loss/value_avg"].is_null(), "{row}");
        assert!(row["grad_norm"].as_f64().unwrap() > 0.0, "{row}");
    }

    scratch.run(&line("grpo", "tied", "")).succeeds();
    assert_eq!(roles(&scratch, "tied"), ["policy", "reference"]);
    // The policy begins as its reference, and leaves it.
    let kl = column(&scratch, "tied", "objective/kl");
    assert!(kl[0].abs() < 1e-6 && kl[1..].iter().all(|&kl| kl > 1e-6), "{kl:?}");
}

#[test]
fn a_verifier_that_is_held_out_changes_nothing() {
    let scratch = with_run_file();
    let vowel = "{kind='regex',name='vowel',pattern='[aeiou]'}";
    let rewards =
        |more: &str| format!("--set reward=[{vowel},{{kind='repetition',ngram=1,weight=0.5}}{more}]");
    scratch.run(&line("grpo", "two", &rewards(""))).succeeds();
    let held_out = rewards(",{kind='length',target=3,tolerance=3,weight=0,name='held_out'}");
    scratch.run(&line("grpo", "three", &held_out)).succeeds();
    assert!(column(&scratch, "three", "rewards/held_out/mean").iter().any(|&mean| mean > 0.0));
    let bytes = |out: &str| std::fs::read(weights(&scratch, out)).unwrap();
    assert!(bytes("two") == bytes("three"));
}

#[test]
fn every_preset_of_groups_takes_a_step() {
    let scratch = with_run_file();
    for (preset, more, has_reference, setting) in [
        ("dapo", "--set ppo.overlong_buffer=2", false, "clip_range_high = 0.28"),
        ("dr-grpo", "", false, "advantage_scale = \"none\""),
        ("trl", "", false, "loss_agg_mode = \"token_mean\""),
        ("verl", "", true, "kl_coef = 0.001"),
        ("openrlhf", "", true, "score_clip = 10.0"),
    ] {
        let settings = format!("--set preset={preset} --set ppo.iterations=1 {more}");
        let outcome = scratch.run(&line("grpo", preset, &settings));
        outcome.succeeds();
        assert!(!outcome.stderr.contains("has no effect"), "{outcome:#?}");
        assert_eq!(roles(&scratch, preset).len(), 1 + usize::from(has_reference), "{preset}");
        let saved = scratch.read(&format!("{preset}/run.toml"));
        assert!(saved.contains(&format!("{setting}  # preset {preset}")), "{saved}");
        assert!(column(&scratch, preset, "grad_norm")[0] > 0.0, "{preset}");
    }
    assert!(metrics(&scratch, "dapo")[0]["rollout/refills"].is_f64());
    // The penalty of DAPO begins 4096 tokens before the longest reply.
    scratch
        .run(&line("grpo", "no", "--set preset=dapo"))
        .fails(2, &["[ppo] overlong_buffer = 4096", "max_new_tokens"]);
}

#[test]
fn rloo_and_reinforce_learn_without_a_critic() {
    let scratch = with_run_file();
    for (stage, more) in
        [("rloo", ""), ("reinforce", "--set ppo.samples_per_prompt=1 --set ppo.mini_batch_size=4")]
    {
        scratch.run(&line(stage, stage, more)).succeeds();
        assert_eq!(roles(&scratch, stage), ["policy", "reference"]);
        for row in metrics(&scratch, stage) {
            let is_of_critic = |name: &String| name.contains("value") || name.contains("critic");
            assert!(!row.as_object().unwrap().keys().any(is_of_critic), "{row}");
            assert!(row["grad_norm"].as_f64().unwrap() > 0.0, "{row}");
        }
    }
    scratch
        .run(&line("rloo", "no", "--set ppo.samples_per_prompt=1 --set ppo.mini_batch_size=4"))
        .fails(2, &["samples_per_prompt = 1", "at least 2"]);
}

#[test]
fn every_estimator_and_every_loss_learns_in_its_own_way() {
    let scratch = with_run_file();
    let mut found = HashSet::new();
    for (estimator, loss) in [
        ("grpo", "clip"),
        ("rloo", "gspo"),
        ("reinforce_plus_plus", "cispo"),
        ("reinforce_plus_plus_baseline", "gmpo"),
        ("remax", "sapo"),
        ("opo", "dppo_tv"),
        ("maxrl", "dppo_kl"),
        ("pass_at_k", "gpg"),
    ] {
        let settings = format!(
            "--set ppo.advantage_estimator={estimator} --set ppo.policy_loss={loss} --set ppo.iterations=1"
        );
        scratch.run(&line("grpo", estimator, &settings)).succeeds();
        assert!(column(&scratch, estimator, "grad_norm")[0] > 0.0, "{estimator} {loss}");
        assert!(found.insert(std::fs::read(weights(&scratch, estimator)).unwrap()), "{estimator} {loss}");
    }
}

/// A run file of a version that knew no other algorithm than PPO.
const PPO: &str = "
out = 'run'
seed = 4
[model]
path = 'life/sft/final'
[data]
train = 'life/data/prompts.parquet'
max_length = 128
[train]
micro_batch_size = 4
lr = 1e-3
[log]
every = 1
[ppo]
iterations = 2
rollout_batch_size = 8
mini_batch_size = 4
epochs = 2
max_new_tokens = 6
reward_model = 'life/rm/final'
kl_coef = 0.1
kl_estimator = 'k2'
gae_lambda = 0.9
clip_range = 0.3
clip_range_value = 0.3
vf_coef = 0.2
whiten_rewards = true
score_slot = 'after_eos'
missing_eos_penalty = 1.0
critic_lr = 1e-4
";

#[test]
fn run_files_of_ppo_still_work() {
    let scratch = copied();
    scratch.write("run.toml", PPO);
    let outcome = scratch.run(&line("ppo", "short", ""));
    outcome.succeeds();
    assert!(!outcome.stderr.contains("warning"), "{outcome:#?}");
    assert_eq!(roles(&scratch, "short"), ["policy", "critic", "reference", "reward"]);
    assert_eq!(
        column(&scratch, "short", "objective/scores"),
        column(&scratch, "short", "rewards/reward/mean")
    );
    assert!(column(&scratch, "short", "loss/value_avg").iter().all(|&loss| loss > 0.0));

    // The setting of the reward model is a short form.
    let entry = "[[reward]]\nkind = 'model'\nmodel = 'life/rm/final'\nname = 'reward'\n";
    scratch.write("run.toml", &format!("{}{entry}", PPO.replace("reward_model = 'life/rm/final'\n", "")));
    scratch.run(&line("ppo", "long", "")).succeeds();
    same_bits(&scratch, "long", "short");

    // The critic cannot begin as a verifier.
    scratch.write("run.toml", RUN);
    scratch.run(&line("ppo", "no", "")).fails(2, &["`ppo.critic_model` is not set"]);
    scratch.run(&line("ppo", "critic", "--set ppo.critic_model=life/rm/final")).succeeds();
    assert_eq!(roles(&scratch, "critic"), ["policy", "critic", "reference"]);
}

#[test]
fn the_old_section_of_reward_models_names_the_new_one() {
    let scratch = copied();
    let old = scratch.read("life/rm/run.toml").replace("[rm]", "[reward]");
    scratch.write("old.toml", &old);
    scratch.run("rm --config old.toml --set out=no").fails(2, &["old.toml:", "[rm]", "[[reward]]"]);
    let line = "rm --config life/rm/run.toml --set out=no";
    let words = ["--set reward.center_rewards_coefficient=0.01", "[rm]"];
    scratch.run(&format!("{line} --set reward.center_rewards_coefficient=0.01")).fails(2, &words);
    scratch.run(&format!("{line} --set rm.center_rewards_coefficient=0.01")).succeeds();
}

#[test]
fn a_killed_run_goes_on_with_the_rollout_that_was_drawn_ahead() {
    let scratch = with_run_file();
    for processes in ["", "--nproc 2"] {
        let settings = format!("{AHEAD} {processes} --set ppo.iterations=20");
        let check = || {
            assert!(!scratch.path("killed/final").exists(), "the run was over before it was killed");
            assert!(scratch.path("killed/checkpoints/step-3/trainer_state/rollout.bin").exists());
            let refills = column(&scratch, "whole", "rollout/refills");
            assert!(refills.contains(&0.0) && refills.iter().any(|&refills| refills > 1.0), "{refills:?}");
        };
        killed_and_resumed(&scratch, |out| line("grpo", out, &settings), check);
    }
}

#[test]
fn a_rollout_that_was_drawn_ahead_goes_on_on_another_mesh() {
    let scratch = with_run_file();
    let settings = |more: &str| format!("{AHEAD} --set ppo.iterations=5 {more}");
    scratch.run(&line("grpo", "whole", &settings(""))).succeeds();
    for (number, mesh) in [DATA, TENSOR].into_iter().enumerate() {
        let out = format!("next-{number}");
        copy(&scratch.path("whole"), &scratch.path(&out));
        back_to_step(&scratch, &out, 2, 5);
        scratch.run(&line("grpo", &out, &settings(&format!("{mesh} --resume")))).succeeds();
        nearly_equal(&scratch, "whole", &out);
    }
}

#[test]
fn every_mesh_computes_the_same() {
    let scratch = with_run_file();
    equals_one_process(&scratch, "grpo", "", &[DATA, ZERO, TENSOR, PIPELINE, ULYSSES]);
}

/// Two processes cut the groups of a refill in the middle.
#[test]
fn refills_and_sequence_losses_are_the_same_on_every_mesh() {
    let scratch = with_run_file();
    let settings = format!("{AHEAD} --set ppo.policy_loss=gspo --set ppo.epochs=2 --set ppo.iterations=4");
    equals_one_process(&scratch, "grpo", &settings, &[DATA, "--nproc 3", ZERO, PIPELINE, ULYSSES]);
    assert!(column(&scratch, "alone", "rollout/refills").iter().any(|&refills| refills > 0.0));
}

/// A mini-batch of one token leaves one of two ranks without any.
#[test]
fn a_step_may_have_fewer_tokens_than_ranks() {
    let scratch = with_run_file();
    let settings = "--set ppo.max_new_tokens=1 --set ppo.mini_batch_size=1 --set ppo.iterations=1";
    equals_one_process(&scratch, "grpo", settings, &[DATA, TENSOR, ULYSSES, RING]);
}

#[test]
fn every_budget_gives_the_same_bits() {
    let scratch = with_large_model();
    scratch.write("run.toml", RUN);
    let train = "--set model.path=large --set train.micro_batch_size=2 --set ppo.iterations=2 \
                 --set train.activation_checkpointing=true";
    for (name, more) in [("plain", ""), ("ahead", AHEAD)] {
        let settings = format!("{train} {more}");
        scratch.run(&line("grpo", name, &settings)).succeeds();
        for (number, budget) in ["'12MiB'", "'16MiB' --set gemini.placement='disk'"].into_iter().enumerate() {
            let out = format!("{name}-{number}");
            let budget = format!("{settings} --set gemini.device_memory={budget}");
            let outcome = scratch.run(&line("grpo", &out, &budget));
            outcome.succeeds();
            assert!(
                !outcome.stderr.contains("; 0 MiB read from the disk"),
                "nothing has left memory: {outcome:#?}"
            );
            same_bits(&scratch, &out, name);
        }
    }
    let limited = format!("{train} --set gemini.device_memory='14MiB' {ZERO}");
    scratch.run(&line("grpo", "divided", &limited)).succeeds();
    nearly_equal(&scratch, "plain", "divided");
}

#[test]
fn adapters_learn_from_groups_on_several_processes_as_on_one() {
    let scratch = with_run_file();
    equals_one_process(&scratch, "grpo", "--set model.lora.r=4", &[DATA, ZERO, TENSOR]);
    // The reference is the trunk without the adapter.
    let plan = json(&scratch, "alone/plan.json");
    assert_eq!((&plan["memory"][1]["role"], &plan["memory"][1]["weights"]), (&"reference".into(), &0.into()));
    assert!(weights(&scratch, "alone").ends_with("adapter_model.safetensors"));
}

/// A scratch folder with a model that has seen calls of a calculator.
fn with_calculator() -> Scratch {
    let scratch = with_run_file();
    scratch.run("data calculator --rows 24 --heldout 4 --out calculator").succeeds();
    let settings = "--set data.train=calculator/sft.parquet --set train.steps=150 --set train.lr=1e-2 \
                    --set checkpoint.every=0";
    scratch.run(&format!("sft --config life/sft/run.toml --set out=caller {settings}")).succeeds();
    scratch
}

#[test]
fn a_calculator_answers_between_the_turns() {
    let scratch = with_calculator();
    let settings = "--set model.path=caller/final --set data.train=calculator/prompts.parquet \
                    --set ppo.max_new_tokens=12 --set ppo.iterations=4 --set ppo.staleness=1 \
                    --set environment={kind='calculator'} \
                    --set reward=[{kind='exact'},{kind='length',target=8,tolerance=8}]";
    equals_one_process(&scratch, "grpo", settings, &[DATA, TENSOR]);
    let turns = column(&scratch, "alone", "monitor/turns");
    assert!(turns.iter().all(|&turns| turns > 1.0 && turns <= 4.0), "{turns:?}");
    let samples = scratch.read("alone/samples.jsonl");
    assert!(samples.contains(r"\ntool\n") && samples.contains("assistant"), "{samples}");

    copy(&scratch.path("alone"), &scratch.path("resumed"));
    back_to_step(&scratch, "resumed", 2, 4);
    scratch.run(&line("grpo", "resumed", &format!("{settings} --resume"))).succeeds();
    same_bits(&scratch, "resumed", "alone");
}

/// An environment that rewards each turn by its length and lets the policy go on after most of them.
const REWARDS_LENGTH: &str = r#"while IFS= read -r line; do
  id=${line#*\"id\":}; id=${id%%[,\}]*}
  turns=${line#*\"turns\":}; steps=
  while [ "$turns" != "${turns#*\"text\":}" ]; do
    turns=${turns#*\"text\":}; text=${turns%%\}*}; length=${#text}
    if [ $((length % 3)) = 0 ]; then
      steps="$steps,{\"done\":true,\"reward\":1}"
    else
      steps="$steps,{\"done\":false,\"reward\":-0.5,\"messages\":[{\"role\":\"user\",\"content\":\"go on\"}]}"
    fi
  done
  printf '{"id":%s,"steps":[%s]}\n' "$id" "${steps#,}"
done
"#;

/// Groups whose replies are rewarded differently by the environment alone are not without variance.
#[test]
fn rewards_of_an_environment_keep_groups_in_the_rollout() {
    let scratch = with_run_file();
    scratch.write("environment.sh", REWARDS_LENGTH);
    let settings = "--set reward=[] --set environment={kind='command',command=['/bin/sh','environment.sh']} \
                    --set ppo.dynamic_sampling=true --set ppo.max_refills=4 --set ppo.iterations=2";
    equals_one_process(&scratch, "grpo", settings, &[DATA]);
    for row in metrics(&scratch, "alone") {
        assert!(row["groups/zero_variance"].as_f64().unwrap() < 1.0, "{row}");
        assert!(row["rollout/refills"].as_f64().unwrap() < 4.0, "{row}");
    }
}

/// Every reply and every greedy reply has the reward 1, so that no reply is better than its baseline.
#[test]
fn the_greedy_baseline_has_the_rewards_of_the_environment() {
    let scratch = with_run_file();
    let program = REWARDS_LENGTH.replace("[ $((length % 3)) = 0 ]", "true");
    scratch.write("environment.sh", &program);
    let environment = "--set reward=[] --set ppo.kl_coef=0 \
                       --set environment={kind='command',command=['/bin/sh','environment.sh'],max_turns=1}";
    let settings = format!("{environment} --set ppo.advantage_estimator=remax --set ppo.iterations=1");
    scratch.run(&line("grpo", "remax", &settings)).succeeds();
    assert_eq!(column(&scratch, "remax", "objective/rlhf_reward"), [1.0]);
    assert_eq!(column(&scratch, "remax", "grad_norm"), [0.0]);
}
