//! Run folders as they are while a run writes, after it, and as a stranger might make them.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use tui::dashboard::{Event, Status};

use super::*;
use crate::live::RequestKind;

fn append(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    File::options().create(true).append(true).open(path).unwrap().write_all(text.as_bytes()).unwrap();
}

/// Appends an event of this moment.
fn event(out: &Path, text: &str) {
    past_event(out, text, 0.0);
}

/// Appends an event of `age` seconds ago.
fn past_event(out: &Path, text: &str, age: f64) {
    append(&live::events_path(out), &format!("{{\"time\":{},{text}}}\n", live::unix_seconds() - age));
}

/// Takes the lock of a run folder, as a run does that begins to load its models.
fn lock(out: &Path) -> File {
    let mut file = File::create(out.join(".colossal-chat.lock")).unwrap();
    file.lock().unwrap();
    file.write_all(b"process 1 on here\n").unwrap();
    file
}

/// The state of rank 0 of the run `a`, as a process of this machine wrote it `age` seconds ago.
fn write_state(out: &Path, process: u32, age: f64) {
    let state = RankFile {
        run: "a".to_owned(),
        host: live::host(),
        phase: "rollout".to_owned(),
        process,
        time: live::unix_seconds() - age,
        ..RankFile::default()
    };
    fs::create_dir_all(live::requests_path(out)).unwrap();
    fs::write(live::rank_path(out, 0), serde_json::to_string(&state).unwrap()).unwrap();
}

/// Dates the lock back, as if the run held it for an hour.
fn age_lock(lock: &File) {
    lock.set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(3600)).unwrap();
}

/// A time that is later than every lock of a test.
fn soon() -> std::time::SystemTime {
    std::time::SystemTime::now() + std::time::Duration::from_secs(60)
}

fn status(reader: &mut RunReader) -> Status {
    reader.poll();
    reader.run().status
}

/// What rank 0 is shown to do.
fn phase(reader: &mut RunReader) -> String {
    reader.poll();
    reader.shown.1[0].phase.clone()
}

const STARTED: &str = "\"event\":\"started\",\"step\":0,\"run\":\"a\",\"stage\":\"ppo\",\"processes\":1";

/// The messages, and the number of rows.
fn poll(reader: &mut RunReader) -> (Vec<String>, usize) {
    let (events, _) = reader.poll();
    let rows = events.iter().filter(|event| matches!(event, Event::Row { .. })).count();
    let text = |event| match event {
        Event::Message(text) | Event::Problem(text) | Event::Notice(text) => Some(text),
        _ => None,
    };
    (events.into_iter().filter_map(text).collect(), rows)
}

#[test]
fn rows_that_cannot_be_used_are_named_and_the_others_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path();
    append(
        &out.join("metrics.jsonl"),
        "{\"step\":1,\"loss\":0.5}\nnot json \u{1b}[2J\n[1]\n{\"loss\":1}\n{\"step\":-1}\n{\"step\":2,\"loss\":\"x\"}\n\
         {\"step\":3,\"loss\":1e999}\n{\"step\":4,\"loss\":null}\n{\"step\":5,\"lo",
    );
    fs::write(out.join("samples.jsonl"), b"\xff\xfe\n{\"step\":1,\"prompt\":7}\n").unwrap();
    let mut reader = RunReader::open(out).unwrap();
    let (messages, rows) = poll(&mut reader);
    assert_eq!(rows, 2);
    let expected = [
        "metrics.jsonl: line 2",
        "metrics.jsonl: line 3: this is no JSON object",
        "metrics.jsonl: line 4: `step` is no whole number",
        "metrics.jsonl: line 5: `step` is no whole number",
        "metrics.jsonl: line 6: `loss` is no number",
        "metrics.jsonl: line 7",
        "samples.jsonl: line 1",
        "samples.jsonl: line 2: `prompt` is no text",
    ];
    assert_eq!(messages.len(), expected.len(), "{messages:#?}");
    for (message, expected) in messages.iter().zip(expected) {
        assert!(message.contains(expected), "{message:?} does not say {expected:?}");
    }
    // The half row waits for its rest, and nothing is told twice.
    append(&out.join("metrics.jsonl"), "ss\":2}\n");
    assert_eq!(poll(&mut reader), (Vec::new(), 1));
}

#[test]
fn a_resumed_run_is_read_anew() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path();
    append(&out.join("metrics.jsonl"), "{\"step\":1,\"loss\":2}\n{\"step\":2,\"loss\":1}\n");
    let mut reader = RunReader::open(out).unwrap();
    assert_eq!(poll(&mut reader).1, 2);
    fs::write(out.join("metrics.jsonl"), "{\"step\":1,\"loss\":2}\n").unwrap();
    let (events, _) = reader.poll();
    assert!(matches!(events[..2], [Event::ForgetRows, Event::Row { step: 1, .. }]), "{events:?}");
}

#[test]
fn the_lock_and_the_events_tell_how_a_run_is() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path();
    append(&out.join("metrics.jsonl"), "{\"step\":1,\"loss\":2}\n");
    let reader = &mut RunReader::open(out).unwrap();
    assert_eq!(status(reader), Status::Ended);
    let lock = lock(out);
    // A run of an earlier version says nothing of itself.
    assert_eq!(status(reader), Status::Running);
    event(out, STARTED);
    assert_eq!(status(reader), Status::Running);
    event(out, "\"event\":\"paused\",\"step\":4");
    assert_eq!(status(reader), Status::Paused { step: 4 });
    event(out, "\"event\":\"continued\",\"step\":4");
    event(out, "\"event\":\"stopped\",\"step\":5,\"text\":\"step-5\"");
    // The process saves and ends.
    assert_eq!(status(reader), Status::Waiting);
    drop(lock);
    assert_eq!(status(reader), Status::Stopped);
    event(out, "\"event\":\"started\",\"step\":5,\"run\":\"b\"");
    assert_eq!(status(reader), Status::Ended);
    fs::create_dir(out.join("final")).unwrap();
    assert_eq!(status(reader), Status::Finished);
    assert_eq!(reader.run().total_steps, None);
}

#[test]
fn a_run_that_says_nothing_is_silent_and_can_be_asked_on_its_machine() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path();
    append(&live::events_path(out), &format!("{{\"time\":{},{STARTED}}}\n", live::unix_seconds() - 90.0));
    let lock = lock(out);
    age_lock(&lock);
    let reader = &mut RunReader::open(out).unwrap();
    write_state(out, std::process::id(), 60.0);
    assert!(matches!(status(reader), Status::Silent { seconds: 60..=70 }));
    assert_eq!(phase(reader), "rollout");
    // The process lives: it takes the request when it can.
    reader.ask(RequestKind::Stop).unwrap();

    let text = fs::read_to_string(live::rank_path(out, 0)).unwrap().replace(&live::host(), "elsewhere");
    fs::write(live::rank_path(out, 0), text).unwrap();
    assert!(matches!(status(reader), Status::Silent { .. }));
    let refused = reader.ask(RequestKind::Stop).unwrap_err().to_string();
    assert!(refused.contains("has said nothing for 6") && refused.contains("elsewhere"), "{refused}");
}

/// A process id that no process has: ids of this system are smaller.
const NO_PROCESS: u32 = u32::MAX;

#[test]
fn after_a_crash_the_last_words_of_a_run_count_for_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path();
    let reader = &mut RunReader::at(out);
    let first = lock(out);
    age_lock(&first);
    // The times of files are not exact: a second lies between the last words and the next lock.
    past_event(out, STARTED, 1.0);
    write_state(out, NO_PROCESS, 1.0);
    assert_eq!((status(reader), phase(reader).as_str()), (Status::Running, "rollout"));
    let refused = |reader: &mut RunReader| {
        reader.poll();
        let refused = reader.ask(RequestKind::Pause).unwrap_err().to_string();
        assert_eq!(fs::read_dir(live::requests_path(out)).unwrap().count(), 0);
        refused
    };

    // The process was killed.
    drop(first);
    assert_eq!((status(reader), phase(reader).as_str()), (Status::Ended, "lost"));
    assert!(refused(reader).contains("nothing runs in this folder"));

    // It is resumed: another process has the lock and loads its models. Nothing else has changed.
    let second = lock(out);
    assert_eq!((status(reader), phase(reader).as_str()), (Status::Waiting, "lost"));
    assert!(!reader.run().status.is_alive());
    assert!(refused(reader).contains("the run has not begun"));

    // Rows that are newer than the lock say that it trains, but nobody takes requests.
    append(&out.join("metrics.jsonl"), "{\"step\":1,\"loss\":2}\n");
    File::options().append(true).open(out.join("metrics.jsonl")).unwrap().set_modified(soon()).unwrap();
    assert_eq!(status(reader), Status::Running);
    assert!(refused(reader).contains("cannot be watched"));
    fs::remove_file(out.join("metrics.jsonl")).unwrap();

    // Where the time of the lock does not tell, the process does, when its word is overdue.
    age_lock(&second);
    assert_eq!((status(reader), phase(reader).as_str()), (Status::Running, "rollout"));
    event(out, "\"event\":\"paused\",\"step\":4");
    write_state(out, NO_PROCESS, 6.0);
    assert_eq!((status(reader), phase(reader).as_str()), (Status::Waiting, "lost"));
    assert!(refused(reader).contains("the run has not begun"));

    event(out, &STARTED.replace("\"a\"", "\"b\""));
    assert_eq!(status(reader), Status::Running);
    // What is left of the run before is not that of this one.
    assert!(reader.shown.1.is_empty());
    reader.ask(RequestKind::Pause).unwrap();
}

#[test]
fn a_request_names_the_run_that_it_is_meant_for() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path();
    append(&out.join("metrics.jsonl"), "");
    let mut reader = RunReader::open(out).unwrap();
    let _lock = lock(out);
    reader.poll();
    assert!(reader.ask(RequestKind::Stop).is_err());
    event(out, STARTED);
    reader.poll();
    // The run has made no folder of requests, or a link is in its place.
    assert!(reader.ask(RequestKind::Stop).unwrap_err().to_string().contains("takes no requests"));
    fs::create_dir_all(live::requests_path(out)).unwrap();
    reader.ask(RequestKind::Checkpoint).unwrap();
    let files: Vec<_> =
        fs::read_dir(live::requests_path(out)).unwrap().map(|file| file.unwrap().path()).collect();
    let text = fs::read_to_string(&files[0]).unwrap();
    assert_eq!((files.len(), text.as_str()), (1, r#"{"run":"a","request":"checkpoint"}"#));
}

#[test]
fn a_lock_or_rows_that_are_pipes_are_not_opened() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path();
    for name in [".colossal-chat.lock", "metrics.jsonl", "plan.json", "run.toml"] {
        assert!(std::process::Command::new("mkfifo").arg(out.join(name)).status().unwrap().success());
    }
    // To open any of them would wait for ever: nobody writes.
    let reader = &mut RunReader::open(out).unwrap();
    let (messages, rows) = poll(reader);
    assert_eq!((messages.len(), rows, reader.run().status), (1, 0, Status::Ended));
    assert!(messages[0].contains("metrics.jsonl: this is a pipe"), "{messages:?}");
}

#[test]
fn what_is_no_run_folder_is_refused_with_what_to_give() {
    let folder = tempfile::tempdir().unwrap();
    let problem = |path: &Path| RunReader::open(path).err().unwrap().to_string();
    assert!(problem(&folder.path().join("missing")).contains("there is no such folder"));
    assert!(problem(folder.path()).contains("no run has written here"));
    append(&folder.path().join("sft/metrics.jsonl"), "");
    assert!(problem(folder.path()).contains("the folder of a pipeline: give "));
}
