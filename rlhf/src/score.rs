//! Shapes the sum of the rewards of a reply into the score that enters the token rewards.
//!
//! ```text
//!   s -> clamp to +-clip
//!     -> minus missing_eos_penalty, for replies that did not end with a stop token
//!     -> minus penalty x min(1, (T - (max_new_tokens - buffer)) / buffer), for T > max_new_tokens - buffer
//! ```
//! T is the number of tokens. Clip: 5 in DeepSpeed-Chat, 10 in OpenRLHF. The second line is
//! `missing_eos_penalty` of TRL. The third is the soft overlong punishment of DAPO: Yu et al. 2025 (arXiv
//! 2503.14476), equation 13, with the penalty 1; verl: `overlong_buffer`; TRL:
//! `get_soft_overlong_punishment`.
//!
//! Whether a reply ended with a stop token is recorded during generation and not read off the ids: a template
//! can put the stop token into the prompt, and the padding token may be the same token.

use serde::{Deserialize, Serialize};

/// How scores are shaped. The default does not change them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScoreShaping {
    /// Scores are clamped to plus or minus this value.
    pub clip: Option<f64>,
    /// Subtracted from the score of a reply that did not end with a stop token.
    pub missing_eos_penalty: Option<f64>,
    /// Subtracts from the score of a reply that comes near to the maximum length.
    pub overlong: Option<OverlongPenalty>,
}

/// A penalty that grows over the last tokens that a reply may have.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OverlongPenalty {
    /// The maximum length of a reply, in tokens.
    pub max_new_tokens: usize,
    /// Number of tokens before the maximum over which the penalty grows from 0 to its full size.
    pub buffer: usize,
    /// The full penalty, of a reply with the maximum length or more.
    pub penalty: f64,
}

impl ScoreShaping {
    /// Shapes `scores` `[B]`. `has_eos` `[B]` says whether a reply ended with a stop token, and `lengths`
    /// `[B]` are tokens. A reply without a score stays without one. A score that is not finite stays as it
    /// is, and [`token_rewards`](crate::advantage::token_rewards()) refuses it with the index of its reply.
    pub fn apply(&self, scores: &[Option<f64>], has_eos: &[bool], lengths: &[usize]) -> Vec<Option<f64>> {
        let replies = [has_eos.len(), lengths.len()];
        assert_eq!(replies, [scores.len(); 2], "every reply has an end and a length");
        let rows = scores.iter().zip(has_eos).zip(lengths);
        rows.map(|((score, &has_eos), &length)| score.map(|score| self.shape(score, has_eos, length)))
            .collect()
    }

    fn shape(&self, score: f64, has_eos: bool, length: usize) -> f64 {
        if !score.is_finite() {
            return score;
        }
        let clipped = self.clip.map_or(score, |clip| score.clamp(-clip, clip));
        let missing_eos = if has_eos { 0.0 } else { self.missing_eos_penalty.unwrap_or(0.0) };
        clipped - missing_eos - self.overlong.map_or(0.0, |overlong| overlong.of_length(length))
    }
}

impl OverlongPenalty {
    /// What is subtracted from the score of a reply of `length` tokens.
    fn of_length(self, length: usize) -> f64 {
        match length.saturating_sub(self.max_new_tokens.saturating_sub(self.buffer)) {
            0 => 0.0,
            excess => self.penalty * (excess as f64 / self.buffer as f64).min(1.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(shaping: ScoreShaping) -> Vec<f64> {
        let scores = [Some(8.0), Some(-8.0), Some(1.0)];
        let shaped = shaping.apply(&scores, &[true, false, false], &[1, 2, 3]);
        shaped.into_iter().map(Option::unwrap).collect()
    }

    #[test]
    fn the_penalty_for_a_missing_end_comes_after_the_clip() {
        assert_eq!(apply(ScoreShaping::default()), [8.0, -8.0, 1.0]);
        let shaping = ScoreShaping { clip: Some(2.5), ..ScoreShaping::default() };
        assert_eq!(apply(shaping), [2.5, -2.5, 1.0]);
        assert_eq!(apply(ScoreShaping { missing_eos_penalty: Some(1.0), ..shaping }), [2.5, -3.5, 0.0]);
    }

    #[test]
    fn the_penalty_of_long_replies_grows_over_the_buffer() {
        // At most 20 tokens, of which the last 4 are the buffer: 16 tokens are free, each one more costs a
        // quarter of the penalty, and more than the maximum costs no more than all of it.
        let overlong = Some(OverlongPenalty { max_new_tokens: 20, buffer: 4, penalty: 2.0 });
        let shaping = ScoreShaping { overlong, ..ScoreShaping::default() };
        let lengths = [0, 16, 17, 19, 20, 25];
        let got = shaping.apply(&[Some(1.0); 6], &[true; 6], &lengths);
        assert_eq!(got, [1.0, 1.0, 0.5, -0.5, -1.0, -1.0].map(Some));
        // Without a buffer, only what is longer than the maximum pays. A buffer as long as the maximum leaves
        // nothing free.
        let penalty = |buffer: usize, length: usize| {
            OverlongPenalty { max_new_tokens: 20, buffer, penalty: 1.0 }.of_length(length)
        };
        assert_eq!((penalty(0, 20), penalty(0, 21)), (0.0, 1.0));
        assert_eq!((penalty(20, 5), penalty(40, 10)), (0.25, 0.25));
    }

    #[test]
    fn a_reply_without_a_score_has_none_afterwards_and_broken_scores_are_not_hidden() {
        let shaping = ScoreShaping { clip: Some(5.0), ..ScoreShaping::default() };
        let got = shaping.apply(&[None, Some(f64::INFINITY), Some(7.0)], &[false; 3], &[1; 3]);
        assert_eq!(got, [None, Some(f64::INFINITY), Some(5.0)]);
    }

    #[test]
    #[should_panic(expected = "every reply has an end and a length")]
    fn no_reply_is_dropped() {
        ScoreShaping::default().apply(&[Some(1.0)], &[true; 2], &[1]);
    }
}
