//! Source locations of configuration values.

use std::fmt;
use std::path::PathBuf;

/// The place where a value was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SourceLocation {
    /// The defaults of the stage of this name.
    Stage(&'static str),
    Preset(&'static str),
    /// A file and a line number, from 1.
    File(PathBuf, usize),
    /// A `--set` argument.
    Set(String),
}

impl SourceLocation {
    /// The place without the value.
    pub(super) fn place(&self) -> String {
        match self {
            Self::Set(_) => "--set".to_owned(),
            Self::Stage(_) | Self::Preset(_) | Self::File(..) => self.to_string(),
        }
    }
}

impl fmt::Display for SourceLocation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stage(name) => write!(formatter, "default of {name}"),
            Self::Preset(name) => write!(formatter, "preset {name}"),
            Self::File(path, line) => write!(formatter, "{}:{line}", path.display()),
            Self::Set(argument) => write!(formatter, "--set {argument}"),
        }
    }
}
