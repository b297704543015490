//! From the reward model's number to the score that a reply is paid.
//!
//! ```text
//!   s -> (s - mean) / std -> clamp to +-clip -> the rule for replies that did not end by themselves
//! ```
//! Scale: OpenRLHF (mean and deviation of held-out scores). Clip: 5 in DeepSpeed-Chat, 10 in OpenRLHF. Missing end: TRL subtracts a
//! penalty; `OpenAI` (Ziegler et al. 2019, arXiv 1909.08593, section 2.3) and old TRL replace the score. Overlong replies: Yu et al. 2025
//! (DAPO, arXiv 2503.14476, equation 13).
//!
//! Whether a reply ended is found in its own tokens, for every token that may end it: a template can put the same token in the
//! prompt, and padding may be the same token too.

use serde::{Deserialize, Serialize};
use tch::Tensor;

use crate::{Error, check};

/// What becomes of the score of a reply that was cut off.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum MissingEos {
    /// The penalty is taken off the score: TRL.
    Subtract(f64),
    /// The score is replaced by this one (usually -1): `OpenAI`.
    Replace(f64),
}

/// How scores are shaped; the default leaves them as they are.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Shaping {
    /// Taken off every score.
    pub mean: f64,
    /// Divides every score.
    pub std: f64,
    /// Scores are clamped to plus or minus this.
    pub clip: Option<f64>,
    /// For replies that did not end by themselves.
    pub missing_eos: Option<MissingEos>,
}

impl Default for Shaping {
    fn default() -> Self {
        Self { mean: 0.0, std: 1.0, clip: None, missing_eos: None }
    }
}

impl Shaping {
    /// Shapes `scores` `[B]`; `ended` says of each reply whether it ended by itself. At least fp32.
    pub fn apply(&self, scores: &Tensor, ended: &[bool]) -> Result<Tensor, Error> {
        let raw = check::numbers("the scores", scores, ended.len() as i64)?;
        let shaped: Vec<f64> = raw.iter().zip(ended).map(|(&score, &ended)| self.one(score, ended)).collect();
        Ok(check::vector_like(&shaped, scores))
    }

    fn one(&self, score: f64, ended: bool) -> f64 {
        let scaled = (score - self.mean) / self.std;
        let clipped = self.clip.map_or(scaled, |clip| scaled.clamp(-clip, clip));
        match self.missing_eos {
            Some(MissingEos::Subtract(penalty)) if !ended => clipped - penalty,
            Some(MissingEos::Replace(score)) if !ended => score,
            _ => clipped,
        }
    }
}

/// Where a reply ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Tokens that belong to the reply, the stop token included.
    pub length: usize,
    /// Whether there is a stop token.
    pub ended: bool,
}

/// Cuts the tokens of a reply after the first of `stop_ids`.
pub fn truncate(reply: &[i64], stop_ids: &[i64]) -> End {
    match reply.iter().position(|id| stop_ids.contains(id)) {
        Some(last) => End { length: last + 1, ended: true },
        None => End { length: reply.len(), ended: false },
    }
}

/// What is taken off the score of a long reply: nothing up to `max_length - buffer` tokens, then more with each token, 1 at
/// `max_length` and beyond.
pub fn overlong_penalty(length: usize, max_length: usize, buffer: usize) -> f64 {
    let excess = length.saturating_sub(max_length.saturating_sub(buffer));
    if excess == 0 { 0.0 } else { excess.min(buffer) as f64 / buffer.max(1) as f64 }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "the expected numbers are exact")]
mod tests {
    use super::*;

    fn apply(shaping: Shaping) -> Vec<f64> {
        let scores = Tensor::from_slice(&[8.0, -8.0, 1.0]);
        check::read(&shaping.apply(&scores, &[true, false, false]).unwrap())
    }

    #[test]
    fn the_rule_for_a_missing_end_comes_after_scale_and_clip() {
        let shaping = Shaping { mean: 2.0, std: 2.0, clip: Some(2.5), missing_eos: None };
        assert_eq!(apply(Shaping::default()), [8.0, -8.0, 1.0]);
        assert_eq!(apply(shaping), [2.5, -2.5, -0.5]);
        let subtract = Some(MissingEos::Subtract(1.0));
        assert_eq!(apply(Shaping { missing_eos: subtract, ..shaping }), [2.5, -3.5, -1.5]);
        let replace = Some(MissingEos::Replace(-1.0));
        assert_eq!(apply(Shaping { missing_eos: replace, ..shaping }), [2.5, -1.0, -1.0]);
    }

    #[test]
    fn scores_must_be_numbers_and_one_for_each_reply() {
        let shaping = Shaping::default();
        assert!(matches!(shaping.apply(&Tensor::from_slice(&[1.0]), &[true; 2]), Err(Error::Shape { .. })));
        let broken = Tensor::from_slice(&[1.0, f64::NAN]);
        assert!(matches!(shaping.apply(&broken, &[true; 2]), Err(Error::NotFinite { index: 1, .. })));
    }

    #[test]
    fn a_reply_ends_after_its_first_stop_token() {
        assert_eq!(truncate(&[5, 2, 7, 2], &[2, 9]), End { length: 2, ended: true });
        assert_eq!(truncate(&[9, 2], &[2, 9]), End { length: 1, ended: true });
        assert_eq!(truncate(&[5, 7], &[2]), End { length: 2, ended: false });
        assert_eq!(truncate(&[], &[2]), End { length: 0, ended: false });
    }

    #[test]
    fn the_overlong_penalty_is_a_ramp() {
        let penalties = [5, 6, 7, 8, 10, 12].map(|length| overlong_penalty(length, 10, 4));
        assert_eq!(penalties, [0.0, 0.0, 0.25, 0.5, 1.0, 1.0]);
        assert_eq!(overlong_penalty(11, 10, 0), 0.0);
    }
}
