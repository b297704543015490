//! Reading: every claim of a header is checked against the file before a byte of it is believed.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tch::Tensor;

use super::{DTYPES, Error};
use crate::Placement;

/// The largest header that safetensors allows.
const MAX_HEADER: u64 = 100_000_000;

/// One file, its header read.
#[derive(Debug)]
pub struct TensorFile {
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

impl TensorFile {
    /// Reads and checks the header.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let io = |source| Error::Io { path: path.to_owned(), source };
        let malformed = |reason: String| Error::Malformed { path: path.to_owned(), reason };
        let truncated = |expected, got| Error::Truncated { path: path.to_owned(), expected, got };
        let file = File::open(path).map_err(io)?;
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
            .map_err(|source| malformed(format!("its header is no JSON: {source}")))?;
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
        Ok(Self { path: path.to_owned(), file, entries })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The names of its tensors, in alphabetic order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// The shape of a tensor, if there is such a one.
    pub fn shape(&self, name: &str) -> Option<&[i64]> {
        self.entries.get(name).map(|entry| entry.shape.as_slice())
    }

    /// The stored type of a tensor, if there is such a one.
    pub fn dtype(&self, name: &str) -> Option<&str> {
        self.entries.get(name).map(|entry| entry.dtype.as_str())
    }

    /// This rank's part of the tensor `name`, whose whole has the shape `shape`; in the kind of the file.
    pub fn read(&self, name: &str, shape: &[i64], placement: &Placement) -> Result<Tensor, Error> {
        let (path, name) = (|| self.path.clone(), || name.to_owned());
        let entry = self.entries.get(&name()).ok_or_else(|| Error::Missing { path: path(), name: name() })?;
        if entry.shape != shape {
            let (expected, got) = (shape.to_vec(), entry.shape.clone());
            return Err(Error::Shape { path: path(), name: name(), expected, got });
        }
        let Some(kind) = DTYPES.iter().find(|(dtype, _)| *dtype == entry.dtype).map(|&(_, kind)| kind) else {
            return Err(Error::Dtype { path: path(), name: name(), dtype: entry.dtype.clone() });
        };
        let size = kind.elt_size_in_bytes() as u64;
        let bytes = shape.iter().product::<i64>() as u64 * size;
        if entry.end - entry.start != bytes {
            let reason =
                format!("`{}` has {} bytes and should have {bytes}", name(), entry.end - entry.start);
            return Err(Error::Malformed { path: path(), reason });
        }
        let part = placement.part_shape(shape);
        let mut buffer = vec![0; part.iter().product::<i64>() as usize * size as usize];
        let mut rest = buffer.as_mut_slice();
        for (start, length) in pieces(shape, placement) {
            let (piece, behind) = rest.split_at_mut((length * size) as usize);
            self.file
                .read_exact_at(piece, entry.start + start * size)
                .map_err(|source| Error::Io { path: path(), source })?;
            rest = behind;
        }
        Ok(Tensor::f_from_data_size(&buffer, &part, kind)?)
    }
}

/// The first number and the count of each piece of a tensor that this rank holds, in the order of its part.
fn pieces(shape: &[i64], placement: &Placement) -> Vec<(u64, u64)> {
    let Placement::Shard { cut, group } = placement else {
        return vec![(0, shape.iter().product::<i64>() as u64)];
    };
    let (before, behind) = shape.split_at(cut.dim());
    let outer: i64 = before.iter().product();
    let inner: i64 = behind[1..].iter().product();
    let runs = |band: i64| {
        cut.runs(group.rank()).iter().map(move |run| {
            let start = (band * behind[0] + run.start) * inner;
            (start as u64, ((run.end - run.start) * inner) as u64)
        })
    };
    (0..outer).flat_map(runs).collect()
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::comm::Group;
    use crate::parameter::Cut;

    #[test]
    fn a_part_of_the_columns_is_read_row_by_row() {
        let group = || Arc::new(Group::alone("test", 0));
        let cut = Cut::joined(&[Cut::even(1, 2, 1), Cut::even(1, 3, 1)]);
        let placement = Placement::Shard { cut, group: group() };
        assert_eq!(pieces(&[2, 5], &placement), [(0, 2), (2, 3), (5, 2), (7, 3)]);
        let rows = Placement::Shard { cut: Cut::even(0, 2, 1), group: group() };
        assert_eq!(pieces(&[2, 5], &rows), [(0, 10)]);
        assert_eq!(pieces(&[2, 5], &Placement::Replicate), [(0, 10)]);
    }
}
