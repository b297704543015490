//! Source locations of configuration values.

use std::fmt;
use std::path::PathBuf;

/// The place where a value was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SourceLocation {
    /// A file and a line number, from 1.
    File(PathBuf, usize),
    /// A `--set` argument.
    Set(String),
}

impl fmt::Display for SourceLocation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path, line) => write!(formatter, "{}:{line}", path.display()),
            Self::Set(argument) => write!(formatter, "--set {argument}"),
        }
    }
}
