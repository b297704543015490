//! How the losses of the tokens of a mini-batch become one number: each token has a weight, and the loss is
//! the weighted sum. A mini-batch has N tokens in B replies. Replies without a reward are in no mini-batch.
//!
//! ```text
//!   token_mean                1 / N
//!   seq_mean_token_mean       1 / (T_i B)       T_i: number of tokens of the reply
//!   seq_mean_token_sum        1 / B
//!   seq_mean_token_sum_norm   1 / (B norm)
//! ```
//! (Names of verl.) N and B are those of the full mini-batch, on all ranks, so the split into micro-batches
//! does not change the loss.

use std::iter;
use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

/// The mean over the tokens of a mini-batch.
/// verl: `loss_agg_mode`; OpenRLHF: the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossAggMode {
    /// Every token counts alike: Yu et al. 2025 (arXiv 2503.14476), equation 12; TRL: `dapo`.
    #[default]
    TokenMean,
    /// Every reply counts alike: Shao et al. 2024 (arXiv 2402.03300), equation 3; TRL: `grpo`.
    SeqMeanTokenMean,
    /// The sum over a reply, and the mean over replies; TRL: `luspo` (arXiv 2602.05261).
    SeqMeanTokenSum,
    /// A constant divisor: Liu et al. 2025 (arXiv 2503.20783), section 3.2; TRL: `dr_grpo`.
    SeqMeanTokenSumNorm,
}

/// The counts of a full mini-batch, on all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counts {
    /// Number of tokens of the replies.
    pub tokens: usize,
    /// Number of replies.
    pub replies: usize,
}

impl Counts {
    /// Counts replies with these numbers of tokens, `[B]`.
    pub fn of_replies(lengths: &[usize]) -> Self {
        Self { tokens: lengths.iter().sum(), replies: lengths.len() }
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.tokens += other.tokens;
        self.replies += other.replies;
    }
}

impl LossAggMode {
    /// The weight of each token of some replies of a mini-batch, `[N]`.
    ///
    /// `lengths` `[B]` are the numbers of tokens of these replies. `norm` is the divisor of
    /// `seq_mean_token_sum_norm` (TRL: the maximum length of a reply). `mini_batch` counts the full
    /// mini-batch.
    pub fn token_weights(self, lengths: &[usize], norm: usize, mini_batch: &Counts) -> Vec<f64> {
        let (tokens, replies) = (mini_batch.tokens as f64, mini_batch.replies as f64);
        let divisor = |length: usize| match self {
            Self::TokenMean => tokens,
            Self::SeqMeanTokenMean => length as f64 * replies,
            Self::SeqMeanTokenSum => replies,
            Self::SeqMeanTokenSumNorm => replies * norm as f64,
        };
        lengths.iter().flat_map(|&length| iter::repeat_n(1.0 / divisor(length), length)).collect()
    }
}
