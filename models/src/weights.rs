//! The weights of a model folder: `model.safetensors`, or several files and the index
//! `model.safetensors.index.json` that maps tensors to files.
//!
//! Tensors are read one at a time, so loading needs memory for the model and one more copy of its largest
//! tensor. This module knows nothing about architectures.

mod content_hash;
mod names;
mod read;
mod write;

pub use read::WeightFolder;
pub(crate) use read::{TensorReader, copy_elements};
pub(crate) use write::{save, save_each};
