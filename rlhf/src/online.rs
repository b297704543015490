//! Learning from the policy's own replies with the objectives of given rows: online DPO and on-policy
//! distillation.
//!
//! ```text
//! each iteration of on_policy
//!   prepare    the replies become rows
//!   update     each optimizer step is one of trainer: the rows of a mini-batch under their objective
//! ```
//! | algorithm | rows | objective |
//! |---|---|---|
//! | online DPO ([`dpo`]) | pairs of the best and the worst reply to a prompt | [`crate::offline`] |
//! | on-policy distillation ([`distill`]) | replies, with labels on what was written | [`crate::distill`] |
//!
//! So a step on rows that the policy has written is a step on the same rows from a file. An objective divides
//! by the counts of the full mini-batch, and the split into micro-batches does not change it.

pub mod distill;
pub mod dpo;

use gemini::{Engine, TrainConfig};
use parallel::ProcessGroups;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::config::PpoConfig;
use crate::event::Metrics;
use crate::sums::Sums;
use crate::trainer::{self, Objective};

/// The settings of an algorithm without advantages. `A` are its own.
#[derive(Debug)]
pub struct Settings<'a, A> {
    /// The settings of rollouts, as [`PpoConfig::rollout_settings`] gives them; without rewards, also
    /// [`PpoConfig::without_rewards`].
    pub rollouts: &'a PpoConfig,
    /// The settings of the algorithm.
    pub algorithm: &'a A,
    /// The settings of the optimizer steps.
    pub train: &'a TrainConfig,
    /// Determines the order of prompts and the random draws.
    pub seed: u64,
}

/// The state of an algorithm that has none besides models and optimizers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoState {}

/// Runs one optimizer step on each mini-batch, which has indices of examples of `objective`, and adds the
/// metrics. Returns the number of tokens that went forward and backward, on all ranks.
fn update<O: Objective>(
    objective: &O,
    mini_batches: &[Vec<usize>],
    engine: &mut Engine,
    (train, groups): (&TrainConfig, &ProcessGroups),
    metrics: &mut Metrics,
) -> Result<f64, Error> {
    let (mut loss, mut tokens, mut grad_norm, mut lr) = (0.0, 0.0, 0.0, engine.next_lr());
    let mut sums = Sums::default();
    for examples in mini_batches {
        let (share, step_tokens) =
            trainer::run_step(objective, examples, train.micro_batch_size, engine, groups, &mut sums)?;
        let report = engine.step()?;
        loss += share;
        tokens += step_tokens as f64;
        grad_norm += report.grad_norm;
        lr = report.lr;
    }
    let [loss, tokens] = groups.loss_group().all_reduce_sum([loss, tokens])?;
    let sums = sums.all_reduce(groups.loss_group())?;
    // Without a step there is no loss.
    if !mini_batches.is_empty() {
        let steps = mini_batches.len() as f64;
        metrics.push("loss", loss / steps);
        metrics.push("grad_norm", grad_norm / steps);
        sums.push_means("", metrics);
    }
    metrics.push("lr", lr);
    Ok(tokens)
}
