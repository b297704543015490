//! The metrics that a rollout has under every algorithm, under the names of TRL. `docs/grpo.md` explains
//! them.

use crate::event::Metrics;
use crate::monitor;
use crate::rollout::data::Rollout;
use crate::rollout_sampler::{Sampled, with_turn_rewards};

/// Adds the mean reward of the replies that have one, before it is shaped. A rollout without any reward has
/// no mean.
pub(super) fn push_scores(sampled: &Sampled, metrics: &mut Metrics) {
    let raw = with_turn_rewards(&sampled.rewards.totals, &sampled.rollout);
    let found: Vec<f64> = raw.iter().flatten().copied().collect();
    if !found.is_empty() {
        metrics.push("objective/scores", found.iter().sum::<f64>() / found.len() as f64);
    }
}

/// Adds the reply length and the share of truncated replies.
pub(super) fn push_replies(rollout: &Rollout, metrics: &mut Metrics) {
    let count = rollout.len() as f64;
    let tokens: usize = rollout.lengths.iter().sum();
    // The environment has ended an episode that has failed, and no limit has.
    let ended = rollout.stopped.iter().zip(&rollout.failed).filter(|(stopped, failed)| **stopped || **failed);
    metrics.push("response_length/mean", tokens as f64 / count);
    metrics.push("truncated_rate", 1.0 - ended.count() as f64 / count);
}

/// Adds what shows that replies get worse while their reward grows.
pub(super) fn push_monitors(sampled: &Sampled, has_rewards: bool, metrics: &mut Metrics) {
    let rollout = &sampled.rollout;
    let written = rollout.ids.iter().zip(&rollout.is_written).filter(|(_, is_written)| **is_written);
    let ids: Vec<i64> = written.map(|(&id, _)| id).collect();
    let mut totals = with_turn_rewards(&sampled.rewards.totals, rollout);
    if !has_rewards {
        // Replies of episodes that have failed have none; what an environment gives for turns means nothing.
        totals.iter_mut().flatten().for_each(|total| *total = 0.0);
    }
    let truncated: Vec<bool> = rollout.stopped.iter().map(|stopped| !stopped).collect();
    let replies = monitor::Replies {
        ids: &ids,
        lengths: &rollout.lengths,
        scores: &totals,
        groups: &rollout.groups,
        truncated: &truncated,
    };
    let turns = monitor::turns(&rollout.turns).filter(|_| rollout.turns.iter().any(|&turns| turns > 1));
    for (name, number) in monitor::metrics(&replies).into_iter().chain(turns) {
        metrics.push(name, number);
    }
}

/// Adds the mean entropy before a token. `entropy` is that of the policy or of the sampler, `[N]`.
pub(crate) fn push_entropy(entropy: &[f32], metrics: &mut Metrics) {
    let sum: f64 = entropy.iter().map(|&value| f64::from(value)).sum();
    metrics.push("objective/entropy", sum / (entropy.len() as f64).max(1.0));
}
