//! Rewards of tokens, and the advantages computed from them: with a critic by generalized advantage
//! estimation (GAE), without one as returns of the tokens or by comparing the replies to one prompt.
//!
//! ```text
//!   N tokens in B replies, all written by the policy; S slots: the N tokens, plus one after the end of each
//!   reply whose score is added there
//!
//!   r_t = -kl_coef KL_t + [t = slot of the score] score + [t = end of a turn] reward of the turn
//!   delta_t = r_t + gamma V_{t+1} - V_t,    V after the last slot = 0
//!   A_t = delta_t + gamma lambda A_{t+1}
//!   R_t = V_t + A_t(critic_lambda)
//!   REINFORCE++  A_t = r_t + gamma A_{t+1}
//! ```
//! Token rewards: Ziegler et al. 2019 (arXiv 1909.08593), equation 2; Ouyang et al. 2022 (arXiv 2203.02155),
//! appendix C.4. GAE: Schulman et al. 2016 (arXiv 1506.02438), equations 11, 12 and 16; a lambda of the
//! critic alone (VC-PPO): Yuan et al. 2025 (arXiv 2503.01491). Returns are computed from advantages before
//! whitening.
//!
//! What an environment writes between two turns has no token here. The first token of a turn follows the
//! last token of the turn before it, so values and advantages are carried across the gap. (verl and `NeMo`
//! RL carry them as well; OpenRLHF counts the gap as steps with the value 0.)
//!
//! The other estimators give one advantage to all tokens of a reply, from the sums `r_i` of the rewards of
//! the replies. `mean` and `std` (unbiased) are over the replies to the same prompt:
//!
//! | estimator | advantage of reply i | source |
//! |---|---|---|
//! | `grpo` | `(r_i - mean) / (std + epsilon)` | Shao et al. 2024, arXiv 2402.03300, section 4.1.2 |
//! | `grpo`, scale `batch` | `(r_i - mean) / (std of all + epsilon)` | Liu et al. 2025, arXiv 2508.08221 |
//! | `grpo`, scale `none` | `r_i - mean` | Liu et al. 2025, arXiv 2503.20783, section 3.2 |
//! | `rloo` | `r_i - mean of r_j, j /= i` | Ahmadian et al. 2024, arXiv 2402.14740, equation 8 |
//! | `reinforce_plus_plus_baseline` | `r_i - mean`, then whitened | Hu et al. 2025, arXiv 2501.03262 |
//! | `remax` | `r_i - r of the greedy reply` | Li et al. 2023, arXiv 2310.10505 |
//! | `opo` | `r_i - sum_j T_j r_j / sum_j T_j` | Hao et al. 2025, arXiv 2505.23585 |
//! | `maxrl` | `(r_i - mean) / (mean + epsilon)` | Tajwar et al. 2026, arXiv 2602.02710 |
//! | `pass_at_k` | mean of `best of k with i - best without i`, scaled | Tang et al. 2025, arXiv 2503.19595 |
//!
//! The mean of `pass_at_k` is over all choices of the k - 1 other replies (Walder and Karkhanis 2025, arXiv
//! 2505.15201); Tang et al. have all replies as k, and the scale of `grpo`.
//!
//! The recursions are sequential along each reply, and a rollout has few numbers. They are therefore plain
//! loops in f64 over vectors on the CPU. This module runs no model and has no gradients.

mod estimator;
mod gae;
mod group;
mod replies;
mod token_rewards;

pub use estimator::{AdvantageEstimator, AdvantageScale};
pub use gae::{Advantages, gae, returns_to_go};
pub(crate) use group::is_flat;
pub use group::{GroupRule, reply_advantages, spread, zero_variance_groups};
pub use replies::Replies;
pub(crate) use replies::ranges;
pub use token_rewards::{ScoreSlot, TokenRewards, TurnReward, token_rewards};

#[cfg(test)]
mod tests;
