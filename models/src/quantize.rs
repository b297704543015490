//! Frozen weights of linear layers in four or eight bits a number (QLoRA: Dettmers et al. 2023, arXiv
//! 2305.14314).
//!
//! ```text
//!   kind     the two kinds of codes
//!   nf4      four bits: quantiles of the normal distribution, with a scale for 64 numbers
//!   scales   those scales in eight bits
//!   int8     eight bits, with a scale for each row
//!   codes    the codes of a whole matrix, and their formats
//!   layout   the bytes in which a rank holds its part of a matrix
//!   matrix   the weight of one linear layer on one rank
//!   stored   the codes in the files of a model folder, as bitsandbytes saves them
//!   layers   which layers of a model are held in codes
//!   folder   such folders are written, and made numbers again
//! ```
//! Codes, scales and the numbers they stand for are those of bitsandbytes, bit for bit. Embeddings, norms,
//! biases, heads and the routers of experts stay as they are.

pub mod codes;
pub mod folder;
pub mod int8;
pub mod kind;
pub mod layers;
pub mod layout;
pub mod matrix;
pub mod nf4;
pub mod scales;
pub(crate) mod settings;
pub mod stored;

pub use codes::{CodeFormat, MatrixCodes};
pub use kind::Quantization;
pub use layers::QuantizedLayers;
pub use layout::CodesLayout;
pub use matrix::{QuantizedMatrix, QuantizedWeights};
