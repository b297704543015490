//! Reads safetensors files. The header is untrusted: each of its entries is checked against the file before
//! it is used.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use tch::{Device, Kind, Tensor, no_grad};

use super::element::{DTYPES, index_of};
use super::{AllowedValues, Error};
use crate::Placement;

/// The largest header that safetensors allows.
const MAX_HEADER: u64 = 100_000_000;

/// The elements that are read at a time.
const PIECE_ELEMENTS: usize = 1 << 18;

/// An open file with its parsed header.
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    file: File,
    entries: BTreeMap<String, Entry>,
    metadata: BTreeMap<String, String>,
}

/// The checked header entry of a tensor; offsets count from the start of the file.
#[derive(Debug)]
struct Entry {
    dtype: String,
    shape: Vec<i64>,
    start: u64,
    end: u64,
}

impl TensorFile {
    /// Reads and checks the header.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let io = |source| Error::Io { path: path.to_owned(), source };
        let malformed = |reason: String| Error::Malformed { path: path.to_owned(), reason };
        let truncated = |expected, got| Error::Truncated { path: path.to_owned(), expected, got };
        // Opening a pipe would block forever.
        if !std::fs::metadata(path).map_err(io)?.is_file() {
            return Err(malformed("it is a folder, a pipe or a device".to_owned()));
        }

        let file = File::open(path).map_err(io)?;
        let size = file.metadata().map_err(io)?.len();
        if size < 8 {
            return Err(truncated(8, size));
        }

        let mut length = [0; 8];
        file.read_exact_at(&mut length, 0).map_err(io)?;
        let length = u64::from_le_bytes(length);
        if length > MAX_HEADER {
            let reason =
                format!("its header would have {length} bytes, and at most {MAX_HEADER} are allowed");
            return Err(malformed(reason));
        }

        let data = 8 + length;
        if size < data {
            return Err(truncated(data, size));
        }
        let mut header = vec![0; length as usize];
        file.read_exact_at(&mut header, 8).map_err(io)?;
        let Header { entries: raw_entries, metadata } = serde_json::from_slice(&header)
            .map_err(|source| malformed(format!("its header cannot be read: {source}")))?;
        drop(header);

        let mut entries = BTreeMap::new();
        for (name, raw_entry) in raw_entries {
            let entry = raw_entry.validate(data).map_err(|reason| malformed(format!("`{name}` {reason}")))?;
            entries.insert(name, entry);
        }
        check_overlaps(&entries).map_err(malformed)?;

        let end = entries.values().map(|entry| entry.end).max().unwrap_or(data);
        if size < end {
            return Err(truncated(end, size));
        }
        Ok(Self { path: path.to_owned(), file, entries, metadata })
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The text under a key of the file's metadata, if it has one.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata.get(key).map(String::as_str)
    }

    /// The names of the tensors, in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// The shape of a tensor, if the file has it.
    pub fn shape(&self, name: &str) -> Option<&[i64]> {
        self.entries.get(name).map(|entry| entry.shape.as_slice())
    }

    /// The dtype of a tensor, if the file has it.
    pub fn dtype(&self, name: &str) -> Option<&str> {
        self.entries.get(name).map(|entry| entry.dtype.as_str())
    }

    /// The kind of the tensor `name`, whose full shape is `shape`, when it is read.
    pub fn kind(&self, name: &str, shape: &[i64]) -> Result<Kind, Error> {
        Ok(self.entry(name, shape)?.1)
    }

    /// The bytes that a tensor takes in the file, if the file has it.
    pub fn num_bytes(&self, name: &str) -> Option<u64> {
        self.entries.get(name).map(|entry| entry.end - entry.start)
    }

    /// Reads bytes of the tensor `name` as they lie in the file, from its byte `start` on.
    pub fn read_bytes(&self, name: &str, start: u64, target: &mut [u8]) -> Result<(), Error> {
        let (path, missing) = (|| self.path.clone(), || name.to_owned());
        let entry = self.entries.get(name).ok_or_else(|| Error::Missing { path: path(), name: missing() })?;
        self.file
            .read_exact_at(target, entry.start + start)
            .map_err(|source| Error::Io { path: path(), source })
    }

    /// Reads this rank's shard of the tensor `name`, whose full shape is `shape`, in the dtype of the file.
    pub fn read(&self, name: &str, shape: &[i64], placement: &Placement) -> Result<Tensor, Error> {
        self.read_allowed(name, shape, placement, AllowedValues::Any)
    }

    /// Like [`read`](Self::read), of a tensor that holds only `allowed` values.
    pub fn read_allowed(
        &self,
        name: &str,
        shape: &[i64],
        placement: &Placement,
        allowed: AllowedValues,
    ) -> Result<Tensor, Error> {
        let (_, kind) = self.entry(name, shape)?;
        let tensor = Tensor::f_empty(placement.local_shape(shape), (kind, Device::Cpu))?;
        self.read_elements((name, shape), placement, 0..tensor.numel(), &tensor, allowed)?;
        Ok(tensor)
    }

    /// Reads some elements of this rank's shard of the tensor `name`, whose full shape is `shape`, into their
    /// places in `target`, a contiguous tensor of the shape of the shard in any dtype. Needs memory for a
    /// piece of the tensor only.
    pub fn read_into(
        &self,
        name: &str,
        shape: &[i64],
        placement: &Placement,
        elements: Range<usize>,
        target: &Tensor,
    ) -> Result<(), Error> {
        self.read_elements((name, shape), placement, elements, target, AllowedValues::Any)
    }

    fn read_elements(
        &self,
        (name, shape): (&str, &[i64]),
        placement: &Placement,
        elements: Range<usize>,
        target: &Tensor,
        allowed: AllowedValues,
    ) -> Result<(), Error> {
        let (entry, kind) = self.entry(name, shape)?;
        let size = kind.elt_size_in_bytes();
        assert_eq!(target.size(), placement.local_shape(shape), "the target has the shape of the shard");
        let target = target.detach().view([-1]);
        let numbers = placement.element_numbers(shape).skip(elements.start as u64);

        let (mut buffer, mut done) = (Vec::new(), 0);
        for first in elements.clone().step_by(PIECE_ELEMENTS) {
            let count = PIECE_ELEMENTS.min(elements.end - first);
            buffer.resize(count * size, 0);
            let mut rest = buffer.as_mut_slice();
            while !rest.is_empty() {
                let (number, run) = numbers.run_at(done);
                let count = run.min((rest.len() / size) as u64);
                let (read, remaining) = rest.split_at_mut(count as usize * size);
                self.read_numbers((name, entry, kind), number, read, allowed)?;
                (rest, done) = (remaining, done + count);
            }
            let piece = Tensor::f_from_data_size(&buffer, &[count as i64], kind)?;
            no_grad(|| target.narrow(0, first as i64, count as i64).f_copy_(&piece))?;
        }
        Ok(())
    }

    /// Reads numbers of a tensor, from the element with this `number` on.
    fn read_numbers(
        &self,
        (name, entry, kind): (&str, &Entry, Kind),
        number: u64,
        target: &mut [u8],
        allowed: AllowedValues,
    ) -> Result<(), Error> {
        let path = || self.path.clone();
        let start = entry.start + number * kind.elt_size_in_bytes() as u64;
        self.file.read_exact_at(target, start).map_err(|source| Error::Io { path: path(), source })?;
        let Some((found, value)) = allowed.first_refused(target, kind) else { return Ok(()) };
        let index = index_of(number + found as u64, &entry.shape);
        Err(Error::Value { path: path(), name: name.to_owned(), index, value, wanted: allowed.wanted() })
    }

    /// Reads all tensors and checks their values, of which `allowed` says by name which they may have.
    /// Tensors of a dtype that cannot be loaded are passed over.
    pub fn check_values(&self, allowed: impl Fn(&str) -> AllowedValues) -> Result<(), Error> {
        let mut buffer = Vec::new();
        for (name, entry) in &self.entries {
            let Ok((_, kind)) = self.entry(name, &entry.shape) else { continue };
            let size = kind.elt_size_in_bytes();
            let (numel, piece) = ((entry.end - entry.start) / size as u64, PIECE_ELEMENTS as u64);
            for number in (0..numel).step_by(piece as usize) {
                buffer.resize(piece.min(numel - number) as usize * size, 0);
                self.read_numbers((name, entry, kind), number, &mut buffer, allowed(name))?;
            }
        }
        Ok(())
    }

    /// The entry of the tensor `name`, whose shape has to be `shape`, and its dtype.
    fn entry(&self, name: &str, shape: &[i64]) -> Result<(&Entry, Kind), Error> {
        let (path, name) = (|| self.path.clone(), || name.to_owned());
        let entry = self.entries.get(&name()).ok_or_else(|| Error::Missing { path: path(), name: name() })?;
        if entry.shape != shape {
            let (expected, got) = (shape.to_vec(), entry.shape.clone());
            return Err(Error::Shape { path: path(), name: name(), expected, got });
        }
        let Some(kind) = DTYPES.iter().find(|(dtype, _)| *dtype == entry.dtype).map(|&(_, kind)| kind) else {
            return Err(Error::Dtype { path: path(), name: name(), dtype: entry.dtype.clone() });
        };
        Ok((entry, kind))
    }
}

/// The header: the entries by tensor name, and the texts about the file. It is parsed entry by entry, because
/// it may have 100 MB.
struct Header {
    entries: BTreeMap<String, RawEntry>,
    metadata: BTreeMap<String, String>,
}

/// The unchecked header entry of a tensor.
#[derive(Deserialize)]
struct RawEntry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Header;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let (mut entries, mut metadata) = (BTreeMap::new(), BTreeMap::new());
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                metadata = texts(map.next_value()?);
                continue;
            }
            let entry = map.next_value::<RawEntry>()?;
            if entries.contains_key(&name) {
                return Err(A::Error::custom(format!("`{name}` is there twice")));
            }
            entries.insert(name, entry);
        }
        Ok(Header { entries, metadata })
    }
}

/// The texts among the metadata of a file. safetensors allows no others, and what is not known is passed
/// over.
fn texts(metadata: Value) -> BTreeMap<String, String> {
    let Value::Object(metadata) = metadata else { return BTreeMap::new() };
    metadata.into_iter().filter_map(|(key, value)| Some((key, value.as_str()?.to_owned()))).collect()
}

impl RawEntry {
    /// Checks the entry and makes its offsets count from the start of the file. `data` is the offset of the
    /// tensor data.
    fn validate(self, data: u64) -> Result<Entry, String> {
        let [from, to] = self.data_offsets;
        let bounds = from.checked_add(data).zip(to.checked_add(data)).filter(|(start, end)| start <= end);
        let Some((start, end)) = bounds else { return Err(format!("has the bytes {from} to {to}")) };
        let shape: Option<Vec<i64>> = self.shape.iter().map(|&size| i64::try_from(size).ok()).collect();
        let count = self.shape.iter().try_fold(1u64, |product, &size| product.checked_mul(size));
        let known = DTYPES.iter().find(|(dtype, _)| *dtype == self.dtype);
        let width = known.map(|(_, kind)| kind.elt_size_in_bytes() as u64);
        let bytes = count.map(|count| count.checked_mul(width.unwrap_or(1)));
        let (Some(shape), Some(Some(bytes))) = (shape, bytes) else {
            return Err(format!("has the shape {:?}, which is too large for any memory", self.shape));
        };
        if width.is_some() && bytes != end - start {
            return Err(format!("has {} bytes and should have {bytes}", end - start));
        }
        Ok(Entry { dtype: self.dtype, shape, start, end })
    }
}

/// Returns an error if two tensors share bytes.
fn check_overlaps(entries: &BTreeMap<String, Entry>) -> Result<(), String> {
    let mut sorted: Vec<(&String, &Entry)> =
        entries.iter().filter(|(_, entry)| entry.start < entry.end).collect();
    sorted.sort_by_key(|(_, entry)| entry.start);
    match sorted.windows(2).find(|pair| pair[0].1.end > pair[1].1.start) {
        None => Ok(()),
        Some(pair) => Err(format!("`{}` and `{}` share bytes", pair[0].0, pair[1].0)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::comm::ProcessGroup;
    use crate::parameter::ShardSpec;

    fn opened(bytes: &[u8]) -> Result<TensorFile, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        std::fs::write(&path, bytes).unwrap();
        TensorFile::open(&path).map_err(|error| error.to_string())
    }

    fn with_header(header: &str) -> Result<TensorFile, String> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(&[0; 16]);
        opened(&bytes)
    }

    #[test]
    fn an_inconsistent_header_is_refused() {
        let entry = |shape: &str, offsets: &str| {
            format!(r#""a": {{"dtype": "F32", "shape": {shape}, "data_offsets": {offsets}}}"#)
        };
        assert_eq!(
            with_header(&format!("{{{}}}", entry("[2, 2]", "[0, 16]"))).unwrap().shape("a"),
            Some(&[2, 2][..])
        );
        for (header, words) in [
            (entry("[2, 2]", "[0, 20]"), "`a` has 20 bytes and should have 16"),
            (entry("[4294967296, 4294967296, 2]", "[0, 16]"), "too large for any memory"),
            (entry("[9223372036854775807]", "[0, 16]"), "too large for any memory"),
            (entry("[-1]", "[0, 16]"), "cannot be read"),
            (entry("[1.5]", "[0, 16]"), "cannot be read"),
            (entry("[0]", "[16, 0]"), "`a` has the bytes 16 to 0"),
            (entry("[4]", "[18446744073709551600, 18446744073709551615]"), "`a` has the bytes"),
            (entry("[8]", "[0, 32]"), "is truncated"),
            (format!("{}, {}", entry("[1]", "[0, 4]"), entry("[1]", "[4, 8]")), "`a` is there twice"),
            (
                format!("{}, {}", entry("[2]", "[0, 8]"), entry("[2]", "[4, 12]").replace("\"a\"", "\"b\"")),
                "`a` and `b` share bytes",
            ),
            (r#""a": 7"#.to_owned(), "cannot be read"),
            (r#""a": {"dtype": "F32", "shape": [1]}"#.to_owned(), "missing field `data_offsets`"),
        ] {
            let error = with_header(&format!("{{{header}}}")).unwrap_err();
            assert!(error.contains(words), "{header}: {error}");
        }
        assert!(with_header("[1]").unwrap_err().contains("an object of tensors"));
    }

    #[test]
    fn metadata_are_texts_and_all_else_is_passed_over() {
        let file = with_header(r#"{"__metadata__": {"format": "pt", "b": 7, "c": ["d"]}}"#).unwrap();
        assert_eq!(file.metadata("format"), Some("pt"));
        assert_eq!([file.metadata("b"), file.metadata("c"), file.metadata("e")], [None; 3]);
        assert_eq!(with_header(r#"{"__metadata__": [1]}"#).unwrap().metadata("format"), None);
    }

    #[test]
    fn a_header_without_end_and_a_folder_are_refused() {
        for length in [u64::MAX, i64::MAX as u64, 1 << 40] {
            let mut bytes = length.to_le_bytes().to_vec();
            bytes.extend_from_slice(b"{}");
            assert!(opened(&bytes).unwrap_err().contains("at most 100000000 are allowed"));
        }
        let folder = tempfile::tempdir().unwrap();
        assert!(TensorFile::open(folder.path()).unwrap_err().to_string().contains("it is a folder"));
    }

    /// Codes are read as they are, from any shard, and a length that does not fit the shape is refused.
    #[test]
    fn codes_of_eight_bits_are_read_as_they_are() {
        let entry = |dtype: &str, shape: &str| {
            format!(r#"{{"a": {{"dtype": "{dtype}", "shape": {shape}, "data_offsets": [0, 6]}}}}"#)
        };
        for (dtype, kind, last) in [("U8", Kind::Uint8, 255), ("I8", Kind::Int8, -1)] {
            assert!(
                with_header(&entry(dtype, "[2, 4]")).unwrap_err().contains("has 6 bytes and should have 8")
            );
            let header = entry(dtype, "[2, 3]");
            let bytes =
                [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0, 1, 2, 3, 4, 255]].concat();
            let file = opened(&bytes).unwrap();
            let expected = Tensor::from_slice(&[0i64, 1, 2, 3, 4, last]).view([2, 3]).to_kind(kind);
            assert_eq!(file.read("a", &[2, 3], &Placement::Replicate).unwrap(), expected);
            let last_column = Placement::Shard {
                spec: ShardSpec::even(1, 3, 3),
                group: Arc::new(ProcessGroup::fake("test", vec![0, 1, 2], 2)),
            };
            assert_eq!(file.read("a", &[2, 3], &last_column).unwrap(), expected.narrow(1, 2, 1));
        }
    }

    #[test]
    fn the_text_of_the_metadata_does_not_matter() {
        let text = "x".repeat(1 << 20);
        let header = format!(r#"{{"__metadata__": {{"format": "pt", "long": "{text}", "deep": [[{{}}]]}}}}"#);
        assert_eq!(with_header(&header).unwrap().names().count(), 0);
    }

    #[test]
    fn a_value_that_is_not_allowed_is_named_by_its_index_in_the_full_tensor() {
        // Rows 0.. of a [3, 4]; element 6, row 1 and column 2, is below zero, and 11 is NaN.
        let values: Vec<u8> = (0..12)
            .flat_map(|number| {
                if number == 6 {
                    -6.0
                } else if number == 11 {
                    f32::NAN
                } else {
                    number as f32
                }
                .to_le_bytes()
            })
            .collect();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        let header = br#"{"a": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]}}"#;
        std::fs::write(&path, [&(header.len() as u64).to_le_bytes()[..], header, &values].concat()).unwrap();
        let file = TensorFile::open(&path).unwrap();
        let last_columns = Placement::Shard {
            spec: ShardSpec::even(1, 4, 2),
            group: Arc::new(ProcessGroup::fake("test", vec![0, 1], 1)),
        };
        let read = |placement, allowed| file.read_allowed("a", &[3, 4], placement, allowed).map(drop);
        for (found, index, value, wanted) in [
            (
                read(&last_columns, AllowedValues::NotNegative),
                "[1, 2]",
                "-6",
                "must be finite and not below zero",
            ),
            (read(&last_columns, AllowedValues::Finite), "[2, 3]", "NaN", "must be finite"),
            (file.check_values(|_| AllowedValues::Finite), "[2, 3]", "NaN", "must be finite"),
        ] {
            let error = found.unwrap_err().to_string();
            assert!(
                error.contains(&format!("x.safetensors: `a` is {value} at {index} and {wanted}")),
                "{error}"
            );
        }
        file.check_values(|_| AllowedValues::Any).unwrap();
        read(&last_columns, AllowedValues::Any).unwrap();
    }

    /// A matrix of 700 x 1000 does not fit into one piece, a row of it does, and 3 does not divide its rows.
    #[test]
    fn pieces_land_where_the_whole_tensor_has_them() {
        let [rows, columns] = [700i64, 1000];
        assert!(
            (rows * columns) as usize > PIECE_ELEMENTS && !PIECE_ELEMENTS.is_multiple_of(columns as usize)
        );
        let whole = Tensor::arange(rows * columns, (Kind::Float, Device::Cpu)).view([rows, columns]);
        let header = format!(
            r#"{{"a": {{"dtype": "F32", "shape": [700, 1000], "data_offsets": [0, {}]}}}}"#,
            4 * rows * columns
        );
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        let values: Vec<f32> = Vec::try_from(whole.view([-1])).unwrap();
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        let file = opened(&bytes).unwrap();

        let shard = |spec: ShardSpec| {
            let group = ProcessGroup::fake("test", vec![0, 1, 2], 1);
            Placement::Shard { spec, group: Arc::new(group) }
        };
        for placement in [
            Placement::Replicate,
            shard(ShardSpec::even(0, rows, 3)),
            shard(ShardSpec::even(1, columns, 3)),
            shard(ShardSpec::concat(&[ShardSpec::even(1, 600, 3), ShardSpec::even(1, 400, 3)])),
        ] {
            let expected = placement.shard(&whole);
            assert_eq!(file.read("a", &[rows, columns], &placement).unwrap(), expected);
            let [height, width] = expected.size()[..] else { panic!("a matrix") };
            for kind in [Kind::Float, Kind::BFloat16] {
                let numel = expected.numel();
                for elements in [0..numel, numel / 3..numel - 7, 5..5] {
                    let target = Tensor::full([height, width], -1, (kind, Device::Cpu));
                    file.read_into("a", &[rows, columns], &placement, elements.clone(), &target).unwrap();
                    let unread = Tensor::full([height, width], -1, (kind, Device::Cpu));
                    let narrow = |x: &Tensor| {
                        let (start, length) = (elements.start as i64, elements.len() as i64);
                        x.view([-1]).narrow(0, start, length)
                    };
                    narrow(&unread).copy_(&narrow(&expected));
                    assert_eq!(target, unread, "{placement:?} {elements:?}");
                }
            }
        }
    }
}
