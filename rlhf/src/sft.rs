//! Supervised fine-tuning: next-token cross-entropy on the tokens that the labels mark.
//!
//! `loss = -sum_t log p(y_t | y_<t) / (number of marked tokens in the whole optimiser step)`, so that neither the split into
//! micro-batches nor packing changes the gradient. Pre-training is the same with every token marked.
//! A packed unit is several rows that share a micro-batch slot; rows never see one another, packed or not.
//! Knows no template: rows come tokenised and masked.

use std::time::Instant;

use datasets::rows::IGNORE_INDEX;
use datasets::{Sampler, SamplerState, SftRow};
use gemini::{Engine, TrainConfig, checkpoint};
use models::batch::Batch;
use models::causal_lm::CausalLm;
use models::head;
use parallel::{ProcessGroups, Segmented};
use serde::{Deserialize, Serialize};
use tch::{Device, Tensor};

use crate::Error;
use crate::event::Metrics;
use crate::run::StageRun;

/// What one SFT stage learns from.
pub struct Data<'a> {
    /// Training rows.
    pub train: &'a [SftRow],
    /// Held-out rows; may be empty.
    pub eval: &'a [SftRow],
    /// Rows that go together, by index: one each, or bins of the packer.
    pub bins: Vec<Vec<usize>>,
    /// Whether the order is shuffled.
    pub shuffle: bool,
}

impl<'a> Data<'a> {
    /// Rows one by one, or packed into bins of `packing` tokens.
    pub fn new(
        train: &'a [SftRow],
        eval: &'a [SftRow],
        packing: Option<usize>,
        shuffle: bool,
    ) -> Result<Self, Error> {
        let lengths: Vec<usize> = train.iter().map(|row| row.input_ids.len()).collect();
        let bins = match packing {
            Some(max_length) => datasets::pack(&lengths, max_length)?,
            None => (0..train.len()).map(|row| vec![row]).collect(),
        };
        Ok(Self { train, eval, bins, shuffle })
    }
}

/// What a checkpoint of this stage holds beside model and optimiser.
#[derive(Serialize, Deserialize)]
struct State {
    sampler: SamplerState,
}

/// Trains `model` on `data`.
pub fn train(
    model: &CausalLm,
    data: &Data<'_>,
    config: &TrainConfig,
    run: &mut StageRun<'_>,
) -> Result<(), Error> {
    if data.bins.is_empty() {
        return Err(Error::NoRows { stage: "sft", fix: "look at [data] train and max_length" });
    }
    let total_steps = config.total_steps(data.bins.len());
    let mut engine = Engine::new(model.parameters(), config, total_steps, &run.groups)?;
    let mut sampler = match run.start::<State>(&mut engine, total_steps)? {
        Some(state) => Sampler::resume(data.bins.len(), state.sampler)?,
        None => Sampler::new(data.bins.len(), run.seed, data.shuffle)?,
    };
    let save = |folder: &std::path::Path| Ok(model.save(folder)?);
    let mut tokens_since_log = 0;
    while engine.step_count() < total_steps {
        let started = Instant::now();
        let units = sampler.next_batch(config.batch_size());
        let units: Vec<Vec<&SftRow>> =
            units.iter().map(|&unit| data.bins[unit].iter().map(|&row| &data.train[row]).collect()).collect();
        let weight = 1.0 / num_labels(&units) as f64;
        let aux_loss_coef = model.config().router_aux_loss_coef() / num_tokens(&units) as f64;
        let micro_batches = engine.split_micro_batches(&units, config.micro_batch_size);
        let (loss, tokens) = accumulate(model, &micro_batches, [weight, aux_loss_coef], &mut engine)?;
        let report = engine.step()?;
        let [loss, tokens] = run.groups.loss_group().all_reduce_sum([loss, tokens as f64])?;
        tokens_since_log += tokens as u64;
        if run.should_log(report.step, total_steps) {
            let mut metrics = Metrics::default();
            metrics.push("loss", loss);
            metrics.push("lr", report.lr);
            metrics.push("grad_norm", report.grad_norm);
            metrics.push("tokens", tokens);
            metrics.push("seconds", started.elapsed().as_secs_f64());
            metrics.push("epoch", sampler.epoch() as f64);
            run.record_step(report.step, &metrics, std::mem::take(&mut tokens_since_log))?;
        }
        if !data.eval.is_empty() && run.should_evaluate(report.step, total_steps)? {
            run.record_evaluation(
                report.step,
                &evaluate(model, data.eval, config.micro_batch_size, &run.groups)?,
            )?;
        }
        run.save_or_stop(engine.step_count(), &|folder| {
            save(folder)?;
            Ok(checkpoint::save_state(folder, &engine, &State { sampler: sampler.state() })?)
        })?;
    }
    run.finish(&save)
}

/// The marked tokens of a whole step, and never 0.
pub(crate) fn num_labels(units: &[Vec<&SftRow>]) -> usize {
    units.iter().flatten().map(|row| row.num_label_tokens()).sum::<usize>().max(1)
}

/// The tokens of a whole step.
pub(crate) fn num_tokens(units: &[Vec<&SftRow>]) -> usize {
    units.iter().flatten().map(|row| row.input_ids.len()).sum::<usize>().max(1)
}

/// Adds the gradient of `weight` times the summed loss over the marked tokens of this process' `micro_batches`, and of the term that keeps
/// experts equally busy, a token by `aux_loss_coef`.
///
/// Returns that loss, and the number of tokens whose last hidden states this process has seen.
pub(crate) fn accumulate(
    model: &CausalLm,
    micro_batches: &[&[Vec<&SftRow>]],
    [weight, aux_loss_coef]: [f64; 2],
    engine: &mut Engine,
) -> Result<(f64, usize), Error> {
    let collated = micro_batches.iter().map(|units| {
        let (batch, targets) = collate(&units.concat(), model.device());
        (batch.with_aux_loss_coef(aux_loss_coef), targets)
    });
    let (batches, targets): (Vec<Batch>, Vec<Targets>) = collated.unzip();
    let batches: Vec<&Batch> = batches.iter().collect();
    let mut tokens = 0;
    let total = engine.accumulate(model, &batches, |micro, hidden| {
        tokens += batches[micro].num_real_tokens() as usize;
        Ok::<_, Error>(targets[micro].loss(model, hidden)? * weight)
    })?;
    Ok((total, tokens))
}

/// Which hidden states predict which tokens.
pub(crate) struct Targets {
    positions: Tensor,
    targets: Tensor,
}

impl Targets {
    /// The summed cross-entropy. `hidden` is `[N, H]`.
    fn loss(&self, model: &CausalLm, hidden: &Tensor) -> Result<Tensor, Error> {
        let rows = hidden.index_select(0, &self.positions);
        Ok(head::cross_entropy(&rows, model.head(), &self.targets, None)?)
    }
}

/// The flat batch of some rows, and what it is to predict. Token `i` predicts label `i + 1`.
pub(crate) fn collate(rows: &[&SftRow], device: Device) -> (Batch, Targets) {
    let ids: Vec<&[i64]> = rows.iter().map(|row| row.input_ids.as_slice()).collect();
    let (mut positions, mut targets, mut offset) = (Vec::new(), Vec::new(), 0i64);
    for row in rows {
        for (index, &label) in row.labels.iter().enumerate().skip(1) {
            if label != IGNORE_INDEX {
                positions.push(offset + index as i64 - 1);
                targets.push(label);
            }
        }
        offset += row.input_ids.len() as i64;
    }
    let tensor = |values: &[i64]| Tensor::from_slice(values).to_device(device);
    (Batch::new(&ids, device), Targets { positions: tensor(&positions), targets: tensor(&targets) })
}

/// Mean loss, perplexity and token accuracy over `rows`, which the replicas share.
pub fn evaluate(
    model: &CausalLm,
    rows: &[SftRow],
    micro_batch_size: usize,
    groups: &ProcessGroups,
) -> Result<Metrics, Error> {
    let (mut loss, mut right, mut count) = (0.0, 0.0, 0usize);
    for rows in groups.weight_replicas().round_robin(rows.chunks(micro_batch_size)) {
        let rows: Vec<&SftRow> = rows.iter().collect();
        let (batch, targets) = collate(&rows, model.device());
        let hidden = model.forward_no_grad(&batch)?;
        loss += tch::no_grad(|| targets.loss(model, &hidden))?.double_value(&[]);
        let best = head::argmax(&hidden.index_select(0, &targets.positions), model.head())?;
        right += best.eq_tensor(&targets.targets).sum(tch::Kind::Int64).double_value(&[]);
        count += targets.targets.numel();
    }
    let [loss, right, count] = groups.weight_replicas().all_reduce_sum([loss, right, count as f64])?;
    let count = count.max(1.0);
    let mut metrics = Metrics::default();
    metrics.push("eval/loss", loss / count);
    metrics.push("eval/perplexity", (loss / count).exp());
    metrics.push("eval/accuracy", right / count);
    Ok(metrics)
}
