//! The format of a file, as its name says it.

use std::path::Path;

use crate::error::{Error, Result};

/// The file extensions that are read and written.
pub const EXTENSIONS: &str = ".parquet .jsonl .json .csv (the last three also with .gz)";

/// A format of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Parquet,
    Jsonl,
    Json,
    Csv,
}

/// Returns the format of a file and whether it is gzipped, from its name.
pub(super) fn format_of(path: &Path) -> Result<(Format, bool)> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let (name, gzipped) = name.strip_suffix(".gz").map_or((name.as_str(), false), |name| (name, true));
    let format = match name.rsplit_once('.').map(|(_, extension)| extension) {
        Some("parquet") if !gzipped => Format::Parquet,
        Some("jsonl" | "ndjson") => Format::Jsonl,
        Some("json") => Format::Json,
        Some("csv") => Format::Csv,
        Some(extension)
            if unpacked_by(extension).is_some() && format_of(&path.with_extension("")).is_ok() =>
        {
            let program = unpacked_by(extension).unwrap_or_default();
            return Err(Error::Compressed { path: path.to_owned(), program });
        }
        _ => return Err(Error::UnsupportedExtension { path: path.to_owned(), wanted: EXTENSIONS }),
    };
    Ok((format, gzipped))
}

/// Returns the program that unpacks a compression that this crate does not read.
fn unpacked_by(extension: &str) -> Option<&'static str> {
    Some(match extension {
        "zst" => "zstd -d",
        "bz2" => "bzip2 -d",
        "xz" => "xz -d",
        "lz4" => "lz4 -d",
        "zip" => "unzip",
        _ => return None,
    })
}
