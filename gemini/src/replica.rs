//! Gradients of replicas that see different rows: summed over them while the backward pass goes on.
//!
//! ```text
//!   bucket 0: gradients of the last layers   -> reduced first, when the last micro-batch has delivered them all
//!   bucket 1: those before                   -> ...
//! ```
//! A bucket is one flat fp32 buffer that the gradients of its parameters are views of, so a reduction is one
//! collective and no copy. Every rank all-reduces the buckets in the same order, even if its own gradients
//! become ready in another order. A rank without rows contributes zeros. (The idea: Li et al. 2020, arXiv
//! 2006.15704, section 3.2.)

use std::sync::Arc;

use parallel::comm::{Group, Reduction, Started};
use parallel::{Groups, Segmented};
use tch::{Kind, Tensor};

use crate::Error;

/// Bytes of a bucket, at least, but for the last one.
const BUCKET: usize = 4 << 20;

struct Bucket {
    flat: Tensor,
    group: Arc<Group>,
    /// Deliveries that are still to come before it is whole.
    missing: usize,
}

/// The replicas of one trained model.
pub(crate) struct Replicas {
    groups: Arc<Groups>,
    buckets: Vec<Bucket>,
    /// The bucket of each slot.
    bucket_of: Vec<usize>,
    /// Micro-batches of this step that this rank has still to begin.
    left: usize,
    /// Whether it has begun one.
    begun: bool,
    /// Deliveries of one backward pass to each slot, by the model.
    uses: Option<Vec<usize>>,
    /// Buckets that were started.
    started: Vec<Started>,
}

impl Replicas {
    /// Buckets over parameters of these shapes, in the reverse of their order; and for each parameter its gradient, a view. `exclusive`
    /// are those that other ranks of the expert group do not hold: they come last.
    pub(crate) fn new(groups: &Arc<Groups>, weights: &[&Tensor], exclusive: &[bool]) -> (Self, Vec<Tensor>) {
        let mut buckets = Vec::new();
        let mut bucket_of = vec![0; weights.len()];
        let mut views: Vec<Option<Tensor>> = weights.iter().map(|_| None).collect();
        let mut waiting: Vec<usize> = Vec::new();
        let mut filled = 0;
        let of = |wanted: bool| (0..weights.len()).rev().filter(move |&slot| exclusive[slot] == wanted);
        let order: Vec<usize> = of(false).chain(of(true)).collect();
        for (place, &slot) in order.iter().enumerate() {
            waiting.push(slot);
            let next = order.get(place + 1);
            let ends = next.is_none_or(|&next| exclusive[next] != exclusive[slot]);
            filled += weights[slot].numel();
            if filled * 4 >= BUCKET || ends {
                let group = if exclusive[slot] { groups.twins() } else { groups.replicas() };
                let flat = Tensor::zeros([filled as i64], (Kind::Float, weights[slot].device()));
                let mut start = 0;
                for slot in waiting.drain(..) {
                    let length = weights[slot].numel() as i64;
                    views[slot] = Some(flat.narrow(0, start, length).view(weights[slot].size().as_slice()));
                    bucket_of[slot] = buckets.len();
                    start += length;
                }
                buckets.push(Bucket { flat, group: Arc::clone(group), missing: 0 });
                filled = 0;
            }
        }
        let views = views.into_iter().flatten().collect();
        let (left, begun, uses, started) = (0, false, None, Vec::new());
        (Self { groups: Arc::clone(groups), buckets, bucket_of, left, begun, uses, started }, views)
    }

    /// Splits the rows of the step evenly into micro-batches, records how many gradients they will produce,
    /// and returns the micro-batches of this rank. With expert parallelism every rank gets the same number of
    /// micro-batches, some possibly empty, because all ranks take part in the all-to-all of every MoE layer.
    pub(crate) fn deal<'r, T>(&mut self, rows: &'r [T], largest: usize) -> Vec<&'r [T]> {
        let data = self.groups.data();
        let size = largest.min(rows.len().div_ceil(data.size())).max(1);
        let together = if self.groups.expert().size() > 1 { data.size() } else { 1 };
        let count = rows.len().div_ceil(size).next_multiple_of(together);
        let cut = |place: usize| rows.len() * place / count;
        let own: Vec<&[T]> = data.deal((0..count).map(|place| &rows[cut(place)..cut(place + 1)])).collect();
        self.left += own.len();
        own
    }

    /// `count` micro-batches begin. The first to do so announces what all of the step will deliver.
    pub(crate) fn begin<M: Segmented>(&mut self, model: &M, slot_of: &[Option<usize>], count: usize) {
        if !std::mem::replace(&mut self.begun, true) {
            let uses = self.uses.get_or_insert_with(|| uses(model, slot_of, self.bucket_of.len()));
            for (slot, &uses) in uses.iter().enumerate() {
                self.buckets[self.bucket_of[slot]].missing += uses * self.left;
            }
        }
        // A micro-batch that was not announced would add its gradients to a bucket whose all-reduce is
        // already running.
        self.left = self.left.checked_sub(count).expect("every micro-batch was dealt");
    }

    /// A micro-batch has delivered to `slot`: starts what is whole and next.
    pub(crate) fn delivered(&mut self, slot: usize) -> Result<(), Error> {
        let bucket = &mut self.buckets[self.bucket_of[slot]];
        bucket.missing = bucket.missing.checked_sub(1).expect("as many deliveries as uses");
        while self.started.len() < self.buckets.len() && self.buckets[self.started.len()].missing == 0 {
            self.start_next()?;
        }
        Ok(())
    }

    /// Starts what was not delivered, and returns once every gradient is the sum over the ranks.
    pub(crate) fn finish(&mut self) -> Result<(), Error> {
        while self.started.len() < self.buckets.len() {
            self.start_next()?;
        }
        assert_eq!(self.left, 0, "every micro-batch that was dealt is run before the step");
        self.buckets.iter_mut().for_each(|bucket| bucket.missing = 0);
        self.begun = false;
        self.started.drain(..).try_for_each(|started| Ok(started.wait()?))
    }

    /// The next step begins with zeros.
    pub(crate) fn forget(&mut self) {
        for bucket in &mut self.buckets {
            let _ = bucket.flat.zero_();
        }
    }

    fn start_next(&mut self) -> Result<(), Error> {
        let bucket = &self.buckets[self.started.len()];
        self.started.push(bucket.group.start_all_reduce(&bucket.flat, Reduction::Sum)?);
        Ok(())
    }
}

/// How often one backward pass delivers to each slot: once a segment that uses the parameter, and once for the head.
fn uses<M: Segmented>(model: &M, slot_of: &[Option<usize>], slots: usize) -> Vec<usize> {
    let mut uses = vec![0; slots];
    let segments = (0..model.num_segments()).flat_map(|index| model.segment_parameters(index));
    for parameter in segments.chain(model.head_parameters()) {
        if let Some(slot) = slot_of[parameter] {
            uses[slot] += 1;
        }
    }
    uses
}
