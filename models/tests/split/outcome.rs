//! What a model says of some rows, with all gradients: the same however the model is split over ranks.

#![expect(clippy::unwrap_used, reason = "a test ends at the first thing that is not as it should be")]
#![allow(dead_code, reason = "not every test that includes this file uses all of it")]

use std::sync::Arc;

use models::batch::Batch;
use models::cached_batch::{CachedRow, Outputs};
use models::causal_lm::{CausalLm, LoadOptions};
use models::head;
use models::model_parallel::{ModelParallel, SequenceParallel};
use parallel::comm::Reduction;
use parallel::pipeline;
use parallel::{Axis, ForwardPass, GradientSource, Parameter, ProcessGroups, Segmented, Transport};
use tch::{Device, Kind, Tensor};

use crate::on_mesh as mesh;

/// Three rows of different length: seven, one and four tokens.
pub(crate) const ROWS: [&[i64]; 3] = [&[5, 9, 41, 47, 0, 7, 7], &[30], &[1, 2, 3, 46]];

/// Every family, and every arrangement that splits in its own way.
pub(crate) const FAMILIES: [&str; 13] = [
    "llama",
    "llama-biases",
    "llama-tied",
    "mistral",
    "qwen2",
    "qwen3",
    "gpt2",
    "opt",
    "opt-after",
    "bloom",
    "bloom-normed",
    "neox",
    "neox-sequential",
];

pub(crate) fn options(model_parallel: Option<&ModelParallel>) -> LoadOptions {
    let model_parallel = model_parallel.cloned().unwrap_or(ModelParallel::NONE);
    LoadOptions {
        kind: Kind::Float,
        device: Device::Cpu,
        trainable: true,
        model_parallel,
        memory: None,
        quantize: None,
    }
}

/// Runs `body` on `size` ranks that share the weights of a model, each a thread.
pub(crate) fn on_ranks<T: Send>(
    size: usize,
    transport: Transport,
    body: impl Fn(&ModelParallel) -> T + Sync,
) -> Vec<T> {
    on_mesh([1, size], transport, |groups| {
        body(&ModelParallel::tensor_parallel_only(groups.tensor_parallel()))
    })
}

/// Runs `body` on the ranks of a mesh with these sizes of sequence and tensor, each a thread.
pub(crate) fn on_mesh<T: Send>(
    [sequence, tensor]: [usize; 2],
    transport: Transport,
    body: impl Fn(&ProcessGroups) -> T + Sync,
) -> Vec<T> {
    on_whole_mesh([1, sequence, tensor], transport, body)
}

/// Runs `body` on the ranks of a mesh with these sizes of pipeline, sequence and tensor, each a thread.
pub(crate) fn on_whole_mesh<T: Send>(
    [pipeline, sequence, tensor]: [usize; 3],
    transport: Transport,
    body: impl Fn(&ProcessGroups) -> T + Sync,
) -> Vec<T> {
    on_every_mesh([pipeline, 1, 1, sequence, tensor], transport, body)
}

/// Runs `body` on the ranks of a mesh, each a thread.
pub(crate) fn on_every_mesh<T: Send>(
    sizes: [usize; 5],
    transport: Transport,
    body: impl Fn(&ProcessGroups) -> T + Sync,
) -> Vec<T> {
    let axes = [Axis::Pipeline, Axis::Data, Axis::Expert, Axis::Sequence, Axis::Tensor];
    let axes: Vec<(Axis, usize)> = axes.into_iter().zip(sizes).collect();
    mesh::on_mesh(&axes, transport, |groups| body(groups))
}

/// What a model says of [`ROWS`], with the gradient of each parameter as a whole.
pub(crate) struct Outcome {
    pub(crate) logits: Vec<f32>,
    pub(crate) numbers: Vec<f64>,
    pub(crate) gradients: Vec<(String, Vec<f32>)>,
}

pub(crate) fn flat(tensor: &Tensor) -> Vec<f32> {
    Vec::try_from(tensor.detach().to_kind(Kind::Float).contiguous().view([-1])).unwrap()
}

/// Adds one of the gradients of a parameter to their sum.
pub(crate) fn add(sum: &mut Option<Tensor>, grad: Tensor) {
    *sum = Some(match sum.take() {
        Some(sum) => sum + grad,
        None => grad,
    });
}

/// The whole gradient of a parameter, of which each rank has some terms or a part.
pub(crate) fn full_grad(parameter: &Parameter, grad: &Tensor, model_parallel: &ModelParallel) -> Vec<f32> {
    let sequence = match &model_parallel.sequence_parallel {
        SequenceParallel::Ulysses(group) | SequenceParallel::Ring(group) => Some(group),
        SequenceParallel::Replicated | SequenceParallel::Megatron => None,
    };
    let weights = model_parallel.tensor_parallel.as_ref().filter(|_| parameter.partial_grad);
    let grad = grad.contiguous();
    for group in weights.into_iter().chain(sequence) {
        group.all_reduce(&grad, Reduction::Sum).unwrap();
    }
    flat(&parameter.placement.full_tensor(&grad).unwrap())
}

/// A loss that uses cross-entropy, log-probabilities and entropy. With `activation_checkpointing`, each block
/// runs forward twice.
pub(crate) fn outcome(model: &CausalLm, activation_checkpointing: bool) -> Outcome {
    let batch = Batch::new(&ROWS, Device::Cpu);
    let targets = Tensor::from_slice(&[9i64, 41, 47, 0, 7, 7, 3, 11, 2, 3, 46, 20]);
    let weights = Tensor::arange(12, (Kind::Float, Device::Cpu)) / 7.0;
    let hidden = model.forward_no_grad(&batch).unwrap();
    let logits = flat(&tch::no_grad(|| model.head().logits(&hidden)).unwrap());
    let best = flat(&head::argmax(&hidden, model.head()).unwrap());
    let forward = ForwardPass::run(model, &batch, activation_checkpointing).unwrap();
    let cross_entropy =
        head::cross_entropy(forward.hidden(), model.head(), &targets, Some(&weights)).unwrap();
    let found = head::logprobs(forward.hidden(), model.head(), &targets, 0.7).unwrap();
    let weighted = |x: &Tensor| (x * &weights).sum(Kind::Float);
    let loss = &cross_entropy + weighted(&found.logprobs) * 0.3 - weighted(&found.entropy) * 0.2;
    let mut numbers = vec![cross_entropy.double_value(&[]), loss.double_value(&[])];
    numbers.extend(best.iter().map(|&id| f64::from(id)));
    let mut sums: Vec<Option<Tensor>> = model.parameters().iter().map(|_| None).collect();
    forward
        .backward::<parallel::Error>(&loss, &mut |_, index, grad| {
            add(&mut sums[index], grad);
            Ok(())
        })
        .unwrap();
    let gradients = model
        .parameters()
        .iter()
        .zip(sums)
        .filter(|(parameter, _)| parameter.tensor.requires_grad())
        .map(|(parameter, grad)| {
            (parameter.name.clone(), full_grad(parameter, &grad.unwrap(), model.decoder().model_parallel()))
        })
        .collect();
    Outcome { logits, numbers, gradients }
}

pub(crate) fn close<T: Copy + Into<f64>>(what: &str, one: &[T], many: &[T]) {
    assert_eq!(one.len(), many.len(), "{what}");
    let scale = one.iter().map(|&x| x.into().abs()).fold(1.0, f64::max);
    let pairs = one.iter().zip(many);
    let worst = pairs.map(|(&one, &many)| (one.into() - many.into()).abs()).fold(0.0, f64::max);
    assert!(many.iter().all(|&x| x.into().is_finite()), "{what}");
    assert!(worst < 2e-6 * scale, "{what}: {worst}");
}

pub(crate) fn same(name: &str, one: &Outcome, many: &Outcome) {
    close(&format!("{name}: logits"), &one.logits, &many.logits);
    close(&format!("{name}: losses and best tokens"), &one.numbers, &many.numbers);
    assert_eq!(one.gradients.len(), many.gradients.len());
    for ((parameter, one), (other, many)) in one.gradients.iter().zip(&many.gradients) {
        assert_eq!(parameter, other);
        close(&format!("{name}: the gradient of {parameter}"), one, many);
    }
}

/// The ways to share the tokens of a batch, each with a mesh of sequence and tensor ranks.
pub(crate) fn sequence_parallel_of(groups: &ProcessGroups, mode: &str) -> ModelParallel {
    let sequence_parallel = match mode {
        "megatron" => SequenceParallel::Megatron,
        "ulysses" => SequenceParallel::Ulysses(Arc::clone(groups.sequence_parallel())),
        _ => SequenceParallel::Ring(Arc::clone(groups.sequence_parallel())),
    };
    ModelParallel { sequence_parallel, ..ModelParallel::tensor_parallel_only(groups.tensor_parallel()) }
}

/// The losses and the gradients of a step, added up.
pub(crate) struct Sums<'a> {
    model: &'a CausalLm,
    total: f64,
    grads: Vec<Option<Tensor>>,
}

impl pipeline::StepHandler for Sums<'_> {
    type Error = models::Error;

    fn loss(&mut self, index: usize, hidden: &Tensor) -> Result<Tensor, models::Error> {
        let targets: Vec<i64> = ROWS[index].iter().map(|id| id * 5 % 47).collect();
        let targets = Tensor::from_slice(&targets);
        let loss = head::cross_entropy(hidden, self.model.head(), &targets, None)?;
        let entropy = head::logprobs(hidden, self.model.head(), &targets, 0.7)?.entropy;
        let loss = loss + entropy.sum(Kind::Float) * 0.3;
        self.total += loss.double_value(&[]);
        Ok(loss)
    }

    fn on_gradient(&mut self, _: GradientSource, index: usize, grad: Tensor) -> Result<(), models::Error> {
        add(&mut self.grads[index], grad);
        Ok(())
    }
}

/// The gradients of a step of three micro-batches, and the sum of their losses, on the rank that has the last
/// layers.
pub(crate) fn step(model: &CausalLm, model_parallel: &ModelParallel) -> (f64, Vec<(String, Vec<f32>)>) {
    let batches: Vec<Batch> = ROWS.iter().map(|row| Batch::new(&[row], Device::Cpu)).collect();
    let grads = model.parameters().iter().map(|_| None).collect();
    let mut sums = Sums { model, total: 0.0, grads };
    let contexts: Vec<&Batch> = batches.iter().collect();
    pipeline::run_schedule(model, &contexts, pipeline::ScheduleOptions::default(), &mut sums).unwrap();
    let Sums { total, grads: sums, .. } = sums;
    let trained =
        model.parameters().iter().zip(sums).filter(|(parameter, _)| parameter.tensor.requires_grad());
    let gradients = trained.map(|(parameter, grad)| {
        let grad = grad.unwrap_or_else(|| parameter.tensor.zeros_like()).contiguous();
        if let Some(copies) = &parameter.tied_group {
            copies.all_reduce(&grad, Reduction::Sum).unwrap();
        }
        (parameter.name.clone(), full_grad(parameter, &grad, model_parallel))
    });
    (total, gradients.collect())
}

/// Every family with experts, and the term that keeps them equally busy.
pub(crate) const MOE_FAMILIES: [&str; 3] = ["mixtral", "qwen2-moe", "qwen3-moe"];

/// The gradients of a step over [`ROWS`], of which this rank of `groups` has some, as wholes; with the loss
/// of its rows.
pub(crate) fn step_with_experts(model: &CausalLm, groups: &ProcessGroups) -> (f64, Vec<(String, Vec<f32>)>) {
    let local_rows: Vec<&[i64]> = groups.data_parallel().round_robin(ROWS).collect();
    let mut batch = Batch::new(&local_rows, Device::Cpu);
    batch.aux_loss_divisor = 1.0;
    let ids: Vec<i64> = local_rows.concat();
    let targets: Vec<i64> = ids.iter().map(|id| id * 5 % 47).collect();
    let forward = ForwardPass::run(model, &batch, groups.expert_parallel().size() == 2).unwrap();
    let hidden = forward.hidden().narrow(0, 0, ids.len() as i64);
    let loss = head::cross_entropy(&hidden, model.head(), &Tensor::from_slice(&targets), None).unwrap();
    let mut sums: Vec<Option<Tensor>> = model.parameters().iter().map(|_| None).collect();
    forward
        .backward::<parallel::Error>(&loss, &mut |_, index, grad| {
            add(&mut sums[index], grad);
            Ok(())
        })
        .unwrap();
    let trained =
        model.parameters().iter().zip(sums).filter(|(parameter, _)| parameter.tensor.requires_grad());
    let gradients = trained.map(|(parameter, grad)| {
        let grad = grad.unwrap_or_else(|| panic!("{} has no gradient", parameter.name)).contiguous();
        let sharers =
            if parameter.is_expert { groups.expert_data_parallel() } else { groups.dense_data_parallel() };
        sharers.all_reduce(&grad, Reduction::Sum).unwrap();
        if parameter.partial_grad {
            groups.tensor_parallel().all_reduce(&grad, Reduction::Sum).unwrap();
        }
        (parameter.name.clone(), flat(&parameter.placement.full_tensor(&grad).unwrap()))
    });
    (loss.double_value(&[]), gradients.collect())
}

/// Greedy replies of six tokens to three prompts, of which each begins one step after the one before.
pub(crate) fn written(model: &CausalLm) -> Vec<Vec<i64>> {
    let prompts: [&[i64]; 3] = [&[5, 9, 41], &[30], &[1, 2, 3, 46, 8]];
    let mut sequences: Vec<Vec<i64>> = prompts.map(<[i64]>::to_vec).into();
    let pages = [[0], [1], [2]];
    let mut cache = model.decoder().cache(3, 16);
    for step in 0..8 {
        let is_running = |&index: &usize| (index..index + 6).contains(&step);
        let running: Vec<usize> = (0..3).filter(is_running).collect();
        let row = |&index: &usize| {
            let past = if step == index { 0 } else { sequences[index].len() - 1 };
            let (tokens, outputs) = (&sequences[index][past..], Outputs::Last);
            CachedRow { tokens, past, pages: &pages[index], outputs }
        };
        let rows: Vec<CachedRow<'_>> = running.iter().map(row).collect();
        let hidden = model.step(&rows, &mut cache).unwrap();
        let best = model.head().logits(&hidden).unwrap().argmax(-1, false);
        for (&index, id) in running.iter().zip(Vec::<i64>::try_from(best).unwrap()) {
            sequences[index].push(id);
        }
    }
    sequences
}
