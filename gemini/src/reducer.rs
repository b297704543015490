//! The all-reduce of gradients over the data-parallel ranks, in buckets, while the backward pass still runs.
//!
//! ```text
//!   bucket 0: gradients of the last layers       -> reduced first, once the last micro-batch has added them
//!   bucket 1: gradients of the layers before it  -> ...
//! ```
//! A bucket is a chunk of gradients: one flat fp32 buffer, of which the gradients of its parameters are
//! views. A reduction therefore is one collective without a copy. A chunk stays in memory until its reduction
//! is done. Every rank all-reduces the buckets in the same order, even if its own gradients become ready in
//! another order. A rank without rows contributes zeros. (The idea: Li et al. 2020, arXiv 2006.15704, section
//! 3.2. PyTorch DDP: `Reducer`; Megatron: `overlap_grad_reduce`.)

use std::sync::Arc;

use parallel::comm::{PendingCollective, ProcessGroup, Reduction};
use parallel::residency::Access;
use parallel::{ProcessGroups, Segmented};

use crate::Error;
use crate::chunk::layout::ChunkLayout;
use crate::chunk::store::ChunkStore;

/// The gradients of one chunk, which are all-reduced as a whole.
/// torch DDP: `GradBucket`; Megatron: `_ParamAndGradBucket`.
struct Bucket {
    chunk: usize,
    group: Arc<ProcessGroup>,
    /// Gradients that are still missing before the bucket can be reduced.
    pending: usize,
}

/// Reduces the gradients of one trained model over the data-parallel ranks: those of dense weights over
/// `dense_data_parallel`, those of expert weights over `expert_data_parallel`.
pub(crate) struct Reducer {
    groups: Arc<ProcessGroups>,
    grads: Arc<ChunkStore>,
    buckets: Vec<Bucket>,
    /// The bucket of each trained parameter.
    bucket_of: Vec<usize>,
    /// Micro-batches of this step that this rank has not started yet.
    micro_batches_left: usize,
    /// Whether this rank has started a micro-batch of this step.
    is_prepared: bool,
    /// How many gradients one backward pass produces for each trained parameter. Counted when the first
    /// micro-batch starts.
    grads_per_backward: Option<Vec<usize>>,
    /// The running all-reduces, one per bucket that was started.
    in_flight: Vec<PendingCollective>,
}

impl Reducer {
    /// Makes one bucket of each chunk of `grads`, in reverse order.
    pub(crate) fn new(groups: &Arc<ProcessGroups>, layout: &ChunkLayout, grads: &Arc<ChunkStore>) -> Self {
        // The backward pass produces the gradients of the last layers first. Expert buckets come after dense
        // ones because they are reduced over another group.
        let of = |wanted: bool| {
            (0..layout.chunks().len())
                .rev()
                .filter(move |&chunk| layout.chunks()[chunk].group.is_expert == wanted)
        };
        let buckets: Vec<Bucket> = of(false)
            .chain(of(true))
            .map(|chunk| {
                let is_expert = layout.chunks()[chunk].group.is_expert;
                let group =
                    if is_expert { groups.expert_data_parallel() } else { groups.dense_data_parallel() };
                Bucket { chunk, group: Arc::clone(group), pending: 0 }
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
            grads: Arc::clone(grads),
            buckets,
            bucket_of,
            micro_batches_left: 0,
            is_prepared: false,
            grads_per_backward: None,
            in_flight: Vec::new(),
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
        // A micro-batch that `split_micro_batches` did not return would add its gradients to a bucket whose
        // all-reduce is already running.
        self.micro_batches_left = self
            .micro_batches_left
            .checked_sub(count)
            .expect("only micro-batches that split_micro_batches returned are run");
    }

    /// Registers that a micro-batch has added its gradient for parameter `param_index`. Starts the all-reduce
    /// of every complete bucket that is next in order.
    pub(crate) fn on_gradient_ready(&mut self, param_index: usize) -> Result<(), Error> {
        let bucket = &mut self.buckets[self.bucket_of[param_index]];
        bucket.pending =
            bucket.pending.checked_sub(1).expect("a parameter gets one gradient for each of its uses");
        while self.in_flight.len() < self.buckets.len() && self.buckets[self.in_flight.len()].pending == 0 {
            self.reduce_next_bucket()?;
        }
        Ok(())
    }

    /// Starts the all-reduce of the remaining buckets, and returns when every gradient is the sum over the
    /// replicas.
    pub(crate) fn finalize_backward(&mut self) -> Result<(), Error> {
        while self.in_flight.len() < self.buckets.len() {
            self.reduce_next_bucket()?;
        }
        assert_eq!(self.micro_batches_left, 0, "all micro-batches of the step have run");
        self.buckets.iter_mut().for_each(|bucket| bucket.pending = 0);
        self.is_prepared = false;
        let done: Result<(), Error> = self.in_flight.drain(..).try_for_each(|started| Ok(started.wait()?));
        self.buckets.iter().for_each(|bucket| self.grads.release_chunk(bucket.chunk));
        done
    }

    /// Starts the all-reduce of the next bucket, whose gradients stay in memory until it is done.
    fn reduce_next_bucket(&mut self) -> Result<(), Error> {
        let bucket = &self.buckets[self.in_flight.len()];
        self.grads.fetch_chunk(bucket.chunk, Access::Write)?;
        let buffer = self.grads.chunk(bucket.chunk);
        self.in_flight.push(bucket.group.start_all_reduce(&buffer, Reduction::Sum)?);
        Ok(())
    }
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
