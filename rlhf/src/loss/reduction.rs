//! How the losses of the tokens of a mini-batch become one number. A mini-batch has N tokens in B replies.
//!
//! ```text
//!   token_mean                sum_t l_t / N
//!   seq_mean_token_mean       sum_i (sum_t l_t / length_i) / B
//!   seq_mean_token_sum        sum_t l_t / B
//!   seq_mean_token_sum_norm   sum_t l_t / (B max_new_tokens)
//! ```
//! (Names of verl.) N and B are those of the full mini-batch, on all ranks.

use serde::{Deserialize, Serialize};

/// The mean over the tokens of a mini-batch.
/// verl: `loss_agg_mode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossAggMode {
    /// Every token counts alike: Yu et al. 2025 (arXiv 2503.14476), equation 12; TRL: `dapo`.
    #[default]
    TokenMean,
    /// Every reply counts alike: Shao et al. 2024 (arXiv 2402.03300), equation 3; TRL: `grpo`.
    SeqMeanTokenMean,
    /// The sum over a reply, and the mean over replies.
    SeqMeanTokenSum,
    /// A constant divisor: Liu et al. 2025 (arXiv 2503.20783), section 3.2; TRL: `dr_grpo`.
    SeqMeanTokenSumNorm,
}

impl LossAggMode {
    /// What the sum over all tokens of a mini-batch is divided by.
    pub fn divisor(self, tokens: usize, replies: usize, max_new_tokens: usize) -> f64 {
        let divisor = match self {
            Self::TokenMean => tokens,
            Self::SeqMeanTokenMean | Self::SeqMeanTokenSum => replies,
            Self::SeqMeanTokenSumNorm => replies * max_new_tokens,
        };
        divisor as f64
    }

    /// The weight of each token of a reply of `length` tokens in this sum; `None` if all weights are 1.
    pub fn token_weight(self, length: usize) -> Option<f64> {
        (self == Self::SeqMeanTokenMean).then(|| 1.0 / length as f64)
    }
}
