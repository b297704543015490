//! Reads the rows of one file of any format.

use std::collections::{HashSet, VecDeque};
use std::path::{Path, PathBuf};

use super::format::{Format, format_of};
use super::position::Position;
use super::row::{Row, Rows};
use super::{arrow, csv, document, limits, source, text};
use crate::error::{Error, Result, RowLocation};

/// Number of rows read to find the columns of a JSON file.
const COLUMN_SAMPLE: usize = 100;

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
    pub(super) fn filled(&self) -> Vec<(String, usize)> {
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
