//! Shapes the output of the reward model into the score that enters the token rewards.
//!
//! ```text
//!   s -> clamp to +-clip -> minus a penalty, for replies that did not end with a stop token
//! ```
//! Clip: 5 in DeepSpeed-Chat, 10 in OpenRLHF. The penalty is `missing_eos_penalty` of TRL.
//!
//! Whether a reply ended with a stop token is recorded during generation and not read off the ids: a template
//! can put the stop token into the prompt, and the padding token may be the same token.

use tch::Tensor;

use crate::{Error, check};

/// How scores are shaped. The default does not change them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ScoreShaping {
    /// Scores are clamped to plus or minus this value.
    pub clip: Option<f64>,
    /// Subtracted from the score of a reply that did not end with a stop token.
    pub missing_eos_penalty: Option<f64>,
}

impl ScoreShaping {
    /// Shapes `scores` `[B]`. `has_eos` has one entry per reply: whether it ended with a stop token. The
    /// result is at least fp32.
    pub fn apply(&self, scores: &Tensor, has_eos: &[bool]) -> Result<Tensor, Error> {
        let raw = check::finite_values("the scores", scores, has_eos.len() as i64)?;
        let shaped: Vec<f64> =
            raw.iter().zip(has_eos).map(|(&score, &has_eos)| self.shape(score, has_eos)).collect();
        Ok(check::vector_like(&shaped, scores))
    }

    fn shape(&self, score: f64, has_eos: bool) -> f64 {
        let clipped = self.clip.map_or(score, |clip| score.clamp(-clip, clip));
        let penalty = if has_eos { 0.0 } else { self.missing_eos_penalty.unwrap_or(0.0) };
        clipped - penalty
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(shaping: ScoreShaping) -> Vec<f64> {
        let scores = Tensor::from_slice(&[8.0, -8.0, 1.0]);
        check::to_f64_vec(&shaping.apply(&scores, &[true, false, false]).unwrap())
    }

    #[test]
    fn the_penalty_for_a_missing_end_comes_after_the_clip() {
        assert_eq!(apply(ScoreShaping::default()), [8.0, -8.0, 1.0]);
        let shaping = ScoreShaping { clip: Some(2.5), missing_eos_penalty: None };
        assert_eq!(apply(shaping), [2.5, -2.5, 1.0]);
        assert_eq!(apply(ScoreShaping { missing_eos_penalty: Some(1.0), ..shaping }), [2.5, -3.5, 0.0]);
    }

    #[test]
    fn scores_must_be_numbers_and_one_for_each_reply() {
        let shaping = ScoreShaping::default();
        assert!(matches!(shaping.apply(&Tensor::from_slice(&[1.0]), &[true; 2]), Err(Error::Shape { .. })));
        let broken = Tensor::from_slice(&[1.0, f64::NAN]);
        assert!(matches!(shaping.apply(&broken, &[true; 2]), Err(Error::NotFinite { index: 1, .. })));
    }
}
