//! The replies of one optimizer step, and what the models and the losses read of them.

use models::decoder::Decoder;
use parallel::upload;
use tch::{Device, Tensor};

use super::estimate::Estimates;
use crate::config::PpoConfig;
use crate::loss::Counts;
use crate::rollout::batch::{Reads, RolloutBatch};
use crate::rollout::data::{Layout, Rollout};

/// The replies of one optimizer step.
#[derive(Clone, Copy)]
pub(super) struct MiniBatch<'a> {
    pub(super) rollout: &'a Rollout,
    pub(super) layout: &'a Layout,
    pub(super) estimates: &'a Estimates,
    pub(super) replies: &'a [usize],
}

/// What the policy loss of a micro-batch reads: `[M]` each, but for the lengths.
pub(super) struct PolicyInputs {
    /// The number of tokens of each reply.
    pub(super) lengths: Vec<usize>,
    pub(super) old: Tensor,
    pub(super) advantages: Tensor,
    pub(super) weights: Tensor,
    pub(super) correction: Option<Tensor>,
    pub(super) reference: Option<Tensor>,
}

impl MiniBatch<'_> {
    pub(super) fn counts(&self) -> Counts {
        Counts::of_replies(&self.lengths(self.replies))
    }

    /// The number of tokens of some replies.
    fn lengths(&self, replies: &[usize]) -> Vec<usize> {
        replies.iter().map(|&reply| self.rollout.lengths[reply]).collect()
    }

    /// Builds the flat batch of each micro-batch.
    pub(super) fn collate(
        &self,
        micro_batches: &[&[usize]],
        reads: Reads,
        trunk: &Decoder,
    ) -> Vec<RolloutBatch> {
        let ids: usize = self.replies.iter().map(|&reply| self.rollout.sequence_lengths[reply]).sum();
        let batch = |replies: &&[usize]| {
            let mut batch = RolloutBatch::new(self.rollout, self.layout, replies, reads, trunk);
            batch.batch.aux_loss_divisor = ids.max(1) as f64;
            batch
        };
        micro_batches.iter().map(batch).collect()
    }

    pub(super) fn policy_inputs(
        &self,
        replies: &[usize],
        config: &PpoConfig,
        counts: &Counts,
        device: Device,
    ) -> PolicyInputs {
        let (rollout, estimates) = (self.rollout, self.estimates);
        let tokens = |values: &[f32]| upload(&self.layout.of_tokens(values, replies), device);
        let some = |values: &[f32]| (!values.is_empty()).then(|| tokens(values));
        let norm = config.loss_norm.unwrap_or(config.max_new_tokens);
        let lengths = self.lengths(replies);
        let weights = config.loss_agg_mode.token_weights(&lengths, norm, counts);
        let weights: Vec<f32> = weights.into_iter().map(|weight| weight as f32).collect();
        PolicyInputs {
            lengths,
            old: tokens(&rollout.logprobs),
            advantages: tokens(&estimates.advantages),
            weights: upload(&weights, device),
            correction: some(&estimates.correction),
            reference: some(&rollout.reference_logprobs),
        }
    }
}
