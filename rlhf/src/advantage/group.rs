//! One advantage for each reply, from the rewards of the replies to the same prompt (a group). The parent
//! module gives formulas and papers.
//!
//! Replies without a score are left out of every sum. A group with fewer than two counted replies has nothing
//! to compare, and a group whose rewards are all equal teaches nothing: their advantages are 0. (verl gives a
//! single reply its reward as advantage; TRL and this module give it 0.)

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::estimator::{AdvantageEstimator, AdvantageScale};
use super::replies::Replies;
use crate::setting::refuse;
use crate::{Error, check};

/// Rewards of a group that differ by no more than this, relative to the largest and to 1, are equal. The mean
/// of equal rewards differs from them by 1e-16, which their standard deviation would scale up to 1.
const ROUNDING: f64 = 1e-12;

/// How the rewards of a group become advantages.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupRule {
    /// The estimator: one that compares replies, or [`AdvantageEstimator::Remax`].
    pub estimator: AdvantageEstimator,
    /// What the distance from the baseline is divided by, in GRPO and in pass@k.
    pub scale: AdvantageScale,
    /// Added to a standard deviation, and to the mean in `MaxRL`, against a division by 0.
    /// TRL: 1e-4; verl: 1e-6; OpenRLHF: 1e-9.
    pub epsilon: f64,
    /// The k of pass@k, at least 2. A group with fewer counted replies has their number as k; it is k for all
    /// groups in verl. Other estimators do not read it.
    pub pass_k: usize,
}

/// Computes the advantage of each reply, `[B]`, from the summed rewards `totals` `[B]`.
///
/// `greedy` `[B]` has the reward of the greedy reply to the prompt of each reply; `ReMax` needs it. What
/// `totals` and `greedy` hold for excluded replies is not read. Refuses other numbers that are not finite,
/// counted replies without a token, and a k of pass@k below 2. The estimator must not be one
/// with token rewards.
/// verl: `compute_grpo_outcome_advantage` and its neighbours.
pub fn reply_advantages(
    totals: &[f64],
    greedy: Option<&[f64]>,
    replies: &Replies<'_>,
    rule: &GroupRule,
) -> Result<Vec<f64>, Error> {
    replies.check()?;
    check_counted("the rewards of the replies", totals, replies)?;
    let counted: Vec<usize> = (0..totals.len()).filter(|&row| !replies.excluded[row]).collect();
    if let Some(&row) = counted.iter().find(|&&row| replies.lengths[row] == 0) {
        return Err(Error::EmptyReply { row });
    }
    let mut advantages = vec![0.0; totals.len()];
    if rule.estimator == AdvantageEstimator::Remax {
        let greedy = greedy.expect("ReMax is given the rewards of the greedy replies");
        check_counted("the rewards of the greedy replies", greedy, replies)?;
        for row in counted {
            advantages[row] = totals[row] - greedy[row];
        }
        return Ok(advantages);
    }
    if rule.estimator == AdvantageEstimator::PassAtK && rule.pass_k < 2 {
        let wanted = "must be at least 2; advantage_estimator = \"rloo\" is for 1";
        refuse("ppo", "pass_k", &rule.pass_k, wanted)?;
    }

    let of_rows = |rows: &[usize]| rows.iter().map(|&row| totals[row]).collect::<Vec<f64>>();
    let batch_deviation = standard_deviation(&of_rows(&counted));
    for rows in groups(replies).values() {
        let rewards = of_rows(rows);
        if is_flat(&rewards) {
            continue;
        }
        let lengths: Vec<f64> = rows.iter().map(|&row| replies.lengths[row] as f64).collect();
        let of_group = group_advantages(&rewards, &lengths, batch_deviation, rule);
        for (&row, advantage) in rows.iter().zip(of_group) {
            advantages[row] = advantage;
        }
    }
    Ok(advantages)
}

/// The advantages of the counted replies of one group, whose rewards are not all equal. `lengths` are their
/// numbers of tokens.
fn group_advantages(rewards: &[f64], lengths: &[f64], batch_deviation: f64, rule: &GroupRule) -> Vec<f64> {
    let (size, mean) = (rewards.len() as f64, mean(rewards));
    let distances = |baseline: f64, scale: f64| -> Vec<f64> {
        rewards.iter().map(|reward| (reward - baseline) * scale).collect()
    };
    let scale = match rule.scale {
        AdvantageScale::Group => 1.0 / (standard_deviation(rewards) + rule.epsilon),
        AdvantageScale::Batch => 1.0 / (batch_deviation + rule.epsilon),
        AdvantageScale::None => 1.0,
    };
    match rule.estimator {
        AdvantageEstimator::Grpo => distances(mean, scale),
        // The mean of the others is `(size mean - r_i) / (size - 1)`.
        AdvantageEstimator::Rloo => distances(mean, size / (size - 1.0)),
        AdvantageEstimator::ReinforcePlusPlusBaseline => distances(mean, 1.0),
        AdvantageEstimator::Opo => {
            let weighted: f64 = rewards.iter().zip(lengths).map(|(reward, length)| reward * length).sum();
            distances(weighted / lengths.iter().sum::<f64>(), 1.0)
        }
        AdvantageEstimator::Maxrl => {
            distances(mean, if mean > 0.0 { 1.0 / (mean + rule.epsilon) } else { 0.0 })
        }
        AdvantageEstimator::PassAtK => {
            let gains = pass_at_k_gains(rewards, rule.pass_k);
            gains.into_iter().map(|gain| gain * scale).collect()
        }
        AdvantageEstimator::Gae | AdvantageEstimator::ReinforcePlusPlus | AdvantageEstimator::Remax => {
            unreachable!("{:?} compares no replies", rule.estimator)
        }
    }
}

/// By how much each of n replies raises the best reward of k - 1 others, on average over all choices of the
/// others. It is the leave-one-out estimator of Walder and Karkhanis 2025 (arXiv 2505.15201), times
/// n / k.
///
/// ```text
///   rewards in ascending order: r_0 .. r_{n-1}
///   p_m = C(m, k - 2) / C(n - 1, k - 1), the chance that the m-th of the others is the best of k - 1 of them
///   gain of r_i = sum_{m < i} p_m (r_i - r_m)
/// ```
fn pass_at_k_gains(rewards: &[f64], k: usize) -> Vec<f64> {
    let (size, k) = (rewards.len(), k.min(rewards.len()));
    let mut order: Vec<usize> = (0..size).collect();
    order.sort_by(|&left, &right| rewards[left].total_cmp(&rewards[right]));

    let mut chances = vec![0.0; size - 1];
    chances[size - 2] = (k - 1) as f64 / (size - 1) as f64;
    for rank in (k - 1..size - 1).rev() {
        chances[rank - 1] = chances[rank] * (rank + 2 - k) as f64 / rank as f64;
    }

    let mut gains = vec![0.0; size];
    for (rank, &row) in order.iter().enumerate() {
        let below = order[..rank].iter().zip(&chances);
        gains[row] = below.map(|(&other, chance)| chance * (rewards[row] - rewards[other])).sum();
    }
    gains
}

/// The numbers of the groups that teach nothing, in ascending order: those whose counted replies all have one
/// reward, up to rounding, and those with fewer than two counted replies. DAPO drops such groups and samples
/// others (dynamic sampling, arXiv 2503.14476, section 3.2).
pub fn zero_variance_groups(totals: &[f64], replies: &Replies<'_>) -> Vec<usize> {
    let is_flat_group = |rows: &[usize]| {
        let rewards: Vec<f64> = rows.iter().map(|&row| totals[row]).collect();
        is_flat(&rewards)
    };
    let groups = groups(replies).into_iter();
    groups.filter(|(_, rows)| is_flat_group(rows)).map(|(group, _)| group).collect()
}

/// Gives each token the number of its reply, `[N]`. `by_reply` and `lengths` are `[B]`.
pub fn spread(by_reply: &[f64], lengths: &[usize]) -> Vec<f64> {
    by_reply.iter().zip(lengths).flat_map(|(&number, &length)| std::iter::repeat_n(number, length)).collect()
}

/// The counted replies of each group, by its number. A group without a counted reply is empty.
fn groups(replies: &Replies<'_>) -> BTreeMap<usize, Vec<usize>> {
    let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (row, &group) in replies.groups.iter().enumerate() {
        let rows = groups.entry(group).or_default();
        if !replies.excluded[row] {
            rows.push(row);
        }
    }
    groups
}

/// Whether there is nothing to compare: all rewards are equal up to rounding, or there are fewer than two.
pub(crate) fn is_flat(rewards: &[f64]) -> bool {
    let (mut least, mut most, mut size) = (f64::INFINITY, f64::NEG_INFINITY, 1.0_f64);
    for &reward in rewards {
        (least, most, size) = (least.min(reward), most.max(reward), size.max(reward.abs()));
    }
    rewards.len() < 2 || most - least <= ROUNDING * size
}

/// Refuses a vector that is not `[B]`, and numbers of counted replies that are not finite.
fn check_counted(what: &'static str, values: &[f64], replies: &Replies<'_>) -> Result<(), Error> {
    check::length(what, values.len(), replies.lengths.len())?;
    let is_broken = |&index: &usize| !replies.excluded[index] && !values[index].is_finite();
    match (0..values.len()).find(is_broken) {
        Some(index) => Err(Error::NotFinite { what, index, value: values[index] }),
        None => Ok(()),
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The unbiased standard deviation; 0 for fewer than two numbers.
fn standard_deviation(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return 0.0;
    }
    let mean = mean(values);
    let deviations: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (deviations / (values.len() - 1) as f64).sqrt()
}
