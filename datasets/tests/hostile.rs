//! Files that cannot be read, most of them found by the fuzz targets: each is refused by name, none ends the
//! program.

use std::fs;
use std::path::Path;

use datasets::table::{open_records, read_records, write_records};
use datasets::{ChatTemplate, Demonstration, Prompt, ReadOptions, TableReader, Tokenizer};

fn file(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hostile").join(name)
}

/// Its Arrow schema has a type that the reader does not implement.
#[test]
fn a_parquet_file_with_a_type_that_is_none_is_refused() {
    let rows = TableReader::open(&file("type-none.parquet")).and_then(|reader| reader.rows(None));
    let error = rows.err().unwrap().to_string();
    assert!(error.contains("type-none.parquet: this is not a Parquet file that can be read"), "{error}");
}

/// Its statistics count 7 nulls among the 5 margins.
#[test]
fn a_parquet_file_that_counts_more_nulls_than_rows_is_not_believed() {
    let rows = open_records::<Prompt>(&file("nulls.parquet"), &ReadOptions::default()).unwrap();
    let notes = rows.notes().lines("row", true).concat();
    assert!(notes.contains("chosen (5 rows), margin (5 rows), rejected (5 rows)"), "{notes}");
}

/// Written by pyarrow 26, which says of the group in the middle that its pages begin at 0.
#[test]
fn a_parquet_file_with_an_empty_row_group_is_read() {
    let rows = read_records::<Demonstration>(&file("empty-group.parquet"), None).unwrap();
    assert_eq!(rows, ["a", "b", "c"].map(|text| Demonstration::Text(text.to_owned())));
}

/// Written by pyarrow 26.
#[test]
fn a_parquet_compression_that_is_not_built_in_is_named() {
    for name in ["gzip", "brotli", "lz4"] {
        let error = TableReader::open(&file(&format!("{name}.parquet"))).err().unwrap().to_string();
        let words = format!("{name}.parquet: this Parquet file is compressed with {name}");
        assert!(error.contains(&words) && error.contains("write it again with zstd"), "{error}");
    }
}

/// Small footers in Thrift's compact protocol. A reader that makes room for the columns of the first asks for
/// 200 GB and ends the process; one that skips the lists of the second goes round 2^31 times for each of its
/// twenty.
#[test]
fn parquet_footers_that_announce_more_than_they_hold_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("announced.parquet");
    let most = [0xff, 0xff, 0xff, 0xff, 0x07];
    // Field 1 (i32) is 2; field 2 is a list of structures, its size as a varint.
    let columns = [[0x15, 0x04, 0x19, 0xfc].as_slice(), &most].concat();
    // Field 10, which Parquet does not have, is a list of 20 lists of truth values.
    let truths =
        [[0xa9, 0xf9, 20].to_vec(), [[0xf1].as_slice(), &most].concat().repeat(20), vec![0]].concat();
    // Field 1, which is a number, is a structure that holds the same.
    let hidden = [[0x1c].as_slice(), &truths].concat();
    for (footer, words) in [
        (columns, "its bytes end in the middle of a value"),
        (truths.clone(), "field 10 lists truth values"),
        (hidden, "field 1 is of another type than Parquet's"),
    ] {
        let length = (footer.len() as u32).to_le_bytes();
        fs::write(&path, [b"PAR1".as_slice(), &footer, &length, b"PAR1"].concat()).unwrap();
        let error = TableReader::open(&path).err().unwrap().to_string();
        assert!(error.contains("announced.parquet: ") && error.contains(words), "{error}");
    }

    // The same lists in the header of the first page, which begins behind "PAR1".
    let texts = vec![Demonstration::Text("a text of some length".repeat(20))];
    write_records(&path, &texts).unwrap();
    assert_eq!(read_records::<Demonstration>(&path, None).unwrap(), texts);
    let mut bytes = fs::read(&path).unwrap();
    bytes[4..][..truths.len()].copy_from_slice(&truths);
    fs::write(&path, bytes).unwrap();
    let error = TableReader::open(&path).err().unwrap().to_string();
    assert!(error.contains("the header of a page is damaged: field 10 lists truth values"), "{error}");
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
