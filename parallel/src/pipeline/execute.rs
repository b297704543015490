//! Runs one rank's actions of a step in the order of the schedule. Without a pipeline, each micro-batch runs
//! forward and then backward in turn.

use std::collections::HashMap;

use tch::{Device, Kind, Tensor};

use super::{Action, ComputationType, PendingSends, PipelineStages, Schedule, ScheduleKind};
use crate::comm::P2pKey;
use crate::residency::{Access, HeldWeights, ModelPart, Residency, Weights};
use crate::segment::{PartSequence, first_trained_segment, hold_weights};
use crate::weight_grad_store::{self, WeightGradStore};
use crate::{Error, ForwardPass, GradientSource, Segmented};

/// What the caller of [`run_schedule`] does in a step.
pub trait StepHandler {
    /// The error of the caller.
    type Error: From<Error>;

    /// Computes the scalar loss of a micro-batch, given by index, from its last hidden states, on the rank
    /// that has them.
    fn loss(&mut self, micro_batch: usize, hidden: &Tensor) -> Result<Tensor, Self::Error>;

    /// Receives the gradients of this rank's parameters, which are given by index: one call per use of a
    /// parameter in a micro-batch.
    fn on_gradient(&mut self, source: GradientSource, index: usize, grad: Tensor) -> Result<(), Self::Error>;

    /// If all micro-batches run through one segment before the next: called after the backward pass through
    /// each part of the model, on every rank and also without micro-batches.
    fn on_part_done(&mut self, _part: ModelPart) -> Result<(), Self::Error> {
        Ok(())
    }
}

/// How the micro-batches of a step run.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScheduleOptions {
    /// Whether to keep only the inputs of segments, and to run each segment again in the backward pass.
    pub activation_checkpointing: bool,
    /// Whether all micro-batches run through one segment before the next, so that the gradients of a segment
    /// are complete when its backward pass ends. Weights that may leave memory, or that are sharded, always
    /// have that order, and a pipeline never has it.
    pub segment_major: bool,
}

/// Runs the micro-batches `contexts` forward and backward through the segments of this rank.
/// Megatron: `forward_backward_pipelining_with_interleaving`.
pub fn run_schedule<M: Segmented, H: StepHandler>(
    model: &M,
    contexts: &[&M::Context],
    options: ScheduleOptions,
    handler: &mut H,
) -> Result<(), H::Error> {
    let (pipeline, activation_checkpointing) = (model.pipeline(), options.activation_checkpointing);
    let comes_and_goes = model.residency().is_some_and(Residency::comes_and_goes);
    if pipeline.is_none() && (options.segment_major || comes_and_goes) {
        return run_segment_major(model, contexts, activation_checkpointing, handler);
    }

    let all: Vec<usize> = (0..model.parameters().len()).collect();
    let _weights = hold_sharded_stages(model, &all)?;
    let schedule = match pipeline {
        Some(pipeline) => pipeline.schedule(contexts.len()),
        None => Schedule::new(ScheduleKind::OneForwardOneBackward, 1, 1, contexts.len()),
    };
    let rank = pipeline.map_or(0, |pipeline| pipeline.group().rank());
    if let (Some(pipeline), Some(context)) = (pipeline, contexts.first()) {
        let (_, (_, device)) = model.hidden_spec(context);
        pipeline.group().open_channels(channels(&schedule), device)?;
    }

    let mut runner = ScheduleRunner {
        model,
        contexts,
        activation_checkpointing,
        pipeline,
        schedule: &schedule,
        rank,
        saved_forwards: HashMap::new(),
        local_payloads: HashMap::new(),
        weight_grad_stores: HashMap::new(),
        pending_sends: PendingSends::default(),
    };

    for &action in &schedule.actions[rank] {
        match action.computation {
            ComputationType::Forward => runner.forward(action, handler)?,
            ComputationType::FullBackward | ComputationType::BackwardInput => {
                runner.backward(action, handler)?;
            }
            ComputationType::BackwardWeight => runner.backward_weight(action, handler)?,
        }
    }

    Ok(runner.pending_sends.wait()?)
}

/// Holds `all` weights of a pipeline rank if they are sharded, for all micro-batches of a step: the
/// data-parallel ranks may have different numbers of them, and would otherwise gather the weights differently
/// often. torchtitan: `reshard_after_forward` is off in a pipeline.
fn hold_sharded_stages<'a, M: Segmented>(model: &'a M, all: &'a [usize]) -> Result<HeldWeights<'a>, Error> {
    let sharded = model.residency().filter(|weights| weights.is_sharded());
    HeldWeights::fetch(sharded, Weights::Parameters(all), Access::Read)
}

/// The micro-batches whose last hidden states [`forward_only`] holds at the same time.
const MICRO_BATCHES_PER_PASS: usize = 8;

/// Runs micro-batches forward without gradients, and passes each with its last hidden states to `head`.
/// `context` is what a micro-batch gives the segments. Weights that may leave memory, or that are sharded,
/// are fetched once for several micro-batches. All ranks that share sharded weights call this function, with
/// any number of micro-batches. Megatron: `forward_backward_func(forward_only=True)`.
pub fn forward_only<M: Segmented, B, E: From<Error>>(
    model: &M,
    mut micro_batches: impl ExactSizeIterator<Item = B>,
    context: fn(&B) -> &M::Context,
    mut head: impl FnMut(B, &Tensor) -> Result<(), E>,
) -> Result<(), E> {
    let Some(weights) = model.residency().filter(|weights| weights.comes_and_goes()) else {
        return micro_batches.try_for_each(|micro_batch| {
            let hidden = model.forward_no_grad(context(&micro_batch))?;
            head(micro_batch, &hidden)
        });
    };

    let all: Vec<usize> = (0..model.parameters().len()).collect();
    let _weights = match model.pipeline() {
        Some(_) => Some(hold_sharded_stages(model, &all)?),
        None => None,
    };
    let passes = weights.max_over_ranks(micro_batches.len().div_ceil(MICRO_BATCHES_PER_PASS))?;
    for _ in 0..passes {
        let of_pass: Vec<B> = micro_batches.by_ref().take(MICRO_BATCHES_PER_PASS).collect();
        let contexts: Vec<&M::Context> = of_pass.iter().map(context).collect();
        let hidden = model.forward_all_no_grad(&contexts)?;
        let _head = hold_weights(model, ModelPart::Head)?;
        of_pass.into_iter().zip(hidden).try_for_each(|(micro_batch, hidden)| head(micro_batch, &hidden))?;
    }
    Ok(())
}

/// Runs all micro-batches through one segment before the next segment, forward and then backward. The weights
/// of a segment are therefore fetched twice per step, however many micro-batches there are. The gradients of
/// a parameter are added in the same order as otherwise.
fn run_segment_major<M: Segmented, H: StepHandler>(
    model: &M,
    contexts: &[&M::Context],
    activation_checkpointing: bool,
    handler: &mut H,
) -> Result<(), H::Error> {
    let backward = (first_trained_segment(model)..model.num_segments()).rev();
    let parts = (0..model.num_segments()).map(ModelPart::Segment).chain([ModelPart::Head]);
    let mut parts = PartSequence::new(model, parts.chain(backward.clone().map(ModelPart::Segment)));
    let mut passes: Vec<_> =
        contexts.iter().map(|context| ForwardPass::start(model, *context, 0, None)).collect();
    for index in 0..model.num_segments() {
        let _weights = parts.hold_next()?;
        for pass in &mut passes {
            pass.run_segment(index, activation_checkpointing)?;
        }
    }

    // The loss of a micro-batch runs backward at once, so that the logits of one micro-batch exist at a time.
    let mut passes: Vec<_> = passes.into_iter().map(ForwardPass::finish).collect();
    let mut grads = Vec::with_capacity(passes.len());
    {
        let _weights = parts.hold_next()?;
        for (micro_batch, pass) in passes.iter_mut().enumerate() {
            let loss = handler.loss(micro_batch, pass.hidden())?;
            let found = pass.backward_head(&loss)?;
            grads.push(found.deliver(&mut |source, index, grad| handler.on_gradient(source, index, grad))?);
            pass.drop_hidden();
        }
        handler.on_part_done(ModelPart::Head)?;
    }

    for index in backward {
        let _weights = parts.hold_next()?;
        for (pass, grad) in passes.iter_mut().zip(&mut grads) {
            if let Some(grad_output) = grad.take() {
                let found = pass.backward_segment(index, &grad_output)?;
                *grad = found.deliver(&mut |source, index, grad| handler.on_gradient(source, index, grad))?;
            }
        }
        handler.on_part_done(ModelPart::Segment(index))?;
    }
    Ok(())
}

/// The kind of a message between two stages.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum P2pPayload {
    Activation,
    Gradient,
}

struct ScheduleRunner<'a, M: Segmented> {
    model: &'a M,
    contexts: &'a [&'a M::Context],
    activation_checkpointing: bool,
    pipeline: Option<&'a PipelineStages>,
    schedule: &'a Schedule,
    rank: usize,
    /// The saved forward pass that waits for its backward pass, by micro-batch and stage; for the last
    /// stage with the loss.
    saved_forwards: HashMap<(usize, usize), (ForwardPass<'a, M>, Option<Tensor>)>,
    /// The tensors that one stage of this rank has computed for another stage of this rank, by micro-batch
    /// and receiving stage.
    local_payloads: HashMap<(P2pPayload, usize, usize), Tensor>,
    /// The deferred weight gradients, by micro-batch and stage.
    weight_grad_stores: HashMap<(usize, usize), WeightGradStore>,
    /// The sends under way, with the tensors that they read.
    pending_sends: PendingSends,
}

impl<M: Segmented> ScheduleRunner<'_, M> {
    fn forward<H: StepHandler>(
        &mut self,
        Action { micro_batch, stage, .. }: Action,
        handler: &mut H,
    ) -> Result<(), H::Error> {
        let input = if stage > 0 {
            Some(self.receive(P2pPayload::Activation, micro_batch, stage, stage - 1)?)
        } else {
            None
        };

        let segments = match self.pipeline {
            Some(pipeline) => pipeline.segments(stage),
            None => 0..self.model.num_segments(),
        };
        let (model, context, activation_checkpointing) =
            (self.model, self.contexts[micro_batch], self.activation_checkpointing);
        let mut forward = self.with_deferred_weight_grads(micro_batch, stage, || {
            ForwardPass::run_segments(model, context, segments, input, activation_checkpointing)
        })?;

        let loss = if stage + 1 == self.schedule.num_stages {
            forward.hold_head()?;
            Some(handler.loss(micro_batch, forward.hidden())?)
        } else {
            self.send(P2pPayload::Activation, forward.hidden().detach(), micro_batch, stage + 1)?;
            None
        };
        self.saved_forwards.insert((micro_batch, stage), (forward, loss));
        Ok(())
    }

    fn backward<H: StepHandler>(
        &mut self,
        Action { micro_batch, stage, .. }: Action,
        handler: &mut H,
    ) -> Result<(), H::Error> {
        let (forward, loss) = self.saved_forwards.remove(&(micro_batch, stage)).expect("forward comes first");
        let mut on_gradient = |source, index, grad| handler.on_gradient(source, index, grad);
        let input_grad = if let Some(loss) = loss {
            self.with_deferred_weight_grads(micro_batch, stage, || forward.backward(&loss, &mut on_gradient))?
        } else {
            let output_grad = self.receive(P2pPayload::Gradient, micro_batch, stage, stage + 1)?;
            self.with_deferred_weight_grads(micro_batch, stage, || {
                forward.backward_from(&output_grad, &mut on_gradient)
            })?
        };

        if stage > 0 {
            let missing_grad = || Error::NoInputGradient { stage };
            self.send(P2pPayload::Gradient, input_grad.ok_or_else(missing_grad)?, micro_batch, stage - 1)?;
        }
        Ok(())
    }

    fn backward_weight<H: StepHandler>(
        &mut self,
        Action { micro_batch, stage, .. }: Action,
        handler: &mut H,
    ) -> Result<(), H::Error> {
        let store = self
            .weight_grad_stores
            .remove(&(micro_batch, stage))
            .expect("the gradient of the input comes first");
        // Only the linear layers of segments defer their weight gradients.
        let mut grads = store.flush(self.model.parameters());
        grads.try_for_each(|(index, grad)| handler.on_gradient(GradientSource::Segment, index, grad))
    }

    /// Runs `body`. If the schedule has separate actions for weight gradients, `body` defers them.
    fn with_deferred_weight_grads<T>(
        &mut self,
        micro_batch: usize,
        stage: usize,
        body: impl FnOnce() -> T,
    ) -> T {
        if !self.schedule.kind.splits_backward() {
            return body();
        }
        let store = self.weight_grad_stores.entry((micro_batch, stage)).or_default().clone();
        weight_grad_store::with_deferred_weight_grads(&store, body)
    }

    fn send(
        &mut self,
        payload: P2pPayload,
        tensor: Tensor,
        micro_batch: usize,
        stage: usize,
    ) -> Result<(), Error> {
        let to = self.schedule.kind.rank_of_stage(stage, self.schedule.num_ranks);
        if to == self.rank {
            self.local_payloads.insert((payload, micro_batch, stage), tensor);
            return Ok(());
        }
        let pipeline = self.pipeline.expect("without a pipeline there is one stage");
        self.pending_sends.send(pipeline.group(), tensor.contiguous(), to, tag(payload, stage))
    }

    fn receive(
        &mut self,
        payload: P2pPayload,
        micro_batch: usize,
        stage: usize,
        from: usize,
    ) -> Result<Tensor, Error> {
        if let Some(tensor) = self.local_payloads.remove(&(payload, micro_batch, stage)) {
            return Ok(tensor);
        }
        let pipeline = self.pipeline.expect("without a pipeline there is one stage");
        let from = self.schedule.kind.rank_of_stage(from, self.schedule.num_ranks);
        let (shape, options): (Vec<i64>, (Kind, Device)) = self.model.hidden_spec(self.contexts[micro_batch]);
        pipeline.group().recv(&shape, options, from, tag(payload, stage))
    }
}

/// The channels between the ranks of a schedule: for each pair of neighbouring stages, one for activations
/// and one for gradients.
fn channels(schedule: &Schedule) -> impl Iterator<Item = P2pKey> {
    let rank = |stage| schedule.kind.rank_of_stage(stage, schedule.num_ranks);
    (1..schedule.num_stages).filter(move |&stage| rank(stage - 1) != rank(stage)).flat_map(move |stage| {
        let (earlier, later) = (rank(stage - 1), rank(stage));
        [
            ([earlier, later], tag(P2pPayload::Activation, stage)),
            ([later, earlier], tag(P2pPayload::Gradient, stage - 1)),
        ]
    })
}

/// The tag names only the receiving stage and the kind of payload. Messages under one tag are sent in the
/// order in which the stage receives them, so no micro-batch index is needed.
fn tag(payload: P2pPayload, stage: usize) -> usize {
    2 * stage + usize::from(payload == P2pPayload::Gradient)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::world::tests::run_worlds;
    use crate::{Parameter, Transport};

    const SEGMENTS: usize = 9;

    /// `h_0 = x W_0`, `h_i = tanh(h_{i-1} W_i)`.
    struct Network {
        parameters: Vec<Parameter>,
        pipeline: Option<PipelineStages>,
    }

    impl Network {
        fn new(pipeline: Option<PipelineStages>) -> Self {
            let weight = |index: usize| {
                let ramp = Tensor::arange(16, (Kind::Double, Device::Cpu)) + index as f64;
                let weight = ((ramp * 1.3).sin() * 0.7).view([4, 4]).set_requires_grad(true);
                Parameter::replicated(format!("w{index}"), &weight)
            };
            Self { parameters: (0..SEGMENTS).map(weight).collect(), pipeline }
        }
    }

    impl Segmented for Network {
        type Context = Tensor;
        fn num_segments(&self) -> usize {
            SEGMENTS
        }
        fn pipeline(&self) -> Option<&PipelineStages> {
            self.pipeline.as_ref()
        }
        fn hidden_spec(&self, context: &Tensor) -> (Vec<i64>, (Kind, Device)) {
            (context.size(), (context.kind(), context.device()))
        }
        fn forward_segment(
            &self,
            index: usize,
            hidden: Option<&Tensor>,
            x: &Tensor,
        ) -> Result<Tensor, Error> {
            let weight = &self.parameters[index].tensor;
            let product = weight_grad_store::linear_deferring_weight_grad(hidden.unwrap_or(x), weight, true);
            let product = product.unwrap_or_else(|| Ok(hidden.unwrap_or(x).matmul(weight)))?;
            Ok(if index == 0 { product } else { product.tanh() })
        }
        fn segment_parameters(&self, index: usize) -> Vec<usize> {
            vec![index]
        }
        fn head_parameters(&self) -> Vec<usize> {
            Vec::new()
        }
        fn parameters(&self) -> &[Parameter] {
            &self.parameters
        }
    }

    /// The sum of the losses, the gradients, and the number of gradients of each parameter.
    struct Sums {
        total: f64,
        grads: Vec<Tensor>,
        counts: Vec<usize>,
    }

    impl StepHandler for Sums {
        type Error = Error;

        fn loss(&mut self, micro_batch: usize, hidden: &Tensor) -> Result<Tensor, Error> {
            let loss = hidden.square().sum(Kind::Double) * (micro_batch + 1) as f64;
            self.total += loss.double_value(&[]);
            Ok(loss)
        }

        fn on_gradient(&mut self, _: GradientSource, index: usize, grad: Tensor) -> Result<(), Error> {
            self.counts[index] += 1;
            self.grads[index] += grad;
            Ok(())
        }
    }

    /// Returns the sum of the losses, the gradients, and how often `on_gradient` was called for each.
    /// Micro-batches have different lengths.
    fn step(
        model: &Network,
        num_micro_batches: usize,
        activation_checkpointing: bool,
    ) -> (f64, Vec<Tensor>, Vec<usize>) {
        let x = |micro_batch: usize| {
            let count = 4 * (micro_batch as i64 % 3 + 1);
            (Tensor::arange(count, (Kind::Double, Device::Cpu)) + micro_batch as f64).cos().view([-1, 4])
        };
        let contexts: Vec<Tensor> = (0..num_micro_batches).map(x).collect();
        let contexts: Vec<&Tensor> = contexts.iter().collect();
        let grads = model.parameters.iter().map(|parameter| parameter.tensor.zeros_like()).collect();
        let mut sums = Sums { total: 0.0, grads, counts: vec![0; SEGMENTS] };
        let options = ScheduleOptions { activation_checkpointing, segment_major: false };
        run_schedule(model, &contexts, options, &mut sums).unwrap();
        (sums.total, sums.grads, sums.counts)
    }

    #[test]
    fn every_schedule_gives_the_losses_and_gradients_of_one_rank() {
        for ranks in [2, 4] {
            for (kind, num_micro_batches) in [
                (ScheduleKind::GPipe, 5),
                (ScheduleKind::OneForwardOneBackward, 5),
                (ScheduleKind::OneForwardOneBackward, 1),
                (ScheduleKind::Interleaved, 4),
                (ScheduleKind::Interleaved, 7),
                (ScheduleKind::ZeroBubbleH1, 6),
                (ScheduleKind::ZeroBubbleH1, 2),
                (ScheduleKind::ZeroBubbleV, 6),
                (ScheduleKind::ZeroBubbleV, 1),
            ] {
                let transport = if ranks == 2 { Transport::Gloo } else { Transport::Shared };
                run_worlds(ranks, transport, |world| {
                    let group = Arc::new(world.group("stages", &(0..ranks).collect::<Vec<_>>()).unwrap());
                    let reference = step(&Network::new(None), num_micro_batches, false);
                    let pipeline = PipelineStages::new(&group, kind, 2, &[1.0; SEGMENTS]).unwrap();
                    let model = Network::new(Some(pipeline.clone()));
                    let before = group.sent_bytes();
                    let (total, grads, counts) = step(&model, num_micro_batches, num_micro_batches == 5);
                    assert_eq!(total, if pipeline.is_last_stage() { reference.0 } else { 0.0 });
                    for segment in 0..SEGMENTS {
                        let is_local = pipeline.owns_segment(segment);
                        assert_eq!(
                            counts[segment],
                            if is_local { reference.2[segment] } else { 0 },
                            "{kind:?}"
                        );
                        if is_local {
                            assert!(
                                (&grads[segment] - &reference.1[segment]).abs().max().double_value(&[])
                                    < 1e-13
                            );
                        }
                    }
                    // Every stage but the last sends hidden states and every stage but the first sends
                    // gradients, if the receiving stage is on another rank.
                    let rows: i64 =
                        (0..num_micro_batches).map(|micro_batch| micro_batch as i64 % 3 + 1).sum();
                    let schedule = pipeline.schedule(1);
                    let owner = |stage: usize| kind.rank_of_stage(stage, ranks);
                    let crossings =
                        (1..schedule.num_stages).filter(|&stage| owner(stage) != owner(stage - 1));
                    let local_crossings = crossings.map(|stage| {
                        usize::from(owner(stage) == group.rank())
                            + usize::from(owner(stage - 1) == group.rank())
                    });
                    let sent = group.sent_bytes() - before;
                    assert_eq!(sent, local_crossings.sum::<usize>() as u64 * rows as u64 * 4 * 8, "{kind:?}");
                });
            }
        }
    }

    #[test]
    fn too_few_segments_are_refused() {
        let group = Arc::new(crate::comm::ProcessGroup::single("stages", 0));
        assert!(PipelineStages::new(&group, ScheduleKind::Interleaved, 3, &[1.0; 2]).is_none());
    }
}
