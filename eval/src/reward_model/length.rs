//! Does a reward model score length? Reward models learn to prefer long replies, and a policy then learns to
//! write them (Singhal et al. 2023, arXiv 2310.03716).
//!
//! Three views, with lengths in characters of the reply (Unicode scalar values):
//!
//! - the correlation of score and length over all replies, and of margin and difference in length over pairs,
//!   in which the prompt is the same on both sides ([`pearson`], [`spearman`]);
//! - the accuracy on pairs whose chosen reply is longer, shorter, or as long as the other: a model that
//!   counts characters is right in the first and wrong in the second;
//! - how often the model scores the longer reply higher, beside how often the longer reply is the chosen one.
//!
//! This file does not know what the replies say.

use serde::Serialize;

use super::scored::ScoredPair;
use crate::Error;
use crate::statistics::{Estimate, pearson, spearman, wilson};

/// Scores and lengths. A part is `None` if it is not defined: no such pairs, or all values equal.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LengthReport {
    /// Pearson's coefficient of score and length over all replies.
    pub score_pearson: Option<f64>,
    /// Spearman's coefficient of the same.
    pub score_spearman: Option<f64>,
    /// Pearson's coefficient of margin and difference in length over pairs.
    pub margin_pearson: Option<f64>,
    /// Spearman's coefficient of the same.
    pub margin_spearman: Option<f64>,
    /// Accuracy on pairs whose chosen reply is longer.
    pub chosen_longer: Option<Estimate>,
    /// Accuracy on pairs whose chosen reply is shorter.
    pub chosen_shorter: Option<Estimate>,
    /// Accuracy on pairs of equal length.
    pub equal_length: Option<Estimate>,
    /// Of pairs with different lengths: how often the longer reply has the higher score.
    pub longer_scored_higher: Option<Estimate>,
    /// Of the same pairs: how often the longer reply is the chosen one.
    pub longer_is_chosen: Option<Estimate>,
}

/// The lengths of `pairs`.
pub(super) fn length_report(pairs: &[ScoredPair<'_>]) -> Result<LengthReport, Error> {
    let both =
        |pair: &ScoredPair<'_>| [(pair.chosen, pair.chosen_length), (pair.rejected, pair.rejected_length)];
    let (scores, lengths): (Vec<f64>, Vec<f64>) =
        pairs.iter().flat_map(both).map(|(score, length)| (score, length as f64)).unzip();
    let (margins, differences): (Vec<f64>, Vec<f64>) =
        pairs.iter().map(|pair| (pair.margin(), difference(pair))).unzip();

    let is_right = |pair: &ScoredPair<'_>| pair.is_right();
    let scores_longer_higher = |pair: &ScoredPair<'_>| difference(pair) * pair.margin() > 0.0;
    let chooses_longer = |pair: &ScoredPair<'_>| difference(pair) > 0.0;
    Ok(LengthReport {
        score_pearson: defined(pearson(&scores, &lengths))?,
        score_spearman: defined(spearman(&scores, &lengths))?,
        margin_pearson: defined(pearson(&margins, &differences))?,
        margin_spearman: defined(spearman(&margins, &differences))?,
        chosen_longer: rate(pairs, |difference| difference > 0.0, is_right)?,
        chosen_shorter: rate(pairs, |difference| difference < 0.0, is_right)?,
        equal_length: rate(pairs, |difference| difference == 0.0, is_right)?,
        longer_scored_higher: rate(pairs, |difference| difference != 0.0, scores_longer_higher)?,
        longer_is_chosen: rate(pairs, |difference| difference != 0.0, chooses_longer)?,
    })
}

/// The length of the chosen reply minus that of the rejected one.
fn difference(pair: &ScoredPair<'_>) -> f64 {
    pair.chosen_length as f64 - pair.rejected_length as f64
}

/// The share of pairs that `holds` for, of those whose difference in length is `wanted`.
fn rate(
    pairs: &[ScoredPair<'_>],
    wanted: impl Fn(f64) -> bool,
    holds: impl Fn(&ScoredPair<'_>) -> bool,
) -> Result<Option<Estimate>, Error> {
    let of = pairs.iter().filter(|pair| wanted(difference(pair)));
    let (n, held) = of.fold((0, 0), |(n, held), pair| (n + 1, held + u64::from(holds(pair))));
    if n == 0 { Ok(None) } else { Ok(Some(wilson(held, n)?)) }
}

/// A coefficient, or `None` where values that do not vary leave it undefined.
fn defined(coefficient: Result<f64, Error>) -> Result<Option<f64>, Error> {
    match coefficient {
        Ok(coefficient) => Ok(Some(coefficient)),
        Err(Error::NoSpread { .. } | Error::TooFew { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
