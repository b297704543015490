//! What both readable forms of the report say, so that they never disagree.

use super::{Gain, PerModel, Report, RewardModel, Score, Scores};
use crate::page::Table;
use crate::page::number::{or_nothing, percent, percent_interval, points, seconds};

/// What the scores are.
pub(super) const SCORES: &str = "A reply is right when, stripped of white space, it equals the answer.";

/// `67.0 % (62.3 to 71.4)`.
pub(super) fn score(score: &Score) -> String {
    format!("{} ({})", percent(score.mean), percent_interval(score.low, score.high))
}

/// Like [`score`], with the number of pairs.
pub(super) fn reward_model(model: &RewardModel) -> String {
    let RewardModel { accuracy, low, high, n } = *model;
    format!("{} ({}) of {n} held-out pairs ranked right", percent(accuracy), percent_interval(low, high))
}

/// `+8.0 points (+5.1 to +10.9)`, and the conclusion that the interval allows.
pub(super) fn gain(gain: &Gain) -> String {
    let Gain { mean, low, high } = *gain;
    format!("{} points ({} to {}). {}", points(mean), points(low), points(high), verdict(gain))
}

pub(super) fn verdict(gain: &Gain) -> &'static str {
    if gain.low > 0.0 {
        "PPO is better: the whole 95 % interval lies above zero."
    } else if gain.high < 0.0 {
        "PPO is worse: the whole 95 % interval lies below zero."
    } else {
        "No difference shown: the 95 % interval holds zero."
    }
}

/// The scores of each model.
pub(super) fn scores(models: &PerModel<Scores>) -> Table {
    let text = |found: Option<Score>| or_nothing(found, |found| score(&found));
    Table::of(
        "Exact match",
        1,
        &models.known(),
        &[
            ("model", &|(name, _)| (*name).to_owned()),
            ("greedy", &|(_, scores)| text(scores.greedy)),
            ("sampled", &|(_, scores)| text(scores.sampled)),
            ("n", &|(_, scores)| or_nothing(scores.any(), |score| score.n.to_string())),
        ],
    )
}

/// The time of each part, and of all.
pub(super) fn times(report: &Report) -> Vec<(&'static str, f64, String)> {
    let name = |part| match part {
        "sft" => "SFT",
        "rm" => "reward model",
        "ppo" => "PPO",
        "eval" => "evaluation",
        other => other,
    };
    let mut parts: Vec<_> = report.seconds.iter().map(|&(part, value)| (name(part), value)).collect();
    if !parts.is_empty() {
        parts.push(("total", parts.iter().map(|part| part.1).sum()));
    }
    parts.into_iter().map(|(name, value)| (name, value, seconds(value))).collect()
}
