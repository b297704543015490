//! The clipped surrogate of the policy and what is worth watching in it.
//!
//! Formula and papers are in the module above. At equal elements `max` splits the gradient between both sides, which are then the
//! same function, so inside the clip range the gradient is exactly `-A rho d(log p)`.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};
use tch::Tensor;

use super::Tokens;
use crate::{Error, check};

/// Bounds of one policy update.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PolicyClip {
    /// Ratios below `1 - low` earn nothing more.
    pub low: f64,
    /// Ratios above `1 + high` earn nothing more.
    pub high: f64,
    /// The loss of a token with a negative advantage is at most `-dual A` (verl: 3, `NeMo` RL: 10; off elsewhere).
    pub dual: Option<f64>,
    /// The logarithm of the ratio is clamped to plus or minus this, beyond which it has no gradient (OpenRLHF, verl: 20).
    /// Without it a ratio can overflow, and infinity times an advantage of 0 is NaN.
    pub log_ratio: Option<f64>,
}

impl Default for PolicyClip {
    fn default() -> Self {
        Self { low: 0.2, high: 0.2, dual: None, log_ratio: Some(20.0) }
    }
}

/// The loss of some tokens.
#[derive(Debug)]
pub struct PolicyLoss {
    /// The weighted sum, a scalar with a gradient.
    pub loss: Tensor,
    /// What else was seen.
    pub statistics: PolicyStatistics,
}

/// Sums over tokens, without weights; they add up over micro-batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PolicyStatistics {
    /// Tokens that count.
    pub tokens: f64,
    /// Tokens whose clipped side is the larger: divided by `tokens`, TRL's `policy/clipfrac_avg`.
    pub clipped: f64,
    /// Tokens that the dual clip changed.
    pub dual_clipped: f64,
    /// `(rho - 1) - log rho`, an estimate of `KL(old || new)` that is never negative.
    pub approx_kl: f64,
    /// `(log rho)^2 / 2`, TRL's `policy/approxkl_avg`.
    pub half_squared_log_ratio: f64,
    /// `rho`, whose mean is TRL's `val/ratio`.
    pub ratio: f64,
    /// `rho^2`, for the variance.
    pub ratio_squared: f64,
}

impl AddAssign for PolicyStatistics {
    fn add_assign(&mut self, other: Self) {
        self.tokens += other.tokens;
        self.clipped += other.clipped;
        self.dual_clipped += other.dual_clipped;
        self.approx_kl += other.approx_kl;
        self.half_squared_log_ratio += other.half_squared_log_ratio;
        self.ratio += other.ratio;
        self.ratio_squared += other.ratio_squared;
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
    weights: Option<&Tensor>,
    clip: &PolicyClip,
) -> Result<PolicyLoss, Error> {
    let tokens = Tokens::new(logprobs, weights)?;
    let advantages = tokens.constant("the advantages", advantages)?;
    let old_logprobs = tokens.constant("the old log-probabilities", old_logprobs)?;
    let mut log_ratio = tokens.keep(check::widen(logprobs) - old_logprobs);
    if let Some(limit) = clip.log_ratio {
        log_ratio = log_ratio.clamp(-limit, limit);
    }
    let ratio = log_ratio.exp();
    let free = -(&advantages * &ratio);
    let clipped = -(&advantages * ratio.clamp(1.0 - clip.low, 1.0 + clip.high));
    let surrogate = free.maximum(&clipped);
    let (losses, dual_clipped) = match clip.dual {
        Some(dual) => dual_clip(&surrogate, &advantages, dual),
        None => (surrogate.shallow_clone(), advantages.zeros_like()),
    };
    let [count, clipped, dual_clipped, approx_kl, half_squared_log_ratio, ratio, ratio_squared] = tokens
        .statistics([
            advantages.ones_like(),
            clipped.gt_tensor(&free),
            dual_clipped,
            log_ratio.expm1() - &log_ratio,
            log_ratio.square() * 0.5,
            ratio.shallow_clone(),
            ratio.square(),
        ]);
    let statistics = PolicyStatistics {
        tokens: count,
        clipped,
        dual_clipped,
        approx_kl,
        half_squared_log_ratio,
        ratio,
        ratio_squared,
    };
    Ok(PolicyLoss { loss: tokens.sum(&losses), statistics })
}

/// Bounds the loss where the advantage is negative, and says where that changed it.
fn dual_clip(surrogate: &Tensor, advantages: &Tensor, dual: f64) -> (Tensor, Tensor) {
    let bound = advantages * -dual;
    let changes = advantages.lt(0.0).logical_and(&surrogate.gt_tensor(&bound));
    (bound.where_self(&changes, surrogate), changes)
}
