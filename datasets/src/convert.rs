//! Converts files from any layout that training reads to the canonical columns. This is the work of
//! `data convert`.
//!
//! The user names the layout, or it is detected from the columns ([`Layout::guess`]). Columns, turn fields
//! and roles may have other names. Rows are read in the same way as for training. This module does not depend
//! on a tokenizer.

use std::path::Path;

use crate::error::{Error, Result};
use crate::record::{Demonstration, Layout, Notes, Preference, Prompt, Record, Unpaired};
use crate::table::{self, Needed, ReadOptions, TableReader, open_records};

/// A summary of a conversion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvertReport {
    /// The layout of the input.
    pub from: Layout,
    /// The layout of the output.
    pub to: Layout,
    /// Rows read.
    pub read: usize,
    /// Rows written. A message tree gives several.
    pub written: usize,
    /// The unread fields, skipped rows and odd conversations of the input.
    pub notes: Notes,
}

/// Converts the file `input` to `output`. The file names decide the formats. An existing `output` is an error
/// unless `replaces` is set.
pub fn convert(input: &Path, output: &Path, reading: &ReadOptions, replaces: bool) -> Result<ConvertReport> {
    table::refuse_stream(input)?;
    let columns = reading.columns(TableReader::open(input)?.columns());
    let layout = match reading.layout {
        Some(layout) => layout,
        None if columns.is_empty() => return Err(Error::NoRows { path: input.to_owned() }),
        None => Layout::guess(&columns, input)?,
    };

    let layout_guessed = reading.layout.is_none();
    let reading = ReadOptions { layout: Some(layout), layout_guessed, ..reading.clone() };
    let run = match layout {
        layout if Demonstration::LAYOUTS.contains(&layout) => run::<Demonstration>,
        layout if Preference::LAYOUTS.contains(&layout) => run::<Preference>,
        layout if Prompt::LAYOUTS.contains(&layout) => run::<Prompt>,
        _ => run::<Unpaired>,
    };
    run(input, output, &reading, replaces)
}

fn run<R: Record>(
    input: &Path,
    output: &Path,
    reading: &ReadOptions,
    replaces: bool,
) -> Result<ConvertReport> {
    // Rows are written while they are read, so which fields they need is known at the end. Few files have
    // weights, tools or calls, so they are the ones that are read again.
    if table::refuse_stream(output).is_ok() {
        let report = write_as::<R>(input, output, reading, (replaces, Needed::default()))?;
        if let Some(report) = report {
            return Ok(report);
        }
    }
    let needed = needed::<R>(input, reading)?;
    let report = write_as::<R>(input, output, reading, (replaces, needed))?;
    Ok(report.expect("a file with the fields that its rows need is written"))
}

/// Which optional fields the records of a file need.
fn needed<R: Record>(input: &Path, reading: &ReadOptions) -> Result<Needed> {
    let mut records = open_records::<R>(input, reading)?;
    records.try_fold(Needed::default(), |needed, row| Ok(needed.and(Needed::of(&row?.1))))
}

/// Writes the records of a file. `None` if one needs a field that is not among `fields`.
fn write_as<R: Record>(
    input: &Path,
    output: &Path,
    reading: &ReadOptions,
    (replaces, fields): (bool, Needed),
) -> Result<Option<ConvertReport>> {
    let mut rows = open_records::<R>(input, reading)?;
    let Some((_, first)) = rows.next().transpose()? else {
        let reasons = rows.notes().skipped.keys().cloned().collect::<Vec<_>>().join("; ");
        return Err(match rows.num_rows_read() {
            0 => Error::NoRows { path: input.to_owned() },
            rows => Error::NothingUsable { path: input.to_owned(), rows, reasons },
        });
    };

    let (from, to) = (rows.layout(), first.layout());
    let (mut written, mut needs_more) = (0, false);
    let rest = rows.by_ref().map(|row| row.map(|(_, record)| record));
    let records = std::iter::once(Ok(first)).chain(rest).map(|record| {
        let record = record?;
        written += 1;
        needs_more = !fields.covers(Needed::of(&record));
        if needs_more || record.layout() != to {
            let (path, found) = (output.to_owned(), record.layout().name());
            return Err(Error::MixedLayouts { path, row: written, first: to.name(), found });
        }
        Ok(record.to_row())
    });
    match table::write(output, replaces, (to, fields), records) {
        Err(_) if needs_more => return Ok(None),
        outcome => outcome?,
    }
    Ok(Some(ConvertReport { from, to, read: rows.num_rows_read(), written, notes: rows.notes().clone() }))
}

#[cfg(test)]
mod tests;
