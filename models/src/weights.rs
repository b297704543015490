//! safetensors files: eight bytes of header length, a JSON header, the numbers.
//!
//! A folder holds `model.safetensors`, or several files and `model.safetensors.index.json` that says which tensor is where.
//! Tensors are read one at a time, so loading needs the model once and its largest tensor twice. Files are written under
//! a temporary name, synced and renamed: a reader sees the old file or the new one. Knows no architecture.

mod read;
mod write;

use tch::Kind;

pub use read::WeightFolder;
pub(crate) use write::{save, write_file};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The names that safetensors gives the kinds of numbers that we read.
const DTYPES: [(&str, Kind); 4] =
    [("F32", Kind::Float), ("BF16", Kind::BFloat16), ("F16", Kind::Half), ("F64", Kind::Double)];
