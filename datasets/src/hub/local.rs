//! Model folders on this machine, and hints for a folder that does not exist.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The largest number of folder entries that are compared with a misspelt name.
const ENTRIES: usize = 1000;

/// Returns an error if a text denotes a local folder that does not exist, and `Ok` if it may be the name of a
/// repository.
///
/// A text denotes a folder if it begins with `/`, `.` or `~`, ends in `/`, has one part or more than two, or
/// if its first part is an existing folder. `owner/name@revision` always denotes a repository of the hub.
pub(super) fn refuse_missing(model: &str) -> Result<()> {
    let path = Path::new(model);
    let parts = model.split('/').count();
    let is_path = model.starts_with(['/', '.', '~']) || model.ends_with('/') || parts != 2;
    let first_is_here = model.split('/').next().is_some_and(|first| Path::new(first).is_dir());
    if path.exists() {
        return Err(Error::NotAFolder { path: path.to_owned() });
    }
    if (is_path || first_is_here) && !model.contains('@') {
        return Err(Error::UnknownModel {
            model: model.to_owned(),
            hint: hint(model, first_is_here && parts == 2),
        });
    }
    Ok(())
}

/// A suggestion of what to write instead.
pub(super) fn hint(model: &str, may_be_hub: bool) -> String {
    let near = nearest(Path::new(model))
        .map(|near| format!("; did you mean {:?}?", near.display().to_string()))
        .unwrap_or_default();
    let hub = if may_be_hub {
        format!("; for the hub's model of this name write {model}@main")
    } else {
        String::new()
    };
    near + &hub
}

/// The path with its first missing part replaced by the most similar existing name.
fn nearest(path: &Path) -> Option<PathBuf> {
    let mut there = PathBuf::new();
    let mut parts = path.components();
    let missing = loop {
        let part = parts.next()?;
        let next = there.join(part);
        if !next.is_dir() {
            break part.as_os_str().to_string_lossy().into_owned();
        }
        there = next;
    };
    let folder = if there.as_os_str().is_empty() { Path::new(".") } else { &there };
    let names = fs::read_dir(folder).ok()?.take(ENTRIES).filter_map(|entry| {
        let entry = entry.ok()?;
        entry.path().is_dir().then(|| entry.file_name().to_string_lossy().into_owned())
    });
    let similar = names.map(|name| (strsim::jaro_winkler(&name, &missing), name));
    let (likeness, name) = similar.max_by(|left, right| left.0.total_cmp(&right.0))?;
    let near: PathBuf = there.join(name).components().chain(parts).collect();
    (likeness > 0.75 && near.is_dir()).then_some(near)
}
