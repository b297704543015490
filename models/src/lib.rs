//! Loads HF model folders as decoders: configuration, weights, forward pass, KV cache and heads.
//!
//! ```text
//! config.json ──family──> Architecture ──┐
//! model.safetensors ──weights──> values ─┴─> Decoder (segments) ──> CausalLm | ScalarModel
//! ```
//! Every family uses the same [`decoder::Decoder`] with a different [`architecture::Architecture`]. Tokens
//! are stored flat, `[N, H]`, without padding; only attention groups them into rows. Dropout is always off,
//! also in training: the `*_pdrop` and `*_dropout` settings of a `config.json` are kept but have no effect
//! ([`config::Config::dropout`] lists them).
//!
//! This crate knows nothing about losses, optimizers and text.

pub mod activations;
pub mod architecture;
pub mod attention;
pub mod batch;
pub mod block;
pub mod builder;
pub mod cache;
pub mod cached_batch;
pub mod causal_lm;
pub mod config;
pub mod decoder;
pub mod error;
pub mod family;
pub mod fields;
pub mod forward_context;
pub mod gguf_model;
pub mod head;
pub mod initialize;
pub mod linear;
pub mod load_balancing;
pub mod lora;
pub mod mask;
pub mod mlp;
pub mod model;
pub mod model_parallel;
pub mod moe;
pub mod norm;
pub mod quantize;
pub mod rope;
pub mod scalar_model;
mod sequence_parallel;
mod stored_model;
pub mod tensor_parallel_region;
pub mod vocab_parallel;
pub mod weights;

pub use error::Error;
