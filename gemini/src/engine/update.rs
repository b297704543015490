//! The update of the parameters of one chunk.
//!
//! Under a budget, the update waits until a forward pass needs the weights, if an order of use is known and
//! there will be room (and not in stages 1 and 2 of ZeRO, whose ranks exchange updated weights at once):
//! ```text
//!   backward of step n | norm, clipping | forward of step n + 1
//!                                         update 0, segment 0 | update 1, segment 1 | ...
//!                                                    moments of 1 are read, those of 0 are written
//! ```
//! Only after the whole backward pass is the norm known by which gradients are clipped. An update of all
//! chunks right then would wait for the disk, because there is nothing to compute meanwhile. The values are
//! the same, because nobody reads a weight before its update.

use std::sync::Arc;

use parallel::residency::Access;

use super::params::{HeldShards, ParamState, Stores};
use crate::chunk::store::ChunkStore;
use crate::optimizer::{AdamwParam, adamw};
use crate::{Error, TrainConfig};

/// The numbers of an optimizer step that are the same for all parameters.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepNumbers {
    /// From 1.
    pub(super) step: u64,
    pub(super) lr: f64,
    /// The number by which gradients are divided to clip them.
    pub(super) grad_divisor: f64,
}

/// An update of the parameters of one chunk.
pub(super) struct ChunkUpdate {
    chunk: usize,
    params: Vec<AdamwParam>,
    config: TrainConfig,
    numbers: StepNumbers,
    grads: Arc<ChunkStore>,
    /// The masters and the moments.
    changing: Vec<Arc<ChunkStore>>,
}

impl ChunkUpdate {
    /// The update of those parameters of chunk `chunk` that have a gradient; `None` if none has.
    pub(super) fn new(
        chunk: usize,
        states: &[ParamState],
        stores: &Stores,
        config: &TrainConfig,
        numbers: StepNumbers,
    ) -> Option<Self> {
        let slots = &stores.layout.chunks()[chunk].params;
        let states = slots.iter().map(|slot| &states[slot.param]).filter(|state| state.has_grad);
        let params: Vec<AdamwParam> = states.map(|state| state.own.shallow_clone()).collect();
        if params.is_empty() {
            return None;
        }
        let changing = stores.masters.iter().chain([&stores.exp_avgs, &stores.exp_avg_sqs]);
        Some(Self {
            chunk,
            params,
            config: config.clone(),
            numbers,
            grads: Arc::clone(&stores.grads),
            changing: changing.map(Arc::clone).collect(),
        })
    }

    /// The bytes that have to be in memory, with at most four for each weight.
    pub(super) fn bytes(&self) -> usize {
        let state: usize = self.changing.iter().map(|store| store.shard_bytes(self.chunk)).sum();
        state + 2 * self.grads.shard_bytes(self.chunk)
    }

    /// Updates the parameters, whose weights the caller holds, and drops their gradients.
    pub(super) fn run(self) -> Result<(), Error> {
        let Self { chunk, params, config, numbers: StepNumbers { step, lr, grad_divisor }, .. } = self;
        let changing = self.changing.iter().map(|store| (&**store, Access::Write));
        let held = HeldShards::fetch(changing.chain([(&*self.grads, Access::Read)]), chunk)?;
        adamw(&params, &config, lr, step, grad_divisor)?;

        // Only then may the gradients leave memory.
        drop(held);
        self.grads.discard_chunk(chunk)
    }
}
