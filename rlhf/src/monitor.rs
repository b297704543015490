//! Monitors of a rollout: numbers that show when replies get worse while their score grows.
//!
//! ```text
//!   B replies of l_1 .. l_B tokens of the policy, scores s_1 .. s_B
//!
//!   length_score_correlation   sum dl_i ds_i / sqrt(sum dl_i^2 sum ds_i^2)      d: distance from the mean
//!   repetition                 mean over replies of 1 - distinct n-grams / n-grams, n = 4
//!   distinct_replies           mean over groups of distinct replies / replies
//!   excluded                   replies without a score / replies
//! ```
//! The correlation is Pearson's. A policy that exploits a reward model often writes longer replies: Singhal
//! et al. 2023 (arXiv 2310.03716). Repetition is `seq-rep-n` of Welleck et al. 2020 (arXiv 1908.04319).
//!
//! A number that a rollout does not have is left out. Scores are finite, because the loop refuses others, so
//! no number is NaN. This module knows no text and no environment: an n-gram may stand across the gap that an
//! answer of an environment has left. It does not judge its numbers: the limits are rules of the dashboard,
//! which compares steps with one another. Entropy and the share of truncated replies (`truncated_rate`) are
//! metrics of the loop.

use std::collections::{BTreeMap, HashSet};

/// The number of tokens of an n-gram.
const NGRAM: usize = 4;

/// Scores of a group that differ by less, relative to a size of at least 1, are equal up to rounding.
const ROUNDING: f64 = 1e-12;

/// The replies of a rollout, as far as monitors look at them. All but `ids` have one entry per reply.
#[derive(Clone, Copy, Debug)]
pub struct Replies<'a> {
    /// The tokens that the policy wrote, reply after reply, `[N]`.
    pub ids: &'a [i64],
    /// The number of these tokens, `[B]`.
    pub lengths: &'a [usize],
    /// The weighted score before shaping, `[B]`; `None` for an excluded reply, which no scorer could score.
    pub scores: &'a [Option<f64>],
    /// The group, `[B]`: the replies to one prompt have one number, in any order.
    pub groups: &'a [usize],
    /// Whether the reply was cut at a length limit, `[B]`.
    pub truncated: &'a [bool],
}

/// The monitors of a rollout, by the name of their metric. Panics if the lengths of the slices do not fit one
/// another.
pub fn metrics(replies: &Replies<'_>) -> Vec<(&'static str, f64)> {
    let (tokens, count) = (replies.lengths.iter().sum::<usize>(), replies.lengths.len());
    let entries = [replies.scores.len(), replies.groups.len(), replies.truncated.len()];
    assert!(replies.ids.len() == tokens && entries == [count; 3], "every reply has one entry in each slice");

    let (texts, groups) = (replies.texts(), replies.members());
    let without_score = replies.scores.iter().filter(|score| score.is_none()).count();
    let metrics = [
        ("monitor/length_score_correlation", replies.length_score_correlation()),
        ("monitor/repetition", mean(&texts.iter().filter_map(|text| repetition(text)).collect::<Vec<f64>>())),
        ("monitor/distinct_replies", distinct_replies(&texts, &groups)),
        ("monitor/excluded", share(without_score, count)),
    ];
    metrics.into_iter().filter_map(|(name, number)| Some((name, number?))).collect()
}

/// The mean number of turns that the policy wrote, `turns` `[B]`, with the name of its metric. `None` without
/// replies.
pub fn turns(turns: &[usize]) -> Option<(&'static str, f64)> {
    Some(("monitor/turns", share(turns.iter().sum(), turns.len())?))
}

/// The metrics of one reward, which is called `name`: mean and unbiased standard deviation of its scores, and
/// the share of the replies that it could not score. `scores` `[B]` are not weighted, so that a reward of
/// weight 0, which is held out, has them too. A number that the scores do not have is left out.
/// TRL: `rewards/NAME/mean`, `rewards/NAME/std`.
pub fn reward_metrics(name: &str, scores: &[Option<f64>]) -> Vec<(String, f64)> {
    let scored: Vec<f64> = scores.iter().copied().flatten().collect();
    let failed = scores.len() - scored.len();
    let mean = mean(&scored);
    let std = mean.filter(|_| scored.len() > 1).map(|mean| {
        let squares: f64 = scored.iter().map(|score| (score - mean).powi(2)).sum();
        (squares / (scored.len() - 1) as f64).sqrt()
    });
    let metrics = [("mean", mean), ("std", std), ("failed", share(failed, scores.len()))];
    let named = |(metric, number): (&str, Option<f64>)| Some((format!("rewards/{name}/{metric}"), number?));
    metrics.into_iter().filter_map(named).collect()
}

/// The indices of `count` replies at evenly spaced quantiles of the score, from the lowest to the highest:
/// both ends are among them if `count` is at least 2, and a single reply is the one in the middle. Of replies
/// with equal scores the earlier one comes first. Replies without a score are left out, so there may be fewer
/// than `count`.
pub fn by_quantile(scores: &[Option<f64>], count: usize) -> Vec<usize> {
    let scored = scores.iter().enumerate().filter_map(|(index, score)| Some((index, (*score)?)));
    let mut scored: Vec<(usize, f64)> = scored.collect();
    // A stable sort leaves equal scores in the order of their indices.
    scored.sort_by(|left, right| left.1.total_cmp(&right.1));

    let count = count.min(scored.len());
    let (last, steps) = (scored.len().saturating_sub(1), count.saturating_sub(1));
    // The rank k last / steps, rounded. Ranks differ, because `steps` is at most `last`.
    let rank = |k: usize| (k * last + steps / 2).checked_div(steps).unwrap_or(last / 2);
    (0..count).map(|k| scored[rank(k)].0).collect()
}

impl<'a> Replies<'a> {
    /// The ids of each reply, `[B]`.
    fn texts(&self) -> Vec<&'a [i64]> {
        let mut rest = self.ids;
        let mut texts = Vec::with_capacity(self.lengths.len());
        for &length in self.lengths {
            let (text, after) = rest.split_at(length);
            texts.push(text);
            rest = after;
        }
        texts
    }

    /// The indices of the replies of each group, in the order of the group numbers.
    fn members(&self) -> Vec<Vec<usize>> {
        let mut members: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (index, &group) in self.groups.iter().enumerate() {
            members.entry(group).or_default().push(index);
        }
        members.into_values().collect()
    }

    /// The correlation of score and length over the replies with a score that ended by themselves. The length
    /// of a truncated reply says where the limit is, and not how long the reply would be.
    fn length_score_correlation(&self) -> Option<f64> {
        let ended = |&index: &usize| !self.truncated[index];
        let pair = |index: usize| Some((self.lengths[index] as f64, self.scores[index]?));
        let pairs = (0..self.lengths.len()).filter(ended).filter_map(pair);
        let (lengths, scores): (Vec<f64>, Vec<f64>) = pairs.unzip();
        correlation(&lengths, &scores)
    }
}

/// Pearson's correlation. `None` if one side has the variance 0, and for fewer than three pairs: a line goes
/// through any two.
fn correlation(left: &[f64], right: &[f64]) -> Option<f64> {
    if left.len() < 3 {
        return None;
    }
    let products = direction(left)?.into_iter().zip(direction(right)?).map(|(left, right)| left * right);
    // Rounding may leave the sum slightly outside.
    Some(products.sum::<f64>().clamp(-1.0, 1.0))
}

/// The distances of numbers from their mean, divided by the root of the sum of their squares. `None` if all
/// numbers are equal, or if the sum is not finite.
fn direction(values: &[f64]) -> Option<Vec<f64>> {
    if are_equal(values) {
        return None;
    }
    let mean = mean(values)?;
    let distances = values.iter().map(|value| value - mean);
    let norm = distances.clone().map(|distance| distance * distance).sum::<f64>().sqrt();
    norm.is_finite().then(|| distances.map(|distance| distance / norm).collect())
}

/// Whether numbers are equal up to rounding.
fn are_equal(values: &[f64]) -> bool {
    let lowest = values.iter().copied().fold(f64::INFINITY, f64::min);
    let highest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    highest - lowest <= ROUNDING * lowest.abs().max(highest.abs()).max(1.0)
}

/// The share of the n-grams of a reply that stood in it before; `None` if it is too short for an n-gram.
fn repetition(text: &[i64]) -> Option<f64> {
    let ngrams = text.windows(NGRAM);
    let count = ngrams.len();
    let distinct = ngrams.collect::<HashSet<&[i64]>>().len();
    share(count - distinct, count)
}

/// The mean over groups of the share of distinct replies; `None` if no group has two replies.
fn distinct_replies(texts: &[&[i64]], groups: &[Vec<usize>]) -> Option<f64> {
    let of_group = |group: &&Vec<usize>| group.len() > 1;
    let distinct = |group: &Vec<usize>| {
        let distinct: HashSet<&[i64]> = group.iter().map(|&index| texts[index]).collect();
        share(distinct.len(), group.len())
    };
    mean(&groups.iter().filter(of_group).filter_map(distinct).collect::<Vec<f64>>())
}

fn share(part: usize, whole: usize) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One reply: its ids, score, group, and whether it was truncated.
    type Row<'a> = (&'a [i64], Option<f64>, usize, bool);

    fn metrics_of(rows: &[Row<'_>]) -> Vec<(&'static str, f64)> {
        let ids: Vec<i64> = rows.iter().flat_map(|row| row.0).copied().collect();
        let lengths: Vec<usize> = rows.iter().map(|row| row.0.len()).collect();
        let scores: Vec<Option<f64>> = rows.iter().map(|row| row.1).collect();
        let groups: Vec<usize> = rows.iter().map(|row| row.2).collect();
        let truncated: Vec<bool> = rows.iter().map(|row| row.3).collect();
        metrics(&Replies {
            ids: &ids,
            lengths: &lengths,
            scores: &scores,
            groups: &groups,
            truncated: &truncated,
        })
    }

    fn get(rows: &[Row<'_>], name: &str) -> Option<f64> {
        metrics_of(rows).into_iter().find(|(other, _)| *other == name).map(|(_, number)| number)
    }

    fn assert_near(got: Option<f64>, expected: f64) {
        assert!(got.is_some_and(|got| (got - expected).abs() < 1e-12), "{got:?} is not {expected}");
    }

    #[test]
    fn the_correlation_is_of_the_replies_that_have_a_score_and_an_end() {
        // Lengths 1 2 3 4 and scores 1 3 2 4: the distances are -1.5 -0.5 0.5 1.5 and -1.5 0.5 -0.5 1.5, the
        // sum of their products is 2.25 - 0.25 - 0.25 + 2.25 = 4, and that of either's squares is 5.
        let rows: [Row<'_>; 6] = [
            (&[7; 1], Some(1.0), 0, false),
            (&[7; 9], Some(-50.0), 1, true),
            (&[7; 2], Some(3.0), 2, false),
            (&[7; 3], Some(2.0), 3, false),
            (&[7; 9], None, 4, false),
            (&[7; 4], Some(4.0), 5, false),
        ];
        assert_near(get(&rows, "monitor/length_score_correlation"), 0.8);
        let falling = rows.map(|(ids, score, group, cut)| (ids, score.map(|score| -3.0 * score), group, cut));
        assert_near(get(&falling, "monitor/length_score_correlation"), -0.8);
    }

    #[test]
    fn a_correlation_without_variance_or_of_two_replies_is_left_out() {
        let of = |lengths: [usize; 3], scores: [f64; 3]| {
            correlation(&lengths.map(|length| length as f64), &scores)
        };
        assert_eq!(of([1, 2, 3], [0.1; 3]), None);
        assert_eq!(of([5; 3], [1.0, 2.0, 3.0]), None);
        // The sum of 0.1 and 0.2 is 0.3 up to rounding.
        assert_eq!(of([1, 2, 3], [0.3, 0.1 + 0.2, 0.3]), None);
        assert_eq!(of([1, 2, 3], [1.0, f64::NAN, 2.0]), None);
        assert_eq!(of([1, 2, 3], [1e300, -1e300, 0.0]), None);
        assert_eq!(correlation(&[1.0, 2.0], &[1.0, 2.0]), None);
        assert_near(of([10, 20, 30], [0.1, 0.2, 0.3]), 1.0);
    }

    #[test]
    fn repetition_counts_within_each_reply() {
        // 1234 2341 3412 4123 1234: one of five stood before. 7777 7777 7777: two of three. Three tokens have
        // no 4-gram, and what stood in another reply does not count.
        let rows: [Row<'_>; 4] = [
            (&[1, 2, 3, 4, 1, 2, 3, 4], None, 0, false),
            (&[7; 6], None, 1, false),
            (&[9; 3], None, 2, false),
            (&[1, 2, 3, 4], None, 3, false),
        ];
        assert_near(get(&rows, "monitor/repetition"), (0.2 + 2.0 / 3.0 + 0.0) / 3.0);
        assert_eq!(get(&rows[2..3], "monitor/repetition"), None);
    }

    #[test]
    fn replies_are_compared_within_their_group_in_any_order() {
        // Group 4: a, b, a, so 2 of 3 are distinct. Group 0: c, c, so 1 of 2. Their mean is 7/12. Group 1 has
        // one reply.
        let rows: [Row<'_>; 6] = [
            (&[1, 2], Some(0.0), 4, false),
            (&[3], Some(0.0), 0, false),
            (&[1], Some(1.0), 4, false),
            (&[3], Some(0.0), 0, false),
            (&[3], Some(0.0), 1, false),
            (&[1, 2], None, 4, true),
        ];
        assert_near(get(&rows, "monitor/distinct_replies"), 7.0 / 12.0);
        assert_near(get(&rows, "monitor/excluded"), 1.0 / 6.0);
    }

    #[test]
    fn groups_of_one_reply_are_compared_with_nothing() {
        let rows: [Row<'_>; 2] = [(&[1, 2], Some(0.0), 0, false), (&[3], Some(1.0), 1, false)];
        assert_eq!(metrics_of(&rows), [("monitor/excluded", 0.0)]);
        assert_eq!(metrics_of(&[]), []);
    }

    #[test]
    #[should_panic(expected = "every reply has one entry in each slice")]
    fn a_slice_of_another_rollout_is_a_bug() {
        let (scores, groups) = ([Some(1.0)], [0]);
        metrics(&Replies {
            ids: &[1, 2],
            lengths: &[1],
            scores: &scores,
            groups: &groups,
            truncated: &[false],
        });
    }

    #[test]
    fn a_reward_has_the_metrics_that_its_scores_allow() {
        // Mean 3, and squares of distances 4 + 0 + 4 = 8 over 2.
        let three = reward_metrics("math", &[Some(1.0), None, Some(3.0), Some(5.0)]);
        let expected = [("rewards/math/mean", 3.0), ("rewards/math/std", 2.0), ("rewards/math/failed", 0.25)];
        assert_eq!(three, expected.map(|(name, number)| (name.to_owned(), number)));
        assert_eq!(reward_metrics("math", &[None; 2]), [("rewards/math/failed".to_owned(), 1.0)]);
        assert_eq!(reward_metrics("math", &[Some(2.0)]).len(), 2);
        assert_eq!(reward_metrics("math", &[]), []);
    }

    #[test]
    fn turns_are_a_mean_over_replies() {
        assert_eq!(turns(&[1, 2, 3, 4]), Some(("monitor/turns", 2.5)));
        assert_eq!(turns(&[]), None);
    }

    #[test]
    fn quantiles_go_from_the_lowest_to_the_highest_score() {
        // In order of the score: replies 2 and 4 with 1, 3 with 2, 0 with 3, 5 with 5.
        let scores = [Some(3.0), None, Some(1.0), Some(2.0), Some(1.0), Some(5.0)];
        assert_eq!(by_quantile(&scores, 0), [0; 0]);
        assert_eq!(by_quantile(&scores, 1), [3]);
        assert_eq!(by_quantile(&scores, 2), [2, 5]);
        assert_eq!(by_quantile(&scores, 3), [2, 3, 5]);
        // The ranks 0, 4/3, 8/3 and 4 become 0, 1, 3 and 4.
        assert_eq!(by_quantile(&scores, 4), [2, 4, 0, 5]);
        assert_eq!(by_quantile(&scores, 9), [2, 4, 3, 0, 5]);
        assert_eq!(by_quantile(&[None; 3], 2), [0; 0]);
    }
}
