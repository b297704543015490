//! The class of an error, by which the program chooses its exit code.
//!
//! libtorch passes on a message alone, also where the memory manager refuses a tensor, and an operation of
//! tch panics with that message. Whether it speaks of memory can therefore only be read from its text, which
//! the functions here do. Every other error is classified by its type.

use std::fmt::Display;
use std::io::ErrorKind;

/// The beginning of the message of libtorch if the memory manager has no memory for a tensor. The reason
/// follows.
pub const NO_MEMORY_FOR_TENSOR: &str = "no memory for a tensor: ";

/// What kind of failure an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// The run failed: a full disk, a lost rank, the network.
    Failed,
    /// The command line or the configuration is wrong, or a path is already in use.
    Usage,
    /// A data file, a model, a tokenizer or a checkpoint cannot be read or used.
    Data,
    /// A device or memory.
    Device,
    /// The loss or the gradient diverged.
    Diverged,
    /// A signal stopped the program.
    Interrupted,
    /// The class of the error's source, whose type the crate of the error does not know.
    OfSource,
}

impl ErrorClass {
    /// The class for a file or folder that cannot be created or written: a bad path is a usage error, any
    /// other I/O error is a failed run.
    pub fn of_io(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::AlreadyExists
            | ErrorKind::InvalidFilename
            | ErrorKind::IsADirectory
            | ErrorKind::NotADirectory
            | ErrorKind::NotFound
            | ErrorKind::PermissionDenied
            | ErrorKind::ReadOnlyFilesystem => Self::Usage,
            _ => Self::Failed,
        }
    }

    /// The class for a message of libtorch, or for a panic that quotes one.
    pub fn of_torch(message: &(impl Display + ?Sized)) -> Self {
        let message = message.to_string();
        let is_memory = is_out_of_memory(&message) || refusal(&message).is_some();
        if is_memory { Self::Device } else { Self::Failed }
    }
}

/// The reason of the memory manager inside a message of libtorch, or inside the panic of a tensor operation,
/// which quotes that message as `Torch("...")`.
pub fn refusal(message: &str) -> Option<String> {
    let (_, reason) = message.split_once(NO_MEMORY_FOR_TENSOR)?;
    Some(reason.lines().next()?.trim_end_matches("\")").replace("\\\"", "\""))
}

/// Whether a message of libtorch reports that memory ran out.
pub fn is_out_of_memory(message: &str) -> bool {
    // `_STATUS_ALLOC_FAILED` ends what the libraries of CUDA say, such as CUBLAS_STATUS_ALLOC_FAILED.
    [
        "can't allocate memory",
        "out of memory",
        "not enough memory",
        "_STATUS_ALLOC_FAILED",
        "bad_alloc",
        "Cannot allocate memory",
    ]
    .iter()
    .any(|words| message.contains(words))
}
