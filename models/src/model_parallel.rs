//! How one decoder is split over several ranks.
//!
//! The ranks of a tensor-parallel group hold shards of the weights. Every rank computes some heads, some of
//! the MLP's inner columns and the logits of some tokens of the vocabulary; all ranks enter and leave this
//! tensor-parallel region together (Shoeybi et al. 2019, arXiv 1909.08053, section 3). In training, the
//! tokens of a batch may be split over ranks as well: over a tensor-parallel group outside its
//! tensor-parallel regions, or over a sequence-parallel group throughout ([`parallel::sequence`]). Every rank
//! has the full final hidden states, and the gradient that a rank's head computes for them is one term of a
//! sum.

use std::ops::Range;
use std::sync::Arc;

use parallel::comm::ProcessGroup;
use parallel::pipeline::ScheduleKind;
use parallel::sequence::{SequenceOrder, SequenceShard};
use parallel::{ShardSpec, autograd};
use tch::Tensor;

use crate::Error;
use crate::architecture::Architecture;
use crate::mask::MaskKind;

/// How a model and the tokens of a batch are split over ranks.
#[derive(Clone, Debug)]
pub struct ModelParallel {
    /// The ranks that hold shards of the weights; `None` without tensor parallelism.
    pub tensor_parallel: Option<Arc<ProcessGroup>>,
    /// How tokens are split over ranks in training.
    pub sequence_parallel: SequenceParallel,
    /// The ranks that hold different layers; `None` without pipeline parallelism.
    pub pipeline_parallel: Option<PipelineParallel>,
    /// The ranks that hold different experts of the same layers; `None` without expert parallelism.
    pub expert_parallel: Option<Arc<ProcessGroup>>,
    /// The pipeline and expert ranks that together hold all parameters, of this tensor-parallel shard; `None`
    /// if this rank holds all of them.
    pub pipeline_expert_group: Option<Arc<ProcessGroup>>,
    /// The number of this replica of the model, of which the first one is saved.
    pub replica: usize,
}

/// Pipeline parallelism: every rank holds some of the layers.
#[derive(Clone, Debug)]
pub struct PipelineParallel {
    /// The pipeline ranks.
    pub group: Arc<ProcessGroup>,
    /// The schedule that orders the micro-batches.
    pub schedule_kind: ScheduleKind,
    /// Virtual stages per rank, for schedules that leave the number open.
    pub virtual_stages: usize,
    /// The first and the last pipeline rank; `None` on all other ranks.
    pub embedding_group: Option<Arc<ProcessGroup>>,
}

/// How tokens are split over ranks in training. Forward passes without gradients run complete rows on every
/// rank.
#[derive(Clone, Debug)]
pub enum SequenceParallel {
    /// Every rank has all tokens.
    Replicated,
    /// The tokens are split over the tensor-parallel group between two tensor-parallel layers (Korthikanti et
    /// al. 2022).
    Megatron,
    /// The tokens are split over this group, and the heads are split inside attention (Jacobs et al. 2023).
    /// Megatron: context parallelism with `cp_comm_type` `a2a`.
    Ulysses(Arc<ProcessGroup>),
    /// The tokens are split over this group, and keys and values travel around a ring (Liu et al. 2023).
    /// Megatron: context parallelism with `cp_comm_type` `p2p`.
    Ring(Arc<ProcessGroup>),
}

impl ModelParallel {
    /// No model parallelism: this rank holds the full model.
    pub const NONE: Self = Self {
        tensor_parallel: None,
        sequence_parallel: SequenceParallel::Replicated,
        pipeline_parallel: None,
        expert_parallel: None,
        pipeline_expert_group: None,
        replica: 0,
    };

    /// Tensor parallelism over a group, with all tokens on every rank. A group of one rank means no
    /// parallelism.
    pub fn tensor_parallel_only(group: &Arc<ProcessGroup>) -> Self {
        Self { tensor_parallel: (group.size() > 1).then(|| Arc::clone(group)), ..Self::NONE }
    }

    /// The largest number of shards that a model's weights are split into.
    pub(crate) fn num_shards(&self) -> usize {
        let layers = self.pipeline_parallel.as_ref().map(|layers| &layers.group);
        let groups = [self.tensor_parallel.as_ref(), layers, self.expert_parallel.as_ref()];
        groups.into_iter().flatten().map(|group| group.size()).product()
    }

    /// This rank's shard of the tokens; `None` if the rank has all tokens.
    pub(crate) fn sequence_shard(&self) -> Option<SequenceShard> {
        match (&self.sequence_parallel, &self.tensor_parallel) {
            (SequenceParallel::Megatron, Some(group)) | (SequenceParallel::Ulysses(group), _) => {
                Some(SequenceShard::new(SequenceOrder::Contiguous, group))
            }
            (SequenceParallel::Ring(group), _) => Some(SequenceShard::new(SequenceOrder::ZigZag, group)),
            (SequenceParallel::Replicated, _) | (SequenceParallel::Megatron, None) => None,
        }
    }

    /// Whether the tokens are split over the tensor-parallel group (Megatron sequence parallelism).
    pub(crate) fn is_megatron_sp(&self) -> bool {
        self.tensor_parallel.is_some() && matches!(self.sequence_parallel, SequenceParallel::Megatron)
    }

    /// The Ulysses or ring group: ranks that train different tokens with the same weights.
    pub(crate) fn sequence_group(&self) -> Option<&Arc<ProcessGroup>> {
        match &self.sequence_parallel {
            SequenceParallel::Ulysses(group) | SequenceParallel::Ring(group) => Some(group),
            SequenceParallel::Replicated | SequenceParallel::Megatron => None,
        }
    }

    /// The groups of ranks that run the same layers together in a pass without gradients. Sequence-parallel
    /// ranks do not: each of them has all weights, and runs rows of its own.
    pub fn same_stage_groups(&self) -> impl Iterator<Item = &Arc<ProcessGroup>> {
        let groups = [self.expert_parallel.as_ref(), self.tensor_parallel.as_ref()];
        groups.into_iter().flatten().filter(|group| group.size() > 1)
    }

    /// The smallest `count` of the ranks that run this replica of the model, all of which call this.
    pub(crate) fn min_over_ranks(&self, count: usize) -> Result<usize, parallel::Error> {
        let layers = self.pipeline_parallel.as_ref().map(|layers| &layers.group);
        let mut negative = [-(count as f64)];
        for group in self.same_stage_groups().chain(layers) {
            negative = group.all_reduce_max(negative)?;
        }
        Ok(-negative[0] as usize)
    }

    /// The placement of a parameter outside the tensor-parallel layers.
    pub(crate) fn non_parallel_placement(&self) -> WeightPlacement {
        if self.is_megatron_sp() { WeightPlacement::ReplicatePartialGrad } else { WeightPlacement::Replicate }
    }

    /// Returns an error if the sequence-parallel mode does not support this attention.
    pub(crate) fn check_attention(&self, heads: &Range<i64>, mask: &MaskKind) -> Result<(), Error> {
        let (local_heads, axis) = (heads.end - heads.start, "sequence");
        match &self.sequence_parallel {
            SequenceParallel::Ulysses(group) if local_heads % group.size() as i64 != 0 => {
                Err(Error::Indivisible {
                    axis,
                    ranks: group.size(),
                    what: format!("{local_heads} query heads of a rank"),
                })
            }
            SequenceParallel::Ring(group) if mask.window.is_some() || mask.alibi.is_some() => {
                let what = "attention with a window or ALiBi in mode = \"ring\"".to_owned();
                Err(Error::Indivisible { axis, ranks: group.size(), what })
            }
            _ => Ok(()),
        }
    }
}

/// Whether the hidden states belong to a training pass.
pub(crate) fn needs_grad(hidden: &Tensor) -> bool {
    hidden.requires_grad() && autograd::is_enabled()
}

/// How a parameter is placed on the ranks.
#[derive(Clone, Debug)]
pub enum WeightPlacement {
    /// Every rank holds the full parameter and does the same work with it.
    Replicate,
    /// Replicated, with a partial gradient: every rank holds the full weight and applies it to different
    /// work, so the gradients are summed over the ranks.
    ReplicatePartialGrad,
    /// Every rank holds one shard.
    Shard(ShardSpec),
}

/// The attention heads of one rank.
#[derive(Clone, Debug)]
pub struct HeadPartition {
    /// The query heads of this rank.
    pub query_heads: Range<i64>,
    /// The key-value heads that these query heads read.
    pub kv_heads: Range<i64>,
    /// The placement of the query projection's columns.
    pub query_placement: WeightPlacement,
    /// The placement of the columns of the key and value projections.
    pub kv_placement: WeightPlacement,
}

impl HeadPartition {
    /// Splits the heads over the ranks so that query heads stay with the key-value head that they share. If
    /// there are fewer key-value heads than ranks, every rank holds the full key and value projections, and
    /// several ranks use the same key-value head.
    pub fn new(architecture: &Architecture, group: Option<&Arc<ProcessGroup>>) -> Result<Self, Error> {
        let (heads, kv_heads) = (architecture.num_heads, architecture.num_kv_heads);
        let Some(group) = group else {
            let (query_placement, kv_placement) = (WeightPlacement::Replicate, WeightPlacement::Replicate);
            return Ok(Self { query_heads: 0..heads, kv_heads: 0..kv_heads, query_placement, kv_placement });
        };
        let (ranks, rank) = (group.size(), group.rank());
        let dim = architecture.head_dim;

        if kv_heads >= ranks as i64 {
            let keys = ShardSpec::even(0, kv_heads, ranks);
            let queries = keys.clone().with_block_size(architecture.heads_per_kv());
            return Ok(Self {
                query_heads: queries.ranges(rank)[0].clone(),
                kv_heads: keys.ranges(rank)[0].clone(),
                query_placement: WeightPlacement::Shard(queries.with_block_size(dim)),
                kv_placement: WeightPlacement::Shard(keys.with_block_size(dim)),
            });
        }

        if ranks as i64 % kv_heads != 0 || heads % ranks as i64 != 0 {
            return Err(Error::Indivisible {
                axis: "tensor",
                ranks,
                what: format!("{heads} query heads with {kv_heads} key-value heads"),
            });
        }

        let queries = ShardSpec::even(0, heads, ranks);
        let shared = rank as i64 * kv_heads / ranks as i64;
        Ok(Self {
            query_heads: queries.ranges(rank)[0].clone(),
            kv_heads: shared..shared + 1,
            query_placement: WeightPlacement::Shard(queries.with_block_size(dim)),
            kv_placement: WeightPlacement::ReplicatePartialGrad,
        })
    }

    /// The placement of one fused matrix with all queries, then all keys, then all values, for models with as
    /// many key-value heads as query heads.
    pub fn fused_placement(&self) -> WeightPlacement {
        match (&self.query_placement, &self.kv_placement) {
            (WeightPlacement::Shard(queries), WeightPlacement::Shard(keys)) => {
                WeightPlacement::Shard(ShardSpec::concat(&[queries.clone(), keys.clone(), keys.clone()]))
            }
            _ => WeightPlacement::Replicate,
        }
    }

    /// The placement of one fused matrix that stores each head's query, key and value side by side.
    pub fn interleaved_placement(&self) -> WeightPlacement {
        match &self.query_placement {
            WeightPlacement::Shard(queries) => WeightPlacement::Shard(queries.clone().with_block_size(3)),
            _ => WeightPlacement::Replicate,
        }
    }
}

/// Splits `length` columns or rows over the group as evenly as possible. `what` names them in the error.
pub fn shard_evenly(
    length: i64,
    what: &str,
    group: Option<&Arc<ProcessGroup>>,
) -> Result<WeightPlacement, Error> {
    match group {
        None => Ok(WeightPlacement::Replicate),
        Some(group) if length < group.size() as i64 => {
            Err(Error::Indivisible { axis: "tensor", ranks: group.size(), what: format!("{length} {what}") })
        }
        Some(group) => Ok(WeightPlacement::Shard(ShardSpec::even(0, length, group.size()))),
    }
}
