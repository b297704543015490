//! A program of the user that runs as long as the run does and answers requests in lines of JSON.
//!
//! ```text
//!   run -> program, stdin     {"id": 7, ...}      one line
//!   program -> run, stdout    {"id": 7, ...}      one line, or {"id": 7, "error": "why not"}
//! ```
//! One request is under way at a time, with a time limit that also covers the start of the program. A program
//! that ends, hangs, writes anything else or answers with another id is killed with its group, and only the
//! request under way is lost. No request is sent a second time: the program may have acted on it. The next
//! request starts the program anew, at most `max_restarts` times for all programs of an entry.
//!
//! The program is the user's own and runs with the user's rights; it is no sandbox. Its answers are not
//! trusted. This file does not know what is asked.

mod error;
mod group;
mod log;
mod process;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};

use self::log::Log;
use self::process::{Launch, Process};
use crate::entry::CommandConfig;
use crate::error::Wrong;
use crate::exchange::{reported, request};
use crate::limits::{check_batches, within};
use crate::score::quoted;

pub(crate) use self::error::ProgramError;
pub use self::log::ProgramLog;

/// The most programs of an entry.
const MOST_PROGRAMS: usize = 256;

/// Refuses settings of a program that cannot work.
pub(crate) fn check(config: &CommandConfig) -> Result<(), Wrong> {
    if config.command.first().is_none_or(String::is_empty) {
        let fix = "write the program and its arguments, such as [\"python3\", \"program.py\"]";
        return Err(Wrong::new("command", "names no program", fix));
    }
    check_batches(config.batch_size, config.timeout)?;
    within("concurrency", config.concurrency, MOST_PROGRAMS)
}

/// One program, which is started again after a failure.
#[derive(Debug)]
pub(crate) struct Program {
    launch: Arc<Launch>,
    /// How many restarts are left to all programs of the entry.
    restarts: Arc<AtomicUsize>,
    process: Option<Process>,
    /// How many processes there have been.
    starts: u64,
    /// How many requests there have been. Their ids are not used again by a later process.
    requests: u64,
    /// Why the last process is gone.
    cause: String,
}

impl Program {
    /// Starts the programs of an entry that messages call `label`. Answers are at most `longest_line` bytes.
    pub(crate) fn start_all(
        label: &str,
        config: &CommandConfig,
        longest_line: usize,
        log: &ProgramLog,
    ) -> Result<Vec<Self>, Wrong> {
        check(config)?;
        let launch = Arc::new(Launch {
            command: config.command.clone(),
            timeout: Duration::from_secs_f64(config.timeout),
            longest_line,
            log: Log::open(label, log)?,
        });
        let restarts = Arc::new(AtomicUsize::new(config.max_restarts));
        (0..config.concurrency)
            .map(|_| {
                let process = Process::start(&launch).map_err(|error| error.wrong())?;
                Ok(Self {
                    launch: Arc::clone(&launch),
                    restarts: Arc::clone(&restarts),
                    process: Some(process),
                    starts: 1,
                    requests: 0,
                    cause: String::new(),
                })
            })
            .collect()
    }

    /// Sends a request and returns the answer. `body` gets the number of the process that is asked: with a new
    /// number, what the program has remembered is gone.
    pub(crate) fn ask<B: Serialize>(
        &mut self,
        body: impl FnOnce(u64) -> B,
    ) -> Result<Map<String, Value>, ProgramError> {
        let outcome = self.try_ask(body);
        if let Err(error) = &outcome
            && !error.leaves_process()
        {
            self.lose(error);
        }
        outcome
    }

    fn try_ask<B: Serialize>(
        &mut self,
        body: impl FnOnce(u64) -> B,
    ) -> Result<Map<String, Value>, ProgramError> {
        if let Some(error) = self.process.as_mut().and_then(|process| process.unasked(&self.launch)) {
            // Nothing was under way, so nothing is lost.
            self.lose(&error);
        }
        if self.process.is_none() {
            self.restart()?;
        }
        let process = self.process.as_mut().expect("a process runs, or restart has failed");
        self.requests += 1;
        let mut line = request(self.requests, &body(self.starts));
        line.push(b'\n');
        read(self.requests, &process.exchange(line, &self.launch)?)
    }

    fn restart(&mut self) -> Result<(), ProgramError> {
        let one_less = |left: usize| left.checked_sub(1);
        if self.restarts.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_err() {
            return Err(ProgramError::Exhausted { cause: self.cause.clone() });
        }
        self.process = Some(Process::start(&self.launch)?);
        self.starts += 1;
        Ok(())
    }

    /// Kills the process because of a failure.
    fn lose(&mut self, error: &ProgramError) {
        self.process = None;
        if !matches!(error, ProgramError::Exhausted { .. }) {
            self.cause = error.to_string();
            self.launch.log.write(&self.cause);
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(process) = self.process.take() {
            process.finish();
        }
    }
}

/// The object in a line, if it answers the request `id`.
fn read(id: u64, line: &[u8]) -> Result<Map<String, Value>, ProgramError> {
    let said = || quoted(&String::from_utf8_lossy(line));
    let answer: Map<String, Value> = serde_json::from_slice(line)
        .map_err(|error| ProgramError::NotAnAnswer { said: said(), problem: quoted(&error.to_string()) })?;
    match answer.get("id") {
        Some(found) if found.as_u64() == Some(id) => {}
        Some(found) => {
            return Err(ProgramError::WrongId { wanted: id, found: quoted(&found.to_string()) });
        }
        None => {
            return Err(ProgramError::NotAnAnswer { said: said(), problem: "it has no `id`".to_owned() });
        }
    }
    match reported(&answer) {
        None => Ok(answer),
        Some(message) => Err(ProgramError::Reported { message: quoted(&message) }),
    }
}
