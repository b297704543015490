//! The clipped surrogate loss of PPO, and what all losses of the policy are computed from: the log-ratios of
//! the policy to that of the rollout.
//!
//! ```text
//!   L = max(-A rho, -A clip(rho, 1 - low, 1 + high));    with a second clip, at most -dual A for A < 0
//! ```
//! Schulman et al. 2017 (arXiv 1707.06347), equation 7; asymmetric clip range: Yu et al. 2025 (arXiv
//! 2503.14476), equation 10; the second clip: Ye et al. 2020 (arXiv 1912.09729), equation 5. Where both sides
//! of `max` are equal, libtorch splits the gradient between them. Inside the clip range both sides are the
//! same function, so the gradient there is exactly `-A rho d(log p)`.

use serde::{Deserialize, Serialize};
use tch::Tensor;

/// The clip range of the policy loss.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PolicyClip {
    /// Ratios below `1 - low` do not lower the loss any further. It bounds the log-ratio of `gmpo`, the
    /// probability of `dppo_tv` and the KL divergence of `dppo_kl`, and is not read by `cispo`.
    pub low: f64,
    /// Ratios above `1 + high` do not lower the loss any further. It bounds the log-ratio of `gmpo`, the
    /// probability of `dppo_tv` and the KL divergence of `dppo_kl`.
    pub high: f64,
    /// The log-ratio is clamped to plus or minus this value and has no gradient beyond it (OpenRLHF, verl:
    /// 20). Without the clamp a ratio can overflow, and infinity times an advantage of 0 is NaN.
    pub log_ratio: Option<f64>,
    /// The most that a token with a negative advantage A can cost, as a multiple of -A (Ye et al. 2020, arXiv
    /// 1912.09729, equation 5; verl: `clip_ratio_c`, 3; TRL: `delta`). The largest ratio in the weights of
    /// `dppo_tv` and `dppo_kl`.
    pub dual: Option<f64>,
}

impl Default for PolicyClip {
    fn default() -> Self {
        Self { low: 0.2, high: 0.2, log_ratio: Some(20.0), dual: None }
    }
}

/// What the losses of tokens are computed from. Tensors are `[N]`, in fp32 at least.
pub(super) struct Ratios {
    /// `log p`, with a gradient.
    pub(super) logprobs: Tensor,
    /// `log p` under the policy of the rollout.
    pub(super) old: Tensor,
    pub(super) advantages: Tensor,
    /// `log p - log p_old`, clamped, with a gradient.
    pub(super) log_ratio: Tensor,
    /// The exponential of `log_ratio`.
    pub(super) ratio: Tensor,
}

impl Ratios {
    pub(super) fn new(logprobs: Tensor, old: Tensor, advantages: Tensor, clip: &PolicyClip) -> Self {
        let mut log_ratio = &logprobs - &old;
        if let Some(limit) = clip.log_ratio {
            log_ratio = log_ratio.clamp(-limit, limit);
        }
        let ratio = log_ratio.exp();
        Self { logprobs, old, advantages, log_ratio, ratio }
    }
}

/// The losses of tokens, `[N]`, and which tokens the trust region stops.
pub(super) struct TokenLosses {
    pub(super) losses: Tensor,
    /// Tokens that are already too improbable to be made less probable.
    pub(super) below: Tensor,
    /// Tokens that are already too probable to be made more probable.
    pub(super) above: Tensor,
}

impl TokenLosses {
    /// Losses without a trust region.
    pub(super) fn without_bounds(losses: Tensor, ratios: &Ratios) -> Self {
        Self { losses, below: ratios.advantages.zeros_like(), above: ratios.advantages.zeros_like() }
    }
}

/// The clipped surrogate loss of each token. `ratio` has a gradient.
pub(super) fn surrogate(ratio: &Tensor, advantages: &Tensor, clip: &PolicyClip) -> TokenLosses {
    let unclipped = -(advantages * ratio);
    let clipped = -(advantages * ratio.clamp(1.0 - clip.low, 1.0 + clip.high));
    let mut losses = unclipped.maximum(&clipped);
    if let Some(most) = clip.dual {
        losses = losses.where_self(&advantages.ge(0.0), &losses.minimum(&(advantages * -most)));
    }
    let stopped = clipped.gt_tensor(&unclipped);
    TokenLosses {
        losses,
        below: stopped.logical_and(&advantages.lt(0.0)),
        above: stopped.logical_and(&advantages.gt(0.0)),
    }
}
