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
pub(crate) mod json;
pub(crate) mod limits;
mod pages;
mod records;
mod source;
mod text;
mod write;

use std::collections::{HashSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result, RowLocation};
use crate::record::Row;

pub use records::{ReadOptions, RecordReader, open_records, read_records};
pub(crate) use write::{atomically, has_weights, write};
pub use write::{write_records, write_records_over, write_rows};

/// The file extensions that are read and written.
pub const EXTENSIONS: &str = ".parquet .jsonl .json .csv (the last three also with .gz)";

/// Number of rows read to find the columns of a JSON file.
const COLUMN_SAMPLE: usize = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Parquet,
    Jsonl,
    Json,
    Csv,
}

/// Returns the format of a file and whether it is gzipped, from its name.
fn format_of(path: &Path) -> Result<(Format, bool)> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let (name, gzipped) = name.strip_suffix(".gz").map_or((name.as_str(), false), |name| (name, true));
    let format = match name.rsplit_once('.').map(|(_, extension)| extension) {
        Some("parquet") if !gzipped => Format::Parquet,
        Some("jsonl" | "ndjson") => Format::Jsonl,
        Some("json") => Format::Json,
        Some("csv") => Format::Csv,
        Some(extension)
            if unpacked_by(extension).is_some() && format_of(&path.with_extension("")).is_ok() =>
        {
            let program = unpacked_by(extension).unwrap_or_default();
            return Err(Error::Compressed { path: path.to_owned(), program });
        }
        _ => return Err(Error::UnsupportedExtension { path: path.to_owned(), wanted: EXTENSIONS }),
    };
    Ok((format, gzipped))
}

/// Returns the program that unpacks a compression that this crate does not read.
fn unpacked_by(extension: &str) -> Option<&'static str> {
    Some(match extension {
        "zst" => "zstd -d",
        "bz2" => "bzip2 -d",
        "xz" => "xz -d",
        "lz4" => "lz4 -d",
        "zip" => "unzip",
        _ => return None,
    })
}

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

/// An iterator over rows with their numbers, in file order. It continues after a row that cannot be read.
type Rows = Box<dyn Iterator<Item = Result<(usize, Row)>> + Send>;

/// The read progress of a file. It may be read from another thread.
#[derive(Clone, Debug)]
pub struct Position {
    done: Arc<AtomicU64>,
    whole: u64,
}

impl Position {
    fn new(whole: u64) -> Self {
        Self { done: Arc::default(), whole }
    }

    fn add(&self, count: u64) {
        self.done.fetch_add(count, Ordering::Relaxed);
    }

    /// Returns the units that have been read.
    fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Returns the fraction of the file that has been read, from 0 to 1.
    pub fn share(&self) -> f64 {
        (self.done() as f64 / self.whole.max(1) as f64).min(1.0)
    }
}

/// An open file of rows.
pub struct TableReader {
    path: PathBuf,
    columns: Vec<String>,
    position: Position,
    source: Source,
}

enum Source {
    Parquet(Box<arrow::ParquetFile>),
    Text(Rows),
}

impl TableReader {
    /// Opens a file and finds its columns: from the Parquet schema, the CSV header, or the first hundred rows
    /// of JSON.
    pub fn open(path: &Path) -> Result<Self> {
        let (format, gzipped) = format_of(path)?;
        let (file, size) = source::open(path, format, gzipped)?;
        let path = path.to_owned();
        if format == Format::Parquet {
            let (file, columns) = arrow::open(file, &path)?;
            distinct(&columns, &path)?;
            let position = Position::new(file.num_rows());
            return Ok(Self { path, columns, position, source: Source::Parquet(Box::new(file)) });
        }
        let position = Position::new(size);
        let reader = source::reader(file, gzipped, &position);
        let (rows, columns) = match format {
            Format::Csv => csv::csv(reader, &path, gzipped)?,
            Format::Json => sample(document::json(reader, &path, gzipped), &path)?,
            _ => sample(text::jsonl(reader, &path, gzipped), &path)?,
        };
        distinct(&columns, &path)?;
        Ok(Self { path, columns, position, source: Source::Text(rows) })
    }

    /// Returns the column names.
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// Returns the read progress.
    pub fn position(&self) -> Position {
        self.position.clone()
    }

    /// For a Parquet file, returns the number of rows in which each column is not null, from the file
    /// metadata. Empty for other formats.
    fn filled(&self) -> Vec<(String, usize)> {
        match &self.source {
            Source::Parquet(file) => arrow::filled(file),
            Source::Text(_) => Vec::new(),
        }
    }

    /// Returns the rows with their locations. From a Parquet file, reads only the columns that `wanted`
    /// accepts, or all columns if `wanted` is `None`.
    ///
    /// A row that cannot be read is an error item. The iterator continues after it if the format allows.
    pub fn rows(
        self,
        wanted: Option<&dyn Fn(&str) -> bool>,
    ) -> Result<impl Iterator<Item = Result<(RowLocation, Row)>> + Send + use<>> {
        let rows = match self.source {
            Source::Parquet(file) => arrow::rows(&file, wanted, &self.path, self.position)?,
            Source::Text(rows) => rows,
        };
        let path = self.path;
        Ok(rows.map(move |found| {
            let (row, found) = found?;
            Ok((RowLocation { path: path.clone(), row }, found))
        }))
    }
}

/// Returns an error for a duplicate column, because one of the two would be lost.
fn distinct(columns: &[String], path: &Path) -> Result<()> {
    let mut seen = HashSet::new();
    let twice = columns.iter().find(|name| !seen.insert(*name));
    twice.map_or(Ok(()), |name| {
        Err(Error::DuplicateColumn { path: path.to_owned(), column: name.escape_debug().to_string() })
    })
}

/// Finds the columns from the first rows. The returned iterator yields these rows first.
fn sample(mut rows: Rows, path: &Path) -> Result<(Rows, Vec<String>)> {
    let mut head = VecDeque::new();
    let mut columns: Vec<String> = Vec::new();
    let mut seen = HashSet::new();
    let mut bytes = 0;
    while head.len() < COLUMN_SAMPLE && bytes < limits::SAMPLE_BYTES {
        let Some(row) = rows.next() else { break };
        if let Ok((_, row)) = &row {
            bytes += limits::row_bytes(row);
            let new = row.keys().filter(|name| !seen.contains(*name)).cloned().collect::<Vec<_>>();
            seen.extend(new.iter().cloned());
            columns.extend(new);
        }
        if columns.len() > limits::COLUMNS {
            return Err(limits::too_many_columns(RowLocation { path: path.to_owned(), row: 0 }));
        }
        head.push_back(row);
    }
    if columns.is_empty() && head.front().is_some_and(Result::is_err) {
        return Err(head.pop_front().and_then(Result::err).expect("the first row is an error"));
    }
    Ok((Box::new(head.into_iter().chain(rows)), columns))
}

#[cfg(test)]
mod tests;
