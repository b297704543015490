//! Reading: every claim of a header is checked against the file before a byte of it is believed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tch::{Kind, Tensor};

use super::{DTYPES, INDEX, SINGLE};
use crate::Error;

/// The largest header that safetensors allows.
const MAX_HEADER: u64 = 100_000_000;

/// The tensors of a model folder.
#[derive(Debug)]
pub struct WeightFolder {
    path: PathBuf,
    files: Vec<SafetensorsFile>,
    used: BTreeSet<String>,
}

/// One file, its header read.
#[derive(Debug)]
struct SafetensorsFile {
    path: PathBuf,
    file: File,
    entries: BTreeMap<String, Entry>,
}

/// One tensor as the header describes it; offsets from the start of the file.
#[derive(Debug)]
struct Entry {
    dtype: String,
    shape: Vec<i64>,
    start: u64,
    end: u64,
}

impl WeightFolder {
    /// Opens the files of a folder and checks their headers and lengths.
    pub fn open(folder: &Path) -> Result<Self, Error> {
        let mut files = Vec::new();
        for name in file_names(folder)? {
            files.push(SafetensorsFile::open(folder.join(name))?);
        }
        Ok(Self { path: folder.to_owned(), files, used: BTreeSet::new() })
    }

    /// The tensor under the first of `names` that is there, in the kind of the file.
    pub fn tensor(&mut self, names: &[String], shape: &[i64]) -> Result<Tensor, Error> {
        for name in names {
            if let Some((file, entry)) =
                self.files.iter().find_map(|file| Some((file, file.entries.get(name)?)))
            {
                self.used.insert(name.clone());
                return file.read(name, entry, shape);
            }
        }
        Err(Error::MissingTensor { path: self.path.clone(), name: names[0].clone() })
    }

    /// Refuses tensors that were never asked for, unless `harmless` says that they do not matter.
    pub fn check_all_used(&self, harmless: impl Fn(&str) -> bool) -> Result<(), Error> {
        for file in &self.files {
            if let Some(name) = file.entries.keys().find(|name| !self.used.contains(*name) && !harmless(name))
            {
                return Err(Error::UnexpectedTensor { path: file.path.clone(), name: name.clone() });
            }
        }
        Ok(())
    }
}

fn file_names(folder: &Path) -> Result<Vec<String>, Error> {
    if folder.join(SINGLE).exists() {
        return Ok(vec![SINGLE.to_owned()]);
    }
    let path = folder.join(INDEX);
    if !path.exists() && folder.join("pytorch_model.bin").exists() {
        return Err(Error::Unsupported {
            path: folder.display().to_string(),
            key: "weights".to_owned(),
            value: "pytorch_model.bin".to_owned(),
            fix: "save the model as safetensors with transformers first".to_owned(),
        });
    }
    if !path.exists() {
        let source = std::io::Error::from(std::io::ErrorKind::NotFound);
        return Err(Error::Io { path: folder.join(SINGLE), source });
    }
    let text = std::fs::read_to_string(&path).map_err(|source| Error::Io { path: path.clone(), source })?;
    let index: Value = serde_json::from_str(&text)
        .map_err(|source| Error::Json { path: path.display().to_string(), source })?;
    let names: Option<BTreeSet<String>> = index["weight_map"]
        .as_object()
        .and_then(|map| map.values().map(|name| name.as_str().map(str::to_owned)).collect());
    let sound = |names: &BTreeSet<String>| names.iter().all(|name| !name.contains('/') && !name.is_empty());
    match names.filter(sound) {
        Some(names) => Ok(names.into_iter().collect()),
        None => Err(Error::Field {
            path: path.display().to_string(),
            key: "weight_map".to_owned(),
            expected: "an object from tensor names to file names in the same folder".to_owned(),
            got: "something else".to_owned(),
        }),
    }
}

impl SafetensorsFile {
    fn open(path: PathBuf) -> Result<Self, Error> {
        let io = |source| Error::Io { path: path.clone(), source };
        let malformed = |reason: String| Error::MalformedSafetensors { path: path.clone(), reason };
        let truncated = |expected, got| Error::TruncatedSafetensors { path: path.clone(), expected, got };
        let file = File::open(&path).map_err(io)?;
        let size = file.metadata().map_err(io)?.len();
        if size < 8 {
            return Err(truncated(8, size));
        }
        let mut length = [0; 8];
        file.read_exact_at(&mut length, 0).map_err(io)?;
        let length = u64::from_le_bytes(length);
        if length > MAX_HEADER {
            return Err(malformed(format!("its header would have {length} bytes")));
        }
        let data = 8 + length;
        if size < data {
            return Err(truncated(data, size));
        }
        let mut header = vec![0; length as usize];
        file.read_exact_at(&mut header, 8).map_err(io)?;
        let header: Map<String, Value> = serde_json::from_slice(&header)
            .map_err(|source| Error::Json { path: format!("the header of {}", path.display()), source })?;
        let mut entries = BTreeMap::new();
        for (name, value) in header.iter().filter(|(name, _)| *name != "__metadata__") {
            let entry = Entry::parse(value, data)
                .ok_or_else(|| malformed(format!("its entry `{name}` is {value}")))?;
            entries.insert(name.clone(), entry);
        }
        let end = entries.values().map(|entry| entry.end).max().unwrap_or(data);
        if size < end {
            return Err(truncated(end, size));
        }
        Ok(Self { path, file, entries })
    }

    fn read(&self, name: &str, entry: &Entry, shape: &[i64]) -> Result<Tensor, Error> {
        let name = || name.to_owned();
        if entry.shape != shape {
            let (expected, got) = (shape.to_vec(), entry.shape.clone());
            return Err(Error::Shape { path: self.path.clone(), name: name(), expected, got });
        }
        let Some(kind) = DTYPES.iter().find(|(dtype, _)| *dtype == entry.dtype).map(|&(_, kind)| kind) else {
            return Err(Error::Dtype { path: self.path.clone(), name: name(), dtype: entry.dtype.clone() });
        };
        let bytes = shape.iter().product::<i64>() as u64 * element_size(kind);
        if entry.end - entry.start != bytes {
            let reason =
                format!("`{}` has {} bytes and should have {bytes}", name(), entry.end - entry.start);
            return Err(Error::MalformedSafetensors { path: self.path.clone(), reason });
        }
        let mut buffer = vec![0; bytes as usize];
        self.file
            .read_exact_at(&mut buffer, entry.start)
            .map_err(|source| Error::Io { path: self.path.clone(), source })?;
        Ok(Tensor::f_from_data_size(&buffer, shape, kind)?)
    }
}

impl Entry {
    fn parse(value: &Value, data: u64) -> Option<Self> {
        let shape: Option<Vec<i64>> = value["shape"].as_array()?.iter().map(Value::as_i64).collect();
        let offset = |index: usize| value["data_offsets"][index].as_u64()?.checked_add(data);
        let (start, end) = (offset(0)?, offset(1)?);
        let shape = shape?;
        let sound = start <= end && shape.iter().all(|&size| size >= 0);
        sound.then_some(Self { dtype: value["dtype"].as_str()?.to_owned(), shape, start, end })
    }
}

fn element_size(kind: Kind) -> u64 {
    kind.elt_size_in_bytes() as u64
}
