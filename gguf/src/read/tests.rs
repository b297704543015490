//! Files that are read back, cut off, and wrong in one place.

use super::*;
use crate::{GgufWriter, TensorType};

fn info(name: &str, shape: &[u64], tensor_type: TensorType) -> TensorInfo {
    TensorInfo { name: name.to_owned(), shape: shape.to_vec(), tensor_type }
}

/// A file with every kind of value and three tensors.
fn whole() -> Vec<u8> {
    let mut metadata = Metadata::new(Path::new("new"));
    metadata.set("general.architecture", Value::text("llama"));
    metadata.set("a.flag", Value::bool(true));
    metadata.set("a.long", Value::Number(NumberType::I64, (-5i64).to_le_bytes().to_vec()));
    metadata.set("a.number", Value::f32(1e-5));
    metadata.set("a.numbers", Value::i32s(&[1, -2]));
    metadata.set("a.texts", Value::Texts(vec!["x".to_owned(), String::new(), "é".to_owned()]));
    let tensors = [
        info("first", &[3], TensorType::F32),
        info("second", &[2, 32], TensorType::Q8_0),
        info("third", &[2, 3], TensorType::BF16),
    ];
    let mut writer = GgufWriter::new(Vec::new(), &metadata, &tensors).unwrap();
    for (first, count) in [(1u8, 12), (2, 68), (3, 12)] {
        // In two pieces.
        writer.append(&[first]).unwrap();
        writer.append(&vec![first; count - 1]).unwrap();
    }
    writer.finish().unwrap()
}

fn open(bytes: &[u8]) -> Result<GgufFile, Error> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.gguf");
    std::fs::write(&path, bytes).unwrap();
    GgufFile::open(&path)
}

#[test]
fn what_is_written_is_read() {
    let file = open(&whole()).unwrap();
    let metadata = file.metadata();
    assert_eq!(metadata.text("general.architecture").unwrap(), "llama");
    assert_eq!(metadata.optional_bool("a.flag").unwrap(), Some(true));
    assert_eq!(metadata.integer("a.long").unwrap(), -5);
    assert_eq!(metadata.number("a.number").unwrap(), 1e-5);
    assert_eq!(metadata.optional_integers("a.numbers").unwrap(), Some(vec![1, -2]));
    assert_eq!(metadata.texts("a.texts").unwrap(), ["x", "", "é"]);
    assert_eq!(file.tensor("second").unwrap().shape, [2, 32]);
    for (name, value, count) in [("first", 1u8, 12), ("second", 2, 68), ("third", 3, 12)] {
        let mut bytes = vec![0; count];
        file.read(name, 0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|&byte| byte == value), "{name} {bytes:?}");
    }
}

#[test]
fn missing_and_wrong_keys_are_named() {
    let file = open(&whole()).unwrap();
    let error = file.metadata().text("a.none").unwrap_err().to_string();
    assert!(error.contains("x.gguf") && error.contains("`a.none`"), "{error}");
    let error = file.metadata().integer("a.texts").unwrap_err().to_string();
    assert!(error.contains("`a.texts` must be a whole number, got a list of 3 texts"), "{error}");
}

/// The file may end anywhere but in the padding behind the last tensor.
#[test]
fn a_file_that_is_cut_off_is_refused_at_every_byte() {
    let bytes = whole();
    let last = bytes.len() - 20;
    for length in 0..last {
        let error = open(&bytes[..length]).unwrap_err();
        assert!(matches!(error, Error::Malformed { .. }), "{length}: {error}");
    }
    open(&bytes[..last]).unwrap();
}

#[test]
fn a_header_of_more_than_128_mib_is_refused_with_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.gguf");
    // No tensor and one key, whose value is a text of 129 MiB.
    let mut bytes = [MAGIC.as_slice(), &VERSION.to_le_bytes()].concat();
    for number in [0, 1, 1] {
        bytes.extend(u64::to_le_bytes(number));
    }
    bytes.push(b'a');
    bytes.extend(TEXT_ID.to_le_bytes());
    bytes.extend(u64::to_le_bytes(129 << 20));
    std::fs::write(&path, &bytes).unwrap();
    File::options().write(true).open(&path).unwrap().set_len(bytes.len() as u64 + (129 << 20)).unwrap();
    let error = GgufFile::open(&path).unwrap_err().to_string();
    assert!(error.contains("of the 128 MiB that may come before the data"), "{error}");
}

/// The count of tensors and of keys, and the first length of a text.
#[test]
fn lengths_that_no_file_has_are_refused_before_memory_is_taken() {
    for position in [8, 16, 24] {
        for value in [u64::MAX, u64::MAX / 13, 1 << 40, i64::MAX as u64] {
            let mut bytes = whole();
            bytes[position..position + 8].copy_from_slice(&value.to_le_bytes());
            let error = open(&bytes).unwrap_err().to_string();
            assert!(error.contains("entries, and"), "{error}");
        }
    }
}

/// Finds the entry of a tensor by its name, behind which are the dimensions, their sizes, type and offset.
fn entry(bytes: &[u8], name: &str) -> usize {
    bytes.windows(name.len()).rposition(|window| window == name.as_bytes()).unwrap() + name.len()
}

#[test]
fn tensors_that_cannot_be_are_refused_by_name() {
    let replaced = |name: &str, at: usize, value: &[u8]| {
        let mut bytes = whole();
        let start = entry(&bytes, name) + at;
        bytes[start..start + value.len()].copy_from_slice(value);
        open(&bytes).unwrap_err().to_string()
    };
    let far = (u64::MAX - 31).to_le_bytes();
    for (error, words) in [
        (replaced("first", 0, &9u32.to_le_bytes()), "\"first\" has 9 dimensions"),
        (replaced("first", 4, &0u64.to_le_bytes()), "\"first\" cannot have the shape [0]"),
        (replaced("first", 4, &u64::MAX.to_le_bytes()), "\"first\" cannot have the shape"),
        (replaced("first", 4, &(1u64 << 40).to_le_bytes()), "\"first\" ends at byte"),
        (replaced("second", 4, &31u64.to_le_bytes()), "\"second\" cannot have the shape [2, 31]"),
        (replaced("second", 4, &(1u64 << 62).to_le_bytes()), "\"second\" cannot have the shape"),
        (replaced("first", 12, &12u32.to_le_bytes()), "\"first\" as Q4_K is not supported"),
        (replaced("first", 12, &77u32.to_le_bytes()), "\"first\" as the type 77 is not supported"),
        (replaced("first", 16, &far), "\"first\" begins at the offset"),
        (replaced("first", 16, &1u64.to_le_bytes()), "\"first\" begins at the offset 1"),
        (replaced("first", 16, &32u64.to_le_bytes()), "share bytes"),
    ] {
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn other_files_are_refused_by_what_they_are() {
    let with = |at: usize, value: &[u8]| {
        let mut bytes = whole();
        bytes[at..at + value.len()].copy_from_slice(value);
        open(&bytes).unwrap_err().to_string()
    };
    assert!(with(0, b"GGML").contains("does not begin with GGUF"));
    assert!(with(4, &1u32.to_le_bytes()).contains("version 1 is not supported"));
    assert!(with(4, &3u32.to_be_bytes()).contains("big-endian"));
    let mut bytes = whole();
    let flag = entry(&bytes, "a.flag") + 4;
    bytes[flag] = 2;
    assert!(open(&bytes).unwrap_err().to_string().contains("\"a.flag\" is 2, and a flag is 0 or 1"));
    bytes[flag - 4] = 99;
    assert!(open(&bytes).unwrap_err().to_string().contains("\"a.flag\" has the unknown type 99"));
    assert!(GgufFile::open(Path::new("/dev/null")).unwrap_err().to_string().contains("a device"));
}

#[test]
fn a_key_or_a_tensor_that_is_there_twice_is_refused() {
    let mut bytes = whole();
    let long = entry(&bytes, "a.long");
    bytes[long - 6..long].copy_from_slice(b"a.flag");
    assert!(open(&bytes).unwrap_err().to_string().contains("\"a.flag\" is there twice"));
    let mut bytes = whole();
    let third = entry(&bytes, "third");
    bytes[third - 5..third].copy_from_slice(b"first");
    assert!(open(&bytes).unwrap_err().to_string().contains("\"first\" is there twice"));
}

#[test]
fn a_writer_counts_the_bytes_of_its_tensors() {
    let metadata = Metadata::new(Path::new("new"));
    let tensors = [info("t", &[2], TensorType::F32)];
    let writer = || GgufWriter::new(Vec::new(), &metadata, &tensors).unwrap();
    assert!(writer().append(&[0; 9]).is_err() && writer().finish().is_err());
    assert!(GgufWriter::new(Vec::new(), &metadata, &[info("t", &[3], TensorType::Q8_0)]).is_err());
}
