//! What the checks of the answers share.

use std::path::{Path, PathBuf};

use crate::config::ConfigError;

/// The first of `name.extension`, `name-2.extension` and so on that does not exist.
pub(super) fn free_path(name: &str, extension: &str) -> PathBuf {
    let path = |number: usize| match number {
        1 => PathBuf::from(format!("{name}{extension}")),
        number => PathBuf::from(format!("{name}-{number}{extension}")),
    };
    let is_free = |path: &PathBuf| path.symlink_metadata().is_err();
    (1..usize::MAX).map(path).find(is_free).expect("a folder has finitely many entries")
}

/// A path that a run file, which is UTF-8, can hold.
pub(super) fn as_text(path: &Path) -> Option<String> {
    path.to_str().map(str::to_owned)
}

/// An argument or an answer that is not accepted.
pub(super) fn refused(argument: &str, problem: impl Into<String>) -> ConfigError {
    ConfigError::Argument { argument: argument.to_owned(), problem: problem.into() }
}
