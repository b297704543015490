//! What the targets share: files of rows, read as every kind of row that training takes, and which panics
//! count.
//!
//! A file may be refused; it must not cause a panic. A panic of another crate's decoder that becomes an error
//! is no finding.

use std::fs;
use std::path::Path;

use datasets::table::open_records;
use datasets::{Demonstration, Preference, Prompt, ReadOptions, Record, TableReader, Unpaired};

/// Lets a decoder of another crate panic where the program turns that into an error. Any other panic aborts.
pub fn watch_panics() {
    let abort = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !datasets::untrusted::is_decoding() {
            abort(panic);
        }
    }));
}

/// Writes `bytes` to a file called `name` and reads it in every way.
pub fn read(name: &str, bytes: &[u8]) {
    let folder = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
    let path = folder.path().join(name);
    fs::write(&path, bytes).expect("a file in memory");

    if let Ok(rows) = TableReader::open(&path).and_then(|reader| reader.rows(None)) {
        let _ = rows.count();
    }
    read_as::<Demonstration>(&path);
    read_as::<Preference>(&path);
    read_as::<Prompt>(&path);
    read_as::<Unpaired>(&path);
}

fn read_as<R: Record>(path: &Path) {
    let Ok(rows) = open_records::<R>(path, &ReadOptions::default()) else { return };
    // What was read can be written again.
    rows.filter_map(Result::ok).for_each(|(_, record)| drop(record.to_row()));
}
