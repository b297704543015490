//! The numbers of scored pairs: accuracy, margins, scores, calibration.
//!
//! The margin of a pair is the score of the chosen reply minus that of the rejected one. A pair is right if
//! its margin is above 0, as `RewardBench` counts; a margin of 0 is a tie, which is not right. With ties as
//! half, the rate is that of [`win_rate`]. A model with Bradley-Terry scores prefers the chosen reply with
//! probability `sigmoid(margin)` (Bradley and Terry 1952, Biometrika 39, p. 324; Ouyang et al. 2022, arXiv
//! 2203.02155, equation 1), so the loss of a pair is `-ln sigmoid(margin)`.
//!
//! Calibration compares the probability that the model gives to the reply it prefers, `sigmoid(|margin|)`,
//! with how often that reply is the chosen one, in 10 bins from 0.5 to 1 ([`calibration`]). Ties prefer no
//! reply and are left out.
//!
//! Pairs count as independent. This file does not know where they are from.

use std::collections::BTreeMap;

use serde::Serialize;

use super::length::{LengthReport, length_report};
use super::scored::ScoredPair;
use crate::Error;
use crate::statistics::{Calibration, Estimate, calibration, quantile, wilson, win_rate};

/// The bins of the calibration from 0 to 1. Half of them are below 0.5 and stay empty.
const BINS: usize = 20;

/// The quantiles of every [`Spread`].
const QUANTILES: [f64; 7] = [0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0];

/// The numbers of pairs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PairReport {
    /// The share of pairs whose chosen reply has strictly the higher score, with Wilson's interval.
    pub accuracy: Estimate,
    /// The pairs with equal scores.
    pub ties: usize,
    /// Their share.
    pub tie_share: f64,
    /// The accuracy if a tie counts as half.
    pub accuracy_with_half_ties: Estimate,
    /// The mean of `-ln sigmoid(margin)`.
    pub loss: f64,
    /// The margins.
    pub margin: Spread,
    /// The scores of the chosen replies.
    pub chosen_score: Spread,
    /// The scores of the rejected replies.
    pub rejected_score: Spread,
    /// Calibration of the preferred reply's probability; `None` if every pair is a tie.
    pub calibration: Option<Calibration>,
    /// How scores go with the lengths of replies.
    pub length: LengthReport,
}

/// Mean, standard deviation and quantiles.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The mean.
    pub mean: f64,
    /// The standard deviation with n - 1; `None` for one value.
    pub standard_deviation: Option<f64>,
    /// Pairs of probability and quantile, from the lowest to the highest value.
    pub quantiles: Vec<(f64, f64)>,
}

/// The numbers of a part of a file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GroupReport {
    /// The name of the part.
    pub group: String,
    /// The share of pairs whose chosen reply has strictly the higher score.
    pub accuracy: Estimate,
    /// The pairs with equal scores.
    pub ties: usize,
    /// The mean margin.
    pub mean_margin: f64,
}

/// The numbers of `pairs`, of which there is at least one.
pub(super) fn pair_report(pairs: &[ScoredPair<'_>]) -> Result<PairReport, Error> {
    let margins: Vec<f64> = pairs.iter().map(ScoredPair::margin).collect();
    let (right, ties) = counts(pairs);
    let n = pairs.len() as u64;
    let scores = |score: fn(&ScoredPair<'_>) -> f64| Spread::of(pairs.iter().map(score).collect());
    Ok(PairReport {
        accuracy: wilson(right, n)?,
        ties: ties as usize,
        tie_share: ties as f64 / n as f64,
        accuracy_with_half_ties: win_rate(right, ties, n - right - ties)?,
        loss: margins.iter().copied().map(loss).sum::<f64>() / n as f64,
        margin: Spread::of(margins.clone()),
        chosen_score: scores(|pair| pair.chosen),
        rejected_score: scores(|pair| pair.rejected),
        calibration: calibrate(&margins)?,
        length: length_report(pairs)?,
    })
}

/// The numbers of each part, in the order of their names.
pub(super) fn group_reports(pairs: &[ScoredPair<'_>]) -> Result<Vec<GroupReport>, Error> {
    let mut groups: BTreeMap<&str, Vec<ScoredPair<'_>>> = BTreeMap::new();
    for pair in pairs {
        groups.entry(pair.group).or_default().push(*pair);
    }
    let report = |(group, pairs): (&str, Vec<ScoredPair<'_>>)| {
        let (right, ties) = counts(&pairs);
        let sum: f64 = pairs.iter().map(ScoredPair::margin).sum();
        Ok(GroupReport {
            group: group.to_owned(),
            accuracy: wilson(right, pairs.len() as u64)?,
            ties: ties as usize,
            mean_margin: sum / pairs.len() as f64,
        })
    };
    groups.into_iter().map(report).collect()
}

/// The right pairs and the ties.
fn counts(pairs: &[ScoredPair<'_>]) -> (u64, u64) {
    let right = pairs.iter().filter(|pair| pair.is_right()).count();
    let ties = pairs.iter().filter(|pair| pair.is_tie()).count();
    (right as u64, ties as u64)
}

/// `-ln sigmoid(margin)`, which does not overflow.
fn loss(margin: f64) -> f64 {
    (-margin.abs()).exp().ln_1p() + (-margin).max(0.0)
}

fn calibrate(margins: &[f64]) -> Result<Option<Calibration>, Error> {
    let decided: Vec<f64> = margins.iter().copied().filter(|margin| *margin != 0.0).collect();
    if decided.is_empty() {
        return Ok(None);
    }
    let probabilities: Vec<f64> = decided.iter().map(|margin| 1.0 / (1.0 + (-margin.abs()).exp())).collect();
    let correct: Vec<bool> = decided.iter().map(|margin| *margin > 0.0).collect();
    let mut found = calibration(&probabilities, &correct, BINS)?;
    // A margin near 0 can round to the probability 0.5, which belongs to the bin below.
    found.bins.retain(|bin| bin.low >= 0.5 || bin.n > 0);
    Ok(Some(found))
}

impl Spread {
    /// Of at least one finite value.
    fn of(mut values: Vec<f64>) -> Self {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        values.sort_by(f64::total_cmp);
        Self {
            mean,
            standard_deviation: (values.len() > 1).then(|| (squares / (n - 1.0)).sqrt()),
            quantiles: QUANTILES.map(|p| (p, quantile(&values, p))).to_vec(),
        }
    }

    /// The quantile of one of the probabilities.
    pub fn quantile(&self, p: f64) -> Option<f64> {
        self.quantiles.iter().find(|(other, _)| *other == p).map(|(_, value)| *value)
    }
}
