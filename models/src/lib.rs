//! HF model folders as decoders: configuration, weights, forward pass, key-value cache, heads.
//!
//! ```text
//! config.json ──family──> Architecture ──┐
//! model.safetensors ──weights──> values ─┴─> Decoder (segments) ──> CausalLm | ScalarModel
//! ```
//! Every family is the same [`decoder::Decoder`] with another [`architecture::Architecture`]. Tokens travel flat, `[N, H]`
//! without padding; only attention puts rows side by side. Dropout is always off, in training as well: the `*_pdrop` and
//! `*_dropout` settings of a `config.json` are kept and have no effect ([`config::Config::dropout`] tells
//! them).
//!
//! Knows no loss, no optimiser and no text.

pub mod architecture;
pub mod attention;
pub mod batch;
pub mod block;
pub mod cache;
pub mod causal_lm;
pub mod config;
pub mod decoder;
pub mod error;
pub mod family;
pub mod generate;
pub mod head;
pub mod initialize;
pub mod layer;
pub mod model_parallel;
pub mod moe;
pub mod rope;
pub mod sample;
pub mod scalar_model;
pub mod weights;

pub use error::Error;
