//! Writes rows to files atomically.
//!
//! A file is written under a temporary name in its folder, synced, and renamed to its final name, so a reader
//! never sees a partial file. Parquet is written with zstd in row groups of at most 50 000 rows, with the
//! layout name in the metadata. A column of Parquet has one type, so tools and the calls of a turn, whose
//! fields differ from row to row, are JSON text there.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use arrow_json::ReaderBuilder;
use arrow_schema::{ArrowError, DataType, Field, Fields, Schema, SchemaRef};
use flate2::Compression;
use flate2::write::GzEncoder;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression as ParquetCompression, ZstdLevel};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use serde_json::{Value, json};

use super::format::{Format, format_of};
use super::limits::row_bytes;
use crate::conversation::Message;
use crate::error::{Error, Result};
use crate::record::{Layout, Record, Row};

/// Maximum number of rows of a Parquet row group.
const ROW_GROUP: usize = 50_000;
/// The bytes in memory after which a row group ends.
const ROW_GROUP_BYTES: usize = 256 << 20;
/// Number of rows converted to columns at a time.
const BATCH: usize = 1024;
/// The bytes of rows after which fewer are converted at a time.
const BATCH_BYTES: usize = 64 << 20;

/// Writes records of one layout. The file name decides the format. An existing file is replaced.
pub fn write_records<R: Record>(path: &Path, records: &[R]) -> Result<()> {
    write_records_over(path, records, true)
}

/// Like [`write_records`], but an existing file is an error unless `replaces` is set.
pub fn write_records_over<R: Record>(path: &Path, records: &[R], replaces: bool) -> Result<()> {
    let columns = columns(path, records)?;
    write(path, replaces, columns, records.iter().map(|record| Ok(record.to_row())))
}

/// Writes records of one layout with the score of each of them, in the column `score`. An existing file is an
/// error.
pub fn write_scored_records<R: Record>(path: &Path, records: &[R], scores: &[f64]) -> Result<()> {
    assert_eq!(records.len(), scores.len(), "each record has a score");
    let (layout, needed) = columns(path, records)?;
    let row = |(record, score): (&R, &f64)| {
        let mut row = record.to_row();
        row.insert("score".to_owned(), json!(score));
        Ok(row)
    };
    let rows = records.iter().zip(scores).map(row);
    write(path, false, (layout, Needed { has_scores: true, ..needed }), rows)
}

/// The one layout of records, and the fields that they need.
fn columns<R: Record>(path: &Path, records: &[R]) -> Result<(Layout, Needed)> {
    let layout = records.first().ok_or_else(|| Error::NoRows { path: path.to_owned() })?.layout();
    if let Some(row) = records.iter().position(|record| record.layout() != layout) {
        let found = records[row].layout().name();
        return Err(Error::MixedLayouts { path: path.to_owned(), row: row + 1, first: layout.name(), found });
    }
    Ok((layout, records.iter().map(Needed::of).fold(Needed::default(), Needed::and)))
}

/// Writes rows that have the columns of `layout`, with turns that have nothing but a role and a content.
pub fn write_rows(path: &Path, layout: Layout, rows: impl Iterator<Item = Row>) -> Result<()> {
    write(path, true, (layout, Needed::default()), rows.map(Ok))
}

/// The fields of turns that a file has only if a row needs them, and the column of tools.
const OPTIONAL: [&str; 5] = ["weight", "name", "tool_call_id", "tool_calls", "tools"];

/// Which of [`OPTIONAL`] the rows of a file need, and whether they have scores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Needed {
    fields: [bool; OPTIONAL.len()],
    has_scores: bool,
}

impl Needed {
    /// What a record needs.
    pub(crate) fn of<R: Record>(record: &R) -> Self {
        let (turns, rejected) = (record.turns(), record.rejected());
        let any = |has: fn(&Message) -> bool| turns.iter().copied().chain(rejected).any(has);
        let fields = [
            any(|turn| turn.ignore_loss),
            any(|turn| turn.name.is_some()),
            any(|turn| turn.tool_call_id.is_some()),
            any(Message::calls_tools),
            record.tools().is_some(),
        ];
        Self { fields, has_scores: false }
    }

    /// What two records need together.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            fields: std::array::from_fn(|index| self.fields[index] || other.fields[index]),
            has_scores: self.has_scores || other.has_scores,
        }
    }

    /// Whether a file that has these fields has the others, too.
    pub(crate) fn covers(self, others: Self) -> bool {
        self.and(others) == self
    }

    fn has(self, name: &str) -> bool {
        OPTIONAL.iter().zip(self.fields).any(|(optional, needed)| *optional == name && needed)
    }
}

/// Writes rows in the given layout, with the fields that they need. After an error of a row there is no file.
pub(crate) fn write(
    path: &Path,
    replaces: bool,
    (layout, needed): (Layout, Needed),
    rows: impl Iterator<Item = Result<Row>>,
) -> Result<()> {
    let (format, gzipped) = format_of(path)?;
    atomically(path, replaces, |file| match format {
        Format::Parquet => parquet(path, file, (layout, needed), rows),
        _ if gzipped => {
            let mut encoder = GzEncoder::new(file, Compression::default());
            text(path, format, &mut encoder, (layout, needed), rows)?;
            encoder.finish().map(drop).map_err(|source| Error::Write { path: path.to_owned(), source })
        }
        _ => text(path, format, file, (layout, needed), rows),
    })
}

/// Writes a file with `fill` under a temporary name and renames it when it is complete and on disk. Unless
/// `replaces` is set, an existing file of that name is an error, even if it appeared during the write. A
/// device or a pipe is written to directly.
pub(crate) fn atomically(
    path: &Path,
    replaces: bool,
    fill: impl FnOnce(&mut BufWriter<File>) -> Result<()>,
) -> Result<()> {
    let failed = |source| Error::Write { path: path.to_owned(), source };
    if fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir()) {
        let mut file = BufWriter::new(File::options().write(true).open(path).map_err(failed)?);
        fill(&mut file)?;
        return file.flush().map_err(failed);
    }

    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    fs::create_dir_all(folder).map_err(failed)?;
    // The temporary file gets a new, unused name, so no existing file is overwritten and no link is followed.
    // It is removed unless it is renamed.
    let temporary = tempfile::Builder::new()
        .prefix(&format!(".{name}.{}-", std::process::id()))
        .suffix(".tmp")
        .permissions(fs::Permissions::from_mode(0o666))
        .tempfile_in(folder)
        .map_err(failed)?;

    let mut file = BufWriter::new(temporary.as_file().try_clone().map_err(failed)?);
    fill(&mut file)?;
    file.flush().map_err(failed)?;
    file.get_ref().sync_all().map_err(failed)?;

    let named = if replaces { temporary.persist(path) } else { temporary.persist_noclobber(path) };
    named.map_err(|error| failed(error.error))?;

    // The rename is durable only after the folder is synced.
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)
}

/// Writes Parquet.
fn parquet(
    path: &Path,
    file: &mut BufWriter<File>,
    (layout, needed): (Layout, Needed),
    rows: impl Iterator<Item = Result<Row>>,
) -> Result<()> {
    let failed = |error| Error::Parquet { path: path.to_owned(), error };
    let schema = schema(layout, needed);
    let rows = rows.map(|row| row.map(|row| calls_as_text(row, needed)));
    let note = KeyValue::new("colossal-chat.layout".to_owned(), layout.name().to_owned());
    let properties = WriterProperties::builder()
        .set_compression(ParquetCompression::ZSTD(ZstdLevel::default()))
        .set_max_row_group_row_count(Some(ROW_GROUP))
        .set_key_value_metadata(Some(vec![note]))
        .build();
    let mut writer = ArrowWriter::try_new(file, schema.clone(), Some(properties)).map_err(failed)?;
    for_batches(rows, |rows| {
        let batch = batch(&schema, rows).map_err(|source| Error::Arrow { path: path.to_owned(), source })?;
        writer.write(&batch).map_err(failed)?;
        // The pages of a row group are in memory until it ends.
        if writer.memory_size() > ROW_GROUP_BYTES { writer.flush().map_err(failed) } else { Ok(()) }
    })?;
    writer.close().map(drop).map_err(failed)
}

/// Turns tools and the calls of turns into JSON text.
fn calls_as_text(mut row: Row, needed: Needed) -> Row {
    let to_text = |value: &mut Value| *value = Value::String(value.to_string());
    if needed.has("tools") {
        row.get_mut("tools").into_iter().for_each(to_text);
    }
    if needed.has("tool_calls") {
        let turns = row.values_mut().filter_map(Value::as_array_mut).flatten();
        turns.filter_map(|turn| turn.get_mut("tool_calls")).for_each(to_text);
    }
    row
}

/// Calls `write` on successive batches of rows.
fn for_batches(
    rows: impl Iterator<Item = Result<Row>>,
    mut write: impl FnMut(&[Row]) -> Result<()>,
) -> Result<()> {
    let mut batch = Vec::with_capacity(BATCH);
    let mut bytes = 0;
    for row in rows {
        let row = row?;
        bytes += row_bytes(&row);
        batch.push(row);
        if batch.len() == BATCH || bytes >= BATCH_BYTES {
            write(&batch)?;
            batch.clear();
            bytes = 0;
        }
    }
    if batch.is_empty() { Ok(()) } else { write(&batch) }
}

/// Converts rows to a record batch.
fn batch(schema: &SchemaRef, rows: &[Row]) -> std::result::Result<RecordBatch, ArrowError> {
    let mut decoder = ReaderBuilder::new(schema.clone()).with_batch_size(rows.len()).build_decoder()?;
    decoder.serialize(rows)?;
    Ok(decoder.flush()?.unwrap_or_else(|| RecordBatch::new_empty(schema.clone())))
}

/// Returns the Arrow schema of a layout.
fn schema(layout: Layout, needed: Needed) -> SchemaRef {
    let list = |item: DataType| DataType::List(Arc::new(Field::new("item", item, true)));
    let text = |name: &str| Field::new(name, DataType::Utf8, true);
    let mut parts = vec![text("role"), text("content")];
    parts.extend(needed.has("weight").then(|| Field::new("weight", DataType::Int64, true)));
    let texts = ["name", "tool_call_id", "tool_calls"].into_iter().filter(|name| needed.has(name));
    parts.extend(texts.map(text));
    let turns = list(DataType::Struct(Fields::from(parts)));
    let kind = |name: &str| match name {
        "input_ids" | "labels" | "chosen_input_ids" | "rejected_input_ids" => list(DataType::Int64),
        "prompt_length" => DataType::Int64,
        "margin" | "score" => DataType::Float64,
        "label" => DataType::Boolean,
        "text" | "answer" | "tools" => DataType::Utf8,
        _ => turns.clone(),
    };
    let names = written(layout, needed);
    Arc::new(Schema::new(names.map(|name| Field::new(*name, kind(name), true)).collect::<Vec<_>>()))
}

/// Returns the columns that are written, scores last. System prompts are written as turns, not as columns.
fn written(layout: Layout, needed: Needed) -> impl Iterator<Item = &'static &'static str> {
    let names = layout.required().iter().chain(layout.optional());
    let names = names.filter(move |name| match **name {
        "system" | "system_prompt" => false,
        "tools" => needed.has("tools"),
        _ => true,
    });
    names.chain(needed.has_scores.then_some(&"score"))
}

/// Writes JSONL, JSON or CSV.
fn text(
    path: &Path,
    format: Format,
    out: &mut impl Write,
    (layout, needed): (Layout, Needed),
    rows: impl Iterator<Item = Result<Row>>,
) -> Result<()> {
    let failed = |source| Error::Write { path: path.to_owned(), source };
    match format {
        Format::Csv => csv(path, out, (layout, needed), rows),
        Format::Json => {
            let mut before = "[\n";
            for row in rows {
                write!(out, "{before}{}", Value::Object(row?)).map_err(failed)?;
                before = ",\n";
            }
            out.write_all(b"\n]\n").map_err(failed)
        }
        _ => {
            for row in rows {
                writeln!(out, "{}", Value::Object(row?)).map_err(failed)?;
            }
            Ok(())
        }
    }
}

/// Writes CSV. Cells are texts, and lists are written as JSON.
fn csv(
    path: &Path,
    out: &mut impl Write,
    (layout, needed): (Layout, Needed),
    rows: impl Iterator<Item = Result<Row>>,
) -> Result<()> {
    let names: Vec<&str> = written(layout, needed).copied().collect();
    let failed = |source| Error::Arrow { path: path.to_owned(), source };
    let mut writer = arrow_csv::Writer::new(out);
    for_batches(rows, |rows| {
        let cell = |row: &Row, name: &str| match row.get(name)? {
            Value::String(text) => Some(text.clone()),
            Value::Null => None,
            other => Some(other.to_string()),
        };
        let column = |name: &str| -> ArrayRef {
            Arc::new(rows.iter().map(|row| cell(row, name)).collect::<StringArray>())
        };
        let columns = names.iter().map(|&name| (name, column(name), true));
        let batch = RecordBatch::try_from_iter_with_nullable(columns);
        writer.write(&batch.map_err(failed)?).map_err(failed)
    })
}
