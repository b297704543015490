//! JSONL, JSON and CSV files as rows, gzipped or not. Knows no meaning of columns.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use arrow_csv::ReaderBuilder;
use arrow_csv::reader::Format as CsvFormat;
use arrow_schema::{DataType, Field, Schema};
use flate2::read::MultiGzDecoder;
use serde_json::Value;

use super::Rows;
use crate::error::{At, Error, Result};
use crate::record::Row;

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

fn reader(path: &Path, gzipped: bool) -> Result<BufReader<Box<dyn Read + Send>>> {
    let file = super::open(path)?;
    let inner: Box<dyn Read + Send> =
        if gzipped { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) };
    Ok(BufReader::new(inner))
}

fn row(value: Value, at: At) -> Result<Row> {
    let found = match value {
        Value::Object(row) => return Ok(row),
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
    };
    Err(Error::NotAnObject { at, found })
}

/// One object per line; empty lines are passed over.
pub(super) fn jsonl(path: &Path, gzipped: bool) -> Result<Rows> {
    let mut reader = reader(path, gzipped)?;
    let path = path.to_owned();
    let mut count = 0;
    Ok(Box::new(std::iter::from_fn(move || {
        loop {
            let mut line = Vec::new();
            match reader.read_until(b'\n', &mut line) {
                Err(source) => return Some(Err(Error::Read { path: path.clone(), source })),
                Ok(0) => return None,
                Ok(_) => {}
            }
            let line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&line);
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let at = At { path: path.clone(), row: count };
            count += 1;
            return Some(match serde_json::from_slice(line) {
                Ok(value) => row(value, at),
                Err(source) => Err(Error::BadJson { at, source }),
            });
        }
    })))
}

/// An array of objects, or objects one after the other.
pub(super) fn json(path: &Path, gzipped: bool) -> Result<Rows> {
    let mut text = Vec::new();
    let read = reader(path, gzipped)?.read_to_end(&mut text);
    read.map_err(|source| Error::Read { path: path.to_owned(), source })?;
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&text);
    let at = |row| At { path: path.to_owned(), row };
    let mut rows = Vec::new();
    for value in serde_json::Deserializer::from_slice(text).into_iter::<Value>() {
        match value.map_err(|source| Error::BadJson { at: at(rows.len()), source })? {
            Value::Array(list) if rows.is_empty() => {
                for value in list {
                    rows.push(row(value, at(rows.len()))?);
                }
            }
            value => rows.push(row(value, at(rows.len()))?),
        }
    }
    Ok(Box::new(rows.into_iter().map(Ok)))
}

/// A header and one row per line (RFC 4180); every cell is text, an empty cell is null.
pub(super) fn csv(path: &Path, gzipped: bool) -> Result<(Rows, Vec<String>)> {
    let failed = |source| Error::Arrow { path: path.to_owned(), source };
    let format = CsvFormat::default().with_header(true);
    let (seen, _) = format.infer_schema(reader(path, gzipped)?, Some(1)).map_err(failed)?;
    let name = |field: &Arc<Field>| field.name().trim_start_matches('\u{feff}').to_owned();
    let columns: Vec<String> = seen.fields().iter().map(name).collect();
    let fields: Vec<Field> = columns.iter().map(|name| Field::new(name, DataType::Utf8, true)).collect();
    let builder = ReaderBuilder::new(Arc::new(Schema::new(fields))).with_header(true);
    let batches = builder.build_buffered(reader(path, gzipped)?).map_err(failed)?;
    let path = path.to_owned();
    let rows = batches.flat_map(move |batch| {
        let rows = batch.and_then(|batch| super::arrow::rows_of(&batch));
        match rows {
            Ok(rows) => rows.into_iter().map(Ok).collect::<Vec<_>>(),
            Err(source) => vec![Err(Error::Arrow { path: path.clone(), source })],
        }
    });
    Ok((Box::new(rows), columns))
}
