//! Best of n: what a reward model gains if it picks one of n replies.
//!
//! A prompt has N replies, each with a score of the reward model and a gold value: the score of a larger
//! reward model, the judgement of a person, or whether the answer is right. The estimate for n is the mean,
//! over all subsets of n of the N replies, of the gold value of the reply with the highest score. It is
//! unbiased, and it has a closed form over the replies in ascending order of score (Nakano et al. 2021, arXiv
//! 2112.09332, appendix I):
//!
//! ```text
//! sum over i of C(i - 1, n - 1) / C(N, n) gold_(i)
//! ```
//!
//! Replies with equal scores share the weights of their places equally. The mean over prompts has Student's
//! interval; the gain over n = 1 is paired by prompt. The gold best is the same with the gold value as score,
//! the most that any reward model can reach. The KL divergence of best of n from the policy is at most
//!
//! ```text
//! ln n - (n - 1) / n
//! ```
//!
//! (Stiennon et al. 2020, arXiv 2009.01325, appendix G.3; that it is a bound: Beirami et al. 2024, arXiv
//! 2401.01879).
//!
//! n is 1, 2, 4 and so on up to the fewest replies that a prompt has, and that number itself. This file does
//! not know where the gold values are from.

use serde::Serialize;

use super::entry::Facts;
use super::scored::ScoredEntry;
use crate::Error;
use crate::statistics::{Estimate, estimate};

/// The curve over n.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BestOfN {
    /// The prompts.
    pub prompts: usize,
    /// The fewest replies of a prompt.
    pub fewest_replies: usize,
    /// The most replies of a prompt.
    pub most_replies: usize,
    /// The points, ascending in n.
    pub points: Vec<BestOfNPoint>,
}

/// What picking one of n replies gives.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BestOfNPoint {
    /// The number of replies to pick from.
    pub n: usize,
    /// `ln n - (n - 1) / n`, in nats.
    pub kl_bound: f64,
    /// The gold value of the reply with the highest score.
    pub gold: Estimate,
    /// The gain over n = 1, paired by prompt; `None` for n = 1.
    pub gain: Option<Estimate>,
    /// The highest gold value.
    pub gold_best: Estimate,
    /// The highest score, which is what picking maximizes.
    pub score: Estimate,
}

/// The replies of a prompt.
struct Candidates<'a> {
    scores: &'a [f64],
    gold: &'a [f64],
}

impl<'a> Candidates<'a> {
    fn of(scored: &ScoredEntry<'a>) -> Option<Self> {
        match &scored.entry.facts {
            Facts::Gold(gold) => Some(Self { scores: scored.scores, gold }),
            Facts::Pair | Facts::Completions { .. } => None,
        }
    }
}

/// The curve of at least two prompts.
pub(super) fn curve(entries: &[ScoredEntry<'_>]) -> Result<BestOfN, Error> {
    let prompts: Vec<Candidates<'_>> = entries.iter().filter_map(Candidates::of).collect();
    if prompts.len() < 2 {
        return Err(Error::TooFew { what: "a best-of-n curve", needed: 2, got: prompts.len() });
    }
    let replies = prompts.iter().map(|prompt| prompt.scores.len());
    let (fewest_replies, most_replies) = (replies.clone().min().unwrap_or(1), replies.max().unwrap_or(1));
    let points = sizes(fewest_replies).into_iter().map(|n| point(&prompts, n));
    let points = points.collect::<Result<_, Error>>()?;
    Ok(BestOfN { prompts: prompts.len(), fewest_replies, most_replies, points })
}

fn point(prompts: &[Candidates<'_>], n: usize) -> Result<BestOfNPoint, Error> {
    let mean =
        |value: &dyn Fn(&Candidates<'_>) -> f64| estimate(&prompts.iter().map(value).collect::<Vec<f64>>());
    let picked = |prompt: &Candidates<'_>, n| expected_pick(prompt.scores, prompt.gold, n);
    let gain = |prompt: &Candidates<'_>| picked(prompt, n) - picked(prompt, 1);
    Ok(BestOfNPoint {
        n,
        kl_bound: kl_bound(n),
        gold: mean(&|prompt| picked(prompt, n))?,
        gain: if n > 1 { Some(mean(&gain)?) } else { None },
        gold_best: mean(&|prompt| expected_pick(prompt.gold, prompt.gold, n))?,
        score: mean(&|prompt| expected_pick(prompt.scores, prompt.scores, n))?,
    })
}

/// 1, 2, 4 and so on below `most`, and `most`.
fn sizes(most: usize) -> Vec<usize> {
    let powers = std::iter::successors(Some(1), |n: &usize| n.checked_mul(2));
    let mut sizes: Vec<usize> = powers.take_while(|n| *n < most).collect();
    sizes.push(most);
    sizes
}

/// `ln n - (n - 1) / n`.
fn kl_bound(n: usize) -> f64 {
    let n = n as f64;
    n.ln() - (n - 1.0) / n
}

/// The mean of `gold` of the highest of n `scores`, over all subsets. n is at most the number of scores.
fn expected_pick(scores: &[f64], gold: &[f64], n: usize) -> f64 {
    let mut ascending: Vec<usize> = (0..scores.len()).collect();
    ascending.sort_by(|&left, &right| scores[left].total_cmp(&scores[right]));
    let mut sum = 0.0;
    let mut below = 0;
    for equal in ascending.chunk_by(|&left, &right| scores[left] == scores[right]) {
        let reach = below + equal.len();
        let weight = within(reach, scores.len(), n) - within(below, scores.len(), n);
        let mean = equal.iter().map(|&index| gold[index]).sum::<f64>() / equal.len() as f64;
        sum += weight * mean;
        below = reach;
    }
    sum
}

/// `C(part, n) / C(whole, n)`: the share of subsets of n that lie within the first `part` replies.
fn within(part: usize, whole: usize, n: usize) -> f64 {
    if part < n {
        return 0.0;
    }
    (0..n).map(|taken| (part - taken) as f64 / (whole - taken) as f64).product()
}

#[cfg(test)]
mod tests {
    use datasets::{Message, RowLocation};

    use super::super::data::Entry;
    use super::*;

    #[track_caller]
    fn assert_close(got: f64, expected: f64) {
        assert!((got - expected).abs() < 1e-14, "got {got}, expected {expected}");
    }

    /// The mean over all subsets, picked one by one; equal scores share the pick.
    fn enumerated(scores: &[f64], gold: &[f64], n: usize) -> f64 {
        let (mut sum, mut subsets) = (0.0, 0.0);
        for bits in 0..1_u32 << scores.len() {
            let subset: Vec<usize> = (0..scores.len()).filter(|index| bits >> index & 1 == 1).collect();
            if subset.len() != n {
                continue;
            }
            let highest = subset.iter().map(|&index| scores[index]).fold(f64::NEG_INFINITY, f64::max);
            let best: Vec<usize> = subset.into_iter().filter(|&index| scores[index] == highest).collect();
            sum += best.iter().map(|&index| gold[index]).sum::<f64>() / best.len() as f64;
            subsets += 1.0;
        }
        sum / subsets
    }

    #[test]
    fn the_closed_form_is_the_mean_over_all_subsets() {
        let scores = [0.5, -1.0, 2.0, 0.5, 0.25, 2.0, -3.0, 0.5];
        let gold = [1.0, 0.0, 0.25, 0.5, 1.0, 0.75, 0.0, 0.125];
        for n in 1..=8 {
            assert_close(expected_pick(&scores, &gold, n), enumerated(&scores, &gold, n));
        }
        // By hand: of three replies, the best of two is the highest in two subsets and the middle in one.
        assert_close(expected_pick(&[3.0, 1.0, 2.0], &[9.0, 1.0, 3.0], 2), (9.0 + 9.0 + 3.0) / 3.0);
    }

    #[test]
    fn the_curve_stands_between_chance_and_the_gold_best() {
        let gold = [vec![0.0, 1.0, 2.0, 3.0], vec![1.0, 0.0, 0.0, 0.0, 1.0]];
        let entries = gold.clone().map(|gold| Entry {
            at: RowLocation { path: "replies.jsonl".into(), row: 1 },
            group: String::new(),
            prompt: vec![Message::user("q")],
            replies: vec![String::new(); gold.len()],
            facts: Facts::Gold(gold),
        });
        let scores = [vec![0.0, 1.0, 3.0, 2.0], vec![0.0, 1.0, 2.0, 3.0, 4.0]];
        let scored: Vec<ScoredEntry<'_>> =
            entries.iter().zip(&scores).map(|(entry, scores)| ScoredEntry { entry, scores }).collect();
        let found = curve(&scored).unwrap();
        assert_eq!((found.prompts, found.fewest_replies, found.most_replies), (2, 4, 5));
        let n: Vec<usize> = found.points.iter().map(|point| point.n).collect();
        assert_eq!(n, [1, 2, 4]);
        // By hand. n = 1: the means 1.5 and 0.4. n = 4: the first prompt picks 2; the second picks the last
        // reply in four of five subsets and the fourth in one.
        assert_close(found.points[0].gold.mean, f64::midpoint(1.5, 0.4));
        assert_close(found.points[2].gold.mean, f64::midpoint(2.0, 0.8));
        assert_close(found.points[2].gain.unwrap().mean, f64::midpoint(0.5, 0.4));
        assert_close(found.points[2].gold_best.mean, f64::midpoint(3.0, 1.0));
        assert_close(found.points[1].kl_bound, 2.0_f64.ln() - 0.5);
        assert_eq!((found.points[0].kl_bound, found.points[0].gain), (0.0, None));
        assert!(matches!(curve(&scored[..1]), Err(Error::TooFew { needed: 2, got: 1, .. })));
        assert_eq!((sizes(1), sizes(5), sizes(8)), (vec![1], vec![1, 2, 4, 5], vec![1, 2, 4, 8]));
    }
}
