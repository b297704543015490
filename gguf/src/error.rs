//! Errors of reading and writing a GGUF file.

use std::path::PathBuf;

/// An error of reading or writing a GGUF file.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The file is no GGUF file, or a damaged one.
    #[error("{} is not a whole GGUF file: {reason}: download or convert it again", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The field, and what is wrong with it.
        reason: String,
    },
    /// The file is a GGUF file of a kind that is not read here.
    #[error("{}: {found} is not supported: {fix}", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The field and its value.
        found: String,
        /// What to do.
        fix: &'static str,
    },
    /// A key that is needed is absent.
    #[error("{}: the metadata has no `{key}`: convert the model again with a newer llama.cpp", path.display())]
    MissingKey {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
    },
    /// The value of a key has the wrong type, or is not a valid one.
    #[error("{}: the metadata `{key}` must be {expected}, got {got}", path.display())]
    WrongValue {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// A description of valid values.
        expected: &'static str,
        /// The actual value.
        got: String,
    },
    /// The file has no tensor of this name.
    #[error("{}: the tensor `{name}` is missing", path.display())]
    MissingTensor {
        /// The file.
        path: PathBuf,
        /// The requested name.
        name: String,
    },
}
