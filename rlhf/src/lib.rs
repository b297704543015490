//! The stages of reinforcement learning from human feedback, and their mathematics.
//!
//! | stage | file | its mathematics |
//! |---|---|---|
//! | supervised fine-tuning | [`sft`] | `models::head::cross_entropy` |
//! | reward model | [`reward`] | [`loss::reward`] |
//! | proximal policy optimisation | [`ppo`] | [`kl`], [`score`], [`advantage`], [`whiten`], [`loss`] |
//!
//! A stage reads tokenised rows, runs segmented models through `gemini::Engine`, and tells a [`event::Recorder`]; it knows no
//! terminal, no file of rows and no parallelism.

pub mod advantage;
mod check;
pub mod config;
mod error;
pub mod event;
pub mod kl;
pub mod loss;
pub mod ppo;
pub mod replies;
pub mod reward;
pub mod rollout;
pub mod run;
pub mod score;
pub mod sft;
pub mod tensorboard;
pub mod whiten;

pub use error::Error;
