//! One safetensors file: eight bytes of header length, a JSON header, the numbers.
//!
//! Tensors have a [`Placement`]: a rank reads the bytes of its own part and no others, and writing puts the parts of all ranks
//! together, one tensor at a time. So what is on the disk is always whole, and any mesh can read what another has written. A file is
//! written under a temporary name, synced and renamed: a reader sees the old file or the new one. Knows no architecture.

mod read;
mod write;

use std::path::PathBuf;

use tch::{Kind, Tensor};

use crate::Placement;

pub use read::TensorFile;
pub use write::{is_writing_replica, write, write_bytes};

/// A tensor that is to be written.
#[derive(Clone, Copy, Debug)]
pub struct NamedTensor<'a> {
    /// Its name in the file.
    pub name: &'a str,
    /// This rank's part.
    pub tensor: &'a Tensor,
    /// Where the others are.
    pub placement: &'a Placement,
}

/// The names that safetensors gives the kinds of numbers that we read.
const DTYPES: [(&str, Kind); 4] =
    [("F32", Kind::Float), ("BF16", Kind::BFloat16), ("F16", Kind::Half), ("F64", Kind::Double)];

/// What can go wrong with a file of tensors.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It is shorter than its header says.
    #[error("{} is truncated: {got} bytes of {expected}: download or copy it again", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// By its header.
        expected: u64,
        /// On disk.
        got: u64,
    },
    /// Its header makes no sense.
    #[error("{} is no safetensors file: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// It has no such tensor.
    #[error("{}: the tensor `{name}` is missing", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// The name asked for.
        name: String,
    },
    /// A tensor has another shape than was asked for.
    #[error("{}: `{name}` has shape {got:?}, and config.json makes it {expected:?}", path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// As asked for.
        expected: Vec<i64>,
        /// In the file.
        got: Vec<i64>,
    },
    /// A tensor is stored as numbers that cannot be loaded.
    #[error("{}: `{name}` is stored as {dtype}: convert it to F32, BF16, F16 or F64", path.display())]
    Dtype {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// As the file calls it.
        dtype: String,
    },
    /// Its parts could not be put together.
    #[error(transparent)]
    Parallel(#[from] crate::Error),
    /// libtorch failed.
    #[error(transparent)]
    Torch(#[from] tch::TchError),
}
