//! Turns record batches of Parquet and CSV into rows of JSON values, the representation that all formats
//! share, one row at a time.
//!
//! A batch may hold a text once that a million rows refer to, so only the row at hand is made from it.
//! Supported types are text of any form, integers, floating-point numbers, booleans, lists and structs.

use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type, UInt64Type};
use arrow_array::{
    Array, ArrayRef, BooleanArray, Float64Array, Int64Array, LargeListArray, ListArray, RecordBatch,
    StringArray, StringViewArray, StructArray, UInt64Array,
};
use arrow_schema::{ArrowError, DataType, Field, FieldRef, Fields};
use serde_json::{Map, Value, json};

use super::limits::{Room, row_too_large, rows_too_large};
use super::row::{Row, Rows};
use crate::error::{Result, RowLocation};

/// Numbers the rows of successive batches, which may take `most` bytes of memory one after another. The first
/// error of a batch is the last item.
pub(super) fn rows_of(
    path: &Path,
    most: u64,
    mut next_batch: impl FnMut(&Path) -> Option<Result<RowBatch>> + Send + 'static,
) -> Rows {
    let path = path.to_owned();
    let mut batch: Option<RowBatch> = None;
    let (mut number, mut bytes, mut ended) = (0, 0_u64, false);
    Box::new(std::iter::from_fn(move || {
        loop {
            let mut room = Room::of_row();
            if let Some(row) = batch.as_mut().and_then(|batch| batch.next_row(&mut room)) {
                number += 1;
                bytes += room.taken() as u64;
                let at = || RowLocation { path: path.clone(), row: number };
                if bytes > most {
                    (batch, ended) = (None, true);
                    return Some(Err(rows_too_large(at())));
                }
                return Some(row.map(|row| (number, row)).map_err(|TooLarge| row_too_large(at())));
            }
            if ended {
                return None;
            }
            match next_batch(&path)? {
                Ok(more) => batch = Some(more),
                // The reader may return the same error forever.
                Err(error) => {
                    (batch, ended) = (None, true);
                    return Some(Err(error));
                }
            }
        }
    }))
}

/// A row takes more memory than a row may.
struct TooLarge;

/// The rows of a record batch.
pub(super) struct RowBatch {
    columns: Vec<(String, Column)>,
    num_rows: usize,
    next: usize,
}

impl RowBatch {
    /// Prepares a batch, whose columns must have types that [`plain`] supports.
    pub(super) fn new(batch: &RecordBatch) -> std::result::Result<Self, ArrowError> {
        let schema = batch.schema();
        let column = |(field, column): (&FieldRef, &ArrayRef)| {
            let to = plain(field.data_type()).map_err(|error| in_column(field.name(), error))?;
            let column =
                if *column.data_type() == to { Arc::clone(column) } else { arrow_cast::cast(column, &to)? };
            Ok((field.name().clone(), Column::new(&column)))
        };
        let columns =
            schema.fields().iter().zip(batch.columns()).map(column).collect::<Result<_, ArrowError>>()?;
        Ok(Self { columns, num_rows: batch.num_rows(), next: 0 })
    }

    pub(super) fn num_rows(&self) -> usize {
        self.num_rows
    }

    /// Makes the next row.
    fn next_row(&mut self, room: &mut Room) -> Option<std::result::Result<Row, TooLarge>> {
        if self.next == self.num_rows {
            return None;
        }
        let row = self.next;
        self.next += 1;
        Some(object(&self.columns, row, room).ok_or(TooLarge))
    }
}

/// The type to which a column is converted as a whole, with one type for integers, for floating-point numbers
/// and for texts.
pub(super) fn plain(kind: &DataType) -> std::result::Result<DataType, ArrowError> {
    let item = |field: &FieldRef| -> std::result::Result<FieldRef, ArrowError> {
        Ok(Arc::new(Field::clone(field).with_data_type(plain(field.data_type())?)))
    };
    Ok(match kind {
        DataType::Null
        | DataType::Boolean
        | DataType::Utf8
        | DataType::Utf8View
        | DataType::Int64
        | DataType::UInt64
        | DataType::Float64 => kind.clone(),
        DataType::LargeUtf8 => DataType::Utf8View,
        DataType::Dictionary(_, to) => plain(to)?,
        kind if kind.is_integer() => DataType::Int64,
        kind if kind.is_floating() => DataType::Float64,
        DataType::List(field) | DataType::FixedSizeList(field, _) => DataType::List(item(field)?),
        DataType::LargeList(field) => DataType::LargeList(item(field)?),
        DataType::Struct(fields) => {
            DataType::Struct(fields.iter().map(item).collect::<std::result::Result<Fields, _>>()?)
        }
        kind => return Err(ArrowError::NotYetImplemented(format!("a column of type {kind}"))),
    })
}

/// Adds the column name to the error for an unsupported type.
pub(super) fn in_column(name: &str, error: ArrowError) -> ArrowError {
    match error {
        ArrowError::NotYetImplemented(what) => ArrowError::NotYetImplemented(format!("`{name}`: {what}")),
        other => other,
    }
}

/// A column of one of the types of [`plain`].
enum Column {
    Null,
    Boolean(BooleanArray),
    Text(StringArray),
    View(StringViewArray),
    Signed(Int64Array),
    Unsigned(UInt64Array),
    Float(Float64Array),
    List(ListArray, Box<Self>),
    LargeList(LargeListArray, Box<Self>),
    Struct(StructArray, Vec<(String, Self)>),
}

impl Column {
    fn new(array: &ArrayRef) -> Self {
        let items = |values: &ArrayRef| Box::new(Self::new(values));
        match array.data_type() {
            DataType::Boolean => Self::Boolean(array.as_boolean().clone()),
            DataType::Utf8 => Self::Text(array.as_string().clone()),
            DataType::Utf8View => Self::View(array.as_string_view().clone()),
            DataType::Int64 => Self::Signed(array.as_primitive::<Int64Type>().clone()),
            DataType::UInt64 => Self::Unsigned(array.as_primitive::<UInt64Type>().clone()),
            DataType::Float64 => Self::Float(array.as_primitive::<Float64Type>().clone()),
            DataType::List(_) => {
                let lists = array.as_list::<i32>();
                Self::List(lists.clone(), items(lists.values()))
            }
            DataType::LargeList(_) => {
                let lists = array.as_list::<i64>();
                Self::LargeList(lists.clone(), items(lists.values()))
            }
            DataType::Struct(fields) => {
                let structs = array.as_struct();
                let parts = fields.iter().zip(structs.columns());
                let parts = parts.map(|(field, part)| (field.name().clone(), Self::new(part)));
                Self::Struct(structs.clone(), parts.collect())
            }
            _ => Self::Null,
        }
    }

    /// The value of a row; `None` if there is no room for it.
    fn value(&self, row: usize, room: &mut Room) -> Option<Value> {
        Some(match self {
            Self::Boolean(array) if array.is_valid(row) => Value::Bool(array.value(row)),
            Self::Text(array) if array.is_valid(row) => text(array.value(row), room)?,
            Self::View(array) if array.is_valid(row) => text(array.value(row), room)?,
            Self::Signed(array) if array.is_valid(row) => Value::from(array.value(row)),
            Self::Unsigned(array) if array.is_valid(row) => Value::from(array.value(row)),
            Self::Float(array) if array.is_valid(row) => number(array.value(row)),
            Self::List(array, items) if array.is_valid(row) => {
                let offsets = array.value_offsets();
                list(items, offsets[row] as usize..offsets[row + 1] as usize, room)?
            }
            Self::LargeList(array, items) if array.is_valid(row) => {
                let offsets = array.value_offsets();
                list(items, offsets[row] as usize..offsets[row + 1] as usize, room)?
            }
            Self::Struct(array, parts) if array.is_valid(row) => Value::Object(object(parts, row, room)?),
            _ => Value::Null,
        })
    }
}

fn object(columns: &[(String, Column)], row: usize, room: &mut Room) -> Option<Row> {
    let mut object = Map::with_capacity(columns.len());
    for (name, column) in columns {
        if !room.take_field(name) {
            return None;
        }
        object.insert(name.clone(), column.value(row, room)?);
    }
    Some(object)
}

fn list(items: &Column, range: std::ops::Range<usize>, room: &mut Room) -> Option<Value> {
    let value = |row| if room.take_value() { items.value(row, room) } else { None };
    range.map(value).collect::<Option<Vec<Value>>>().map(Value::Array)
}

fn text(text: &str, room: &mut Room) -> Option<Value> {
    room.take_text(text).then(|| Value::String(text.to_owned()))
}

/// Converts a floating-point number. JSON has no non-finite numbers, so a non-finite value becomes a text,
/// which every numeric field rejects.
fn number(value: f64) -> Value {
    if value.is_finite() { json!(value) } else { Value::String(value.to_string()) }
}
