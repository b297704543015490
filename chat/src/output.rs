//! Checks and writes the output paths that the user gives: `--output FILE` and `--out DIR`.
//!
//! An existing file is overwritten only with `--force`, and a non-empty folder or the command's own input
//! never. All of this is checked before the work begins. A path that is not a regular file (`/dev/stdout`, a
//! pipe) is written to directly.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use gemini::checkpoint;
use rlhf::Error;

use crate::config::ConfigError;
use crate::interrupt;

/// Refuses `--output path` if writing it would destroy data. `inputs` are the files that the command reads.
pub(crate) fn check_output_file(path: &Path, force: bool, inputs: &[&Path]) -> Result<(), ConfigError> {
    check_named_file("--output", path, force, inputs)
}

/// Like [`check_output_file`], for a path that another flag gives.
pub(crate) fn check_named_file(
    flag: &str,
    path: &Path,
    force: bool,
    inputs: &[&Path],
) -> Result<(), ConfigError> {
    let refuse = |problem: &str| {
        Err(ConfigError::Argument {
            argument: format!("{flag} {}", path.display()),
            problem: problem.to_owned(),
        })
    };

    let place = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    let is_input = place(path).is_some_and(|own| inputs.iter().any(|input| place(input) == Some(own)));
    if path == Path::new("-") {
        return refuse("leave --output out for standard output, or name the file ./-");
    }
    match fs::symlink_metadata(path).map(|found| fs::metadata(path).unwrap_or(found)) {
        Ok(found) if found.is_dir() => return refuse("this is a folder: name a file in it"),
        Ok(found) if found.is_file() && is_input => {
            return refuse("this is the input itself: choose another name");
        }
        Ok(found) if (found.is_file() || found.is_symlink()) && !force => {
            return refuse("this file exists already: choose another name, or replace it with --force");
        }
        _ => {}
    }

    check_parent(path).or_else(|problem| refuse(&problem))?;
    interrupt::register_temp_folder(checkpoint::parent(path));
    Ok(())
}

/// Refuses `--out path` if the path exists and is not an empty folder.
pub(crate) fn check_output_folder(path: &Path) -> Result<(), ConfigError> {
    let refuse = |problem: &str| {
        Err(ConfigError::Argument {
            argument: format!("--out {}", path.display()),
            problem: problem.to_owned(),
        })
    };
    if checkpoint::is_occupied(path) {
        return refuse("it exists already: choose another folder, or remove it");
    }
    check_parent(path).or_else(|problem| refuse(&problem))?;
    interrupt::register_temp_folder(checkpoint::parent(path));
    Ok(())
}

/// Refuses a path that has an ancestor which is not a folder.
pub(crate) fn check_parent(path: &Path) -> Result<(), String> {
    let existing = path.ancestors().skip(1).find(|above| fs::symlink_metadata(above).is_ok());
    match existing {
        Some(above) if !above.is_dir() => Err(format!("{} is not a folder", above.display())),
        _ => Ok(()),
    }
}

/// Refuses a folder in which nothing can be written, or that cannot be made. A folder without a name is made
/// and removed, because permissions do not tell what root may do nor whether the disk is read-only.
pub(crate) fn check_writable(folder: &Path) -> Result<(), String> {
    let existing = folder.ancestors().find(|above| above.is_dir());
    let place = existing.filter(|place| !place.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match tempfile::Builder::new().prefix(".colossal-chat-").tempdir_in(place) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("{} cannot be written: {}", place.display(), error.kind())),
    }
}

/// Writes a file under a temporary name, syncs it, and renames it to `path`, replacing an existing file. A
/// path that is not a regular file (`/dev/stdout`, a pipe) is written to directly.
pub(crate) fn write_atomically(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    write(path, bytes, true)
}

/// Like [`write_atomically`], but fails if the file exists, even if it was created while the command was
/// running.
pub(crate) fn write_new(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    write(path, bytes, false)
}

fn write(path: &Path, bytes: &[u8], replaces: bool) -> Result<(), Error> {
    write_pieces(path, replaces, all_of(path, bytes))
}

/// Writes bytes into a file; `path` names it in errors.
fn all_of(path: &Path, bytes: &[u8]) -> impl FnOnce(&mut fs::File) -> Result<(), Error> {
    move |file| file.write_all(bytes).map_err(|source| Error::Io { path: path.to_owned(), source })
}

/// Like [`write_atomically`], or [`write_new`] if it does not replace, of a file that is not in memory as a
/// whole. `content` writes it.
pub(crate) fn write_pieces<E: From<Error>>(
    path: &Path,
    replaces: bool,
    content: impl FnOnce(&mut fs::File) -> Result<(), E>,
) -> Result<(), E> {
    if !fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return write_regular(path, replaces, content);
    }
    let failed = |source| Error::Io { path: path.to_owned(), source };
    content(&mut fs::OpenOptions::new().write(true).open(path).map_err(failed)?)
}

/// Writes a regular file under a temporary name, syncs it, and renames it to `path`.
pub(crate) fn write_file(path: &Path, bytes: &[u8], replaces: bool) -> Result<(), Error> {
    write_regular(path, replaces, all_of(path, bytes))
}

fn write_regular<E: From<Error>>(
    path: &Path,
    replaces: bool,
    content: impl FnOnce(&mut fs::File) -> Result<(), E>,
) -> Result<(), E> {
    let failed = |source| Error::Io { path: path.to_owned(), source };
    let parent = checkpoint::parent(path);
    checkpoint::create_folder(parent).map_err(Error::from)?;
    // The temporary file is removed unless it is renamed. `tempfile` creates it under a name that is not in
    // use, so no symbolic link is followed.
    let temporary = tempfile::Builder::new()
        .prefix(&checkpoint::temporary_prefix(path))
        .suffix(".tmp")
        .permissions(fs::Permissions::from_mode(0o666))
        .tempfile_in(parent);
    let mut file = temporary.map_err(failed)?;
    content(file.as_file_mut())?;
    file.as_file().sync_all().map_err(failed)?;
    let named = if replaces { file.persist(path) } else { file.persist_noclobber(path) };
    named.map_err(|error| failed(error.error))?;

    // The rename itself is durable only after the folder is synced.
    Ok(checkpoint::sync_folder(parent).map_err(Error::from)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_with_force_alone_and_the_input_never() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("rows"), "mine").unwrap();
        fs::write(path("other"), "mine").unwrap();
        fs::hard_link(path("rows"), path("twin")).unwrap();
        std::os::unix::fs::symlink(path("nowhere"), path("link")).unwrap();
        let claim = |name: &str, force| {
            check_output_file(&path(name), force, &[&path("rows")]).map_err(|error| error.to_string())
        };
        assert!(claim("new/deep", false).is_ok() && claim("other", true).is_ok());
        assert!(check_output_file(Path::new("/dev/null"), false, &[]).is_ok());
        assert!(check_output_file(Path::new("-"), true, &[]).is_err());
        // A file that was created after the command started.
        assert!(write_new(&path("other"), b"new").is_err() && write_new(&path("fresh"), b"new").is_ok());
        assert_eq!(fs::read_to_string(path("other")).unwrap(), "mine");
        for (name, force, words) in [
            ("other", false, "exists already"),
            ("link", false, "exists already"),
            ("rows", true, "the input itself"),
            ("twin", true, "the input itself"),
            ("", true, "a folder"),
            ("rows/x", true, "rows is not a folder"),
        ] {
            let error = claim(name, force).unwrap_err();
            assert!(error.contains(words), "{name}: {error}");
        }
        assert!(check_output_folder(&path("other")).is_err() && check_output_folder(folder.path()).is_err());
        fs::create_dir(path("empty")).unwrap();
        assert!(check_output_folder(&path("empty")).is_ok() && check_output_folder(&path("a/b")).is_ok());
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_found_before_it_is_made() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(check_writable(&folder.path().join("a/b")), Ok(()));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        // Not even root makes a folder there.
        let error = check_writable(Path::new("/proc/out")).unwrap_err();
        assert!(error.starts_with("/proc cannot be written"), "{error}");
    }

    #[test]
    fn a_link_at_a_temporary_name_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("mine"), "mine").unwrap();
        std::os::unix::fs::symlink(path("mine"), path("rows.tmp")).unwrap();
        write_atomically(&path("rows"), b"new").unwrap();
        assert_eq!(fs::read_to_string(path("mine")).unwrap(), "mine");
        assert_eq!(fs::read_to_string(path("rows")).unwrap(), "new");
        assert!(path("rows.tmp").is_symlink());
        // The file has the permissions that the umask allows.
        fs::write(path("plain"), "").unwrap();
        let mode = |name: &str| fs::metadata(path(name)).unwrap().permissions().mode();
        assert_eq!(mode("rows"), mode("plain"));
    }
}
