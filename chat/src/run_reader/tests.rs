//! Run folders as they are while a run writes, after it, and as a stranger might make them.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use tui::dashboard::{Event, Status};

use super::*;

fn append(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    File::options().create(true).append(true).open(path).unwrap().write_all(text.as_bytes()).unwrap();
}

fn event(out: &Path, text: &str) {
    append(&live::events_path(out), &format!("{{\"time\":1.0,{text}}}\n"));
}

/// The messages, and the number of rows.
fn poll(reader: &mut RunReader) -> (Vec<String>, usize) {
    let (events, _) = reader.poll();
    let rows = events.iter().filter(|event| matches!(event, Event::Row { .. })).count();
    let text = |event| if let Event::Message(text) | Event::Notice(text) = event { Some(text) } else { None };
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
    let mut reader = RunReader::open(out).unwrap();
    let mut status = || {
        reader.poll();
        reader.run().status
    };
    assert_eq!(status(), Status::Ended);
    let lock = File::create(out.join(".colossal-chat.lock")).unwrap();
    lock.lock().unwrap();
    // A run of an earlier version says nothing of itself.
    assert_eq!(status(), Status::Running);
    event(
        out,
        "\"event\":\"started\",\"step\":0,\"run\":\"a\",\"stage\":\"ppo\",\"total_steps\":9,\"processes\":1",
    );
    assert_eq!(status(), Status::Running);
    event(out, "\"event\":\"paused\",\"step\":4");
    assert_eq!(status(), Status::Paused { step: 4 });
    event(out, "\"event\":\"continued\",\"step\":4");
    let state = RankFile { time: live::unix_seconds() - 60.0, ..RankFile::default() };
    fs::write(live::rank_path(out, 0), serde_json::to_string(&state).unwrap()).unwrap();
    assert!(matches!(status(), Status::Silent { seconds: 60..=70 }));
    event(out, "\"event\":\"stopped\",\"step\":5,\"text\":\"step-5\"");
    // The process saves and ends.
    assert_eq!(status(), Status::Waiting);
    drop(lock);
    assert_eq!(status(), Status::Stopped);
    event(out, "\"event\":\"started\",\"step\":5,\"run\":\"b\"");
    assert_eq!(status(), Status::Ended);
    fs::create_dir(out.join("final")).unwrap();
    assert_eq!(status(), Status::Finished);
    assert_eq!(reader.run().total_steps, None);
}

#[test]
fn a_request_names_the_run_that_it_is_meant_for() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path();
    append(&out.join("metrics.jsonl"), "");
    let mut reader = RunReader::open(out).unwrap();
    reader.poll();
    assert!(reader.ask(RequestKind::Stop).is_err());
    event(out, "\"event\":\"started\",\"step\":0,\"run\":\"a-1\"");
    reader.poll();
    reader.ask(RequestKind::Checkpoint).unwrap();
    let files: Vec<_> =
        fs::read_dir(live::requests_path(out)).unwrap().map(|file| file.unwrap().path()).collect();
    let text = fs::read_to_string(&files[0]).unwrap();
    assert_eq!((files.len(), text.as_str()), (1, r#"{"run":"a-1","request":"checkpoint"}"#));
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
