//! Errors of reading or writing a safetensors file.

use std::path::PathBuf;

use parallel_sys::ErrorClass;

/// An error of reading or writing a safetensors file.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The file is shorter than its header says.
    #[error("{} is truncated: {got} bytes of {expected}: download or copy it again", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// The size in bytes according to the header.
        expected: u64,
        /// The size in bytes on disk.
        got: u64,
    },
    /// The header is invalid.
    #[error("{} is not a safetensors file: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    /// The file has no tensor of this name.
    #[error("{}: the tensor `{name}` is missing", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// The requested name.
        name: String,
    },
    /// A tensor has another shape than requested.
    #[error("{}: `{name}` has shape {got:?}, and config.json makes it {expected:?}", path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The requested shape.
        expected: Vec<i64>,
        /// The shape in the file.
        got: Vec<i64>,
    },
    /// A tensor has a dtype that cannot be loaded.
    #[error("{}: `{name}` is stored as {dtype}: convert it to F32, BF16, F16, F64, U8 or I8", path.display())]
    Dtype {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The dtype as the file names it.
        dtype: String,
    },
    /// A tensor holds a number that it may not hold.
    #[error("{}: `{name}` is {value} at {index:?} and must be {wanted}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The index of the number in the full tensor, one per dimension.
        index: Vec<i64>,
        /// The number.
        value: f64,
        /// What is allowed.
        wanted: &'static str,
    },
    /// A tensor that is to be written holds NaN or infinity.
    #[error(
        "`{name}` is {value} at {index:?}, so nothing is saved: what is saved before is untouched; go on from there with \
         a lower [train] lr"
    )]
    NotFinite {
        /// The tensor.
        name: String,
        /// The index of the number in the full tensor, one per dimension.
        index: Vec<i64>,
        /// The number.
        value: f64,
    },
    /// The shards could not be gathered.
    #[error(transparent)]
    Parallel(#[from] crate::Error),
    /// libtorch failed.
    #[error(transparent)]
    Torch(#[from] tch::TchError),
}

impl Error {
    /// The class of this error. Most errors are about the file.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Parallel(error) => error.class(),
            Self::Torch(error) => ErrorClass::of_torch(error),
            Self::NotFinite { .. } => ErrorClass::Diverged,
            _ => ErrorClass::Data,
        }
    }
}
