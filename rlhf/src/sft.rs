//! Supervised fine-tuning: next-token cross-entropy on the labelled tokens.
//!
//! `loss = -sum_t log p(y_t | y_<t) / (number of labelled tokens in the full optimizer step)`. Pre-training
//! is the same with a label on every token. A bin is a set of rows that are packed together and count as one
//! row of a micro-batch. Rows never attend to one another, packed or not. This module uses no chat template:
//! rows arrive tokenized, with labels.

use std::path::Path;

use datasets::SftRow;
use datasets::rows::IGNORE_INDEX;
use models::batch::Batch;
use models::causal_lm::CausalLm;
use models::head;
use parallel::pipeline::forward_only;
use parallel::{ProcessGroups, upload};
use tch::{Device, Tensor};

use crate::Error;
use crate::event::Metrics;
use crate::sums::Sums;
use crate::trainer::Objective;

/// The objective of supervised fine-tuning.
pub struct Sft<'a> {
    model: &'a CausalLm,
    train: &'a [SftRow],
    eval: &'a [SftRow],
    /// The row indices of each bin: one row per bin, or the bins of the packer.
    bins: Vec<Vec<usize>>,
}

impl<'a> Sft<'a> {
    /// Creates the objective over the rows of `train`, or over bins of at most `packing` tokens. `eval`
    /// contains the held-out rows and may be empty.
    pub fn new(
        model: &'a CausalLm,
        train: &'a [SftRow],
        eval: &'a [SftRow],
        packing: Option<usize>,
    ) -> Result<Self, Error> {
        Ok(Self { model, train, eval, bins: bins(train, packing)? })
    }

    /// The held-out rows, each in a bin of its own.
    pub(crate) fn eval_bins(&self) -> Vec<Vec<&'a SftRow>> {
        self.eval.iter().map(|row| vec![row]).collect()
    }
}

/// Groups rows into bins and returns the row indices of each bin: one row per bin, or rows packed into bins
/// of at most `packing` tokens.
pub fn bins(rows: &[SftRow], packing: Option<usize>) -> Result<Vec<Vec<usize>>, Error> {
    let lengths: Vec<usize> = rows.iter().map(|row| row.input_ids.len()).collect();
    Ok(match packing {
        Some(max_length) => datasets::pack(&lengths, max_length)?,
        None => (0..rows.len()).map(|row| vec![row]).collect(),
    })
}

impl<'a> Objective for Sft<'a> {
    type Model = CausalLm;
    type Example = Vec<&'a SftRow>;
    /// The predicted tokens.
    type Targets = Tensor;
    /// The labelled tokens of the step.
    type Step = f64;

    fn model(&self) -> &CausalLm {
        self.model
    }

    fn save(&self, folder: &Path) -> Result<(), Error> {
        Ok(self.model.save(folder)?)
    }

    fn num_examples(&self) -> usize {
        self.bins.len()
    }

    fn example(&self, index: usize) -> Vec<&'a SftRow> {
        self.bins[index].iter().map(|&row| &self.train[row]).collect()
    }

    fn content_hash(&self) -> String {
        datasets::rows::content_hash(self.train.iter().flat_map(|row| [&row.input_ids, &row.labels]))
    }

    fn num_tokens(&self, bin: &Vec<&'a SftRow>) -> usize {
        bin.iter().map(|row| row.input_ids.len()).sum()
    }

    fn begin_step(&self, bins: &mut [Vec<&'a SftRow>], _: usize, _: &ProcessGroups) -> Result<f64, Error> {
        Ok(bins.iter().flatten().map(|row| row.num_label_tokens()).sum::<usize>().max(1) as f64)
    }

    fn collate(&self, bins: &[Vec<&'a SftRow>]) -> (Batch, Tensor) {
        collate(&bins.concat(), self.model.device())
    }

    fn loss(&self, tokens: &f64, targets: &Tensor, hidden: &Tensor, _: &mut Sums) -> Result<Tensor, Error> {
        Ok(head::cross_entropy(hidden, self.model.head(), targets, None)? * (1.0 / tokens))
    }

    fn has_eval(&self) -> bool {
        !self.eval.is_empty()
    }

    fn evaluate(&self, micro_batch_size: usize, groups: &ProcessGroups) -> Result<Metrics, Error> {
        evaluate(self.model, self.eval, micro_batch_size, groups)
    }
}

/// Builds the flat batch of some rows and its targets, int64 `[M]`. The hidden state of token `i` predicts
/// label `i + 1`, so the outputs of the batch are the tokens before a label.
fn collate(rows: &[&SftRow], device: Device) -> (Batch, Tensor) {
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
    (Batch::new(&ids, device).with_outputs(&positions), upload(&targets, device))
}

/// Computes mean loss, perplexity and token accuracy over `rows`, which are split over the weight replicas.
pub fn evaluate(
    model: &CausalLm,
    rows: &[SftRow],
    micro_batch_size: usize,
    groups: &ProcessGroups,
) -> Result<Metrics, Error> {
    let (mut loss, mut correct, mut count) = (0.0, 0.0, 0usize);
    let micro_batches: Vec<&[SftRow]> =
        groups.model_replicas().round_robin(rows.chunks(micro_batch_size)).collect();
    let collated =
        micro_batches.into_iter().map(|rows| collate(&rows.iter().collect::<Vec<_>>(), model.device()));
    forward_only::<_, _, Error>(
        model,
        collated,
        |(batch, _)| batch,
        |(_, targets), hidden| {
            let sum = tch::no_grad(|| head::cross_entropy(hidden, model.head(), &targets, None))?;
            loss += sum.double_value(&[]);
            let best = head::argmax(hidden, model.head())?;
            correct += best.eq_tensor(&targets).sum(tch::Kind::Int64).double_value(&[]);
            count += targets.numel();
            Ok(())
        },
    )?;

    let [loss, correct, count] = groups.model_replicas().all_reduce_sum([loss, correct, count as f64])?;
    let count = count.max(1.0);
    let mut metrics = Metrics::default();
    metrics.push("eval/loss", loss / count);
    metrics.push("eval/perplexity", (loss / count).exp());
    metrics.push("eval/accuracy", correct / count);
    Ok(metrics)
}
