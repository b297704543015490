//! When the weights of a model must be in memory.
//!
//! A model may not fit: then its weights are in memory only while a part of the model runs. Every forward
//! pass (training, inference, prefill, decoding) and every backward pass holds the weights of a part with
//! [`hold_weights`] while it uses them. The addresses of the weights never change, so layers, autograd graphs
//! and deferred weight gradients keep their tensors; only the memory behind them comes and goes. The
//! mechanism of moving memory and the decision what to move are not here: crate `gemini` implements
//! [`Residency`].
//! DeepSpeed: `PartitionedParameterCoordinator` (`fetch_sub_module`, `release_sub_module`); FSDP: `unshard`
//! and `reshard`.

use std::fmt::Debug;
use std::sync::Arc;

use tch::{Kind, Tensor};

use crate::{Error, Parameter, Segmented};

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
    /// Those of a part of the model.
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
    /// It changes them, so they must be written before their memory is used for something else.
    Write,
}

/// Keeps tensors in memory while they are used: the weights of one model, or another set of tensors with one
/// entry per parameter.
pub trait Residency: Debug + Send + Sync {
    /// Brings weights into memory, where they stay until [`release`](Self::release). Calls nest.
    fn fetch(&self, weights: Weights<'_>, access: Access) -> Result<(), Error>;

    /// Ends a [`fetch`](Self::fetch) of the same weights.
    fn release(&self, weights: Weights<'_>);

    /// Whether weights may leave memory between two uses. The micro-batches of a step then run segment by
    /// segment, so that each weight is fetched as often as if there were one micro-batch.
    fn is_limited(&self) -> bool;
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
        let Some(residency) = residency else { return Ok(Self { held: None }) };
        residency.fetch(weights, access)?;
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

/// Holds the weights of a part of a model while the part runs.
pub fn hold_weights<M: Segmented + ?Sized>(model: &M, part: ModelPart) -> Result<HeldWeights<'_>, Error> {
    HeldWeights::fetch(model.residency(), Weights::Part(part), Access::Read)
}

/// Computes the values of a weight and copies them into the given tensor. It can be called again after the
/// memory of the weight was used for something else.
pub type WeightSource = Box<dyn Fn(&Tensor) -> Result<(), Error> + Send>;

/// The place that a weight needs in memory.
#[derive(Clone, Debug)]
pub struct WeightSpec {
    /// The parameter, with a tensor without values.
    pub parameter: Parameter,
    /// The shape of this rank's shard.
    pub shape: Vec<i64>,
    /// The dtype.
    pub kind: Kind,
    /// Whether the matrix `[out, in]` is stored column by column.
    pub is_column_major: bool,
    /// Whether training changes its values.
    pub trainable: bool,
}

/// The memory of the weights of one model.
pub trait WeightStore: Residency {
    /// Weight `index`, as a tensor whose address never changes. Its values are in memory only while it is
    /// held.
    fn tensor(&self, index: usize) -> Tensor;

    /// Sets the values of weight `index` by `source`. With `keep`, the source is called again after the
    /// memory was used for something else; otherwise the store saves the values.
    fn load(&self, index: usize, source: WeightSource, keep: bool) -> Result<(), Error>;
}

/// Reserves memory for the weights of models.
pub trait WeightAllocator: Debug + Send + Sync {
    /// Whether weights may leave memory between two uses.
    fn is_limited(&self) -> bool;

    /// Reserves the places of all weights of a model, in order of use. `parts` lists the weights of each
    /// part.
    fn allocate(
        &self,
        specs: Vec<WeightSpec>,
        parts: Vec<(ModelPart, Vec<usize>)>,
    ) -> Result<Arc<dyn WeightStore>, Error>;
}
