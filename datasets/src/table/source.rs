//! Opens files: checks their first bytes against the file name, counts the bytes read, and unpacks gzip.
//!
//! Compressed files and Parquet are recognized by their first bytes (RFC 1952, section 2.3.1; RFC 8878,
//! section 3.1.1; the "PAR1" of Parquet). A file whose name does not match its contents therefore gets a
//! clear error, and is not parsed as broken JSON.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek};
use std::path::Path;

use flate2::read::MultiGzDecoder;

use super::format::{EXTENSIONS, Format};
use super::position::Position;
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

/// Bytes that a gzip file may unpack to, and those for each of its own bytes beside them. Rows of text unpack
/// to 3 to 20 times their size, and gzip unpacks to 1032 times at most.
const UNPACKED_BYTES: u64 = 64 << 20;
const UNPACKED_RATIO: u64 = 200;

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

/// Returns a reader of a text file that counts the bytes read from disk and bounds what gzip unpacks.
pub(super) fn reader(file: File, gzipped: bool, position: &Position) -> Bytes {
    let counted = Counted { file, position: position.clone() };
    let bytes: Box<dyn Read + Send> = if gzipped {
        let bytes = MultiGzDecoder::new(BufReader::new(counted));
        Box::new(Unpacked { bytes, packed: position.clone(), count: 0 })
    } else {
        Box::new(counted)
    };
    BufReader::with_capacity(1 << 16, bytes)
}

/// A reader that returns an error if a file unpacks to far more than rows do: a few bytes may unpack without
/// end.
struct Unpacked<R> {
    bytes: R,
    /// The bytes that were read from the file.
    packed: Position,
    /// The bytes that they unpacked to.
    count: u64,
}

impl<R: Read> Read for Unpacked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.bytes.read(buffer)?;
        self.count += count as u64;
        let most = UNPACKED_BYTES + UNPACKED_RATIO.saturating_mul(self.packed.done());
        if self.count > most {
            let problem = format!("the gzip data unpacks to more than {UNPACKED_RATIO} times its size");
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
        return Error::Unpacks { path, source };
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

    fn unpacked(bytes: impl Read, packed: u64) -> io::Result<u64> {
        let position = Position::new(0);
        position.add(packed);
        io::copy(&mut Unpacked { bytes, packed: position, count: 0 }, &mut io::sink())
    }

    #[test]
    fn a_file_that_unpacks_without_end_is_an_error() {
        let error = unpacked(io::repeat(b' '), 1000).unwrap_err();
        assert_eq!(error.to_string(), "the gzip data unpacks to more than 200 times its size");
        let error = failed(Path::new("x.jsonl.gz"), true, error).to_string();
        assert!(error.contains("gzip -d x.jsonl.gz"), "{error}");
        let most = UNPACKED_BYTES + 200 * 1000;
        assert_eq!(unpacked(io::repeat(b' ').take(most), 1000).unwrap(), most);
        assert!(unpacked(io::repeat(b' ').take(most + 1), 1000).is_err());
    }
}
