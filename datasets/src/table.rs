//! Reads and writes files of rows: Parquet, JSONL, JSON and CSV. The last three may be gzipped.
//!
//! Files are streamed (Parquet in batches within row groups, text row by row), and every row, batch and
//! header has a limit (`limits.rs`). Files are written under a temporary name in the same folder, synced and
//! renamed. JSONL is split at `\n` only. The file name decides the format, and the first bytes must agree
//! with it. Rows are counted from 1; a JSONL row has the number of its line. This module does not know what
//! the columns mean.

mod arrow;
mod batch;
mod csv;
mod delta;
mod document;
mod footer;
mod format;
pub(crate) mod json;
pub(crate) mod limits;
mod pages;
mod position;
mod reader;
mod records;
mod row;
mod source;
mod text;
mod write;

use std::fs;
use std::path::{Path, PathBuf};

use self::format::format_of;
use crate::error::{Error, Result};

pub use format::EXTENSIONS;
pub use position::Position;
pub use reader::TableReader;
pub use records::{ReadOptions, RecordReader, open_records, read_records};
pub use row::Row;
pub(crate) use write::{Needed, atomically, write};
pub use write::{write_records, write_records_over, write_rows, write_scored_records};

/// Expands paths, folders and patterns to data files, in the order given. A pattern has `*` and `?` in the
/// last path component. The files of each folder or pattern are sorted.
pub fn expand<S: AsRef<str>>(inputs: &[S]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for input in inputs {
        let input = input.as_ref();
        let path = Path::new(input);
        let found = if path.is_dir() {
            // Files in an unsupported compression are included, so that opening them gives an error. Leaving
            // them out would silently lose rows.
            list(path, |path| !matches!(format_of(path), Err(Error::UnsupportedExtension { .. })))?
        } else if input.contains(['*', '?']) {
            let pattern: Vec<char> = path.file_name().unwrap_or_default().to_string_lossy().chars().collect();
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            list(folder.unwrap_or(Path::new(".")), |path| {
                let name: Vec<char> =
                    path.file_name().unwrap_or_default().to_string_lossy().chars().collect();
                matches(&pattern, &name)
            })?
        } else {
            vec![path.to_owned()]
        };

        if found.is_empty() {
            return Err(Error::NoFiles { pattern: input.to_owned(), wanted: EXTENSIONS });
        }
        files.extend(found);
    }
    Ok(files)
}

/// Returns an error for a path that is not a regular file. Callers that read the path twice need this: a pipe
/// would be empty the second time.
pub fn refuse_stream(path: &Path) -> Result<()> {
    match fs::metadata(path) {
        Ok(found) if !found.is_file() => Err(Error::NotAFile { path: path.to_owned() }),
        _ => Ok(()),
    }
}

/// Lists the files of a folder that `wanted` accepts, sorted, without hidden ones.
fn list(folder: &Path, wanted: impl Fn(&Path) -> bool) -> Result<Vec<PathBuf>> {
    let failed = |source| Error::Read { path: folder.to_owned(), source };
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        if hidden || !wanted(&path) {
            continue;
        }
        // A broken link is an error: skipping it would silently lose rows.
        let found = fs::metadata(&path).map_err(|source| Error::Read { path: path.clone(), source })?;
        if found.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Whether a name matches a pattern, where `*` matches any text and `?` matches any character.
fn matches(pattern: &[char], name: &[char]) -> bool {
    match pattern.split_first() {
        None => name.is_empty(),
        Some(('*', rest)) => (0..=name.len()).any(|skip| matches(rest, &name[skip..])),
        Some((wanted, rest)) => name
            .split_first()
            .is_some_and(|(first, tail)| (*wanted == '?' || wanted == first) && matches(rest, tail)),
    }
}

#[cfg(test)]
mod tests;
