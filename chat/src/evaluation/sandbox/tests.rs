//! Programs in sandboxes: right and wrong ones, hostile ones, and those that lm-evaluation-harness recorded.
//!
//! A machine that permits no sandbox cannot run these tests. A line of the test then says so.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Instant;

use datasets::{Row, TableReader};
use eval::document::{Document, PromptOptions, build};
use eval::request::Response;
use eval::score::{MetricValue, programs, score};
use eval::task::{Registry, Task};
use serde_json::Value;

use super::*;

/// A sandbox, or a line that says why there is none.
fn sandbox() -> Option<Sandbox> {
    Sandbox::open().map_err(|error| eprintln!("skipped, because {error}")).ok()
}

fn program(source: &str) -> Program {
    Program { source: source.to_owned(), timeout: Duration::from_secs(10) }
}

/// The verdicts on several programs.
fn verdicts(sandbox: &Sandbox, sources: &[&str]) -> Vec<Verdict> {
    let programs: Vec<Program> = sources.iter().map(|source| program(source)).collect();
    sandbox.run_all(&programs).unwrap()
}

/// The reason for a failure.
fn reason(verdict: &Verdict) -> &str {
    match verdict {
        Verdict::Failed { reason } => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn only_the_end_of_a_program_is_a_success() {
    let Some(sandbox) = sandbox() else { return };
    let early = [
        "import os; os._exit(0)",
        "import sys; sys.exit(0)",
        "raise SystemExit",
        "exit()",
        "print('passed\\nready\\npassed')",
        "import os\nfor n in range(3, 64):\n  try: os.write(n, b'passed')\n  except OSError: pass",
        "import os; os.kill(os.getppid(), 9)",
        "import os; os.kill(os.getpid(), 9)",
        "import os; os.kill(0, 9)",
        "import os; os.kill(-1, 9)",
        "import os; os.closerange(0, 64)",
        "import os; os._exit = lambda code: None; os.write = lambda *_: 0",
        "class E(BaseException):\n  def __str__(self): raise ValueError\nraise E",
        "raise Exception('passed')",
        "import ctypes; ctypes.string_at(0)",
        "def f(): f()\nf()",
        "input()",
        "f(",
    ];
    let tests = "\nassert 1 + 1 == 3";
    let sources: Vec<String> = early.iter().map(|source| format!("{source}{tests}")).collect();
    let sources: Vec<&str> = sources.iter().map(String::as_str).collect();
    for (source, verdict) in sources.iter().zip(verdicts(&sandbox, &sources)) {
        assert!(matches!(verdict, Verdict::Failed { .. }), "{source}: {verdict:?}");
    }

    let right = ["", "print('x' * 10_000_000)", "def f(x):\r\n  return x\r\nassert f('é多') == 'é多'"];
    assert_eq!(verdicts(&sandbox, &right), [Verdict::Passed, Verdict::Passed, Verdict::Passed]);
    let reasons =
        verdicts(&sandbox, &["assert 1 == 2, 'no'", "object().x", "raise ValueError('a\\nb')", early[0]]);
    let reasons: Vec<&str> = reasons.iter().map(reason).collect();
    assert_eq!(reasons[0], "AssertionError: no");
    assert_eq!(reasons[1], "AttributeError: 'object' object has no attribute 'x'");
    assert_eq!(reasons[2], "ValueError: a b");
    assert_eq!(reasons[3], "the program ended with exit code 0 before its tests were over");
}

#[test]
fn time_memory_files_and_processes_are_limited() {
    let Some(sandbox) = sandbox() else { return };
    let started = Instant::now();
    let endless = |source: &str| Program { source: source.to_owned(), timeout: Duration::from_secs(1) };
    let thread =
        "import threading, time\nthreading.Thread(target=time.sleep, args=(100,)).start()\ntime.sleep(100)";
    let programs = [endless("while True: pass"), endless("import time; time.sleep(100)"), endless(thread)];
    assert_eq!(
        sandbox.run_all(&programs).unwrap(),
        [Verdict::TimedOut, Verdict::TimedOut, Verdict::TimedOut]
    );
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());

    let found = verdicts(
        &sandbox,
        &[
            "x = []\nwhile True: x.append(bytearray(1 << 20))",
            "import os\nwhile True: os.fork()",
            "with open('/tmp/x', 'wb', buffering=0) as f:\n  while True: f.write(bytes(1 << 20))",
            "for n in range(100):\n  with open(f'/tmp/{n}', 'wb') as f: f.write(bytes(1 << 20))",
            "import threading, time\nfor _ in range(64): threading.Thread(target=time.sleep, args=(9,)).start()",
        ],
    );
    let words =
        ["MemoryError", "PermissionError", "File too large", "No space left", "can't start new thread"];
    for (verdict, words) in found.iter().zip(words) {
        assert!(reason(verdict).contains(words), "{verdict:?}, wanted {words}");
    }
}

#[test]
fn nothing_outside_can_be_reached() {
    let Some(sandbox) = sandbox() else { return };
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let outside = tempfile::tempdir().unwrap();
    let secret = outside.path().join("secret");
    fs::write(&secret, "secret").unwrap();
    let home = std::env::var("HOME").unwrap_or_else(|_| "/root".to_owned());
    let folder = outside.path().display();
    let sources = [
        format!(
            "import socket; socket.create_connection(('127.0.0.1', {}), 1)",
            listener.local_addr().unwrap().port()
        ),
        "import socket; socket.create_connection(('8.8.8.8', 53), 1)".to_owned(),
        format!("open('{}').read()", secret.display()),
        format!("open('{folder}/mine', 'w')"),
        "import os; os.mkdir('/mine')".to_owned(),
        format!("open('{home}/.bashrc').read()"),
        "open('/etc/passwd').read()".to_owned(),
        "open('/proc/self/mem')".to_owned(),
        "import os; open(os.__file__, 'a')".to_owned(),
        "import os; os.chroot('/')".to_owned(),
        "import os; os.setuid(0)".to_owned(),
        "import os; os.environ['HOME']".to_owned(),
        "import subprocess; subprocess.run(['/usr/bin/env'], check=True)".to_owned(),
    ];
    let sources: Vec<&str> = sources.iter().map(String::as_str).collect();
    for (source, verdict) in sources.iter().zip(verdicts(&sandbox, &sources)) {
        let reason = reason(&verdict);
        let expected = ["OSError", "FileNotFoundError", "PermissionError", "KeyError"];
        assert!(expected.iter().any(|name| reason.starts_with(name)), "{source}: {reason}");
    }
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    assert!(secret.exists() && !outside.path().join("mine").exists());

    // What one program leaves in /tmp, the next does not find.
    let leave = "open('/tmp/left', 'w').close()";
    assert_eq!(verdicts(&sandbox, &[leave]), [Verdict::Passed]);
    assert_eq!(verdicts(&sandbox, &["import os; assert os.listdir('/tmp') == []"]), [Verdict::Passed]);
    // The root folder of a sandbox is mounted for that sandbox alone.
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(command::ROOT), "{mounts}");
}

/// A task of the program.
fn task(name: &str) -> Task {
    Registry::embedded().unwrap().task(name).unwrap().clone()
}

fn document(task: &Task, row: &Row) -> Document {
    let options = PromptOptions { num_fewshot: Some(0), ..PromptOptions::default() };
    build(task, vec![row.clone()], None, &options).unwrap().documents.remove(0)
}

fn reply(text: &str) -> Vec<Response> {
    vec![Response::Reply { text: text.to_owned(), tokens: 1, ended: true, cut: 0 }]
}

/// The scores of replies to rows of a task, each with a reason if the reply failed.
fn scores(sandbox: &Sandbox, task: &Task, replies: &[(Document, String)]) -> Vec<(String, f64, String)> {
    let all: Vec<Program> =
        replies.iter().flat_map(|(document, text)| programs(task, document, &reply(text)).unwrap()).collect();
    assert_eq!(all.len(), replies.len());
    let verdicts = sandbox.run_all(&all).unwrap();
    let scored = |((document, text), verdict): (&(Document, String), &Verdict)| {
        let scored = score(task, document, &reply(text), std::slice::from_ref(verdict)).unwrap().remove(0);
        let metric = &scored.metrics[0];
        let MetricValue::Number(value) = metric.value else { panic!("{metric:?}") };
        (format!("{},{}", metric.name, scored.filter), value, format!("{verdict:?}"))
    };
    replies.iter().zip(&verdicts).map(scored).collect()
}

#[test]
fn scores_are_those_of_the_harness() {
    let Some(sandbox) = sandbox() else { return };
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../eval/tests/golden/lm_eval/scores/code.json");
    let cases: Vec<Value> = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let mut compared = 0;
    for case in cases {
        let task = task(case["task"].as_str().unwrap());
        let row = case["doc"].as_object().unwrap();
        let recorded = case["replies"].as_array().unwrap();
        let replies: Vec<(Document, String)> = recorded
            .iter()
            .map(|reply| (document(&task, row), reply[0].as_str().unwrap().to_owned()))
            .collect();
        assert_eq!(replies[0].0.target.text(&[]).unwrap(), case["target"]);
        for ((reply, recorded), (name, value, verdict)) in
            replies.iter().zip(recorded).zip(scores(&sandbox, &task, &replies))
        {
            let (metric, filter) = name.split_once(',').unwrap();
            assert_eq!(recorded[2][filter][metric], value, "{name} of {:?}: {verdict}", reply.1);
            compared += 1;
        }
    }
    assert_eq!(compared, 23);
}

/// The rows of a public file beside the repository, or a line that says that it is missing.
fn public_rows(name: &str) -> Option<Vec<Row>> {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/eval").join(name);
    if !path.exists() {
        eprintln!("skipped, because there is no {}", path.display());
        return None;
    }
    let rows = TableReader::open(&path).unwrap().rows(None).unwrap();
    Some(rows.map(|row| row.unwrap().1).collect())
}

#[test]
fn all_solutions_of_humaneval_pass() {
    let (Some(sandbox), Some(rows)) = (sandbox(), public_rows("HumanEval.jsonl.gz")) else { return };
    let task = task("humaneval");
    let solution = |row: &Row| (document(&task, row), row["canonical_solution"].as_str().unwrap().to_owned());
    let replies: Vec<(Document, String)> = rows.iter().map(solution).collect();
    let scores = scores(&sandbox, &task, &replies);
    let failed: Vec<_> = scores.iter().filter(|(_, value, _)| *value != 1.0).collect();
    assert!(failed.is_empty() && scores.len() == 164, "{} of {}: {failed:?}", failed.len(), scores.len());

    // Without its body, no function passes.
    let empty: Vec<(Document, String)> =
        rows.iter().take(20).map(|row| (document(&task, row), "    pass\n".to_owned())).collect();
    assert!(self::scores(&sandbox, &task, &empty).iter().all(|(_, value, _)| *value == 0.0));
}

#[test]
fn solutions_of_mbpp_pass() {
    let (Some(sandbox), Some(rows)) = (sandbox(), public_rows("mbpp.jsonl.gz")) else { return };
    let task = task("mbpp");
    // Some need numpy or a class of `test_setup_code`, so not all of the data pass.
    let rows = rows.iter().filter(|row| (11..=60).contains(&row["task_id"].as_u64().unwrap()));
    let solution = |row: &Row| (document(&task, row), row["code"].as_str().unwrap().to_owned());
    let replies: Vec<(Document, String)> = rows.map(solution).collect();
    let scores = scores(&sandbox, &task, &replies);
    let failed: Vec<_> = scores.iter().filter(|(_, value, _)| *value != 1.0).collect();
    assert!(failed.is_empty() && scores.len() == 50, "{} of {}: {failed:?}", failed.len(), scores.len());
}
