//! Where the lines go that a program writes to stderr: to the stderr of the run or to a file, each behind the
//! name of its entry in the configuration.
//!
//! Lines are made harmless for a terminal. This file does not read them.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use crate::error::Wrong;

/// Where the lines go that a program writes to stderr.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ProgramLog {
    /// To the stderr of this process.
    #[default]
    Stderr,
    /// To the end of this file.
    File(PathBuf),
}

/// The open log of one entry. Its programs share it.
#[derive(Debug)]
pub(super) struct Log {
    label: String,
    file: Option<Mutex<File>>,
}

impl Log {
    /// Opens the log of the entry that messages call `label`.
    pub(super) fn open(label: &str, log: &ProgramLog) -> Result<Self, Wrong> {
        let label = label.to_owned();
        let ProgramLog::File(path) = log else { return Ok(Self { label, file: None }) };
        let file = OpenOptions::new().create(true).append(true).open(path).map_err(|error| {
            let problem = format!("has no log, because {} cannot be written: {error}", path.display());
            Wrong::new("command", problem, "check the folder and its permissions")
        })?;
        Ok(Self { label, file: Some(Mutex::new(file)) })
    }

    /// Writes one line. A failed write is ignored: a full disk or a closed stderr does not change scores.
    pub(super) fn write(&self, line: &str) {
        let line = format!("{}: {}\n", self.label, text::single_line(line));
        let _ = match &self.file {
            Some(file) => file.lock().unwrap_or_else(PoisonError::into_inner).write_all(line.as_bytes()),
            None => io::stderr().write_all(line.as_bytes()),
        };
    }
}
