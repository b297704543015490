//! The bytes of a file: opened, checked against its name, counted as they are read, and unpacked.
//!
//! Compression and Parquet are told by their first bytes (RFC 1952, section 2.3.1; RFC 8878, section 3.1.1;
//! the "PAR1" of Parquet), so that a file whose name says something else is refused by name and not read as
//! broken JSON.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek};
use std::path::Path;

use flate2::read::MultiGzDecoder;

use super::{EXTENSIONS, Format, Position};
use crate::error::{Error, Result};

/// First bytes, what they mean, and the program that undoes it.
const MAGIC: [(&[u8], &str, &str); 6] = [
    (b"\x1f\x8b", "gzip", "gzip -d"),
    (b"\x28\xb5\x2f\xfd", "zstd", "zstd -d"),
    (b"BZh", "bzip2", "bzip2 -d"),
    (b"\xfd7zXZ\x00", "xz", "xz -d"),
    (b"PK\x03\x04", "zip", "unzip"),
    (b"PAR1", "Parquet", ""),
];

/// The most bytes of one line. A row of this size takes a few times as much memory.
const LONGEST_LINE: u64 = 256 << 20;
/// The most bytes of a `.json` file, which is read whole.
const LARGEST_JSON: u64 = 4 << 30;

/// Bytes of a text file, unpacked.
pub(super) type Bytes = BufReader<Box<dyn Read + Send>>;

/// Opens a file whose first bytes are those of its name; gives its size too.
pub(super) fn open(path: &Path, format: Format, gzipped: bool) -> Result<(File, u64)> {
    let failed = |source| Error::Read { path: path.to_owned(), source };
    let mut file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if metadata.is_dir() {
        return Err(Error::NoFiles { pattern: path.display().to_string(), wanted: EXTENSIONS });
    }
    if metadata.is_file() {
        let mut head = Vec::new();
        file.by_ref().take(8).read_to_end(&mut head).map_err(failed)?;
        file.rewind().map_err(failed)?;
        check_head(path, &head, format, gzipped)?;
    }
    Ok((file, metadata.len()))
}

fn check_head(path: &Path, head: &[u8], format: Format, gzipped: bool) -> Result<()> {
    if head.is_empty() {
        return Err(Error::NoRows { path: path.to_owned() });
    }
    let found = MAGIC.iter().find(|(magic, ..)| head.starts_with(magic));
    let wanted = match format {
        Format::Parquet => Some("Parquet"),
        _ => gzipped.then_some("gzip"),
    };
    let name = found.map(|found| found.1);
    if name == wanted {
        return Ok(());
    }
    let fix = match (found, wanted) {
        (Some((_, "Parquet", _)), _) => "rename it to end in .parquet".to_owned(),
        (Some((_, "gzip", _)), None) => "rename it to end in .gz as well".to_owned(),
        (Some((_, _, program)), _) => format!("unpack it first with `{program}`"),
        (None, Some("Parquet")) => {
            "rename it to what it is (.jsonl, .json or .csv), or fetch it again".to_owned()
        }
        (None, _) => "rename it without .gz if it is plain text, or fetch it again".to_owned(),
    };
    Err(Error::WrongFormat {
        path: path.to_owned(),
        found: name.map_or_else(|| format!("not {}", wanted.unwrap_or_default()), str::to_owned),
        fix,
    })
}

/// The bytes of a text file, counted as they are read.
pub(super) fn reader(file: File, format: Format, gzipped: bool, position: &Position) -> Bytes {
    let counted = Counted { file, position: position.clone() };
    let bytes: Box<dyn Read + Send> =
        if gzipped { Box::new(MultiGzDecoder::new(BufReader::new(counted))) } else { Box::new(counted) };
    BufReader::with_capacity(
        1 << 16,
        Box::new(Bounded { bytes, by_lines: format != Format::Json, length: 0 }),
    )
}

/// Gives an error where a line, or a file without lines, is longer than any row: a small compressed file, or
/// a device, may hold an endless one.
struct Bounded {
    bytes: Box<dyn Read + Send>,
    by_lines: bool,
    /// Bytes of this line, or of the whole file, so far.
    length: u64,
}

impl Read for Bounded {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.bytes.read(buffer)?;
        let last_break = buffer[..count].iter().rposition(|&byte| byte == b'\n').filter(|_| self.by_lines);
        self.length = last_break.map_or(self.length + count as u64, |at| (count - at - 1) as u64);
        let (what, most) = if self.by_lines { ("a line", LONGEST_LINE) } else { ("the file", LARGEST_JSON) };
        if self.length > most {
            let problem = format!("{what} has more than {} MiB, which is no row", most >> 20);
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, problem));
        }
        Ok(count)
    }
}

/// An error of reading; bytes of a gzip file that make no sense are not the path's fault.
pub(super) fn failed(path: &Path, gzipped: bool, source: io::Error) -> Error {
    use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
    let path = path.to_owned();
    if source.kind() == io::ErrorKind::FileTooLarge {
        return Error::TooLong { path, source };
    }
    if gzipped && matches!(source.kind(), InvalidData | InvalidInput | UnexpectedEof) {
        return Error::DamagedGzip { path, source };
    }
    Error::Read { path, source }
}

struct Counted {
    file: File,
    position: Position,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.position.add(count as u64);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounded(bytes: impl Read + Send + 'static, by_lines: bool) -> io::Result<u64> {
        io::copy(&mut Bounded { bytes: Box::new(bytes), by_lines, length: 0 }, &mut io::sink())
    }

    #[test]
    fn a_line_without_an_end_is_an_error_and_many_lines_are_none() {
        let error = bounded(io::repeat(b' '), true).unwrap_err();
        assert_eq!(error.to_string(), "a line has more than 256 MiB, which is no row");
        let path = Path::new("x.jsonl");
        assert!(matches!(failed(path, true, error), Error::TooLong { .. }));
        let lines =
            io::repeat(b' ').take(LONGEST_LINE).chain(&b"\n"[..]).chain(io::repeat(b' ').take(LONGEST_LINE));
        assert_eq!(bounded(lines, true).unwrap(), 2 * LONGEST_LINE + 1);
        assert!(bounded(io::repeat(b'\n').take(LONGEST_LINE + 9), false).is_ok());
    }
}
