//! How the losses of many tokens become one number.
//!
//! `loss = sum_t w_t l_t / divisor`, where the sum runs over every token of the optimiser step and the divisor is counted over all of
//! them, so a split into micro-batches or ranks changes neither value nor gradient. Only the weights are known to a micro-batch; the divisor
//! belongs to the step.
//!
//! | rule | `w_t` | divisor | who |
//! |---|---|---|---|
//! | `token_mean` | 1 | tokens | PPO everywhere, DAPO, verl `token-mean` |
//! | `sequence_mean` | 1 / tokens of its reply | replies | GRPO (Shao et al. 2024, arXiv 2402.03300, equation 3) |
//! | `sequence_sum` | 1 | replies | verl `seq-mean-token-sum` |
//! | `constant` | 1 | replies x length | Dr. GRPO (Liu et al. 2025, arXiv 2503.20783) |
//!
//! Tokens in holes have weight 0, and a reply without tokens is not counted.

use std::ops::{Add, AddAssign};

use serde::{Deserialize, Serialize};
use tch::Tensor;

use crate::replies::Replies;
use crate::{Error, check};

/// The rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Reduction {
    /// Every token weighs the same.
    #[default]
    TokenMean,
    /// Every reply weighs the same.
    SequenceMean,
    /// Sums of replies, averaged over replies.
    SequenceSum,
    /// Sums of replies, divided by a length that does not depend on them.
    Constant {
        /// The length, usually `max_new_tokens`.
        length: u32,
    },
}

/// What divisors are made of; adds up over micro-batches and ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Tokens of the policy.
    pub tokens: i64,
    /// Replies that have such a token.
    pub replies: i64,
}

impl Add for Counts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { tokens: self.tokens + other.tokens, replies: self.replies + other.replies }
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Counts {
    /// Of some replies.
    pub fn of(replies: &Replies<'_>) -> Result<Self, Error> {
        let per_reply = tokens_per_reply(replies, &replies.valid()?);
        Ok(Self {
            tokens: per_reply.iter().sum(),
            replies: per_reply.iter().filter(|&&tokens| tokens > 0).count() as i64,
        })
    }
}

fn tokens_per_reply(replies: &Replies<'_>, valid: &[bool]) -> Vec<i64> {
    let tokens = |range: std::ops::Range<usize>| valid[range].iter().filter(|&&valid| valid).count() as i64;
    replies.ranges().into_iter().map(tokens).collect()
}

impl Reduction {
    /// The weight of each token, `[N]`, of the kind and on the device of `like`; at least fp32.
    pub fn weights(self, replies: &Replies<'_>, like: &Tensor) -> Result<Tensor, Error> {
        let valid = replies.valid()?;
        let mut weights: Vec<f64> = valid.iter().map(|&valid| f64::from(u8::from(valid))).collect();
        if self == Self::SequenceMean {
            for (range, tokens) in replies.ranges().into_iter().zip(tokens_per_reply(replies, &valid)) {
                weights[range].iter_mut().for_each(|weight| *weight /= tokens.max(1) as f64);
            }
        }
        Ok(check::vector_like(&weights, like))
    }

    /// What the sum of the whole optimiser step is divided by. Refuses a step without tokens.
    pub fn divisor(self, step: Counts) -> Result<f64, Error> {
        let divisor = match self {
            Self::TokenMean => step.tokens as f64,
            Self::SequenceMean | Self::SequenceSum => step.replies as f64,
            Self::Constant { length } => step.replies as f64 * f64::from(length),
        };
        if divisor > 0.0 { Ok(divisor) } else { Err(Error::TooFew { what: "a loss", needed: 1, got: 0 }) }
    }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "the expected numbers are exact")]
mod tests {
    use super::*;

    fn reduce(rule: Reduction, losses: &[f64], replies: &Replies<'_>) -> f64 {
        let losses = Tensor::from_slice(losses);
        let sum = (&losses * rule.weights(replies, &losses).unwrap()).sum(None).double_value(&[]);
        sum / rule.divisor(Counts::of(replies).unwrap()).unwrap()
    }

    #[test]
    fn ten_tokens_at_a_half_and_two_at_two() {
        let losses: Vec<f64> = [[0.5; 10].as_slice(), &[2.0; 2]].concat();
        let reduce = |rule| reduce(rule, &losses, &Replies::new(&[10, 2]));
        assert!((reduce(Reduction::TokenMean) - 0.75).abs() < 1e-15); // (5 + 4) / 12
        assert!((reduce(Reduction::SequenceMean) - 1.25).abs() < 1e-15); // (0.5 + 2) / 2
        assert!((reduce(Reduction::SequenceSum) - 4.5).abs() < 1e-15); // (5 + 4) / 2
        assert!((reduce(Reduction::Constant { length: 20 }) - 0.225).abs() < 1e-15); // 9 / 40
    }

    #[test]
    fn holes_and_empty_replies_do_not_count() {
        let mask = Tensor::from_slice(&[1.0f64, 0.0, 1.0, 0.0]);
        let replies = Replies::with_mask(&[3, 1, 0], &mask);
        assert_eq!(Counts::of(&replies).unwrap(), Counts { tokens: 2, replies: 1 });
        let losses = [1.0, 100.0, 3.0, 100.0];
        assert_eq!(reduce(Reduction::TokenMean, &losses, &replies), 2.0);
        assert_eq!(reduce(Reduction::SequenceMean, &losses, &replies), 2.0);
    }

    #[test]
    fn parts_of_a_step_add_up_to_the_whole() {
        let losses = [0.3, 0.1, 2.0, 1.5, 0.7, 0.2];
        let lengths = [2, 1, 3];
        for rule in [Reduction::TokenMean, Reduction::SequenceMean, Reduction::Constant { length: 7 }] {
            let whole = reduce(rule, &losses, &Replies::new(&lengths));
            let mut counts = Counts::default();
            let mut sum = 0.0;
            for (reply, part) in [(&lengths[..1], &losses[..2]), (&lengths[1..], &losses[2..])] {
                let (replies, part) = (Replies::new(reply), Tensor::from_slice(part));
                counts += Counts::of(&replies).unwrap();
                sum += (&part * rule.weights(&replies, &part).unwrap()).sum(None).double_value(&[]);
            }
            assert!((sum / rule.divisor(counts).unwrap() - whole).abs() < 1e-15);
        }
    }

    #[test]
    fn a_step_without_tokens_has_no_loss() {
        assert!(Reduction::TokenMean.divisor(Counts::default()).is_err());
    }
}
