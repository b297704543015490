//! Files of rows: Parquet, JSONL, JSON and CSV, the last three also gzipped.
//!
//! Files are read as they go (Parquet by batches inside row groups, text line by line; only `.json` arrays are read whole)
//! and written under a temporary name in the same folder, synced and renamed. JSONL is split at `\n` and nowhere else. The
//! format is told by the name of the file. Knows no meaning of columns.

mod arrow;
mod text;
mod write;

use std::collections::VecDeque;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::error::{At, Error, Result};
use crate::record::{Layout, Record, Row};

pub use write::{write_records, write_rows};

/// The extensions of files that are read and written.
pub const EXTENSIONS: &str = ".parquet .jsonl .json .csv (the last three also with .gz)";

/// Rows looked at to learn the columns of a JSON file.
const COLUMN_SAMPLE: usize = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Parquet,
    Jsonl,
    Json,
    Csv,
}

/// The format of a file and whether it is gzipped, from its name.
fn format_of(path: &Path) -> Result<(Format, bool)> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let (name, gzipped) = name.strip_suffix(".gz").map_or((name.as_str(), false), |name| (name, true));
    let format = match name.rsplit_once('.').map(|(_, extension)| extension) {
        Some("parquet") if !gzipped => Format::Parquet,
        Some("jsonl" | "ndjson") => Format::Jsonl,
        Some("json") => Format::Json,
        Some("csv") => Format::Csv,
        _ => return Err(Error::UnsupportedExtension { path: path.to_owned(), wanted: EXTENSIONS }),
    };
    Ok((format, gzipped))
}

/// Data files behind paths, folders and patterns with `*` and `?` in the last part, in this order, each group sorted.
pub fn expand<S: AsRef<str>>(inputs: &[S]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for input in inputs {
        let input = input.as_ref();
        let path = Path::new(input);
        let found = if path.is_dir() {
            list(path, |path| format_of(path).is_ok())?
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

fn list(folder: &Path, wanted: impl Fn(&Path) -> bool) -> Result<Vec<PathBuf>> {
    let failed = |source| Error::Read { path: folder.to_owned(), source };
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        if path.is_file() && !hidden && wanted(&path) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Whether a name matches a pattern in which `*` stands for any text and `?` for any character.
fn matches(pattern: &[char], name: &[char]) -> bool {
    match pattern.split_first() {
        None => name.is_empty(),
        Some(('*', rest)) => (0..=name.len()).any(|skip| matches(rest, &name[skip..])),
        Some((wanted, rest)) => name
            .split_first()
            .is_some_and(|(first, tail)| (*wanted == '?' || wanted == first) && matches(rest, tail)),
    }
}

/// An iterator over rows, in file order.
type Rows = Box<dyn Iterator<Item = Result<Row>> + Send>;

/// An open file of rows.
pub struct TableReader {
    path: PathBuf,
    columns: Vec<String>,
    source: Source,
}

enum Source {
    Parquet(arrow::Builder),
    Text(Rows),
}

impl TableReader {
    /// Opens a file and learns its columns: from the schema, the CSV header, or the first hundred rows of JSON.
    pub fn open(path: &Path) -> Result<Self> {
        let (format, gzipped) = format_of(path)?;
        if format == Format::Parquet {
            let file = open(path)?;
            let (builder, columns) = arrow::open(file, path)?;
            return Ok(Self { path: path.to_owned(), columns, source: Source::Parquet(builder) });
        }
        let (rows, columns) = match format {
            Format::Csv => text::csv(path, gzipped)?,
            Format::Json => sample(text::json(path, gzipped)?)?,
            _ => sample(text::jsonl(path, gzipped)?)?,
        };
        Ok(Self { path: path.to_owned(), columns, source: Source::Text(rows) })
    }

    /// The names of the columns.
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// The rows with their places; of a Parquet file only the columns named in `wanted`, all where it is `None`.
    pub fn rows(
        self,
        wanted: Option<&[&str]>,
    ) -> Result<impl Iterator<Item = Result<(At, Row)>> + Send + use<>> {
        let rows = match self.source {
            Source::Parquet(builder) => arrow::rows(builder, wanted, &self.path)?,
            Source::Text(rows) => rows,
        };
        let path = self.path;
        Ok(rows.enumerate().map(move |(row, found)| Ok((At { path: path.clone(), row }, found?))))
    }
}

fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(|source| Error::Read { path: path.to_owned(), source })
}

/// Learns the columns from the first rows, which are then given out first.
fn sample(mut rows: Rows) -> Result<(Rows, Vec<String>)> {
    let mut head = VecDeque::new();
    let mut columns: Vec<String> = Vec::new();
    for row in rows.by_ref().take(COLUMN_SAMPLE) {
        let row = row?;
        for name in row.keys() {
            if !columns.contains(name) {
                columns.push(name.clone());
            }
        }
        head.push_back(Ok(row));
    }
    Ok((Box::new(head.into_iter().chain(rows)), columns))
}

/// Opens a file as rows of one kind; without a layout it is told by the columns.
pub fn open_records<R: Record>(
    path: &Path,
    layout: Option<Layout>,
) -> Result<(Layout, impl Iterator<Item = Result<(At, R)>> + use<R>)> {
    let reader = TableReader::open(path)?;
    if reader.columns().is_empty() {
        return Err(Error::NoRows { path: path.to_owned() });
    }
    let layout = match layout {
        Some(layout) => R::require(layout, reader.columns(), path)?,
        None => R::detect(reader.columns(), path)?,
    };
    let wanted: Vec<&str> = layout.required().iter().chain(layout.optional()).copied().collect();
    let rows = reader.rows(Some(&wanted))?;
    let parse = move |(at, row): (At, Row)| R::parse(layout, &row, &at).map(|record| (at, record));
    Ok((layout, rows.map(move |row| row.and_then(parse))))
}

/// Reads a whole file as rows of one kind.
pub fn read_records<R: Record>(path: &Path, layout: Option<Layout>) -> Result<Vec<R>> {
    let (_, rows) = open_records(path, layout)?;
    rows.map(|row| row.map(|(_, record)| record)).collect()
}

#[cfg(test)]
mod tests;
