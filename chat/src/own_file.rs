//! The files that this program keeps for itself: how they are written, appended to and replaced.
//!
//! They are regular files in folders ([`parallel::regular_file`]): whatever else lies under such a name was
//! put there by someone else, is refused by name, and stays as it is. A file is replaced as a whole, under a
//! temporary name and a rename, so that another name of the old file (a hard link, a copy made with `cp -l`)
//! keeps the old content.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::Path;

use parallel::regular_file;
use rlhf::Error;

use crate::output;

/// The error of a file or a folder.
pub(crate) fn io_error(path: &Path) -> impl Fn(io::Error) -> Error {
    move |source| Error::Io { path: path.to_owned(), source }
}

/// Whether `path` is a folder. A link to a folder is not one.
pub(crate) fn is_folder(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
}

/// Makes the folder `path` in a folder that exists. There may be one already, but no link to one.
pub(crate) fn make_folder(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        Err(_) if !is_folder(path) => {
            Err(io::Error::new(ErrorKind::NotADirectory, "this is a link or a file, no folder: move it away"))
        }
        _ => Ok(()),
    }
}

/// Writes the file `path` as a whole. It and its name are on disk when this returns.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    regular_file::check(path).map_err(io_error(path))?;
    output::write_file(path, bytes, true)
}

/// Writes files by their names into the folder `path`, which is made if it is missing.
pub(crate) fn write_all(path: &Path, files: &[(&str, String)]) -> Result<(), Error> {
    fs::create_dir_all(path).map_err(io_error(path))?;
    files.iter().try_for_each(|(name, text)| write(&path.join(name), text.as_bytes()))
}

/// Replaces the file `path` by what `write` writes under a temporary name. Returns the file. Nothing is
/// synced.
pub(crate) fn replace(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<File> {
    let temporary = path.with_extension("tmp");
    regular_file::check(path)?;
    regular_file::check(&temporary)?;
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }

    let mut file = regular_file::open(&temporary, File::options().append(true).create_new(true))?;
    let written = write(&mut file).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // The error of the write tells more than one of the removal.
        let _ = fs::remove_file(&temporary);
    }
    written.map(|()| file)
}

/// Opens the file of rows `path` to append to it, and creates it if it is missing. A row that a crash cut in
/// two must not swallow the next one, so it gets its end.
pub(crate) fn open_to_append(path: &Path) -> io::Result<File> {
    let mut file = regular_file::open(path, File::options().read(true).append(true).create(true))?;
    if file.metadata()?.len() > 0 {
        let mut last = [0];
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            file.write_all(b"\n")?;
        }
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_file_that_is_replaced_keeps_its_content_under_its_other_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for write in [
            |path: &Path| write(path, b"new").is_ok(),
            |path: &Path| replace(path, |file| file.write_all(b"new")).is_ok(),
        ] {
            fs::write(path("rows"), "old").unwrap();
            let _ = fs::remove_file(path("other"));
            fs::hard_link(path("rows"), path("other")).unwrap();
            assert!(write(&path("rows")));
            assert_eq!(
                [fs::read(path("rows")).unwrap(), fs::read(path("other")).unwrap()],
                [b"new".to_vec(), b"old".to_vec()]
            );
        }
    }

    #[test]
    fn a_link_is_refused_and_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("mine"), "mine").unwrap();
        fs::create_dir(path("folder")).unwrap();
        for name in ["link", "rows.tmp"] {
            symlink(path("mine"), path(name)).unwrap();
        }
        symlink(path("folder"), path("linked")).unwrap();
        assert!(write(&path("link"), b"new").is_err() && open_to_append(&path("link")).is_err());
        assert!(replace(&path("link"), |_| Ok(())).is_err());
        // A link under the temporary name.
        assert!(replace(&path("rows"), |_| Ok(())).is_err());
        assert!(make_folder(&path("linked")).is_err() && make_folder(&path("link")).is_err());
        assert!(make_folder(&path("folder")).is_ok() && make_folder(&path("new")).is_ok());
        assert!(path("link").is_symlink() && path("rows.tmp").is_symlink() && path("linked").is_symlink());
        assert_eq!(fs::read_to_string(path("mine")).unwrap(), "mine");
    }
}
