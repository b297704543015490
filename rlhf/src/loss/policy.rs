//! The clipped surrogate loss of the policy, and its statistics.
//!
//! The parent module gives formula and papers. Where both sides of `max` are equal, it splits the gradient
//! between them. Inside the clip range both sides are the same function, so the gradient there is exactly
//! `-A rho d(log p)`.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};
use tch::Tensor;

use super::statistics::device_sums;
use crate::{Error, check};

/// The clip range of the policy loss.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PolicyClip {
    /// Ratios below `1 - low` do not lower the loss any further.
    pub low: f64,
    /// Ratios above `1 + high` do not lower the loss any further.
    pub high: f64,
    /// The log-ratio is clamped to plus or minus this value and has no gradient beyond it (OpenRLHF, verl:
    /// 20). Without the clamp a ratio can overflow, and infinity times an advantage of 0 is NaN.
    pub log_ratio: Option<f64>,
    /// The most that a token with a negative advantage A can cost, as a multiple of -A (Ye et al. 2020, arXiv
    /// 1912.09729, equation 5; verl: `clip_ratio_c`, 3).
    pub dual: Option<f64>,
}

impl Default for PolicyClip {
    fn default() -> Self {
        Self { low: 0.2, high: 0.2, log_ratio: Some(20.0), dual: None }
    }
}

/// The policy loss of some tokens.
#[derive(Debug)]
pub struct PolicyLoss {
    /// The sum over the tokens, a scalar with a gradient.
    pub loss: Tensor,
    /// The numbers of [`PolicyStatistics`], `[4]` in fp64 on the device of the loss.
    pub statistics: Tensor,
}

/// Sums over tokens. They can be added up over micro-batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PolicyStatistics {
    /// Number of tokens.
    pub tokens: f64,
    /// Number of tokens whose clipped side is the larger. Divided by `tokens`, this is `policy/clipfrac_avg`
    /// of TRL.
    pub clipped: f64,
    /// Sum of `(log rho)^2 / 2`. Its mean is `policy/approxkl_avg` of TRL.
    pub approx_kl: f64,
    /// Sum of `rho`. Its mean is `val/ratio` of TRL.
    pub ratio: f64,
}

impl From<&Tensor> for PolicyStatistics {
    fn from(sums: &Tensor) -> Self {
        let sums: [f64; 4] = check::to_f64_vec(sums).try_into().expect("one sum for each quantity");
        let [tokens, clipped, approx_kl, ratio] = sums;
        Self { tokens, clipped, approx_kl, ratio }
    }
}

impl AddAssign for PolicyStatistics {
    fn add_assign(&mut self, other: Self) {
        self.tokens += other.tokens;
        self.clipped += other.clipped;
        self.approx_kl += other.approx_kl;
        self.ratio += other.ratio;
    }
}

/// Computes the policy loss of `[N]` tokens, each with one of the `weights` `[N]`, or with the weight 1. Only
/// `logprobs` has a gradient.
///
/// With a log-probability of minus infinity on one side, the loss is finite if `clip.log_ratio` is set. With
/// minus infinity on both sides, or with NaN, the loss is NaN. The model is then broken, and the optimizer
/// step must refuse the loss. The loss of a token depends on no other token.
pub fn policy_loss(
    logprobs: &Tensor,
    old_logprobs: &Tensor,
    advantages: &Tensor,
    weights: Option<&Tensor>,
    clip: &PolicyClip,
) -> Result<PolicyLoss, Error> {
    let advantages = check::detached_like("the advantages", advantages, logprobs)?;
    let old_logprobs = check::detached_like("the old log-probabilities", old_logprobs, logprobs)?;
    let mut log_ratio = check::upcast_to_fp32(logprobs) - old_logprobs;
    if let Some(limit) = clip.log_ratio {
        log_ratio = log_ratio.clamp(-limit, limit);
    }
    let ratio = log_ratio.exp();
    let unclipped = -(&advantages * &ratio);
    let clipped = -(&advantages * ratio.clamp(1.0 - clip.low, 1.0 + clip.high));
    let mut losses = unclipped.maximum(&clipped);
    if let Some(most) = clip.dual {
        losses = losses.where_self(&advantages.ge(0.0), &losses.minimum(&(&advantages * -most)));
    }
    if let Some(weights) = weights {
        losses *= check::detached_like("the weights", weights, logprobs)?;
    }
    let loss = losses.sum(None);

    let quantities = [advantages.ones_like(), clipped.gt_tensor(&unclipped), log_ratio.square() * 0.5, ratio];
    Ok(PolicyLoss { loss, statistics: device_sums(quantities) })
}
