//! Online DPO and on-policy distillation, through the binary: every mesh and budget, adapters, killed and
//! resumed.

use crate::gemini::{same_bits, with_large_model};
use crate::groups::{
    DATA, PIPELINE, RUN, TENSOR, ULYSSES, ZERO, column, equals_one_process, line, roles, with_run_file,
};
use crate::offline::killed_and_resumed;
use crate::training::metrics;

/// Beside a reference that is the policy, rounding decides which reply of a pair it likes better.
const OTHER_REFERENCE: &str = "--set ppo.reference_model=life/ppo/final";
const TEACHER: &str = "--set distill.teacher=life/ppo/final";
/// What a tensor-parallel rank cannot choose alone: the likeliest tokens of the vocabulary.
const TOP_K: &str = "--set distill.teacher=life/ppo/final --set distill.top_k=5 --set distill.divergence=jsd";

#[test]
fn online_dpo_is_the_same_on_every_mesh() {
    let scratch = with_run_file();
    equals_one_process(
        &scratch,
        "online-dpo",
        OTHER_REFERENCE,
        &[DATA, "--nproc 3", ZERO, TENSOR, PIPELINE, ULYSSES],
    );
    assert_eq!(roles(&scratch, "alone"), ["policy", "reference"]);
    let pairs = column(&scratch, "alone", "pairs/count");
    assert!(pairs.iter().all(|&pairs| pairs > 0.0 && pairs <= 4.0), "{pairs:?}");
    // The policy begins as its reference: the loss of a pair is ln 2.
    let settings = "--set ppo.iterations=1 --set ppo.mini_batch_size=16";
    scratch.run(&line("online-dpo", "first", settings)).succeeds();
    let loss = column(&scratch, "first", "loss")[0];
    assert!((loss - std::f64::consts::LN_2).abs() < 1e-6, "{loss}");
}

#[test]
fn distillation_on_replies_is_the_same_on_every_mesh() {
    let scratch = with_run_file();
    equals_one_process(&scratch, "gkd", TEACHER, &[DATA, ZERO, PIPELINE, ULYSSES]);
    assert_eq!(roles(&scratch, "alone"), ["policy", "teacher"]);
    for row in metrics(&scratch, "alone") {
        assert!(row["loss"].as_f64().unwrap() > 0.0 && row["objective/scores"].is_null(), "{row}");
    }
}

#[test]
fn the_likeliest_tokens_of_a_teacher_are_the_same_on_every_mesh() {
    let scratch = with_run_file();
    equals_one_process(&scratch, "gkd", TOP_K, &[TENSOR, DATA]);
    let [loss, all] = ["alone", "all"].map(|out| {
        if out == "all" {
            scratch.run(&line("gkd", "all", &TOP_K.replace("top_k=5", "beta=0.5"))).succeeds();
        }
        column(&scratch, out, "loss")[0]
    });
    // Outcomes that are joined tell two distributions apart less well (the data processing inequality).
    assert!(loss > 0.0 && loss < all, "{loss} {all}");
}

#[test]
fn a_killed_run_on_pairs_or_replies_goes_on() {
    let scratch = with_run_file();
    for (stage, more) in [("online-dpo", "--set ppo.dynamic_sampling=true"), ("gkd", TEACHER)] {
        for processes in ["", "--nproc 2"] {
            let settings = format!("--set ppo.staleness=1 --set ppo.iterations=20 {processes} {more}");
            let check = || {
                assert!(!scratch.path("killed/final").exists(), "the run was over before it was killed");
                assert!(scratch.path("killed/checkpoints/step-3/trainer_state/rollout.bin").exists());
            };
            killed_and_resumed(&scratch, |out| line(stage, out, &settings), check);
        }
    }
}

#[test]
fn a_budget_gives_the_same_bits_to_pairs_and_replies() {
    let scratch = with_large_model();
    scratch.write("run.toml", RUN);
    let train = "--set model.path=large --set train.micro_batch_size=2 --set ppo.iterations=2 \
                 --set train.activation_checkpointing=true";
    for (stage, more, budget) in
        [("online-dpo", "", "14MiB"), ("gkd", "--set distill.teacher=large", "20MiB")]
    {
        let settings = format!("{train} {more}");
        scratch.run(&line(stage, stage, &settings)).succeeds();
        let out = format!("{stage}-limited");
        let budget = format!("{settings} --set gemini.device_memory='{budget}'");
        let outcome = scratch.run(&line(stage, &out, &budget));
        outcome.succeeds();
        let nothing_moved = outcome.stderr.contains("; 0 MiB read from the disk");
        assert!(!nothing_moved, "nothing has left memory: {outcome:#?}");
        same_bits(&scratch, &out, stage);
    }
}

#[test]
fn adapters_learn_from_pairs_and_replies() {
    let scratch = with_run_file();
    for (stage, more) in [("online-dpo", OTHER_REFERENCE), ("gkd", TEACHER)] {
        equals_one_process(&scratch, stage, &format!("--set model.lora.r=4 {more}"), &[DATA, TENSOR]);
        for out in ["alone", "mesh-0", "mesh-1"] {
            std::fs::remove_dir_all(scratch.path(out)).unwrap();
        }
    }
}

/// Experts on several ranks need a micro-batch on each of them, and the number of pairs changes.
#[test]
fn pairs_train_experts_on_several_ranks() {
    let scratch = with_run_file();
    scratch.write(
        "experts.json",
        r#"{"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "vocab_size": 300, "hidden_size": 16,
            "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "num_local_experts": 4, "num_experts_per_tok": 2, "max_position_embeddings": 128}"#,
    );
    scratch.run("model init experts.json --seed 1 --out experts").succeeds();
    let settings = "--set model.path=experts --set tokenizer.path=life/sft/final --set ppo.mini_batch_size=20 \
                    --set ppo.rollout_batch_size=5 --set train.micro_batch_size=1 \
                    --set dpo.reference_free=true";
    equals_one_process(&scratch, "online-dpo", settings, &["--nproc 2 --set parallel.expert.size=2", DATA]);
    let pairs = column(&scratch, "alone", "pairs/count");
    assert!(pairs.iter().any(|pairs| pairs % 2.0 == 1.0), "{pairs:?}");
}

#[test]
fn what_cannot_work_is_refused_before_the_first_step() {
    let scratch = with_run_file();
    let refused = |stage: &str, more: &str, words: &[&str]| {
        scratch.run(&line(stage, "no", more)).fails(2, words);
        assert!(!scratch.path("no/metrics.jsonl").exists());
    };
    refused("online-dpo", "--set ppo.samples_per_prompt=1", &["a pair is of two replies"]);
    refused("online-dpo", "--set ppo.mini_batch_size=2", &["mini_batch_size = 2", "samples_per_prompt = 4"]);
    refused("online-dpo", "--set ppo.kl_coef=0.1", &["`ppo.kl_coef` has no effect on online-dpo"]);
    refused("online-dpo", "--set environment.kind=calculator", &["`environment.kind` has no effect"]);
    refused("gkd", "", &["`distill.teacher` is not set"]);
    refused("gkd", &TOP_K.replace("top_k=5", "top_k=100000"), &["top_k = 100000", "below"]);
}
