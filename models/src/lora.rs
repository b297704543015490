//! Low-rank adapters: the weights of a model stay frozen, and each adapted layer learns a product of two
//! small matrices on top of its weight.
//!
//! ```text
//!   y = x W^T + s (x A^T) B^T + b          A [r, in], B [out, r]
//!   s = alpha / r, or alpha / sqrt(r)      LoRA, rsLoRA
//!   y = (m / |W + s B A|) (..) + b         DoRA: one magnitude m for each output
//! ```
//! (LoRA: Hu et al. 2021, arXiv 2106.09685; rsLoRA: Kalajdzievski 2023, arXiv 2312.03732; DoRA: Liu et al.
//! 2024, arXiv 2402.09353, with the norm held constant in the backward pass, section 4.3.) Adapters are
//! applied and not merged, in training and in generation: both compute the same numbers, and several models
//! share one copy of the frozen weights. An adapter is fp32 whatever the dtype of the weights, and so are
//! rows of single tokens that are trained beside it. Biases that are trained, and modules that are trained
//! whole, are copies of their own in that dtype.
//!
//! ```text
//!   config              the settings: PEFT's adapter_config.json
//!   plan                which layers are adapted, and how
//!   module_names        how names of modules are matched
//!   init                the values that an adapter begins with
//!   inputs, eva         values that are made of the inputs of the layers
//!   linear              the adapter of one linear layer
//!   token_rows          rows of single tokens in place of those of an embedding or a head
//!   embedding_adapter   rows, or a product of two matrices, beside the table of the embedding
//!   head_adapter        rows, or a product of two matrices, beside the table of a head
//!   table_plan          what is trained of the embedding and the head
//!   folder              adapters on disk: PEFT's adapter_model.safetensors
//!   rebase              adapters whose model has other weights than they were made for
//! ```
//! On tensor-parallel ranks, a layer whose outputs are sharded has `A` whole on every rank, each of which
//! uses it for other outputs: the gradient of `A` is a partial sum. A layer whose inputs are sharded has `B`
//! whole: `x A^T` is a partial sum, and so are the output and the gradient of `B`. Of an embedding, `A` is
//! sharded by tokens. All ranks have all trained rows, and each uses those of its part of the vocabulary:
//! their gradient is a partial sum.

pub mod config;
pub(crate) mod embedding_adapter;
pub mod eva;
pub mod folder;
pub(crate) mod head_adapter;
pub mod init;
mod inputs;
pub(crate) mod linear;
mod module_names;
pub(crate) mod plan;
pub mod rebase;
mod table_plan;
pub(crate) mod token_rows;

pub use config::{AdapterFile, Bias, LoraConfig};
pub use embedding_adapter::{EmbeddingAdapter, EmbeddingProduct};
pub use folder::AdapterFolder;
pub use head_adapter::HeadAdapter;
pub use init::{Init, WeightInit};
pub use linear::LoraLinear;
pub use plan::{LoraPlan, LoraTarget};
pub use token_rows::{TokenIndices, TokenRows};
