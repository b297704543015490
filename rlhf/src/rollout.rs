//! A rollout: what the policy wrote, and what the other models and the scorers say of it.
//!
//! ```text
//!   policy      -> a reply to each prompt, and log p of each token of the reply      rollout_sampler
//!   reference   -> log p of the same tokens, if a KL divergence is wanted            score
//!   critic      -> the value before each token, if there is a critic                 score
//!   rewards     -> the scores of the full replies by name                            score, reward_function
//! ```
//! [`data::Rollout`] holds the numbers in flat arrays, [`batch`] makes the batches that the models run on,
//! [`score`] runs them, and [`saved`] keeps a rollout that was drawn ahead in a checkpoint. Nothing here knows
//! a loss or an advantage.

pub mod batch;
pub mod data;
pub mod saved;
pub mod score;

pub use data::{Reply, Rollout};
pub use score::{LARGEST_DIFFERENCE, RolloutModels};
