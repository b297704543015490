//! One optimizer step: forward, backward, gradient accumulation, clipping, update.
//!
//! ```text
//!   accumulate(model, micro-batches, loss)           step()
//!   forward by segments -> loss / global count       sum over the replicas; clip by the norm of the sum
//!   backward by segments -> gradients added in fp32  AdamW on the fp32 values, copied to bf16 weights
//! ```
//! The caller's loss is a sum, already divided by the number of tokens (or pairs) of the *full* step.
//! Therefore every split into micro-batches gives the same gradient. The micro-batches of a step are split
//! over the data-parallel ranks. Weights in bf16 have an fp32 master here; weights in fp32 are their own
//! master. Gradients, masters and moments lie in chunks (see [`crate::chunk`]), and the step goes from chunk
//! to chunk, so that one chunk of each has to be in memory, and with ZeRO a second one of weights. With ZeRO
//! ([`crate::zero`]), each data-parallel rank updates its own elements of every parameter and receives the
//! others. The state of the parameters is in `params`. This module knows no loss function and no data.

mod accumulate;
mod params;
mod update;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use parallel::comm::{PendingCollective, Reduction};
use parallel::pipeline::{ScheduleOptions, run_schedule};
use parallel::residency::{Access, HeldWeights, WeightStore, Weights};
use parallel::{Parameter, ProcessGroups, Segmented};
use tch::{Device, Kind, Tensor, no_grad};

use self::accumulate::Accumulation;
use self::params::{HeldShards, ParamState, Stores, add_missing_grads, param_states};
use self::update::{ChunkUpdate, StepNumbers};
use crate::chunk::manager::ChunkManager;
use crate::error::residency_error;
use crate::optimizer::{norms, total_norm};
use crate::reducer::Reducer;
use crate::replicas;
use crate::{Error, TrainConfig, ZeroStage, lr_scheduler};

pub(crate) use self::params::StateTensor;

/// The result of one optimizer step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// The number of the step, from 1.
    pub step: u64,
    /// The learning rate of the step.
    pub lr: f64,
    /// The norm of the gradient before clipping.
    pub grad_norm: f64,
}

/// The optimizer of one trained model.
pub struct Engine {
    config: TrainConfig,
    total_steps: u64,
    step: u64,
    param_states: Vec<ParamState>,
    /// For each parameter of the model, its index in `param_states`; `None` for a frozen parameter.
    state_index: Vec<Option<usize>>,
    /// The chunks of `param_states`.
    stores: Stores,
    groups: Arc<ProcessGroups>,
    /// Whether the gradients of different elements are on different data-parallel ranks after the reduction.
    has_sharded_grads: bool,
    /// Reduces gradients over the data-parallel ranks; `None` when there is only one.
    reducer: Option<Reducer>,
}

impl Engine {
    /// Creates an engine for the parameters of `model` that require gradients. `total_steps` is the length of
    /// the learning-rate schedule. The state of the optimizer lies in chunks of `manager`.
    pub fn new<M: Segmented>(
        model: &M,
        config: &TrainConfig,
        total_steps: u64,
        groups: &Arc<ProcessGroups>,
        manager: &Arc<ChunkManager>,
    ) -> Result<Self, Error> {
        let store = model.weight_store().cloned();
        Self::of_parameters(model.parameters(), store, config, total_steps, groups, manager)
    }

    /// An engine for those of `parameters` that require gradients, whose values lie in `weights`, if in any
    /// store.
    pub(crate) fn of_parameters(
        parameters: &[Parameter],
        weights: Option<Arc<dyn WeightStore>>,
        config: &TrainConfig,
        total_steps: u64,
        groups: &Arc<ProcessGroups>,
        manager: &Arc<ChunkManager>,
    ) -> Result<Self, Error> {
        config.check()?;

        let mut state_index = Vec::with_capacity(parameters.len());
        let mut trained = Vec::new();
        for parameter in parameters {
            state_index.push(parameter.tensor.requires_grad().then_some(trained.len()));
            if parameter.tensor.requires_grad() {
                if !parameter.tensor.is_contiguous() {
                    return Err(Error::NotContiguous { name: parameter.name.clone() });
                }
                trained.push((state_index.len() - 1, parameter));
            }
        }

        // In a pipeline, a rank may hold only layers without parameters.
        if trained.is_empty() && groups.pipeline_parallel().size() == 1 {
            return Err(Error::NoTrainableParameters);
        }

        let stores = Stores::new(&trained, weights, groups, manager, config.moments_dtype.kind())?;
        let param_states = param_states(&trained, &stores)?;
        replicas::check_loaded(parameters, stores.weights.as_deref(), groups)?;

        let is_replicated = groups.dense_data_parallel().size() > 1;
        let has_sharded_grads = is_replicated && manager.zero_stage() > ZeroStage::None;
        let reducer =
            is_replicated.then(|| Reducer::new(groups, manager.zero_stage(), &stores.layout, &stores.grads));
        Ok(Self {
            config: config.clone(),
            total_steps,
            step: 0,
            param_states,
            state_index,
            stores,
            groups: Arc::clone(groups),
            has_sharded_grads,
            reducer,
        })
    }

    /// Splits the rows of a step into micro-batches of at most `micro_batch_size` rows, small enough to
    /// spread them over the data-parallel ranks, and returns those of this rank. Call this for all rows of a
    /// step before its first micro-batch runs.
    pub fn split_micro_batches<'r, T>(&mut self, rows: &'r [T], micro_batch_size: usize) -> Vec<&'r [T]> {
        match &mut self.reducer {
            Some(reducer) => reducer.split_micro_batches(rows, micro_batch_size),
            None => rows.chunks(micro_batch_size).collect(),
        }
    }

    /// Optimizer steps done so far.
    pub fn step_count(&self) -> u64 {
        self.step
    }

    /// Runs the forward and backward pass of each micro-batch and accumulates the gradients. Returns the sum
    /// of the losses.
    /// Megatron: `forward_backward_func`; verl: `forward_backward_batch`.
    ///
    /// `loss` computes a scalar from the index of a micro-batch and its last hidden states, already divided
    /// by the number of tokens (or pairs) of the full step. In a pipeline, only the rank that holds the last
    /// layers calls it; the other ranks return a loss of zero. In stages 2 and 3 of ZeRO, every rank calls
    /// this function once for each call of [`split_micro_batches`](Self::split_micro_batches), also without
    /// micro-batches.
    pub fn accumulate<M, E>(
        &mut self,
        model: &M,
        contexts: &[&M::Context],
        loss: impl FnMut(usize, &Tensor) -> Result<Tensor, E>,
    ) -> Result<f64, E>
    where
        M: Segmented,
        E: From<Error> + From<parallel::Error>,
    {
        let Self { param_states: states, state_index, stores, reducer, .. } = self;
        if let Some(reducer) = reducer.as_mut() {
            reducer.prepare_for_backward(model, state_index, contexts.len());
        }
        // A gradient that leaves memory once it is reduced should be complete after one segment.
        let options = ScheduleOptions {
            activation_checkpointing: self.config.activation_checkpointing,
            segment_major: self.has_sharded_grads && stores.manager.zero_stage() >= ZeroStage::Gradients,
        };
        let head = model.head_parameters();
        let mut sums =
            Accumulation::new((&mut states[..], &state_index[..]), stores, reducer.as_mut(), head, loss);
        run_schedule(model, contexts, options, &mut sums)?;
        let losses = sums.finish()?;
        self.total_loss(&losses).map_err(E::from)
    }

    /// Adds up the losses of micro-batches, scalars of shape `[1]`. Fails if one is not finite.
    fn total_loss(&self, losses: &[Tensor]) -> Result<f64, Error> {
        let mut total = 0.0;
        for value in loss_values(losses) {
            if !value.is_finite() {
                return Err(Error::Diverged { what: "loss", step: self.step + 1, value });
            }
            total += value;
        }
        Ok(total)
    }

    /// Clips the accumulated gradients, updates the weights, and drops the gradients. Under a budget, the
    /// update of a weight may run only when the weight is used next.
    pub fn step(&mut self) -> Result<StepReport, Error> {
        // A rank without rows has used no weight. Its updates of the last step need the gradients of that
        // step.
        self.finish_updates()?;
        let step = self.step + 1;
        let lr = self.next_lr();

        self.reduce_grads()?;
        if self.param_states.iter().all(|state| !state.has_grad)
            && self.groups.pipeline_parallel().size() == 1
        {
            return Err(Error::NoTrainableParameters);
        }
        let grad_norm = self.global_grad_norm()?;
        if !grad_norm.is_finite() {
            return Err(Error::Diverged { what: "gradient norm", step, value: grad_norm });
        }

        let grad_divisor = clip_divisor(grad_norm, self.config.max_grad_norm);
        self.update_weights(StepNumbers { step, lr, grad_divisor })?;
        self.param_states.iter_mut().for_each(|state| state.has_grad = false);

        self.step = step;
        Ok(StepReport { step, lr, grad_norm })
    }

    /// Sums the gradients over the ranks that share a parameter.
    fn reduce_grads(&mut self) -> Result<(), Error> {
        if let Some(reducer) = &mut self.reducer {
            let (states, stores) = (&mut self.param_states, &self.stores);
            reducer.finalize_backward(|chunk| add_missing_grads(states, stores, chunk))?;
        }
        self.all_reduce_partial_grads()?;
        self.all_reduce_tied_grads()
    }

    /// Runs the updates of the last step that were left to the next use of their weights.
    pub fn finish_updates(&self) -> Result<(), Error> {
        self.stores.weights.as_ref().map_or(Ok(()), |weights| Ok(weights.finish_updates()?))
    }

    /// Updates the weights and drops the gradients, chunk by chunk. Under a budget, an update is left to the
    /// next forward pass if there will be room for it.
    fn update_weights(&self, numbers: StepNumbers) -> Result<(), Error> {
        let Stores { weights, indices, grads, .. } = &self.stores;
        // While one chunk is updated, the ranks exchange their shards of the one before.
        let mut exchanged: VecDeque<Exchange<'_>> = VecDeque::new();
        for (chunk, indices) in indices.iter().enumerate() {
            let update = ChunkUpdate::new(chunk, &self.param_states, &self.stores, &self.config, numbers);
            let Some(update) = update else {
                grads.discard_chunk(chunk)?;
                continue;
            };
            match weights {
                Some(store) if store.defers_update(Weights::Parameters(indices), update.bytes()) => {
                    let update = Box::new(move || update.run().map_err(residency_error));
                    store.defer_update(indices.clone(), update);
                }
                _ => exchanged.extend(self.update_now(update, indices)?),
            }
            if exchanged.len() > 1 {
                exchanged.pop_front().map_or(Ok(()), Exchange::finish)?;
            }
        }
        exchanged.into_iter().try_for_each(Exchange::finish)
    }

    /// Runs the update of a chunk, whose parameters have these indices in the model. Starts to exchange the
    /// shards of the weights between the data-parallel ranks.
    fn update_now<'a>(
        &'a self,
        update: ChunkUpdate,
        indices: &'a [usize],
    ) -> Result<Option<Exchange<'a>>, Error> {
        let indices = Weights::Parameters(indices);
        let weights = HeldWeights::fetch(self.stores.weight_residency(), indices, Access::Write)?;
        update.run()?;
        let gathering = match &self.stores.weights {
            Some(store) => store.start_all_gather(indices)?,
            None => Vec::new(),
        };
        Ok((!gathering.is_empty()).then_some(Exchange { gathering, _weights: weights }))
    }

    /// All-reduces the gradients of parameters that every tensor-parallel rank holds in full but uses for
    /// different work. All of them go through one collective. Megatron: `_allreduce_layernorm_grads`.
    fn all_reduce_partial_grads(&self) -> Result<(), Error> {
        // Every tensor-parallel rank owns the same elements of these parameters: see `chunk_layout`.
        let is_partial = |state: &&ParamState| state.parameter.partial_grad && state.has_grad;
        let partial_grads: Vec<&Tensor> =
            self.param_states.iter().filter(is_partial).map(|state| &state.own.grad).collect();
        if partial_grads.is_empty() {
            return Ok(());
        }
        let _grads = self.hold_grads(|state| state.parameter.partial_grad)?;
        no_grad(|| {
            let flat: Vec<Tensor> = partial_grads.iter().map(|grad| grad.view([-1])).collect();
            let flat = Tensor::cat(&flat, 0);
            self.groups.tensor_parallel().all_reduce(&flat, Reduction::Sum)?;
            let mut start = 0;
            for grad in partial_grads {
                let length = grad.numel() as i64;
                grad.shallow_clone().copy_(&flat.narrow(0, start, length).view_as(grad));
                start += length;
            }
            Ok(())
        })
    }

    /// All-reduces the gradients of tied parameters (input embedding and output head), which two pipeline
    /// ranks use differently.
    /// Megatron: `allreduce_word_embedding_grads`.
    fn all_reduce_tied_grads(&self) -> Result<(), Error> {
        for state in &self.param_states {
            if let (Some(tied_group), true) = (&state.parameter.tied_group, state.has_grad) {
                let _grad = self.hold_grads(|other| other.index == state.index)?;
                tied_group.all_reduce(&state.own.grad, Reduction::Sum)?;
            }
        }
        Ok(())
    }

    /// Holds this rank's gradients of the parameters that `is_wanted` accepts.
    fn hold_grads(&self, is_wanted: impl Fn(&ParamState) -> bool) -> Result<Vec<HeldShards<'_>>, Error> {
        let wanted = (0..self.param_states.len()).filter(|&param| is_wanted(&self.param_states[param]));
        let chunks: BTreeSet<usize> = wanted.map(|param| self.stores.layout.slot_of(param).0).collect();
        let hold = |chunk| HeldShards::fetch([(&*self.stores.grads, Access::Write)], chunk);
        chunks.into_iter().map(hold).collect()
    }

    /// The global gradient norm, by which gradients are clipped. The squared norms of shards are summed over
    /// the tensor-parallel group, those of experts over the expert-parallel group, those of layers over the
    /// pipeline-parallel group, and with ZeRO those of the elements of each rank over the data-parallel
    /// group. A replicated or tied parameter is counted once.
    /// Megatron: `get_grad_norm`; torch: `clip_grad_norm_`.
    fn global_grad_norm(&self) -> Result<f64, Error> {
        let norms = self.grad_norms()?;
        let (tensor, expert, pipeline) =
            (self.groups.tensor_parallel(), self.groups.expert_parallel(), self.groups.pipeline_parallel());
        if !self.has_sharded_grads && [tensor, expert, pipeline].iter().all(|group| group.size() == 1) {
            return Ok(total_norm(norms.iter().flatten()));
        }
        let square = |is_shard: bool, is_expert: bool| {
            let counts = |state: &ParamState| {
                let parameter = &state.parameter;
                parameter.is_tied_owner()
                    && parameter.placement.is_shard() == is_shard
                    && parameter.is_expert == is_expert
            };
            let chosen = self.param_states.iter().zip(&norms).filter(|(state, _)| counts(state));
            total_norm(chosen.filter_map(|(_, norm)| norm.as_ref())).powi(2)
        };
        let mut dense = [square(true, false), square(false, false)];
        let mut of_experts = [square(true, true), square(false, true)];
        if self.has_sharded_grads {
            dense = self.groups.dense_data_parallel().all_reduce_sum(dense)?;
            of_experts = self.groups.expert_data_parallel().all_reduce_sum(of_experts)?;
        }
        let [dense_sq, expert_sq] = tensor.all_reduce_sum([dense[0], of_experts[0]])?;
        let [expert_sq] = expert.all_reduce_sum([expert_sq + of_experts[1]])?;
        let [all] = pipeline.all_reduce_sum([dense_sq + dense[1] + expert_sq])?;
        Ok(all.sqrt())
    }

    /// The norm of this rank's elements of each parameter's gradient; `None` for a parameter without one.
    fn grad_norms(&self) -> Result<Vec<Option<Tensor>>, Error> {
        let mut all: Vec<Option<Tensor>> = self.param_states.iter().map(|_| None).collect();
        for (chunk, spec) in self.stores.layout.chunks().iter().enumerate() {
            let _grads = HeldShards::fetch([(&*self.stores.grads, Access::Read)], chunk)?;
            let params = spec.params.iter().map(|slot| slot.param);
            let params: Vec<usize> = params.filter(|&param| self.param_states[param].has_grad).collect();
            let grads: Vec<&Tensor> =
                params.iter().map(|&param| &self.param_states[param].own.grad).collect();
            for (param, norm) in params.into_iter().zip(norms(&grads)?) {
                all[param] = Some(norm);
            }
        }
        Ok(all)
    }

    /// The learning rate of the next step.
    pub fn next_lr(&self) -> f64 {
        self.next_lr_of(self.total_steps)
    }

    /// The learning rate that the next step would have in a run of `total_steps`.
    pub fn next_lr_of(&self, total_steps: u64) -> f64 {
        self.config.lr * lr_scheduler::lr_factor(&self.config, self.step, total_steps)
    }

    /// The process groups that train the model.
    pub(crate) fn groups(&self) -> &ProcessGroups {
        &self.groups
    }

    /// The optimizer's tensors, which a checkpoint holds in addition to the weights.
    pub(crate) fn state(&self) -> Result<Vec<StateTensor<'_>>, Error> {
        self.finish_updates()?;
        // Store by store, so that a chunk is fetched once for all of its tensors.
        let mut states = Vec::new();
        for (kind, store) in self.stores.saved() {
            let saved = self.param_states.iter().enumerate().filter(|(_, state)| state.has_saved(kind));
            states.extend(saved.map(|(param, state)| StateTensor {
                name: format!("{kind}.{}", state.parameter.name),
                tensor: store.param(param),
                placement: &state.parameter.placement,
                is_expert: state.parameter.is_expert,
                owns_parameter: state.parameter.is_owned(&self.groups),
                residency: (store, param),
            }));
        }
        Ok(states)
    }

    /// Checks that all ranks with copies of the weights of `model`, or of the optimizer's state, have the same
    /// bits. All ranks call this.
    pub fn check_replicas<M: Segmented>(&self, model: &M) -> Result<(), Error> {
        self.finish_updates()?;
        replicas::check_all(model, || self.stores.copies(&self.param_states), &self.groups)
    }

    /// The manager of the memory of the optimizer's state.
    pub fn manager(&self) -> &Arc<ChunkManager> {
        &self.stores.manager
    }

    pub(crate) fn set_step(&mut self, step: u64) {
        self.step = step;
    }
}

/// Reads scalar tensors of shape `[1]`.
fn loss_values(losses: &[Tensor]) -> Vec<f64> {
    if losses.is_empty() {
        return Vec::new();
    }
    let losses = Tensor::cat(losses, 0).to_device(Device::Cpu).to_kind(Kind::Double);
    Vec::try_from(losses).expect("a vector of numbers")
}

/// The divisor that brings the gradients to a norm of at most `max_norm`: the inverse of `clip_coef` in
/// `torch.nn.utils.clip_grad_norm_`, with its 1e-6.
fn clip_divisor(norm: f64, max_norm: f64) -> f64 {
    if max_norm == 0.0 { 1.0 } else { ((norm + 1e-6) / max_norm).max(1.0) }
}

/// Updated weights whose shards the data-parallel ranks exchange.
struct Exchange<'a> {
    gathering: Vec<PendingCollective>,
    _weights: HeldWeights<'a>,
}

impl Exchange<'_> {
    fn finish(self) -> Result<(), Error> {
        self.gathering.into_iter().try_for_each(|gathering| Ok(gathering.wait()?))
    }
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;
    use crate::config::Scheduler;

    /// One segment `w * x`, whose hidden state is the loss of each row.
    struct Line {
        parameters: Vec<Parameter>,
    }

    impl Line {
        fn new(kind: Kind) -> Self {
            let weight = Tensor::from_slice(&[1.0f32, 2.0]).to_kind(kind).set_requires_grad(true);
            Self { parameters: vec![Parameter::replicated("w", &weight)] }
        }
    }

    impl Segmented for Line {
        type Context = Tensor;
        fn num_segments(&self) -> usize {
            1
        }
        fn forward_segment(
            &self,
            _: usize,
            _: Option<&Tensor>,
            rows: &Tensor,
        ) -> Result<Tensor, parallel::Error> {
            Ok(rows * &self.parameters[0].tensor)
        }
        fn hidden_spec(&self, rows: &Tensor) -> (Vec<i64>, (Kind, Device)) {
            (rows.size(), (rows.kind(), rows.device()))
        }
        fn segment_parameters(&self, _: usize) -> Vec<usize> {
            vec![0]
        }
        fn head_parameters(&self) -> Vec<usize> {
            vec![]
        }
        fn parameters(&self) -> &[Parameter] {
            &self.parameters
        }
    }

    fn config() -> TrainConfig {
        TrainConfig { lr: 0.1, scheduler: Scheduler::Constant, ..TrainConfig::default() }
    }

    fn alone() -> Arc<ProcessGroups> {
        Arc::new(ProcessGroups::single())
    }

    fn weights(model: &Line) -> Vec<f64> {
        Vec::<f64>::try_from(model.parameters[0].tensor.to_kind(Kind::Double)).unwrap()
    }

    fn train(splits: &[&[[f32; 2]]]) -> (Vec<f64>, f64) {
        let model = Line::new(Kind::Float);
        let mut engine = Engine::new(&model, &config(), 10, &alone(), &ChunkManager::unlimited()).unwrap();
        let count: usize = splits.iter().map(|rows| rows.len()).sum();
        for rows in splits {
            let rows = Tensor::from_slice2(rows);
            let loss = |hidden: &Tensor| Ok::<_, Error>(hidden.square().sum(Kind::Float) / count as f64);
            engine.accumulate(&model, &[&rows], |_, hidden| loss(hidden)).unwrap();
        }
        let report = engine.step().unwrap();
        (weights(&model), report.grad_norm)
    }

    #[test]
    fn any_split_into_micro_batches_gives_the_same_step() {
        let whole = train(&[&[[1.0, 0.0], [2.0, 1.0], [0.0, 3.0]]]);
        let split = train(&[&[[1.0, 0.0]], &[[2.0, 1.0], [0.0, 3.0]]]);
        // d/dw = 2 w sum(x^2) / 3 = (2 * 5 / 3, 4 * 10 / 3): norm sqrt(10^2 + 40^2) / 3.
        assert!((whole.1 - 1700.0f64.sqrt() / 3.0).abs() < 1e-5, "{}", whole.1);
        assert!((whole.1 - split.1).abs() < 1e-6);
        for (a, b) in whole.0.iter().zip(&split.0) {
            assert!((a - b).abs() < 1e-6);
        }
    }

    #[test]
    fn bf16_weights_follow_an_fp32_master() {
        let model = Line::new(Kind::BFloat16);
        let small = TrainConfig { lr: 1e-4, ..config() };
        let mut engine = Engine::new(&model, &small, 100, &alone(), &ChunkManager::unlimited()).unwrap();
        let rows = Tensor::from_slice2(&[[1.0f32, 1.0]]).to_kind(Kind::BFloat16);
        for _ in 0..50 {
            let loss = |hidden: &Tensor| Ok::<_, Error>(hidden.to_kind(Kind::Float).sum(Kind::Float));
            engine.accumulate(&model, &[&rows], |_, hidden| loss(hidden)).unwrap();
            engine.step().unwrap();
        }
        // 50 steps of 1e-4 downwards. A step of 1e-4 is less than half of the bf16 spacing at 1 and at 2
        // (2^-9 and 2^-7), so weights updated in place would not have moved at all.
        let master = engine.param_states[0].own.master.double_value(&[0]);
        assert!((master - 0.995).abs() < 1e-5, "{master}");
        assert!((weights(&model)[0] - 0.995).abs() < 0.002);
    }

    #[test]
    fn a_loss_that_is_not_a_number_stops_the_run() {
        let model = Line::new(Kind::Float);
        let mut engine = Engine::new(&model, &config(), 10, &alone(), &ChunkManager::unlimited()).unwrap();
        let rows = Tensor::from_slice2(&[[f32::NAN, 1.0]]);
        let loss = |hidden: &Tensor| Ok::<_, Error>(hidden.sum(Kind::Float));
        let error = engine.accumulate(&model, &[&rows], |_, hidden| loss(hidden)).unwrap_err().to_string();
        assert!(error.starts_with("the loss of optimizer step 1 is NaN"), "{error}");
    }

    #[test]
    fn a_step_without_a_gradient_is_refused() {
        let model = Line::new(Kind::Float);
        let mut engine = Engine::new(&model, &config(), 10, &alone(), &ChunkManager::unlimited()).unwrap();
        assert!(matches!(engine.step(), Err(Error::NoTrainableParameters)));
    }

    #[test]
    fn a_trained_weight_that_is_not_contiguous_is_refused() {
        let transposed = Tensor::ones([2, 3], (Kind::Float, tch::Device::Cpu)).tr().set_requires_grad(true);
        let model = Line { parameters: vec![Parameter::replicated("w", &transposed)] };
        let error = Engine::new(&model, &config(), 1, &alone(), &ChunkManager::unlimited()).err().unwrap();
        assert!(error.to_string().starts_with("w is trained and its tensor is not contiguous"), "{error}");
    }

    #[test]
    fn clipping_divides_as_torch_does() {
        // torch: coefficient = max_norm / (norm + 1e-6), at most 1.
        assert!((clip_divisor(4.0, 2.0) - 4.000_001 / 2.0).abs() < 1e-12);
        assert!((clip_divisor(1.0, 2.0) - 1.0).abs() < 1e-12);
        assert!((clip_divisor(9.0, 0.0) - 1.0).abs() < 1e-12);
    }
}
