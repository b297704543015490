//! Programs of a model that run when the evaluation is stopped: nothing is left of their sandboxes, neither
//! processes nor folders.
//!
//! A machine that permits no sandbox cannot run these tests. A line of the test then says so.

use std::fs;
use std::process::Child;
use std::time::{Duration, Instant};

use crate::eval::{bench, model};
use crate::harness::{Scratch, descendants, is_running, names, signal};
use crate::training::copied;

/// A task whose programs end at their time limit alone.
const ENDLESS: &str = r#"
task = "endless"
version = 1
output_type = "generate_until"
doc_to_text = "Q: {{ question }}\nA:"
doc_to_target = "{{ answer }}"
metric_list = [{ metric = "pass_at_1" }]
generation_kwargs = { max_gen_toks = 4 }
code_execution = { program = "while True: pass", timeout = 600 }

[dataset]
folder = "sums"
split = "test"
"#;

#[track_caller]
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < Duration::from_secs(60), "not within a minute: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until the model has answered and a program runs, stops the process with a signal, and returns its exit
/// code. `None` if this machine permits no sandbox.
#[track_caller]
fn stop(scratch: &Scratch, mut child: Child, name: &str, has_answered: impl Fn() -> bool) -> Option<i32> {
    let mut processes = Vec::new();
    let mut has_ended = false;
    wait_until("a program runs", || {
        has_ended = child.try_wait().unwrap().is_some();
        // The outermost command, process 1 of the sandbox, the program.
        processes = if has_answered() { descendants(child.id()) } else { Vec::new() };
        has_ended || processes.len() >= 3
    });
    if has_ended {
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("the sandbox for code execution"), "{said}");
        eprintln!("skipped, because {said}");
        return None;
    }
    signal(name, child.id());
    let output = child.wait_with_output().unwrap();
    wait_until("no process is left", || !processes.iter().copied().any(is_running));
    assert_eq!(names(&scratch.path("tmp")), Vec::<String>::new(), "after {name}");
    Some(output.status.code().unwrap_or(-1))
}

#[test]
fn no_process_and_no_folder_is_left_of_an_evaluation_that_a_signal_ends() {
    let scratch = bench();
    scratch.write("endless.toml", ENDLESS);
    fs::create_dir(scratch.path("tmp")).unwrap();
    for (name, code) in [("INT", 130), ("TERM", 130), ("KILL", -1)] {
        let line = format!(
            "eval --model {} --include-path endless.toml --tasks endless --limit 1 --output {name} \
             --allow-code-execution",
            model()
        );
        let mut command = scratch.command(&line.split(' ').collect::<Vec<_>>());
        let child = command.env("TMPDIR", scratch.path("tmp")).spawn().unwrap();
        let answers = scratch.path(&format!("{name}/responses.jsonl"));
        let has_answered = || fs::read_to_string(&answers).is_ok_and(|text| text.lines().count() == 1);
        let Some(found) = stop(&scratch, child, name, has_answered) else { return };
        assert_eq!(found, code, "{name}");
    }
}

#[test]
fn a_run_that_is_interrupted_does_not_wait_for_programs() {
    let scratch = copied();
    fs::create_dir_all(scratch.path("rows/sums")).unwrap();
    fs::create_dir(scratch.path("tmp")).unwrap();
    scratch.write("rows/sums/test.jsonl", "{\"question\": \"1\", \"answer\": 1}\n");
    scratch.write("endless.toml", ENDLESS);
    let line = "sft --config life.toml --set model.path=life/base/final --set data.train=life/data/sft.parquet \
                --set eval.every=2 --set eval.tasks=['endless'] --set eval.data=rows \
                --set eval.include_path=['endless.toml'] --set eval.allow_code_execution=true --set out=run";
    let mut command = scratch.command(&line.split(' ').collect::<Vec<_>>());
    let child = command.env("TMPDIR", scratch.path("tmp")).spawn().unwrap();
    let metrics = scratch.path("run/metrics.jsonl");
    let is_training = || fs::read_to_string(&metrics).is_ok_and(|text| !text.is_empty());
    let Some(code) = stop(&scratch, child, "INT", is_training) else { return };
    assert_eq!(code, 130);
    // The step before the evaluation is kept.
    assert!(scratch.path("run/checkpoints/step-2").is_dir(), "{:?}", names(&scratch.path("run")));
}
