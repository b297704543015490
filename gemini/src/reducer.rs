//! The reduction of gradients over the data-parallel ranks, in buckets, while the backward pass still runs.
//!
//! ```text
//!   bucket 0: gradients of the last layers       -> reduced first, once the last micro-batch has added them
//!   bucket 1: gradients of the layers before it  -> ...
//! ```
//! A bucket is a chunk of gradients: one flat fp32 buffer, of which the gradients of its parameters are
//! views. A reduction therefore is one collective without a copy: an all-reduce, or with ZeRO a
//! reduce-scatter, after which each rank has the sums of its own shard. A chunk stays in memory until its
//! reduction is done. Every rank reduces the buckets in the same order, even if its own gradients become
//! ready in another order. A rank without rows contributes zeros. In stages 2 and 3 of ZeRO every rank also
//! starts the reductions at the same places of the backward pass: otherwise one rank could wait in a
//! reduction for another rank that waits for it in the gathering of weights. (The idea: Li et al. 2020, arXiv
//! 2006.15704, section 3.2. PyTorch DDP: `Reducer`; Megatron: `overlap_grad_reduce`.)

use std::collections::VecDeque;
use std::sync::Arc;

use parallel::comm::{PendingCollective, ProcessGroup, Reduction};
use parallel::residency::{Access, ModelPart, Residency};
use parallel::{ProcessGroups, Segmented};

use crate::chunk::layout::ChunkLayout;
use crate::chunk::state::ChunkState;
use crate::chunk::store::ChunkStore;
use crate::{Error, ZeroStage};

/// The most reductions that run at a time if chunks leave memory after theirs.
const MAX_IN_FLIGHT: usize = 2;

/// When a bucket is reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trigger {
    /// When this rank has added all gradients of the step.
    Complete,
    /// In the last call of `accumulate`, when the backward pass is done with the segments of its parameters.
    PartDone,
    /// At the end of the step.
    EndOfStep,
}

/// The gradients of one chunk, which are reduced as a whole.
/// torch DDP: `GradBucket`; Megatron: `_ParamAndGradBucket`.
struct Bucket {
    chunk: usize,
    group: Arc<ProcessGroup>,
    /// Gradients that are still missing before the bucket can be reduced.
    pending: usize,
    state: ChunkState,
}

/// Reduces the gradients of one trained model over the data-parallel ranks: those of dense weights over
/// `dense_data_parallel`, those of expert weights over `expert_data_parallel`.
pub(crate) struct Reducer {
    groups: Arc<ProcessGroups>,
    zero_stage: ZeroStage,
    grads: Arc<ChunkStore>,
    buckets: Vec<Bucket>,
    /// The bucket of each trained parameter.
    bucket_of: Vec<usize>,
    trigger: Trigger,
    /// For each bucket, the part of the model after whose backward pass its gradients are complete; `None` if
    /// they are complete only at the end. Computed when the first micro-batch starts.
    last_parts: Option<Vec<Option<usize>>>,
    /// Calls of `split_micro_batches` whose micro-batches have not started yet.
    splits_left: usize,
    /// Micro-batches of this step that this rank has not started yet.
    micro_batches_left: usize,
    /// Whether this rank has started a micro-batch of this step.
    is_prepared: bool,
    /// How many gradients one backward pass produces for each trained parameter. Counted when the first
    /// micro-batch starts.
    grads_per_backward: Option<Vec<usize>>,
    /// The number of buckets whose reduction was started in this step.
    started: usize,
    /// The running reductions, those of the last buckets that were started.
    in_flight: VecDeque<PendingCollective>,
}

impl Reducer {
    /// Makes one bucket of each chunk of `grads`, in reverse order.
    pub(crate) fn new(
        groups: &Arc<ProcessGroups>,
        zero_stage: ZeroStage,
        layout: &ChunkLayout,
        grads: &Arc<ChunkStore>,
    ) -> Self {
        let trigger = match zero_stage {
            ZeroStage::Gradients | ZeroStage::Weights if groups.pipeline_parallel().size() == 1 => {
                Trigger::PartDone
            }
            ZeroStage::Weights => Trigger::EndOfStep,
            _ => Trigger::Complete,
        };
        // The backward pass produces the gradients of the last layers first. If a rank reduces a bucket when
        // its own gradients are complete, expert buckets come after dense ones, which do not wait for them.
        let is_last = |chunk: &usize| trigger == Trigger::Complete && layout.chunks()[*chunk].group.is_expert;
        let (last, first): (Vec<usize>, Vec<usize>) = (0..layout.chunks().len()).rev().partition(is_last);
        let buckets: Vec<Bucket> = first
            .into_iter()
            .chain(last)
            .map(|chunk| {
                let is_expert = layout.chunks()[chunk].group.is_expert;
                let group =
                    if is_expert { groups.expert_data_parallel() } else { groups.dense_data_parallel() };
                Bucket { chunk, group: Arc::clone(group), pending: 0, state: ChunkState::Free }
            })
            .collect();

        let mut bucket_of = vec![0; layout.num_params()];
        for (index, bucket) in buckets.iter().enumerate() {
            for slot in &layout.chunks()[bucket.chunk].params {
                bucket_of[slot.param] = index;
            }
        }
        Self {
            groups: Arc::clone(groups),
            zero_stage,
            trigger,
            last_parts: None,
            splits_left: 0,
            grads: Arc::clone(grads),
            buckets,
            bucket_of,
            micro_batches_left: 0,
            is_prepared: false,
            grads_per_backward: None,
            started: 0,
            in_flight: VecDeque::new(),
        }
    }

    /// Splits the rows of the step evenly into micro-batches, adds up how many this rank has to run, and
    /// returns the micro-batches of this rank. With expert parallelism every rank gets the same number of
    /// micro-batches, some possibly empty, because all ranks take part in the all-to-all of every MoE layer.
    pub(crate) fn split_micro_batches<'r, T>(
        &mut self,
        rows: &'r [T],
        micro_batch_size: usize,
    ) -> Vec<&'r [T]> {
        let data = self.groups.data_parallel();
        let size = micro_batch_size.min(rows.len().div_ceil(data.size())).max(1);
        let count_multiple = if self.groups.expert_parallel().size() > 1 { data.size() } else { 1 };
        let count = rows.len().div_ceil(size).next_multiple_of(count_multiple);
        let boundary = |index: usize| rows.len() * index / count;
        let local: Vec<&[T]> =
            data.round_robin((0..count).map(|index| &rows[boundary(index)..boundary(index + 1)])).collect();
        self.micro_batches_left += local.len();
        self.splits_left += 1;
        local
    }

    /// Registers that `count` micro-batches start. The first call of a step computes how many gradients every
    /// bucket receives in this step.
    pub(crate) fn prepare_for_backward<M: Segmented>(
        &mut self,
        model: &M,
        state_index: &[Option<usize>],
        count: usize,
    ) {
        if !std::mem::replace(&mut self.is_prepared, true) {
            let uses = self
                .grads_per_backward
                .get_or_insert_with(|| count_grads_per_backward(model, state_index, self.bucket_of.len()));
            for (param_index, &uses) in uses.iter().enumerate() {
                self.buckets[self.bucket_of[param_index]].pending += uses * self.micro_batches_left;
            }
        }
        if self.trigger == Trigger::PartDone {
            self.last_parts
                .get_or_insert_with(|| last_parts(model, state_index, &self.buckets, &self.bucket_of));
        }
        self.splits_left = self.splits_left.saturating_sub(1);
        // A micro-batch that `split_micro_batches` did not return would add its gradients to a bucket whose
        // reduction is already running.
        self.micro_batches_left = self
            .micro_batches_left
            .checked_sub(count)
            .expect("only micro-batches that split_micro_batches returned are run");
    }

    /// Registers that a micro-batch has added its gradient for parameter `param_index`. Starts the reduction
    /// of every complete bucket that is next in order.
    pub(crate) fn on_gradient_ready(&mut self, param_index: usize) -> Result<(), Error> {
        let bucket = &mut self.buckets[self.bucket_of[param_index]];
        bucket.pending =
            bucket.pending.checked_sub(1).expect("a parameter gets one gradient for each of its uses");
        if bucket.state == ChunkState::Free {
            bucket.state.enter(ChunkState::HoldAfterBackward);
        }
        while self.trigger == Trigger::Complete
            && self.started < self.buckets.len()
            && self.buckets[self.started].pending == 0
        {
            self.reduce_next_bucket()?;
        }
        Ok(())
    }

    /// Registers that the backward pass is done with a part of the model. Returns the chunks whose reduction
    /// is due, in order.
    pub(crate) fn due_after(&self, part: ModelPart) -> Vec<usize> {
        let (Trigger::PartDone, 0, Some(last_parts)) = (self.trigger, self.splits_left, &self.last_parts)
        else {
            return Vec::new();
        };
        let is_due = |bucket: &usize| match (last_parts[*bucket], part) {
            (Some(last), ModelPart::Segment(index)) => last >= index,
            (Some(last), ModelPart::Head) => last == HEAD,
            (None, _) => false,
        };
        let due = (self.started..self.buckets.len()).take_while(is_due);
        due.map(|bucket| self.buckets[bucket].chunk).collect()
    }

    /// Starts the reduction of the next bucket, which is that of `chunk`.
    pub(crate) fn reduce(&mut self, chunk: usize) -> Result<(), Error> {
        assert_eq!(self.buckets[self.started].chunk, chunk, "buckets are reduced in order");
        self.reduce_next_bucket()
    }

    /// Starts the reduction of the remaining buckets, and returns when every gradient is the sum over the
    /// replicas; with ZeRO, every gradient of this rank's shards. `add_missing` sets the gradients of a chunk
    /// to zero that this rank has not computed.
    pub(crate) fn finalize_backward(
        &mut self,
        mut add_missing: impl FnMut(usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        while self.started < self.buckets.len() {
            add_missing(self.buckets[self.started].chunk)?;
            self.reduce_next_bucket()?;
        }
        assert_eq!(self.micro_batches_left, 0, "all micro-batches of the step have run");
        self.buckets.iter_mut().for_each(|bucket| bucket.pending = 0);
        self.is_prepared = false;
        while !self.in_flight.is_empty() {
            self.finish_oldest_reduction()?;
        }
        (self.started, self.splits_left) = (0, 0);
        Ok(())
    }

    /// Starts the reduction of the next bucket, whose gradients stay in memory until it is done.
    fn reduce_next_bucket(&mut self) -> Result<(), Error> {
        let leaves_memory = self.zero_stage >= ZeroStage::Gradients || self.grads.is_limited();
        if leaves_memory && self.in_flight.len() == MAX_IN_FLIGHT {
            self.finish_oldest_reduction()?;
        }
        let bucket = &mut self.buckets[self.started];
        bucket.state.enter(ChunkState::ReadyForReduce);
        self.grads.fetch_chunk(bucket.chunk, Access::Write)?;
        let buffer = self.grads.chunk(bucket.chunk);
        self.in_flight.push_back(if self.zero_stage == ZeroStage::None {
            bucket.group.start_all_reduce(&buffer, Reduction::Sum)?
        } else {
            bucket.group.start_reduce_scatter_in_place(&buffer)?
        });
        self.started += 1;
        Ok(())
    }

    /// Waits for the reduction that was started first, and gives the memory of its gradients back that this
    /// rank does not need any more.
    fn finish_oldest_reduction(&mut self) -> Result<(), Error> {
        let Some(oldest) = self.in_flight.pop_front() else { return Ok(()) };
        oldest.wait()?;
        let bucket = &mut self.buckets[self.started - self.in_flight.len() - 1];
        bucket.state.enter(ChunkState::Free);
        self.grads.release_chunk(bucket.chunk);
        self.grads.free_other_shards(bucket.chunk)
    }
}

/// The place of the head in the order of the parts: after all segments.
const HEAD: usize = usize::MAX;

/// The part of the model after whose backward pass the gradients of each bucket are complete, as the index of
/// a segment or [`HEAD`]. `None` for a bucket with a weight that the head and a segment use, whose gradients
/// are added up after the backward pass.
fn last_parts<M: Segmented>(
    model: &M,
    state_index: &[Option<usize>],
    buckets: &[Bucket],
    bucket_of: &[usize],
) -> Vec<Option<usize>> {
    let mut last: Vec<Option<usize>> = buckets.iter().map(|_| Some(HEAD)).collect();
    let bucket = |parameter: usize| state_index[parameter].map(|param| bucket_of[param]);
    let head = model.head_parameters();
    for segment in 0..model.num_segments() {
        for parameter in model.segment_parameters(segment) {
            let Some(bucket) = bucket(parameter) else { continue };
            let is_tied = head.contains(&parameter);
            last[bucket] = last[bucket].map(|last| last.min(segment)).filter(|_| !is_tied);
        }
    }
    last
}

/// How many gradients one backward pass produces for each trained parameter: one per segment that uses the
/// parameter, and one if the head uses it.
fn count_grads_per_backward<M: Segmented>(
    model: &M,
    state_index: &[Option<usize>],
    num_params: usize,
) -> Vec<usize> {
    let mut uses = vec![0; num_params];
    let segments = (0..model.num_segments()).flat_map(|index| model.segment_parameters(index));
    for parameter in segments.chain(model.head_parameters()) {
        if let Some(param_index) = state_index[parameter] {
            uses[param_index] += 1;
        }
    }
    uses
}
