//! The weights of a model folder: `model.safetensors`, or several files and `model.safetensors.index.json` that says which tensor
//! is where.
//!
//! Tensors are read one at a time, so loading needs the model once and its largest tensor twice. Knows no architecture.

mod read;
mod write;

pub use read::WeightFolder;
pub(crate) use write::save;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
