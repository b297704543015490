//! The chat: in a pipe, and on a real screen, driven through tmux like a person would.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::harness::{Scratch, children, names, signal};
use crate::inference;

/// How long a screen may take to show something.
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder with a model of 96 positions, and two of the same weights with 20 000.
fn world() -> Scratch {
    let scratch = Scratch::new();
    let small = inference::world().path("model");
    std::os::unix::fs::symlink(&small, scratch.path("small")).unwrap();
    for name in ["model", "model2"] {
        std::fs::create_dir(scratch.path(name)).unwrap();
        for file in names(&small) {
            std::fs::copy(small.join(&file), scratch.path(name).join(&file)).unwrap();
        }
        let config = scratch.read(&format!("{name}/config.json"));
        let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
        config["max_position_embeddings"] = 20_000.into();
        scratch.write(&format!("{name}/config.json"), &config.to_string());
    }
    scratch
}

/// A terminal of tmux with a shell in a scratch folder. It goes away with the test.
pub(crate) struct Tmux<'a> {
    scratch: &'a Scratch,
}

impl<'a> Tmux<'a> {
    /// Starts a shell in a terminal; `None` if this system has no tmux.
    pub(crate) fn start(scratch: &'a Scratch, columns: u16, rows: u16) -> Option<Self> {
        if Command::new("tmux").arg("-V").output().is_err() {
            eprintln!("skipped: this system has no tmux, which drives a program on a terminal");
            return None;
        }
        scratch.write(
            "tmux.conf",
            "set -g default-shell /bin/sh\nset -s escape-time 0\nset -g history-limit 1000\n",
        );
        let tmux = Self { scratch };
        let binary = scratch.command(&[]);
        let mut start = tmux.command();
        start.args([
            "new-session",
            "-d",
            "-x",
            &columns.to_string(),
            "-y",
            &rows.to_string(),
            "env",
            "PS1=$ ",
            "sh",
        ]);
        start.envs(binary.get_envs().filter_map(|(name, value)| Some((name, value?))));
        start.current_dir(scratch.path(""));
        assert!(start.status().unwrap().success());
        Some(tmux)
    }

    fn command(&self) -> Command {
        let mut command = Command::new("tmux");
        command.env_remove("TMUX").env("LANG", "C.UTF-8").env("LC_ALL", "C.UTF-8");
        command.arg("-S").arg(self.scratch.path("tmux.socket")).arg("-f").arg(self.scratch.path("tmux.conf"));
        command
    }

    fn run(&self, words: &[&str]) -> String {
        String::from_utf8(self.command().args(words).output().unwrap().stdout).unwrap()
    }

    pub(crate) fn keys(&self, keys: &[&str]) {
        self.run(&[&["send-keys"], keys].concat());
    }

    pub(crate) fn line(&self, text: &str) {
        self.run(&["send-keys", "-l", text]);
        self.keys(&["Enter"]);
    }

    fn screen(&self) -> String {
        self.run(&["capture-pane", "-p"])
    }

    /// Waits until the screen shows `text`, and returns the screen.
    #[track_caller]
    pub(crate) fn shows(&self, text: &str) -> String {
        self.wait(text, |screen| screen.contains(text))
    }

    #[track_caller]
    pub(crate) fn wait(&self, what: &str, test: impl Fn(&str) -> bool) -> String {
        let started = Instant::now();
        loop {
            let screen = self.screen();
            if test(&screen) {
                return screen;
            }
            assert!(started.elapsed() < PATIENCE, "no {what:?} on the screen:\n{screen}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Resizes the terminal, and waits until the program in it can know. tmux hands a size on with a delay,
    /// and leaves out sizes that follow each other too fast.
    #[track_caller]
    fn resize(&self, columns: &str, rows: &str) {
        self.run(&["resize-window", "-x", columns, "-y", rows]);
        let terminal = self.run(&["display-message", "-p", "#{pane_tty}"]);
        self.wait(&format!("terminal of {columns} columns"), |_| {
            let size = Command::new("stty").args(["-F", terminal.trim(), "size"]).output().unwrap();
            String::from_utf8_lossy(&size.stdout).trim() == format!("{rows} {columns}")
        });
    }

    /// The line of an answer that ran to its length, `count` times.
    #[track_caller]
    pub(crate) fn answered(&self, count: usize) {
        self.wait("complete answer", |screen| screen.matches("cut at the length").count() == count);
    }

    /// The modes of the terminal, as `stty` tells them, in a file of its own.
    fn modes(&self, file: &str) -> String {
        self.line(&format!("clear; stty -a > {file}; echo 'written to' {file}"));
        let line = format!("written to {file}");
        self.wait(&line, |screen| screen.lines().any(|shown| shown == line));
        self.scratch.read(file)
    }
}

impl Drop for Tmux<'_> {
    fn drop(&mut self) {
        self.run(&["kill-server"]);
    }
}

fn chat(words: &str) -> String {
    let binary = env!("CARGO_BIN_EXE_colossal-chat");
    format!("{binary} --threads 1 chat --model model --max-new-tokens 8 --ignore-eos {words}; echo code $?")
}

#[test]
fn a_person_chats_compares_judges_and_leaves_the_terminal_as_it_was() {
    let scratch = world();
    let Some(tmux) = Tmux::start(&scratch, 90, 24) else { return };
    let before = tmux.modes("before");
    tmux.line(&chat(""));
    tmux.shows("parameters, context");
    tmux.line("hello 星期三 👩‍👩‍👧");
    tmux.answered(1);

    // Thirty pasted lines are one message.
    let lines: Vec<String> = (0..30).map(|number| format!("line {number}")).collect();
    tmux.run(&["set-buffer", &lines.join("\n")]);
    tmux.run(&["paste-buffer", "-p"]);
    tmux.shows("line 29");
    tmux.keys(&["Enter"]);
    tmux.wait("an answer", |screen| screen.contains("cut at the length") && !screen.contains("> line"));
    tmux.keys(&["C-t"]);
    tmux.shows("2/2  cut");
    tmux.line("/prefer a");
    tmux.shows("preferred");
    tmux.line("/rate 4 fine");
    tmux.shows("4/5");

    for (columns, rows) in [("40", "12"), ("120", "40"), ("90", "24")] {
        tmux.resize(columns, rows);
        tmux.wait("the input", |screen| {
            screen.lines().count() <= rows.parse().unwrap() && screen.contains("ctx")
        });
    }
    tmux.line("/compare model model2");
    tmux.shows("2 models answer");
    tmux.line("/set max_new_tokens 100000");
    tmux.line("go on");
    tmux.shows("a model");
    tmux.keys(&["Escape"]);
    tmux.shows("stopped");
    tmux.line("/prefer tie");
    tmux.shows("a tie");
    tmux.line("/quit");
    tmux.shows("code 0");
    assert_eq!(tmux.modes("after"), before);

    let feedback: String = std::fs::read_dir(scratch.path(".share/colossal-chat/feedback"))
        .unwrap()
        .map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap())
        .collect();
    let rows: Vec<serde_json::Value> =
        feedback.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let sources: Vec<&str> = rows.iter().map(|row| row["source"].as_str().unwrap()).collect();
    assert_eq!(sources, ["sibling", "rating", "compare"], "{rows:#?}");
    assert_eq!(rows[0]["prompt"][2]["content"], lines.join("\n"));
    assert_eq!((&rows[1]["rating"], &rows[1]["note"]), (&4.into(), &"fine".into()));
    assert_eq!(rows[2]["tie"], true);
}

#[test]
fn a_session_goes_on_and_a_signal_keeps_it() {
    let scratch = world();
    let Some(tmux) = Tmux::start(&scratch, 80, 20) else { return };
    tmux.line(&chat(""));
    tmux.shows("parameters, context");
    tmux.line("remember this");
    tmux.answered(1);
    tmux.run(&["send-keys", "-l", "half a mess"]);
    tmux.shows("half a mess");
    let shell: u32 = tmux.run(&["display-message", "-p", "#{pane_pid}"]).trim().parse().unwrap();
    signal("TERM", children(shell)[0]);
    tmux.shows("code 130");
    tmux.line(&chat("--continue"));
    tmux.shows("remember this");
    tmux.keys(&["C-o"]);
    tmux.shows("sessions: Enter opens");
    tmux.keys(&["Escape"]);
    // A terminal that gets both keys at once sees one key with Alt.
    tmux.wait("closed list", |screen| !screen.contains("sessions: Enter opens"));
    tmux.keys(&["C-d"]);
    tmux.shows("code 0");
}

#[test]
fn by_lines_a_paste_is_one_message_and_arrow_keys_edit() {
    let scratch = world();
    let Some(tmux) = Tmux::start(&scratch, 80, 24) else { return };
    tmux.line(&chat("--inline"));
    tmux.shows("/help lists");
    tmux.run(&["send-keys", "-l", "ello"]);
    tmux.keys(&["Left", "Left", "Left", "Left"]);
    tmux.line("h");
    tmux.shows("> hello");
    tmux.wait("the next prompt", |screen| screen.trim_end().ends_with('>'));
    tmux.line("/nothing");
    tmux.shows("there is no command /nothing");
    tmux.keys(&["C-d"]);
    tmux.shows("code 0");
    let history = scratch.read(".share/colossal-chat/sessions/history.jsonl");
    assert_eq!(history.lines().collect::<Vec<_>>(), ["\"hello\"", "\"/nothing\""]);
}

#[test]
fn a_pipe_gets_the_answer_or_one_object() {
    let scratch = world();
    let words = ["chat", "--model", "model", "--max-new-tokens", "5", "--ignore-eos", "--temperature", "0"];
    let plain = scratch.run_with(&words, "hi\n");
    let object = scratch.run_with(&[&words[..], &["--json"]].concat(), "hi\n").json();
    assert_eq!(object["text"].as_str().unwrap().trim_end(), plain.succeeds().trim_end());
    assert_eq!((&object["finish_reason"], &object["new_tokens"]), (&"length".into(), &5.into()));
    for words in [&["--compare", "model"][..], &["--continue"], &["--theme", "dark"]] {
        let words = [&["chat", "--model", "model"], words].concat();
        scratch.run_with(&words, "hi\n").fails(2, &[words[3], "there is no terminal"]);
    }
    scratch
        .run_with(&["chat", "--model", "model", "--theme", "pink"], "hi\n")
        .fails(2, &["dark, light and plain"]);
    std::fs::create_dir_all(scratch.path(".config/colossal-chat")).unwrap();
    scratch.write(".config/colossal-chat/chat.toml", "colour = 1\n");
    scratch.run_with(&words, "hi\n").fails(3, &["chat.toml", "unknown field `colour`"]);
}

#[test]
fn a_full_context_leaves_the_oldest_messages_out_or_refuses() {
    let scratch = world();
    let Some(tmux) = Tmux::start(&scratch, 90, 24) else { return };
    let long = "a word or two ".repeat(4);
    tmux.line(&chat("--context stop").replace("--model model", "--model small"));
    tmux.shows("parameters, context");
    tmux.line(&long);
    tmux.answered(1);
    tmux.line(&long);
    tmux.shows("the context is full");
    // The refused message is back in the input.
    tmux.shows("> a word or two");
    tmux.keys(&["C-c"]);
    tmux.line("/context drop");
    tmux.shows("no longer sees the oldest");
    tmux.line(&long);
    tmux.shows("the oldest 2 messages");
    tmux.line("/quit");
    tmux.shows("code 0");
}
