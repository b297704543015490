//! The loss of the policy on the tokens of a rollout: a policy gradient loss, a KL divergence from the
//! reference and an entropy bonus.
//!
//! ```text
//!   d_t = clamp(log p_t - log p_old_t, +-log_ratio)      rho_t = exp(d_t)      sg: without a gradient
//!   loss = sum_t w_t (c_t L_t + kl_coef KL_t - entropy_coef H_t)
//!   w_t the weight of the reduction, c_t the weight of a correction for the sampler
//! ```
//! | `[ppo] policy_loss` | `L_t` | source |
//! |---|---|---|
//! | `clip` | `max(-A rho, -A clip(rho, 1 - low, 1 + high))` | Schulman et al. 2017, arXiv 1707.06347 (7) |
//! | `gspo` | the same with `s_t = sg(s) exp(d_t - sg(d_t))` | Zheng et al. 2025, arXiv 2507.18071 (14) |
//! | `cispo` | `-sg(min(rho, 1 + high)) A log p` | `MiniMax` 2025, arXiv 2506.13585 (4) |
//! | `gmpo` | `-A sg(g) exp(c_t - sg(c_t))` | Zhao et al. 2025, arXiv 2507.20673 |
//! | `sapo` | `-A (4 / tau) sigmoid(tau (rho - 1))` | Gao et al. 2025, arXiv 2511.20347 |
//! | `dppo_tv` | `-A sg(min(rho, dual)) log p`, 0 outside a trust region | Qi et al. 2026, arXiv 2602.04879 |
//! | `dppo_kl` | the same with a trust region by KL divergence | the same |
//! | `gpg` | `-A log p` | Chu et al. 2025, arXiv 2504.02546 |
//!
//! A number in brackets is that of an equation. `s` is the exponential of the mean of `d_t` over the reply
//! (`gspo`), and `g` of the mean of the clipped `c_t` (`gmpo`). Each file below this one has a family of
//! losses, with its trust region.
//!
//! The loss of a token depends on no other token but through the mean over its reply, which is computed
//! before ([`PolicyRule::sequence_log_ratios`]). The head may therefore compute the loss in chunks. This
//! module computes no advantages and no weights.

mod clip;
mod gate;
mod log_prob;
mod sequence;

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};
use tch::{Tensor, no_grad};

pub use self::clip::PolicyClip;
use self::clip::{Ratios, TokenLosses};
use super::statistics::device_sums;
use crate::kl::KlLoss;
use crate::{Error, check};

/// The policy gradient loss of a token. The module has the formulas.
/// verl: `policy_loss.loss_mode`; TRL: `loss_type`, of which a part is the reduction
/// ([`LossAggMode`](crate::loss::LossAggMode)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyLossKind {
    /// The clipped surrogate of PPO and GRPO.
    /// verl: `vanilla`; TRL: `grpo`, `bnpo`, `dr_grpo`, `dapo`.
    #[default]
    Clip,
    /// The clipped surrogate with the ratio of the reply in place of that of the token.
    /// TRL: `importance_sampling_level = "sequence"`.
    Gspo,
    /// REINFORCE with truncated ratios as weights.
    Cispo,
    /// The geometric mean of one-sidedly clipped ratios.
    /// verl: `geo_mean`; TRL: `GMPOTrainer`.
    Gmpo,
    /// A soft gate in place of the clip.
    Sapo,
    /// REINFORCE with ratios as weights, for tokens whose probability is within a distance of the old one.
    DppoTv,
    /// REINFORCE with ratios as weights, for tokens whose probability is within a KL divergence of the old
    /// one.
    DppoKl,
    /// REINFORCE without ratios.
    Gpg,
}

/// How the loss of the policy is computed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PolicyRule {
    /// The policy gradient loss of a token.
    pub kind: PolicyLossKind,
    /// The bounds of this loss.
    pub clip: PolicyClip,
    /// The temperatures of `sapo`, for positive advantages and for all others.
    /// TRL: `sapo_temperature_pos`, `sapo_temperature_neg`; verl: `tau_pos`, `tau_neg`.
    pub sapo: [f64; 2],
    /// The KL divergence from the reference in the loss, with its coefficient.
    /// TRL: `beta`; verl: `use_kl_loss`, `kl_loss_coef`.
    pub kl: Option<(f64, KlLoss)>,
    /// The coefficient of the entropy bonus.
    pub entropy_coef: f64,
}

impl Default for PolicyRule {
    fn default() -> Self {
        Self {
            kind: PolicyLossKind::Clip,
            clip: PolicyClip::default(),
            sapo: [1.0, 1.05],
            kl: None,
            entropy_coef: 0.0,
        }
    }
}

/// Some tokens of replies, as their loss sees them. All tensors are `[N]`, and only `logprobs` and `entropy`
/// have a gradient.
#[derive(Clone, Copy, Debug)]
pub struct PolicyTokens<'a> {
    /// `log p` under the policy.
    pub logprobs: &'a Tensor,
    /// `log p` under the policy of the rollout.
    pub old: &'a Tensor,
    /// The advantages.
    pub advantages: &'a Tensor,
    /// The weights of the reduction, by [`token_weights`](crate::loss::LossAggMode::token_weights).
    pub weights: &'a Tensor,
    /// The importance weights of [`correct`](crate::correction::correct), which the policy gradient loss is
    /// multiplied by.
    pub correction: Option<&'a Tensor>,
    /// `log p` under the reference, if there is a KL divergence in the loss.
    pub reference: Option<&'a Tensor>,
    /// The entropy of the policy before the token, for an entropy bonus.
    pub entropy: Option<&'a Tensor>,
    /// What [`PolicyRule::sequence_log_ratios`] returned.
    pub sequence: Option<&'a Tensor>,
}

/// The policy loss of some tokens.
#[derive(Debug)]
pub struct PolicyLoss {
    /// The weighted sum over the tokens, a scalar with a gradient.
    pub loss: Tensor,
    /// The numbers of [`PolicyStatistics`], `[8]` in fp64 on the device of the loss.
    pub statistics: Tensor,
}

impl PolicyRule {
    /// Whether the loss of a token needs the mean over its reply.
    pub fn needs_sequences(&self) -> bool {
        matches!(self.kind, PolicyLossKind::Gspo | PolicyLossKind::Gmpo)
    }

    /// For each token of full replies, `[N]`: the mean of the log-ratios over the tokens of its reply
    /// (`gspo`), or the mean of the clipped log-ratios (`gmpo`). `None` for other losses. It has no gradient.
    ///
    /// `logprobs`, `old` and `advantages` are `[N]`, `lengths` `[B]`.
    pub fn sequence_log_ratios(
        &self,
        logprobs: &Tensor,
        old: &Tensor,
        advantages: &Tensor,
        lengths: &[usize],
    ) -> Result<Option<Tensor>, Error> {
        if !self.needs_sequences() {
            return Ok(None);
        }
        let logprobs = logprobs.detach();
        check::shape("the log-probabilities", &logprobs, &[lengths.iter().sum::<usize>() as i64])?;
        let old = check::detached_like("the old log-probabilities", old, &logprobs)?;
        let advantages = check::detached_like("the advantages", advantages, &logprobs)?;
        Ok(no_grad(|| {
            let ratios = Ratios::new(check::upcast_to_fp32(&logprobs), old, advantages, &self.clip);
            let of_tokens = match self.kind {
                PolicyLossKind::Gmpo => sequence::clip_one_side(&ratios, &self.clip),
                _ => ratios.log_ratio,
            };
            Some(sequence::reply_means(&of_tokens, lengths))
        }))
    }

    /// Computes the loss of `[N]` tokens.
    ///
    /// A term that has a coefficient, and `gspo` and `gmpo`, must be given what they read; a missing tensor
    /// is a mistake of the caller. With a log-probability of minus infinity on one side, the losses of ratios
    /// (all but `cispo`, `dppo_tv`, `dppo_kl` and `gpg`) are finite if `clip.log_ratio` is set. With minus
    /// infinity on both sides, or with NaN, the loss is NaN. The model is then broken, and the optimizer step
    /// must refuse the loss.
    pub fn loss(&self, tokens: &PolicyTokens<'_>) -> Result<PolicyLoss, Error> {
        let logprobs = check::upcast_to_fp32(tokens.logprobs);
        let (shape, kind) = (logprobs.size(), logprobs.kind());
        let constant = |what: &'static str, values: &Tensor| -> Result<Tensor, Error> {
            check::shape(what, values, &shape)?;
            Ok(values.detach().to_kind(kind))
        };
        let weights = constant("the weights", tokens.weights)?;
        let old = constant("the old log-probabilities", tokens.old)?;
        let advantages = constant("the advantages", tokens.advantages)?;
        let ratios = Ratios::new(logprobs, old, advantages, &self.clip);
        let means = tokens.sequence.map(|means| constant("the means over replies", means)).transpose()?;
        let TokenLosses { mut losses, below, above } = self.token_losses(&ratios, means.as_ref());
        if let Some(correction) = tokens.correction {
            losses *= constant("the correction for the sampler", correction)?;
        }

        let mut kl = weights.zeros_like();
        if let Some((coefficient, rule)) = &self.kl {
            let reference = tokens.reference.expect("a KL divergence in the loss is given the reference");
            let reference = constant("the reference's log-probabilities", reference)?;
            kl = rule.of_tokens(&ratios.logprobs, &reference, &ratios.old)?;
            losses += &kl * *coefficient;
        }
        let mut loss = (losses * &weights).sum(None);

        if let Some(entropy) = tokens.entropy {
            check::shape("the entropies", entropy, &shape)?;
        }
        if self.entropy_coef != 0.0 {
            let entropy = tokens.entropy.expect("an entropy bonus is given the entropies");
            loss += (entropy.to_kind(kind) * &weights).sum(None) * -self.entropy_coef;
        }

        let statistics = device_sums([
            weights.ones_like(),
            below.logical_or(&above),
            below,
            above,
            ratios.log_ratio.square() * 0.5,
            ratios.ratio,
            kl,
        ]);
        Ok(PolicyLoss { loss, statistics })
    }

    fn token_losses(&self, ratios: &Ratios, means: Option<&Tensor>) -> TokenLosses {
        let means = || means.expect("the loss is given the means over replies");
        match self.kind {
            PolicyLossKind::Clip => clip::surrogate(&ratios.ratio, &ratios.advantages, &self.clip),
            PolicyLossKind::Gspo => sequence::gspo(ratios, means(), &self.clip),
            PolicyLossKind::Gmpo => sequence::gmpo(ratios, means(), &self.clip),
            PolicyLossKind::Sapo => gate::sapo(ratios, self.sapo),
            PolicyLossKind::Cispo => log_prob::cispo(ratios, &self.clip),
            PolicyLossKind::DppoTv => log_prob::dppo_tv(ratios, &self.clip),
            PolicyLossKind::DppoKl => log_prob::dppo_kl(ratios, &self.clip),
            PolicyLossKind::Gpg => log_prob::gpg(ratios),
        }
    }
}

/// Sums over the tokens. They can be added up over micro-batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyStatistics {
    /// Number of tokens.
    pub tokens: f64,
    /// Number of tokens that the trust region of the loss stops: those of the next two. Divided by `tokens`,
    /// this is `policy/clipfrac_avg` of TRL. Always 0 for `sapo` and `gpg`.
    pub clipped: f64,
    /// Number of tokens with a negative advantage that are already too improbable.
    /// TRL: `clip_ratio/low_mean`.
    pub clipped_low: f64,
    /// Number of tokens with a positive advantage that are already too probable; for `cispo`, of all tokens
    /// whose weight is truncated.
    /// TRL: `clip_ratio/high_mean`.
    pub clipped_high: f64,
    /// Sum of `d^2 / 2`. Its mean is `policy/approxkl_avg` of TRL.
    pub approx_kl: f64,
    /// Sum of `rho`, the ratio of the token in every loss. Its mean is `val/ratio` of TRL.
    pub ratio: f64,
    /// Sum of the KL divergence in the loss, without its coefficient.
    pub kl: f64,
}

impl From<&Tensor> for PolicyStatistics {
    fn from(sums: &Tensor) -> Self {
        let sums: [f64; 7] = check::to_f64_vec(sums).try_into().expect("one sum for each quantity");
        let [tokens, clipped, clipped_low, clipped_high, approx_kl, ratio, kl] = sums;
        Self { tokens, clipped, clipped_low, clipped_high, approx_kl, ratio, kl }
    }
}

impl AddAssign for PolicyStatistics {
    fn add_assign(&mut self, other: Self) {
        self.tokens += other.tokens;
        self.clipped += other.clipped;
        self.clipped_low += other.clipped_low;
        self.clipped_high += other.clipped_high;
        self.approx_kl += other.approx_kl;
        self.ratio += other.ratio;
        self.kl += other.kl;
    }
}

#[cfg(test)]
mod tests;
