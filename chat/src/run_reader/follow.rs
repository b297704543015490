//! Follows a file that grows line by line, and reads only what is new.
//!
//! A last line without its line feed is half written, and waits. If the file was replaced or became shorter,
//! as when a resumed run drops rows, it is read anew from its beginning: the identity of the file and the
//! last bytes that were read tell. A line beyond [`LONGEST_LINE`] is reported and skipped, so that a damaged
//! file does not fill the memory.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use parallel::regular_file;

/// The longest line that is read.
const LONGEST_LINE: usize = 4 << 20;

/// The most bytes that one call reads.
const MOST_BYTES: u64 = 4 << 20;

/// The number of bytes before the position that are compared.
const TAIL: usize = 64;

/// What a call has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// A complete line, without its line feed, with its number from 1.
    Line(u64, Vec<u8>),
    /// The line of this number is too long and is skipped.
    TooLong(u64),
    /// The file is read anew: everything before this does not count any more.
    Restarted,
}

/// A file that is followed.
#[derive(Debug)]
pub(crate) struct Follower {
    path: PathBuf,
    /// The device and the number of the file that was read.
    identity: Option<(u64, u64)>,
    /// The bytes that were read, and the last ones of them.
    offset: u64,
    tail: Vec<u8>,
    /// The beginning of a half-written line.
    partial: Vec<u8>,
    /// The number of complete lines.
    lines: u64,
    is_skipping: bool,
}

impl Follower {
    /// A follower of `path`, which need not exist yet.
    pub(crate) fn new(path: PathBuf) -> Self {
        let (tail, partial) = (Vec::new(), Vec::new());
        Self { path, identity: None, offset: 0, tail, partial, lines: 0, is_skipping: false }
    }

    /// The file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads what is new, up to a limit. Returns also whether there may be more.
    pub(crate) fn poll(&mut self) -> io::Result<(Vec<Piece>, bool)> {
        let mut pieces = Vec::new();
        let mut file = match regular_file::open(&self.path, File::options().read(true)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.restart(None, &mut pieces);
                return Ok((pieces, false));
            }
            Err(error) => return Err(error),
        };
        let found = file.metadata()?;
        let identity = Some((found.dev(), found.ino()));
        if identity != self.identity || found.len() < self.offset || !self.is_same_file(&mut file)? {
            self.restart(identity, &mut pieces);
        }

        file.seek(SeekFrom::Start(self.offset))?;
        let mut new = Vec::new();
        file.take(MOST_BYTES).read_to_end(&mut new)?;
        self.offset += new.len() as u64;
        self.tail.extend_from_slice(&new[new.len().saturating_sub(TAIL)..]);
        self.tail.drain(..self.tail.len().saturating_sub(TAIL));
        self.split(&new, &mut pieces);
        Ok((pieces, new.len() as u64 == MOST_BYTES))
    }

    /// Whether the bytes before the position are those that were read.
    fn is_same_file(&self, file: &mut File) -> io::Result<bool> {
        let mut before = vec![0; self.tail.len()];
        file.seek(SeekFrom::Start(self.offset - self.tail.len() as u64))?;
        match file.read_exact(&mut before) {
            Ok(()) => Ok(before == self.tail),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn restart(&mut self, identity: Option<(u64, u64)>, pieces: &mut Vec<Piece>) {
        if self.offset > 0 {
            pieces.push(Piece::Restarted);
        }
        *self = Self { identity, ..Self::new(std::mem::take(&mut self.path)) };
    }

    fn split(&mut self, new: &[u8], pieces: &mut Vec<Piece>) {
        for part in new.split_inclusive(|&byte| byte == b'\n') {
            let (text, is_complete) = match part.strip_suffix(b"\n") {
                Some(text) => (text, true),
                None => (part, false),
            };
            if !self.is_skipping && self.partial.len() + text.len() > LONGEST_LINE {
                pieces.push(Piece::TooLong(self.lines + 1));
                self.is_skipping = true;
                self.partial = Vec::new();
            }
            if !self.is_skipping {
                self.partial.extend_from_slice(text);
            }
            if is_complete {
                self.lines += 1;
                let line = std::mem::take(&mut self.partial);
                if !std::mem::take(&mut self.is_skipping) {
                    pieces.push(Piece::Line(self.lines, line));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use super::*;

    fn append(path: &Path, text: &str) {
        File::options().create(true).append(true).open(path).unwrap().write_all(text.as_bytes()).unwrap();
    }

    fn lines(follower: &mut Follower) -> Vec<String> {
        let text = |piece| match piece {
            Piece::Line(number, line) => format!("{number}:{}", String::from_utf8(line).unwrap()),
            Piece::TooLong(number) => format!("{number} too long"),
            Piece::Restarted => "restarted".to_owned(),
        };
        follower.poll().unwrap().0.into_iter().map(text).collect()
    }

    #[test]
    fn only_new_and_complete_lines_are_given() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows");
        let mut follower = Follower::new(path.clone());
        assert!(lines(&mut follower).is_empty());
        append(&path, "a\nb\nha");
        assert_eq!(lines(&mut follower), ["1:a", "2:b"]);
        assert!(lines(&mut follower).is_empty());
        append(&path, "lf\n\nc\n");
        assert_eq!(lines(&mut follower), ["3:half", "4:", "5:c"]);
    }

    #[test]
    fn a_file_that_was_replaced_or_cut_is_read_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows");
        let mut follower = Follower::new(path.clone());
        append(&path, "a\nb\nc\n");
        assert_eq!(lines(&mut follower).len(), 3);
        // Shorter.
        fs::write(&path, "a\n").unwrap();
        assert_eq!(lines(&mut follower), ["restarted", "1:a"]);
        // Replaced by one of the same length, as a resumed run does.
        fs::write(folder.path().join("new"), "z\n").unwrap();
        fs::rename(folder.path().join("new"), &path).unwrap();
        assert_eq!(lines(&mut follower), ["restarted", "1:z"]);
        // Cut and already longer than before.
        fs::write(&path, "1\n2\n3\n").unwrap();
        assert_eq!(lines(&mut follower), ["restarted", "1:1", "2:2", "3:3"]);
        fs::remove_file(&path).unwrap();
        assert_eq!(lines(&mut follower), ["restarted"]);
        assert!(lines(&mut follower).is_empty());
    }

    #[test]
    fn a_line_without_end_is_skipped_and_the_next_one_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows");
        let mut follower = Follower::new(path.clone());
        append(&path, &"x".repeat(LONGEST_LINE + 10));
        append(&path, "\nnext\n");
        let mut found = Vec::new();
        while {
            let (pieces, more) = follower.poll().unwrap();
            found.extend(pieces);
            more
        } {}
        assert_eq!(found, [Piece::TooLong(1), Piece::Line(2, b"next".to_vec())]);
    }
    #[test]
    fn what_is_no_file_is_refused_and_not_opened() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        // A reader that opened it would wait for ever: nobody writes.
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for path in [pipe.as_path(), folder.path()] {
            let error = Follower::new(path.to_owned()).poll().unwrap_err();
            assert!(error.to_string().contains("where this program has a regular file"), "{error}");
        }
    }
}
