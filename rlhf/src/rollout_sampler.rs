//! Draws rollouts: prompts, replies and their rewards, until there are as many groups as an iteration takes.
//!
//! ```text
//! RolloutSampler::next, each iteration
//!   draw             the next prompts, `samples_per_prompt` replies to each        episodes
//!   draw ahead       with staleness 1: the replies of the next iteration, by the policy before this update
//!   score            scorers on their thread, reward models; one reward a reply    reward_function
//!   keep             with dynamic sampling: the groups whose rewards differ
//!   refill           draw, score and keep again while groups are missing
//! ```
//! Dynamic sampling: Yu et al. 2025 (DAPO, arXiv 2503.14476), equation 11. A refill draws as many prompts as
//! groups are missing. After `max_refills` rounds the place of missing groups is taken by groups that were
//! set aside, whose advantages are zero or nearly so; the number of replies of an iteration never changes.
//!
//! A rollout that is drawn ahead was written by the policy of one update earlier. Its scorers work while the
//! policy learns from the rollout before. [`crate::correction`] says how the update accounts for it.
//!
//! Every draw has a seed of its own, derived from the seed of the run, the iteration, the round and the turn.
//! With the position in the prompts and the rollout that was drawn ahead, a resumed run goes on exactly.

use std::path::Path;

use datasets::{PromptRow, Sampler, SamplerState};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::advantage::{self, Replies};
use crate::config::PpoConfig;
use crate::episodes::{Draw, Generation, Turns};
use crate::event::Metrics;
use crate::reward_function::{Moments, RewardFunction, Rewards, ScoredReply};
use crate::rollout::batch::{sequence, written_positions};
use crate::rollout::saved::{self, DrawnAhead};
use crate::rollout::score::Pass;
use crate::rollout::{Rollout, RolloutModels};
use crate::score::ScoreShaping;

/// The first purpose of the seeds of shuffles, one for each epoch of an iteration.
const SHUFFLES: u64 = 1;
/// The first purpose of the seeds of sampling, but for the first turn of the first round, which has purpose
/// 0. Each round has as many purposes as an episode may have turns.
const ROUNDS: u64 = 1 << 32;
/// The most turns of an episode that have seeds of their own.
pub(crate) const MOST_TURNS: u64 = 1 << 16;
/// The iterations in a row without any reward after which a run ends.
const FRUITLESS: u64 = 3;

/// A rollout with its rewards.
#[derive(Debug)]
pub struct Sampled {
    /// The replies.
    pub rollout: Rollout,
    /// Their rewards by term, as the terms gave them.
    pub rewards: Rewards,
    /// The reward of each reply once it was shaped, `[B]`; `None` for a reply that is excluded.
    pub scores: Vec<Option<f64>>,
    /// The reward of the greedy reply to the prompt of each reply, `[B]`, if a baseline needs it.
    pub greedy: Option<Vec<f64>>,
    /// The number of rounds that refilled the rollout.
    pub refills: usize,
    /// The share of the drawn groups whose rewards were all equal.
    pub zero_variance: f64,
}

impl Sampled {
    /// The reward of each reply with the rewards that an environment gave for its turns, `[B]`.
    pub fn totals(&self) -> Vec<Option<f64>> {
        with_turn_rewards(&self.scores, &self.rollout)
    }

    /// For each reply, whether it has no reward.
    pub fn excluded(&self) -> Vec<bool> {
        self.scores.iter().map(Option::is_none).collect()
    }
}

/// Replies that were generated, and are being scored.
struct Drawn {
    rollout: Rollout,
    /// The greedy replies to the prompts, one for each group.
    greedy: Option<Rollout>,
    /// The scores of the scorers, once they are awaited: those of `rollout`, then those of `greedy`.
    scores: Option<Vec<Vec<Option<f64>>>>,
    /// Why episodes have failed.
    reasons: Vec<String>,
}

/// Draws the rollouts of a run.
pub struct RolloutSampler<'a> {
    config: &'a PpoConfig,
    generation: Generation<'a>,
    turns: Option<Turns<'a>>,
    rewards: RewardFunction,
    prompts: Sampler,
    seed: u64,
    /// The replies of the next iteration.
    ahead: Option<Drawn>,
    /// The iterations in a row without any reward.
    fruitless: u64,
    tally: Tally,
    /// Why the last reply without a reward has none.
    reason: String,
}

/// What this process has drawn.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    iterations: u64,
    replies: usize,
    /// The replies without a score.
    unscored: usize,
}

/// What a checkpoint says of the sampler, besides the rollout that was drawn ahead.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SamplerProgress {
    prompts: SamplerState,
    #[serde(default)]
    moments: Vec<Moments>,
    #[serde(default)]
    has_drawn_ahead: bool,
    #[serde(default)]
    fruitless: u64,
}

impl SamplerProgress {
    /// The progress in checkpoints of earlier versions, which say the position in the prompts alone.
    pub(crate) fn at(prompts: SamplerState) -> Self {
        Self { prompts, moments: Vec::new(), has_drawn_ahead: false, fruitless: 0 }
    }
}

impl<'a> RolloutSampler<'a> {
    /// Begins before the first prompt.
    pub fn new(
        config: &'a PpoConfig,
        generation: Generation<'a>,
        turns: Option<Turns<'a>>,
        rewards: RewardFunction,
        seed: u64,
        shuffle: bool,
    ) -> Result<Self, Error> {
        let prompts = Sampler::new(generation.rows.len(), seed, shuffle)?;
        Ok(Self {
            config,
            generation,
            turns,
            rewards,
            prompts,
            seed,
            ahead: None,
            fruitless: 0,
            tally: Tally::default(),
            reason: String::new(),
        })
    }

    /// The terms of the reward.
    pub fn rewards(&self) -> &RewardFunction {
        &self.rewards
    }

    /// Draws the rollout of `iteration`. Every rank calls this and gets the same. `pass` runs the reward
    /// models; what the user must know is added to `messages`.
    pub fn next(
        &mut self,
        iteration: u64,
        models: &RolloutModels<'_>,
        pass: &mut Pass<'_>,
        messages: &mut Vec<String>,
    ) -> Result<Sampled, Error> {
        let mut drawn = match self.ahead.take() {
            Some(drawn) => drawn,
            None => self.draw(iteration, 0, self.config.rollout_batch_size, 0)?,
        };
        self.await_scores(&mut drawn)?;
        if self.config.staleness > 0 && iteration < self.config.iterations {
            self.ahead = Some(self.draw(iteration + 1, 0, self.config.rollout_batch_size, 0)?);
        }

        let mut sampled = self.score(drawn, models, pass, messages)?;
        if self.config.dynamic_sampling {
            sampled = self.refill(iteration, &sampled, models, pass, messages)?;
        }
        self.count_fruitless(&sampled)?;
        Ok(sampled)
    }

    /// Keeps the groups whose rewards differ, and draws again for those that do not.
    fn refill(
        &mut self,
        iteration: u64,
        first: &Sampled,
        models: &RolloutModels<'_>,
        pass: &mut Pass<'_>,
        messages: &mut Vec<String>,
    ) -> Result<Sampled, Error> {
        let (wanted, per_group) = (self.config.rollout_batch_size, self.config.samples_per_prompt);
        let (mut drawn_groups, mut without_variance) = (wanted, 0);
        let (mut kept, mut set_aside) = split_groups(first, per_group);
        without_variance += set_aside.rollout.len() / per_group;
        let mut refills = 0;
        while kept.rollout.len() < wanted * per_group && refills < self.config.max_refills {
            refills += 1;
            let missing = wanted - kept.rollout.len() / per_group;
            // The scorers serve one rollout at a time.
            self.complete_ahead()?;
            let mut drawn = self.draw(iteration, refills as u64, missing, drawn_groups)?;
            self.await_scores(&mut drawn)?;
            drawn_groups += missing;
            let (more, aside) = split_groups(&self.score(drawn, models, pass, messages)?, per_group);
            without_variance += aside.rollout.len() / per_group;
            kept.append(more);
            set_aside.append(aside);
        }
        let missing = wanted * per_group - kept.rollout.len();
        kept.append(set_aside.select(&(0..missing).collect::<Vec<_>>()));
        kept.refills = refills;
        kept.zero_variance = without_variance as f64 / drawn_groups as f64;
        Ok(kept)
    }

    /// Generates the replies to the next `count` prompts, whose groups are numbered from `first_group` on,
    /// and lets the scorers begin.
    fn draw(&mut self, iteration: u64, round: u64, count: usize, first_group: usize) -> Result<Drawn, Error> {
        let rows = self.prompts.next_batch(count);
        let draw = |(index, &prompt): (usize, &usize)| Draw { prompt, group: first_group + index };
        let draws: Vec<Draw> = rows.iter().enumerate().map(draw).collect();
        let of_groups: Vec<Draw> = draws
            .iter()
            .flat_map(|draw| std::iter::repeat_n(*draw, self.config.samples_per_prompt))
            .collect();
        let seed = |turn: usize| {
            let purpose = match (round, turn) {
                (0, 0) => 0,
                _ => ROUNDS + round * MOST_TURNS + turn as u64,
            };
            derived_seed(self.seed, iteration, purpose)
        };
        let generation = &self.generation;
        let temperature = generation.temperature;
        let (rollout, mut reasons) =
            generation.replies(&of_groups, temperature, &seed, self.turns.as_mut())?;
        let greedy = if self.config.advantage_estimator.has_greedy_baseline() {
            let (greedy, more) = generation.replies(&draws, 0.0, &seed, self.turns.as_mut())?;
            reasons.extend(more);
            Some(greedy)
        } else {
            None
        };

        let mut all = rollout.clone();
        if let Some(greedy) = &greedy {
            all.append(greedy.clone());
        }
        let own: Vec<usize> = RewardFunction::share(generation.groups, all.len()).collect();
        self.rewards.begin(self.scored_replies(&all, &own), self.generation.groups);
        Ok(Drawn { rollout, greedy, scores: None, reasons })
    }

    /// What the scorers get of some replies.
    fn scored_replies(&self, rollout: &Rollout, indices: &[usize]) -> Vec<ScoredReply> {
        let layout = rollout.layout();
        let Generation { rows, decode, stop_ids, .. } = &self.generation;
        let of = |&reply: &usize| {
            let PromptRow { messages, answer, .. } = &rows[rollout.prompts[reply]];
            let ids = sequence(rollout, &layout, reply);
            // The last turn: what the policy wrote at the end without a gap.
            let positions: Vec<usize> = written_positions(rollout, &layout, reply).collect();
            let start = (1..positions.len())
                .rev()
                .find(|&index| positions[index] != positions[index - 1] + 1)
                .unwrap_or(0);
            let mut turn: Vec<i64> = positions[start..].iter().map(|&position| ids[position]).collect();
            turn.pop_if(|id| stop_ids.contains(id));
            ScoredReply {
                prompt: messages.clone(),
                text: decode(&turn),
                answer: answer.clone(),
                tokens: rollout.lengths[reply],
                stopped: rollout.stopped[reply],
            }
        };
        indices.iter().map(of).collect()
    }

    /// Waits for the scorers, unless their scores are there already.
    fn await_scores(&mut self, drawn: &mut Drawn) -> Result<(), Error> {
        if drawn.scores.is_none() {
            drawn.scores = Some(self.rewards.finish(self.generation.groups)?);
        }
        Ok(())
    }

    /// Runs the reward models, and combines and shapes all scores.
    fn score(
        &mut self,
        drawn: Drawn,
        models: &RolloutModels<'_>,
        pass: &mut Pass<'_>,
        messages: &mut Vec<String>,
    ) -> Result<Sampled, Error> {
        let Drawn { rollout, greedy, scores, reasons } = drawn;
        let (replies, mut all) = (rollout.len(), rollout.clone());
        if let Some(greedy) = &greedy {
            all.append(greedy.clone());
        }
        let by_models = models.score_rewards(pass, &all)?;
        let by_scorers = scores.expect("the scores were awaited");
        let mut rewards = self.rewards.combine(by_models, by_scorers, all.len());
        for (total, &failed) in rewards.totals.iter_mut().zip(&all.failed) {
            *total = total.filter(|_| !failed);
        }
        let told = reasons.into_iter().take(1).chain(self.rewards.take_reasons());
        let told: Vec<String> = told.collect();
        if let Some(reason) = told.first() {
            self.reason.clone_from(reason);
        }
        messages.extend(told.iter().map(|reason| format!("warning: a reply has no score: {reason}")));

        let shaped = shaping(self.config).apply(&rewards.totals, &all.stopped, &all.lengths);
        let (own, of_greedy) = shaped.split_at(replies);
        let mut scores = own.to_vec();
        let greedy = greedy.map(|greedy| {
            let totals = with_turn_rewards(of_greedy, &greedy);
            let score_of = |group: usize| {
                greedy.groups.iter().position(|&of| of == group).and_then(|index| totals[index])
            };
            let baselines: Vec<Option<f64>> = rollout.groups.iter().map(|&group| score_of(group)).collect();
            // Without its baseline a reply has no advantage.
            for (score, baseline) in scores.iter_mut().zip(&baselines) {
                *score = score.filter(|_| baseline.is_some());
            }
            baselines.into_iter().map(|baseline| baseline.unwrap_or(0.0)).collect()
        });
        rewards = rewards.select(&(0..replies).collect::<Vec<_>>());
        let mut sampled = Sampled { rollout, rewards, scores, greedy, refills: 0, zero_variance: 0.0 };
        let groups = sampled.rollout.len() / self.config.samples_per_prompt;
        sampled.zero_variance = zero_variance_groups(&sampled).len() as f64 / groups.max(1) as f64;
        Ok(sampled)
    }

    /// Ends a run whose replies get no reward.
    fn count_fruitless(&mut self, sampled: &Sampled) -> Result<(), Error> {
        self.tally.iterations += 1;
        self.tally.replies += sampled.scores.len();
        self.tally.unscored += sampled.scores.iter().filter(|score| score.is_none()).count();
        if sampled.scores.iter().any(Option::is_some) {
            self.fruitless = 0;
            return Ok(());
        }
        self.fruitless += 1;
        if self.fruitless < FRUITLESS {
            return Ok(());
        }
        Err(self.no_scores(FRUITLESS))
    }

    fn no_scores(&self, iterations: u64) -> Error {
        Error::NoScores { iterations, reason: self.reason.clone(), has_environment: self.turns.is_some() }
    }

    /// What the user must know of the replies of this process when the last iteration has ended. An error if
    /// none of them had a score.
    pub fn summary(&self) -> Result<Option<String>, Error> {
        let Tally { iterations, replies, unscored } = self.tally;
        if unscored == 0 {
            return Ok(None);
        }
        if unscored == replies {
            return Err(self.no_scores(iterations));
        }
        Ok(Some(format!(
            "warning: {unscored} of {replies} replies had no score and taught nothing; the last one because {}",
            self.reason
        )))
    }

    /// Adds what is to be known of the rewards and of the draws.
    pub fn push_metrics(&self, sampled: &Sampled, metrics: &mut Metrics) {
        self.rewards.push_metrics(&sampled.rewards, metrics);
        if self.config.dynamic_sampling {
            metrics.push("rollout/refills", sampled.refills as f64);
        }
        if self.config.samples_per_prompt > 1 {
            metrics.push("groups/zero_variance", sampled.zero_variance);
        }
    }

    /// The state for a checkpoint, which is complete with [`save_ahead`](Self::save_ahead).
    pub fn progress(&self) -> SamplerProgress {
        SamplerProgress {
            prompts: self.prompts.state(),
            moments: self.rewards.moments().to_vec(),
            has_drawn_ahead: self.ahead.is_some(),
            fruitless: self.fruitless,
        }
    }

    /// Waits for the scores of the rollout that was drawn ahead. All ranks call this after an update.
    pub fn complete_ahead(&mut self) -> Result<(), Error> {
        let Some(mut ahead) = self.ahead.take() else { return Ok(()) };
        self.await_scores(&mut ahead)?;
        self.ahead = Some(ahead);
        Ok(())
    }

    /// Writes the rollout that was drawn ahead into a checkpoint, on rank 0.
    pub fn save_ahead(&self, folder: &Path) -> Result<(), Error> {
        let Some(Drawn { rollout, greedy, scores: Some(scores), .. }) = &self.ahead else { return Ok(()) };
        if !self.generation.groups.is_rank_zero() {
            return Ok(());
        }
        saved::write(
            folder,
            &DrawnAhead { rollout: rollout.clone(), greedy: greedy.clone(), scores: scores.clone() },
        )
    }

    /// Goes on where the checkpoint `folder` was saved.
    pub fn restore(&mut self, progress: SamplerProgress, folder: &Path) -> Result<(), Error> {
        let SamplerProgress { prompts, moments, has_drawn_ahead, fruitless } = progress;
        self.prompts = Sampler::resume(self.generation.rows.len(), prompts)?;
        // Checkpoints of earlier versions have no moments, and no running normalisation either.
        if !moments.is_empty() && moments.len() != self.rewards.moments().len() {
            let problem = "its state.json has the moments of other rewards: resume with the [[reward]] entries that wrote it";
            return Err(Error::RunFolder { path: folder.to_owned(), problem: problem.to_owned() });
        }
        if !moments.is_empty() {
            self.rewards.set_moments(moments);
        }
        self.fruitless = fruitless;
        if has_drawn_ahead {
            let DrawnAhead { rollout, greedy, scores } = saved::read(folder)?;
            self.ahead = Some(Drawn { rollout, greedy, scores: Some(scores), reasons: Vec::new() });
        }
        Ok(())
    }
}

impl Sampled {
    /// The replies with these indices.
    fn select(&self, indices: &[usize]) -> Self {
        Self {
            rollout: self.rollout.select(indices),
            rewards: self.rewards.select(indices),
            scores: indices.iter().map(|&index| self.scores[index]).collect(),
            greedy: self.greedy.as_ref().map(|greedy| indices.iter().map(|&index| greedy[index]).collect()),
            ..*self
        }
    }

    fn append(&mut self, other: Self) {
        self.rollout.append(other.rollout);
        self.rewards.append(other.rewards);
        self.scores.extend(other.scores);
        if let (Some(greedy), Some(other)) = (&mut self.greedy, other.greedy) {
            greedy.extend(other);
        }
    }
}

/// Splits a rollout into the groups whose rewards differ, and the others.
fn split_groups(sampled: &Sampled, per_group: usize) -> (Sampled, Sampled) {
    let without = zero_variance_groups(sampled);
    let is_without = |index: &usize| without.contains(&sampled.rollout.groups[*index]);
    debug_assert!(sampled.rollout.len().is_multiple_of(per_group), "groups are whole");
    let (aside, kept): (Vec<usize>, Vec<usize>) = (0..sampled.rollout.len()).partition(is_without);
    (sampled.select(&kept), sampled.select(&aside))
}

/// The groups whose rewards are all equal, or of whose replies fewer than two have a reward.
fn zero_variance_groups(sampled: &Sampled) -> Vec<usize> {
    let excluded = sampled.excluded();
    let totals: Vec<f64> = sampled.totals().iter().map(|total| total.unwrap_or(0.0)).collect();
    let Rollout { lengths, groups, .. } = &sampled.rollout;
    advantage::zero_variance_groups(&totals, &Replies { lengths, groups, excluded: &excluded })
}

/// Adds the rewards of turns to the `scores` of the replies of a rollout.
pub(crate) fn with_turn_rewards(scores: &[Option<f64>], rollout: &Rollout) -> Vec<Option<f64>> {
    let mut totals = scores.to_vec();
    for turn in &rollout.turn_rewards {
        if let Some(total) = &mut totals[turn.reply] {
            *total += turn.reward;
        }
    }
    totals
}

/// How the rewards of replies are shaped.
fn shaping(config: &PpoConfig) -> ScoreShaping {
    ScoreShaping {
        clip: config.score_clip,
        missing_eos_penalty: config.missing_eos_penalty,
        overlong: config.overlong(),
    }
}

/// The seed of the shuffle of an epoch.
pub(crate) fn shuffle_seed(seed: u64, iteration: u64, epoch: usize) -> u64 {
    derived_seed(seed, iteration, SHUFFLES + epoch as u64)
}

/// Derives the seed for one `purpose` of one iteration: 0 is the first turn of the first round, `1 + epoch`
/// the shuffle of that epoch, and later turns and rounds come from [`ROUNDS`] on. With it, a resumed run
/// needs no saved `rng_state`.
fn derived_seed(seed: u64, iteration: u64, purpose: u64) -> u64 {
    let mut generator = ChaCha8Rng::seed_from_u64(seed);
    generator.set_stream(iteration);
    // Each purpose reads its own two 32-bit words of the stream of the iteration.
    generator.set_word_pos(u128::from(purpose) * 2);
    generator.random()
}

/// The turns of a text that people read: the prompt and the reply of one of the replies.
pub(crate) fn as_text(
    rollout: &Rollout,
    reply: usize,
    decode: &dyn Fn(&[i64]) -> String,
) -> (String, String) {
    let layout = rollout.layout();
    let (prompt, reply) = sequence(rollout, &layout, reply).split_at(rollout.prompt_lengths[reply]);
    (decode(prompt), decode(reply))
}
