//! The losses of reinforcement learning from human feedback, as sums over tokens or pairs.
//!
//! ```text
//!   policy   sum_t w_t (L_t + kl_coef KL_t - entropy_coef H_t)
//!            L_t = max(-A_t rho_t, -A_t clip(rho_t, 1 - low, 1 + high)), rho_t = exp(log p_t - log p_old_t)
//!   value    sum_t 0.5 max((V_t - R_t)^2, (clip(V_t, Vold_t - e, Vold_t + e) - R_t)^2)
//!   reward   sum_i -log sigmoid(c_i - r_i - margin_i) + centering (c_i + r_i)^2
//! ```
//! Policy: Schulman et al. 2017 (arXiv 1707.06347), equation 7; [`PolicyLossKind`] has other losses. Value:
//! `openai/baselines` ppo2, with the factor 0.5 inside. Reward: Ouyang et al. 2022 (arXiv 2203.02155),
//! equation 1; margin: Touvron et al. 2023 (arXiv 2307.09288), equation 2; centering: Eisenstein et al. 2023
//! (arXiv 2312.09244).
//!
//! Every loss is a *sum*, so the split into micro-batches does not change it. The weights of the policy loss
//! are those of the full optimizer step ([`LossAggMode`]); the caller divides the other losses by the count
//! of the full step. All losses are computed in fp32 at least. `[N]` is a shape over tokens, `[B]` over
//! pairs. Shapes that would broadcast are refused. This module runs no model.

mod entropy;
mod policy;
pub mod preference;
mod reduction;
mod statistics;
mod value;

pub use entropy::EntropyController;
pub use policy::{PolicyClip, PolicyLoss, PolicyLossKind, PolicyRule, PolicyStatistics, PolicyTokens};
pub use reduction::{Counts, LossAggMode};
pub use value::{ValueLoss, ValueStatistics, value_loss};

use tch::Tensor;

use crate::{Error, check};

/// Computes the summed reward-model loss of pairs (Bradley-Terry), with an optional margin and reward
/// centering.
///
/// `chosen`, `rejected` and `margin` are `[B]`. `centering` is the weight of the squared sum of the two
/// scores (0.01 is usual, 0 is off). The loss is finite for any finite scores, because the stable form of log
/// sigmoid is linear for large differences.
/// OpenRLHF: `PairWiseLoss`; TRL: `RewardTrainer`, `margin`, `center_rewards_coefficient`.
pub fn pairwise_reward_loss(
    chosen: &Tensor,
    rejected: &Tensor,
    margin: Option<&Tensor>,
    centering: f64,
) -> Result<Tensor, Error> {
    let shape = chosen.size();
    check::shape("the rejected scores", rejected, &shape)?;
    let (chosen, rejected) = (check::upcast_to_fp32(chosen), check::upcast_to_fp32(rejected));
    let mut difference = &chosen - &rejected;
    if let Some(margin) = margin {
        check::shape("the margins", margin, &shape)?;
        difference -= check::upcast_to_fp32(margin);
    }

    let loss = -difference.log_sigmoid().sum(None);
    if centering == 0.0 {
        return Ok(loss);
    }
    Ok(loss + (chosen + rejected).square().sum(None) * centering)
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "the expected numbers are exact")]
mod tests;
