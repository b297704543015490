//! Losses of the form `-w A log p` with a constant weight w (REINFORCE).
//!
//! ```text
//!   GPG      w = 1
//!   CISPO    w = min(rho, 1 + high)
//!   DPPO     w = min(rho, dual) inside the trust region, else 0
//!     TV     inside: p - p_old <= high for A > 0, p - p_old >= -low for all others
//!     KL     inside: KL <= high or p <= p_old for A > 0, KL <= low or p >= p_old for all others
//!            KL = p_old log(p_old / p) + (1 - p_old) log((1 - p_old) / (1 - p))
//! ```
//! GPG: Chu et al. 2025 (arXiv 2504.02546). CISPO: `MiniMax` 2025 (arXiv 2506.13585), equations 4 and 5, with
//! an upper bound only, as in Khatri et al. 2025 (arXiv 2510.13786) and TRL, whose `epsilon_high` is our
//! `1 + high`. DPPO: Qi et al. 2026 (arXiv 2602.04879); verl: `dppo_tv`, `dppo_kl`, with `clip_ratio_c` as
//! `dual`. Its divergences are between distributions over two outcomes: the token, and any other one.

use tch::Tensor;

use super::clip::{PolicyClip, Ratios, TokenLosses};

/// Added to the probability of the other tokens, against a division by 0 (verl).
const EPSILON: f64 = 1e-8;

/// Plain REINFORCE.
pub(super) fn gpg(ratios: &Ratios) -> TokenLosses {
    TokenLosses::without_bounds(-(&ratios.advantages * &ratios.logprobs), ratios)
}

/// Truncated ratios as weights. The gradient of no token is lost.
pub(super) fn cispo(ratios: &Ratios, clip: &PolicyClip) -> TokenLosses {
    let (most, ratio) = (1.0 + clip.high, ratios.ratio.detach());
    let losses = -(ratio.clamp_max(most) * &ratios.advantages * &ratios.logprobs);
    TokenLosses { above: ratio.gt(most), ..TokenLosses::without_bounds(losses, ratios) }
}

/// A trust region by the distance of the probabilities (total variation over the two outcomes).
pub(super) fn dppo_tv(ratios: &Ratios, clip: &PolicyClip) -> TokenLosses {
    let moved = ratios.logprobs.detach().exp() - ratios.old.exp();
    inside(ratios, clip, &moved.lt(-clip.low), &moved.gt(clip.high))
}

/// A trust region by the KL divergence over the two outcomes.
pub(super) fn dppo_kl(ratios: &Ratios, clip: &PolicyClip) -> TokenLosses {
    let (logprobs, old) = (ratios.logprobs.detach(), &ratios.old);
    let (new_others, old_others) = (1.0 - logprobs.exp(), 1.0 - old.exp());
    let nearer: Tensor = old - &logprobs;
    let of_token = old.exp() * nearer;
    let ratio_of_others: Tensor = (&old_others + EPSILON) / (&new_others + EPSILON);
    let of_others = &old_others * ratio_of_others.log();
    let divergence = of_token + of_others;
    let too_improbable = divergence.gt(clip.low).logical_and(&logprobs.lt_tensor(old));
    let too_probable = divergence.gt(clip.high).logical_and(&logprobs.gt_tensor(old));
    inside(ratios, clip, &too_improbable, &too_probable)
}

/// Ratios as weights, for the tokens that are not stopped.
fn inside(ratios: &Ratios, clip: &PolicyClip, too_improbable: &Tensor, too_probable: &Tensor) -> TokenLosses {
    let mut weights = ratios.ratio.detach();
    if let Some(most) = clip.dual {
        weights = weights.clamp_max(most);
    }
    let below = too_improbable.logical_and(&ratios.advantages.lt(0.0));
    let above = too_probable.logical_and(&ratios.advantages.gt(0.0));
    let weights = weights.masked_fill(&below.logical_or(&above), 0.0);
    TokenLosses { losses: -(weights * &ratios.advantages * &ratios.logprobs), below, above }
}
