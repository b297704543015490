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
//! to chunk, so that only one chunk of each has to be in memory. This module knows no loss function and no
//! data.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parallel::comm::Reduction;
use parallel::pipeline::run_schedule;
use parallel::residency::{Access, HeldWeights, Residency, WeightStore, Weights};
use parallel::safetensors_file::NamedTensor;
use parallel::{GradientSource, Parameter, Placement, ProcessGroups, Segmented};
use tch::{Device, Kind, Tensor, no_grad};

use crate::chunk::layout::ChunkLayout;
use crate::chunk::manager::ChunkManager;
use crate::chunk::store::{ChunkStore, Place, chunk_layout};
use crate::optimizer::{AdamwParam, Moments, adamw, norms, total_norm};
use crate::reducer::Reducer;
use crate::{Error, TrainConfig, lr_scheduler};

/// A trained parameter with its fp32 master weight, its moments and its gradient.
/// Megatron: `main_param`.
struct ParamState {
    parameter: Parameter,
    /// Its index among the parameters of the model.
    index: usize,
    master: Tensor,
    moments: Moments,
    /// The fp32 sum of the gradients of the step. Megatron: `main_grad`.
    grad: Tensor,
    /// Whether `grad` has a value in this step.
    has_grad: bool,
    /// The number of elements of all trained parameters before it.
    first_element: u64,
}

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
    /// Reduces gradients over the data-parallel ranks; `None` when there is only one.
    reducer: Option<Reducer>,
}

/// The chunks of the trained parameters. All stores have the same layout.
struct Stores {
    layout: Arc<ChunkLayout>,
    manager: Arc<ChunkManager>,
    /// The weights; `None` if each of them was allocated on its own.
    weights: Option<Arc<dyn WeightStore>>,
    /// `None` if all weights are fp32.
    masters: Option<ChunkStore>,
    exp_avgs: ChunkStore,
    exp_avg_sqs: ChunkStore,
    grads: Arc<ChunkStore>,
}

/// Checks that all weight replicas loaded identical weights, and returns an error otherwise. The check
/// compares the sum of the bit patterns of all values, which does not depend on the order of summation.
fn check_weight_replicas(
    states: &[ParamState],
    weights: Option<&dyn Residency>,
    groups: &ProcessGroups,
) -> Result<(), Error> {
    let sum = |state: &ParamState| -> Result<i64, Error> {
        let _weights = HeldWeights::fetch(weights, Weights::Parameter(state.index), Access::Read)?;
        let tensor = state.parameter.tensor.detach();
        let bits = match tensor.kind().elt_size_in_bytes() {
            2 => Kind::Int16,
            4 => Kind::Int,
            _ => Kind::Int64,
        };
        Ok(tensor.view_dtype(bits).sum(Kind::Int64).int64_value(&[]))
    };
    let local_sum =
        states.iter().try_fold(0i64, |total, state| Ok::<_, Error>(total.wrapping_add(sum(state)?)))?;
    let sums = groups.world().all_gather_object(vec![local_sum])?;
    let others = groups.expert_data_parallel().ranks();
    match others.iter().find(|&&rank| sums[rank] != local_sum) {
        None => Ok(()),
        Some(&other) => Err(Error::ReplicasDiffer { rank: groups.world().rank(), other }),
    }
}

impl Stores {
    /// Reserves the state of `trained` parameters.
    fn new(
        trained: &[&Parameter],
        weights: Option<Arc<dyn WeightStore>>,
        manager: &Arc<ChunkManager>,
        moments_kind: Kind,
    ) -> Result<Self, Error> {
        let shapes: Vec<Vec<i64>> = trained.iter().map(|parameter| parameter.tensor.size()).collect();
        let layout = Arc::new(chunk_layout(
            trained
                .iter()
                .zip(&shapes)
                .map(|(parameter, shape)| (*parameter, shape.as_slice(), parameter.tensor.kind(), false)),
        ));

        let device = trained.first().map_or(Device::Cpu, |parameter| parameter.tensor.device());
        if device != Device::Cpu && moments_kind != Kind::Float {
            let (key, value) = ("moments_dtype", "bfloat16".to_owned());
            return Err(Error::Setting { key, value, wanted: "moments on a GPU are float32" });
        }

        let store = |kind: Kind| {
            let places: Vec<Place> =
                shapes.iter().map(|shape| Place::row_major(shape.clone(), kind)).collect();
            ChunkStore::new(manager, &layout, &places, device, true)
        };
        let has_masters = trained.iter().any(|parameter| parameter.tensor.kind() != Kind::Float);
        Ok(Self {
            masters: if has_masters { Some(store(Kind::Float)?) } else { None },
            exp_avgs: store(moments_kind)?,
            exp_avg_sqs: store(moments_kind)?,
            grads: Arc::new(store(Kind::Float)?),
            manager: Arc::clone(manager),
            weights,
            layout,
        })
    }

    fn weight_residency(&self) -> Option<&dyn Residency> {
        self.weights.as_deref().map(|store| -> &dyn Residency { store })
    }

    /// The stores of a checkpoint, by the name that their tensors have in it.
    fn saved(&self) -> impl Iterator<Item = (&'static str, &ChunkStore)> {
        let masters = self.masters.iter().map(|store| ("master", store));
        [("exp_avg", &self.exp_avgs), ("exp_avg_sq", &self.exp_avg_sqs)].into_iter().chain(masters)
    }
}

/// A chunk of each of some stores that stays in memory until this value is dropped.
struct HeldChunk<'a> {
    stores: Vec<&'a ChunkStore>,
    chunk: usize,
}

impl<'a> HeldChunk<'a> {
    fn fetch(
        stores: impl IntoIterator<Item = (&'a ChunkStore, Access)>,
        chunk: usize,
    ) -> Result<Self, Error> {
        let mut held = Self { stores: Vec::new(), chunk };
        for (store, access) in stores {
            store.fetch_chunk(chunk, access)?;
            held.stores.push(store);
        }
        Ok(held)
    }
}

impl Drop for HeldChunk<'_> {
    fn drop(&mut self) {
        self.stores.iter().for_each(|store| store.release_chunk(self.chunk));
    }
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
                trained.push(parameter);
            }
        }

        // In a pipeline, a rank may hold only layers without parameters.
        if trained.is_empty() && groups.pipeline_parallel().size() == 1 {
            return Err(Error::NoTrainableParameters);
        }

        let stores = Stores::new(&trained, weights, manager, config.moments_dtype.kind())?;
        let indices = (0..parameters.len()).filter(|&index| state_index[index].is_some());
        let mut param_states: Vec<ParamState> = trained
            .iter()
            .zip(indices)
            .enumerate()
            .map(|(param, (parameter, index))| ParamState::new(parameter, index, &stores, param))
            .collect::<Result<_, _>>()?;
        param_states.iter_mut().fold(0, |first, state| {
            state.first_element = first;
            first + state.parameter.tensor.numel() as u64
        });
        if groups.expert_data_parallel().size() > 1 {
            check_weight_replicas(&param_states, stores.weight_residency(), groups)?;
        }

        let reducer = (groups.dense_data_parallel().size() > 1)
            .then(|| Reducer::new(groups, &stores.layout, &stores.grads));
        let (config, groups) = (config.clone(), Arc::clone(groups));
        Ok(Self { config, total_steps, step: 0, param_states, state_index, stores, groups, reducer })
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
    /// layers calls it; the other ranks return a loss of zero.
    pub fn accumulate<M, E>(
        &mut self,
        model: &M,
        contexts: &[&M::Context],
        mut loss: impl FnMut(usize, &Tensor) -> Result<Tensor, E>,
    ) -> Result<f64, E>
    where
        M: Segmented,
        E: From<Error> + From<parallel::Error>,
    {
        let (states, state_index, stores, reducer) =
            (&mut self.param_states, &self.state_index, &self.stores, &mut self.reducer);
        if let Some(reducer) = reducer {
            reducer.prepare_for_backward(model, state_index, contexts.len());
        }

        // The values are read at the end, in one copy, so that a GPU does not wait after every micro-batch.
        let mut losses: Vec<Tensor> = Vec::new();
        let mut recorded_loss = |micro_batch: usize, hidden: &Tensor| -> Result<Tensor, E> {
            let loss = loss(micro_batch, hidden)?;
            losses.push(loss.detach().view([1]));
            Ok(loss)
        };

        // A tied weight gets gradients from the head and from a segment. The gradients of the segment are
        // summed over the micro-batches before they are added to those of the head, so that the result does
        // not depend on whether the micro-batches run one after another or segment by segment.
        let head = model.head_parameters();
        let mut tied: BTreeMap<usize, TiedGrads> = BTreeMap::new();
        let mut on_gradient = |source: GradientSource, index: usize, grad: Tensor| -> Result<(), E> {
            let Some(param) = state_index[index] else { return Ok(()) };
            if source == GradientSource::Segment && head.contains(&index) {
                tied.entry(param).or_default().add(&grad);
                return Ok(());
            }
            add_grad(&mut states[param], param, stores, &grad)?;
            match reducer {
                Some(reducer) => Ok(reducer.on_gradient_ready(param)?),
                None => Ok(()),
            }
        };

        run_schedule(
            model,
            contexts,
            self.config.activation_checkpointing,
            &mut recorded_loss,
            &mut on_gradient,
        )?;
        for (param, TiedGrads { sum, count }) in tied {
            let sum = sum.expect("an entry has a gradient");
            add_grad(&mut states[param], param, stores, &sum)?;
            if let Some(reducer) = reducer {
                (0..count).try_for_each(|_| reducer.on_gradient_ready(param))?;
            }
        }
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

    /// Clips the accumulated gradients, updates the weights, and zeroes the gradients.
    pub fn step(&mut self) -> Result<StepReport, Error> {
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

        let divisor = clip_divisor(grad_norm, self.config.max_grad_norm);
        for chunk in 0..self.stores.layout.chunks().len() {
            self.update_chunk(chunk, lr, step, divisor)?;
        }
        self.param_states.iter_mut().for_each(|state| state.has_grad = false);

        self.step = step;
        Ok(StepReport { step, lr, grad_norm })
    }

    /// Sums the gradients over the ranks that share a parameter.
    fn reduce_grads(&mut self) -> Result<(), Error> {
        if let Some(reducer) = &mut self.reducer {
            // A parameter that this rank has not used, for example an expert without tokens, may have
            // gradients of other ranks.
            for (param, state) in
                self.param_states.iter_mut().enumerate().filter(|(_, state)| !state.has_grad)
            {
                let chunk = self.stores.layout.slot_of(param).0;
                let _grads = HeldChunk::fetch([(&*self.stores.grads, Access::Write)], chunk)?;
                let _ = state.grad.zero_();
                state.has_grad = true;
            }
            reducer.finalize_backward()?;
        }
        self.all_reduce_partial_grads()?;
        self.all_reduce_tied_grads()
    }

    /// Updates the parameters of one chunk and drops their gradients.
    fn update_chunk(&self, chunk: usize, lr: f64, step: u64, divisor: f64) -> Result<(), Error> {
        let slots = &self.stores.layout.chunks()[chunk].params;
        let states: Vec<&ParamState> =
            slots.iter().map(|slot| &self.param_states[slot.param]).filter(|state| state.has_grad).collect();
        let Stores { masters, exp_avgs, exp_avg_sqs, grads, .. } = &self.stores;
        if states.is_empty() {
            return grads.discard_chunk(chunk);
        }

        let indices: Vec<usize> = states.iter().map(|state| state.index).collect();
        let residency = self.stores.weight_residency();
        let _weights = HeldWeights::fetch(residency, Weights::Parameters(&indices), Access::Write)?;
        let changing = masters.iter().chain([exp_avgs, exp_avg_sqs]).map(|store| (store, Access::Write));
        let held = HeldChunk::fetch(changing.chain([(&**grads, Access::Read)]), chunk)?;

        let updates: Vec<AdamwParam<'_>> = states
            .iter()
            .map(|state| AdamwParam {
                master: &state.master,
                weight: Some(&state.parameter.tensor).filter(|weight| weight.kind() != Kind::Float),
                grad: &state.grad,
                moments: &state.moments,
                weight_decay: state.parameter.weight_decay,
                first_element: state.first_element,
            })
            .collect();
        adamw(&updates, &self.config, lr, step, divisor)?;

        // Only then may the gradients leave memory.
        drop(held);
        grads.discard_chunk(chunk)
    }

    /// All-reduces the gradients of parameters that every tensor-parallel rank holds in full but uses for
    /// different work. All of them go through one collective. Megatron: `_allreduce_layernorm_grads`.
    fn all_reduce_partial_grads(&self) -> Result<(), Error> {
        let is_partial = |state: &&ParamState| state.parameter.partial_grad && state.has_grad;
        let partial_grads: Vec<&Tensor> =
            self.param_states.iter().filter(is_partial).map(|state| &state.grad).collect();
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
                tied_group.all_reduce(&state.grad, Reduction::Sum)?;
            }
        }
        Ok(())
    }

    /// Holds the gradients of the parameters that `is_wanted` accepts.
    fn hold_grads(&self, is_wanted: impl Fn(&ParamState) -> bool) -> Result<Vec<HeldChunk<'_>>, Error> {
        let wanted = (0..self.param_states.len()).filter(|&param| is_wanted(&self.param_states[param]));
        let chunks: BTreeSet<usize> = wanted.map(|param| self.stores.layout.slot_of(param).0).collect();
        let hold = |chunk| HeldChunk::fetch([(&*self.stores.grads, Access::Write)], chunk);
        chunks.into_iter().map(hold).collect()
    }

    /// The global gradient norm, by which gradients are clipped. The squared norms of shards are summed over
    /// the tensor-parallel group, those of experts over the expert-parallel group, and those of layers over
    /// the pipeline-parallel group. A replicated or tied parameter is counted once.
    /// Megatron: `get_grad_norm`; torch: `clip_grad_norm_`.
    fn global_grad_norm(&self) -> Result<f64, Error> {
        let norms = self.grad_norms()?;
        let (tensor, expert, pipeline) =
            (self.groups.tensor_parallel(), self.groups.expert_parallel(), self.groups.pipeline_parallel());
        if [tensor, expert, pipeline].iter().all(|group| group.size() == 1) {
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
        let [dense_sq, expert_sq] = tensor.all_reduce_sum([square(true, false), square(true, true)])?;
        let [expert_sq] = expert.all_reduce_sum([expert_sq + square(false, true)])?;
        let [all] = pipeline.all_reduce_sum([dense_sq + square(false, false) + expert_sq])?;
        Ok(all.sqrt())
    }

    /// The norm of each parameter's gradient; `None` for a parameter without one.
    fn grad_norms(&self) -> Result<Vec<Option<Tensor>>, Error> {
        let mut all: Vec<Option<Tensor>> = self.param_states.iter().map(|_| None).collect();
        for (chunk, spec) in self.stores.layout.chunks().iter().enumerate() {
            let _grads = HeldChunk::fetch([(&*self.stores.grads, Access::Read)], chunk)?;
            let params = spec.params.iter().map(|slot| slot.param);
            let params: Vec<usize> = params.filter(|&param| self.param_states[param].has_grad).collect();
            let grads: Vec<&Tensor> = params.iter().map(|&param| &self.param_states[param].grad).collect();
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
        let TrainConfig { scheduler, warmup_steps, lr, .. } = self.config;
        lr * lr_scheduler::lr_factor(scheduler, self.step, warmup_steps, total_steps)
    }

    /// The process groups that train the model.
    pub(crate) fn groups(&self) -> &ProcessGroups {
        &self.groups
    }

    /// The optimizer's tensors, which a checkpoint holds in addition to the weights.
    pub(crate) fn state(&self) -> Vec<StateTensor<'_>> {
        let mut states = Vec::new();
        for (param, state) in self.param_states.iter().enumerate() {
            let owns_parameter = state.parameter.is_owned(&self.groups);
            let Parameter { name, placement, tensor, .. } = &state.parameter;
            // An fp32 weight is its own master.
            let is_saved = |kind: &str| kind != "master" || tensor.kind() != Kind::Float;
            let saved = self.stores.saved().filter(|(kind, _)| is_saved(kind));
            states.extend(saved.map(|(kind, store)| StateTensor {
                name: format!("{kind}.{name}"),
                tensor: store.param(param),
                placement,
                owns_parameter,
                residency: (store, param),
            }));
        }
        states
    }

    /// The manager of the memory of the optimizer's state.
    pub fn manager(&self) -> &Arc<ChunkManager> {
        &self.stores.manager
    }

    pub(crate) fn set_step(&mut self, step: u64) {
        self.step = step;
    }
}

/// One tensor of the optimizer's state.
pub(crate) struct StateTensor<'a> {
    pub(crate) name: String,
    /// This rank's shard, whose values are in memory while it is held.
    pub(crate) tensor: Tensor,
    pub(crate) placement: &'a Placement,
    /// Whether this rank owns the parameter. In a pipeline-expert group, exactly one rank owns each.
    pub(crate) owns_parameter: bool,
    /// The store that holds the tensor, and its index there.
    residency: (&'a ChunkStore, usize),
}

impl StateTensor<'_> {
    /// The tensor as an entry of a safetensors file.
    pub(crate) fn named(&self) -> NamedTensor<'_> {
        let (store, param) = self.residency;
        NamedTensor {
            name: &self.name,
            tensor: &self.tensor,
            placement: self.placement,
            residency: Some((store, param)),
        }
    }

    /// Sets the values.
    pub(crate) fn set(&self, values: &Tensor) -> Result<(), Error> {
        let (store, param) = self.residency;
        let _tensor = HeldWeights::fetch(Some(store), Weights::Parameter(param), Access::Write)?;
        no_grad(|| self.tensor.shallow_clone().copy_(values));
        Ok(())
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

/// The gradients that a segment has computed for a tied weight in a call of [`Engine::accumulate`].
#[derive(Default)]
struct TiedGrads {
    /// Their fp32 sum.
    sum: Option<Tensor>,
    count: usize,
}

impl TiedGrads {
    fn add(&mut self, grad: &Tensor) {
        self.count += 1;
        match &mut self.sum {
            Some(sum) => drop(sum.g_add_(grad)),
            empty => *empty = Some(grad.to_kind(Kind::Float).contiguous()),
        }
    }
}

/// Adds a gradient of parameter `param`.
fn add_grad(state: &mut ParamState, param: usize, stores: &Stores, grad: &Tensor) -> Result<(), Error> {
    let chunk = stores.layout.slot_of(param).0;
    let _grads = HeldChunk::fetch([(&*stores.grads, Access::Write)], chunk)?;
    no_grad(|| {
        if std::mem::replace(&mut state.has_grad, true) {
            let _ = state.grad.g_add_(grad);
        } else {
            state.grad.copy_(grad);
        }
    });
    Ok(())
}

impl ParamState {
    /// The state of parameter `param` of the stores. Its master weight gets its values here.
    fn new(parameter: &Parameter, index: usize, stores: &Stores, param: usize) -> Result<Self, Error> {
        let mut master = parameter.tensor.detach();
        if let Some(masters) = stores.masters.as_ref().filter(|_| parameter.tensor.kind() != Kind::Float) {
            let chunk = stores.layout.slot_of(param).0;
            let weight = Weights::Parameter(index);
            let _weight = HeldWeights::fetch(stores.weight_residency(), weight, Access::Read)?;
            let _master = HeldChunk::fetch([(masters, Access::Write)], chunk)?;
            let weight = std::mem::replace(&mut master, masters.param(param));
            no_grad(|| master.copy_(&weight));
        }
        Ok(Self {
            parameter: parameter.clone(),
            index,
            master,
            moments: Moments {
                exp_avg: stores.exp_avgs.param(param),
                exp_avg_sq: stores.exp_avg_sqs.param(param),
            },
            grad: stores.grads.param(param),
            has_grad: false,
            first_element: 0,
        })
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
        let master = engine.param_states[0].master.double_value(&[0]);
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
