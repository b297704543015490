//! The critic of a PPO stage: the value model with its own optimizer.

use std::sync::Arc;

use gemini::{ChunkManager, Engine, TrainConfig};
use models::batch::Batch;
use models::scalar_model::ScalarModel;
use parallel::{ProcessGroups, upload};

use super::metrics::UpdateStats;
use super::mini_batch::MiniBatch;
use crate::config::PpoConfig;
use crate::rollout::batch::Reads;
use crate::{Error, loss};

/// The critic and its optimizer.
pub(super) struct Critic<'a> {
    pub(super) model: &'a ScalarModel,
    pub(super) engine: Engine,
}

impl<'a> Critic<'a> {
    pub(super) fn new(
        model: &'a ScalarModel,
        config: &PpoConfig,
        train: &TrainConfig,
        groups: &Arc<ProcessGroups>,
        memory: &Arc<ChunkManager>,
    ) -> Result<Self, Error> {
        let train = TrainConfig { lr: config.critic_lr, ..train.clone() };
        let total_steps = config.iterations * config.steps_per_iteration();
        Ok(Self { model, engine: Engine::new(model, &train, total_steps, groups, memory)? })
    }

    /// Runs one optimizer step of the critic on a mini-batch.
    pub(super) fn update(
        &mut self,
        mini_batch: &MiniBatch<'_>,
        config: &PpoConfig,
        micro_batch_size: usize,
        updates: &mut UpdateStats,
    ) -> Result<(), Error> {
        let critic = self.model;
        let MiniBatch { rollout, layout, estimates, replies } = *mini_batch;
        // The loss divisor of the critic, over the full mini-batch on all ranks.
        let num_slots: usize = replies.iter().map(|&reply| rollout.num_slots(reply)).sum();

        let micro_batches = self.engine.split_micro_batches(replies, micro_batch_size);
        let batches = mini_batch.collate(&micro_batches, Reads::Slots, critic.decoder());
        let contexts: Vec<&Batch> = batches.iter().map(|batch| &batch.batch).collect();
        self.engine.accumulate(critic, &contexts, |index, hidden| {
            updates.tokens += contexts[index].num_real_tokens() as f64;
            let slots = |values: &[f32]| {
                upload(&layout.gather(values, &layout.slots, micro_batches[index]), critic.device())
            };
            let (old, returns) = (slots(&rollout.values), slots(&estimates.returns));
            let new = critic.values(hidden)?;
            let value_loss = loss::value_loss(&new, &old, &returns, Some(config.clip_range_value))?;
            updates.value += value_loss.statistics;
            // The metric of TRL has no weight.
            updates.value_loss += value_loss.statistics.loss / num_slots as f64;
            Ok::<_, Error>(value_loss.loss * (config.vf_coef / num_slots as f64))
        })?;

        updates.critic_grad_norm += self.engine.step()?.grad_norm;
        Ok(())
    }
}
