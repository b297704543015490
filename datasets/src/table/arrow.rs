//! Reads Parquet files as rows: converts record batches to JSON values, the representation that all formats
//! share.
//!
//! Supported types are text of any offset width, dictionary-encoded text, integers, floating-point numbers,
//! booleans, lists and structs. A column of any other type (binary, dates) is an error if it is read. This
//! module does not know what the columns mean.

use std::fs::File;
use std::path::Path;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type, UInt64Type};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{ArrowError, DataType};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::statistics::Statistics;
use serde_json::{Map, Value, json};

use super::{Position, Rows, footer};
use crate::error::{Error, Result};
use crate::record::Row;
use crate::untrusted::decode;

/// Number of rows per decoded batch.
const BATCH: usize = 1024;

pub(super) type Builder = ParquetRecordBatchReaderBuilder<File>;

/// Opens a file and reads its column names. Returns an error for a compression that is not built in.
pub(super) fn open(file: File, path: &Path) -> Result<(Builder, Vec<String>)> {
    let failed = |source| Error::Parquet { path: path.to_owned(), source };
    let damaged = |error: std::io::Error| failed(ParquetError::General(error.to_string()));
    footer::check(&file).map_err(damaged)?;
    let pages = file.try_clone().map_err(|source| Error::Read { path: path.to_owned(), source })?;
    let builder = decode(|| Builder::try_new(file)).map_err(ParquetError::General);
    let builder = builder.and_then(|builder| builder).map_err(failed)?;
    footer::check_pages(&pages, builder.metadata()).map_err(damaged)?;

    let chunks = builder.metadata().row_groups().iter().flat_map(RowGroupMetaData::columns);
    for chunk in chunks {
        match chunk.compression() {
            Compression::UNCOMPRESSED | Compression::SNAPPY | Compression::ZSTD(_) => {}
            other => {
                let name = other.to_string().split('(').next().unwrap_or_default().to_lowercase();
                return Err(Error::ParquetCompression { path: path.to_owned(), name });
            }
        }
    }
    let columns = builder.schema().fields().iter().map(|field| field.name().clone()).collect();
    Ok((builder, columns))
}

/// Returns the number of rows in which each column is not null. The file has no such count for lists and
/// structs; all their rows are counted.
pub(super) fn filled(builder: &Builder) -> Vec<(String, usize)> {
    let fields = builder.schema().fields().iter();
    let schema = builder.parquet_schema();
    let filled = |name: &str| {
        let leaf = (0..schema.num_columns()).find(|&leaf| schema.get_column_root(leaf).name() == name)?;
        let flat = schema.column(leaf).max_rep_level() == 0 && schema.get_column_root(leaf).is_primitive();
        let rows = |group: &RowGroupMetaData| {
            let nulls = group.column(leaf).statistics().and_then(Statistics::null_count_opt).unwrap_or(0);
            let rows = u64::try_from(group.num_rows()).unwrap_or(0);
            // Ignore a null count that exceeds the number of rows.
            rows.checked_sub(if flat { nulls } else { 0 }).unwrap_or(rows) as usize
        };
        Some(builder.metadata().row_groups().iter().map(rows).fold(0, usize::saturating_add))
    };
    fields.map(|field| (field.name().clone(), filled(field.name()).unwrap_or(0))).collect()
}

/// Returns the rows, with only the wanted columns.
pub(super) fn rows(
    builder: Builder,
    wanted: Option<&dyn Fn(&str) -> bool>,
    path: &Path,
    position: Position,
) -> Result<Rows> {
    let mask = wanted.map_or_else(ProjectionMask::all, |wanted| {
        let fields = builder.schema().fields().iter().enumerate();
        let roots = fields.filter(|(_, field)| wanted(field.name()));
        ProjectionMask::roots(builder.parquet_schema(), roots.map(|(index, _)| index))
    });

    let reader = builder.with_projection(mask).with_batch_size(BATCH).build();
    let path = path.to_owned();
    let mut reader = reader.map_err(|source| Error::Parquet { path: path.clone(), source })?;

    let (mut number, mut ended) = (0, false);
    // Stop after an error: the reader may return the same error forever.
    let batches = std::iter::from_fn(move || {
        if ended {
            return None;
        }

        let failed = |source| Error::Arrow { path: path.clone(), source };
        let rows = match decode(|| Some(reader.next()?.and_then(|batch| rows_of(&batch)))) {
            Ok(rows) => rows?.map_err(failed),
            Err(reason) => Err(failed(ArrowError::ParquetError(reason))),
        };

        ended = rows.is_err();
        Some(match rows {
            Ok(rows) => {
                position.add(rows.len() as u64);
                let from = number;
                number += rows.len();
                rows.into_iter().enumerate().map(|(index, row)| Ok((from + index + 1, row))).collect()
            }
            Err(error) => vec![Err(error)],
        })
    });
    Ok(Box::new(batches.flatten()))
}

/// Converts a record batch to rows.
pub(super) fn rows_of(batch: &RecordBatch) -> std::result::Result<Vec<Row>, ArrowError> {
    let mut rows = vec![Map::new(); batch.num_rows()];
    for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
        let values = values(column).map_err(|error| in_column(field.name(), error))?;
        for (row, value) in rows.iter_mut().zip(values) {
            row.insert(field.name().clone(), value);
        }
    }
    Ok(rows)
}

/// Adds the column name to the error for an unsupported type.
fn in_column(name: &str, error: ArrowError) -> ArrowError {
    match error {
        ArrowError::NotYetImplemented(what) => ArrowError::NotYetImplemented(format!("`{name}`: {what}")),
        other => other,
    }
}

/// Converts a column to JSON values.
fn values(column: &ArrayRef) -> std::result::Result<Vec<Value>, ArrowError> {
    let plain = |to: &DataType| arrow_cast::cast(column, to);
    Ok(match column.data_type() {
        DataType::Null => vec![Value::Null; column.len()],
        DataType::Boolean => column.as_boolean().iter().map(|value| json!(value)).collect(),
        DataType::Utf8 => column.as_string::<i32>().iter().map(|value| json!(value)).collect(),
        DataType::LargeUtf8 | DataType::Utf8View => values(&plain(&DataType::Utf8)?)?,
        DataType::Dictionary(_, to) => values(&plain(to)?)?,
        DataType::UInt64 => column.as_primitive::<UInt64Type>().iter().map(|value| json!(value)).collect(),
        DataType::Int64 => column.as_primitive::<Int64Type>().iter().map(|value| json!(value)).collect(),
        kind if kind.is_integer() => values(&plain(&DataType::Int64)?)?,
        DataType::Float64 => column.as_primitive::<Float64Type>().iter().map(number).collect(),
        kind if kind.is_floating() => values(&plain(&DataType::Float64)?)?,
        DataType::List(_) => {
            let lists = column.as_list::<i32>();
            let bounds = lists.value_offsets().iter().map(|&offset| offset as usize).collect::<Vec<_>>();
            lists_of(column, lists.values(), &bounds)?
        }
        DataType::LargeList(_) => {
            let lists = column.as_list::<i64>();
            let bounds = lists.value_offsets().iter().map(|&offset| offset as usize).collect::<Vec<_>>();
            lists_of(column, lists.values(), &bounds)?
        }
        DataType::FixedSizeList(item, _) => values(&plain(&DataType::List(item.clone()))?)?,
        DataType::Struct(fields) => {
            let structs = column.as_struct();
            let mut rows = vec![Map::new(); column.len()];
            for (field, part) in fields.iter().zip(structs.columns()) {
                for (row, value) in rows.iter_mut().zip(values(part)?) {
                    row.insert(field.name().clone(), value);
                }
            }
            let whole = rows.into_iter().map(Value::Object).enumerate();
            whole.map(|(row, value)| if column.is_null(row) { Value::Null } else { value }).collect()
        }
        kind => return Err(ArrowError::NotYetImplemented(format!("a column of type {kind}"))),
    })
}

/// Converts a floating-point number. JSON has no non-finite numbers, so a non-finite value becomes a text,
/// which every numeric field rejects.
fn number(value: Option<f64>) -> Value {
    match value {
        Some(value) if !value.is_finite() => Value::String(value.to_string()),
        value => json!(value),
    }
}

/// Splits the items of a list column at its offsets.
fn lists_of(
    column: &ArrayRef,
    items: &ArrayRef,
    bounds: &[usize],
) -> std::result::Result<Vec<Value>, ArrowError> {
    let first = bounds.first().copied().unwrap_or(0);
    let last = bounds.last().copied().unwrap_or(0);
    let mut items = values(&items.slice(first, last - first))?.into_iter();
    let list = |row: usize| {
        let list: Vec<Value> = items.by_ref().take(bounds[row + 1] - bounds[row]).collect();
        if column.is_null(row) { Value::Null } else { Value::Array(list) }
    };
    Ok((0..column.len()).map(list).collect())
}
