//! The losses of full replies in the form of tokens: GSPO and GMPO.
//!
//! ```text
//!   GSPO  s = exp(mean of d over the reply)     s_t = sg(s) exp(d_t - sg(d_t))
//!         L_t = max(-A s_t, -A clip(s_t, 1 - low, 1 + high))
//!   GMPO  c_t = min(d_t, high) for A > 0, max(d_t, -low) for all others
//!         g = exp(mean of c over the reply)     L_t = -A sg(g) exp(c_t - sg(c_t))
//! ```
//! Zheng et al. 2025 (arXiv 2507.18071), equations 7, 13 and 14 (GSPO-token; verl: `gspo`); Zhao et al. 2025
//! (arXiv 2507.20673; verl: `geo_mean`). Value and gradient are those of the losses of full replies, `-A s`
//! and `-A g`, if the reduction is `seq_mean_token_mean`: each token then has `1 / T` of both.

use tch::{Kind, Tensor};

use super::clip::{PolicyClip, Ratios, TokenLosses, surrogate};

/// The clipped surrogate loss with the ratio of the reply. `of_sequence` `[N]` is the mean of the log-ratios
/// over the reply of each token.
pub(super) fn gspo(ratios: &Ratios, of_sequence: &Tensor, clip: &PolicyClip) -> TokenLosses {
    let log_ratio = of_sequence + (&ratios.log_ratio - ratios.log_ratio.detach());
    surrogate(&log_ratio.exp(), &ratios.advantages, clip)
}

/// The geometric mean of the clipped ratios. `of_sequence` `[N]` is the mean of the clipped log-ratios over
/// the reply of each token. A clipped token has no gradient.
pub(super) fn gmpo(ratios: &Ratios, of_sequence: &Tensor, clip: &PolicyClip) -> TokenLosses {
    let Ratios { advantages, log_ratio, .. } = ratios;
    let clipped = clip_one_side(ratios, clip);
    let mean = (of_sequence + (&clipped - clipped.detach())).exp();
    TokenLosses {
        losses: -(advantages * mean),
        below: log_ratio.lt(-clip.low).logical_and(&advantages.lt(0.0)),
        above: log_ratio.gt(clip.high).logical_and(&advantages.gt(0.0)),
    }
}

/// The log-ratio of each token, bounded on the side on which the loss would gain.
pub(super) fn clip_one_side(ratios: &Ratios, clip: &PolicyClip) -> Tensor {
    let Ratios { advantages, log_ratio, .. } = ratios;
    log_ratio.clamp_max(clip.high).where_self(&advantages.gt(0.0), &log_ratio.clamp_min(-clip.low))
}

/// For each token, the mean of `of_tokens` `[N]` over the tokens of its reply, `[N]`. The mean of a reply is
/// an operation of its own, so no other reply changes it.
pub(super) fn reply_means(of_tokens: &Tensor, lengths: &[usize]) -> Tensor {
    if lengths.is_empty() {
        return of_tokens.shallow_clone();
    }
    let lengths: Vec<i64> = lengths.iter().map(|&length| length as i64).collect();
    let replies = of_tokens.split_with_sizes(lengths.as_slice(), 0);
    let spread = |(reply, &length): (&Tensor, &i64)| reply.mean(Kind::Double).expand([length], false);
    let means: Vec<Tensor> = replies.iter().zip(&lengths).map(spread).collect();
    Tensor::cat(&means, 0).to_kind(of_tokens.kind())
}
