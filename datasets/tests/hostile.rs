//! Files that the fuzz targets found: each made a decoder panic, and is refused by name now.

use std::fs;
use std::path::Path;

use datasets::{ChatTemplate, TableReader, Tokenizer};

fn file(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hostile").join(name)
}

/// Its Arrow schema has a type that the reader does not implement.
#[test]
fn a_parquet_file_that_makes_its_reader_panic_is_refused() {
    let rows = TableReader::open(&file("type-none.parquet")).and_then(|reader| reader.rows(None));
    let error = rows.err().unwrap().to_string();
    assert!(error.contains("type-none.parquet") && error.contains("its decoder gives up"), "{error}");
}

/// One of its decoders is broken JSON, which its reader takes for a bug of its own.
#[test]
fn a_tokenizer_file_that_makes_its_reader_panic_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(file("decoder.json"), folder.path().join("tokenizer.json")).unwrap();
    let error = Tokenizer::from_folder(folder.path()).unwrap_err().to_string();
    assert!(error.contains("tokenizer.json") && error.contains("its decoder gives up"), "{error}");
}

#[test]
fn a_template_tag_that_closes_itself_is_refused() {
    for source in ["{%}", "{%}break -%}{% generation %}x{% endgeneration %}", "{%", "{%%}"] {
        let error = ChatTemplate::new("fuzz", source).unwrap_err().to_string();
        assert!(error.contains("does not compile"), "{source}: {error}");
    }
}
