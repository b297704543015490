//! Files of this program on the disk: regular files, and never a link, a pipe or a device.
//!
//! Others may have put anything under the names that this program writes and reads. What is no regular file
//! is not opened at all. If it takes the place of a file at the very moment of the opening, the flags
//! `O_NOFOLLOW` and `O_NONBLOCK` keep the system from following a link and from waiting at a pipe. A file
//! that a user names on purpose, such as `/dev/stdin`, is not opened here.

use std::fs::{self, File, FileType, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Opens the regular file `path` with `options`, or creates it if they say so.
pub fn open(path: &Path, options: &OpenOptions) -> io::Result<File> {
    check(path)?;
    let mut options = options.clone();
    let file = options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    require_file(file.metadata()?.file_type())?;
    Ok(file)
}

/// Reads the whole regular file `path`, which has at most `limit` bytes.
pub fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let file = open(path, File::options().read(true))?;
    let length = file.metadata()?.len();
    let too_long = |length| {
        let problem = format!("it has {length} bytes, and this program writes at most {limit}: move it away");
        io::Error::new(ErrorKind::InvalidData, problem)
    };
    if length > limit {
        return Err(too_long(length));
    }
    let mut bytes = Vec::new();
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    // It may have grown meanwhile, and the files of some systems, such as `/proc`, have no length.
    if bytes.len() as u64 > limit { Err(too_long(bytes.len() as u64)) } else { Ok(bytes) }
}

/// Reads the whole regular file `path`, UTF-8 of at most `limit` bytes.
pub fn read_to_string(path: &Path, limit: u64) -> io::Result<String> {
    let no_text = |_| io::Error::new(ErrorKind::InvalidData, "it is no text in UTF-8: move it away");
    String::from_utf8(read(path, limit)?).map_err(no_text)
}

/// Refuses a `path` at which there is something else than a regular file. There may be nothing.
pub fn check(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) => require_file(found.file_type()),
        // The opening says what is wrong.
        Err(_) => Ok(()),
    }
}

/// What there is at a place that is neither a regular file nor a folder.
pub fn kind_name(kind: FileType) -> &'static str {
    match kind {
        kind if kind.is_file() => "a file",
        kind if kind.is_dir() => "a folder",
        kind if kind.is_symlink() => "a link",
        kind if kind.is_fifo() => "a pipe",
        kind if kind.is_socket() => "a socket",
        _ => "a device",
    }
}

fn require_file(kind: FileType) -> io::Result<()> {
    if kind.is_file() {
        return Ok(());
    }
    let problem = format!("this is {}, where this program has a regular file: move it away", kind_name(kind));
    Err(io::Error::new(ErrorKind::InvalidInput, problem))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;
    use std::process::Command;

    use super::*;

    #[test]
    fn what_is_no_regular_file_is_neither_opened_nor_touched() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("mine"), "mine").unwrap();
        symlink(path("mine"), path("link")).unwrap();
        symlink("/dev/zero", path("zero")).unwrap();
        symlink(path("nowhere"), path("dangling")).unwrap();
        fs::create_dir(path("folder")).unwrap();
        assert!(Command::new("mkfifo").arg(path("pipe")).status().unwrap().success());
        let _socket = UnixListener::bind(path("socket")).unwrap();

        let (mut reading, mut writing) = (File::options(), File::options());
        let ways = [reading.read(true), writing.write(true).create(true).truncate(true)];
        for (name, kind) in [
            ("link", "a link"),
            ("zero", "a link"),
            ("dangling", "a link"),
            ("folder", "a folder"),
            ("pipe", "a pipe"),
            ("socket", "a socket"),
        ] {
            for options in &ways {
                let error = open(&path(name), options).unwrap_err().to_string();
                assert!(error.starts_with(&format!("this is {kind}")), "{name}: {error}");
            }
            assert!(read(&path(name), 10).is_err(), "{name}");
        }
        assert!(open(Path::new("/dev/zero"), ways[0]).unwrap_err().to_string().contains("a device"));
        assert_eq!(fs::read(path("mine")).unwrap(), b"mine");
        assert!(!path("nowhere").exists());
    }

    #[test]
    fn a_file_is_read_up_to_its_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        open(&path, File::options().write(true).create_new(true)).unwrap();
        fs::write(&path, "12345").unwrap();
        assert_eq!(read_to_string(&path, 5).unwrap(), "12345");
        assert!(read(&path, 4).unwrap_err().to_string().contains("it has 5 bytes"));
        fs::write(&path, [0xff]).unwrap();
        assert!(read_to_string(&path, 5).unwrap_err().to_string().contains("no text"));
        assert_eq!(read(&path.with_extension("absent"), 5).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
