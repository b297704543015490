//! One optimizer step: forward, backward, gradient accumulation, clipping, update.
//!
//! ```text
//!   accumulate(model, micro-batches, loss)           step()
//!   forward by segments -> loss / global count       sum over the replicas; clip by the norm of the sum
//!   backward by segments -> gradients added in fp32  fused AdamW on the fp32 values, copied to bf16 weights
//! ```
//! The caller's loss is a sum, already divided by the number of tokens (or pairs) of the *full* step.
//! Therefore every split into micro-batches gives the same gradient. The micro-batches of a step are split
//! over the data-parallel ranks. Weights in bf16 have an fp32 master here; weights in fp32 are their own
//! master. This module knows no loss function and no data.

use std::sync::Arc;

use parallel::comm::Reduction;
use parallel::pipeline::run_schedule;
use parallel::safetensors_file::NamedTensor;
use parallel::{Parameter, Placement, ProcessGroups, Segmented};
use tch::{Device, Kind, Tensor, no_grad};

use crate::optimizer::{AdamwParam, Moments, adamw, global_norm};
use crate::reducer::Reducer;
use crate::{Error, TrainConfig, lr_scheduler};

/// A trained parameter with its fp32 master weight, its moments and its gradient.
/// Megatron: `main_param`.
struct ParamState {
    parameter: Parameter,
    master: Tensor,
    moments: Moments,
    /// The fp32 sum of the gradients of the step. Megatron: `main_grad`.
    grad: Option<Tensor>,
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
    groups: Arc<ProcessGroups>,
    /// Reduces gradients over the data-parallel ranks; `None` when there is only one.
    reducer: Option<Reducer>,
}

/// Checks that all weight replicas loaded identical weights, and returns an error otherwise. The check
/// compares the sum of the bit patterns of all values, which does not depend on the order of summation.
fn check_weight_replicas(states: &[ParamState], groups: &ProcessGroups) -> Result<(), Error> {
    let sum = |state: &ParamState| {
        let tensor = state.parameter.tensor.detach();
        let bits = match tensor.kind().elt_size_in_bytes() {
            2 => Kind::Int16,
            4 => Kind::Int,
            _ => Kind::Int64,
        };
        tensor.view_dtype(bits).sum(Kind::Int64).int64_value(&[])
    };
    let local_sum = states.iter().map(sum).fold(0, i64::wrapping_add);
    let sums = groups.world().all_gather_object(vec![local_sum])?;
    let others = groups.expert_data_parallel().ranks();
    match others.iter().find(|&&rank| sums[rank] != local_sum) {
        None => Ok(()),
        Some(&other) => Err(Error::ReplicasDiffer { rank: groups.world().rank(), other }),
    }
}

impl Engine {
    /// Creates an engine for the parameters that require gradients. `total_steps` is the length of the
    /// learning-rate schedule.
    pub fn new(
        parameters: &[Parameter],
        config: &TrainConfig,
        total_steps: u64,
        groups: &Arc<ProcessGroups>,
    ) -> Result<Self, Error> {
        config.check()?;

        let mut param_states = Vec::new();
        let mut state_index = Vec::with_capacity(parameters.len());
        for parameter in parameters {
            state_index.push(parameter.tensor.requires_grad().then_some(param_states.len()));
            if parameter.tensor.requires_grad() {
                if !parameter.tensor.is_contiguous() {
                    return Err(Error::NotContiguous { name: parameter.name.clone() });
                }
                param_states.push(ParamState::new(parameter));
            }
        }

        // In a pipeline, a rank may hold only layers without parameters.
        if param_states.is_empty() && groups.pipeline_parallel().size() == 1 {
            return Err(Error::NoTrainableParameters);
        }

        if groups.expert_data_parallel().size() > 1 {
            check_weight_replicas(&param_states, groups)?;
        }

        // The reducer owns the gradient buffers; each parameter state gets a view into its bucket.
        let reducer = (groups.dense_data_parallel().size() > 1).then(|| {
            let weights: Vec<&Tensor> = param_states.iter().map(|state| &state.parameter.tensor).collect();
            let is_expert: Vec<bool> = param_states.iter().map(|state| state.parameter.is_expert).collect();
            let (reducer, views) = Reducer::new(groups, &weights, &is_expert);
            param_states.iter_mut().zip(views).for_each(|(state, view)| state.grad = Some(view));
            reducer
        });

        let groups = Arc::clone(groups);
        Ok(Self { config: config.clone(), total_steps, step: 0, param_states, state_index, groups, reducer })
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
        let (states, state_index, reducer) = (&mut self.param_states, &self.state_index, &mut self.reducer);
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

        let mut on_gradient = |index: usize, grad: Tensor| -> Result<(), E> {
            let Some(param_index) = state_index[index] else { return Ok(()) };
            states[param_index].accumulate_grad(&grad);
            match reducer {
                Some(reducer) => Ok(reducer.on_gradient_ready(param_index)?),
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
        let mut total = 0.0;
        for value in loss_values(&losses) {
            if !value.is_finite() {
                return Err(Error::Diverged { what: "loss", step: self.step + 1, value }.into());
            }
            total += value;
        }
        Ok(total)
    }

    /// Clips the accumulated gradients, updates the weights, and zeroes the gradients.
    pub fn step(&mut self) -> Result<StepReport, Error> {
        let step = self.step + 1;
        let lr = self.next_lr();

        if let Some(reducer) = &mut self.reducer {
            reducer.finalize_backward()?;
        }
        self.all_reduce_partial_grads()?;
        self.all_reduce_tied_grads()?;

        let (states, grads): (Vec<&ParamState>, Vec<&Tensor>) =
            self.param_states.iter().filter_map(|state| Some((state, state.grad.as_ref()?))).unzip();
        if grads.is_empty() && self.groups.pipeline_parallel().size() == 1 {
            return Err(Error::NoTrainableParameters);
        }
        let grad_norm = self.global_grad_norm(&states, &grads)?;
        if !grad_norm.is_finite() {
            return Err(Error::Diverged { what: "gradient norm", step, value: grad_norm });
        }

        let updates: Vec<AdamwParam<'_>> = states
            .iter()
            .zip(&grads)
            .map(|(state, grad)| AdamwParam {
                master: &state.master,
                grad,
                moments: &state.moments,
                weight_decay: state.parameter.weight_decay,
            })
            .collect();
        adamw(&updates, &self.config, lr, step, clip_divisor(grad_norm, self.config.max_grad_norm))?;

        self.param_states.iter_mut().for_each(ParamState::copy_master_to_weights);
        match &mut self.reducer {
            Some(reducer) => reducer.zero_grad(),
            None => self.param_states.iter_mut().for_each(|state| state.grad = None),
        }

        self.step = step;
        Ok(StepReport { step, lr, grad_norm })
    }

    /// All-reduces the gradients of parameters that every tensor-parallel rank holds in full but uses for
    /// different work. All of them go through one collective. Megatron: `_allreduce_layernorm_grads`.
    fn all_reduce_partial_grads(&self) -> Result<(), Error> {
        let partial = self.param_states.iter().filter(|state| state.parameter.partial_grad);
        let partial_grads: Vec<&Tensor> = partial.filter_map(|state| state.grad.as_ref()).collect();
        if partial_grads.is_empty() {
            return Ok(());
        }
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
            if let (Some(tied_group), Some(grad)) = (&state.parameter.tied_group, &state.grad) {
                tied_group.all_reduce(grad, Reduction::Sum)?;
            }
        }
        Ok(())
    }

    /// The global gradient norm, by which gradients are clipped. The squared norms of shards are summed over
    /// the tensor-parallel group, those of experts over the expert-parallel group, and those of layers over
    /// the pipeline-parallel group. A replicated or tied parameter is counted once.
    /// Megatron: `get_grad_norm`; torch: `clip_grad_norm_`.
    fn global_grad_norm(&self, states: &[&ParamState], grads: &[&Tensor]) -> Result<f64, Error> {
        let (tensor, expert, pipeline) =
            (self.groups.tensor_parallel(), self.groups.expert_parallel(), self.groups.pipeline_parallel());
        if [tensor, expert, pipeline].iter().all(|group| group.size() == 1) {
            return global_norm(grads);
        }
        let square = |is_shard: bool, is_expert: bool| -> Result<f64, Error> {
            let counts = |state: &ParamState| {
                let parameter = &state.parameter;
                parameter.is_tied_owner()
                    && parameter.placement.is_shard() == is_shard
                    && parameter.is_expert == is_expert
            };
            let chosen = states.iter().zip(grads).filter(|(state, _)| counts(state));
            Ok(global_norm(&chosen.map(|(_, grad)| *grad).collect::<Vec<_>>())?.powi(2))
        };
        let [dense_sq, expert_sq] = tensor.all_reduce_sum([square(true, false)?, square(true, true)?])?;
        let [expert_sq] = expert.all_reduce_sum([expert_sq + square(false, true)?])?;
        let [all] = pipeline.all_reduce_sum([dense_sq + square(false, false)? + expert_sq])?;
        Ok(all.sqrt())
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
        for state in &self.param_states {
            let owns_parameter = state.parameter.is_owned(&self.groups);
            let Parameter { name, placement, .. } = &state.parameter;
            states.extend(state.state_tensors().map(|(kind, tensor)| StateTensor {
                name: format!("{kind}.{name}"),
                tensor,
                placement,
                owns_parameter,
            }));
        }
        states
    }

    pub(crate) fn set_step(&mut self, step: u64) {
        self.step = step;
    }
}

/// One tensor of the optimizer's state.
pub(crate) struct StateTensor<'a> {
    pub(crate) name: String,
    /// This rank's shard.
    pub(crate) tensor: &'a Tensor,
    pub(crate) placement: &'a Placement,
    /// Whether this rank owns the parameter. In a pipeline-expert group, exactly one rank owns each.
    pub(crate) owns_parameter: bool,
}

impl StateTensor<'_> {
    /// The tensor as an entry of a safetensors file.
    pub(crate) fn named(&self) -> NamedTensor<'_> {
        NamedTensor { name: &self.name, tensor: self.tensor, placement: self.placement }
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

impl ParamState {
    fn new(parameter: &Parameter) -> Self {
        let master = no_grad(|| parameter.tensor.detach().to_kind(Kind::Float));
        let moments = Moments::zeros_like(&master);
        Self { parameter: parameter.clone(), master, moments, grad: None }
    }

    fn accumulate_grad(&mut self, grad: &Tensor) {
        match &mut self.grad {
            Some(sum) => {
                let _ = sum.g_add_(grad);
            }
            // Contiguous fp32: the fused update writes the clipped gradient back into this tensor.
            empty => *empty = Some(grad.to_kind(Kind::Float).contiguous()),
        }
    }

    /// Copies the fp32 master weight into weights of lower precision.
    /// Megatron: `copy_main_params_to_model_params`.
    fn copy_master_to_weights(&mut self) {
        if self.parameter.tensor.kind() != Kind::Float {
            no_grad(|| self.parameter.tensor.copy_(&self.master));
        }
    }

    fn state_tensors(&self) -> impl Iterator<Item = (&'static str, &Tensor)> {
        let master = (self.parameter.tensor.kind() != Kind::Float).then_some(("master", &self.master));
        [("exp_avg", &self.moments.exp_avg), ("exp_avg_sq", &self.moments.exp_avg_sq)]
            .into_iter()
            .chain(master)
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
        let mut engine = Engine::new(&model.parameters, &config(), 10, &alone()).unwrap();
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
        let mut engine = Engine::new(&model.parameters, &small, 100, &alone()).unwrap();
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
        let mut engine = Engine::new(&model.parameters, &config(), 10, &alone()).unwrap();
        let rows = Tensor::from_slice2(&[[f32::NAN, 1.0]]);
        let loss = |hidden: &Tensor| Ok::<_, Error>(hidden.sum(Kind::Float));
        let error = engine.accumulate(&model, &[&rows], |_, hidden| loss(hidden)).unwrap_err().to_string();
        assert!(error.starts_with("the loss of optimizer step 1 is NaN"), "{error}");
    }

    #[test]
    fn a_step_without_a_gradient_is_refused() {
        let model = Line::new(Kind::Float);
        let mut engine = Engine::new(&model.parameters, &config(), 10, &alone()).unwrap();
        assert!(matches!(engine.step(), Err(Error::NoTrainableParameters)));
    }

    #[test]
    fn a_trained_weight_that_is_not_contiguous_is_refused() {
        let transposed = Tensor::ones([2, 3], (Kind::Float, tch::Device::Cpu)).tr().set_requires_grad(true);
        let error =
            Engine::new(&[Parameter::replicated("w", &transposed)], &config(), 1, &alone()).err().unwrap();
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
