//! A program that ends, hangs, or writes what it should not.

use std::path::Path;
use std::process::Command;

use serde_json::{Map, Value, json};

use super::*;
use crate::test_program::{is_alive, lines, no_log, script, wait_for};

/// The variable with the file of [`holds_a_program`].
const HOLD: &str = "REWARDS_TEST_HOLD";
/// The variable with the file of [`writes_its_environment`].
const WRITE: &str = "REWARDS_TEST_WRITE";

/// Answers each request with its id and with `n`, the number of requests of this process.
const COUNT: &str = r#"n=0; while read -r line; do
    printf '%s\n' "$line" >> "$1"; field id; n=$((n + 1)); echo "{\"id\": $value, \"n\": $n}"; done"#;

fn start(text: &str, file: &Path) -> Program {
    start_with(&script(text, file))
}

fn start_with(config: &CommandConfig) -> Program {
    Program::start_all("test", config, 1000, &no_log()).unwrap().remove(0)
}

/// Asks about `what`, and returns the answer with the number of the process.
fn ask(program: &mut Program, what: &str) -> Result<(Map<String, Value>, u64), ProgramError> {
    let mut process = 0;
    let answer = program.ask(|number| {
        process = number;
        json!({ "what": what })
    });
    answer.map(|answer| (answer, process))
}

fn ask_ok(program: &mut Program, what: &str) -> (Value, u64) {
    let (answer, process) = ask(program, what).unwrap();
    (Value::Object(answer), process)
}

#[test]
fn a_program_answers_one_request_after_the_other() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("requests");
    let mut program = start(COUNT, &file);
    assert_eq!(ask_ok(&mut program, "a"), (json!({"id": 1, "n": 1}), 1));
    assert_eq!(ask_ok(&mut program, "b"), (json!({"id": 2, "n": 2}), 1));
    assert_eq!(lines(&file), [r#"{"id":1,"what":"a"}"#, r#"{"id":2,"what":"b"}"#]);
}

#[test]
fn a_program_that_dies_costs_the_request_under_way_and_is_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("requests");
    let dies =
        COUNT.replace("echo \"{", "[ $n = 2 ] && { echo one >&2; echo 'no key' >&2; exit 3; }; echo \"{");
    let mut program = start(&dies, &file);
    assert_eq!(ask_ok(&mut program, "a").1, 1);
    let error = ask(&mut program, "b").unwrap_err();
    let (status, words) = ("exit status: 3".to_owned(), "no key".to_owned());
    assert_eq!(error, ProgramError::Ended { status, words });
    // Another process, another id, and "b" is not sent again.
    assert_eq!(ask_ok(&mut program, "c"), (json!({"id": 3, "n": 1}), 2));
    let sent: Vec<String> = lines(&file).iter().map(|line| line[line.len() - 3..].to_owned()).collect();
    assert_eq!(sent, ["a\"}", "b\"}", "c\"}"]);
}

#[test]
fn a_program_that_dies_between_two_requests_costs_none() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("requests");
    let once = r#"read -r line; printf '%s\n' "$line" >> "$1"; field id; echo "{\"id\": $value}"; echo $$ >> "$1.dead""#;
    let mut program = start(once, &file);
    for number in 1..=3 {
        let (answer, process) = ask_ok(&mut program, "a");
        assert_eq!((answer, process), (json!({ "id": number }), number));
        let dead = folder.path().join("requests.dead");
        wait_for("the program ends", || {
            lines(&dead).len() as u64 == number && lines(&dead).iter().all(|process| !is_alive(process))
        });
        // The reader of its stdout has noticed.
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(lines(&file).len(), 3);
}

#[test]
fn a_program_that_hangs_is_killed_with_what_it_has_started() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("processes");
    let hangs = r#"sleep 1000 & echo $! > "$1"; echo $$ >> "$1"; read -r line; echo loading >&2; wait"#;
    let mut program = start_with(&CommandConfig { timeout: 0.5, max_restarts: 0, ..script(hangs, &file) });
    wait_for("the program starts", || lines(&file).len() == 2);
    let error = ask(&mut program, "a").unwrap_err();
    assert_eq!(error, ProgramError::Silent { seconds: 0.5, words: "loading".to_owned() });
    wait_for("the group is killed", || lines(&file).iter().all(|process| !is_alive(process)));
    assert!(
        matches!(ask(&mut program, "b"), Err(ProgramError::Exhausted { cause }) if cause.contains("0.5 s"))
    );
}

#[test]
fn a_program_that_reads_nothing_blocks_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let mut program = start_with(&CommandConfig { timeout: 0.3, ..script("sleep 1000", folder.path()) });
    // More than any pipe holds.
    let long = "x".repeat(4 << 20);
    assert!(matches!(ask(&mut program, &long), Err(ProgramError::Silent { .. })));
    // Blank lines without end are no answer either.
    let blank = script("while :; do echo; done", folder.path());
    let mut program = start_with(&CommandConfig { timeout: 0.3, ..blank });
    assert!(matches!(ask(&mut program, "a"), Err(ProgramError::Silent { .. })));
}

#[test]
fn what_is_no_answer_costs_the_request_under_way() {
    let folder = tempfile::tempdir().unwrap();
    let not = |said: &str| {
        // The first process answers wrongly, the next one rightly.
        let file = folder.path().join("started");
        let _ = std::fs::remove_file(&file);
        let text = format!(
            r#"read -r line; field id; if [ -e "$1" ]; then echo "{{\"id\": $value}}"; read -r line
            else : > "$1"; printf '%b\n' '{said}'; read -r line; fi"#
        );
        let mut program = start(&text, &file);
        let error = ask(&mut program, "a").unwrap_err();
        assert_eq!(ask_ok(&mut program, "b"), (json!({"id": 2}), 2), "{said}");
        error
    };
    for said in [
        "loading the model",
        r#"{"id": 1, "scores": [NaN]}"#,
        r#"{"id": 1, "scores": [Infinity]}"#,
        r#"{"id": 1, "scores": [1e999]}"#,
        r#"{"id": 1} {"id": 1}"#,
        r#"{"id": 1"#,
        "[1]",
        "1",
        r#""{}""#,
        r#"{"scores": [1]}"#,
        r#"{"id": 1, "scores": ["\0377"]}"#,
        "\\0033[2J",
    ] {
        let error = not(said);
        assert!(matches!(error, ProgramError::NotAnAnswer { .. }), "{said}: {error:?}");
        assert!(!error.to_string().contains('\u{1b}'));
    }
    for (said, id) in [
        (r#"{"id": 2}"#, "2"),
        (r#"{"id": 0}"#, "0"),
        (r#"{"id": -1}"#, "-1"),
        (r#"{"id": "1"}"#, "\"1\""),
        (r#"{"id": 1.5}"#, "1.5"),
        (r#"{"id": null}"#, "null"),
    ] {
        assert_eq!(not(said), ProgramError::WrongId { wanted: 1, found: id.to_owned() });
    }
}

#[test]
fn the_length_of_a_line_is_limited() {
    let folder = tempfile::tempdir().unwrap();
    // {"id": 1, "x": ""} has 18 bytes.
    let filled = |fill: usize| {
        let text = format!(
            r#"read -r line; printf '{{"id": 1, "x": "'; printf '%0{fill}d' 0; printf '"}}\n'; read -r line"#
        );
        ask(&mut start(&text, folder.path()), "a")
    };
    assert!(filled(1000 - 18).is_ok());
    assert_eq!(filled(1001 - 18).unwrap_err(), ProgramError::LineTooLong { limit: 1000 });
    let endless = "read -r line; while :; do printf 'xxxxxxxxxxxxxxxx'; done";
    let error = ask(&mut start(endless, folder.path()), "a").unwrap_err();
    assert_eq!(error, ProgramError::LineTooLong { limit: 1000 });
}

#[test]
fn a_second_answer_is_never_taken_for_the_next_one() {
    let folder = tempfile::tempdir().unwrap();
    let twice = r#"while read -r line; do field id; printf '{"id":%s}\n{"id":%s}\n' $value $value; done"#;
    let mut program = start(twice, folder.path());
    assert_eq!(ask_ok(&mut program, "a").1, 1);
    // Seen before the request is sent, it costs nothing; seen afterwards, it costs the request.
    match ask(&mut program, "b") {
        Ok((answer, process)) => assert_eq!((answer["id"].as_u64(), process), (Some(2), 2)),
        Err(error) => assert_eq!(error, ProgramError::WrongId { wanted: 2, found: "1".to_owned() }),
    }
}

#[test]
fn a_program_is_started_again_only_so_often() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("starts");
    let text = r#"echo start >> "$1"; read -r line; printf '%s\n' "$line" >> "$1.requests"; exit 1"#;
    let mut program = start_with(&CommandConfig { max_restarts: 2, ..script(text, &file) });
    for _ in 0..3 {
        assert!(matches!(ask(&mut program, "a"), Err(ProgramError::Ended { .. })));
    }
    for _ in 0..3 {
        let error = ask(&mut program, "a").unwrap_err();
        assert!(matches!(&error, ProgramError::Exhausted { cause } if cause.contains("exit status: 1")));
    }
    assert_eq!(lines(&file).len(), 3);
    assert_eq!(lines(&folder.path().join("starts.requests")).len(), 3);
}

#[test]
fn a_program_may_say_that_it_cannot_answer() {
    let folder = tempfile::tempdir().unwrap();
    let text = r#"while read -r line; do field id; echo "{\"id\": $value, \"error\": \"no key\"}"; done"#;
    let mut program = start_with(&CommandConfig { max_restarts: 0, ..script(text, folder.path()) });
    for _ in 0..3 {
        let message = "no key".to_owned();
        assert_eq!(ask(&mut program, "a").unwrap_err(), ProgramError::Reported { message });
    }
}

#[test]
fn stderr_goes_to_the_log_line_by_line() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let text = r#"printf 'one\ntwo \033[2J\n\nlast' >&2; read -r line; field id; echo "{\"id\": $value}"; read -r line"#;
    let config = script(text, folder.path());
    let mut programs = Program::start_all("lint", &config, 1000, &ProgramLog::File(log.clone())).unwrap();
    ask_ok(&mut programs[0], "a");
    drop(programs);
    wait_for("the log is written", || lines(&log).len() == 3);
    assert_eq!(lines(&log), ["lint: one", "lint: two ␛[2J", "lint: last"]);
}

#[test]
fn a_program_may_end_by_itself_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("end");
    let mut program = start(&format!("{COUNT}; echo closed >> \"$1\""), &file);
    ask_ok(&mut program, "a");
    drop(program);
    assert_eq!(lines(&file)[1..], ["closed"]);
}

#[test]
fn a_program_that_cannot_be_started_is_a_wrong_setting() {
    let wrong =
        |config: &CommandConfig| Program::start_all("test", config, 1000, &no_log()).map(|_| ()).unwrap_err();
    let command = vec!["/nowhere/score".to_owned(), "x".to_owned()];
    let missing = wrong(&CommandConfig { command, ..CommandConfig::default() });
    assert_eq!(missing.key, "command");
    assert!(missing.problem.contains("/nowhere/score x"), "{missing:?}");
    assert_eq!(wrong(&CommandConfig::default()).problem, "names no program");
    let folder = tempfile::tempdir().unwrap();
    let config = script("", folder.path());
    assert_eq!(wrong(&CommandConfig { concurrency: 0, ..config.clone() }).key, "concurrency");
    assert_eq!(wrong(&CommandConfig { timeout: f64::NAN, ..config.clone() }).key, "timeout");
    let log = ProgramLog::File(folder.path().join("no/log"));
    let unlogged = Program::start_all("test", &config, 1000, &log).map(|_| ()).unwrap_err();
    assert!(unlogged.problem.contains("no/log"), "{unlogged:?}");
}

#[test]
fn a_run_that_is_killed_leaves_no_process() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("processes");
    let mut run = Command::new(std::env::current_exe().unwrap());
    let mut run = run.args(["--exact", "program::tests::holds_a_program"]).env(HOLD, &file).spawn().unwrap();
    wait_for("the program starts", || lines(&file).len() == 2);
    let processes = lines(&file);
    assert!(processes.iter().all(|process| is_alive(process)), "{processes:?}");
    run.kill().unwrap();
    run.wait().unwrap();
    wait_for("the group is killed", || processes.iter().all(|process| !is_alive(process)));
}

/// Not a test by itself: the run that [`a_run_that_is_killed_leaves_no_process`] kills.
#[test]
fn holds_a_program() {
    let Some(file) = std::env::var_os(HOLD) else { return };
    // Neither of the two looks at its stdin.
    let text = r#"sleep 1000 & printf '%s\n%s\n' $! $$ > "$1.new"; mv "$1.new" "$1"; sleep 1000"#;
    let program = start(text, Path::new(&file));
    std::thread::sleep(Duration::from_secs(300));
    drop(program);
}

#[test]
fn a_program_has_the_environment_of_the_run_without_what_makes_it_a_rank() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("environment");
    let mut run = Command::new(std::env::current_exe().unwrap());
    run.args(["--exact", "program::tests::writes_its_environment"]).env_clear().env(WRITE, &file);
    let kept = [
        ("PATH", std::env::var("PATH").unwrap()),
        ("HF_TOKEN", "a key of the user".to_owned()),
        ("CUDA_VISIBLE_DEVICES", "1".to_owned()),
        ("SLURM_JOB_ID", "7".to_owned()),
        // Variables of the user that look like those of a launcher.
        ("MY_RANK", "1".to_owned()),
        ("RANKING", "1".to_owned()),
        ("rank", "1".to_owned()),
    ];
    run.envs(kept.clone());
    for name in [
        "COLOSSAL_JOB_SECRET",
        "COLOSSAL_LAUNCHER",
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_USE_AGENT_STORE",
        "TORCHELASTIC_ERROR_FILE",
        "OMPI_COMM_WORLD_RANK",
        "PMI_SIZE",
        "PMIX_RANK",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
    ] {
        run.env(name, "no program sees this");
    }
    assert!(run.status().unwrap().success());

    let found = lines(&file);
    for (name, value) in kept {
        assert!(found.contains(&format!("{name}={value}")), "{name}: {found:?}");
    }
    assert!(found.contains(&"PYTHONUNBUFFERED=1".to_owned()), "{found:?}");
    assert!(!found.iter().any(|line| line.contains("no program sees this")), "{found:?}");
}

/// Not a test by itself: the run of [`a_program_has_the_environment_of_the_run_without_what_makes_it_a_rank`].
#[test]
fn writes_its_environment() {
    let Some(file) = std::env::var_os(WRITE) else { return };
    let text = r#"env > "$1"; read -r line; field id; echo "{\"id\": $value}"; read -r line"#;
    ask(&mut start(text, Path::new(&file)), "a").unwrap();
}
