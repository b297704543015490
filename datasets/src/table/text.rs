//! Reads JSONL files as rows: one object per line. This module does not know what the columns mean.

use std::io::{BufRead, Read};
use std::path::Path;

use serde_json::Value;

use super::json::{self, Problem};
use super::limits::{RECORD_BYTES, record_too_long, row_too_large};
use super::row::{Row, Rows};
use super::source::{Bytes, failed};
use crate::error::{Error, Result, RowLocation};

/// A mark that some programs write before the first line.
pub(super) const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Converts a JSON value to a row; anything but an object is an error.
pub(super) fn row(value: Value, at: RowLocation) -> Result<(usize, Row)> {
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
            match reader.by_ref().take(RECORD_BYTES as u64 + 1).read_until(b'\n', &mut line) {
                Err(source) => {
                    ended = true;
                    return Some(Err(failed(&path, gzipped, source)));
                }
                Ok(0) => return None,
                Ok(_) => number += 1,
            }

            let at = RowLocation { path: path.clone(), row: number };
            if line.len() > RECORD_BYTES {
                ended = true;
                return Some(Err(record_too_long(at)));
            }
            let line = line.strip_prefix(BYTE_ORDER_MARK).filter(|_| number == 1).unwrap_or(&line);
            // With the line break included, the parser would report errors at its end on the next line.
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }

            return Some(match json::parse(line) {
                Ok(value) => row(value, at),
                Err(Problem::Broken(source)) => Err(Error::broken_json(at, &source)),
                Err(Problem::TooLarge) => Err(row_too_large(at)),
            });
        }
        None
    }))
}
