//! Bindings to parts of libtorch that tch lacks, and to NCCL and the system, in two levels.
//!
//! | level | module | interface |
//! |---|---|---|
//! | raw | [`raw`] | the C functions of `cpp/shim.h`, in the same order |
//! | safe: libtorch | [`dispatch`], [`operations`], [`autograd`], [`runtime`], [`stream`] | tensors |
//! | safe: ranks | [`c10d`], [`shared`], [`nccl`] | tensors |
//! | safe: memory | [`memory`], [`heap`], [`allocator`], [`arena`], [`disk`] | bytes and tensors |
//! | safe: memory of devices | [`device_allocator`], [`driver`] | bytes and events |
//! | safe: kernels | [`adamw`], [`softmax`], [`kernels`] | tensors and slices |
//! | safe: system | [`regular_file`], [`syscall_filter`] | files and processes |
//!
//! Every function of the safe modules that can fail returns a `Result`.
//!
//! `openmp` is the runtime under libtorch's parallel loops. In Rust only the [`kernels`] call it.
//!
//! This crate contains the only `unsafe` code of the project. No C++ exception and no Rust panic crosses the
//! language boundary: an exception becomes [`Error::Torch`], a panic in a callback becomes an error on the
//! C++ side.

pub mod adamw;
pub mod allocator;
pub mod arena;
pub mod autograd;
mod bfloat16;
pub mod c10d;
pub mod device_allocator;
pub mod disk;
pub mod dispatch;
pub mod driver;
pub mod elements;
pub mod error_class;
mod exponential;

pub mod heap;
mod instruction_set;
pub mod kernels;
pub mod memory;
pub mod nccl;
mod openmp;
pub mod operations;
pub mod process;
pub mod raw;
pub mod regular_file;
pub mod runtime;
pub mod shared;
pub mod softmax;
pub mod stream;
pub mod syscall_filter;

use std::path::PathBuf;

pub use error_class::ErrorClass;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// libtorch threw an exception, or a callback failed. The message is the original text without the C++
    /// backtrace.
    #[error("{call}: {message}")]
    Torch {
        /// The shim call, or the name of the dispatched operation.
        call: String,
        /// The message.
        message: String,
    },
    /// A value at the store was not written by a rank of the job.
    #[error("the value of `{key}` at the store was not written by a rank of this job, and is not used")]
    InvalidTag {
        /// The key of the value.
        key: String,
    },
    /// The memory file at an address is not the one that rank 0 of this group makes.
    #[error(
        "the shared memory of this group at descriptor {descriptor} of process {process}: {problem}; it was \
         not mapped"
    )]
    Memory {
        /// The process that should have made it.
        process: u32,
        /// The file descriptor in that process.
        descriptor: u32,
        /// The problem.
        problem: String,
    },
    /// A collective over shared memory failed.
    #[error("{call} over shared memory: {problem}")]
    Shared {
        /// The collective or the system call.
        call: String,
        /// The cause.
        problem: String,
    },
    /// An argument of AdamW does not fit.
    #[error("AdamW on the host: `{argument}` {problem}")]
    Adamw {
        /// The tensor or the setting.
        argument: &'static str,
        /// The problem.
        problem: String,
    },
    /// NCCL is missing or returned an error.
    #[error("{call} over NCCL: {problem}")]
    Nccl {
        /// The NCCL function.
        call: String,
        /// The error message.
        problem: String,
    },
    /// An arena has no place for a request, or the system refused it memory.
    #[error("{call} of an arena of {arena} bytes: {problem}")]
    Arena {
        /// The function.
        call: &'static str,
        /// The length of the arena in bytes.
        arena: usize,
        /// The problem, with the values.
        problem: String,
    },
    /// A device has no memory left.
    #[error(
        "{device:?} has no {} MiB left: other processes use it, or [gemini] device_memory is more than it has",
        wanted.div_ceil(1 << 20)
    )]
    DeviceMemory {
        /// The device.
        device: tch::Device,
        /// The bytes that were asked for.
        wanted: usize,
    },
    /// The driver of a device is missing or refused a call.
    #[error("{call} of the driver of the device: {problem}")]
    Driver {
        /// The function.
        call: String,
        /// The reason.
        problem: String,
    },
    /// A file for direct I/O cannot be opened, or has no place for a request.
    #[error("{call} of {file}: {problem}")]
    Disk {
        /// The function.
        call: &'static str,
        /// The path of the file, or the folder of a scratch file.
        file: String,
        /// The problem, with the values.
        problem: String,
    },
    /// A scratch file does not fit on its disk.
    #[error(
        "a scratch file of {wanted} bytes does not fit in {folder}, where {free} bytes are free: {problem}"
    )]
    DiskSpace {
        /// The folder.
        folder: PathBuf,
        /// The size of the file in bytes.
        wanted: u64,
        /// The bytes that were free before the attempt.
        free: u64,
        /// The reason of the system.
        problem: String,
    },
    /// A request to a disk failed.
    #[error("{operation} of {length} bytes at offset {offset} of {file}: {problem}")]
    DiskTransfer {
        /// `read` or `write`.
        operation: &'static str,
        /// The path of the file, or the folder of a scratch file.
        file: String,
        /// The offset in the file, in bytes.
        offset: u64,
        /// The length in bytes.
        length: usize,
        /// The reason of the system.
        problem: String,
    },
    /// The mechanism of a disk queue failed.
    #[error("{call} of the disk queue over {mechanism}: {problem}")]
    DiskQueue {
        /// The function.
        call: &'static str,
        /// `io_uring` or `threads`.
        mechanism: &'static str,
        /// The problem.
        problem: String,
    },
}

impl Error {
    /// The class of this error.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Torch { message, .. } => ErrorClass::of_torch(message),
            Self::DiskSpace { .. }
            | Self::DiskTransfer { .. }
            | Self::Disk { .. }
            | Self::DiskQueue { .. }
            | Self::DeviceMemory { .. }
            | Self::Driver { .. }
            | Self::Arena { .. } => ErrorClass::Device,
            Self::Adamw { .. }
            | Self::InvalidTag { .. }
            | Self::Memory { .. }
            | Self::Shared { .. }
            | Self::Nccl { .. } => ErrorClass::Failed,
        }
    }
}

/// Turns the shim's return code into a `Result` that names the call.
fn check(call: &str, code: libc::c_int) -> Result<(), Error> {
    if code == 0 {
        return Ok(());
    }
    // SAFETY: the shim returns a NUL-terminated string that lives until the next failing call on this thread.
    let text = unsafe { std::ffi::CStr::from_ptr(raw::shim_last_error()) }.to_string_lossy().into_owned();
    let message = text.split("\nException raised from").next().unwrap_or_default().to_owned();
    Err(Error::Torch { call: call.to_owned(), message })
}
