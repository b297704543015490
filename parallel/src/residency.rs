//! When the weights of a model must be in memory.
//!
//! A model may not fit: then its weights are in memory only while a part of the model runs. Every forward
//! pass (training, inference, prefill, decoding) and every backward pass holds the weights of a part
//! ([`HeldWeights`]) while it uses them. The addresses of the weights never change, so layers, autograd graphs
//! and deferred weight gradients keep their tensors; only the memory behind them comes and goes. The
//! mechanism of moving memory and the decision what to move are not here: crate `gemini` implements
//! [`Residency`].
//!
//! The weights of a part may also be sharded over the data-parallel ranks (ZeRO stage 3). To hold them is
//! then a collective: all ranks of the group hold the same parts in the same order, whatever rows they have.
//! DeepSpeed: `PartitionedParameterCoordinator` (`fetch_sub_module`, `release_sub_module`); FSDP: `unshard`
//! and `reshard`.

pub mod joined;

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use tch::{Kind, Tensor};

use crate::comm::PendingCollective;
use crate::{Error, Parameter};

/// A part of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModelPart {
    /// A segment, by index.
    Segment(usize),
    /// The head, which computes the loss or the next token from the last hidden states.
    Head,
}

/// The weights that a caller uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weights<'a> {
    /// The weights of a part of the model.
    Part(ModelPart),
    /// One parameter, by index.
    Parameter(usize),
    /// Some parameters, by index.
    Parameters(&'a [usize]),
}

/// What a caller does with weights that it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It reads them.
    Read,
    /// It reads this rank's part of them. Of sharded weights, only that part is in memory.
    ReadOwn,
    /// It changes them, so they must be written before their memory is used for something else. Of sharded
    /// weights, only this rank's part is in memory, and only that part may be used.
    Write,
}

/// Keeps tensors in memory while they are used: the weights of one model, or another set of tensors with one
/// entry per parameter.
pub trait Residency: Debug + Send + Sync {
    /// Brings weights into memory, where they stay until [`release`](Self::release). Calls nest.
    fn fetch(&self, weights: Weights<'_>, access: Access) -> Result<(), Error>;

    /// Ends a [`fetch`](Self::fetch) or [`prefetch`](Self::prefetch) of the same weights.
    fn release(&self, weights: Weights<'_>);

    /// Starts to gather sharded weights, which stay in memory until [`release`](Self::release). Fetch them
    /// before they are used. Only for weights that [are sharded](Self::is_sharded).
    fn prefetch(&self, weights: Weights<'_>) -> Result<(), Error>;

    /// Whether weights may leave memory between two uses. The micro-batches of a step then run segment by
    /// segment, so that each weight is fetched as often as if there were one micro-batch.
    fn is_limited(&self) -> bool;

    /// Whether the weights are sharded over ranks, which therefore hold the same weights in the same order.
    fn is_sharded(&self) -> bool;

    /// Whether weights are whole in memory only while they are held.
    fn comes_and_goes(&self) -> bool {
        self.is_limited() || self.is_sharded()
    }

    /// The largest `count` of the ranks that the weights are sharded over, all of which call this.
    fn max_over_ranks(&self, count: usize) -> Result<usize, Error>;
}

/// Weights that stay in memory until this value is dropped.
#[derive(Debug)]
#[must_use = "the weights are released when this value is dropped"]
pub struct HeldWeights<'a> {
    held: Option<(&'a dyn Residency, Weights<'a>)>,
}

impl<'a> HeldWeights<'a> {
    /// Fetches `weights`. `None` stands for a model whose weights are always in memory.
    pub fn fetch(
        residency: Option<&'a dyn Residency>,
        weights: Weights<'a>,
        access: Access,
    ) -> Result<Self, Error> {
        let Some(residency) = residency else { return Ok(Self::none()) };
        residency.fetch(weights, access)?;
        Ok(Self { held: Some((residency, weights)) })
    }

    /// No weights.
    pub fn none() -> Self {
        Self { held: None }
    }

    /// Holds parameter `index` instead. Sharded weights are released only when the parameter is there, so
    /// that all parameters of a chunk, one after the other, are gathered once.
    pub fn fetch_next(&mut self, residency: Option<&'a dyn Residency>, index: usize) -> Result<(), Error> {
        if !residency.is_some_and(Residency::is_sharded) {
            *self = Self::none();
        }
        *self = Self::fetch(residency, Weights::Parameter(index), Access::Read)?;
        Ok(())
    }

    /// Starts to gather `weights` if they are sharded. They stay in memory until this value is dropped, but
    /// have to be fetched before they are used. FSDP: `BackwardPrefetch`, `forward_prefetch`.
    pub fn prefetch(residency: Option<&'a dyn Residency>, weights: Weights<'a>) -> Result<Self, Error> {
        let Some(residency) = residency.filter(|residency| residency.is_sharded()) else {
            return Ok(Self::none());
        };
        residency.prefetch(weights)?;
        Ok(Self { held: Some((residency, weights)) })
    }
}

impl Drop for HeldWeights<'_> {
    fn drop(&mut self) {
        if let Some((residency, weights)) = self.held.take() {
            residency.release(weights);
        }
    }
}

/// Computes elements of a weight, given by their numbers in it, and copies them to their places in the given
/// tensor, which is contiguous and has the shape of the weight. It can be called again after the memory of
/// the weight was used for something else.
pub type WeightSource = Box<dyn Fn(&Tensor, Range<usize>) -> Result<(), Error> + Send>;

/// The place that a weight needs in memory.
#[derive(Clone, Debug)]
pub struct WeightSpec {
    /// The parameter, with a tensor without values.
    pub parameter: Parameter,
    /// The shape of this rank's shard.
    pub shape: Vec<i64>,
    /// The dtype.
    pub kind: Kind,
    /// Whether training changes its values.
    pub trainable: bool,
}

/// Changes the values of weights that the caller holds for [writing](Access::Write).
pub type WeightUpdate = Box<dyn FnOnce() -> Result<(), Error> + Send>;

/// The memory of the weights of one model.
pub trait WeightStore: Residency {
    /// Weight `index`, as a tensor whose address never changes. Its values are in memory only while it is
    /// held.
    fn tensor(&self, index: usize) -> Tensor;

    /// Sets the values of weight `index` by `source`. With `keep`, the source is called again after the
    /// memory was used for something else; otherwise the store saves the values.
    fn load(&self, index: usize, source: WeightSource, keep: bool) -> Result<(), Error>;

    /// The elements of weight `index` that this rank updates. The data-parallel ranks divide each weight
    /// (ZeRO), or every one of them updates all of it.
    fn own_elements(&self, index: usize) -> Range<usize>;

    /// Whether an update of `weights` waits until they are used next. It needs `bytes` of memory for its own
    /// state and for the weights, and waits if there will be room for them. So its state can be read while
    /// the model computes.
    fn defers_update(&self, weights: Weights<'_>, bytes: usize) -> bool;

    /// Keeps an `update` of the weights with these indices until one of them is fetched or prefetched, and
    /// runs it then. Only if the store [defers](Self::defers_update) it.
    fn defer_update(&self, indices: Vec<usize>, update: WeightUpdate);

    /// The bytes that the budget leaves for tensors while any one part of these weights is in memory, and
    /// `beside` bytes of other weights. The same configuration always has the same number. `None` without a
    /// budget.
    fn room_for_tensors(&self, beside: usize) -> Option<usize>;

    /// The bytes of the largest part of the model.
    fn largest_part_bytes(&self) -> usize;

    /// Runs the updates that were deferred and did not run yet.
    fn finish_updates(&self) -> Result<(), Error>;

    /// Starts to send the elements of `weights` that this rank has updated to the other ranks, and to receive
    /// theirs. The weights must be held until it is done. Returns nothing to wait for if every rank has
    /// updated everything, or if each keeps only its own elements.
    fn start_all_gather(&self, weights: Weights<'_>) -> Result<Vec<PendingCollective>, Error>;
}

/// Reserves memory for the weights of models.
pub trait WeightAllocator: Debug + Send + Sync {
    /// Whether weights may leave memory between two uses.
    fn is_limited(&self) -> bool;

    /// The number of ranks over which the weights are sharded; 1 if every rank holds them whole.
    fn num_shards(&self) -> usize;

    /// The same memory, but with all weights whole on every rank. Decoding needs that, because the ranks
    /// decode different numbers of tokens.
    fn unsharded(&self) -> Arc<dyn WeightAllocator>;

    /// Reserves the places of all weights of a model, in order of use. `parts` lists the weights of each
    /// part.
    fn allocate(
        &self,
        specs: Vec<WeightSpec>,
        parts: Vec<(ModelPart, Vec<usize>)>,
    ) -> Result<Arc<dyn WeightStore>, Error>;
}
