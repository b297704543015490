//! The training stages of reinforcement learning from human feedback, and their mathematics.
//!
//! | stage | file | its mathematics |
//! |---|---|---|
//! | supervised fine-tuning | [`sft`] | `models::head::cross_entropy` |
//! | reward model | [`reward`] | [`loss::pairwise_reward_loss`] |
//! | DPO and its family, ORPO, `SimPO`, CPO, KTO | [`offline`] | [`loss::preference`], [`offline::kto`] |
//! | distillation | [`distill`] | `models::head::divergence` |
//! | PPO, GRPO, RLOO, REINFORCE++ and kin | [`ppo`] | [`kl`], [`score`], [`advantage`], [`whiten`], [`loss`], [`correction`] |
//! | online DPO | [`online::dpo`] | [`loss::preference`] |
//! | on-policy distillation | [`online::distill`] | `models::head::divergence` |
//!
//! [`best_of`] chooses among several replies to a prompt, without training.
//!
//! What the stages on rollouts share: [`on_policy`] is their loop. [`rollout_sampler`] draws replies
//! ([`episodes`], with an [`environment`] between turns) and their rewards ([`reward_function`]) into a
//! [`rollout`], and [`monitor`] says how it looks.
//!
//! A stage receives tokenized rows, trains segmented models with `gemini::Engine`, and sends events to a
//! [`event::Recorder`]. It uses no terminal and no data files, and parallelism is left to `gemini` and
//! `parallel`.

pub mod advantage;
pub mod best_of;
mod check;
pub mod config;
pub mod correction;
pub mod distill;
pub mod environment;
pub mod episodes;
mod error;
pub mod event;
pub mod kl;
pub mod loss;
pub mod monitor;
pub mod offline;
pub mod on_policy;
pub mod online;
pub mod ppo;
pub mod reward;
pub mod reward_function;
pub mod rollout;
pub mod rollout_sampler;
pub mod run;
pub mod score;
mod setting;
pub mod sft;
pub mod sums;
pub mod trainer;
pub mod whiten;

pub use error::Error;
