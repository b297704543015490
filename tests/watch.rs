//! Runs that are watched: what they say of themselves, what they can be asked for, and the commands over run
//! folders.

use std::fs::File;
use std::io::Write;
use std::process::Child;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{Scratch, names};
use crate::training::{copied, json, life};

/// A long run in `long`, with `more` arguments, that has written three rows.
fn long_run(scratch: &Scratch, more: &str) -> Child {
    let words = format!(
        "sft --config life/sft/run.toml --set out=long --set train.steps=100000 --set checkpoint.every=0{more}"
    );
    let child = scratch.command(&words.split(' ').collect::<Vec<_>>()).spawn().unwrap();
    scratch.wait_for_rows("long/metrics.jsonl", 3);
    child
}

/// Waits, for a minute at most, until `found` gives something.
#[track_caller]
fn wait_for<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "{what}: not after a minute");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The events of a run.
fn events(scratch: &Scratch, out: &str) -> Vec<Value> {
    let text = scratch.read(&format!("{out}/live/events.jsonl"));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Waits for an event of `out`, the first one behind the `skip` ones that were there.
fn event(scratch: &Scratch, name: &str, skip: usize) -> Value {
    wait_for(name, || events(scratch, "long").into_iter().skip(skip).find(|row| row["event"] == name))
}

/// Asks the run in `long` for something, as `watch` does.
fn ask(scratch: &Scratch, request: &str) {
    let run = events(scratch, "long")[0]["run"].clone();
    request_of(scratch, run.as_str().unwrap(), request);
}

fn request_of(scratch: &Scratch, run: &str, request: &str) {
    let text = format!("{{\"run\":\"{run}\",\"request\":\"{request}\"}}");
    scratch.write("long/live/requests/.1.tmp", &text);
    let requests = scratch.path("long/live/requests");
    std::fs::rename(requests.join(".1.tmp"), requests.join(format!("{request}.json"))).unwrap();
}

fn ends(mut child: Child) -> Option<i32> {
    wait_for("the end of the run", || child.try_wait().unwrap()).code()
}

#[test]
fn a_run_saves_pauses_goes_on_and_stops_when_it_is_asked() {
    for more in ["", " --nproc 2"] {
        let scratch = copied();
        let child = long_run(&scratch, more);
        ask(&scratch, "checkpoint");
        let saved = event(&scratch, "checkpoint", 0);
        assert!(scratch.path(saved["text"].as_str().unwrap()).join("trainer_state/files.json").exists());

        ask(&scratch, "pause");
        let step = event(&scratch, "paused", 0)["step"].as_u64().unwrap();
        let rows = || scratch.read("long/metrics.jsonl").lines().count() as u64;
        assert_eq!(rows(), step);
        let status = scratch.run("watch long --once --json").json();
        assert_eq!(
            (status["status"].as_str(), status["step"].as_u64()),
            (Some(&*format!("paused after {step}")), Some(step))
        );
        // A paused run still saves, and trains no step.
        ask(&scratch, "checkpoint");
        let paused = wait_for("a checkpoint while paused", || {
            events(&scratch, "long")
                .into_iter()
                .find(|row| row["event"] == "checkpoint" && row["step"] == step)
        });
        assert!(paused["text"].as_str().unwrap().ends_with(&format!("step-{step}")) && rows() == step);

        ask(&scratch, "continue");
        event(&scratch, "continued", 0);
        scratch.wait_for_rows("long/metrics.jsonl", step as usize + 2);
        ask(&scratch, "stop");
        assert_eq!(ends(child), Some(130));
        let stopped = event(&scratch, "stopped", 0);
        assert!(scratch.path(stopped["text"].as_str().unwrap()).exists(), "{stopped}");
        assert!(names(&scratch.path("long/live/requests")).is_empty());
        let status = scratch.run("watch long --once --json").json();
        assert_eq!((&status["status"], &status["is_alive"]), (&"stopped, saved".into(), &false.into()));
    }
}

#[test]
fn a_request_for_an_earlier_run_does_nothing_to_this_one() {
    let scratch = copied();
    let child = long_run(&scratch, "");
    request_of(&scratch, "1-2", "stop");
    wait_for("the request to be taken", || {
        names(&scratch.path("long/live/requests")).is_empty().then_some(())
    });
    let rows = scratch.read("long/metrics.jsonl").lines().count();
    scratch.wait_for_rows("long/metrics.jsonl", rows + 5);
    ask(&scratch, "stop");
    assert_eq!(ends(child), Some(130));
}

#[test]
fn every_rank_says_what_it_does() {
    let scratch = copied();
    let child = long_run(&scratch, " --nproc 2");
    for rank in [0, 1] {
        let name = format!("long/live/rank-{rank}.json");
        let state = wait_for(&name, || scratch.path(&name).exists().then(|| json(&scratch, &name)));
        assert_eq!(state["rank"], rank);
        assert!(state["resident_bytes"].as_u64() > Some(1 << 20), "{state}");
        // One run, although the ranks are processes of their own.
        assert_eq!(state["run"], events(&scratch, "long")[0]["run"]);
    }
    ask(&scratch, "stop");
    assert_eq!(ends(child), Some(130));
}

#[test]
fn a_killed_run_is_not_shown_as_running_while_it_is_resumed() {
    let scratch = copied();
    let mut child = long_run(&scratch, " --set checkpoint.every=2");
    event(&scratch, "checkpoint", 0);
    child.kill().unwrap();
    child.wait().unwrap();
    let status = || {
        let status = scratch.run("watch long --once --json").json();
        (status["status"].as_str().unwrap().to_owned(), status["is_alive"].as_bool().unwrap())
    };
    assert_eq!(status(), ("not running".to_owned(), false));

    // As a resumed run does first: it takes the lock, and loads its models.
    let mut lock = File::options().write(true).open(scratch.path("long/.colossal-chat.lock")).unwrap();
    lock.lock().unwrap();
    lock.write_all(b"process 1 on here\n").unwrap();
    assert_eq!(status(), ("waiting for the run to begin".to_owned(), false));
    drop(lock);

    let before = events(&scratch, "long").len();
    let resumed = scratch.command(&["sft", "--config", "long/run.toml", "--resume"]).spawn().unwrap();
    let started = event(&scratch, "started", before);
    // The state of the killed run was removed before the run began.
    let name = "long/live/rank-0.json";
    let state = wait_for(name, || scratch.path(name).exists().then(|| json(&scratch, name)));
    assert_eq!(state["run"], started["run"]);
    assert_eq!(status(), ("running".to_owned(), true));
    request_of(&scratch, started["run"].as_str().unwrap(), "stop");
    assert_eq!(ends(resumed), Some(130));
}

#[test]
fn a_run_whose_live_folder_is_a_link_trains_without_observers() {
    let scratch = copied();
    std::fs::create_dir_all(scratch.path("out")).unwrap();
    std::fs::create_dir_all(scratch.path("elsewhere/requests")).unwrap();
    scratch.write("out/.colossal-chat", "colossal-chat 1 run\n");
    for name in ["rank-0.json", "events.jsonl", "requests/mine.json"] {
        scratch.write(&format!("elsewhere/{name}"), "mine");
    }
    std::os::unix::fs::symlink("../elsewhere", scratch.path("out/live")).unwrap();
    for more in ["", " --set train.steps=7 --resume --nproc 2"] {
        let outcome = scratch.run(&format!("sft --config life/sft/run.toml --set out=out{more}"));
        outcome.succeeds();
        assert!(outcome.stderr.contains("out/live: this is a link or a file"), "{outcome:#?}");
        assert!(outcome.stderr.contains("this run cannot be watched"), "{outcome:#?}");
    }
    let rows = scratch.read("out/metrics.jsonl");
    assert_eq!(rows.lines().filter(|row| row.contains("\"loss\"")).count(), 7);
    for name in ["rank-0.json", "events.jsonl", "requests/mine.json"] {
        assert_eq!(scratch.read(&format!("elsewhere/{name}")), "mine");
    }
    assert_eq!(names(&scratch.path("elsewhere")), ["events.jsonl", "rank-0.json", "requests"]);
}

#[test]
fn a_finished_run_is_watched_as_lines_of_its_rows() {
    let scratch = life();
    let outcome = scratch.run("watch life/ppo");
    let lines: Vec<&str> = outcome.succeeds().lines().collect();
    assert_eq!(lines.len(), 2);
    assert!(lines[1].starts_with("iteration 2  objective/scores "), "{lines:?}");
    assert!(outcome.stderr.ends_with("finished\n"), "{outcome:#?}");
    assert_eq!(
        scratch.run("watch life/sft --json").rows().iter().filter(|row| row["loss"].is_f64()).count(),
        6
    );
    scratch.run("watch life").fails(2, &["the folder of a pipeline", "life/ppo"]);
    scratch.run("watch missing").fails(2, &["no such folder"]);
    scratch.run("watch life/data").fails(2, &["no run has written here"]);
}

#[test]
fn runs_are_listed_shown_compared_and_plotted() {
    let scratch = copied();
    let list = scratch.run("runs ls --json").json();
    let found: Vec<_> =
        list.as_array().unwrap().iter().map(|run| run["run"].as_str().unwrap().to_owned()).collect();
    assert_eq!(found, ["./life/base", "./life/ppo", "./life/rm", "./life/sft"]);
    assert!(list.as_array().unwrap().iter().all(|run| run["status"] == "finished"), "{list}");
    assert_eq!(scratch.run("runs ls life").succeeds().lines().count(), 5);

    let run = scratch.run("runs show life/sft --json").json();
    assert_eq!(run["changed_settings"]["train.lr"]["value"], "0.001");
    assert!(run["changed_settings"]["train.weight_decay"].is_null());
    assert_eq!(run["checkpoints"], serde_json::json!(["step-2", "step-4", "step-6", "final"]));
    assert!(scratch.run("runs show life/ppo").succeeds().contains("newest sample, iteration 2"));

    let compared = scratch.run("runs compare life/base life/sft --json").json();
    assert!(
        compared["settings"]["out"].is_array() && compared["settings"]["train.lr"].is_null(),
        "{compared}"
    );
    assert_eq!(compared["numbers"]["loss"].as_array().unwrap().len(), 2);

    let chart = scratch.run("runs plot life/sft life/base --metric loss");
    assert!(chart.succeeds().starts_with("1 loss of life/sft\n2 loss of life/base\n"), "{chart:#?}");
    scratch.run("runs plot life/sft --metric nonsense").fails(2, &["no such metric", "grad_norm"]);
    scratch.run("runs plot life/sft --svg loss.svg").succeeds();
    assert!(scratch.read("loss.svg").starts_with("<svg xmlns"));
    scratch.run("runs plot life/sft --svg loss.svg").fails(2, &["exists already", "--force"]);
}

#[test]
fn a_report_of_runs_is_not_written_over_another() {
    let scratch = copied();
    scratch.run("report life/sft life/ppo --out page").succeeds();
    assert_eq!(names(&scratch.path("page")), ["report.html", "report.json", "report.md"]);
    let report = json(&scratch, "page/report.json");
    assert_eq!(report["runs"][1]["stage"], "ppo");
    // Three replies of each of two iterations.
    assert_eq!(report["runs"][1]["samples"].as_array().unwrap().len(), 6);
    scratch.run("report life/sft --out page").fails(2, &["exists already", "--force"]);
    assert_eq!(json(&scratch, "page/report.json"), report);
    scratch.run("report life/sft --out page --force").succeeds();
    assert_ne!(json(&scratch, "page/report.json"), report);
}

#[test]
fn rows_of_a_stranger_are_named_and_left_out() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.path("run")).unwrap();
    scratch
        .write("run/metrics.jsonl", "{\"step\":1,\"loss\":2}\nnonsense \u{1b}[2J\n{\"step\":2,\"loss\":1}\n");
    let outcome = scratch.run("watch run");
    assert_eq!(outcome.succeeds().lines().count(), 2);
    assert!(
        outcome.stderr.contains("metrics.jsonl: line 2") && !outcome.stderr.contains('\u{1b}'),
        "{outcome:#?}"
    );
    // A search finds what has the marker: others have files with these names too.
    std::fs::create_dir_all(scratch.path("source/live")).unwrap();
    assert_eq!(scratch.run("runs ls").succeeds(), "");
    scratch.write("run/.colossal-chat", "colossal-chat 1 run\n");
    let list = scratch.run("runs ls");
    let rows: Vec<&str> = list.succeeds().lines().collect();
    assert!(rows.len() == 2 && rows[1].starts_with("./run "), "{rows:?}");
}

#[test]
fn the_dashboard_of_a_new_run_needs_a_terminal() {
    let scratch = copied();
    scratch.run("sft --config life/sft/run.toml --set out=new --ui").fails(2, &["--ui", "no terminal"]);
    assert!(!scratch.path("new").exists());
    scratch.run("pipeline --config life.toml --ui").fails(2, &["--ui", "several runs"]);
}
