//! A sandbox that runs: its program goes in, and a verdict comes out.
//!
//! Both go through files that have no name, because a process can neither fill nor hold them open as it can
//! pipes. Until stdout holds "ready", the program has not begun, and what goes wrong is a fault of the
//! machine. After that, whatever happens is a verdict on this one program: the line of the nonce, or, if it
//! is missing or damaged, a failure. The line bears the nonce of this sandbox, which the program cannot know.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use eval::code_execution::{Program, Verdict};
use parallel::syscall_filter;

use super::limits::{GRACE, START};
use crate::failure::Failure;
use crate::interrupt;

/// The time between two looks at a sandbox.
const PAUSE: Duration = Duration::from_millis(2);

/// A sandbox, which is killed when this is dropped.
#[derive(Debug)]
pub(super) struct Running {
    child: Child,
    nonce: String,
    /// Its stdout: says that the program is confined and has begun.
    readiness: File,
    /// Its stderr: why it could not begin, or the verdict.
    outcome: File,
}

impl Running {
    /// Starts a sandbox with `command` and gives it `program`.
    pub(super) fn start(mut command: Command, filter: &str, program: &Program) -> Result<Self, Failure> {
        let failed = |error: io::Error| broken("cannot start a process", &error);
        let nonce = format!("{:032x}", rand::random::<u128>());
        let mut input = tempfile::tempfile().map_err(failed)?;
        let (seconds, keyctl) = (program.timeout.as_secs_f64(), syscall_filter::KEYCTL);
        write!(input, "{nonce}{seconds} {keyctl} {filter}\n{}", program.source).map_err(failed)?;
        input.rewind().map_err(failed)?;
        let readiness = tempfile::tempfile().map_err(failed)?;
        let outcome = tempfile::tempfile().map_err(failed)?;
        let child = command
            .stdin(input)
            .stdout(readiness.try_clone().map_err(failed)?)
            .stderr(outcome.try_clone().map_err(failed)?)
            .spawn()
            .map_err(failed)?;
        Ok(Self { child, nonce, readiness, outcome })
    }

    /// Waits for the end of the sandbox, and kills it at the time limit and where the program is to stop.
    pub(super) fn verdict(mut self, timeout: Duration) -> Result<Verdict, Failure> {
        let failed = |error: io::Error| broken("cannot be watched", &error);
        let mut has_begun = false;
        let mut end = Instant::now() + START;
        let has_ended = loop {
            // In this order: a sandbox that has ended says nothing more.
            let has_ended = self.child.try_wait().map_err(failed)?.is_some();
            if !has_begun && self.readiness.metadata().map_err(failed)?.len() > 0 {
                has_begun = true;
                end = Instant::now() + timeout + GRACE;
            }
            if interrupt::is_stop_requested() {
                return Err(Failure::Interrupted);
            }
            if has_ended || Instant::now() >= end {
                break has_ended;
            }
            thread::sleep(PAUSE);
        };
        let said = beginning(&mut self.outcome).map_err(failed)?;
        if !has_begun {
            return Err(Failure::Sandbox { problem: start_problem(&said) });
        }
        let ended = || Verdict::Failed { reason: "the sandbox ended before the program".to_owned() };
        let missing = || if has_ended { ended() } else { Verdict::TimedOut };
        Ok(verdict(&said, &self.nonce).unwrap_or_else(missing))
    }
}

/// The error of a sandbox that does not work for a reason of this machine.
pub(super) fn broken(problem: &str, error: &io::Error) -> Failure {
    Failure::Sandbox { problem: format!("{problem}: {error}") }
}

#[cfg(test)]
impl Running {
    /// The outermost process.
    pub(super) fn process(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Why a sandbox did not begin.
fn start_problem(said: &str) -> String {
    let said: Vec<&str> = said.split_whitespace().collect();
    match said.join(" ").as_str() {
        "" => format!("cannot start: its first process said nothing within {} s", START.as_secs()),
        problem => format!("cannot start: {problem}"),
    }
}

/// The verdict in the line that begins with the nonce; `None` without such a line.
fn verdict(said: &str, nonce: &str) -> Option<Verdict> {
    let line = said.lines().find_map(|line| line.strip_prefix(nonce)?.strip_prefix(' '))?;
    match (line, line.strip_prefix("failed: ")) {
        ("passed", _) => Some(Verdict::Passed),
        ("timed out", _) => Some(Verdict::TimedOut),
        (_, Some(reason)) => {
            // The program may have written any bytes.
            let reason = reason.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
            Some(Verdict::Failed { reason })
        }
        _ => None,
    }
}

/// The beginning of what was written to a file.
fn beginning(file: &mut File) -> io::Result<String> {
    const LONGEST: u64 = 16 << 10;
    let mut bytes = Vec::new();
    file.rewind()?;
    file.take(LONGEST).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_bears_the_nonce_of_its_sandbox() {
        const NONCE: &str = "0123456789abcdef0123456789abcdef";
        let failed = |reason: &str| Some(Verdict::Failed { reason: reason.to_owned() });
        let read = |said: &str| verdict(&said.replace("NONCE", NONCE), NONCE);
        assert_eq!(read("NONCE passed\n"), Some(Verdict::Passed));
        assert_eq!(read("NONCE timed out\n"), Some(Verdict::TimedOut));
        assert_eq!(read("a warning\nNONCE failed: E: no\n"), failed("E: no"));
        assert_eq!(read("NONCE failed: a\u{1b}[2Jb\r"), failed("a [2Jb "));
        // Forged, of another sandbox, cut off, damaged, or empty.
        for said in ["passed", "NONCEpassed", " NONCE passed", "00000000000000000000000000000000 passed"] {
            assert_eq!(read(said), None, "{said}");
        }
        for said in ["NONCE", "NONCE pass", "NONCE passed no", "NONCE failed", "\u{fffd}\0\0", ""] {
            assert_eq!(read(said), None, "{said}");
        }
    }
}
