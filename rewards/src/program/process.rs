//! One process of a program: its group, its pipes, and the threads that serve them.
//!
//! Each pipe has a thread, so that a program that does not read or never ends a line cannot stop the run: the
//! caller waits for lines with a time limit and then kills the group. The threads end with their pipes. They
//! are not waited for, because a process that has left the group may hold a pipe open.
//!
//! A program has the environment of the run without what a launcher says of this rank ([`is_of_rank`]): with
//! it, a program that uses `torch.distributed`, MPI or this program itself would join the job in its place.
//! The secret of the job is left out as well, so that it is in no log of a program that prints its
//! environment. That is no protection from the program, which runs with the user's rights.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::error::ProgramError;
use super::group::{Group, ends_within};
use super::log::Log;
use crate::score::quoted;

/// How many lines of stdout may wait. A program that writes more has to wait itself.
const QUEUE: usize = 4;
/// Longer lines of stderr are cut here, in bytes.
const STDERR_LINE: usize = 4 << 10;
/// How long a program may take to end after the end of its stdin, or to die after the end of its stdout.
const GRACE: Duration = Duration::from_secs(1);
/// How long the last line of stderr of a program that was killed may take.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// The variables of this program's launcher: the secret of the job, and the process that watches the rank.
const OF_OUR_LAUNCHER: [&str; 2] = ["COLOSSAL_JOB_SECRET", "COLOSSAL_LAUNCHER"];
/// The variables in which torchrun, and those that imitate it, give a process its place and the rendezvous.
const OF_TORCHRUN: [&str; 11] = [
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "ROLE_NAME",
    "MASTER_ADDR",
    "MASTER_PORT",
];
/// The variables in which SLURM gives a process its place. The variables of the job stay, so that `srun`
/// works.
const OF_SLURM: [&str; 4] = ["SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS"];
/// How the other variables of torchrun, and those of Open MPI and of MPI's process managers, begin.
const BEGINNINGS: [&str; 4] = ["TORCHELASTIC_", "OMPI_COMM_WORLD_", "PMI_", "PMIX_"];

/// How the program of an entry is started, and its limits.
#[derive(Debug)]
pub(super) struct Launch {
    pub(super) command: Vec<String>,
    pub(super) timeout: Duration,
    /// The longest line of stdout, in bytes.
    pub(super) longest_line: usize,
    pub(super) log: Log,
}

/// What the reader of stdout found.
enum Said {
    Line(Vec<u8>),
    TooLong,
}

/// A running process. Its whole group is killed when this is dropped.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    group: Group,
    /// Lines for its stdin, which is closed once this is dropped.
    requests: Option<Sender<Vec<u8>>>,
    /// Lines of its stdout. The channel ends with the pipe.
    lines: Receiver<Said>,
    errors: JoinHandle<()>,
    /// The last line of its stderr.
    words: Arc<Mutex<String>>,
}

impl Process {
    pub(super) fn start(launch: &Arc<Launch>) -> Result<Self, ProgramError> {
        let failed =
            |problem: String| ProgramError::Start { command: quoted(&launch.command.join(" ")), problem };
        let group = Group::new().map_err(|error| failed(format!("sh, which watches over it: {error}")))?;
        let mut command = Command::new(&launch.command[0]);
        // Python then writes each line at once; otherwise a forgotten flush looks like a program that hangs.
        command.args(&launch.command[1..]).env("PYTHONUNBUFFERED", "1");
        for (name, _) in std::env::vars_os().filter(|(name, _)| is_of_rank(name)) {
            command.env_remove(name);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        group.adopt(&mut command);
        let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;

        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
            return Err(failed("it has no pipes".to_owned()));
        };
        let (requests, written) = mpsc::channel();
        let (said, lines) = mpsc::sync_channel(QUEUE);
        let words = Arc::new(Mutex::new(String::new()));
        let (longest, heard, of_launch) = (launch.longest_line, Arc::clone(&words), Arc::clone(launch));
        let started = serve(move || write_lines(stdin, &written))
            .and_then(|_| serve(move || read_lines(stdout, longest, &said)))
            .and_then(|_| serve(move || pass_on(stderr, &of_launch.log, &heard)));
        let errors = started.map_err(|error| failed(format!("no thread for its pipes: {error}")))?;
        Ok(Self { child, group, requests: Some(requests), lines, errors, words })
    }

    /// Sends a line and waits for the next line.
    pub(super) fn exchange(&mut self, request: Vec<u8>, launch: &Launch) -> Result<Vec<u8>, ProgramError> {
        if let Some(requests) = &self.requests {
            // A closed stdin shows as the end of the program, or as silence.
            let _ = requests.send(request);
        }
        let end = Instant::now() + launch.timeout;
        loop {
            let left = end.checked_duration_since(Instant::now());
            match left.map_or(Err(RecvTimeoutError::Timeout), |left| self.lines.recv_timeout(left)) {
                Ok(Said::Line(line)) if line.trim_ascii().is_empty() => {}
                Ok(Said::Line(line)) => return Ok(line),
                Ok(Said::TooLong) => return Err(too_long(launch)),
                Err(RecvTimeoutError::Disconnected) => return Err(self.ended()),
                Err(RecvTimeoutError::Timeout) => return Err(self.silent(launch)),
            }
        }
    }

    /// What the process has done since its last answer that makes it useless: it has ended, or it has written
    /// to stdout without being asked.
    pub(super) fn unasked(&mut self, launch: &Launch) -> Option<ProgramError> {
        loop {
            match self.lines.try_recv() {
                Ok(Said::Line(line)) if line.trim_ascii().is_empty() => {}
                Ok(Said::Line(line)) => {
                    return Some(ProgramError::Unasked { said: quoted(&String::from_utf8_lossy(&line)) });
                }
                Ok(Said::TooLong) => return Some(too_long(launch)),
                Err(mpsc::TryRecvError::Empty) => return None,
                Err(mpsc::TryRecvError::Disconnected) => return Some(self.ended()),
            }
        }
    }

    /// Gives the program the end of its stdin and a moment to end by itself.
    pub(super) fn finish(mut self) {
        drop(self.requests.take());
        ends_within(&mut self.child, GRACE);
    }

    /// The error of a process whose stdout has ended.
    fn ended(&mut self) -> ProgramError {
        let status = ends_within(&mut self.child, GRACE);
        let status = status.map_or_else(|| "it closed its stdout".to_owned(), |status| status.to_string());
        ProgramError::Ended { status, words: self.last_words() }
    }

    /// The error of a process that gives no answer.
    fn silent(&mut self, launch: &Launch) -> ProgramError {
        ProgramError::Silent { seconds: launch.timeout.as_secs_f64(), words: self.last_words() }
    }

    /// Kills the group and returns the last line of stderr.
    fn last_words(&mut self) -> String {
        self.group.kill();
        let end = Instant::now() + LAST_WORDS;
        while !self.errors.is_finished() && Instant::now() < end {
            thread::sleep(Duration::from_millis(1));
        }
        quoted(&self.words.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.group.kill();
        // The leader of the group may have been killed by somebody else.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether an environment variable belongs to this rank of the job alone.
fn is_of_rank(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    let mut names = OF_OUR_LAUNCHER.iter().chain(&OF_TORCHRUN).chain(&OF_SLURM);
    names.any(|other| *other == name) || BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
}

fn too_long(launch: &Launch) -> ProgramError {
    ProgramError::LineTooLong { limit: launch.longest_line }
}

fn serve(work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name("program pipe".to_owned()).spawn(work)
}

/// Writes lines until there are no more or the program reads no more.
fn write_lines(mut stdin: ChildStdin, lines: &Receiver<Vec<u8>>) {
    let mut write = |line: Vec<u8>| stdin.write_all(&line).and_then(|()| stdin.flush());
    while lines.recv().is_ok_and(|line| write(line).is_ok()) {}
}

/// Passes lines on until the pipe ends, a line is too long, or nobody takes them.
fn read_lines(stdout: ChildStdout, longest: usize, said: &SyncSender<Said>) {
    let mut reader = BufReader::new(stdout);
    loop {
        let mut line = Vec::new();
        match reader.by_ref().take(longest as u64 + 1).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) if line.last() != Some(&b'\n') && line.len() > longest => {
                let _ = said.send(Said::TooLong);
                return;
            }
            Ok(_) => {
                if said.send(Said::Line(line)).is_err() {
                    return;
                }
            }
        }
    }
}

/// Passes the lines of stderr on to the log and remembers the last one.
fn pass_on(stderr: ChildStderr, log: &Log, words: &Mutex<String>) {
    let mut reader = BufReader::new(stderr);
    loop {
        let mut line = Vec::new();
        match reader.by_ref().take(STDERR_LINE as u64).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                let line = String::from_utf8_lossy(&line);
                let line = line.trim_end();
                if !line.is_empty() {
                    log.write(line);
                    line.clone_into(&mut words.lock().unwrap_or_else(PoisonError::into_inner));
                }
            }
        }
    }
}
