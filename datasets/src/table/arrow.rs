//! Reads Parquet files as rows.
//!
//! Texts are decoded as views: values of a dictionary or a page that many rows refer to are in memory once,
//! and `pages.rs` bounds the pages that a batch may hold. Supported types are those of `batch.rs`. A column
//! of any other type (binary, dates) is an error if it is read. This module does not know what the columns
//! mean.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow_schema::{ArrowError, DataType, Field, FieldRef, Fields};
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use parquet::arrow::{ProjectionMask, parquet_to_arrow_field_levels};
use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::statistics::Statistics;

use super::batch::{RowBatch, in_column, plain, rows_of};
use super::pages::{Meter, MeteredRowGroups};
use super::position::Position;
use super::row::Rows;
use super::{footer, limits, pages};
use crate::error::{Error, Result};
use crate::untrusted::decode;

/// Number of rows per decoded batch.
const BATCH: usize = 1024;

type Builder = ParquetRecordBatchReaderBuilder<File>;

/// An open file.
pub(super) struct ParquetFile {
    file: Arc<File>,
    builder: Builder,
    bytes: u64,
    /// The unpacked size of the largest page of each column, in bytes.
    largest_pages: Vec<u64>,
}

/// Opens a file and reads its column names. Returns an error for a compression that is not built in.
pub(super) fn open(file: File, path: &Path) -> Result<(ParquetFile, Vec<String>)> {
    let failed = |error| Error::Parquet { path: path.to_owned(), error };
    let damaged = |error: std::io::Error| failed(ParquetError::General(error.to_string()));
    footer::check(&file).map_err(damaged)?;
    let pages = file.try_clone().map_err(|source| Error::Read { path: path.to_owned(), source })?;
    let builder = decode(|| Builder::try_new(file)).map_err(ParquetError::General);
    let builder = builder.and_then(|builder| builder).map_err(failed)?;
    let largest_pages = footer::check_pages(&pages, builder.metadata()).map_err(damaged)?;

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
    let bytes = pages.metadata().map_err(|source| Error::Read { path: path.to_owned(), source })?.len();
    Ok((ParquetFile { file: Arc::new(pages), builder, bytes, largest_pages }, columns))
}

/// Returns the number of rows in which each column is not null. The file has no such count for lists and
/// structs; all their rows are counted.
pub(super) fn filled(file: &ParquetFile) -> Vec<(String, usize)> {
    let builder = &file.builder;
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

impl ParquetFile {
    /// The number of rows that the footer announces.
    pub(super) fn num_rows(&self) -> u64 {
        self.builder.metadata().file_metadata().num_rows().max(0) as u64
    }
}

/// Returns the rows, with only the wanted columns.
pub(super) fn rows(
    file: &ParquetFile,
    wanted: Option<&dyn Fn(&str) -> bool>,
    path: &Path,
    position: Position,
) -> Result<Rows> {
    let meter = Meter::default();
    let reader = decode(|| reader(file, wanted, &meter))
        .unwrap_or_else(|reason| Err(Fault::Parquet(ParquetError::General(reason))));
    let mut reader = reader.map_err(|fault| match fault {
        Fault::Parquet(error) => Error::Parquet { path: path.to_owned(), error },
        Fault::Type(source) => Error::Arrow { path: path.to_owned(), source },
    })?;

    let most = limits::rows_bytes(file.bytes);
    Ok(rows_of(path, most, move |path| {
        meter.begin_batch();
        let batch = decode(|| Some(reader.next()?.and_then(|batch| RowBatch::new(&batch))));
        let batch = batch.unwrap_or_else(|reason| Some(Err(ArrowError::ParquetError(reason))))?;
        if let Ok(batch) = &batch {
            position.add(batch.num_rows() as u64);
        }
        Some(batch.map_err(|source| Error::Arrow { path: path.to_owned(), source }))
    }))
}

/// Why a file cannot be read.
enum Fault {
    Parquet(ParquetError),
    /// A wanted column has a type that is not supported.
    Type(ArrowError),
}

impl From<ParquetError> for Fault {
    fn from(error: ParquetError) -> Self {
        Self::Parquet(error)
    }
}

fn reader(
    file: &ParquetFile,
    wanted: Option<&dyn Fn(&str) -> bool>,
    meter: &Meter,
) -> std::result::Result<ParquetRecordBatchReader, Fault> {
    let (builder, schema) = (&file.builder, file.builder.parquet_schema());
    let is_wanted = |field: &Field| wanted.is_none_or(|wanted| wanted(field.name()));
    let fields = builder.schema().fields();
    let roots = fields.iter().enumerate().filter(|(_, field)| is_wanted(field)).map(|(index, _)| index);
    let mask = ProjectionMask::roots(schema, roots);
    for (leaf, &bytes) in file.largest_pages.iter().enumerate() {
        if mask.leaf_included(leaf) {
            pages::check_size(schema.get_column_root(leaf).name(), bytes)?;
        }
    }

    let views: Fields = fields.iter().map(texts_as_views).collect();
    let levels = parquet_to_arrow_field_levels(schema, mask, Some(&views))?;
    let groups = MeteredRowGroups::new(Arc::clone(&file.file), Arc::clone(builder.metadata()), meter.clone());
    let reader = ParquetRecordBatchReader::try_new_with_row_groups(&levels, &groups, BATCH, None)?;
    // Before anything is decoded, since only texts are decoded as views.
    for field in fields.iter().filter(|field| is_wanted(field)) {
        plain(field.data_type()).map_err(|error| Fault::Type(in_column(field.name(), error)))?;
    }
    Ok(reader)
}

/// A field whose texts, also those inside of lists and structs, are views.
fn texts_as_views(field: &FieldRef) -> FieldRef {
    Arc::new(Field::clone(field).with_data_type(type_with_views(field.data_type())))
}

fn type_with_views(kind: &DataType) -> DataType {
    match kind {
        DataType::Utf8 | DataType::LargeUtf8 => DataType::Utf8View,
        DataType::Dictionary(_, value) => type_with_views(value),
        DataType::List(item) => DataType::List(texts_as_views(item)),
        DataType::LargeList(item) => DataType::LargeList(texts_as_views(item)),
        DataType::FixedSizeList(item, size) => DataType::FixedSizeList(texts_as_views(item), *size),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(texts_as_views).collect()),
        other => other.clone(),
    }
}
