//! Reads the small files of a model folder, those without weights.

use std::fs;
use std::path::Path;

use crate::error::{Error, Result};

/// The largest size in bytes of a file without weights in a model folder. The vocabularies of public models
/// have at most 40 MB.
pub(crate) const SMALL_FILE_BYTES: u64 = 128 << 20;

/// Reads a file without weights from a model folder; `None` if the file does not exist. Returns an error for
/// a pipe or a device, because reading it might never end, and for a file that is too large.
pub(crate) fn read_small(path: &Path) -> Result<Option<Vec<u8>>> {
    read_up_to(path, SMALL_FILE_BYTES)
}

/// Like [`read_small`], of a file of at most `most` bytes.
pub(crate) fn read_up_to(path: &Path, most: u64) -> Result<Option<Vec<u8>>> {
    let read = || -> std::io::Result<Vec<u8>> {
        let about = fs::metadata(path)?;
        if !about.is_file() {
            return Err(std::io::Error::other("it is not a regular file"));
        }
        if about.len() > most {
            return Err(std::io::Error::other(format!("it has {} bytes, more than {most}", about.len())));
        }
        fs::read(path)
    };
    match read() {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Read { path: path.to_owned(), source }),
    }
}
