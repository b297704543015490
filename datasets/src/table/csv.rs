//! Reads CSV files as rows (RFC 4180): a header, and one row per record. Every cell is a text; an empty cell
//! is null.
//!
//! The file is cut into records first, with the state of the quotes kept from byte to byte, so that a batch
//! ends where a record ends, is bounded in bytes, and no byte is looked at twice. This module does not know
//! what the columns mean.

use std::io::{self, BufRead};
use std::path::Path;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_csv::ReaderBuilder;
use arrow_csv::reader::{Decoder, Format};
use arrow_schema::{ArrowError, DataType, Field, Schema};

use super::batch::{RowBatch, rows_of};
use super::limits::{BATCH_BYTES, COLUMNS, HEADER_BYTES, RECORD_BYTES, record_too_long, too_many_columns};
use super::row::Rows;
use super::source::{Bytes, failed};
use super::text::BYTE_ORDER_MARK;
use crate::error::{Error, Result, RowLocation};

/// The most rows of a batch.
const BATCH: usize = 1024;

/// Reads the header of a file, and returns its rows and its columns.
pub(super) fn csv(reader: Bytes, path: &Path, gzipped: bool) -> Result<(Rows, Vec<String>)> {
    let path = path.to_owned();
    let wrong = |source| Error::Csv { path: path.clone(), source };
    let mut records = Records { reader, state: State::Record, fields: 0, is_at_end: false };
    let mut header = Vec::new();
    let at = || RowLocation { path: path.clone(), row: 0 };
    let is_whole =
        records.next(&mut header, HEADER_BYTES).map_err(|source| failed(&path, gzipped, source))?;
    if !is_whole {
        let what = format!("its header has more than {} MiB", HEADER_BYTES >> 20);
        return Err(Error::TooLong { at: at(), what });
    }
    if records.fields > COLUMNS {
        return Err(too_many_columns(at()));
    }

    let text = header.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&header);
    let (seen, _) = Format::default().with_header(true).infer_schema(text, Some(1)).map_err(wrong)?;
    let columns: Vec<String> = seen.fields().iter().map(|field| field.name().clone()).collect();
    let fields: Vec<Field> = columns.iter().map(|name| Field::new(name, DataType::Utf8, true)).collect();
    let builder = ReaderBuilder::new(Arc::new(Schema::new(fields))).with_header(true).with_batch_size(BATCH);
    let mut decoder = builder.build_decoder();
    decode(&mut decoder, text).map_err(wrong)?;

    let mut number = 0;
    let batches = move |path: &Path| {
        let text = match records.batch() {
            Ok(Some(text)) if text.is_empty() => {
                return Some(Err(record_too_long(RowLocation { path: path.to_owned(), row: number + 1 })));
            }
            Ok(text) => text,
            Err(source) => return Some(Err(failed(path, gzipped, source))),
        };
        let batch = next_batch(&mut decoder, &text.unwrap_or_default(), records.is_at_end).transpose()?;
        number += batch.as_ref().map_or(0, RecordBatch::num_rows);
        let batch = batch.and_then(|batch| RowBatch::new(&batch));
        Some(batch.map_err(|source| Error::Csv { path: path.to_owned(), source }))
    };
    Ok((rows_of(&path.clone(), u64::MAX, batches), columns))
}

/// Decodes whole records. `None` means that the file has no more of them.
fn next_batch(
    decoder: &mut Decoder,
    text: &[u8],
    is_at_end: bool,
) -> std::result::Result<Option<RecordBatch>, ArrowError> {
    decode(decoder, text)?;
    if is_at_end {
        // An empty text tells the decoder that the file ends here. Without it, a last record that has no line
        // break stays open, and the decoder gives it the fields of another record.
        decoder.decode(&[])?;
    }
    decoder.flush()
}

/// Gives a text to the decoder, which takes the header and the rows at separate calls.
fn decode(decoder: &mut Decoder, mut text: &[u8]) -> std::result::Result<(), ArrowError> {
    while !text.is_empty() {
        let count = decoder.decode(text)?;
        if count == 0 {
            return Err(ArrowError::CsvError(
                "its records end elsewhere for the parser than for this program, which is a bug in it"
                    .to_owned(),
            ));
        }
        text = &text[count..];
    }
    Ok(())
}

/// Where the reader is in a record.
#[derive(Clone, Copy)]
enum State {
    /// Before the first byte of a record. Empty lines are skipped.
    Record,
    /// Before the first byte of a field.
    Field,
    /// In a field without quotes, or after its quotes.
    Plain,
    /// Within quotes.
    Quoted,
    /// After a quote within quotes, which ends them unless it is doubled.
    Quote,
}

/// Cuts a file into records, as the decoder does.
struct Records {
    reader: Bytes,
    state: State,
    /// The commas of the record and one.
    fields: usize,
    /// Whether the last byte of the file was read.
    is_at_end: bool,
}

impl Records {
    /// The next records of a file; `None` at its end. Empty if a record is too long.
    fn batch(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut text = Vec::new();
        for _ in 0..BATCH {
            let before = text.len();
            if !self.next(&mut text, RECORD_BYTES)? {
                return Ok(Some(Vec::new()));
            }
            if text.len() == before || text.len() >= BATCH_BYTES {
                break;
            }
        }
        Ok(if text.is_empty() { None } else { Some(text) })
    }

    /// Appends a record with its line break, or nothing at the end of the file. Returns `false` if the record
    /// has more than `most` bytes.
    fn next(&mut self, text: &mut Vec<u8>, most: usize) -> io::Result<bool> {
        let before = text.len();
        self.fields = 1;
        loop {
            let bytes = match self.reader.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                bytes => bytes?,
            };
            let (count, ends) = find_end(bytes, &mut self.state, &mut self.fields);
            let is_last = bytes.is_empty();
            text.extend_from_slice(&bytes[..count]);
            self.reader.consume(count);
            if text.len() - before > most {
                return Ok(false);
            }
            if ends || is_last {
                self.is_at_end = is_last;
                return Ok(true);
            }
        }
    }
}

/// The bytes up to the end of a record or of `bytes`, and whether the record ends there.
fn find_end(bytes: &[u8], state: &mut State, fields: &mut usize) -> (usize, bool) {
    use State::{Field, Plain, Quote, Quoted, Record};
    for (index, &byte) in bytes.iter().enumerate() {
        *state = match (*state, byte) {
            (Quoted, b'"') => Quote,
            (Quoted, _) | (Record | Field | Quote, b'"') => Quoted,
            (Record, b'\r' | b'\n') => Record,
            (_, b'\r' | b'\n') => {
                *state = Record;
                return (index + 1, true);
            }
            (_, b',') => {
                *fields += 1;
                Field
            }
            (Record | Field | Plain | Quote, _) => Plain,
        };
    }
    (bytes.len(), false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(text: &str) -> Vec<String> {
        let mut state = State::Record;
        let mut rest = text.as_bytes();
        let mut found = Vec::new();
        while !rest.is_empty() {
            let (count, _) = find_end(rest, &mut state, &mut 0);
            found.push(String::from_utf8(rest[..count].to_vec()).unwrap());
            rest = &rest[count..];
        }
        found
    }

    #[test]
    fn records_end_where_the_decoder_ends_them() {
        // A line break within quotes, a doubled quote, a quote in a field that has none around it, text after
        // the quotes, and empty lines.
        let text = "a,\"b\nc\"\n\"d\"\"\n\",e\nf\"g,h\n\"i\"j\nk\"\r\n\n\nl,m";
        assert_eq!(
            records(text),
            ["a,\"b\nc\"\n", "\"d\"\"\n\",e\n", "f\"g,h\n", "\"i\"j\n", "k\"\r", "\n\n\nl,m"]
        );
    }
}
