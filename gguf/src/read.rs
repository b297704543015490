//! Reads a GGUF file. Nothing of it is trusted: every length is compared with what is left of the file before
//! memory is taken for it, and every tensor must lie inside the file, apart from the others.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::format::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAGIC, VERSION};
use crate::value::{LIST_ID, NumberType, TEXT_ID};
use crate::{Error, Metadata, TensorInfo, TensorType, Value};

/// The most bytes before the data. The largest vocabularies with their merges take 16 MiB.
const MAX_HEADER: u64 = 128 << 20;

/// The most dimensions of a tensor.
const MAX_DIMS: u32 = 4;

/// The largest alignment.
const MAX_ALIGNMENT: u64 = 1 << 20;

/// An open file with its metadata and its tensor table.
#[derive(Debug)]
pub struct GgufFile {
    path: PathBuf,
    file: File,
    metadata: Metadata,
    tensors: BTreeMap<String, Entry>,
}

/// A checked entry of the tensor table; the offset counts from the start of the file.
#[derive(Debug)]
struct Entry {
    info: TensorInfo,
    start: u64,
    bytes: u64,
}

impl GgufFile {
    /// Reads and checks everything before the data.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let io = |source| Error::Io { path: path.to_owned(), source };
        // Opening a pipe would block forever.
        if !std::fs::metadata(path).map_err(io)?.is_file() {
            let reason = "it is a folder, a pipe or a device".to_owned();
            return Err(Error::Malformed { path: path.to_owned(), reason });
        }
        let file = File::open(path).map_err(io)?;
        let size = file.metadata().map_err(io)?.len();
        let mut header = Header { input: BufReader::new(&file), position: 0, size, path };

        let counts = header.counts()?;
        let metadata = header.metadata(counts.keys)?;
        let unplaced = header.tensors(counts.tensors)?;
        let position = header.position;
        let tensors = place(unplaced, position, size, &metadata)?;
        Ok(Self { path: path.to_owned(), file, metadata, tensors })
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The metadata.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The tensors, in alphabetical order.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorInfo> {
        self.tensors.values().map(|entry| &entry.info)
    }

    /// The entry of a tensor, if the file has it.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name).map(|entry| &entry.info)
    }

    /// Fills `target` with bytes of a tensor, from the byte `offset` of the tensor on.
    pub fn read(&self, name: &str, offset: u64, target: &mut [u8]) -> Result<(), Error> {
        let missing = || Error::MissingTensor { path: self.path.clone(), name: name.to_owned() };
        let entry = self.tensors.get(name).ok_or_else(missing)?;
        let end = offset.checked_add(target.len() as u64);
        assert!(end.is_some_and(|end| end <= entry.bytes), "the bytes lie inside the tensor");
        let io = |source| Error::Io { path: self.path.clone(), source };
        self.file.read_exact_at(target, entry.start + offset).map_err(io)
    }
}

/// How many entries the two tables have.
struct Counts {
    tensors: u64,
    keys: u64,
}

/// An entry of the tensor table with its offset in the data.
type Unplaced = (TensorInfo, u64);

/// The part of a file before the data.
struct Header<'a> {
    input: BufReader<&'a File>,
    position: u64,
    size: u64,
    path: &'a Path,
}

impl Header<'_> {
    fn counts(&mut self) -> Result<Counts, Error> {
        if self.bytes("the first four bytes")? != MAGIC {
            return Err(self.malformed("it does not begin with GGUF".to_owned()));
        }
        let version = u32::from_le_bytes(self.bytes("the version")?);
        let refuse = |found, fix| Err(Error::Unsupported { path: self.path.to_owned(), found, fix });
        match version {
            2 | VERSION => {}
            other if other.swap_bytes() <= VERSION => {
                return refuse("big-endian byte order".to_owned(), "convert it on this machine");
            }
            other => {
                return refuse(format!("version {other}"), "convert it to version 3 with a newer llama.cpp");
            }
        }
        // The shortest entries have 24 and 13 bytes.
        let tensors = self.count("the number of tensors", 24)?;
        let keys = self.count("the number of keys", 13)?;
        Ok(Counts { tensors, keys })
    }

    fn metadata(&mut self, keys: u64) -> Result<Metadata, Error> {
        let mut metadata = Metadata::new(self.path);
        for index in 0..keys {
            let key = self.text(&format!("the key {index}"))?;
            let value = self.value(&key)?;
            if metadata.set(key.clone(), value).is_some() {
                return Err(self.malformed(format!("the key {key:?} is there twice")));
            }
        }
        Ok(metadata)
    }

    fn value(&mut self, key: &str) -> Result<Value, Error> {
        let what = format!("the value of {key:?}");
        match self.u32(&what)? {
            TEXT_ID => Ok(Value::Text(self.text(&what)?)),
            LIST_ID => self.list(&what),
            id => {
                let kind = self.number_type(id, &what)?;
                Ok(Value::Number(kind, self.numbers(kind, 1, &what)?))
            }
        }
    }

    fn list(&mut self, what: &str) -> Result<Value, Error> {
        let id = self.u32(what)?;
        match id {
            LIST_ID => Err(self.malformed(format!("{what} is a list of lists"))),
            TEXT_ID => {
                let count = self.count(what, 8)?;
                let texts = (0..count).map(|_| self.text(what)).collect::<Result<_, _>>()?;
                Ok(Value::Texts(texts))
            }
            id => {
                let kind = self.number_type(id, what)?;
                let count = self.count(what, kind.width() as u64)?;
                Ok(Value::Numbers(kind, self.numbers(kind, count, what)?))
            }
        }
    }

    fn number_type(&self, id: u32, what: &str) -> Result<NumberType, Error> {
        NumberType::from_id(id).ok_or_else(|| self.malformed(format!("{what} has the unknown type {id}")))
    }

    /// The bytes of numbers. `count` times the width has been compared with the file.
    fn numbers(&mut self, kind: NumberType, count: u64, what: &str) -> Result<Vec<u8>, Error> {
        let bytes = self.many(count * kind.width() as u64, what)?;
        match bytes.iter().find(|&&byte| kind == NumberType::Bool && byte > 1) {
            Some(byte) => Err(self.malformed(format!("{what} is {byte}, and a flag is 0 or 1"))),
            None => Ok(bytes),
        }
    }

    fn tensors(&mut self, count: u64) -> Result<Vec<Unplaced>, Error> {
        (0..count).map(|index| self.tensor(index)).collect()
    }

    fn tensor(&mut self, index: u64) -> Result<Unplaced, Error> {
        let name = self.text(&format!("the name of tensor {index}"))?;
        let what = format!("the entry of the tensor {name:?}");
        let dims = self.u32(&what)?;
        if !(1..=MAX_DIMS).contains(&dims) {
            return Err(self.malformed(format!("the tensor {name:?} has {dims} dimensions")));
        }
        let mut shape = (0..dims).map(|_| self.u64(&what)).collect::<Result<Vec<_>, _>>()?;
        shape.reverse();
        let id = self.u32(&what)?;
        let tensor_type = TensorType::from_id(id).map_err(|kind| Error::Unsupported {
            path: self.path.to_owned(),
            found: format!("the tensor {name:?} as {kind}"),
            fix: "take a file with F32, F16, BF16 or Q8_0",
        })?;
        let offset = self.u64(&what)?;
        Ok((TensorInfo { name, shape, tensor_type }, offset))
    }

    /// A number of entries that have at least `least` bytes each.
    fn count(&mut self, what: &str, least: u64) -> Result<u64, Error> {
        let count = self.u64(what)?;
        let needed = count.checked_mul(least);
        if needed.is_some_and(|needed| needed <= self.left()) {
            return Ok(count);
        }
        let of = if self.size > MAX_HEADER { " of the 128 MiB that may come before the data" } else { "" };
        Err(self.malformed(format!("{what} has {count} entries, and {} bytes are left{of}", self.left())))
    }

    fn text(&mut self, what: &str) -> Result<String, Error> {
        let length = self.count(what, 1)?;
        let bytes = self.many(length, what)?;
        String::from_utf8(bytes).map_err(|_| self.malformed(format!("{what} is no UTF-8")))
    }

    fn u32(&mut self, what: &str) -> Result<u32, Error> {
        Ok(u32::from_le_bytes(self.bytes(what)?))
    }

    fn u64(&mut self, what: &str) -> Result<u64, Error> {
        Ok(u64::from_le_bytes(self.bytes(what)?))
    }

    fn bytes<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Error> {
        let mut bytes = [0; N];
        self.fill(&mut bytes, what)?;
        Ok(bytes)
    }

    fn many(&mut self, count: u64, what: &str) -> Result<Vec<u8>, Error> {
        if count > self.left() {
            return Err(self.ends_in(what));
        }
        let mut bytes = vec![0; count as usize];
        self.fill(&mut bytes, what)?;
        Ok(bytes)
    }

    fn fill(&mut self, target: &mut [u8], what: &str) -> Result<(), Error> {
        if target.len() as u64 > self.left() {
            return Err(self.ends_in(what));
        }
        let io = |source| Error::Io { path: self.path.to_owned(), source };
        self.input.read_exact(target).map_err(io)?;
        self.position += target.len() as u64;
        Ok(())
    }

    /// The bytes that are left of what a header may have.
    fn left(&self) -> u64 {
        self.size.min(MAX_HEADER) - self.position
    }

    /// The error of a file, or of the most that is read before its data, that ends too early.
    fn ends_in(&self, what: &str) -> Error {
        self.malformed(if self.size > MAX_HEADER {
            format!("{what} goes beyond the 128 MiB that may come before the data")
        } else {
            format!("it ends in {what}")
        })
    }

    fn malformed(&self, reason: String) -> Error {
        Error::Malformed { path: self.path.to_owned(), reason }
    }
}

/// Makes the offsets of the tensors count from the start of the file, and checks that they lie apart from one
/// another inside it. `position` is the end of the tensor table.
fn place(
    unplaced: Vec<Unplaced>,
    position: u64,
    size: u64,
    metadata: &Metadata,
) -> Result<BTreeMap<String, Entry>, Error> {
    let malformed = |reason| Error::Malformed { path: metadata.origin().to_owned(), reason };
    let alignment = match metadata.optional_integer(ALIGNMENT_KEY)? {
        None => DEFAULT_ALIGNMENT,
        Some(given) => u64::try_from(given)
            .ok()
            .filter(|given| given.is_power_of_two() && *given <= MAX_ALIGNMENT)
            .ok_or_else(|| metadata.wrong(ALIGNMENT_KEY, "a power of two of at most 1048576"))?,
    };
    let data = position.next_multiple_of(alignment);

    let mut tensors = BTreeMap::new();
    for (info, offset) in unplaced {
        let name = info.name.clone();
        let Some(bytes) = info.num_bytes() else {
            let problem = format!("the tensor {name:?} cannot have the shape {:?}", info.shape);
            return Err(malformed(problem));
        };
        let start = data.checked_add(offset).filter(|start| start % alignment == 0);
        let range = start.and_then(|start| Some((start, start.checked_add(bytes)?)));
        let Some((start, end)) = range else {
            return Err(malformed(format!("the tensor {name:?} begins at the offset {offset}")));
        };
        if end > size {
            let problem = format!("the tensor {name:?} ends at byte {end}, and the file has {size}");
            return Err(malformed(problem));
        }
        if tensors.insert(name.clone(), Entry { info, start, bytes }).is_some() {
            return Err(malformed(format!("the tensor {name:?} is there twice")));
        }
    }

    let mut ranges: Vec<(u64, u64, &str)> =
        tensors.iter().map(|(name, entry)| (entry.start, entry.start + entry.bytes, name.as_str())).collect();
    ranges.sort_unstable();
    match ranges.windows(2).find(|pair| pair[1].0 < pair[0].1) {
        None => Ok(tensors),
        Some(pair) => Err(malformed(format!("the tensors {:?} and {:?} share bytes", pair[0].2, pair[1].2))),
    }
}

#[cfg(test)]
mod tests;
