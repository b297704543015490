//! ZeRO: what the data-parallel ranks divide among themselves, instead of each holding all of it.
//!
//! ```text
//!   stage 1   masters and moments
//!   stage 2   and gradients
//!   stage 3   and weights, those of frozen models included
//! ```
//! Every chunk is cut into as many shards of equal length as there are ranks that share it, and the n-th rank
//! owns the n-th shard: it updates the parameters there. `n` parameters take `16 n` bytes in fp32 (weights,
//! gradients and two moments) and `18 n` in bf16 (with masters; gradients are fp32). `P` ranks keep and send:
//!
//! ```text
//!   stage   bytes in fp32     bytes in bf16     bytes sent by a rank in a step, w per weight
//!   0       16 n              18 n              8 n (P - 1) / P           all-reduce of gradients
//!   1       8 n + 8 n / P     6 n + 12 n / P    (4 + w) n (P - 1) / P     reduce-scatter, all-gather
//!   2       4 n + 12 n / P    2 n + 16 n / P    (4 + w) n (P - 1) / P
//!   3       16 n / P          18 n / P          (4 + 2 w) n (P - 1) / P   weights are gathered twice
//! ```
//! (Rajbhandari et al. 2020, arXiv 1910.02054. DeepSpeed: `zero_optimization.stage`; FSDP: stage 3.)
//! The ZeRO-3 gather of weights is in `chunk::store::residency`.

use std::ops::Range;
use std::sync::Arc;

use parallel::ProcessGroups;
use parallel::comm::ProcessGroup;
use parallel::residency::WeightSpec;
use parallel::world::WeightGatheringGroups;
use serde::{Deserialize, Serialize};
use tch::Kind;

use crate::Error;
use crate::chunk::layout::{ChunkGroup, ChunkSpec, ZeroSize};
use crate::config::MomentsDtype;

/// What the data-parallel ranks divide among themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub enum ZeroStage {
    /// Nothing: every rank holds all state.
    #[default]
    None,
    /// Masters and moments.
    OptimizerState,
    /// Masters, moments and gradients.
    Gradients,
    /// Masters, moments, gradients and weights.
    Weights,
}

impl ZeroStage {
    /// All stages, by number.
    pub const ALL: [Self; 4] = [Self::None, Self::OptimizerState, Self::Gradients, Self::Weights];
}

impl TryFrom<u8> for ZeroStage {
    type Error = String;
    fn try_from(stage: u8) -> Result<Self, String> {
        Self::ALL.get(usize::from(stage)).copied().ok_or_else(|| format!("{stage} is not 0, 1, 2 or 3"))
    }
}

impl From<ZeroStage> for u8 {
    fn from(stage: ZeroStage) -> Self {
        stage as Self
    }
}

/// The memory of one model in one process, without activations, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StateBytes {
    /// The weights.
    pub weights: usize,
    /// The gradients of trained weights, in fp32.
    pub gradients: usize,
    /// Masters and moments.
    pub optimizer: usize,
}

impl StateBytes {
    /// The memory of a model with these parameters. The padding of chunks is not counted.
    pub fn of(specs: &[WeightSpec], stage: ZeroStage, groups: &ProcessGroups, moments: MomentsDtype) -> Self {
        let mut total = Self::default();
        for spec in specs {
            let numel = spec.shape.iter().product::<i64>() as usize;
            let is_expert = spec.parameter.is_expert;
            let group = if is_expert { groups.expert_data_parallel() } else { groups.dense_data_parallel() };
            // What a stage divides is rounded up to whole elements of each rank.
            let share = |from: ZeroStage| if stage >= from { numel.div_ceil(group.size()) } else { numel };
            let width = spec.kind.elt_size_in_bytes();
            total.weights += width * share(ZeroStage::Weights);
            if spec.trainable {
                let master = if spec.kind == Kind::Float { 0 } else { 4 };
                let state = master + 2 * moments.kind().elt_size_in_bytes();
                total.gradients += 4 * share(ZeroStage::Gradients);
                total.optimizer += state * share(ZeroStage::OptimizerState);
            }
        }
        total
    }

    /// All of it.
    pub fn total(self) -> usize {
        self.weights + self.gradients + self.optimizer
    }
}

/// What of a sharded store is in memory between two uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    /// Whole chunks. Each rank changes its own shard and receives the others.
    Whole,
    /// This rank's shard. Whole chunks are gathered when they are used.
    OwnShard,
    /// Whole chunks until they are reduced, then this rank's shard.
    UntilReduced,
}

/// How the chunks of a store are divided over the data-parallel ranks.
#[derive(Clone, Debug)]
pub(crate) struct Sharding {
    groups: WeightGatheringGroups,
    pub(crate) kept: Kept,
}

impl Sharding {
    /// The division of stores of which `kept` is in memory; `None` if there is only one data-parallel rank.
    pub(crate) fn new(groups: &ProcessGroups, kept: Kept) -> Result<Option<Self>, Error> {
        if groups.dense_data_parallel().size() == 1 {
            return Ok(None);
        }
        Ok(Some(Self { groups: groups.weight_gathering()?, kept }))
    }

    /// The ranks that share the chunks of `group`.
    pub(crate) fn group(&self, group: ChunkGroup) -> &Arc<ProcessGroup> {
        if group.is_expert { &self.groups.expert } else { &self.groups.dense }
    }

    /// The elements of a chunk that this rank owns.
    pub(crate) fn own_elements(&self, chunk: &ChunkSpec) -> Range<usize> {
        let group = self.group(chunk.group);
        let length = chunk.numel / group.size();
        group.rank() * length..(group.rank() + 1) * length
    }

    /// The numbers of ranks, whose shards are multiples of `shard_alignment` elements.
    pub(crate) fn zero_size(&self, shard_alignment: usize) -> ZeroSize {
        ZeroSize { dense: self.groups.dense.size(), expert: self.groups.expert.size(), shard_alignment }
    }

    /// The ranks of all chunks.
    pub(crate) fn everyone(&self) -> &Arc<ProcessGroup> {
        &self.groups.dense
    }
}
