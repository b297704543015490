//! `doctor`, `completions`, and a reader that goes away.

use std::process::Stdio;

use crate::harness::Scratch;

#[test]
fn every_check_passes_and_the_report_is_json() {
    let outcome = Scratch::new().run("doctor --json");
    let report: serde_json::Value = serde_json::from_str(outcome.succeeds()).unwrap();
    let checks = report["checks"].as_array().unwrap();
    assert!(checks.len() >= 7 && checks.iter().all(|check| check["ok"] == true), "{report:#}");
    assert_eq!(report["processor"]["threads"], 1);
    assert!(report["libtorch"]["path"].as_str().unwrap().contains("libtorch_cpu"));
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
