//! `doctor`, `completions`, and a reader that goes away.

use std::process::Stdio;

use crate::gemini::{line, with_large_model};
use crate::harness::Scratch;

#[test]
fn every_check_passes_and_the_report_is_json() {
    let outcome = Scratch::new().run("doctor --json");
    let report: serde_json::Value = serde_json::from_str(outcome.succeeds()).unwrap();
    let checks = report["checks"].as_array().unwrap();
    assert!(checks.len() >= 8 && checks.iter().all(|check| check["ok"] == true), "{report:#}");
    assert_eq!(report["processor"]["threads"], 1);
    assert!(report["libtorch"]["path"].as_str().unwrap().contains("libtorch_cpu"));
}

#[test]
fn what_a_machine_measures_tells_the_time_of_a_step() {
    let scratch = with_large_model();
    let plan = format!("plan {} --json", line("sft", "planned", ""));
    let step_time = || scratch.run(&plan).json()["step_time"].clone();
    assert_eq!(step_time(), serde_json::Value::Null);
    let text = scratch.run(plan.trim_end_matches(" --json"));
    assert!(text.succeeds().contains("step time: not known: run `colossal-chat doctor --bench` once"));

    let report = scratch.run("doctor --bench --disk-path . --json").json();
    let hardware = &report["hardware"];
    assert_eq!(hardware["device"]["threads"], 1);
    assert!(hardware["disk"]["read"].as_f64().unwrap() > 0.0, "{report:#}");
    assert!(hardware["link"][0]["bandwidth"].as_f64().unwrap() > 0.0, "{report:#}");
    let predicted = step_time();
    let parts = ["computation", "update", "offload"].map(|part| predicted[part].as_f64().unwrap());
    assert!(predicted["seconds"].as_f64().unwrap() >= parts[0] && parts[0] > 0.0, "{predicted:#}");
    // The time in the other dtype is the one that a run in this dtype is told.
    let other = scratch.run(&plan).json()["other_dtype"].clone();
    let in_bf16 = scratch.run(&format!("{plan} --set model.dtype=bfloat16")).json();
    assert_eq!(other["dtype"], "bfloat16");
    assert_eq!(other["seconds"], in_bf16["step_time"]["seconds"]);
    assert_eq!(in_bf16["other_dtype"]["seconds"], predicted["seconds"]);
    // Of more processes than the machine runs, nobody knows what joins them.
    let many = scratch.run(&format!("{} --nproc 640", plan.trim_end_matches(" --json")));
    assert!(many.succeeds().contains("step time: not known: the hardware has no link that joins 640 ranks"));
    let outcome = scratch.run(&line("sft", "run", ""));
    outcome.succeeds();
    assert!(outcome.stderr.contains(" s, the median (predicted: "), "{outcome:#?}");

    // Of another machine, and damaged.
    let file = ".cache/colossal-chat/hardware-1-threads.toml";
    let whole = scratch.read(file);
    scratch.write(file, &whole.replacen("threads = 1", "threads = 9", 1));
    assert_eq!(step_time(), serde_json::Value::Null);
    scratch.write(file, &whole.replacen("memory_read = ", "memory_read = -", 1));
    scratch
        .run(&plan)
        .fails(3, &["hardware-1-threads.toml", "`device.memory_read` is -", "doctor --bench", "remove"]);
    scratch.write(file, &whole[..whole.len() / 2]);
    scratch.run(&line("sft", "out", "")).fails(3, &["hardware-1-threads.toml", "doctor --bench"]);
    assert!(!scratch.path("out").exists());
    scratch.run("doctor --disk-path .").fails(2, &["--bench"]);
    scratch.run("doctor --bench --disk-path absent").fails(4, &["absent"]);
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let scratch = Scratch::new();
    let mut child = scratch.command(&["completions", "zsh"]).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}

#[test]
fn completions_name_every_command() {
    let outcome = Scratch::new().run("completions bash");
    let script = outcome.succeeds();
    for command in ["sft", "ppo", "pipeline", "logprobs", "tokenizer"] {
        assert!(script.contains(command), "{command}");
    }
}
