//! Corrects the policy gradient for replies that another program or an older policy sampled than the one that
//! computed the old log-probabilities: an importance weight for each token.
//!
//! ```text
//!   d_t = log p_t - log q_t, clamped to +-20     q: the sampler (behaviour), p: the policy before the update
//!   w_t = exp(d_t)      w = exp(sum of d over the reply)      g = exp(mean of d over the reply)
//! ```
//! | mode | weight of a token | source |
//! |---|---|---|
//! | `token_truncate` | `min(w_t, high)` | Yao et al. 2025 (TIS); verl: `rollout_is = "token"` |
//! | `token_mask` | `w_t` if `low <= w_t <= high`, else 0 | Ling Team 2025 (`IcePop`), arXiv 2510.18855 |
//! | `sequence_truncate` | `min(w, high)` | verl: `rollout_is = "sequence"` |
//! | `sequence_mask` | `w` if `low <= w <= high`, else 0 | TRL: `sequence_mask` |
//! | `geometric_mask` | `w_t` if `low <= g <= high`, else 0 | OpenRLHF: level `seq`; verl: `seq_mean_k1` |
//!
//! The weights are constants: they multiply the policy gradient loss, and neither the KL divergence nor the
//! entropy bonus. This module does not know why the two programs differ.

use std::ops::{AddAssign, Range};

use serde::{Deserialize, Serialize};

use crate::advantage::Replies;
use crate::event::Metrics;
use crate::{Error, check};

/// Log-ratios beyond this are clamped, so that every weight is finite (verl: `SAFETY_BOUND`).
const LARGEST_LOG_RATIO: f64 = 20.0;

/// How a token is weighted. The module has the formulas.
/// TRL: `vllm_importance_sampling_mode`; verl: `rollout_correction`; OpenRLHF: `is_correction_level` and
/// `is_correction_mode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CorrectionMode {
    /// Every weight is 1.
    #[default]
    Off,
    /// The ratio of the token, truncated from above.
    TokenTruncate,
    /// The ratio of the token, or 0 outside of the bounds.
    TokenMask,
    /// The ratio of the reply, truncated from above.
    SequenceTruncate,
    /// The ratio of the reply, or 0 outside of the bounds.
    SequenceMask,
    /// The ratio of the token, or 0 in a reply whose geometric mean of ratios is outside of the bounds.
    GeometricMask,
}

/// A correction and its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Correction {
    /// How a token is weighted.
    pub mode: CorrectionMode,
    /// The least ratio that a mask keeps. Truncation does not read it.
    pub low: f64,
    /// The largest ratio that a mask keeps, or that truncation leaves.
    pub high: f64,
}

impl Default for Correction {
    fn default() -> Self {
        Self { mode: CorrectionMode::Off, low: 0.5, high: 2.0 }
    }
}

/// The weights of the tokens of a rollout.
#[derive(Clone, Debug, PartialEq)]
pub struct Corrected {
    /// The importance weight of each token, `[N]`; 0 in excluded replies.
    pub weights: Vec<f64>,
    /// How far the sampler was from the policy.
    pub statistics: CorrectionStatistics,
}

/// Sums over the tokens of counted replies. They can be added up over ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CorrectionStatistics {
    /// Number of tokens.
    pub tokens: f64,
    /// Number of tokens whose weight was truncated or set to 0.
    pub cut: f64,
    /// Sum of the ratios `w_t` of the tokens, before the correction.
    /// TRL: `sampling/importance_sampling_ratio/mean`.
    pub ratio: f64,
    /// The largest ratio of a token.
    pub ratio_max: f64,
    /// Sum of the k3 estimate of the KL divergence from the sampler to the policy, `exp(d) - 1 - d`.
    /// verl: `rollout_corr/k3_kl`.
    pub kl: f64,
    /// Number of replies.
    pub replies: f64,
    /// Number of replies with a token whose weight was truncated or set to 0.
    pub replies_cut: f64,
}

impl CorrectionStatistics {
    /// Adds the means over tokens and replies to `metrics`.
    pub fn push_metrics(&self, metrics: &mut Metrics) {
        let (tokens, replies) = (self.tokens.max(1.0), self.replies.max(1.0));
        metrics.push("correction/cut", self.cut / tokens);
        metrics.push("correction/cut_replies", self.replies_cut / replies);
        metrics.push("correction/ratio/mean", self.ratio / tokens);
        metrics.push("correction/ratio/max", self.ratio_max);
        metrics.push("correction/kl", self.kl / tokens);
    }
}

impl AddAssign for CorrectionStatistics {
    fn add_assign(&mut self, other: Self) {
        self.tokens += other.tokens;
        self.cut += other.cut;
        self.ratio += other.ratio;
        self.ratio_max = self.ratio_max.max(other.ratio_max);
        self.kl += other.kl;
        self.replies += other.replies;
        self.replies_cut += other.replies_cut;
    }
}

/// Computes the weights of the tokens of `replies`.
///
/// `current` `[N]` are the log-probabilities under the policy before the update, `sampler` `[N]` the ones
/// that the sampler reported. What both have in excluded replies is not read. Refuses other numbers that are
/// not finite.
pub fn correct(
    current: &[f32],
    sampler: &[f32],
    replies: &Replies<'_>,
    rule: Correction,
) -> Result<Corrected, Error> {
    replies.check()?;
    let tokens: usize = replies.lengths.iter().sum();
    check::length("the log-probabilities", current.len(), tokens)?;
    check::length("the sampler's log-probabilities", sampler.len(), tokens)?;
    let mut corrected = Corrected { weights: vec![0.0; tokens], statistics: CorrectionStatistics::default() };
    for (range, _) in replies.ranges().into_iter().zip(replies.excluded).filter(|(_, excluded)| !**excluded) {
        let log_ratios = reply_log_ratios(current, sampler, range.clone())?;
        corrected.add_reply(range, &log_ratios, rule);
    }
    Ok(corrected)
}

/// The log-ratio of each token of the reply with this range of tokens.
fn reply_log_ratios(current: &[f32], sampler: &[f32], range: Range<usize>) -> Result<Vec<f64>, Error> {
    let log_ratio = |token: usize| {
        let [policy, sampler] = [current, sampler].map(|logprobs| f64::from(logprobs[token]));
        for (what, value) in [("the log-probabilities", policy), ("the sampler's log-probabilities", sampler)]
        {
            if !value.is_finite() {
                return Err(Error::NotFinite { what, index: token, value });
            }
        }
        Ok((policy - sampler).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO))
    };
    range.map(log_ratio).collect()
}

impl Corrected {
    fn add_reply(&mut self, range: Range<usize>, log_ratios: &[f64], rule: Correction) {
        let sum: f64 = log_ratios.iter().sum();
        let of_reply = sum.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).exp();
        let mean = (sum / log_ratios.len() as f64).exp();
        let is_kept = |ratio: f64| (rule.low..=rule.high).contains(&ratio);
        let mut is_cut = false;
        for (token, &log_ratio) in range.zip(log_ratios) {
            let ratio = log_ratio.exp();
            let (weight, cut) = match rule.mode {
                CorrectionMode::Off => (1.0, false),
                CorrectionMode::TokenTruncate => (ratio.min(rule.high), ratio > rule.high),
                CorrectionMode::TokenMask => (ratio, !is_kept(ratio)),
                CorrectionMode::SequenceTruncate => (of_reply.min(rule.high), of_reply > rule.high),
                CorrectionMode::SequenceMask => (of_reply, !is_kept(of_reply)),
                CorrectionMode::GeometricMask => (ratio, !is_kept(mean)),
            };
            let is_truncated =
                matches!(rule.mode, CorrectionMode::TokenTruncate | CorrectionMode::SequenceTruncate);
            self.weights[token] = if cut && !is_truncated { 0.0 } else { weight };
            is_cut |= cut;

            let statistics = &mut self.statistics;
            statistics.tokens += 1.0;
            statistics.cut += f64::from(cut);
            statistics.ratio += ratio;
            statistics.ratio_max = statistics.ratio_max.max(ratio);
            statistics.kl += log_ratio.exp_m1() - log_ratio;
        }
        self.statistics.replies += 1.0;
        self.statistics.replies_cut += f64::from(is_cut);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two replies: ratios 4, 1/2 and 1; then 1/4 and 2.
    const RATIOS: [f64; 5] = [4.0, 0.5, 1.0, 0.25, 2.0];

    fn correct_ratios(rule: Correction, excluded: [bool; 2]) -> Corrected {
        let replies = Replies { lengths: &[3, 2], groups: &[0, 0], excluded: &excluded };
        let current = RATIOS.map(|ratio| ratio.ln() as f32 - 3.0);
        correct(&current, &[-3.0; 5], &replies, rule).unwrap()
    }

    fn assert_near(got: &[f64], expected: &[f64]) {
        assert_eq!(got.len(), expected.len());
        // The log-probabilities are fp32.
        let is_near = |(value, other): (&f64, &f64)| (value - other).abs() < 1e-5;
        assert!(got.iter().zip(expected).all(is_near), "{got:?} {expected:?}");
    }

    #[test]
    fn weights_by_hand() {
        // The products are 2 and 1/2. The geometric means are the third root of 2 (1.26) and the root of 1/2
        // (0.71).
        let by = |mode, low, high| {
            let Corrected { weights, statistics } =
                correct_ratios(Correction { mode, low, high }, [false; 2]);
            (weights, [statistics.cut, statistics.replies_cut])
        };
        let check = |mode: CorrectionMode, low: f64, high: f64, weights: [f64; 5], cut: [f64; 2]| {
            let got = by(mode, low, high);
            assert_near(&got.0, &weights);
            assert_eq!(got.1, cut, "{mode:?}");
        };
        check(CorrectionMode::Off, 0.9, 1.1, [1.0, 1.0, 1.0, 1.0, 1.0], [0.0, 0.0]);
        check(CorrectionMode::TokenTruncate, 0.9, 1.5, [1.5, 0.5, 1.0, 0.25, 1.5], [2.0, 2.0]);
        check(CorrectionMode::TokenTruncate, 0.9, 3.0, [3.0, 0.5, 1.0, 0.25, 2.0], [1.0, 1.0]);
        check(CorrectionMode::TokenMask, 0.4, 3.0, [0.0, 0.5, 1.0, 0.0, 2.0], [2.0, 2.0]);
        check(CorrectionMode::SequenceTruncate, 0.9, 1.5, [1.5, 1.5, 1.5, 0.5, 0.5], [3.0, 1.0]);
        check(CorrectionMode::SequenceMask, 0.4, 1.5, [0.0, 0.0, 0.0, 0.5, 0.5], [3.0, 1.0]);
        check(CorrectionMode::SequenceMask, 0.6, 3.0, [2.0, 2.0, 2.0, 0.0, 0.0], [2.0, 1.0]);
        check(CorrectionMode::GeometricMask, 0.8, 1.3, [4.0, 0.5, 1.0, 0.0, 0.0], [2.0, 1.0]);
        check(CorrectionMode::GeometricMask, 0.7, 1.25, [0.0, 0.0, 0.0, 0.25, 2.0], [3.0, 1.0]);
    }

    #[test]
    fn statistics_are_of_ratios_before_the_correction() {
        let rule = Correction { mode: CorrectionMode::TokenMask, low: 0.9, high: 1.1 };
        let statistics = correct_ratios(rule, [false; 2]).statistics;
        assert_eq!((statistics.tokens, statistics.cut, statistics.replies), (5.0, 4.0, 2.0));
        // 4 + 1/2 + 1 + 1/4 + 2; minus 5 and the logarithms, which add up to 0.
        assert_near(&[statistics.ratio, statistics.ratio_max, statistics.kl], &[7.75, 4.0, 2.75]);
        let mut sum = correct_ratios(rule, [false, true]).statistics;
        sum += correct_ratios(rule, [true, false]).statistics;
        assert_near(&[sum.ratio, sum.ratio_max, sum.kl], &[7.75, 4.0, 2.75]);
        assert_eq!((sum.tokens, sum.cut, sum.replies, sum.replies_cut), (5.0, 4.0, 2.0, 2.0));
    }

    #[test]
    fn an_excluded_reply_has_no_weight_and_changes_no_other_reply() {
        for mode in [CorrectionMode::Off, CorrectionMode::SequenceTruncate, CorrectionMode::GeometricMask] {
            let rule = Correction { mode, low: 0.5, high: 3.0 };
            let (all, some) = (correct_ratios(rule, [false; 2]), correct_ratios(rule, [true, false]));
            assert_eq!((&some.weights[..3], &some.weights[3..]), (&[0.0; 3][..], &all.weights[3..]));
        }
    }

    #[test]
    fn numbers_of_the_policy_must_be_finite_and_ratios_do_not_overflow() {
        let replies = Replies { lengths: &[2, 1], groups: &[0, 0], excluded: &[false, true] };
        let rule = Correction { mode: CorrectionMode::GeometricMask, low: 0.0, high: f64::INFINITY };
        let weights = |current: [f32; 3], sampler: [f32; 3]| correct(&current, &sampler, &replies, rule);
        // The excluded reply is not read. e^20 is the largest ratio, and e^-20 the least.
        let got = weights([-1.0, -3e38, f32::NAN], [-3e38, -1.0, f32::INFINITY]).unwrap();
        assert_eq!(got.weights, [20f64.exp(), (-20f64).exp(), 0.0]);
        let error = weights([-1.0, f32::NEG_INFINITY, 0.0], [-1.0; 3]).unwrap_err();
        assert!(matches!(error, Error::NotFinite { what: "the log-probabilities", index: 1, .. }), "{error}");
        let error = weights([-1.0; 3], [f32::NAN, -1.0, -1.0]).unwrap_err();
        assert!(matches!(error, Error::NotFinite { index: 0, .. }), "{error}");
        assert!(matches!(correct(&[-1.0; 2], &[-1.0; 3], &replies, rule), Err(Error::Shape { .. })));
    }
}
