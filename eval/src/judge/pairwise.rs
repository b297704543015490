//! Comparisons of two models, and ratings of several models from them.
//!
//! The two orders of a pair give one outcome: what both say, otherwise a tie. The win rate is
//!
//! ```text
//! (points of the system) / (votes)
//! ```
//!
//! With three verdicts, a pair is one vote, and a tie half a point. With five, each order votes by itself,
//! and a strong verdict has three votes, as in Arena-Hard; wins, ties and losses then count pairs, and need
//! not add up to the win rate. The independent units are the questions: the interval is that of
//! [`weighted_rate`], whose items are the verdicts that vote, and whose clusters are the questions.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::answers::{Answers, check};
use super::judgement::{Heard, JudgedBy, warning_of_few, warnings_of_missing};
use super::question::Question;
use super::verdict::{Preference, VerdictKind};
use crate::Error;
use crate::statistics::{
    Anchor, Estimate, Judgement, LengthControlled, Ratings, Tally, Vote, bradley_terry, length_controlled,
    weighted_rate,
};

/// A length-controlled win rate that is farther than this from the raw one tells that length decides.
const FAR: f64 = 0.1;
/// It must also be farther than this part of the way to the end of the scale.
const FAR_PART: f64 = 0.25;

/// What the judge said about a pair in one order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Order {
    /// The verdict, with the system as the first, whatever the order was.
    pub verdict: Option<Preference>,
    /// Why the judge gave no answer. Without it and without a verdict, its replies could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// The replies of the judge: the second one follows a reminder.
    pub replies: Vec<String>,
}

impl From<Heard<Preference>> for Order {
    fn from(heard: Heard<Preference>) -> Self {
        Self { verdict: heard.verdict, failed: heard.failed, replies: heard.replies }
    }
}

/// Two answers to one turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JudgedPair {
    /// The index of the question.
    pub row: usize,
    /// The id of the question.
    pub question: String,
    /// Its category.
    pub category: String,
    /// The turn, from 1.
    pub turn: usize,
    /// The verdicts: the system first, then the baseline first. Rewards have no order, and one verdict.
    pub orders: Vec<Order>,
    /// The lengths of the answers of system and baseline, in characters.
    pub lengths: [usize; 2],
    /// The rewards of system and baseline, if a reward model judged and gave numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rewards: Option<[f64; 2]>,
}

/// The win rate on some of the pairs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupRate {
    /// The category, or the number of the turn.
    pub name: String,
    /// The win rate of the system. `None` if nothing was judged.
    pub win_rate: Option<Estimate>,
    /// The pairs that the system won.
    pub wins: u64,
    /// The pairs without a winner.
    pub ties: u64,
    /// The pairs that the baseline won.
    pub losses: u64,
}

/// What became of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The system's answer is better in all orders.
    Win,
    /// The orders disagree, or are ties.
    Tie,
    /// The baseline's answer is better in all orders.
    Loss,
    /// A verdict could not be read.
    Unparsed,
    /// The judge could not answer.
    Failed,
}

impl JudgedPair {
    /// What became of the pair.
    pub fn outcome(&self) -> Outcome {
        if self.orders.iter().any(|order| order.failed.is_some()) {
            return Outcome::Failed;
        }
        let Some(verdicts) = self.verdicts() else { return Outcome::Unparsed };
        if verdicts.iter().all(|verdict| verdict.points() == 1.0) {
            Outcome::Win
        } else if verdicts.iter().all(|verdict| verdict.points() == 0.0) {
            Outcome::Loss
        } else {
            Outcome::Tie
        }
    }

    /// Whether the orders name different winners, or one of them a tie.
    fn disagrees(&self) -> bool {
        let verdicts = self.verdicts().unwrap_or_default();
        verdicts.windows(2).any(|pair| pair[0].points() != pair[1].points())
    }

    /// The verdicts of all orders. `None` if one is missing.
    fn verdicts(&self) -> Option<Vec<Preference>> {
        self.orders
            .iter()
            .map(|order| order.verdict)
            .collect::<Option<Vec<_>>>()
            .filter(|all| !all.is_empty())
    }

    /// The verdicts that vote: the points of the system, and the number of votes. None without an outcome.
    fn votes(&self, kind: VerdictKind) -> Vec<(f64, u64)> {
        match (self.outcome(), kind) {
            (Outcome::Unparsed | Outcome::Failed, _) => Vec::new(),
            (_, VerdictKind::FiveWay) => {
                let verdicts = self.verdicts().unwrap_or_default();
                verdicts.into_iter().map(|verdict| (verdict.points(), verdict.votes())).collect()
            }
            (Outcome::Win, _) => vec![(1.0, 1)],
            (Outcome::Tie, _) => vec![(0.5, 1)],
            (Outcome::Loss, _) => vec![(0.0, 1)],
        }
    }
}

/// What a judge says about a system and a baseline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Who judged.
    pub by: JudgedBy,
    /// The kind of verdict.
    pub verdict: VerdictKind,
    /// The name of the system.
    pub system: String,
    /// The name of the baseline.
    pub baseline: String,
    /// The pairs that the system won.
    pub wins: u64,
    /// The pairs without a winner.
    pub ties: u64,
    /// The pairs that the baseline won.
    pub losses: u64,
    /// The win rate of the system; a tie is half a win. `None` if nothing was judged.
    pub win_rate: Option<Estimate>,
    /// The win rate at equal lengths. If it is missing, a warning says why.
    pub length_controlled: Option<LengthControlled>,
    /// The win rates by turn.
    pub turns: Vec<GroupRate>,
    /// The win rates by category.
    pub categories: Vec<GroupRate>,
    /// The mean lengths of the answers of system and baseline, in characters.
    pub mean_lengths: [f64; 2],
    /// The share of pairs whose orders disagree. `None` if no pair has two verdicts.
    pub disagreements: Option<f64>,
    /// The pairs whose verdict could not be read. They do not count.
    pub unparsed: usize,
    /// The pairs that the judge could not answer. They do not count.
    pub failed: usize,
    /// Whether the judge is the reward that one of the models was trained on.
    pub biased: bool,
    /// The mean rewards of system and baseline, if a reward model judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_rewards: Option<[f64; 2]>,
    /// What speaks against these numbers.
    pub warnings: Vec<String>,
    /// All pairs.
    pub items: Vec<JudgedPair>,
}

impl Comparison {
    pub(super) fn new(
        by: JudgedBy,
        verdict: VerdictKind,
        [system, baseline]: [String; 2],
        items: Vec<JudgedPair>,
    ) -> Result<Self, Error> {
        if system == baseline {
            return Err(Error::SelfComparison { model: system });
        }
        let count = |wanted| items.iter().filter(|item| item.outcome() == wanted).count();
        let [wins, ties, losses] = [Outcome::Win, Outcome::Tie, Outcome::Loss].map(count);
        let [unparsed, failed] = [Outcome::Unparsed, Outcome::Failed].map(count);
        let judged = wins + ties + losses;
        let ordered = items.iter().filter(|item| item.verdicts().is_some_and(|verdicts| verdicts.len() == 2));
        let ordered: Vec<&JudgedPair> = ordered.collect();
        let disagreeing = ordered.iter().filter(|item| item.disagrees()).count();
        let mean = |side: usize| {
            items.iter().map(|item| item.lengths[side] as f64).sum::<f64>() / items.len().max(1) as f64
        };

        let questions = questions(verdict, items.iter());
        let mut warnings: Vec<String> = warning_of_few("pairs", judged).into_iter().collect();
        warnings.extend(warnings_of_missing("pairs", judged, unparsed, failed));
        let controlled = match controlled(&questions) {
            Ok(controlled) => {
                warnings.extend(length_warning(&controlled));
                Some(controlled)
            }
            Err(error) => {
                warnings.push(error.to_string());
                None
            }
        };
        Ok(Self {
            by,
            verdict,
            system,
            baseline,
            wins: wins as u64,
            ties: ties as u64,
            losses: losses as u64,
            win_rate: rate(verdict, items.iter())?,
            length_controlled: controlled,
            turns: rates(verdict, &items, |item| (item.turn, item.turn.to_string()))?,
            categories: rates(verdict, &items, |item| (0, item.category.clone()))?,
            mean_lengths: [mean(0), mean(1)],
            disagreements: (!ordered.is_empty()).then(|| disagreeing as f64 / ordered.len() as f64),
            unparsed,
            failed,
            biased: false,
            mean_rewards: None,
            warnings,
            items,
        })
    }

    /// Turns the rows among the judged questions into rows among all: `rows` has them for each judged one.
    pub fn place_among(&mut self, rows: &[usize]) {
        self.items.iter_mut().for_each(|item| item.row = rows[item.row]);
    }

    /// The votes on one pair as a tally, for ratings of several models.
    fn tally(&self, item: &JudgedPair) -> Tally {
        let (first, second) = (self.system.clone(), self.baseline.clone());
        let mut tally = Tally { first, second, wins: 0, ties: 0, losses: 0 };
        for (points, votes) in item.votes(self.verdict) {
            let count = match points {
                1.0 => &mut tally.wins,
                0.0 => &mut tally.losses,
                _ => &mut tally.ties,
            };
            *count += votes;
        }
        tally
    }
}

/// The votes on all turns of one question.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct QuestionVotes {
    points: f64,
    votes: f64,
    lengths: [usize; 2],
}

impl QuestionVotes {
    fn preference(&self) -> f64 {
        self.points / self.votes
    }
}

/// The votes by question. Pairs without an outcome are left out.
fn questions<'a>(kind: VerdictKind, items: impl Iterator<Item = &'a JudgedPair>) -> Vec<QuestionVotes> {
    let mut questions: BTreeMap<usize, QuestionVotes> = BTreeMap::new();
    for item in items {
        let votes = item.votes(kind);
        if votes.is_empty() {
            continue;
        }
        let question = questions.entry(item.row).or_default();
        for (points, votes) in votes {
            question.points += points * votes as f64;
            question.votes += votes as f64;
        }
        for (sum, length) in question.lengths.iter_mut().zip(item.lengths) {
            *sum += length;
        }
    }
    questions.into_values().collect()
}

/// The win rate of each group of pairs, in the order of the keys; groups without a name are left out.
fn rates(
    kind: VerdictKind,
    items: &[JudgedPair],
    group: impl Fn(&JudgedPair) -> (usize, String),
) -> Result<Vec<GroupRate>, Error> {
    let mut groups: BTreeMap<(usize, String), Vec<&JudgedPair>> = BTreeMap::new();
    for item in items {
        groups.entry(group(item)).or_default().push(item);
    }
    groups.retain(|(_, name), _| !name.is_empty());
    let of_group = |((_, name), items): ((usize, String), Vec<&JudgedPair>)| {
        let count = |wanted| items.iter().filter(|item| item.outcome() == wanted).count() as u64;
        let [wins, ties, losses] = [Outcome::Win, Outcome::Tie, Outcome::Loss].map(count);
        let win_rate = rate(kind, items.iter().copied())?;
        Ok(GroupRate { name, win_rate, wins, ties, losses })
    };
    groups.into_iter().map(of_group).collect()
}

/// The win rate of the system. `None` if nothing was judged.
fn rate<'a>(
    kind: VerdictKind,
    items: impl Iterator<Item = &'a JudgedPair>,
) -> Result<Option<Estimate>, Error> {
    let of_item = |item: &'a JudgedPair| {
        let vote = |(value, votes): (f64, u64)| Vote { value, weight: votes as f64, cluster: item.row };
        item.votes(kind).into_iter().map(vote)
    };
    let votes: Vec<Vote<usize>> = items.flat_map(of_item).collect();
    if votes.is_empty() { Ok(None) } else { weighted_rate(&votes).map(Some) }
}

fn controlled(questions: &[QuestionVotes]) -> Result<LengthControlled, Error> {
    let judgement = |question: &QuestionVotes| Judgement {
        preference: question.preference(),
        length: question.lengths[0],
        baseline_length: question.lengths[1],
    };
    length_controlled(&questions.iter().map(judgement).collect::<Vec<_>>())
}

/// A warning if the length explains much of the win rate (the rule of `AlpacaEval`).
fn length_warning(controlled: &LengthControlled) -> Option<String> {
    let (raw, equal) = (controlled.raw, controlled.win_rate.mean);
    let room = if equal > raw { 1.0 - raw } else { raw };
    let shift = (equal - raw).abs();
    (shift > FAR && shift > FAR_PART * room).then(|| {
        format!(
            "at equal lengths the win rate is {equal:.2} instead of {raw:.2}: the judge goes by the length"
        )
    })
}

/// The rewards of the answers of two models: the reward model as a judge.
#[derive(Clone, Copy, Debug)]
pub struct Rewards<'a> {
    /// The name of the reward model.
    pub judge: &'a str,
    /// The hash of the reward model.
    pub digest: &'a str,
    /// The answers of the system.
    pub system: &'a Answers,
    /// Their rewards, one for each question.
    pub system_scores: &'a [f64],
    /// The answers of the baseline.
    pub baseline: &'a Answers,
    /// Their rewards.
    pub baseline_scores: &'a [f64],
    /// Whether one of the models was trained on this reward.
    pub is_training_reward: bool,
    /// By how much two scorings of one conversation can differ, relative to the typical reward.
    pub noise: f64,
}

/// Compares two models by rewards: the higher one wins. Equal answers tie, and so do rewards that are nearer
/// than the noise of scoring. A question with a reward that is no finite number fails.
pub fn compare_rewards(questions: &[Question], rewards: &Rewards<'_>) -> Result<Comparison, Error> {
    let Rewards { system, baseline, system_scores, baseline_scores, .. } = *rewards;
    check("reward", questions, &[system, baseline])?;
    for scores in [system_scores, baseline_scores] {
        if scores.len() != questions.len() {
            return Err(Error::Unpaired { left: questions.len(), right: scores.len() });
        }
    }
    let noise = rewards.noise * typical(system_scores.iter().chain(baseline_scores));
    let pair = |(row, question): (usize, &Question)| {
        let (ours, theirs) = (system_scores[row], baseline_scores[row]);
        let is_tie = system.replies[row] == baseline.replies[row] || (ours - theirs).abs() <= noise;
        let length = |answers: &Answers| answers.replies[row].iter().map(|reply| reply.chars().count()).sum();
        JudgedPair {
            row,
            question: question.id.clone(),
            category: question.category.clone(),
            turn: question.turns.len(),
            orders: vec![order(ours, theirs, is_tie)],
            lengths: [length(system), length(baseline)],
            rewards: (ours.is_finite() && theirs.is_finite()).then_some([ours, theirs]),
        }
    };
    let items = questions.iter().enumerate().map(pair).collect();

    let judge = (rewards.judge, rewards.digest);
    let by = JudgedBy::new("reward/v1/pair", questions, judge, Some(baseline));
    let models = [system, baseline].map(|answers| answers.model.clone());
    let mut comparison = Comparison::new(by, VerdictKind::Pair, models, items)?;
    comparison.biased = rewards.is_training_reward;
    if comparison.biased {
        comparison.warnings.push("the judge is the training reward: biased".to_owned());
    }
    let mean = |scores: &[f64]| scores.iter().sum::<f64>() / scores.len() as f64;
    let means = [mean(system_scores), mean(baseline_scores)];
    comparison.mean_rewards = means.iter().all(|mean| mean.is_finite()).then_some(means);
    Ok(comparison)
}

/// The size of the typical reward: the root of the mean square of all finite ones. A reward is a sum of terms
/// of about this size, however small it is itself, and so are its rounding errors.
fn typical<'a>(scores: impl Iterator<Item = &'a f64>) -> f64 {
    let finite = scores.filter(|score| score.is_finite());
    let (sum, count) = finite.fold((0.0, 0.0), |(sum, count), score| (sum + score * score, count + 1.0));
    if count > 0.0 { f64::sqrt(sum / count) } else { 0.0 }
}

fn order(ours: f64, theirs: f64, is_tie: bool) -> Order {
    let known = ours.is_finite() && theirs.is_finite();
    let decided = if ours > theirs { Preference::First } else { Preference::Second };
    let verdict = if is_tie { Preference::Tie } else { decided };
    let problem = || format!("the rewards are {ours} and {theirs}; find out why before comparing");
    Order { verdict: known.then_some(verdict), failed: (!known).then(problem), replies: Vec::new() }
}

/// Ratings of several models (Bradley-Terry) from comparisons by one judge. Their intervals draw questions,
/// each with all votes on all of its answers: the votes on one question are not independent.
pub fn standings(comparisons: &[Comparison], anchor: Anchor<'_>, resamples: usize) -> Result<Ratings, Error> {
    let mut questions: BTreeMap<usize, Vec<Tally>> = BTreeMap::new();
    for comparison in comparisons {
        for item in comparison.items.iter().filter(|item| !item.votes(comparison.verdict).is_empty()) {
            questions.entry(item.row).or_default().push(comparison.tally(item));
        }
    }
    bradley_terry(&questions.into_values().collect::<Vec<_>>(), anchor, resamples)
}
