//! Best-of-n and rejection sampling: of several replies to a prompt, the ones with the highest scores.
//!
//! ```text
//!   best of n         y_k with k = argmax_i r(x, y_i),  y_1 ... y_n drawn from the policy
//!   KL(best of n || policy) <= ln n - (n - 1) / n       in nats, for every prompt
//! ```
//! The bound is theorem 3.1 of Beirami et al. 2024 (arXiv 2401.01879). It is no equality: where few replies
//! are possible, the divergence is far below it. n is the number of samples that were compared, so the bound
//! says nothing of a prompt some of whose samples have no score.
//!
//! Rejection sampling makes rows to train on of such replies: of the best one (RAFT; Dong et al. 2023, arXiv
//! 2304.06767), or of all whose score reaches a threshold (`ReST`; Gulcehre et al. 2023, arXiv 2308.08998),
//! where equal replies count once (RFT; Yuan et al. 2023, arXiv 2308.01825).
//!
//! A reply without a score is never kept, and nothing stands in for its score. This module knows scores and
//! texts. It generates nothing and scores nothing.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::check;
use crate::setting::refuse;

/// The `[reject]` section: which replies become rows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RejectConfig {
    /// Which replies to a prompt are kept: `best`, the ones with the highest scores, or `above`, the ones
    /// whose score is at least `threshold`.
    pub keep: Keep,
    /// The lowest score that `keep = "above"` keeps. If absent, `keep` has to be `best`.
    pub threshold: Option<f64>,
    /// The most replies to a prompt that are kept, the highest scores first. If absent, 1 with `best` and all
    /// with `above`.
    pub per_prompt: Option<usize>,
    /// Whether replies that were cut at `[ppo] max_new_tokens` may be kept. As rows they teach to stop in the
    /// middle of a sentence.
    pub keep_truncated: bool,
}

/// Which replies to a prompt are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    /// The ones with the highest scores.
    #[default]
    Best,
    /// The ones whose score reaches the threshold.
    Above,
}

/// A reply to a prompt that may become a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate<'a> {
    /// The score; `None` for a reply without one.
    pub score: Option<f64>,
    /// The text of the reply.
    pub text: &'a str,
    /// Whether the reply ended by itself.
    pub stopped: bool,
}

/// What became of the replies of rejection sampling.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RejectSummary {
    /// The prompts.
    pub prompts: usize,
    /// The prompts of which a reply was kept.
    pub prompts_kept: usize,
    /// The replies.
    pub samples: usize,
    /// The replies that were kept.
    pub kept: usize,
    /// The replies without a score.
    pub excluded: usize,
    /// The replies that did not end by themselves.
    pub truncated: usize,
    /// The replies without a visible character, which are never kept.
    pub blank: usize,
    /// The different replies to each prompt, added up.
    pub distinct: usize,
    /// The mean score of the replies that have one.
    pub mean_score: Option<f64>,
    /// The mean score of the replies that were kept.
    pub mean_score_kept: Option<f64>,
    /// The summed scores of the replies that have one.
    #[serde(skip)]
    sum: f64,
    /// The summed scores of the replies that were kept.
    #[serde(skip)]
    sum_kept: f64,
}

/// An upper bound of the KL divergence of the best of `samples` replies from the policy that they were drawn
/// from, in nats. All samples are compared: each of them has a score.
pub fn kl_bound(samples: usize) -> f64 {
    let samples = samples.max(1) as f64;
    samples.ln() - (samples - 1.0) / samples
}

/// The index of the highest score, and of equal ones the first. `None` if no reply has a score.
pub fn best(scores: &[Option<f64>]) -> Result<Option<usize>, Error> {
    Ok(by_score(scores.iter().copied())?.first().map(|&(index, _)| index))
}

impl RejectConfig {
    /// Refuses settings that contradict each other.
    pub fn check(&self) -> Result<(), Error> {
        match (self.keep, self.threshold) {
            (Keep::Above, None) => {
                let wanted = "needs a threshold: give the lowest score that is kept, or take keep = \"best\"";
                return refuse("reject", "keep", &"above", wanted);
            }
            (Keep::Best, Some(threshold)) => {
                let wanted = "has no effect on keep = \"best\": take keep = \"above\", with per_prompt = 1 for \
                              the best reply if its score is high enough";
                return refuse("reject", "threshold", &threshold, wanted);
            }
            (Keep::Above, Some(threshold)) if !threshold.is_finite() => {
                return refuse("reject", "threshold", &threshold, "must be a finite number");
            }
            _ => {}
        }
        match self.per_prompt {
            Some(0) => refuse("reject", "per_prompt", &0, "must be at least 1, or nothing is ever kept"),
            _ => Ok(()),
        }
    }

    /// The replies to one prompt that are kept, by their indices: the highest score first, and of equal
    /// scores the reply that was drawn first. Of replies with one text only the first in this order is kept.
    pub fn select(&self, candidates: &[Candidate<'_>]) -> Result<Vec<usize>, Error> {
        let mut ordered = by_score(candidates.iter().map(|candidate| candidate.score))?;
        ordered.retain(|&(index, score)| {
            self.may_keep(&candidates[index]) && self.threshold.is_none_or(|threshold| score >= threshold)
        });
        let mut texts = BTreeSet::new();
        ordered.retain(|&(index, _)| texts.insert(candidates[index].text));
        let most = self.per_prompt.unwrap_or(match self.keep {
            Keep::Best => 1,
            Keep::Above => usize::MAX,
        });
        Ok(ordered.into_iter().map(|(index, _)| index).take(most).collect())
    }

    /// Whether a reply can be a row, whatever its score.
    fn may_keep(&self, candidate: &Candidate<'_>) -> bool {
        (candidate.stopped || self.keep_truncated) && !candidate.is_blank()
    }
}

impl Candidate<'_> {
    fn is_blank(&self) -> bool {
        self.text.trim().is_empty()
    }
}

impl RejectSummary {
    /// Counts the replies to one prompt, of which those with the indices `kept` were kept.
    pub fn add(&mut self, candidates: &[Candidate<'_>], kept: &[usize]) {
        let texts: BTreeSet<&str> = candidates.iter().map(|candidate| candidate.text).collect();
        self.prompts += 1;
        self.prompts_kept += usize::from(!kept.is_empty());
        self.samples += candidates.len();
        self.kept += kept.len();
        self.excluded += candidates.iter().filter(|reply| reply.score.is_none()).count();
        self.truncated += candidates.iter().filter(|reply| !reply.stopped).count();
        self.blank += candidates.iter().filter(|reply| reply.is_blank()).count();
        self.distinct += texts.len();

        self.sum += candidates.iter().filter_map(|candidate| candidate.score).sum::<f64>();
        self.sum_kept += kept.iter().filter_map(|&index| candidates[index].score).sum::<f64>();
        let mean = |sum: f64, count: usize| (count > 0).then(|| sum / count as f64);
        self.mean_score = mean(self.sum, self.samples - self.excluded);
        self.mean_score_kept = mean(self.sum_kept, self.kept);
    }
}

/// The replies that have a score, with their indices: the highest score first, and equal ones in their order.
fn by_score(scores: impl Iterator<Item = Option<f64>>) -> Result<Vec<(usize, f64)>, Error> {
    let scores: Vec<Option<f64>> = scores.collect();
    let numbers: Vec<f64> = scores.iter().map(|score| score.unwrap_or(0.0)).collect();
    check::finite("the score of a reply", &numbers)?;
    let mut ordered: Vec<(usize, f64)> =
        scores.into_iter().enumerate().filter_map(|(index, score)| Some((index, score?))).collect();
    // Sorting keeps the order of equal scores, and finite numbers can all be compared.
    ordered.sort_by(|(_, left), (_, right)| right.partial_cmp(left).unwrap_or(Ordering::Equal));
    Ok(ordered)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(score: f64, text: &str) -> Candidate<'_> {
        Candidate { score: Some(score), text, stopped: true }
    }

    fn above(threshold: f64) -> RejectConfig {
        RejectConfig { keep: Keep::Above, threshold: Some(threshold), ..RejectConfig::default() }
    }

    #[test]
    fn the_bound_by_hand() {
        // ln 2 = 0.693147 less 1/2; ln 4 = 1.386294 less 3/4.
        for (samples, bound) in [(1, 0.0), (2, 0.193_147), (4, 0.636_294)] {
            assert!((kl_bound(samples) - bound).abs() < 1e-6, "{samples}");
        }
    }

    /// Two equally likely replies of different scores: the better one is the best of n unless all n samples
    /// are the worse one, which has the probability 2^-n.
    #[test]
    fn the_divergence_of_two_possible_replies_is_below_the_bound() {
        let divergence = |samples: i32| {
            let worse = 0.5f64.powi(samples);
            [worse, 1.0 - worse].iter().map(|share| share * (share / 0.5).ln()).sum::<f64>()
        };
        // 3/4 ln(3/2) + 1/4 ln(1/2) = 0.304099 - 0.173287.
        assert!((divergence(2) - 0.130_812).abs() < 1e-6);
        for samples in 2..20 {
            assert!(divergence(samples) < kl_bound(samples as usize), "{samples}");
        }
    }

    #[test]
    fn the_best_reply_has_the_first_of_the_highest_scores() {
        assert_eq!(best(&[Some(-2.0), None, Some(1.5), Some(1.5), Some(0.0)]).unwrap(), Some(2));
        // Nothing stands in for a missing score, also where all others are below 0.
        assert_eq!(best(&[None, Some(-7.0)]).unwrap(), Some(1));
        assert_eq!(best(&[None, None]).unwrap(), None);
        assert_eq!(best(&[]).unwrap(), None);
        // 0 and -0 are equal.
        assert_eq!(best(&[Some(-0.0), Some(0.0)]).unwrap(), Some(0));
        let error = best(&[None, Some(f64::NAN), Some(1.0)]).unwrap_err();
        assert!(matches!(error, Error::NotFinite { index: 1, .. }), "{error}");
    }

    #[test]
    fn best_keeps_one_reply_and_per_prompt_more() {
        let replies = [reply(1.0, "a"), reply(3.0, "b"), reply(2.0, "c"), reply(3.0, "d")];
        let config = RejectConfig::default();
        assert_eq!(config.select(&replies).unwrap(), [1]);
        let config = RejectConfig { per_prompt: Some(3), ..config };
        assert_eq!(config.select(&replies).unwrap(), [1, 3, 2]);
    }

    #[test]
    fn a_score_at_the_threshold_is_kept() {
        let replies = [reply(0.0, "a"), reply(1.0, "b"), reply(0.999, "c"), reply(1.5, "d")];
        assert_eq!(above(1.0).select(&replies).unwrap(), [3, 1]);
        assert_eq!(above(2.0).select(&replies).unwrap(), [0usize; 0]);
        let config = RejectConfig { per_prompt: Some(1), ..above(0.0) };
        assert_eq!(config.select(&replies).unwrap(), [3]);
    }

    #[test]
    fn equal_replies_are_kept_once() {
        let replies = [reply(1.0, "a"), reply(2.0, "a"), reply(1.0, "b"), reply(2.0, "b")];
        assert_eq!(above(0.0).select(&replies).unwrap(), [1, 3]);
    }

    #[test]
    fn replies_without_a_score_cut_ones_and_blank_ones_are_no_rows() {
        let replies = [
            Candidate { score: None, ..reply(0.0, "a") },
            Candidate { stopped: false, ..reply(5.0, "b") },
            reply(4.0, " \n"),
            reply(-1.0, "c"),
        ];
        assert_eq!(RejectConfig::default().select(&replies).unwrap(), [3]);
        let config = RejectConfig { keep_truncated: true, ..RejectConfig::default() };
        assert_eq!(config.select(&replies).unwrap(), [1]);
        assert_eq!(RejectConfig::default().select(&replies[..3]).unwrap(), [0usize; 0]);
    }

    #[test]
    fn the_summary_by_hand() {
        let mut summary = RejectSummary::default();
        let first = [reply(1.0, "a"), reply(4.0, "b"), Candidate { score: None, ..reply(0.0, "a") }];
        summary.add(&first, &[1]);
        let second = [Candidate { stopped: false, ..reply(-2.0, "c") }, reply(1.0, " "), reply(1.0, "d")];
        summary.add(&second, &[]);
        // The scores 1, 4, -2, 1 and 1 have the sum 5.
        let wanted = RejectSummary {
            prompts: 2,
            prompts_kept: 1,
            samples: 6,
            kept: 1,
            excluded: 1,
            truncated: 1,
            blank: 1,
            distinct: 5,
            mean_score: Some(1.0),
            mean_score_kept: Some(4.0),
            sum: 5.0,
            sum_kept: 4.0,
        };
        assert_eq!(summary, wanted);
        let json = serde_json::to_value(&summary).unwrap();
        assert_eq!((&json["mean_score"], json.get("sum")), (&serde_json::json!(1.0), None));
        // Without a score there is no mean.
        let mut none = RejectSummary::default();
        none.add(&[Candidate { score: None, ..reply(0.0, "a") }], &[]);
        assert_eq!((none.mean_score, none.mean_score_kept), (None, None));
    }

    #[test]
    fn settings_that_contradict_each_other_are_named() {
        assert!(RejectConfig::default().check().is_ok() && above(0.5).check().is_ok());
        for (config, words) in [
            (RejectConfig { threshold: None, ..above(0.0) }, "[reject] keep = above: needs a threshold"),
            (RejectConfig { keep: Keep::Best, ..above(0.5) }, "[reject] threshold = 0.5: has no effect"),
            (above(f64::NAN), "[reject] threshold = NaN"),
            (RejectConfig { per_prompt: Some(0), ..RejectConfig::default() }, "[reject] per_prompt = 0"),
        ] {
            let error = config.check().unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
