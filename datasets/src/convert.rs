//! Converts files from any layout that training reads to the canonical columns. This is the work of
//! `data convert`.
//!
//! The user names the layout, or it is detected from the columns ([`Layout::guess`]). Columns, turn fields
//! and roles may have other names. Rows are read in the same way as for training. This module does not depend
//! on a tokenizer.

use std::path::Path;

use crate::error::{Error, Result};
use crate::record::{Demonstration, Layout, Notes, Preference, Prompt, Record, Unpaired};
use crate::table::{self, ReadOptions, TableReader, open_records, write_records_over};

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
    let mut rows = open_records::<R>(input, reading)?;
    let mut records = Vec::new();
    let mut read = 0;
    while let Some(row) = rows.next_row() {
        read += 1;
        records.extend(row?.1);
    }

    if read == 0 {
        return Err(Error::NoRows { path: input.to_owned() });
    }
    let Some(first) = records.first() else {
        let reasons = rows.notes().skipped.keys().cloned().collect::<Vec<_>>().join("; ");
        return Err(Error::NothingUsable { path: input.to_owned(), rows: read, reasons });
    };

    let (from, to, written) = (rows.layout(), first.layout(), records.len());
    write_records_over(output, &records, replaces)?;
    Ok(ConvertReport { from, to, read, written, notes: rows.notes().clone() })
}

#[cfg(test)]
mod tests;
