//! The ptx term of PPO: cross-entropy on demonstrations, which keeps the policy from forgetting them (Ouyang
//! et al. 2022, arXiv 2203.02155, section 3.5).

use datasets::Sampler;
use gemini::Engine;
use parallel::ProcessGroups;

use crate::Error;
use crate::sft::Sft;
use crate::sums::Sums;
use crate::trainer::{self, MicroBatches, Objective};

/// The demonstrations of the ptx term, and its weight.
pub(super) struct Ptx<'a> {
    pub(super) objective: Sft<'a>,
    pub(super) sampler: Sampler,
    pub(super) coef: f64,
}

/// The micro-batches of one optimizer step.
pub(super) type PtxMicroBatches<'a> = MicroBatches<Sft<'a>>;

impl<'a> Ptx<'a> {
    /// Draws the next `count` rows and splits them into micro-batches.
    pub(super) fn next_micro_batches(
        &mut self,
        count: usize,
        micro_batch_size: usize,
        engine: &mut Engine,
        groups: &ProcessGroups,
    ) -> Result<PtxMicroBatches<'a>, Error> {
        let rows = self.sampler.next_batch(count);
        let mut examples: Vec<_> = rows.into_iter().map(|row| self.objective.example(row)).collect();
        let tokens = self.objective.begin_step(&mut examples, micro_batch_size, groups)?;
        let step = (tokens, self.coef);
        trainer::collate_micro_batches(&self.objective, &examples, step, micro_batch_size, engine)
    }

    /// Adds the gradients of the ptx loss, and returns this rank's share of the loss without its weight.
    /// OpenRLHF: `ptx_loss`.
    pub(super) fn accumulate_ptx_loss(
        &self,
        micro_batches: &PtxMicroBatches<'a>,
        engine: &mut Engine,
    ) -> Result<f64, Error> {
        let (loss, _) = trainer::accumulate(&self.objective, micro_batches, engine, &mut Sums::default())?;
        Ok(loss / self.coef)
    }
}
