//! Runs the binary in a folder of its own and keeps what it said.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A folder that goes away with the test.
pub(crate) struct Scratch {
    folder: TempDir,
}

/// The secret of jobs whose ranks no launcher of this program starts, or that run on several hosts.
pub(crate) const SECRET: &str = "the secret of a test's job";

/// What a run said and how it ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The exit code.
    pub(crate) code: i32,
    /// Data.
    pub(crate) stdout: String,
    /// Progress and errors.
    pub(crate) stderr: String,
}

impl Scratch {
    /// An empty folder.
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a scratch folder") }
    }

    /// A path inside.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file inside.
    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("a scratch file");
    }

    /// Reads a file inside.
    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Waits until the file of rows `name` has `count` of them, for a minute at most.
    pub(crate) fn wait_for_rows(&self, name: &str, count: usize) {
        let started = Instant::now();
        let rows = || std::fs::read_to_string(self.path(name)).map_or(0, |text| text.lines().count());
        while rows() < count {
            assert!(started.elapsed() < Duration::from_secs(60), "{name} has no {count} rows after a minute");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The names inside, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        names(self.folder.path())
    }

    /// Runs the binary here with words split at spaces.
    pub(crate) fn run(&self, line: &str) -> Outcome {
        self.run_with(&line.split(' ').collect::<Vec<_>>(), "")
    }

    /// Runs the binary here with `input` on its stdin.
    pub(crate) fn run_with(&self, words: &[&str], input: &str) -> Outcome {
        let mut child = self.command(words).stdin(Stdio::piped()).spawn().expect("the binary starts");
        let mut stdin = child.stdin.take().expect("stdin is a pipe");
        // A program that fails early does not read its input.
        let _ = stdin.write_all(input.as_bytes());
        drop(stdin);
        let output = child.wait_with_output().expect("the binary ends");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        Outcome {
            code: output.status.code().unwrap_or(-1),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }

    /// The binary, ready to start here without network and, unless `words` say otherwise, with one thread.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        // On another machine than the one that built these tests, the binary is elsewhere.
        let binary = std::env::var_os("COLOSSAL_TEST_BINARY");
        let mut command = Command::new(binary.unwrap_or_else(|| env!("CARGO_BIN_EXE_colossal-chat").into()));
        if !words.contains(&"--threads") {
            command.args(["--threads", "1"]);
        }
        command.args(words).current_dir(self.folder.path());
        command.env("HF_HUB_OFFLINE", "1").env("NO_COLOR", "1");
        // A test leaves nothing in the folders of the person who runs it, and reads nothing there.
        command.env("XDG_CACHE_HOME", self.folder.path().join(".cache"));
        command.env("XDG_DATA_HOME", self.folder.path().join(".share"));
        command.env("XDG_CONFIG_HOME", self.folder.path().join(".config"));
        command.env("COLOSSAL_JOB_SECRET", SECRET);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(Stdio::null());
        command
    }
}

impl Outcome {
    /// Fails unless the run ended with `code` and one error line that holds every one of `words`.
    #[track_caller]
    pub(crate) fn fails(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, code, "{self:#?}");
        assert_eq!(self.stderr.matches("error: ").count(), 1, "{self:#?}");
        for word in words {
            assert!(self.stderr.contains(word), "{word:?} is not in {self:#?}");
        }
    }

    /// Fails unless the run was successful; gives its data.
    #[track_caller]
    pub(crate) fn succeeds(&self) -> &str {
        assert_eq!(self.code, 0, "{self:#?}");
        &self.stdout
    }

    /// The data as one JSON value.
    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(self.succeeds()).expect("JSON")
    }

    /// The data as JSON, one value a line.
    #[track_caller]
    pub(crate) fn rows(&self) -> Vec<serde_json::Value> {
        self.succeeds().lines().map(|line| serde_json::from_str(line).expect("a row of JSON")).collect()
    }
}

/// Sends a signal, such as `INT`, to a process. (By the shell: not every system has a program `kill`.)
pub(crate) fn signal(name: &str, process: u32) {
    let status = Command::new("sh").args(["-c", &format!("kill -{name} {process}")]).status();
    assert!(status.expect("a shell").success(), "no process {process}");
}

/// The processes that `parent` has started.
pub(crate) fn children(parent: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").expect("/proc");
    let mut children: Vec<u32> = processes
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|process| {
            // `PID (NAME) STATE PARENT ...`, and a name may hold anything.
            let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
            let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
            rest.split_whitespace().nth(1) == Some(&parent.to_string())
        })
        .collect();
    children.sort_unstable();
    children
}

/// The processes that `process` and those that it has started have started.
pub(crate) fn descendants(process: u32) -> Vec<u32> {
    children(process).into_iter().flat_map(|child| [vec![child], descendants(child)].concat()).collect()
}

/// Whether a process runs: not after its end, also where its parent has not asked for its exit code.
pub(crate) fn is_running(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// A port of this host that nothing listens at.
pub(crate) fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("a port").port()
}

/// What listens at a port of this host and is no store of a job.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stranger {
    /// Takes every connection and says nothing.
    Silent,
    /// Takes every connection and closes it.
    Closing,
    /// Answers as a web server does.
    Http,
}

impl Stranger {
    /// The port that it listens at from now on.
    pub(crate) fn listen(self) -> u16 {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("a port").port();
        std::thread::spawn(move || {
            let mut open = Vec::new();
            for mut stream in listener.incoming().map_while(Result::ok) {
                if matches!(self, Self::Http) {
                    let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
                }
                if !matches!(self, Self::Closing) {
                    open.push(stream);
                }
            }
        });
        port
    }
}

/// The names in a folder, sorted.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}
