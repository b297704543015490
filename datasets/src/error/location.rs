//! Where in a file an error is.

use std::fmt;
use std::path::{Path, PathBuf};

/// The location of a row in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowLocation {
    /// The file.
    pub path: PathBuf,
    /// The row number, from 1. For JSONL it is the line number. 0 if the location is not in a file of rows.
    pub row: usize,
}

impl RowLocation {
    /// Returns the word for a row of this file: "line" for JSONL, whose rows have line numbers, "row"
    /// otherwise.
    pub fn unit(path: &Path) -> &'static str {
        if has_extension(path, &[".jsonl", ".ndjson"]) { "line" } else { "row" }
    }

    /// Whether the file is CSV, where every cell is a text.
    pub(crate) fn is_csv(&self) -> bool {
        has_extension(&self.path, &[".csv"])
    }
}

/// Whether the file name has one of the extensions, ignoring a final `.gz`.
fn has_extension(path: &Path, extensions: &[&str]) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    extensions.iter().any(|extension| name.ends_with(extension))
}

impl fmt::Display for RowLocation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match self.row {
            0 => write!(formatter, "{path}"),
            row => write!(formatter, "{path} {} {row}", Self::unit(&self.path)),
        }
    }
}
