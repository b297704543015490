//! Opens files: checks their first bytes against the file name, counts the bytes read, and unpacks gzip.
//!
//! Compressed files and Parquet are recognized by their first bytes (RFC 1952, section 2.3.1; RFC 8878,
//! section 3.1.1; the "PAR1" of Parquet). A file whose name does not match its contents therefore gets a
//! clear error, and is not parsed as broken JSON.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek};
use std::path::Path;

use flate2::read::MultiGzDecoder;

use super::{EXTENSIONS, Format, Position};
use crate::error::{Error, Result};

/// Magic bytes, the format they belong to, and the program that unpacks it.
const MAGIC: [(&[u8], &str, &str); 6] = [
    (b"\x1f\x8b", "gzip", "gzip -d"),
    (b"\x28\xb5\x2f\xfd", "zstd", "zstd -d"),
    (b"BZh", "bzip2", "bzip2 -d"),
    (b"\xfd7zXZ\x00", "xz", "xz -d"),
    (b"PK\x03\x04", "zip", "unzip"),
    (b"PAR1", "Parquet", ""),
];

/// Maximum length of a line in bytes. Parsing a row of this size takes a few times as much memory.
const LONGEST_LINE: u64 = 256 << 20;
/// Maximum size of a `.json` file in bytes, because it is read into memory at once.
const LARGEST_JSON: u64 = 4 << 30;

/// A buffered reader of the unpacked bytes of a text file.
pub(super) type Bytes = BufReader<Box<dyn Read + Send>>;

/// Opens a file, checks that its first bytes match its name, and returns it with its size.
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

/// Checks the first bytes of a file against the format of its name.
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

/// Returns a reader of a text file that counts the bytes read from disk and limits the length of lines.
pub(super) fn reader(file: File, format: Format, gzipped: bool, position: &Position) -> Bytes {
    let counted = Counted { file, position: position.clone() };
    let bytes: Box<dyn Read + Send> =
        if gzipped { Box::new(MultiGzDecoder::new(BufReader::new(counted))) } else { Box::new(counted) };
    BufReader::with_capacity(
        1 << 16,
        Box::new(Bounded { bytes, by_lines: format != Format::Json, length: 0 }),
    )
}

/// A reader that returns an error if a line, or a file that is not read by lines, exceeds the limit. A small
/// compressed file or a device may contain an endless line.
struct Bounded {
    bytes: Box<dyn Read + Send>,
    by_lines: bool,
    /// Bytes of the current line so far, or of the full file.
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

/// Converts a read error. Invalid bytes in a gzip file become `DamagedGzip`, because path and permissions are
/// not the cause.
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

/// A file reader that adds the bytes read to a progress counter.
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
