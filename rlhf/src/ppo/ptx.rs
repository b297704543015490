//! The ptx term of PPO: cross-entropy on demonstrations, which keeps the policy from forgetting them (Ouyang
//! et al. 2022, arXiv 2203.02155, section 3.5).

use datasets::Sampler;
use gemini::Engine;

use crate::Error;
use crate::sft::Sft;
use crate::trainer::{self, MicroBatches, Objective};

/// The demonstrations of the ptx term, and its weight.
pub(super) struct Ptx<'a> {
    pub(super) objective: Sft<'a>,
    pub(super) sampler: Sampler,
    pub(super) coef: f64,
}

/// The micro-batches of one optimizer step.
pub(super) type PtxMicroBatches<'a> = MicroBatches<<Sft<'a> as Objective>::Targets>;

impl<'a> Ptx<'a> {
    /// Draws the next `count` rows and splits them into micro-batches.
    pub(super) fn next_micro_batches(
        &mut self,
        count: usize,
        micro_batch_size: usize,
        engine: &mut Engine,
    ) -> PtxMicroBatches<'a> {
        let rows = self.sampler.next_batch(count);
        let examples: Vec<_> = rows.into_iter().map(|row| self.objective.example(row)).collect();
        trainer::collate_micro_batches(&self.objective, &examples, self.coef, micro_batch_size, engine)
    }

    /// Adds the gradients of the ptx loss, and returns this rank's share of the loss without its weight.
    /// OpenRLHF: `ptx_loss`.
    pub(super) fn accumulate_ptx_loss(
        &self,
        micro_batches: &PtxMicroBatches<'a>,
        engine: &mut Engine,
    ) -> Result<f64, Error> {
        let (loss, _) = trainer::accumulate(&self.objective, micro_batches, engine, &mut ())?;
        Ok(loss / self.coef)
    }
}
