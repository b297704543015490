//! Reads JSONL, JSON and CSV files as rows. This module does not know what the columns mean.

use std::io::{BufRead, Cursor, Read};
use std::path::Path;
use std::sync::Arc;

use arrow_csv::ReaderBuilder;
use arrow_csv::reader::Format as CsvFormat;
use arrow_schema::{DataType, Field, Schema};
use serde_json::Value;

use super::Rows;
use super::json::Strict;
use super::source::{Bytes, failed};
use crate::error::{Error, Result, RowLocation};
use crate::record::Row;

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Converts a JSON value to a row; anything but an object is an error.
fn row(value: Value, at: RowLocation) -> Result<(usize, Row)> {
    let found = match value {
        Value::Object(row) => return Ok((at.row, row)),
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
    };
    Err(Error::NotAnObject { at, found })
}

/// Reads one object per line. Empty lines are skipped but counted as lines.
pub(super) fn jsonl(mut reader: Bytes, path: &Path, gzipped: bool) -> Rows {
    let path = path.to_owned();
    let (mut number, mut ended) = (0, false);
    Box::new(std::iter::from_fn(move || {
        while !ended {
            let mut line = Vec::new();
            match reader.read_until(b'\n', &mut line) {
                Err(source) => {
                    ended = true;
                    return Some(Err(failed(&path, gzipped, source)));
                }
                Ok(0) => return None,
                Ok(_) => number += 1,
            }

            let line = line.strip_prefix(BYTE_ORDER_MARK).filter(|_| number == 1).unwrap_or(&line);
            // With the line break included, the parser would report errors at its end on the next line.
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }

            let at = RowLocation { path: path.clone(), row: number };
            return Some(match serde_json::from_slice(line) {
                Ok(Strict(value)) => row(value, at),
                Err(source) => Err(Error::BadJson { at, source }),
            });
        }
        None
    }))
}

/// Reads an array of objects, or a sequence of objects.
pub(super) fn json(mut reader: Bytes, path: &Path, gzipped: bool) -> Result<Rows> {
    let mut text = Vec::new();
    reader.read_to_end(&mut text).map_err(|source| failed(path, gzipped, source))?;
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&text);
    let at = |row| RowLocation { path: path.to_owned(), row };
    let mut rows = Vec::new();
    for value in serde_json::Deserializer::from_slice(text).into_iter::<Strict>() {
        match value.map_err(|source| Error::BadJson { at: at(rows.len() + 1), source })? {
            Strict(Value::Array(list)) if rows.is_empty() => {
                for value in list {
                    rows.push(row(value, at(rows.len() + 1)));
                }
            }
            Strict(value) => rows.push(row(value, at(rows.len() + 1))),
        }
    }
    Ok(Box::new(rows.into_iter()))
}

/// Reads a header and one row per line (RFC 4180). Every cell is a text; an empty cell is null.
pub(super) fn csv(mut reader: Bytes, path: &Path, gzipped: bool) -> Result<(Rows, Vec<String>)> {
    let wrong = |source| Error::Csv { path: path.to_owned(), source };
    // The header is read separately, because the row reader needs the columns.
    let mut header = Vec::new();
    while reader.read_until(b'\n', &mut header).map_err(|source| failed(path, gzipped, source))? > 0 {
        // A quoted name may contain a line break.
        let quotes = header.split(|&byte| byte == b'"').count() - 1;
        if quotes % 2 == 0 {
            break;
        }
    }

    let text = header.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&header).to_vec();
    let format = CsvFormat::default().with_header(true);
    let (seen, _) = format.infer_schema(text.as_slice(), Some(1)).map_err(wrong)?;
    let columns: Vec<String> = seen.fields().iter().map(|field| field.name().clone()).collect();
    let fields: Vec<Field> = columns.iter().map(|name| Field::new(name, DataType::Utf8, true)).collect();

    let builder = ReaderBuilder::new(Arc::new(Schema::new(fields))).with_header(true);
    let mut batches = builder.build_buffered(Cursor::new(text).chain(reader)).map_err(wrong)?;

    let path = path.to_owned();
    let (mut number, mut ended) = (0, false);
    // Stop after an error: the reader returns the same error forever.
    let rows = std::iter::from_fn(move || {
        if ended {
            return None;
        }
        Some(match batches.next()?.and_then(|batch| super::arrow::rows_of(&batch)) {
            Ok(rows) => {
                let from = number;
                number += rows.len();
                rows.into_iter().enumerate().map(|(index, row)| Ok((from + index + 1, row))).collect()
            }
            Err(source) => {
                ended = true;
                vec![Err(Error::Csv { path: path.clone(), source })]
            }
        })
    });

    Ok((Box::new(rows.flatten()), columns))
}
