//! A network as a chain of segments, and its backward pass one segment at a time.
//!
//! The segment is the unit of execution: the embedding, one transformer layer (DeepSpeed: `LayerSpec`), or
//! the final norm. Consecutive segments form a pipeline stage (Megatron: model chunk). The autograd graph is
//! cut between two segments: the input of each segment is a leaf, and the backward pass computes the gradient
//! of that input with a vector-Jacobian product (`autograd::grad`) and passes it to the previous segment. It
//! ends at the first segment that trains anything.
//! Activation checkpointing (Chen et al. 2016, arXiv 1604.06174) is a choice made at these cuts: either the
//! graph of a segment is kept, or only its input is kept and the segment runs forward again in the backward
//! pass. This module knows no layer, no loss and no optimizer.

use std::ops::Range;
use std::sync::Arc;

use tch::{Device, Kind, Tensor, no_grad};

use crate::residency::{Access, HeldWeights, ModelPart, Residency, WeightStore, Weights};
use crate::{Error, Parameter, PipelineStages, autograd};

/// A network that runs as a chain of segments. The head on top (vocabulary, scalar) is not a segment: it
/// belongs to the loss.
pub trait Segmented {
    /// The inputs of every segment beside the hidden states: token ids, positions, attention mask.
    type Context;

    /// The number of segments. Segment 0 computes the first hidden states from the context alone.
    fn num_segments(&self) -> usize;

    /// Runs segment `index`. `hidden` is the output of the previous segment, and `None` for segment 0. Fails
    /// if a collective fails.
    fn forward_segment(
        &self,
        index: usize,
        hidden: Option<&Tensor>,
        context: &Self::Context,
    ) -> Result<Tensor, Error>;

    /// The indices into [`parameters`](Self::parameters) that segment `index` uses.
    fn segment_parameters(&self, index: usize) -> Vec<usize>;

    /// The indices into [`parameters`](Self::parameters) that the head uses. Segment 0 and the head both use
    /// a tied embedding.
    fn head_parameters(&self) -> Vec<usize>;

    /// All parameters, in order of use and without repetition.
    fn parameters(&self) -> &[Parameter];

    /// The assignment of segments to pipeline stages; `None` if this rank has all segments.
    fn pipeline(&self) -> Option<&PipelineStages> {
        None
    }

    /// The memory of the weights; `None` if each weight was allocated on its own and always is in memory.
    fn weight_store(&self) -> Option<&Arc<dyn WeightStore>> {
        None
    }

    /// What keeps the weights in memory while they are used; `None` if they always are in memory.
    fn residency(&self) -> Option<&dyn Residency> {
        self.weight_store().map(|store| -> &dyn Residency { &**store })
    }

    /// The shape, kind and device of the hidden states between two segments.
    fn hidden_spec(&self, context: &Self::Context) -> (Vec<i64>, (Kind, Device));

    /// Computes the last hidden states without a graph. A pipeline rank that does not have them returns a
    /// tensor of the same shape.
    fn forward_no_grad(&self, context: &Self::Context) -> Result<Tensor, Error> {
        let mut hidden = self.forward_all_no_grad(&[context])?;
        Ok(hidden.pop().expect("one context has one result"))
    }

    /// [`forward_no_grad`](Self::forward_no_grad) of several contexts, segment by segment, so that the
    /// weights of each segment are fetched once.
    fn forward_all_no_grad(&self, contexts: &[&Self::Context]) -> Result<Vec<Tensor>, Error> {
        forward_segment_by_segment(self, contexts.len(), |segment, index, hidden| {
            self.forward_segment(segment, hidden, contexts[index])
        })
    }
}

/// Holds the weights of a part of a model while the part runs.
pub fn hold_weights<M: Segmented + ?Sized>(model: &M, part: ModelPart) -> Result<HeldWeights<'_>, Error> {
    HeldWeights::fetch(model.residency(), Weights::Part(part), Access::Read)
}

/// Holds the parts of a model one after the other, and gathers the next part while one runs.
#[derive(Debug)]
pub struct PartSequence<'a, M: ?Sized> {
    model: &'a M,
    /// The parts that are still to come, the next one last.
    parts: Vec<ModelPart>,
    /// The part that was gathered ahead.
    prefetched: Option<HeldWeights<'a>>,
}

impl<'a, M: Segmented + ?Sized> PartSequence<'a, M> {
    /// `parts`, in the order in which they run.
    pub fn new(model: &'a M, parts: impl DoubleEndedIterator<Item = ModelPart>) -> Self {
        Self { model, parts: parts.rev().collect(), prefetched: None }
    }

    /// Holds the next part.
    pub fn hold_next(&mut self) -> Result<HeldWeights<'a>, Error> {
        let part = self.parts.pop().expect("the caller runs the parts that it has listed");
        let held = hold_weights(self.model, part)?;
        // Only now is the part released that was gathered ahead, which is the one that is held.
        self.prefetched = match self.parts.last() {
            Some(&next) => Some(HeldWeights::prefetch(self.model.residency(), Weights::Part(next))?),
            None => None,
        };
        Ok(held)
    }
}

/// Runs `count` micro-batches through one segment before the next, without a graph. `run` computes the output
/// of a segment, given by index, for a micro-batch, given by index, from the output of the segment before it.
/// Returns the last outputs.
pub fn forward_segment_by_segment<M: Segmented + ?Sized>(
    model: &M,
    count: usize,
    mut run: impl FnMut(usize, usize, Option<&Tensor>) -> Result<Tensor, Error>,
) -> Result<Vec<Tensor>, Error> {
    let mut parts = PartSequence::new(model, (0..model.num_segments()).map(ModelPart::Segment));
    let mut all: Vec<Option<Tensor>> = (0..count).map(|_| None).collect();
    no_grad(|| {
        for segment in 0..model.num_segments() {
            let _weights = parts.hold_next()?;
            for (index, hidden) in all.iter_mut().enumerate() {
                *hidden = Some(run(segment, index, hidden.as_ref())?);
            }
        }
        Ok(all.into_iter().map(|hidden| hidden.expect("a network has a segment")).collect())
    })
}

/// What has used a parameter when its gradient is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradientSource {
    /// A segment.
    Segment,
    /// The head.
    Head,
}

/// Receives the gradient of a parameter, which is given by index.
pub type OnGradient<'a, E> = dyn FnMut(GradientSource, usize, Tensor) -> Result<(), E> + 'a;

/// The gradients of a part of a network.
#[derive(Debug)]
pub(crate) struct PartGradients {
    /// The gradient of the input of the part, if it has one.
    input: Option<Tensor>,
    source: GradientSource,
    /// The gradients of parameters, which are given by index.
    parameters: Vec<(usize, Tensor)>,
}

impl PartGradients {
    /// Passes the gradients of the parameters on. Returns the gradient of the input.
    pub(crate) fn deliver<E>(self, on_gradient: &mut OnGradient<'_, E>) -> Result<Option<Tensor>, E> {
        let Self { input, source, parameters } = self;
        parameters.into_iter().try_for_each(|(index, grad)| on_gradient(source, index, grad))?;
        Ok(input)
    }
}

/// The state of a segment that is kept between forward and backward.
enum SavedSegment {
    /// Its input and output, connected by the autograd graph.
    WithGraph { input: Option<Tensor>, output: Tensor },
    /// Only its input, a leaf.
    InputOnly(Option<Tensor>),
}

/// A forward pass that can be run backward once.
pub struct ForwardPass<'a, M: Segmented> {
    model: &'a M,
    context: &'a M::Context,
    first: usize,
    records: Vec<SavedSegment>,
    hidden: Tensor,
    /// Whether the last hidden states depend on a parameter that is trained; those that another pipeline
    /// stage has computed may.
    needs_grad: bool,
    /// The weights of the head, once the loss was computed with them. The backward pass uses them again.
    head: Option<HeldWeights<'a>>,
}

/// The first segment that trains a parameter. The backward pass ends with it. Without one, it is as large as
/// the number of segments.
pub(crate) fn first_trained_segment<M: Segmented + ?Sized>(model: &M) -> usize {
    let count = model.num_segments();
    (0..count).find(|&index| trains(model, index)).unwrap_or(count)
}

/// Whether segment `index` trains a parameter.
fn trains<M: Segmented + ?Sized>(model: &M, index: usize) -> bool {
    model.segment_parameters(index).iter().any(|&index| model.parameters()[index].tensor.requires_grad())
}

impl<'a, M: Segmented> ForwardPass<'a, M> {
    /// Runs the network forward. With `activation_checkpointing`, only the inputs of the segments are kept.
    pub fn run(model: &'a M, context: &'a M::Context, activation_checkpointing: bool) -> Result<Self, Error> {
        Self::run_segments(model, context, 0..model.num_segments(), None, activation_checkpointing)
    }

    /// Runs some segments forward from `input`, the output of the segment before them.
    pub fn run_segments(
        model: &'a M,
        context: &'a M::Context,
        segments: Range<usize>,
        input: Option<Tensor>,
        activation_checkpointing: bool,
    ) -> Result<Self, Error> {
        let mut pass = Self::start(model, context, segments.start, input);
        for index in segments {
            let _weights = hold_weights(model, ModelPart::Segment(index))?;
            pass.run_segment(index, activation_checkpointing)?;
        }
        Ok(pass.finish())
    }

    /// Starts a pass at segment `first`, from the output of the segment before it.
    pub(crate) fn start(model: &'a M, context: &'a M::Context, first: usize, input: Option<Tensor>) -> Self {
        let needs_grad = input.is_some();
        // Without an input the first segment computes the hidden states, and the placeholder is not read.
        let hidden = input.unwrap_or_default();
        Self { model, context, first, records: Vec::new(), hidden, needs_grad, head: None }
    }

    /// Runs the next segment, whose weights the caller holds.
    pub(crate) fn run_segment(&mut self, index: usize, activation_checkpointing: bool) -> Result<(), Error> {
        let input = self.hidden.defined().then(|| self.hidden.detach());
        let leaf = input.as_ref().map(|input| input.detach().set_requires_grad(self.needs_grad));
        let (record, output) = if activation_checkpointing {
            let output = no_grad(|| self.model.forward_segment(index, input.as_ref(), self.context))?;
            (SavedSegment::InputOnly(leaf), output)
        } else {
            forward_with_graph(self.model, index, leaf, self.context)?
        };
        self.needs_grad |= trains(self.model, index);
        self.records.push(record);
        self.hidden = output;
        Ok(())
    }

    /// Makes the last hidden states a leaf.
    pub(crate) fn finish(self) -> Self {
        assert!(!self.records.is_empty(), "a network has a segment");
        Self { hidden: self.hidden.set_requires_grad(true), ..self }
    }

    /// The last hidden states, a leaf from which the caller computes the loss.
    pub fn hidden(&self) -> &Tensor {
        &self.hidden
    }

    /// Frees the last hidden states once the head has run backward.
    pub(crate) fn drop_hidden(&mut self) {
        self.hidden = Tensor::new();
    }

    /// Holds the weights of the head until the backward pass has used them. Call it before the loss.
    pub fn hold_head(&mut self) -> Result<(), Error> {
        self.head = Some(hold_weights(self.model, ModelPart::Head)?);
        Ok(())
    }

    /// Runs the network backward from the scalar `loss`, which was computed from [`hidden`](Self::hidden).
    ///
    /// `on_gradient` receives the gradient of each parameter, with the index of the parameter, as soon as it
    /// is known. It is called twice for a parameter that is used twice. Returns the gradient of the first
    /// segment's input, if it has one.
    pub fn backward<E: From<Error>>(
        mut self,
        loss: &Tensor,
        on_gradient: &mut OnGradient<'_, E>,
    ) -> Result<Option<Tensor>, E> {
        match self.backward_head(loss)?.deliver(on_gradient)? {
            Some(grad_output) => self.backward_from(&grad_output, on_gradient),
            None => Ok(None),
        }
    }

    /// Runs the head backward from the scalar `loss`, and releases its weights. The input of the head is
    /// [`hidden`](Self::hidden).
    pub(crate) fn backward_head(&mut self, loss: &Tensor) -> Result<PartGradients, Error> {
        let (model, grad_output) = (self.model, loss.ones_like());
        let grads = vector_jacobian(model, loss, &grad_output, Some(&self.hidden), ModelPart::Head)?;
        self.head = None;
        Ok(grads)
    }

    /// Runs [`backward`](Self::backward) from the gradient of [`hidden`](Self::hidden), which a later
    /// pipeline stage has computed.
    pub fn backward_from<E: From<Error>>(
        mut self,
        grad_output: &Tensor,
        on_gradient: &mut OnGradient<'_, E>,
    ) -> Result<Option<Tensor>, E> {
        self.drop_hidden();
        let mut grad = Some(grad_output.shallow_clone());
        for index in (self.first..self.first + self.records.len()).rev() {
            let Some(grad_output) = grad else { return Ok(None) };
            let _weights = hold_weights(self.model, ModelPart::Segment(index))?;
            grad = self.backward_segment(index, &grad_output)?.deliver(on_gradient)?;
        }
        Ok(grad)
    }

    /// Runs the last segment that is left backward. The caller holds its weights.
    pub(crate) fn backward_segment(
        &mut self,
        index: usize,
        grad_output: &Tensor,
    ) -> Result<PartGradients, Error> {
        let (model, record) = (self.model, self.records.pop().expect("each segment runs backward once"));
        let (input, output) = match record {
            SavedSegment::WithGraph { input, output } => (input, output),
            SavedSegment::InputOnly(input) => {
                match forward_with_graph(model, index, input, self.context)?.0 {
                    SavedSegment::WithGraph { input, output } => (input, output),
                    SavedSegment::InputOnly(_) => unreachable!("`forward_with_graph` keeps the graph"),
                }
            }
        };
        let part = ModelPart::Segment(index);
        vector_jacobian(model, &output, grad_output, input.as_ref(), part)
    }
}

/// Runs one segment with a graph that starts at its input, a leaf. The second tensor is the output, detached
/// from the graph.
fn forward_with_graph<M: Segmented>(
    model: &M,
    index: usize,
    input: Option<Tensor>,
    context: &M::Context,
) -> Result<(SavedSegment, Tensor), Error> {
    let output = model.forward_segment(index, input.as_ref(), context)?;
    let cut = output.detach();
    Ok((SavedSegment::WithGraph { input, output }, cut))
}

/// Computes the vector-Jacobian product `grad_output^T d output / d (input, parameters)` of a part, for the
/// input and the parameters that need a gradient.
fn vector_jacobian<M: Segmented>(
    model: &M,
    output: &Tensor,
    grad_output: &Tensor,
    input: Option<&Tensor>,
    part: ModelPart,
) -> Result<PartGradients, Error> {
    let (source, parameters) = match part {
        ModelPart::Segment(index) => (GradientSource::Segment, model.segment_parameters(index)),
        ModelPart::Head => (GradientSource::Head, model.head_parameters()),
    };
    let input = input.filter(|input| input.requires_grad());
    let trained: Vec<usize> =
        parameters.into_iter().filter(|&index| model.parameters()[index].tensor.requires_grad()).collect();
    let leaves: Vec<&Tensor> =
        input.into_iter().chain(trained.iter().map(|&index| &model.parameters()[index].tensor)).collect();
    if leaves.is_empty() || !output.requires_grad() {
        return Ok(PartGradients { input: None, source, parameters: Vec::new() });
    }

    // The gradients have the order of the leaves. A leaf that the output does not depend on has none.
    let mut grads = autograd::grad(&[output], &[grad_output], &leaves)?.into_iter();
    let input = if input.is_some() { grads.next().flatten() } else { None };
    let parameters = trained.into_iter().zip(grads).filter_map(|(index, grad)| Some((index, grad?)));
    Ok(PartGradients { input, source, parameters: parameters.collect() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use tch::Kind;

    /// h0 = w0 * context; h1 = w1 * h0^2; h2 = w2 * h1; head: w0 (tied).
    struct Chain {
        parameters: Vec<Parameter>,
        forwards: Cell<usize>,
    }

    impl Chain {
        fn new() -> Self {
            let parameter = |name: &str, value: f64| {
                Parameter::replicated(name, &Tensor::from_slice(&[value]).set_requires_grad(true))
            };
            Self {
                parameters: vec![parameter("w0", 2.0), parameter("w1", 3.0), parameter("w2", 5.0)],
                forwards: Cell::new(0),
            }
        }
    }

    impl Segmented for Chain {
        type Context = Tensor;
        fn num_segments(&self) -> usize {
            3
        }
        fn hidden_spec(&self, context: &Tensor) -> (Vec<i64>, (Kind, Device)) {
            (context.size(), (context.kind(), context.device()))
        }
        fn forward_segment(
            &self,
            index: usize,
            hidden: Option<&Tensor>,
            context: &Tensor,
        ) -> Result<Tensor, Error> {
            self.forwards.set(self.forwards.get() + 1);
            let weight = &self.parameters[index].tensor;
            Ok(match index {
                0 => weight * context,
                1 => weight * hidden.unwrap().square(),
                _ => weight * hidden.unwrap(),
            })
        }
        fn segment_parameters(&self, index: usize) -> Vec<usize> {
            vec![index]
        }
        fn head_parameters(&self) -> Vec<usize> {
            vec![0]
        }
        fn parameters(&self) -> &[Parameter] {
            &self.parameters
        }
    }

    fn gradients(activation_checkpointing: bool) -> (Vec<f64>, usize) {
        let model = Chain::new();
        let context = Tensor::from_slice(&[7.0]);
        let mut grads = vec![0.0; 3];
        let forward = ForwardPass::run(&model, &context, activation_checkpointing).unwrap();
        let loss = (forward.hidden() * &model.parameters[0].tensor).sum(Kind::Double);
        let mut add = |_, index: usize, grad: Tensor| {
            grads[index] += grad.double_value(&[0]);
            Ok(())
        };
        forward.backward::<Error>(&loss, &mut add).unwrap();
        (grads, model.forwards.get())
    }

    #[test]
    fn gradients_by_hand_with_and_without_checkpointing() {
        // loss = w0 * w2 * w1 * (w0 c)^2 = w0^3 w1 w2 c^2, with w = (2, 3, 5), c = 7.
        // d/dw0 = 3 * 4 * 15 * 49 = 8820; d/dw1 = 8 * 5 * 49 = 1960; d/dw2 = 8 * 3 * 49 = 1176.
        assert_eq!(gradients(false), (vec![8820.0, 1960.0, 1176.0], 3));
        assert_eq!(gradients(true), (vec![8820.0, 1960.0, 1176.0], 6));
    }

    #[test]
    fn a_frozen_parameter_gets_no_gradient() {
        let model = Chain::new();
        let _ = model.parameters[1].tensor.shallow_clone().set_requires_grad(false);
        let context = Tensor::from_slice(&[7.0]);
        let forward = ForwardPass::run(&model, &context, false).unwrap();
        let loss = forward.hidden().sum(Kind::Double);
        let mut seen = Vec::new();
        let mut see = |_, index, _| {
            seen.push(index);
            Ok(())
        };
        forward.backward::<Error>(&loss, &mut see).unwrap();
        assert_eq!(seen, [2, 0]);
    }

    /// Where nothing is trained, no graph is kept, and with checkpointing no segment runs again.
    #[test]
    fn the_backward_pass_ends_at_the_first_segment_that_trains() {
        for (activation_checkpointing, forwards) in [(false, 3), (true, 3 + 2)] {
            let model = Chain::new();
            let _ = model.parameters[0].tensor.shallow_clone().set_requires_grad(false);
            let context = Tensor::from_slice(&[7.0]);
            let forward = ForwardPass::run(&model, &context, activation_checkpointing).unwrap();
            let loss = forward.hidden().sum(Kind::Double);
            let mut seen = Vec::new();
            let mut see = |_, index, grad: Tensor| {
                seen.push((index, grad.double_value(&[0])));
                Ok(())
            };
            // loss = w2 w1 (w0 c)^2: 3 * 196 and 5 * 196.
            assert!(forward.backward::<Error>(&loss, &mut see).unwrap().is_none());
            assert_eq!(seen, [(2, 588.0), (1, 980.0)]);
            assert_eq!((model.forwards.get(), first_trained_segment(&model)), (forwards, 1));
        }
    }
}
