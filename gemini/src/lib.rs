//! Training: one optimizer step over a segmented network, the memory that it needs, and its checkpoints.
//! DeepSpeed: `DeepSpeedEngine`; the memory manager is that of Colossal-AI, from which the crate has its
//! name.
//!
//! This crate sees an ordered list of named parameters. It knows no model family, no data and no algorithm.

pub mod checkpoint;
pub mod chunk;
pub mod config;
pub mod engine;
mod error;
pub mod lr_scheduler;
pub mod optimizer;
pub mod placement;
mod reducer;
pub mod replicas;
pub mod zero;

pub use chunk::manager::{Budget, ChunkManager, Traffic};
pub use chunk::store::memory::WeightMemory;
pub use config::TrainConfig;
pub use config::memory::GeminiConfig;
pub use engine::{Engine, StepReport};
pub use error::Error;
pub use replicas::check_replicas;
pub use zero::{StateBytes, ZeroStage};
