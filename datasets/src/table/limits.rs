//! The limits of a file of rows: what a header, a row and a batch may take in memory.
//!
//! A file comes from outside and may be small and unpack to anything, so nothing is allocated by a count that
//! the file announces. A row counts with its size in memory, which for a list of short numbers is many times
//! its size in the file.

use serde_json::Value;

use super::row::Row;
use crate::error::{Error, RowLocation};

/// The longest text of a row in a text file, and the longest page of a Parquet file, in bytes.
pub(super) const RECORD_BYTES: usize = 256 << 20;
/// The largest row in memory, in bytes.
pub(crate) const ROW_BYTES: usize = 512 << 20;
/// The most bytes of rows that are held to find the columns of a JSON file.
pub(super) const SAMPLE_BYTES: usize = 256 << 20;
/// The most columns of a file, and the most fields of an object in a row.
pub(crate) const COLUMNS: usize = 10_000;
/// The longest header of a CSV file, in bytes.
pub(super) const HEADER_BYTES: usize = 1 << 20;
/// The size of a batch of CSV rows, in bytes of the file. A longer row is a batch of its own.
pub(super) const BATCH_BYTES: usize = 16 << 20;

/// Bytes that the rows of a Parquet file may take one after another, and those for each byte of the file
/// beside them. A prompt of some kilobytes that all rows repeat takes a few hundred times its file.
const ROWS_BYTES: u64 = 2 << 30;
const ROWS_RATIO: u64 = 2000;

/// The size of a value without its contents.
const VALUE: usize = size_of::<Value>();
/// The size of a field of an object without its contents: its entry, its hash and its index.
const FIELD: usize = size_of::<String>() + VALUE + 4 * size_of::<usize>();

/// The memory that a row may still take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room(usize);

impl Room {
    /// The room of a row of which nothing is read.
    pub(super) const fn of_row() -> Self {
        Self(ROW_BYTES)
    }

    /// Takes the bytes of a value without its contents.
    pub(super) fn take_value(&mut self) -> bool {
        self.take(VALUE)
    }

    /// Takes the bytes of a field with its name and without the contents of its value.
    pub(super) fn take_field(&mut self, name: &str) -> bool {
        self.take(FIELD + name.len())
    }

    /// Takes the bytes of a text.
    pub(super) fn take_text(&mut self, text: &str) -> bool {
        self.take(text.len())
    }

    /// The bytes that were taken.
    pub(super) fn taken(self) -> usize {
        ROW_BYTES - self.0
    }

    /// Whether a row asked for more than there was.
    pub(super) fn is_exceeded(self) -> bool {
        self.0 == 0
    }

    /// Takes bytes. Returns `false`, now and from then on, if there are not enough.
    fn take(&mut self, bytes: usize) -> bool {
        self.0 = self.0.saturating_sub(bytes);
        self.0 > 0
    }
}

/// The bytes of a row in memory.
pub(crate) fn row_bytes(row: &Row) -> usize {
    row.iter().map(|(name, value)| FIELD + name.len() + contents(value)).sum()
}

/// The bytes of a value in memory.
pub(crate) fn value_bytes(value: &Value) -> usize {
    VALUE + contents(value)
}

/// The bytes of the contents of a value.
fn contents(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(list) => list.iter().map(value_bytes).sum(),
        Value::Object(object) => row_bytes(object),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

/// The error for a row that takes more than [`ROW_BYTES`].
pub(crate) fn row_too_large(at: RowLocation) -> Error {
    let what = format!("it takes more than {} MiB in memory, which is no row", ROW_BYTES >> 20);
    Error::TooLong { at, what }
}

/// The bytes of memory that all rows of a Parquet file of `file` bytes may take, one after another.
pub(super) fn rows_bytes(file: u64) -> u64 {
    ROWS_BYTES.saturating_add(ROWS_RATIO.saturating_mul(file))
}

/// The error for a file whose rows, up to this one, take more than [`rows_bytes`].
pub(super) fn rows_too_large(at: RowLocation) -> Error {
    let what = format!(
        "the rows up to it take more than {} GiB and {ROWS_RATIO} times the size of the file",
        ROWS_BYTES >> 30
    );
    Error::TooLong { at, what }
}

/// The error for a row whose text is longer than [`RECORD_BYTES`].
pub(super) fn record_too_long(at: RowLocation) -> Error {
    let what = format!("it has more than {} MiB, which is no row", RECORD_BYTES >> 20);
    Error::TooLong { at, what }
}

/// The error for a file with more than [`COLUMNS`] columns.
pub(crate) fn too_many_columns(at: RowLocation) -> Error {
    Error::TooLong { at, what: format!("it has more than {COLUMNS} columns") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_as_large_as_what_parsing_it_takes() {
        let row = serde_json::json!({"a": [1, "xyz"], "bc": {"d": null}});
        let row = row.as_object().unwrap();
        // Three fields with names of 1, 2 and 1 bytes, two elements, and a text of 3 bytes.
        assert_eq!(row_bytes(row), 3 * FIELD + 4 + 2 * VALUE + 3);
    }

    #[test]
    fn room_that_is_exceeded_stays_so() {
        let mut room = Room::of_row();
        assert!(room.take(ROW_BYTES - 1) && !room.is_exceeded());
        assert!(!room.take(1) && room.is_exceeded() && !room.take(0));
    }
}
