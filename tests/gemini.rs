//! Models under a budget of memory: the same bits as without one, less memory, and a clear end where it
//! cannot be kept.

use std::time::Duration;

use crate::harness::{Scratch, signal};
use crate::training::{copied, metrics};

/// A model of 1.2 M parameters: large enough for a dozen chunks.
const CONFIG: &str = r#"{
  "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 300, "hidden_size": 128,
  "intermediate_size": 384, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2,
  "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
  "tie_word_embeddings": true, "bos_token_id": 0, "eos_token_id": 1, "dtype": "float32"
}"#;

/// A scratch folder with the model `large`, which has the tokenizer of the pipeline.
pub(crate) fn with_large_model() -> Scratch {
    let scratch = copied();
    scratch.write("large.json", CONFIG);
    scratch.run("model init large.json --tokenizer life/sft/final --seed 3 --out large").succeeds();
    scratch
}

/// Two micro-batches a step, so that the order of the micro-batches matters, and recomputed activations.
const TRAIN: &str = "--set train.micro_batch_size=2 --set train.gradient_accumulation_steps=2 \
                     --set train.activation_checkpointing=true --set train.steps=4 --set checkpoint.every=2";

/// The command of a stage that trains `large`.
pub(crate) fn line(stage: &str, out: &str, sets: &str) -> String {
    let own = match stage {
        "ppo" => {
            "--set ppo.reward_model=rm-whole/final --set train.micro_batch_size=2 --set checkpoint.every=1 \
             --set train.activation_checkpointing=true"
        }
        _ => TRAIN,
    };
    let line =
        format!("{stage} --config life/{stage}/run.toml --set model.path=large --set out={out} {own} {sets}");
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[track_caller]
pub(crate) fn same_bits(scratch: &Scratch, out: &str, whole: &str) {
    let weights = |out: &str| std::fs::read(scratch.path(&format!("{out}/final/model.safetensors"))).unwrap();
    assert!(weights(out) == weights(whole), "the weights of {out} and {whole} differ");
    assert_eq!(metrics(scratch, out), metrics(scratch, whole), "{out} and {whole}");
}

#[test]
fn every_budget_and_placement_gives_the_same_bits() {
    let scratch = with_large_model();
    for stage in ["sft", "rm", "ppo"] {
        let whole = format!("{stage}-whole");
        scratch.run(&line(stage, &whole, "")).succeeds();
        for (number, budget) in [
            "gemini.device_memory='200MiB'",
            "gemini.device_memory='24MiB'",
            "gemini.device_memory='12MiB'",
            "gemini.device_memory='12MiB' --set gemini.placement='disk'",
            "gemini.device_memory='40MiB' --set gemini.placement='static'",
        ]
        .iter()
        .enumerate()
        {
            let out = format!("{stage}-{number}");
            let outcome = scratch.run(&line(stage, &out, &format!("--set {budget}")));
            outcome.succeeds();
            assert!(outcome.stderr.contains("memory of the models: at most"), "{outcome:#?}");
            same_bits(&scratch, &out, &whole);
        }
    }
}

#[test]
fn a_killed_run_continues_under_another_budget_with_the_same_bits() {
    let scratch = with_large_model();
    let line = |out: &str, sets: &str| line("sft", out, &format!("--set train.steps=12 {sets}"));
    scratch.run(&line("whole", "")).succeeds();

    let words = line("killed", "--set gemini.device_memory='12MiB'");
    let mut child = scratch.command(&words.split(' ').collect::<Vec<_>>()).spawn().unwrap();
    scratch.wait_for_rows("killed/metrics.jsonl", 5);
    signal("KILL", child.id());
    child.wait().unwrap();
    scratch.run(&line("killed", "--set gemini.device_memory='20MiB' --resume")).succeeds();
    same_bits(&scratch, "killed", "whole");

    // What was started without a budget continues with one, and scratch files leave nothing behind.
    let words = line("other", "");
    let mut child = scratch.command(&words.split(' ').collect::<Vec<_>>()).spawn().unwrap();
    scratch.wait_for_rows("other/metrics.jsonl", 5);
    signal("KILL", child.id());
    child.wait().unwrap();
    scratch.run(&line("other", "--set gemini.device_memory='12MiB' --resume")).succeeds();
    same_bits(&scratch, "other", "whole");
    assert!(scratch.names().iter().all(|name| !name.contains("tmp") && !name.contains("scratch")));
}

#[test]
fn moments_in_bf16_learn_and_do_not_depend_on_the_budget() {
    let scratch = with_large_model();
    let bf16 = "--set train.moments_dtype='bfloat16'";
    scratch.run(&line("sft", "fp32", "")).succeeds();
    scratch.run(&line("sft", "whole", bf16)).succeeds();
    scratch.run(&line("sft", "limited", &format!("{bf16} --set gemini.device_memory='12MiB'"))).succeeds();
    same_bits(&scratch, "limited", "whole");

    let loss = |out: &str| metrics(&scratch, out).last().unwrap()["loss"].as_f64().unwrap();
    assert!((loss("whole") - loss("fp32")).abs() < 0.05, "{} and {}", loss("whole"), loss("fp32"));
    assert_ne!(loss("whole"), loss("fp32"));
}

#[test]
fn ranks_with_budgets_give_the_bits_of_ranks_without() {
    let scratch = with_large_model();
    // In the last one, two of four ranks never train on a row. They use their weights for held-out rows,
    // after updates of several steps.
    let one_row = "--set train.micro_batch_size=1 --set train.gradient_accumulation_steps=1 \
                   --set checkpoint.every=0 --set data.eval=life/data/sft.parquet --set eval.every=4";
    let meshes = [
        ("--nproc 2".to_owned(), 12),
        ("--nproc 2 --set parallel.tensor.size=2".to_owned(), 12),
        ("--nproc 2 --set parallel.pipeline.size=2".to_owned(), 12),
        (format!("--nproc 4 --set parallel.pipeline.size=2 {one_row}"), 24),
    ];
    for (number, (mesh, mebibytes)) in meshes.iter().enumerate() {
        let (whole, out) = (format!("whole-{number}"), format!("out-{number}"));
        scratch.run(&line("sft", &whole, mesh)).succeeds();
        let limited = format!("{mesh} --set gemini.device_memory='{mebibytes}MiB'");
        scratch.run(&line("sft", &out, &limited)).succeeds();
        same_bits(&scratch, &out, &whole);
    }
}

/// The peak of a process's resident memory in MiB, read until it ends.
fn peak_mebibytes(scratch: &Scratch, line: &str) -> u64 {
    let mut child = scratch.command(&line.split(' ').collect::<Vec<_>>()).spawn().unwrap();
    let mut peak = 0;
    while child.try_wait().unwrap().is_none() {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kibibytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
        peak = peak.max(kibibytes.unwrap_or(0) >> 10);
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(child.wait().unwrap().success());
    peak
}

#[test]
fn a_budget_lowers_the_memory_of_the_process() {
    let scratch = copied();
    // 13 M parameters: 200 MiB of weights, gradients and moments.
    scratch.write(
        "large.json",
        &CONFIG.replace("\"hidden_size\": 128", "\"hidden_size\": 512").replace("384", "1024"),
    );
    scratch.run("model init large.json --tokenizer life/sft/final --seed 3 --out large").succeeds();
    let whole = peak_mebibytes(&scratch, &line("sft", "whole", "--set train.steps=2"));
    let budget = "--set train.steps=2 --set gemini.device_memory='60MiB'";
    let limited = peak_mebibytes(&scratch, &line("sft", "limited", budget));
    assert!(limited < 60 + 260, "{limited} MiB");
    assert!(limited + 120 < whole, "{limited} of {whole} MiB");
    same_bits(&scratch, "limited", "whole");
}

#[test]
fn replies_wait_for_pages_where_a_budget_has_no_room_for_all() {
    let scratch = with_large_model();
    scratch.run(&line("rm", "rm-whole", "")).succeeds();
    // 64 replies of 96 tokens, each of 3 KiB of keys and values: 18 MiB, and more with their prompts.
    let sets = "--set ppo.rollout_batch_size=16 --set ppo.samples_per_prompt=4 --set ppo.max_new_tokens=96 \
                --set ppo.iterations=1 --set ppo.epochs=1 --set ppo.rollout_micro_batch_size=64 --set data.max_length=128";
    scratch.run(&line("ppo", "whole", sets)).succeeds();
    for (out, mebibytes, mesh) in
        [("limited", 14, ""), ("ranks", 9, "--nproc 2 --set parallel.tensor.size=2")]
    {
        let budget = format!("{mesh} --set gemini.device_memory='{mebibytes}MiB'");
        let outcome = scratch.run(&line("ppo", out, &format!("{sets} {budget}")));
        outcome.succeeds();
        let peak = outcome.stderr.split("memory of the models: at most ").nth(1).unwrap();
        let peak: u64 = peak.split(' ').next().unwrap().parse().unwrap();
        assert!(peak <= mebibytes, "{outcome:#?}");

        // The policy's own log-probabilities of all replies are those of the rollout.
        let of = |out: &str, key: &str| metrics(&scratch, out)[0][key].as_f64().unwrap();
        assert!(of(out, "sampling/logp_difference/max") < 1e-4, "{:?}", metrics(&scratch, out));
        // Replies that gave their pages up are computed again, which may round otherwise.
        for key in ["objective/entropy", "response_length/mean"] {
            assert!((of("whole", key) - of(out, key)).abs() < 0.05 * of("whole", key).abs(), "{out}: {key}");
        }
    }
}

#[test]
fn a_budget_that_cannot_be_kept_is_an_error_with_a_fix() {
    let scratch = with_large_model();
    let run = |sets: &str| scratch.run(&line("sft", "out", sets));
    let refused = &["device_memory is 1 MiB: set [gemini] device_memory = \""];
    run("--set gemini.device_memory='1MiB'").fails(4, refused);
    run("--set gemini.device_memory='16MiB' --set gemini.placement='cuda'").fails(4, &["placement", "auto"]);
    run("--set gemini.device_memory='lots'").fails(2, &["gemini.device_memory", "400MiB"]);
    run("--set gemini.disk_path='.'").fails(2, &["gemini.disk_path", "device_memory"]);
    run("--set gemini.placement='cpu' --set gemini.device_memory='24MiB'").fails(2, &["gemini.placement"]);
    run("--set gemini.host_memory='24MiB'").fails(2, &["gemini.host_memory"]);
    run("--set gemini.device_memory='24MiB' --set gemini.disk_path='absent'")
        .fails(2, &["`gemini.disk_path`", "absent", "no such folder"]);
}

#[test]
fn what_would_fit_is_told_before_anything_is_loaded_and_does_fit() {
    let scratch = with_large_model();
    let sets = "--set gemini.device_memory='36MiB' --set train.micro_batch_size=16 \
                --set train.gradient_accumulation_steps=1 --set train.activation_checkpointing=false";
    let refused = scratch.run(&line("sft", "out", sets));
    refused.fails(4, &["device_memory is 36 MiB: set [gemini] device_memory = \"", ", or "]);
    assert!(!refused.stderr.contains("MiB of weights"), "{refused:#?}");
    assert!(!scratch.path("out").exists());

    let plan = format!("plan {}", line("sft", "out", sets));
    let text = scratch.run(&plan);
    assert!(text.succeeds().contains("this cannot fit: the models need "), "{text:#?}");
    let shortage = scratch.run(&format!("{plan} --json")).json()["shortage"].clone();
    assert_eq!((&shortage["limit"], &shortage["is_certain"]), (&"device_memory".into(), &true.into()));
    let changes = shortage["changes"].as_array().unwrap();
    assert!(!changes.is_empty(), "{shortage:#}");
    for (number, change) in changes.iter().enumerate() {
        // `[gemini] device_memory = "16MiB" and [train] micro_batch_size = 4`
        let change = change.as_str().unwrap();
        if change.contains("processes") {
            continue;
        }
        let settings = change.split(" and ").map(|setting| {
            let (key, value) = setting.split_once(" = ").unwrap();
            let key = key.replace('[', "").replace("] ", ".");
            format!("--set {key}={}", value.replace('"', "'"))
        });
        let settings: Vec<String> = settings.collect();
        let out = format!("fits-{number}");
        let outcome = scratch.run(&line("sft", &out, &format!("{sets} {}", settings.join(" "))));
        assert_eq!(outcome.code, 0, "{change}: {outcome:#?}");
    }
}
