//! The training stages of reinforcement learning from human feedback, and their mathematics.
//!
//! | stage | file | its mathematics |
//! |---|---|---|
//! | supervised fine-tuning | [`sft`] | `models::head::cross_entropy` |
//! | reward model | [`reward`] | [`loss::pairwise_reward_loss`] |
//! | DPO and its family, ORPO, `SimPO`, CPO, KTO | [`offline`] | [`loss::preference`], [`offline::kto`] |
//! | distillation | [`distill`] | `models::head::divergence` |
//! | proximal policy optimization | [`ppo`] | [`kl`], [`score`], [`advantage`], [`whiten`], [`loss`] |
//!
//! A stage receives tokenized rows, trains segmented models with `gemini::Engine`, and sends events to a
//! [`event::Recorder`]. It uses no terminal and no data files, and parallelism is left to `gemini` and
//! `parallel`.

pub mod advantage;
mod check;
pub mod config;
pub mod distill;
mod error;
pub mod event;
pub mod kl;
pub mod loss;
pub mod offline;
pub mod ppo;
pub mod replies;
pub mod reward;
pub mod rollout;
pub mod run;
pub mod score;
mod setting;
pub mod sft;
pub mod sums;
pub mod trainer;
pub mod whiten;

pub use error::Error;
