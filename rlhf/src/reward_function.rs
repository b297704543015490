//! The reward of a reply: a weighted list of terms.
//!
//! ```text
//!   reward_i = sum_f weight_f clip(normalise(score_f,i), -clip_f, clip_f)
//! ```
//! A term is a reward model of the run, or a [`Scorer`]: a verifier, a program, a server, a judge. This module
//! knows none of these. A reply whose score is missing in a term that counts (weight other than 0) has no
//! reward: it is excluded on all ranks alike, and counted, and never gets a 0 in its place. A term of weight 0
//! is a held-out verifier: it is measured and changes nothing.
//!
//! Scorers run on a thread beside the models: [`RewardFunction::begin`] hands them the replies and
//! [`RewardFunction::finish`] waits for the scores. One rank of each model replica scores its share, so a
//! reply is scored once in the whole job.

use std::ops::Range;
use std::thread::{self, JoinHandle};

use datasets::Message;
use parallel::{Axis, ProcessGroups};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::event::Metrics;
use crate::monitor;

/// A reply as scorers see it.
#[derive(Clone, Debug, PartialEq)]
pub struct ScoredReply {
    /// The turns of the prompt of the row.
    pub prompt: Vec<Message>,
    /// The text of the reply; with several turns, of the last one that the policy wrote.
    pub text: String,
    /// The expected answer of the row.
    pub answer: Option<String>,
    /// The number of tokens that the policy wrote.
    pub tokens: usize,
    /// Whether the reply ended by itself.
    pub stopped: bool,
}

/// Scores replies. It runs on a thread of its own, beside the models.
pub trait Scorer: Send {
    /// One score for each reply, in their order, or the reason why a reply has none.
    fn score(&mut self, replies: &[ScoredReply]) -> Vec<Result<f64, String>>;
}

/// What the scores of a term are brought to before they are clipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Normalization {
    /// Nothing: the score itself.
    #[default]
    None,
    /// `(score - mean) / std` with given numbers. OpenRLHF: `mean` and `std` of the reward model.
    Fixed {
        /// Subtracted from each score.
        mean: f64,
        /// What the difference is divided by.
        std: f64,
    },
    /// `(score - mean) / std` with the moments of all scores of the run so far, those of this rollout
    /// included. trlX: `RunningMoments`.
    Running,
}

/// One term of the reward.
#[derive(Clone, Debug, PartialEq)]
pub struct Term {
    /// The name in the metrics.
    pub name: String,
    /// The weight; 0 for a held-out verifier.
    pub weight: f64,
    /// The normalised score is clamped to plus or minus this value.
    pub clip: Option<f64>,
    /// The normalisation.
    pub normalization: Normalization,
}

/// The count, mean and summed squared deviations of the scores of a term (Welford 1962).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Moments {
    count: f64,
    mean: f64,
    squares: f64,
}

impl Moments {
    fn add(&mut self, score: f64) {
        self.count += 1.0;
        let distance = score - self.mean;
        self.mean += distance / self.count;
        self.squares += distance * (score - self.mean);
    }

    /// The standard deviation; 1 while all scores are equal.
    fn std(&self) -> f64 {
        let variance = self.squares / (self.count - 1.0).max(1.0);
        if variance > 0.0 { variance.sqrt() } else { 1.0 }
    }
}

/// The scores of some replies, by term.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rewards {
    /// The reward of each reply, `[B]`; `None` without a score that counts.
    pub totals: Vec<Option<f64>>,
    /// The scores as they came, `[F][B]`.
    pub by_term: Vec<Vec<Option<f64>>>,
}

impl Rewards {
    /// The rewards of the replies with these indices.
    #[must_use]
    pub fn select(&self, indices: &[usize]) -> Self {
        let of = |values: &Vec<Option<f64>>| indices.iter().map(|&index| values[index]).collect();
        Self { totals: of(&self.totals), by_term: self.by_term.iter().map(of).collect() }
    }

    /// Appends the rewards of other replies.
    pub fn append(&mut self, other: Self) {
        self.totals.extend(other.totals);
        self.by_term.resize(other.by_term.len().max(self.by_term.len()), Vec::new());
        for (own, other) in self.by_term.iter_mut().zip(other.by_term) {
            own.extend(other);
        }
    }
}

/// The terms of the reward with what scores them.
pub struct RewardFunction {
    /// The terms of the reward models, and then those of the scorers.
    terms: Vec<Term>,
    moments: Vec<Moments>,
    scorers: Scorers,
    /// Reasons of missing scores that are still to be told.
    reasons: Vec<String>,
}

/// The scorers, which are lent to a thread while they score.
enum Scorers {
    Idle(Vec<Box<dyn Scorer>>),
    Busy(JoinHandle<(Vec<Box<dyn Scorer>>, Share)>),
}

/// What the scorers of one model replica say of its share of the replies.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Share {
    /// The place of the replica, in whose order the shares follow one another.
    replica: usize,
    /// One list for each scorer.
    scores: Vec<Vec<Option<f64>>>,
    reasons: Vec<String>,
}

/// The most reasons that are told of one rollout.
const REASONS: usize = 3;

impl RewardFunction {
    /// Creates the function from the terms of the reward models, and then those of the scorers. A rank that
    /// scores no replies ([`scores_on`](Self::scores_on)) has no scorers.
    pub fn new(terms: Vec<Term>, scorers: Vec<Box<dyn Scorer>>) -> Self {
        let moments = vec![Moments::default(); terms.len()];
        Self { terms, moments, scorers: Scorers::Idle(scorers), reasons: Vec::new() }
    }

    /// The terms, those of reward models first.
    pub fn terms(&self) -> &[Term] {
        &self.terms
    }

    /// The moments of running normalisations, for a checkpoint.
    pub fn moments(&self) -> &[Moments] {
        &self.moments
    }

    /// Goes on with the moments of a checkpoint.
    pub fn set_moments(&mut self, moments: Vec<Moments>) {
        self.moments = moments;
    }

    /// Whether this rank scores replies for its model replica.
    pub fn scores_on(groups: &ProcessGroups) -> bool {
        let is_first = |axis: &Axis| groups.mesh().coordinate(*axis) == 0;
        Axis::ALL.iter().filter(|axis| !matches!(axis, Axis::Data | Axis::Sequence)).all(is_first)
    }

    /// The replies that this rank scores, of `count` replies of all ranks.
    pub fn share(groups: &ProcessGroups, count: usize) -> Range<usize> {
        if Self::scores_on(groups) { groups.model_replicas().shard_range(count) } else { 0..0 }
    }

    /// Hands this rank's share of the replies to the scorers, which score them on a thread.
    pub fn begin(&mut self, replies: Vec<ScoredReply>, groups: &ProcessGroups) {
        let Scorers::Idle(scorers) = &mut self.scorers else {
            unreachable!("the scores of a rollout are awaited before the next one is scored")
        };
        if scorers.is_empty() || !Self::scores_on(groups) {
            return;
        }
        let replica = groups.model_replicas().rank();
        let mut scorers = std::mem::take(scorers);
        self.scorers = Scorers::Busy(thread::spawn(move || {
            let mut share = Share { replica, ..Share::default() };
            for scorer in &mut scorers {
                let found = scorer.score(&replies);
                assert_eq!(found.len(), replies.len(), "a scorer answers for each reply");
                share.add(found);
            }
            (scorers, share)
        }));
    }

    /// Waits for the scores of all replies, `[scorer][B]`. All ranks call this.
    pub fn finish(&mut self, groups: &ProcessGroups) -> Result<Vec<Vec<Option<f64>>>, Error> {
        let own = match std::mem::replace(&mut self.scorers, Scorers::Idle(Vec::new())) {
            Scorers::Idle(scorers) => {
                self.scorers = Scorers::Idle(scorers);
                Vec::new()
            }
            Scorers::Busy(thread) => {
                let (scorers, share) = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                self.scorers = Scorers::Idle(scorers);
                vec![share]
            }
        };
        let mut shares = groups.world().all_gather_object(own)?;
        shares.sort_by_key(|share| share.replica);
        let mut scores = vec![Vec::new(); shares.first().map_or(0, |share| share.scores.len())];
        for share in shares {
            for (all, own) in scores.iter_mut().zip(share.scores) {
                all.extend(own);
            }
            self.reasons.extend(share.reasons);
        }
        Ok(scores)
    }

    /// Why replies had no score since this was last asked, a few reasons of many.
    pub fn take_reasons(&mut self) -> Vec<String> {
        let mut reasons = std::mem::take(&mut self.reasons);
        reasons.dedup();
        reasons.truncate(REASONS);
        reasons
    }

    /// Combines the scores of reward models, `[model][B]`, and of scorers, `[scorer][B]`. A score that is not
    /// finite counts as missing. All ranks have the same scores, and so the same moments.
    pub fn combine(
        &mut self,
        models: Vec<Vec<f32>>,
        scorers: Vec<Vec<Option<f64>>>,
        replies: usize,
    ) -> Rewards {
        let of_models = models.into_iter().map(|scores| {
            scores.into_iter().map(|score| Some(f64::from(score))).collect::<Vec<Option<f64>>>()
        });
        let mut by_term: Vec<Vec<Option<f64>>> = of_models.chain(scorers).collect();
        for (term, score) in self
            .terms
            .iter()
            .zip(&mut by_term)
            .flat_map(|(term, scores)| scores.iter_mut().map(move |score| (term, score)))
        {
            if let Some(value) = score.filter(|value| !value.is_finite()) {
                self.reasons.push(format!("`{}` gave the score {value}, which is not finite", term.name));
                *score = None;
            }
        }

        assert_eq!(by_term.len(), self.terms.len(), "each term has scores");
        let mut totals = vec![Some(0.0); replies];
        for ((term, moments), scores) in self.terms.iter().zip(&mut self.moments).zip(&by_term) {
            if term.normalization == Normalization::Running {
                scores.iter().flatten().for_each(|&score| moments.add(score));
            }
            if term.weight == 0.0 {
                continue;
            }
            for (total, score) in totals.iter_mut().zip(scores) {
                let weighted = score.map(|score| term.weight * term.shaped(score, moments));
                *total = total.zip(weighted).map(|(total, weighted)| total + weighted);
            }
        }
        Rewards { totals, by_term }
    }

    /// Adds the mean and the deviation of the scores of each term, and the share of the replies without one.
    pub fn push_metrics(&self, rewards: &Rewards, metrics: &mut Metrics) {
        for (term, scores) in self.terms.iter().zip(&rewards.by_term) {
            for (name, number) in monitor::reward_metrics(&term.name, scores) {
                metrics.push(&name, number);
            }
        }
    }
}

impl Term {
    /// The normalised and clipped score.
    fn shaped(&self, score: f64, moments: &Moments) -> f64 {
        let normalised = match self.normalization {
            Normalization::None => score,
            Normalization::Fixed { mean, std } => (score - mean) / std,
            Normalization::Running => (score - moments.mean) / moments.std(),
        };
        self.clip.map_or(normalised, |clip| normalised.clamp(-clip, clip))
    }
}

impl Share {
    /// Adds the results of one scorer.
    fn add(&mut self, found: Vec<Result<f64, String>>) {
        let mut scores = Vec::with_capacity(found.len());
        for result in found {
            if let Err(reason) = &result
                && !self.reasons.contains(reason)
                && self.reasons.len() < REASONS
            {
                self.reasons.push(reason.clone());
            }
            scores.push(result.ok());
        }
        self.scores.push(scores);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn term(name: &str, weight: f64) -> Term {
        Term { name: name.to_owned(), weight, clip: None, normalization: Normalization::None }
    }

    /// Gives the number of tokens, and fails for empty replies.
    struct Tokens;

    impl Scorer for Tokens {
        fn score(&mut self, replies: &[ScoredReply]) -> Vec<Result<f64, String>> {
            let of = |reply: &ScoredReply| match reply.tokens {
                0 => Err("an empty reply".to_owned()),
                tokens => Ok(tokens as f64),
            };
            replies.iter().map(of).collect()
        }
    }

    fn reply(tokens: usize) -> ScoredReply {
        ScoredReply { prompt: Vec::new(), text: String::new(), answer: None, tokens, stopped: true }
    }

    #[test]
    fn a_reply_without_a_score_that_counts_has_no_reward() {
        let groups = ProcessGroups::single();
        let terms = vec![term("model", 2.0), term("length", 0.5), term("held_out", 0.0)];
        let mut function = RewardFunction::new(terms, vec![Box::new(Tokens), Box::new(Tokens)]);
        function.begin(vec![reply(3), reply(0)], &groups);
        let scores = function.finish(&groups).unwrap();
        assert_eq!(scores, [[Some(3.0), None], [Some(3.0), None]]);
        let rewards = function.combine(vec![vec![1.0, 1.0]], scores, 2);
        // 2 x 1 + 0.5 x 3.
        assert_eq!(rewards.totals, [Some(3.5), None]);
        assert_eq!(function.take_reasons(), ["an empty reply"]);

        let mut metrics = Metrics::default();
        function.push_metrics(&rewards, &mut metrics);
        assert_eq!(metrics.get("rewards/length/failed"), Some(0.5));
        assert_eq!(metrics.get("rewards/model/failed"), Some(0.0));
        assert_eq!(metrics.get("rewards/held_out/mean"), Some(3.0));
    }

    #[test]
    fn a_failure_of_a_held_out_verifier_excludes_nobody() {
        let mut function = RewardFunction::new(vec![term("model", 1.0), term("held_out", 0.0)], Vec::new());
        let rewards = function.combine(vec![vec![1.0], vec![f32::NAN]], Vec::new(), 1);
        assert_eq!(rewards.totals, [Some(1.0)]);
        assert_eq!(rewards.by_term[1], [None]);
    }

    #[test]
    fn normalisations_by_hand() {
        let of = |normalization, clip| Term { clip, normalization, ..term("a", 1.0) };
        let fixed = Normalization::Fixed { mean: 1.0, std: 2.0 };
        let mut function = RewardFunction::new(vec![of(fixed, None)], Vec::new());
        assert_eq!(function.combine(vec![vec![5.0, 0.0]], Vec::new(), 2).totals, [Some(2.0), Some(-0.5)]);
        let mut clipped = RewardFunction::new(vec![of(fixed, Some(1.0))], Vec::new());
        assert_eq!(clipped.combine(vec![vec![5.0, 0.0]], Vec::new(), 2).totals, [Some(1.0), Some(-0.5)]);

        // The scores 1 and 3 have the mean 2 and the deviation sqrt(2); with 5, the mean is 3 and the
        // deviation 2.
        let mut running = RewardFunction::new(vec![of(Normalization::Running, None)], Vec::new());
        let first = running.combine(vec![vec![1.0, 3.0]], Vec::new(), 2).totals;
        assert!((first[1].unwrap() - 0.5f64.sqrt()).abs() < 1e-12, "{first:?}");
        let mut resumed = RewardFunction::new(vec![of(Normalization::Running, None)], Vec::new());
        resumed.set_moments(running.moments().to_vec());
        let second = resumed.combine(vec![vec![5.0]], Vec::new(), 1).totals;
        assert!((second[0].unwrap() - 1.0).abs() < 1e-12, "{second:?}");
    }

    #[test]
    fn equal_scores_are_not_divided_by_nothing() {
        let of = Term { normalization: Normalization::Running, ..term("a", 1.0) };
        let mut function = RewardFunction::new(vec![of], Vec::new());
        assert_eq!(function.combine(vec![vec![4.0, 4.0]], Vec::new(), 2).totals, [Some(0.0), Some(0.0)]);
    }
}
