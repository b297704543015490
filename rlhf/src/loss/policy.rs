//! The clipped surrogate of the policy and what is worth watching in it.
//!
//! Formula and papers are in the module above. At equal elements `max` splits the gradient between both sides, which are then the
//! same function, so inside the clip range the gradient is exactly `-A rho d(log p)`.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};
use tch::Tensor;

use super::{detached, sums};
use crate::{Error, check};

/// Bounds of one policy update.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PolicyClip {
    /// Ratios below `1 - low` earn nothing more.
    pub low: f64,
    /// Ratios above `1 + high` earn nothing more.
    pub high: f64,
    /// The logarithm of the ratio is clamped to plus or minus this, beyond which it has no gradient (OpenRLHF, verl: 20).
    /// Without it a ratio can overflow, and infinity times an advantage of 0 is NaN.
    pub log_ratio: Option<f64>,
}

impl Default for PolicyClip {
    fn default() -> Self {
        Self { low: 0.2, high: 0.2, log_ratio: Some(20.0) }
    }
}

/// The loss of some tokens.
#[derive(Debug)]
pub struct PolicyLoss {
    /// The sum over the tokens, a scalar with a gradient.
    pub loss: Tensor,
    /// What else was seen.
    pub statistics: PolicyStatistics,
}

/// Sums over tokens; they add up over micro-batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PolicyStatistics {
    /// Number of tokens.
    pub tokens: f64,
    /// Tokens whose clipped side is the larger: divided by `tokens`, TRL's `policy/clipfrac_avg`.
    pub clipped: f64,
    /// `(log rho)^2 / 2`, TRL's `policy/approxkl_avg`.
    pub half_squared_log_ratio: f64,
    /// `rho`, whose mean is TRL's `val/ratio`.
    pub ratio: f64,
}

impl AddAssign for PolicyStatistics {
    fn add_assign(&mut self, other: Self) {
        self.tokens += other.tokens;
        self.clipped += other.clipped;
        self.half_squared_log_ratio += other.half_squared_log_ratio;
        self.ratio += other.ratio;
    }
}

/// The policy loss of `[N]` tokens. Only `logprobs` carries a gradient.
///
/// A log-probability of minus infinity on one side is finite under `clip.log_ratio`. On both sides, or as NaN, it makes the loss NaN:
/// that is a broken model, and the optimiser step has to refuse it.
pub fn policy(
    logprobs: &Tensor,
    old_logprobs: &Tensor,
    advantages: &Tensor,
    clip: &PolicyClip,
) -> Result<PolicyLoss, Error> {
    let advantages = detached("the advantages", advantages, logprobs)?;
    let old_logprobs = detached("the old log-probabilities", old_logprobs, logprobs)?;
    let mut log_ratio = check::widen(logprobs) - old_logprobs;
    if let Some(limit) = clip.log_ratio {
        log_ratio = log_ratio.clamp(-limit, limit);
    }
    let ratio = log_ratio.exp();
    let unclipped = -(&advantages * &ratio);
    let clipped = -(&advantages * ratio.clamp(1.0 - clip.low, 1.0 + clip.high));
    let loss = unclipped.maximum(&clipped).sum(None);

    let [tokens, clipped, half_squared_log_ratio, ratio] =
        sums([advantages.ones_like(), clipped.gt_tensor(&unclipped), log_ratio.square() * 0.5, ratio]);
    Ok(PolicyLoss { loss, statistics: PolicyStatistics { tokens, clipped, half_squared_log_ratio, ratio } })
}
