//! On-policy distillation: a student learns what a teacher says at each token of the student's own replies
//! (generalised knowledge distillation, GKD; Agarwal et al. 2024, arXiv 2306.13649, with a share of 1 of the
//! student's replies; Thinking Machines 2025, "On-Policy Distillation"; TRL: `DistillationTrainer`, and
//! `GKDTrainer` with `lmbda = 1`).
//!
//! ```text
//!   y            a reply that the student writes, without a gradient through the sampling
//!   loss         sum_t D(p_t, q_t) / (tokens of the mini-batch), t over the tokens that the student wrote
//! ```
//! `D`, its temperature and `nll_coef` are those of [`crate::distill`], and a step is a step of it on rows
//! that hold the replies. The teacher runs before the gradients of each step. A reply needs no reward. What
//! an environment writes between two turns is read by both models and has no loss. Demonstrations, which GKD
//! mixes with replies, are not here.

use std::ops::Range;
use std::sync::Arc;

use datasets::SftRow;
use datasets::rows::IGNORE_INDEX;
use gemini::{Engine, TrainConfig};
use models::causal_lm::CausalLm;
use parallel::ProcessGroups;

use super::{NoState, Settings};
use crate::Error;
use crate::config::{DistillConfig, PpoConfig};
use crate::distill::Distill;
use crate::event::Metrics;
use crate::on_policy::{self, Data, Learner, OnPolicy};
use crate::rollout::RolloutModels;
use crate::rollout::data::Rollout;
use crate::rollout::score::Pass;
use crate::rollout_sampler::Sampled;
use crate::sft::Sft;

/// The algorithm: the models and the optimizer of the student, which is the policy.
pub struct Gkd<'a> {
    models: RolloutModels<'a>,
    teacher: &'a CausalLm,
    config: &'a PpoConfig,
    distill: &'a DistillConfig,
    train: &'a TrainConfig,
    engine: Engine,
    groups: &'a Arc<ProcessGroups>,
    seed: u64,
}

/// The replies of a rollout as rows.
#[derive(Debug)]
pub struct ReplyRows {
    rows: Vec<SftRow>,
    /// Whether a reply is learnt from, `[B]`.
    is_counted: Vec<bool>,
}

impl<'a> Gkd<'a> {
    /// Checks the configuration, the models and the data, and creates the optimizer.
    pub fn new(
        models: RolloutModels<'a>,
        teacher: &'a CausalLm,
        data: Data<'a>,
        settings: &Settings<'a, DistillConfig>,
        groups: &'a Arc<ProcessGroups>,
    ) -> Result<OnPolicy<'a, Self>, Error> {
        let Settings { rollouts: config, algorithm: distill, train, seed } = *settings;
        config.check()?;
        distill.check()?;
        models.check()?;
        let is_reduced = *config == config.rollout_settings().without_rewards();
        assert!(is_reduced, "the settings are those of rollouts without rewards");
        // Of no rows, it refuses a teacher that does not fit to the student.
        Distill::new(Sft::new(models.policy, &[], &[], None)?, teacher, distill)?;

        let steps = config.policy_steps(config.iterations);
        let engine = Engine::new(models.policy, train, steps, groups, models.memory)?;
        let learner = Self { models, teacher, config, distill, train, engine, groups, seed };
        OnPolicy::new(learner, data, (config, train), seed, groups)
    }
}

impl<'a> Learner<'a> for Gkd<'a> {
    type TrainingData = ReplyRows;
    type State = NoState;

    fn models(&self) -> &RolloutModels<'a> {
        &self.models
    }

    fn engine(&self) -> &Engine {
        &self.engine
    }

    fn engine_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }

    fn has_rewards(&self) -> bool {
        false
    }

    /// Makes rows of the replies. No model runs: the teacher does so in the steps.
    fn prepare(
        &mut self,
        sampled: &mut Sampled,
        _: &mut Pass<'_>,
        metrics: &mut Metrics,
    ) -> Result<ReplyRows, Error> {
        on_policy::push_entropy(&sampled.rollout.sampler_entropy, metrics);
        // An episode whose environment has failed has no score.
        let is_counted = sampled
            .scores
            .iter()
            .zip(&sampled.rollout.lengths)
            .map(|(score, &length)| score.is_some() && length > 0);
        Ok(ReplyRows { is_counted: is_counted.collect(), rows: rows(&sampled.rollout) })
    }

    fn update(
        &mut self,
        rollout: &Rollout,
        replies: &ReplyRows,
        iteration: u64,
        metrics: &mut Metrics,
    ) -> Result<f64, Error> {
        let counted = |mini_batch: Vec<usize>| -> Vec<usize> {
            mini_batch.into_iter().filter(|&reply| replies.is_counted[reply]).collect()
        };
        let mini_batches = on_policy::mini_batches(self.config, rollout, self.seed, iteration);
        let mini_batches: Vec<Vec<usize>> =
            mini_batches.into_iter().map(counted).filter(|replies| !replies.is_empty()).collect();
        let rows = Sft::new(self.models.policy, &replies.rows, &[], None)?;
        let objective = Distill::new(rows, self.teacher, self.distill)?;
        super::update(&objective, &mini_batches, &mut self.engine, (self.train, self.groups), metrics)
    }

    fn state(&self) -> NoState {
        NoState {}
    }

    fn check_others(&self) -> Result<(), Error> {
        Ok(gemini::check_replicas(self.teacher, self.groups)?)
    }
}

/// One row for each reply, with a label on each token that the policy wrote.
fn rows(rollout: &Rollout) -> Vec<SftRow> {
    let row = |place: Range<usize>| {
        let (ids, is_written) = (&rollout.ids[place.clone()], &rollout.is_written[place]);
        let label = |(&id, &is_written): (&i64, &bool)| if is_written { id } else { IGNORE_INDEX };
        SftRow { input_ids: ids.to_vec(), labels: ids.iter().zip(is_written).map(label).collect() }
    };
    rollout.layout().sequences.into_iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rollout::Reply;

    #[test]
    fn labels_are_on_the_tokens_that_the_policy_wrote() {
        let mut rollout = Rollout::default();
        // Two turns of 2 and 1 tokens around two tokens of an environment.
        let two_turns = Reply {
            ids: vec![5, 6, 7, 8, 9, 10, 11],
            prompt_length: 2,
            written: vec![2..4, 6..7],
            logprobs: vec![0.0; 3],
            ..Reply::default()
        };
        rollout.push(two_turns);
        let one_turn = Reply {
            ids: vec![3, 4],
            prompt_length: 1,
            written: std::iter::once(1..2).collect(),
            logprobs: vec![0.0],
            ..Reply::default()
        };
        rollout.push(one_turn);
        let rows = rows(&rollout);
        let labels: Vec<&[i64]> = rows.iter().map(|row| row.labels.as_slice()).collect();
        assert_eq!(labels, [&[-100, -100, 7, 8, -100, -100, 11][..], &[-100, 4]]);
        assert_eq!((rows[0].input_ids[4], &rows[1].input_ids[..]), (9, &[3, 4][..]));
        // The loss divides by the tokens that the policy wrote.
        assert!(rows.iter().map(SftRow::num_label_tokens).eq(rollout.lengths));
    }
}
