//! Reads files of rows as records of one type. Training, `data check` and `data convert` all read files
//! through this module.

use std::collections::VecDeque;
use std::path::Path;

use serde_json::Value;

use super::limits::{row_bytes, value_bytes};
use super::position::Position;
use super::reader::TableReader;
use crate::error::{Error, Result, RowLocation};
use crate::record::notes::{Class, ReadRow, class, is_blank};
use crate::record::{Layout, Mapping, Notes, Parsed, Record, Row};

/// Options for reading rows, as set by the user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadOptions {
    /// The layout. It is detected from the columns if `None`.
    pub layout: Option<Layout>,
    /// Mapped names of columns, turn fields and roles.
    pub mapping: Mapping,
    /// Columns and turn fields to drop.
    pub drop: Vec<String>,
    /// Whether the record type was guessed from the columns. An unread answer column may then be the purpose
    /// of the rows, so [`Record::UNUSED_COLUMNS`] does not apply.
    pub layout_guessed: bool,
}

impl ReadOptions {
    /// Returns the canonical column names, without dropped columns.
    pub fn columns(&self, found: &[String]) -> Vec<String> {
        let kept = found.iter().filter(|name| !self.drop.contains(name));
        kept.map(|name| self.mapping.canonical_name(name)).collect()
    }

    /// Renames the columns of a row and removes the dropped ones.
    fn prepare(&self, mut row: Row) -> Row {
        if !self.drop.is_empty() {
            row.retain(|name, _| !self.drop.contains(name));
            let columns = row.iter_mut().filter(|(name, _)| self.mapping.canonical_name(name) != "tools");
            columns.for_each(|(_, value)| self.drop_from_turns(value));
        }
        if self.mapping == Mapping::default() { row } else { self.mapping.rename(row) }
    }

    /// Removes the dropped fields from the turns in a column. A turn that was nothing but calls of tools goes
    /// with its calls.
    fn drop_from_turns(&self, value: &mut Value) {
        if let Some(turns) = value.as_array_mut() {
            if self.drop.iter().any(|name| name == "tool_calls") {
                turns.retain(|turn| !self.only_calls(turn));
            }
            for turn in turns {
                self.drop_fields(turn);
            }
        } else {
            self.drop_fields(value);
        }
    }

    fn drop_fields(&self, turn: &mut Value) {
        if let Some(turn) = turn.as_object_mut() {
            turn.retain(|name, _| !self.drop.contains(name));
        }
    }

    /// Whether a turn calls tools and says nothing.
    fn only_calls(&self, turn: &Value) -> bool {
        turn.as_object().is_some_and(|turn| {
            let content = self.mapping.field("content", turn, &["content", "value"]);
            turn.get("tool_calls").is_some_and(|calls| !is_blank(calls)) && content.is_none_or(is_blank)
        })
    }
}

/// A reader of records with their locations, in file order. It continues after a row that cannot be used.
pub struct RecordReader<R> {
    rows: Box<dyn Iterator<Item = Result<(RowLocation, Row)>> + Send>,
    reading: ReadOptions,
    layout: Layout,
    notes: Notes,
    position: Position,
    /// The number of rows read, also of those that cannot be used.
    read: usize,
    /// The bytes of the records of the last row in memory.
    row_bytes: usize,
    /// The remaining records of a row that gives several.
    pending: VecDeque<(RowLocation, R)>,
}

impl<R: Record> RecordReader<R> {
    /// Returns the layout of the rows.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Returns the notes on the rows read so far.
    pub fn notes(&self) -> &Notes {
        &self.notes
    }

    /// Returns the read progress.
    pub fn position(&self) -> Position {
        self.position.clone()
    }

    /// Returns the number of rows read so far, also of those that cannot be used.
    pub fn num_rows_read(&self) -> usize {
        self.read
    }

    /// Returns about how many bytes the records of the last row take in memory.
    pub(crate) fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Reads the next row of the file, which gives any number of records.
    pub fn next_row(&mut self) -> Option<Result<(RowLocation, Vec<R>)>> {
        let row = self.rows.next()?;
        self.read += 1;
        Some(row.and_then(|(at, row)| {
            let records = self.records(&at, row)?;
            Ok((at, records))
        }))
    }

    /// Parses a row and updates the notes.
    fn records(&mut self, at: &RowLocation, row: Row) -> Result<Vec<R>> {
        let ReadOptions { mapping, layout_guessed, .. } = &self.reading;
        let row = self.reading.prepare(row);
        let row_bytes = row_bytes(&row);
        let needless = if *layout_guessed { &[] } else { R::UNUSED_COLUMNS };
        let looked = ReadRow { row: &row, at, layout: self.layout, mapping, needless, kind: R::KIND };
        self.notes.unread(&looked)?;
        match R::read(self.layout, &row, at, mapping)? {
            Parsed::Skipped(reason) => {
                self.notes.skip(reason, at);
                Ok(Vec::new())
            }
            Parsed::Rows(records) => {
                // No record is larger than its row, but for tools and calls that the row holds as text.
                let parsed: usize = records.iter().map(parsed_bytes).sum();
                self.row_bytes = row_bytes.saturating_mul(records.len()).saturating_add(parsed);
                // The pairs of a message tree share their turns, so their oddities would be counted several
                // times.
                if let [record] = &records[..] {
                    self.notes.note_oddities(record, at);
                }
                Ok(records)
            }
        }
    }
}

/// The bytes of the tools and the calls of a record in memory.
fn parsed_bytes<R: Record>(record: &R) -> usize {
    let calls = record.turns().into_iter().chain(record.rejected()).flat_map(|turn| &turn.tool_calls);
    record.tools().into_iter().chain(calls).map(value_bytes).sum()
}

impl<R: Record> Iterator for RecordReader<R> {
    type Item = Result<(RowLocation, R)>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.pending.is_empty() {
            match self.next_row()? {
                Ok((at, records)) => {
                    self.pending.extend(records.into_iter().map(|record| (at.clone(), record)));
                }
                Err(error) => return Some(Err(error)),
            }
        }
        self.pending.pop_front().map(Ok)
    }
}

/// Opens a file as records of one type.
pub fn open_records<R: Record>(path: &Path, reading: &ReadOptions) -> Result<RecordReader<R>> {
    let reader = TableReader::open(path)?;
    let columns = reading.columns(reader.columns());
    if columns.is_empty() {
        return Err(Error::NoRows { path: path.to_owned() });
    }
    let layout = match reading.layout {
        Some(layout) => R::require(layout, &columns, path)?,
        None => R::detect(&columns, path)?,
    };

    let needless = if reading.layout_guessed { &[] } else { R::UNUSED_COLUMNS };
    let read_as = |name: &str| reading.mapping.canonical_name(name);
    // From Parquet, read only the columns that are used, and those that must be refused if they are not
    // empty.
    let wanted = |name: &str| {
        let canonical = read_as(name);
        !reading.drop.iter().any(|dropped| dropped == name)
            && (layout.reads(&canonical) || class(&canonical, needless) == Class::Refused)
    };

    // Parquet columns that are not read never reach the row checks, so they are counted from the file
    // metadata.
    let mut notes = Notes::default();
    for (name, rows) in reader.filled() {
        if rows > 0 && !wanted(&name) && !reading.drop.contains(&name) {
            notes.column(&read_as(&name), rows, needless);
        }
    }

    let position = reader.position();
    let rows = Box::new(reader.rows(Some(&wanted))?);
    Ok(RecordReader {
        rows,
        reading: reading.clone(),
        layout,
        notes,
        position,
        read: 0,
        row_bytes: 0,
        pending: VecDeque::new(),
    })
}

/// Reads all records of a file.
pub fn read_records<R: Record>(path: &Path, layout: Option<Layout>) -> Result<Vec<R>> {
    let rows = open_records(path, &ReadOptions { layout, ..ReadOptions::default() })?;
    rows.map(|row| row.map(|(_, record)| record)).collect()
}
