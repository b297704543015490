//! The training loop of every stage that learns from a fixed set of examples: base model, SFT, reward model,
//! and the offline algorithms.
//!
//! ```text
//! each step
//!   draw the examples of the step                                    Sampler
//!   count them, and run what needs all of them                       Objective::begin_step
//!   split them into micro-batches over the data-parallel ranks       Engine::split_micro_batches
//!   run models on them that are not trained                          Objective::run_frozen_models
//!   forward, loss, backward                                          Objective::{collate, loss}
//!   clip, update, zero the gradients                                 Engine::step
//!   log, evaluate, save a checkpoint, ask tasks                      Objective::evaluate, StageRun
//! ```
//! A micro-batch divides its losses by the counts of the full step ([`Objective::begin_step`]), and the
//! losses of a step are the sum over its micro-batches. Therefore neither the split into micro-batches nor
//! the split over ranks changes the gradient. The loop contains no loss formula and no row format.

use std::path::Path;
use std::time::Instant;

use datasets::{Sampler, SamplerState};
use gemini::{Engine, TrainConfig, checkpoint};
use models::batch::Batch;
use parallel::residency::HeldWeights;
use parallel::{ProcessGroups, Segmented};
use serde::{Deserialize, Serialize};
use tch::Tensor;

use crate::Error;
use crate::event::Metrics;
use crate::run::{Phase, StageRun};
use crate::sums::Sums;

/// A model and its training objective: how examples become batches, the loss, and the metrics.
pub trait Objective {
    /// The type of the trained model.
    type Model: Segmented<Context = Batch>;
    /// The unit of `batch_size`: a row, a bin of packed rows, or a pair.
    type Example;
    /// The inputs of the loss of a micro-batch besides the hidden states.
    type Targets;
    /// What the losses of a step share: the counts that they are divided by.
    type Step;

    /// The trained model.
    fn model(&self) -> &Self::Model;

    /// Writes the model into `folder`.
    fn save(&self, folder: &Path) -> Result<(), Error>;

    /// Number of training examples.
    fn num_examples(&self) -> usize;

    /// Returns the training example `index`.
    fn example(&self, index: usize) -> Self::Example;

    /// A hash of all training examples. A resumed run uses it to detect changed examples.
    fn content_hash(&self) -> String;

    /// The number of tokens in an example, label or not. It is not the loss divisor.
    fn num_tokens(&self, example: &Self::Example) -> usize;

    /// Whether [`begin_step`](Self::begin_step) runs the model.
    fn runs_before_step(&self) -> bool {
        false
    }

    /// Counts `examples`, which are all examples of an optimizer step, on all ranks: their label tokens, or
    /// their pairs. Losses are divided by these counts and gradients are summed over the ranks, so the counts
    /// need no all-reduce: the loss is the mean over the tokens of the step, or over its pairs. A loss that
    /// compares an example with others of the step completes the examples here. All ranks call this.
    /// transformers: `num_items_in_batch`; Megatron: `num_tokens` of `finalize_model_grads`; verl:
    /// `batch_num_tokens`, `loss_agg_mode="token-mean"`.
    fn begin_step(
        &self,
        examples: &mut [Self::Example],
        micro_batch_size: usize,
        groups: &ProcessGroups,
    ) -> Result<Self::Step, Error>;

    /// Builds the flat batch of a micro-batch and the targets of its loss.
    fn collate(&self, examples: &[Self::Example]) -> (Batch, Self::Targets);

    /// Completes the micro-batches of this rank by what models say of them that are not trained. All ranks
    /// call this before the gradients of a step, with any number of micro-batches.
    fn run_frozen_models(&self, _micro_batches: &mut [(Batch, Self::Targets)]) -> Result<(), Error> {
        Ok(())
    }

    /// Holds what [`loss`](Self::loss) reads of models that are not trained, if ranks share it and fetch it
    /// together. All ranks call this before the losses of a step, of which each rank has any number.
    fn hold_frozen_weights(&self) -> Result<HeldWeights<'_>, Error> {
        Ok(HeldWeights::none())
    }

    /// Computes the share of a micro-batch in the loss of its step, a scalar with a gradient. `hidden`
    /// `[M, H]` are the last hidden states of the outputs of its batch. The means of `sums` over the step are
    /// metrics.
    fn loss(
        &self,
        step: &Self::Step,
        targets: &Self::Targets,
        hidden: &Tensor,
        sums: &mut Sums,
    ) -> Result<Tensor, Error>;

    /// Whether there are held-out examples.
    fn has_eval(&self) -> bool;

    /// Computes the metrics of the held-out examples, which are split over the weight replicas.
    fn evaluate(&self, micro_batch_size: usize, groups: &ProcessGroups) -> Result<Metrics, Error>;
}

/// The state of a checkpoint besides the model and its optimizer.
#[derive(Serialize, Deserialize)]
struct State {
    sampler: SamplerState,
    /// The hash of the training examples. `None` in checkpoints of earlier versions.
    #[serde(default)]
    content_hash: Option<String>,
    /// Number of optimizer steps of the full run. `None` in checkpoints of earlier versions.
    #[serde(default)]
    total_steps: Option<u64>,
}

/// Trains the model of `objective` and saves it. With `shuffle`, the examples are in a new order in each
/// epoch.
pub fn train<O: Objective>(
    objective: &O,
    shuffle: bool,
    config: &TrainConfig,
    run: &mut StageRun<'_>,
) -> Result<(), Error> {
    let count = objective.num_examples();
    if count == 0 {
        return Err(Error::NoRows { stage: run.stage, fix: "check [data] train and max_length" });
    }

    let total_steps = config.total_steps(count);
    let mut engine = Engine::new(objective.model(), config, total_steps, &run.groups, &run.memory)?;
    let content_hash = objective.content_hash();
    let mut sampler = match run.restore::<State>(&mut engine)? {
        Some(state) => {
            run.check_content(state.content_hash.as_deref(), &content_hash)?;
            let next_lr = |total| engine.next_lr_of(total);
            run.check_total_steps(state.total_steps, engine.step_count(), total_steps, next_lr)?;
            Sampler::resume(count, state.sampler)?
        }
        None => Sampler::new(count, run.seed, shuffle)?,
    };
    run.begin(total_steps, engine.step_count())?;

    let mut tokens_since_log = 0;
    while engine.step_count() < total_steps {
        let started = Instant::now();
        (run.progress)(Phase::Step, engine.step_count());
        run.begin_step()?;
        let mut sums = Sums::default();
        let batch = sampler.next_batch(config.batch_size());
        let (loss, tokens) =
            run_step(objective, &batch, config.micro_batch_size, &mut engine, &run.groups, &mut sums)?;
        let report = engine.step()?;
        run.memory.end_step();
        let [loss, tokens] = run.groups.loss_group().all_reduce_sum([loss, tokens as f64])?;
        tokens_since_log += tokens as u64;

        if run.should_log(report.step, total_steps) {
            let mut metrics = Metrics::default();
            metrics.push("loss", loss);
            metrics.push("lr", report.lr);
            metrics.push("grad_norm", report.grad_norm);
            metrics.push("tokens", tokens);
            metrics.push("seconds", started.elapsed().as_secs_f64());
            metrics.push("epoch", sampler.progress());
            sums.all_reduce(run.groups.loss_group())?.push_means("", &mut metrics);
            run.record_step(report.step, &metrics, std::mem::take(&mut tokens_since_log))?;
        }
        // Before the model is saved: held-out scores that are not finite must leave no such checkpoint.
        evaluate(objective, config.micro_batch_size, &engine, run, (report.step, total_steps))?;
        run.save_or_stop(engine.step_count(), total_steps, &|folder| {
            objective.save(folder)?;
            let state = State {
                sampler: sampler.state(),
                content_hash: Some(content_hash.clone()),
                total_steps: Some(total_steps),
            };
            Ok(checkpoint::save_state(folder, &engine, &state)?)
        })?;
        if run.should_ask_tasks(report.step, total_steps)? {
            engine.finish_updates()?;
            run.ask_tasks(report.step)?;
        }
    }
    engine.check_replicas(objective.model())?;
    run.finish(total_steps, &|folder| objective.save(folder))
}

/// Runs the examples `batch` of an optimizer step forward and backward. Returns this rank's share of the
/// loss, and the number of tokens whose last hidden states it has computed.
pub(crate) fn run_step<O: Objective>(
    objective: &O,
    batch: &[usize],
    micro_batch_size: usize,
    engine: &mut Engine,
    groups: &ProcessGroups,
    sums: &mut Sums,
) -> Result<(f64, i64), Error> {
    let mut examples: Vec<O::Example> = batch.iter().map(|&index| objective.example(index)).collect();
    if objective.runs_before_step() {
        engine.finish_updates()?;
    }
    let step = objective.begin_step(&mut examples, micro_batch_size, groups)?;
    let micro_batches = collate_micro_batches(objective, &examples, (step, 1.0), micro_batch_size, engine)?;
    accumulate(objective, &micro_batches, engine, sums)
}

/// Evaluates the model on the held-out rows, if there are any and it is time.
fn evaluate<O: Objective>(
    objective: &O,
    micro_batch_size: usize,
    engine: &Engine,
    run: &mut StageRun<'_>,
    (step, total_steps): (u64, u64),
) -> Result<(), Error> {
    if !objective.has_eval() || !run.should_evaluate(step, total_steps)? {
        return Ok(());
    }
    // The order of use, which tells whether there is room for updates, does not include an evaluation.
    engine.finish_updates()?;
    (run.progress)(Phase::Evaluation, step);
    let metrics = objective.evaluate(micro_batch_size, &run.groups)?;
    run.record_evaluation(step, &metrics)
}

/// The micro-batches of one rank in an optimizer step, ready to run.
pub(crate) struct MicroBatches<O: Objective> {
    batches: Vec<(Batch, O::Targets)>,
    step: O::Step,
    /// The factor of the loss of the step.
    weight: f64,
}

/// Splits `examples`, those of a full optimizer step, into micro-batches and collates those of this rank.
/// Their loss is `weight` times the loss of the step. All examples of a step are split before its first
/// micro-batch runs, because the engine reduces a gradient as soon as its last micro-batch has run.
pub(crate) fn collate_micro_batches<O: Objective>(
    objective: &O,
    examples: &[O::Example],
    (step, weight): (O::Step, f64),
    micro_batch_size: usize,
    engine: &mut Engine,
) -> Result<MicroBatches<O>, Error> {
    let step_tokens: usize = examples.iter().map(|example| objective.num_tokens(example)).sum();
    let aux_loss_divisor = step_tokens.max(1) as f64 / weight;
    let collated = engine.split_micro_batches(examples, micro_batch_size).into_iter().map(|examples| {
        let (batch, targets) = objective.collate(examples);
        (batch.with_aux_loss_divisor(aux_loss_divisor), targets)
    });
    let mut batches: Vec<(Batch, O::Targets)> = collated.collect();
    objective.run_frozen_models(&mut batches)?;
    Ok(MicroBatches { batches, step, weight })
}

/// Runs `micro_batches` forward and backward and adds their gradients.
///
/// Returns this rank's share of the loss, and the number of tokens whose last hidden states it has computed.
pub(crate) fn accumulate<O: Objective>(
    objective: &O,
    micro_batches: &MicroBatches<O>,
    engine: &mut Engine,
    sums: &mut Sums,
) -> Result<(f64, i64), Error> {
    let MicroBatches { batches, step, weight } = micro_batches;
    let contexts: Vec<&Batch> = batches.iter().map(|(batch, _)| batch).collect();
    let mut tokens = 0;
    let _weights = objective.hold_frozen_weights()?;
    let loss = engine.accumulate(objective.model(), &contexts, |index, hidden| {
        let (batch, targets) = &batches[index];
        tokens += batch.num_real_tokens();
        let loss = objective.loss(step, targets, hidden, sums)?;
        Ok::<_, Error>(if *weight == 1.0 { loss } else { loss * *weight })
    })?;
    Ok((loss, tokens))
}
