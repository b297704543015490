//! Token rewards, and the advantages computed from them: with a critic by generalized advantage estimation
//! (GAE), without one by comparing the replies to the same prompt.
//!
//! ```text
//!   S slots: the N tokens of the replies, plus one after the end of each reply whose score is added there
//!
//!   r_t = -kl_coef KL_t + [t = slot of the score] score
//!   delta_t = r_t + gamma V_{t+1} - V_t,    V after the last slot = 0
//!   A_t = delta_t + gamma lambda A_{t+1}
//!   R_t = A_t + V_t
//!
//!   G replies to one prompt, r_i = sum_t r_t of reply i; every token of reply i has the advantage
//!   GRPO  (r_i - mean r) / (std r + epsilon)      std unbiased
//!   RLOO  r_i - mean of r_j, j /= i
//! ```
//! Token rewards: Ziegler et al. 2019 (arXiv 1909.08593), equation 2; Ouyang et al. 2022 (arXiv 2203.02155),
//! appendix C.4. Advantages: Schulman et al. 2016 (arXiv 1506.02438), equations 11, 12 and 16; GRPO: Shao et
//! al. 2024 (arXiv 2402.03300), section 4.1.2; RLOO: Ahmadian et al. 2024 (arXiv 2402.14740), equation 8.
//! Returns are computed from advantages before whitening.
//!
//! The recursion is sequential along each reply, and a rollout has few numbers. It is therefore a plain loop
//! in f64 over vectors on the CPU. This module runs no model and treats values and rewards as constants.

use parallel::upload;
use serde::{Deserialize, Serialize};
use tch::Tensor;

use crate::{Error, check, replies};

/// How advantages are computed from rewards.
/// verl: `algorithm.adv_estimator`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdvantageEstimator {
    /// From the values of a critic.
    #[default]
    Gae,
    /// From the other replies to the same prompt: the distance from their mean, divided by their standard
    /// deviation.
    Grpo,
    /// From the other replies to the same prompt: the distance from the mean of the others (leave-one-out).
    Rloo,
}

impl AdvantageEstimator {
    /// Whether the estimator needs a critic.
    pub fn has_critic(self) -> bool {
        self == Self::Gae
    }
}

/// The slot to whose reward the score of a reply is added (the terminal or EOS reward). A slot is a position
/// with a value and a reward: each token of the reply, and perhaps one more after it. (Not a slot of the KV
/// cache.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScoreSlot {
    /// At the last token of the reply: OpenRLHF, verl, DeepSpeed-Chat, `NeMo` RL.
    #[default]
    Eos,
    /// In a separate slot after the reply, which has a value but no token: `OpenAI`, TRL.
    AfterEos,
}

impl ScoreSlot {
    /// Returns the slot of each reply. A reply of `max_new_tokens` tokens has no slot after its end, as in
    /// TRL, where that slot is the first padding token.
    pub fn of_replies(self, lengths: &[i64], max_new_tokens: i64) -> Vec<Self> {
        let score_slot = |&length: &i64| if length < max_new_tokens { self } else { Self::Eos };
        lengths.iter().map(score_slot).collect()
    }
}

/// The rewards of all slots.
#[derive(Debug)]
pub struct TokenRewards {
    /// Reward of each slot, `[S]`.
    pub rewards: Tensor,
    /// Number of slots of each reply, `[B]`.
    pub lengths: Vec<i64>,
    /// The slot of each token, int64, `[N]`: `advantages.index_select(0, &token_slots)` drops the slots
    /// without a token.
    pub token_slots: Tensor,
}

/// Combines the per-token KL penalty and the score of the full reply into one reward per slot.
///
/// `kl` `[N]`, `scores` `[B]`, `lengths` `[B]` (tokens of each reply), `score_slots` `[B]`. Refuses numbers
/// that are not finite, and replies without a token, because their score has no token to be added to.
/// verl: `apply_kl_penalty`, `token_level_rewards`; OpenRLHF: `compute_reward`.
pub fn token_rewards(
    kl: &Tensor,
    scores: &Tensor,
    lengths: &[i64],
    kl_coef: f64,
    score_slots: &[ScoreSlot],
) -> Result<TokenRewards, Error> {
    let num_replies = lengths.len();
    if score_slots.len() != num_replies {
        let (expected, got) = (vec![num_replies as i64], vec![score_slots.len() as i64]);
        return Err(Error::Shape { what: "the score slots", expected, got });
    }
    let kl_of_tokens = check::finite_values("the KL of the tokens", kl, lengths.iter().sum())?;
    let reply_scores = check::finite_values("the scores", scores, num_replies as i64)?;

    let (mut rewards, mut token_slots, mut slot_counts) = (Vec::new(), Vec::new(), lengths.to_vec());
    for (row, range) in replies::ranges(lengths).into_iter().enumerate() {
        if range.is_empty() {
            return Err(Error::EmptyReply { row });
        }
        let start = rewards.len();
        token_slots.extend((start..start + range.len()).map(|slot| slot as i64));
        rewards.extend(kl_of_tokens[range].iter().map(|kl| -kl_coef * kl));
        match score_slots[row] {
            ScoreSlot::Eos => *rewards.last_mut().expect("a reply has a token") += reply_scores[row],
            ScoreSlot::AfterEos => {
                rewards.push(reply_scores[row]);
                slot_counts[row] += 1;
            }
        }
    }

    Ok(TokenRewards {
        rewards: check::vector_like(&rewards, kl),
        lengths: slot_counts,
        token_slots: upload(&token_slots, kl.device()),
    })
}

/// Advantages and returns of all slots.
#[derive(Debug)]
pub struct Advantages {
    /// `A_t`, not whitened, `[S]`.
    pub advantages: Tensor,
    /// `R_t = A_t + V_t`, `[S]`.
    pub returns: Tensor,
}

/// Computes generalized advantage estimates (GAE) with discount `gamma` and decay `lambda`.
///
/// `values` `[S]` are the values that the critic predicted before each slot. The result has the dtype of
/// `values`, at least fp32.
/// verl: `compute_gae_advantage_return`.
pub fn gae(rewards: &TokenRewards, values: &Tensor, gamma: f64, lambda: f64) -> Result<Advantages, Error> {
    let num_slots = rewards.lengths.iter().sum();
    let slot_rewards = check::finite_values("the rewards", &rewards.rewards, num_slots)?;
    let slot_values = check::finite_values("the values", values, num_slots)?;

    let mut advantages = vec![0.0; slot_rewards.len()];
    let mut returns = vec![0.0; slot_rewards.len()];
    for range in replies::ranges(&rewards.lengths) {
        let (mut next_value, mut next_advantage) = (0.0, 0.0);
        for slot in range.rev() {
            let delta = slot_rewards[slot] + gamma * next_value - slot_values[slot];
            next_advantage = delta + gamma * lambda * next_advantage;
            next_value = slot_values[slot];
            advantages[slot] = next_advantage;
            returns[slot] = next_advantage + slot_values[slot];
        }
    }

    let tensor = |numbers: &[f64]| check::vector_like(numbers, values);
    Ok(Advantages { advantages: tensor(&advantages), returns: tensor(&returns) })
}

/// Computes the advantage of every token, `[N]`, by comparing the summed rewards of replies to the same
/// prompt. `group_size` consecutive replies, at least two, belong to one prompt. `epsilon` is added to the
/// standard deviation of a group, against a division by 0. The result has the dtype of the rewards, at least
/// fp32.
/// The group advantage of GRPO and RLOO (leave-one-out). verl: `compute_grpo_outcome_advantage`.
pub fn group_relative_advantages(
    rewards: &TokenRewards,
    group_size: usize,
    estimator: AdvantageEstimator,
    epsilon: f64,
) -> Result<Tensor, Error> {
    let num_replies = rewards.lengths.len();
    if group_size < 2 || !num_replies.is_multiple_of(group_size) {
        return Err(Error::Groups { num_replies, group_size });
    }
    let num_slots = rewards.lengths.iter().sum();
    let slot_rewards = check::finite_values("the rewards", &rewards.rewards, num_slots)?;
    let ranges = replies::ranges(&rewards.lengths);
    let totals: Vec<f64> = ranges.iter().map(|range| slot_rewards[range.clone()].iter().sum()).collect();

    let mut advantages = vec![0.0; slot_rewards.len()];
    for (group, ranges) in totals.chunks(group_size).zip(ranges.chunks(group_size)) {
        let size = group_size as f64;
        let mean = group.iter().sum::<f64>() / size;
        let variance = group.iter().map(|total| (total - mean).powi(2)).sum::<f64>() / (size - 1.0);
        let scale = match estimator {
            AdvantageEstimator::Grpo => 1.0 / (variance.sqrt() + epsilon),
            // The mean of the others is `(size mean - r_i) / (size - 1)`.
            AdvantageEstimator::Rloo => size / (size - 1.0),
            AdvantageEstimator::Gae => unreachable!("GAE compares no replies"),
        };
        for (total, range) in group.iter().zip(ranges) {
            advantages[range.clone()].fill((total - mean) * scale);
        }
    }
    let advantages = check::vector_like(&advantages, &rewards.rewards);
    Ok(advantages.index_select(0, &rewards.token_slots))
}

#[cfg(test)]
mod tests;
