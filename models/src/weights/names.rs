//! The names of weight files in a model folder.

/// The weights of a model that fits into one file.
pub(super) const SINGLE: &str = "model.safetensors";

/// The index of a model in several files. It maps tensor names to files.
pub(super) const INDEX: &str = "model.safetensors.index.json";
