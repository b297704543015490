//! A safetensors file: eight bytes of header length, a JSON header, the tensor data.
//!
//! Tensors have a [`Placement`](crate::Placement). A rank reads only the bytes of its own shard. Writing
//! gathers the shards of all ranks, one tensor at a time. A file therefore always contains full tensors, and
//! any mesh can read the files of any other mesh. A file is written under a temporary name, synced and
//! renamed, so a reader sees either the old file or the new one. No file with a number that is not finite is
//! written. This module knows no architecture.

mod element;
mod error;
mod read;
mod values;
mod write;

pub use error::Error;
pub use read::TensorFile;
pub use values::AllowedValues;
pub use write::{NamedTensor, TensorSpec, WriteRole, write, write_bytes, write_each, write_role};
