//! The folders of this program among those of the user (XDG Base Directory Specification).

use std::path::PathBuf;

/// What can be made again: tokenized rows, measured speeds. `None` if neither `XDG_CACHE_HOME` nor `HOME` is
/// set.
pub(crate) fn cache() -> Option<PathBuf> {
    folder("XDG_CACHE_HOME", ".cache")
}

/// What the user made: sessions, feedback. `None` if neither `XDG_DATA_HOME` nor `HOME` is set.
pub(crate) fn data() -> Option<PathBuf> {
    folder("XDG_DATA_HOME", ".local/share")
}

/// Settings. `None` if neither `XDG_CONFIG_HOME` nor `HOME` is set.
pub(crate) fn config() -> Option<PathBuf> {
    folder("XDG_CONFIG_HOME", ".config")
}

/// A path that no shell has seen begins with a `~` that cannot be written out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HomeError {
    /// `~name/...`.
    #[error(
        "{0:?}: only ~/ is read as the home folder: write the whole path, or ./{0} for what has this name here"
    )]
    OtherUser(String),
    /// `HOME` is not set.
    #[error("{0:?}: HOME is not set, so ~ means no folder: write the whole path")]
    NoHome(String),
}

/// A path as a shell would take it: `~` and `~/...` are the home folder.
pub(crate) fn expand_home(path: &str) -> Result<String, HomeError> {
    let Some(below) = path.strip_prefix('~') else { return Ok(path.to_owned()) };
    if !below.is_empty() && !below.starts_with('/') {
        return Err(HomeError::OtherUser(path.to_owned()));
    }
    let home = std::env::var("HOME").ok().filter(|home| !home.is_empty());
    let home = home.ok_or_else(|| HomeError::NoHome(path.to_owned()))?;
    Ok(if below.is_empty() { home } else { format!("{}{below}", home.trim_end_matches('/')) })
}

/// `colossal-chat` in the folder that `variable` names, otherwise in `default` of the home folder.
fn folder(variable: &str, default: &str) -> Option<PathBuf> {
    let read = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    // A relative path is not valid.
    let own = read(variable).filter(|path| path.is_absolute());
    let own = own.or_else(|| Some(read("HOME")?.join(default)))?;
    Some(own.join("colossal-chat"))
}
