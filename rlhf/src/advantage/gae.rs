//! Advantages of single slots: generalized advantage estimation from the values of a critic, and returns to
//! go without one. The parent module gives formulas and papers. This module does not know which replies are
//! excluded: they have rewards of 0, and the caller leaves out what is computed from them.

use super::replies::ranges;
use super::token_rewards::TokenRewards;
use crate::{Error, check};

/// Advantages and returns of all slots.
#[derive(Clone, Debug, PartialEq)]
pub struct Advantages {
    /// `A_t`, not whitened, `[S]`.
    pub advantages: Vec<f64>,
    /// `R_t`, what the critic learns, `[S]`.
    pub returns: Vec<f64>,
}

/// Computes generalized advantage estimates (GAE) with discount `gamma` and decay `lambda`.
///
/// `values` `[S]` are the values that the critic predicted before each slot. The returns come from advantages
/// with the decay `critic_lambda`: equal to `lambda` in PPO, 1 in VC-PPO and VAPO (decoupled GAE).
/// verl: `compute_gae_advantage_return`.
pub fn gae(
    rewards: &TokenRewards,
    values: &[f64],
    gamma: f64,
    lambda: f64,
    critic_lambda: f64,
) -> Result<Advantages, Error> {
    let slots = rewards.rewards.len();
    check::length("the rewards", slots, rewards.lengths.iter().sum())?;
    check::length("the values", values.len(), slots)?;
    check::finite("the rewards", &rewards.rewards)?;
    check::finite("the values", values)?;

    let mut advantages = vec![0.0; slots];
    let mut returns = vec![0.0; slots];
    for range in ranges(&rewards.lengths) {
        let (mut next_value, mut next_advantage, mut next_critic_advantage) = (0.0, 0.0, 0.0);
        for slot in range.rev() {
            let delta = rewards.rewards[slot] + gamma * next_value - values[slot];
            next_advantage = delta + gamma * lambda * next_advantage;
            next_critic_advantage = delta + gamma * critic_lambda * next_critic_advantage;
            next_value = values[slot];
            advantages[slot] = next_advantage;
            returns[slot] = next_critic_advantage + values[slot];
        }
    }
    Ok(Advantages { advantages, returns })
}

/// Computes the discounted sum of the rewards of each slot and of those after it in the same reply, `[S]`.
/// REINFORCE++ whitens the sums over the rollout.
/// verl: `compute_reinforce_plus_plus_outcome_advantage`.
pub fn returns_to_go(rewards: &TokenRewards, gamma: f64) -> Vec<f64> {
    let mut returns = vec![0.0; rewards.rewards.len()];
    for range in ranges(&rewards.lengths) {
        let mut next_return = 0.0;
        for slot in range.rev() {
            next_return = rewards.rewards[slot] + gamma * next_return;
            returns[slot] = next_return;
        }
    }
    returns
}
