//! Environments that programs and servers keep, while those fail.

use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::json;

use super::*;
use crate::test_program::{lines, no_log, script, wait_for};
use crate::test_server::{Received, send, server};

/// Notes each request, and answers each turn with a message that says the process and how many turns of it
/// there have been. `BEFORE` stands for what is done before the answer.
const ECHO: &str = r#"
    turns=0
    while read -r line; do
        printf '%s\n' "$line" >> "$1"; field id; id=$value; steps=
        rest=${line#*'"turns":'}
        while [ "${rest#*'"text":'}" != "$rest" ]; do
            rest=${rest#*'"text":'}; turns=$((turns + 1))
            steps="$steps${steps:+,}{\"messages\":[{\"role\":\"tool\",\"content\":\"$turns\"}],\"done\":false}"
        done
        BEFORE
        printf '{"id":%s,"steps":[%s]}\n' "$id" "$steps"
    done"#;

fn echo(before: &str, file: &Path) -> CommandConfig {
    script(&ECHO.replace("BEFORE", before), file)
}

fn turn(episode: u64) -> Turn<'static> {
    Turn { episode, text: "= 1" }
}

fn tool(text: &str) -> Step {
    Step { messages: vec![Message::tool(text)], reward: None, done: false }
}

/// The requests that a program has noted, without their ids.
fn requests(file: &Path) -> Vec<Value> {
    let read = |line: &String| {
        let mut request: Value = serde_json::from_str(line).unwrap();
        request.as_object_mut().unwrap().remove("id");
        request
    };
    lines(file).iter().map(read).collect()
}

#[test]
fn an_episode_is_begun_with_its_first_turn_and_ended_after_its_last() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("requests");
    let mut environment = command(&echo("", &file), &no_log()).unwrap();
    assert_eq!(environment.tools(), None);
    for episode in [4, 7] {
        environment.reset(episode, &[Message::user("37 + 45?")], Some("82")).unwrap();
    }
    assert_eq!(environment.reset(7, &[], None), Err(EnvironmentError::HasBegun { episode: 7 }));
    // An episode that is ended before its first turn is told to nobody.
    environment.reset(5, &[], None).unwrap();
    environment.end(5);

    let text = Turn { episode: 7, text: "a\nb" };
    assert_eq!(environment.step(&[text, turn(4)]), [Ok(tool("1")), Ok(tool("2"))]);
    assert_eq!(environment.step(&[turn(4)]), [Ok(tool("3"))]);
    environment.end(7);
    environment.reset(8, &[], None).unwrap();
    assert_eq!(environment.step(&[turn(8)]), [Ok(tool("4"))]);
    environment.end(4);
    environment.end(8);
    environment.end(8);

    let prompt = json!([{"role": "user", "content": "37 + 45?"}]);
    let begun = |episode: u64| json!({"episode": episode, "prompt": prompt, "answer": "82"});
    let said = |episode: u64, text: &str| json!({"episode": episode, "text": text});
    assert_eq!(
        requests(&file),
        [
            json!({"end": [], "reset": [], "turns": []}),
            json!({"end": [], "reset": [begun(7), begun(4)], "turns": [said(7, "a\nb"), said(4, "= 1")]}),
            json!({"end": [], "reset": [], "turns": [said(4, "= 1")]}),
            json!({"end": [7], "reset": [{"episode": 8, "prompt": [], "answer": null}], "turns": [said(8, "= 1")]}),
            json!({"end": [4, 8], "reset": [], "turns": []}),
        ]
    );
}

#[test]
fn turns_go_to_the_program_of_their_episode_in_batches() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("requests");
    let config = CommandConfig { concurrency: 2, ..echo("sleep 0.0$((id % 3))", &file) };
    let mut environment = command(&config, &no_log()).unwrap();
    for episode in 0..7 {
        environment.reset(episode, &[], None).unwrap();
    }
    // Even episodes belong to one program and odd ones to the other; each counts its own turns.
    let order = [6, 1, 0, 3, 2, 4, 5];
    let steps = environment.step(&order.map(turn));
    assert_eq!(steps, ["1", "1", "2", "2", "3", "4", "3"].map(|text| Ok(tool(text))));
    // Two probes, and batches of two: 6 0, 2 4, 1 3, 5.
    assert_eq!(lines(&file).len(), 6);
    assert_eq!(
        environment.step(&[turn(3), turn(9), turn(2)]),
        [Ok(tool("4")), Err(EnvironmentError::UnknownEpisode { episode: 9 }), Ok(tool("5"))]
    );
}

#[test]
fn a_program_that_dies_costs_all_its_episodes_and_no_others() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("requests");
    // The program of the even episodes dies at its third turn.
    let dies = r#"case $line in *'"episode":2,"text"'*) [ $turns -ge 3 ] && exit 5 ;; esac"#;
    let config = CommandConfig { concurrency: 2, batch_size: 8, ..echo(dies, &file) };
    let mut environment = command(&config, &no_log()).unwrap();
    for episode in 0..3 {
        environment.reset(episode, &[], None).unwrap();
    }
    let all = [turn(0), turn(1), turn(2)];
    assert_eq!(environment.step(&all), [Ok(tool("1")), Ok(tool("1")), Ok(tool("2"))]);
    let steps = environment.step(&all);
    let failed = |step: &Result<Step, EnvironmentError>| step.as_ref().unwrap_err().name();
    assert_eq!((failed(&steps[0]), failed(&steps[2])), ("failed", "failed"));
    assert_eq!(steps[1], Ok(tool("2")));
    assert!(steps[0].as_ref().unwrap_err().to_string().contains("exit status: 5"));

    // The new program is not asked about them, and takes new ones.
    let sent = lines(&file).len();
    environment.reset(4, &[], None).unwrap();
    let lost = |episode| Err(EnvironmentError::Lost { episode });
    assert_eq!(environment.step(&[turn(0), turn(4), turn(2)]), [lost(0), Ok(tool("1")), lost(2)]);
    let last = requests(&file)[sent..].to_vec();
    assert_eq!(last[0]["turns"], json!([{"episode": 4, "text": "= 1"}]));
    assert_eq!(last.len(), 1);
}

#[test]
fn an_episode_that_an_idle_program_has_forgotten_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("requests");
    // It ends after the request with a turn was answered.
    let leaves =
        r#"[ $turns -gt 0 ] && { printf '{"id":%s,"steps":[%s]}\n' "$id" "$steps"; : > "$1.left"; exit 0; }"#;
    let mut environment = command(&echo(leaves, &file), &no_log()).unwrap();
    environment.reset(1, &[], None).unwrap();
    environment.reset(2, &[], None).unwrap();
    assert_eq!(environment.step(&[turn(1)]), [Ok(tool("1"))]);
    wait_for("the program ends", || folder.path().join("requests.left").exists());
    std::thread::sleep(std::time::Duration::from_millis(300));
    // The second episode was only queued, so the new program is told of it.
    let steps = environment.step(&[turn(1), turn(2)]);
    assert_eq!(steps, [Err(EnvironmentError::Lost { episode: 1 }), Ok(tool("1"))]);
}

#[test]
fn a_step_that_cannot_be_used_costs_its_episode() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("requests");
    let odd = r#"[ $turns = 2 ] && steps='{"done":true,"reward":0.5},{"messages":[{"role":"system","content":"x"}],"done":false}'"#;
    let mut environment = command(&echo(odd, &file), &no_log()).unwrap();
    for episode in [1, 2] {
        environment.reset(episode, &[], None).unwrap();
    }
    let steps = environment.step(&[turn(1), turn(2)]);
    assert_eq!(steps[0], Ok(Step { messages: vec![], reward: Some(0.5), done: true }));
    assert_eq!(steps[1].as_ref().unwrap_err().name(), "bad_step");
    let sent = lines(&file).len();
    assert_eq!(environment.step(&[turn(2)]), [Err(EnvironmentError::Lost { episode: 2 })]);
    // Nothing but an empty request was sent for it, and its end is told.
    assert_eq!(requests(&file)[sent..], [json!({"end": [], "reset": [], "turns": []})]);
    environment.end(1);
    environment.end(2);
    assert_eq!(requests(&file)[sent + 1]["end"], json!([1, 2]));
}

#[test]
fn an_environment_that_does_not_work_is_found_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let wrong = |text: &str| command(&script(text, folder.path()), &no_log()).map(|_| ()).unwrap_err();
    assert!(wrong("echo broken >&2; exit 1").problem.contains("broken"));
    let answers = |answer: &str| format!("read -r line; echo '{answer}'; read -r line");
    assert!(wrong(&answers(r#"{"id": 1, "scores": []}"#)).problem.contains("`steps`"));
    assert!(wrong(&answers(r#"{"id": 1, "steps": [], "tools": "f"}"#)).problem.contains("`tools`"));
    let tools = answers(r#"{"id": 1, "steps": [], "tools": [{"type": "function"}]}"#);
    let environment = command(&script(&tools, folder.path()), &no_log()).unwrap();
    assert_eq!(environment.tools(), Some(json!([{"type": "function"}])));
}

/// A server that answers each turn with `done`, and what `respond` answers in its place.
fn http_server(
    respond: impl Fn(&Received) -> Option<(&'static str, String)> + Send + Sync + 'static,
) -> (HttpConfig, Arc<Mutex<Vec<Received>>>) {
    server(move |_, request, connection| {
        let turns = request.body["turns"].as_array().unwrap().len();
        let steps = vec![json!({"done": true}); turns];
        let (status, body) = respond(request).unwrap_or(("200 OK", json!({ "steps": steps }).to_string()));
        send(connection, status, "", &body);
    })
}

#[test]
fn a_server_that_fails_costs_the_episodes_of_the_request() {
    let about = |request: &Received, episode: u64| {
        request.body["turns"].as_array().unwrap().iter().any(|turn| turn["episode"] == episode)
    };
    let (mut config, requests) = http_server(move |request| {
        about(request, 3).then(|| ("500 Internal Server Error", "no memory".to_owned()))
    });
    config.concurrency = 2;
    let mut environment = http(&config).unwrap();
    for episode in 0..6 {
        environment.reset(episode, &[], None).unwrap();
    }
    // Requests: 0 2, 4 and 1 3, 5.
    let all: Vec<Turn<'_>> = (0..6).map(turn).collect();
    let steps = environment.step(&all);
    let failed: Vec<bool> = steps.iter().map(Result::is_err).collect();
    assert_eq!(failed, [false, true, false, true, false, false]);
    assert!(steps[1].as_ref().unwrap_err().to_string().contains("500"));
    // Nothing was sent twice: two probes and four requests.
    let begun = |request: &Received| request.body["reset"].as_array().unwrap().len();
    assert_eq!(requests.lock().unwrap().iter().map(begun).sum::<usize>(), 6);
    assert_eq!(requests.lock().unwrap().len(), 6);
    assert_eq!(environment.step(&[turn(1)]), [Err(EnvironmentError::Lost { episode: 1 })]);
    for episode in 0..6 {
        environment.end(episode);
    }
    let ended: Vec<Value> =
        requests.lock().unwrap()[6..].iter().map(|request| request.body["end"].clone()).collect();
    assert!(ended.contains(&json!([0, 2, 4])) && ended.contains(&json!([1, 3, 5])), "{ended:?}");
}
