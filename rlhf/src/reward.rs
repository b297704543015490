//! The reward model: which of two replies a person prefers.
//!
//! Bradley-Terry: `loss = -log sigmoid(s_chosen - s_rejected - margin)`, plus `c (s_chosen + s_rejected)^2` that centres the
//! scores (Bradley and Terry 1952; Ouyang et al. 2022, arXiv 2203.02155, equation 1; Eisenstein et al. 2023, arXiv 2312.09244,
//! for centring). The score is a linear map of the hidden state at the last token of a reply, in fp32.

use std::time::Instant;

use datasets::{PreferenceRow, Sampler, SamplerState};
use gemini::{Engine, TrainConfig, checkpoint};
use models::batch::Batch;
use models::scalar_model::ScalarModel;
use parallel::comm::ProcessGroup;
use parallel::{ProcessGroups, Segmented};
use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use crate::config::RewardConfig;
use crate::event::Metrics;
use crate::loss;
use crate::run::StageRun;
use crate::{Error, check};

/// What a reward stage learns from.
pub struct Data<'a> {
    /// Training pairs.
    pub train: &'a [PreferenceRow],
    /// Held-out pairs; may be empty.
    pub eval: &'a [PreferenceRow],
    /// Whether the order is shuffled.
    pub shuffle: bool,
}

#[derive(Serialize, Deserialize)]
struct State {
    sampler: SamplerState,
}

/// Trains `model` on pairs. `train.micro_batch_size` counts pairs.
pub fn train(
    model: &ScalarModel,
    data: &Data<'_>,
    config: &RewardConfig,
    train: &TrainConfig,
    run: &mut StageRun<'_>,
) -> Result<(), Error> {
    if data.train.is_empty() {
        return Err(Error::NoRows { stage: "rm", fix: "look at [data] train and max_length" });
    }
    check_margins(data.train)?;
    let total_steps = train.total_steps(data.train.len());
    let mut engine = Engine::new(model.parameters(), train, total_steps, &run.groups)?;
    let mut sampler = match run.start::<State>(&mut engine, total_steps)? {
        Some(state) => Sampler::resume(data.train.len(), state.sampler)?,
        None => Sampler::new(data.train.len(), run.seed, data.shuffle)?,
    };
    let save = |folder: &std::path::Path| Ok(model.save(folder)?);
    let mut tokens_since_log = 0;
    while engine.step_count() < total_steps {
        let started = Instant::now();
        let pairs: Vec<&PreferenceRow> =
            sampler.next_batch(train.batch_size()).into_iter().map(|row| &data.train[row]).collect();
        let (mut scores, mut tokens) = (PairScores::default(), 0);
        let micro_batches = engine.split_micro_batches(&pairs, train.micro_batch_size);
        let all: usize = pairs.iter().map(|pair| pair.chosen.len() + pair.rejected.len()).sum();
        let aux_loss_coef = model.config().router_aux_loss_coef() / all.max(1) as f64;
        let batches: Vec<Batch> = micro_batches
            .iter()
            .map(|micro| collate(micro, model).with_aux_loss_coef(aux_loss_coef))
            .collect();
        let batches: Vec<&Batch> = batches.iter().collect();
        let total = engine.accumulate(model, &batches, |micro, hidden| {
            let (chosen, rejected) = score_pairs(model, batches[micro], hidden)?;
            tokens += batches[micro].num_real_tokens();
            scores.add(&chosen, &rejected)?;
            let margin = margins(micro_batches[micro], &chosen);
            let loss = loss::reward(&chosen, &rejected, margin.as_ref(), config.center_rewards_coefficient)?;
            Ok::<_, Error>(loss / pairs.len() as f64)
        })?;
        let report = engine.step()?;
        let [total, tokens] = run.groups.loss_group().all_reduce_sum([total, tokens as f64])?;
        tokens_since_log += tokens as u64;
        if run.should_log(report.step, total_steps) {
            let mut metrics = Metrics::default();
            metrics.push("loss", total);
            metrics.push("lr", report.lr);
            metrics.push("grad_norm", report.grad_norm);
            metrics.push("tokens", tokens);
            metrics.push("seconds", started.elapsed().as_secs_f64());
            scores.all_gather(run.groups.loss_group())?.metrics("", &mut metrics);
            run.record_step(report.step, &metrics, std::mem::take(&mut tokens_since_log))?;
        }
        if !data.eval.is_empty() && run.should_evaluate(report.step, total_steps)? {
            let mut metrics = Metrics::default();
            let scores = evaluate(model, data.eval, train.micro_batch_size, &run.groups)?;
            scores.metrics("eval/", &mut metrics);
            run.record_evaluation(report.step, &metrics)?;
        }
        run.save_or_stop(engine.step_count(), &|folder| {
            save(folder)?;
            Ok(checkpoint::save_state(folder, &engine, &State { sampler: sampler.state() })?)
        })?;
    }
    run.finish(&save)
}

/// Scores of pairs, side by side.
#[derive(Clone, Debug, Default)]
pub struct PairScores {
    /// Of the preferred replies.
    pub chosen: Vec<f64>,
    /// Of the others.
    pub rejected: Vec<f64>,
}

impl PairScores {
    fn add(&mut self, chosen: &Tensor, rejected: &Tensor) -> Result<(), Error> {
        let pairs = chosen.numel() as i64;
        self.chosen.extend(check::finite_values("scores of the preferred replies", chosen, pairs)?);
        self.rejected.extend(check::finite_values("scores of the other replies", rejected, pairs)?);
        Ok(())
    }

    /// Those of all ranks of `group`.
    fn all_gather(self, group: &ProcessGroup) -> Result<Self, Error> {
        let (chosen, rejected) =
            (group.all_gather_object(self.chosen)?, group.all_gather_object(self.rejected)?);
        Ok(Self { chosen, rejected })
    }

    /// For each pair 1 when the preferred reply scores higher, 0 when lower, one half for a tie.
    pub fn correct(&self) -> Vec<f64> {
        let right = |(chosen, rejected): (&f64, &f64)| match chosen.total_cmp(rejected) {
            std::cmp::Ordering::Greater => 1.0,
            std::cmp::Ordering::Equal => 0.5,
            std::cmp::Ordering::Less => 0.0,
        };
        self.chosen.iter().zip(&self.rejected).map(right).collect()
    }

    fn metrics(&self, prefix: &str, metrics: &mut Metrics) {
        let count = self.chosen.len().max(1) as f64;
        let mean = |values: &[f64]| values.iter().sum::<f64>() / count;
        metrics.push(&format!("{prefix}accuracy"), mean(&self.correct()));
        metrics.push(&format!("{prefix}margin"), mean(&self.chosen) - mean(&self.rejected));
        metrics.push(&format!("{prefix}chosen_score"), mean(&self.chosen));
        metrics.push(&format!("{prefix}rejected_score"), mean(&self.rejected));
    }
}

/// Scores held-out pairs, which the replicas share.
pub fn evaluate(
    model: &ScalarModel,
    pairs: &[PreferenceRow],
    micro_batch_size: usize,
    groups: &ProcessGroups,
) -> Result<PairScores, Error> {
    let mut scores = PairScores::default();
    for pairs in groups.weight_replicas().round_robin(pairs.chunks(micro_batch_size)) {
        let pairs: Vec<&PreferenceRow> = pairs.iter().collect();
        let batch = collate(&pairs, model);
        let (chosen, rejected) =
            tch::no_grad(|| score_pairs(model, &batch, &model.forward_no_grad(&batch)?))?;
        scores.add(&chosen, &rejected)?;
    }
    scores.all_gather(groups.weight_replicas())
}

/// The score of each row at its last token, `[rows]`, fp32, without a graph.
pub fn score(model: &ScalarModel, rows: &[&[i64]]) -> Result<Tensor, Error> {
    let batch = Batch::new(rows, model.device());
    tch::no_grad(|| last_scores(model, &batch, &model.forward_no_grad(&batch)?))
}

/// All preferred replies first, then all others.
fn collate(pairs: &[&PreferenceRow], model: &ScalarModel) -> Batch {
    let chosen = pairs.iter().map(|pair| pair.chosen.as_slice());
    let rows: Vec<&[i64]> = chosen.chain(pairs.iter().map(|pair| pair.rejected.as_slice())).collect();
    Batch::new(&rows, model.device())
}

fn score_pairs(model: &ScalarModel, batch: &Batch, hidden: &Tensor) -> Result<(Tensor, Tensor), Error> {
    let scores = last_scores(model, batch, hidden)?;
    let half = scores.size()[0] / 2;
    Ok((scores.narrow(0, 0, half), scores.narrow(0, half, half)))
}

fn last_scores(model: &ScalarModel, batch: &Batch, hidden: &Tensor) -> Result<Tensor, Error> {
    let last = Tensor::from_slice(&batch.last_indices()).to_device(hidden.device());
    Ok(model.values(&hidden.index_select(0, &last))?)
}

/// Refuses margins that are no number, before anything is trained on them.
fn check_margins(pairs: &[PreferenceRow]) -> Result<(), Error> {
    let wrong = |pair: &PreferenceRow| pair.margin.filter(|margin| !margin.is_finite());
    match pairs.iter().enumerate().find_map(|(index, pair)| Some((index + 1, wrong(pair)?))) {
        None => Ok(()),
        Some((pair, margin)) => Err(Error::Margin { pair, margin }),
    }
}

fn margins(pairs: &[&PreferenceRow], like: &Tensor) -> Option<Tensor> {
    let margins: Vec<f64> = pairs.iter().map(|pair| pair.margin.unwrap_or(0.0)).collect();
    let any = pairs.iter().any(|pair| pair.margin.is_some());
    any.then(|| Tensor::from_slice(&margins).to_kind(Kind::Float).to_device(like.device()))
}
