//! The folder in which this program keeps what it can make again: tokenized rows, measured speeds.

use std::path::PathBuf;

/// Returns `colossal-chat` in the cache folder of the user; `None` if neither `XDG_CACHE_HOME` nor `HOME` is
/// set.
pub(crate) fn folder() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    // A relative path is not valid (XDG Base Directory Specification).
    let own = variable("XDG_CACHE_HOME").filter(|path| path.is_absolute());
    let own = own.or_else(|| Some(variable("HOME")?.join(".cache")))?;
    Some(own.join("colossal-chat"))
}
