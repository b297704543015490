//! What libtorch has and tch lacks, in two levels.
//!
//! | level | module | what a call looks like |
//! |---|---|---|
//! | raw | [`raw`] | the C functions of `cpp/shim.h`, in its order |
//! | safe | [`dispatch`], [`autograd`], [`c10d`], [`shared`], [`nccl`], [`stream`], [`runtime`], [`memory`] | tensors and `Result`s |
//!
//! This crate holds the only `unsafe` of the project. No C++ exception and no Rust panic crosses
//! the border: exceptions become [`Error::Torch`], panics in a callback become an error on the C++ side.

pub mod autograd;
pub mod c10d;
pub mod dispatch;
pub mod memory;
pub mod nccl;
pub mod process;
pub mod raw;
pub mod runtime;
pub mod shared;
pub mod stream;

/// What can go wrong below tch.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// libtorch threw, or a callback failed; the text is its own, cut at the C++ backtrace.
    #[error("{call}: {message}")]
    Torch {
        /// The shim call, or the name of the dispatched operation.
        call: String,
        /// What libtorch said.
        message: String,
    },
    /// A value at the store that no rank of the job has written.
    #[error("the value of `{key}` at the store was not written by a rank of this job, and is not used")]
    InvalidTag {
        /// Its key.
        key: String,
    },
    /// Shared memory that is not what a rank of this job offers.
    #[error(
        "the shared memory of this group at descriptor {descriptor} of process {process}: {problem}; it was \
         not mapped"
    )]
    Memory {
        /// The process that should have made it.
        process: u32,
        /// Its descriptor there.
        descriptor: u32,
        /// What is wrong.
        problem: String,
    },
    /// A collective over shared memory failed.
    #[error("{call} over shared memory: {problem}")]
    Shared {
        /// The collective, or the system's call.
        call: String,
        /// What went wrong.
        problem: String,
    },
    /// NCCL is not there, or refused a call.
    #[error("{call} over NCCL: {problem}")]
    Nccl {
        /// NCCL's call.
        call: String,
        /// What it said.
        problem: String,
    },
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
