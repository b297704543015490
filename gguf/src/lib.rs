//! The container of GGUF, the file format of llama.cpp: metadata by key, a table of tensors, and their bytes.
//!
//! ```text
//! "GGUF" | version 3 | tensors | keys | key, type, value ... | name, dims, type, offset ... | padding | data
//! ```
//! All numbers are little-endian. The data begins at a multiple of `general.alignment` (32 if it is absent),
//! and so does each tensor. The source is `docs/gguf.md` of the repository `ggml`, version 3 of the format.
//! Version 2 differs only in its number. This crate knows no tensors of libtorch, no architecture and no
//! tokenizer.

mod error;
mod format;
pub mod metadata;
pub mod q8_0;
pub mod read;
pub mod tensor;
pub mod value;
pub mod write;

pub use error::Error;
pub use metadata::Metadata;
pub use read::GgufFile;
pub use tensor::{TensorInfo, TensorType};
pub use value::{NumberType, Value};
pub use write::GgufWriter;
