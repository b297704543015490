//! The folders of `live/` as a run prepares them.
//!
//! A user or a stranger may have put anything into the run folder. Only regular files with the names that
//! this program gives are removed.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use rlhf::Error;

use super::format::{LIVE, requests_path};
use crate::own_file::{io_error, make_folder};

/// Makes `live/` and `live/requests/` in the run folder `out`, and removes the states and the requests that
/// an earlier run left there.
pub(super) fn prepare(out: &Path) -> Result<(), Error> {
    let (live, requests) = (out.join(LIVE), requests_path(out));
    [&live, &requests].into_iter().try_for_each(|folder| make_folder(folder).map_err(io_error(folder)))?;
    remove_files(&live, is_state).map_err(io_error(&live))?;
    remove_files(&requests, is_request).map_err(io_error(&requests))
}

/// Whether a rank writes its state under `name`: `rank-N.json`, or `rank-N.tmp` until it is complete.
fn is_state(name: &str) -> bool {
    let rank = name.strip_prefix("rank-").and_then(|rest| rest.split_once('.'));
    rank.is_some_and(|(rank, extension)| {
        let is_number = !rank.is_empty() && rank.bytes().all(|byte| byte.is_ascii_digit());
        is_number && ["json", "tmp"].contains(&extension)
    })
}

/// Whether `name` is that of a request, or of a request that is not complete.
fn is_request(name: &str) -> bool {
    let extension = Path::new(name).extension().and_then(OsStr::to_str);
    extension.is_some_and(|extension| ["json", "tmp"].contains(&extension))
}

/// Removes the regular files of `folder` whose names are ours.
fn remove_files(folder: &Path, is_ours: fn(&str) -> bool) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        // The type is that of the entry itself: a link is no file.
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        if is_file && entry.file_name().to_str().is_some_and(is_ours) {
            match fs::remove_file(entry.path()) {
                // The process that asks has renamed its request in the meantime.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                removed => removed?,
            }
        }
    }
    Ok(())
}
