//! Learning from given completions: what DPO and its family, KTO, ORPO, `SimPO` and CPO have in common.
//!
//! ```text
//! before the first step   log-probabilities of every sequence under the reference, once    logprobs
//! each step               log-probabilities that the loss needs of the full step      OfflineLoss::baseline
//! each micro-batch        log-probabilities of the completions, then the loss of each row  OfflineLoss::loss
//! ```
//! A loss reads log-probabilities and runs no model. It divides the sum over the rows of a micro-batch by the
//! counts of the full step, so neither the split into micro-batches nor the number of ranks changes it. The
//! log-probabilities of tokens are in fp32; those of sequences are their sums, in fp64, as is the loss.
//!
//! | algorithm | rows | formulas |
//! |---|---|---|
//! | DPO and its family, ORPO, SimPO, CPO | pairs | [`pairs`], [`crate::loss::preference`] |
//! | KTO | single completions, each good or bad | [`kto`] |

pub mod kto;
pub mod pairs;

use std::borrow::Cow;
use std::path::Path;

use models::batch::Batch;
use models::causal_lm::CausalLm;
use models::head;
use parallel::pipeline::forward_only;
use parallel::{ProcessGroups, upload};
use tch::{Kind, Tensor, no_grad};

use crate::event::Metrics;
use crate::sums::Sums;
use crate::trainer::Objective;
use crate::{Error, check};

/// A sequence of tokens, of which a loss reads the completion.
#[derive(Clone, Copy, Debug)]
pub struct Sequence<'a> {
    /// Prompt and completion, `[P + C]`.
    pub ids: &'a [i64],
    /// The number of prompt ids, P.
    pub prompt_length: usize,
    /// Whether the loss reads the log-probabilities of the prompt as well.
    pub reads_prompt: bool,
    /// The number of leading tokens of the completion, and the weight that the log-probabilities of its other
    /// tokens have in that of the completion.
    pub tail: Option<(usize, f64)>,
}

impl<'a> Sequence<'a> {
    /// A sequence whose completion is read, with every token counting alike.
    pub fn new(ids: &'a [i64], prompt_length: usize) -> Self {
        Self { ids, prompt_length, reads_prompt: false, tail: None }
    }

    /// The place of the first token whose log-probability is read. The first token of all has none.
    fn first_target(&self) -> usize {
        if self.reads_prompt { 1 } else { self.completion_start() }
    }

    fn completion_start(&self) -> usize {
        self.prompt_length.max(1)
    }

    /// The number of tokens whose log-probabilities are read.
    pub fn num_targets(&self) -> usize {
        self.ids.len().saturating_sub(self.first_target())
    }

    /// The number of tokens of the completion that have a log-probability.
    pub fn completion_length(&self) -> usize {
        self.ids.len().saturating_sub(self.completion_start())
    }

    /// The log-probability of the completion, a scalar in fp64, from those of the targets, `[T]`.
    pub fn completion_logprob(&self, targets: &Tensor) -> Tensor {
        let (start, length) =
            ((self.num_targets() - self.completion_length()) as i64, self.completion_length());
        let sum = |from: usize, to: usize| {
            targets.narrow(0, start + from as i64, (to - from) as i64).sum(Kind::Double)
        };
        match self.tail {
            Some((shared, weight)) if shared < length => sum(0, shared) + sum(shared, length) * weight,
            _ => sum(0, length),
        }
    }
}

/// An algorithm that learns from given completions: which log-probabilities it reads, and its loss.
pub trait OfflineLoss {
    /// A training row.
    type Row;

    /// Whether the loss compares the policy with a reference model.
    fn has_reference(&self) -> bool;

    /// The sequences of a row that the policy learns from. Every row has as many.
    fn sequences<'r>(&self, row: &'r Self::Row) -> Vec<Sequence<'r>>;

    /// The sequences of a row whose log-probabilities the loss needs of the full step, before any of its
    /// gradients. Every row has as many.
    fn baseline<'r>(&self, _: &'r Self::Row) -> Vec<Sequence<'r>> {
        Vec::new()
    }

    /// For each row of a step, constants of its loss. `policy` and `reference` are the log-probabilities of
    /// the baseline sequences of all rows of the step.
    fn constants(&self, _policy: &[f64], _reference: &[f64]) -> Vec<Vec<f64>> {
        Vec::new()
    }

    /// The number of tokens of a row that a token-wise term of the loss is divided by.
    fn num_tokens(&self, _: &Self::Row) -> usize {
        0
    }

    /// The share of a micro-batch in the loss of its step, a scalar.
    fn loss(
        &self,
        completions: &Completions<'_, Self::Row>,
        counts: &StepCounts,
        sums: &mut Sums,
    ) -> Result<Tensor, Error>;

    /// The numbers of a row beside its tokens, which a resumed run must find unchanged.
    fn labels(&self, _: &Self::Row) -> Vec<i64> {
        Vec::new()
    }

    /// Whether [`Completions::alignment`] is read.
    fn reads_alignment(&self) -> bool {
        false
    }
}

/// What the losses of a step are divided by, over all its rows on all ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepCounts {
    /// The rows.
    pub rows: f64,
    /// The sum of [`OfflineLoss::num_tokens`], at least 1.
    pub tokens: f64,
}

/// Rows, and the log-probabilities of their sequences under the reference.
#[derive(Debug)]
pub struct Rows<'a, R> {
    rows: &'a [R],
    /// For each row those of its sequences, then those of its baseline; empty without a reference.
    reference: Vec<f64>,
}

/// A training row with what its loss is compared with.
#[derive(Debug)]
pub struct Example<'a, R> {
    row: &'a R,
    /// As in [`Rows`].
    reference: Vec<f64>,
    /// See [`OfflineLoss::constants`].
    constants: Vec<f64>,
}

impl<'a, R> Rows<'a, R> {
    /// Rows with the log-probabilities that [`reference_logprobs`] has computed for them.
    pub fn new(rows: &'a [R], reference: Vec<f64>) -> Self {
        Self { rows, reference }
    }

    fn example(&self, index: usize) -> Example<'a, R> {
        let width = self.reference.len() / self.rows.len().max(1);
        let reference = self.reference[index * width..(index + 1) * width].to_vec();
        Example { row: &self.rows[index], reference, constants: Vec::new() }
    }
}

/// The completions of a micro-batch of `B` rows, with their log-probabilities under the policy.
pub struct Completions<'a, R> {
    /// The rows.
    pub rows: Vec<&'a R>,
    sequences: Vec<Sequence<'a>>,
    /// The log-probabilities of the targets of each sequence, each `[T]`, fp32.
    targets: Vec<Tensor>,
    /// Of each completion, `[B, K]` with K sequences for each row, fp64.
    logprobs: Tensor,
    reference: Option<Tensor>,
    constants: Tensor,
    alignment: Option<Tensor>,
}

impl<R> Completions<'_, R> {
    /// `log p(completion | prompt)` of sequence `index` of each row under the policy, `[B]`, with a gradient.
    pub fn logprobs(&self, index: i64) -> Tensor {
        self.logprobs.select(1, index)
    }

    /// The same under the reference, `[B]`; zeros without a reference.
    pub fn reference_logprobs(&self, index: i64) -> Tensor {
        match &self.reference {
            Some(reference) => reference.select(1, index),
            None => self.logprobs(index).detach().zeros_like(),
        }
    }

    /// The number of tokens of the completions of sequence `index`, `[B]`.
    pub fn lengths(&self, index: i64) -> Tensor {
        let of_rows = self.sequences.iter().skip(index as usize).step_by(self.per_row());
        let lengths: Vec<f64> = of_rows.map(|sequence| sequence.completion_length() as f64).collect();
        upload(&lengths, self.logprobs.device())
    }

    /// Constant `index` of each row, `[B]`.
    pub fn constants(&self, index: i64) -> Tensor {
        self.constants.select(1, index)
    }

    /// All constants, each `[B]`.
    pub fn all_constants(&self) -> Vec<Tensor> {
        self.constants.unbind(1)
    }

    /// `log p(y_t) - log sum_v p_v^2`, the mean over the tokens of sequence `index` of each row, `[B]`,
    /// without a gradient.
    pub fn alignment(&self, index: i64) -> Option<Tensor> {
        Some(self.alignment.as_ref()?.select(1, index))
    }

    /// The negated sum of the log-probabilities of all targets of sequence `index`, over the rows, a scalar.
    pub fn negative_log_likelihood(&self, index: i64) -> Tensor {
        let of_rows = self.targets.iter().skip(index as usize).step_by(self.per_row());
        -Tensor::stack(&of_rows.map(|targets| targets.sum(Kind::Double)).collect::<Vec<_>>(), 0).sum(None)
    }

    /// The number of targets of sequence `index`, over the rows.
    pub fn num_targets(&self, index: i64) -> usize {
        let of_rows = self.sequences.iter().skip(index as usize).step_by(self.per_row());
        of_rows.map(Sequence::num_targets).sum()
    }

    fn per_row(&self) -> usize {
        self.sequences.len() / self.rows.len()
    }
}

/// The objective of an offline algorithm.
pub struct Offline<'a, L: OfflineLoss> {
    policy: &'a CausalLm,
    loss: L,
    train: Rows<'a, L::Row>,
    eval: Rows<'a, L::Row>,
}

impl<'a, L: OfflineLoss> Offline<'a, L> {
    /// Creates the objective. `eval` contains the held-out rows and may be empty. Refuses a row with an empty
    /// completion, which has no log-probability for a token.
    pub fn new(
        policy: &'a CausalLm,
        loss: L,
        train: Rows<'a, L::Row>,
        eval: Rows<'a, L::Row>,
    ) -> Result<Self, Error> {
        let is_empty = |row| loss.sequences(row).iter().any(|sequence| sequence.completion_length() == 0);
        match train.rows.iter().chain(eval.rows).position(is_empty) {
            None => Ok(Self { policy, loss, train, eval }),
            Some(index) => Err(Error::EmptyCompletion { row: index + 1 }),
        }
    }
}

/// The inputs of the loss of a micro-batch.
pub struct MicroBatch<'a, R> {
    rows: Vec<&'a R>,
    sequences: Vec<Sequence<'a>>,
    /// The ids of the targets of all sequences, `[M]`.
    targets: Tensor,
    reference: Option<Tensor>,
    constants: Tensor,
}

impl<'a, L: OfflineLoss> Objective for Offline<'a, L> {
    type Model = CausalLm;
    type Example = Example<'a, L::Row>;
    type Targets = MicroBatch<'a, L::Row>;
    type Step = StepCounts;

    fn model(&self) -> &CausalLm {
        self.policy
    }

    fn save(&self, folder: &Path) -> Result<(), Error> {
        Ok(self.policy.save(folder)?)
    }

    fn num_examples(&self) -> usize {
        self.train.rows.len()
    }

    fn example(&self, index: usize) -> Example<'a, L::Row> {
        self.train.example(index)
    }

    fn content_hash(&self) -> String {
        let of_row = |row: &'a L::Row| {
            let ids = self.loss.sequences(row).into_iter().map(|sequence| Cow::Borrowed(sequence.ids));
            ids.chain([Cow::Owned(self.loss.labels(row))])
        };
        datasets::rows::content_hash(self.train.rows.iter().flat_map(of_row))
    }

    fn num_tokens(&self, example: &Example<'a, L::Row>) -> usize {
        self.loss.sequences(example.row).iter().map(|sequence| sequence.ids.len()).sum()
    }

    fn runs_before_step(&self) -> bool {
        self.train.rows.first().is_some_and(|row| !self.loss.baseline(row).is_empty())
    }

    fn begin_step(
        &self,
        examples: &mut [Example<'a, L::Row>],
        micro_batch_size: usize,
        groups: &ProcessGroups,
    ) -> Result<StepCounts, Error> {
        let baseline: Vec<Sequence<'a>> =
            examples.iter().flat_map(|example| self.loss.baseline(example.row)).collect();
        if !baseline.is_empty() {
            let policy = logprobs(self.policy, &baseline, micro_batch_size, groups)?;
            let width = baseline.len() / examples.len();
            // Without a reference there is nothing to skip, and nothing to compare with.
            let of_baseline = |example: &Example<'a, L::Row>| {
                let start = example.reference.len().saturating_sub(width);
                example.reference[start..].to_vec()
            };
            let reference: Vec<f64> = examples.iter().flat_map(of_baseline).collect();
            let constants = self.loss.constants(&policy, &reference);
            for (example, constants) in examples.iter_mut().zip(constants) {
                example.constants = constants;
            }
        }
        let tokens: usize = examples.iter().map(|example| self.loss.num_tokens(example.row)).sum();
        Ok(StepCounts { rows: examples.len() as f64, tokens: tokens.max(1) as f64 })
    }

    fn collate(&self, examples: &[Example<'a, L::Row>]) -> (Batch, MicroBatch<'a, L::Row>) {
        let device = self.policy.device();
        let sequences: Vec<Sequence<'a>> =
            examples.iter().flat_map(|example| self.loss.sequences(example.row)).collect();
        let (batch, targets) = collate(&sequences, self.policy);
        let (count, per_row) = (examples.len() as i64, (sequences.len() / examples.len().max(1)) as i64);
        let matrix = |rows: Vec<f64>, width: i64| upload(&rows, device).view([count, width]);

        let reference = self.loss.has_reference().then(|| {
            let of_row = |example: &Example<'_, L::Row>| example.reference[..per_row as usize].to_vec();
            matrix(examples.iter().flat_map(of_row).collect(), per_row)
        });
        let constants: Vec<f64> = examples.iter().flat_map(|example| example.constants.clone()).collect();
        let width = constants.len() as i64 / count.max(1);
        let constants = matrix(constants, width);
        let rows = examples.iter().map(|example| example.row).collect();
        (batch, MicroBatch { rows, sequences, targets, reference, constants })
    }

    fn loss(
        &self,
        counts: &StepCounts,
        micro_batch: &MicroBatch<'a, L::Row>,
        hidden: &Tensor,
        sums: &mut Sums,
    ) -> Result<Tensor, Error> {
        // Experts on several ranks need a micro-batch on each of them, also without rows.
        if micro_batch.rows.is_empty() {
            let none = head::logprobs(hidden, self.policy.head(), &micro_batch.targets, 1.0)?.logprobs;
            return Ok(none.sum(Kind::Double));
        }
        let completions = self.completions(micro_batch, hidden, sums)?;
        self.loss.loss(&completions, counts, sums)
    }

    fn has_eval(&self) -> bool {
        !self.eval.rows.is_empty()
    }

    fn evaluate(&self, micro_batch_size: usize, groups: &ProcessGroups) -> Result<Metrics, Error> {
        let mut examples: Vec<_> = (0..self.eval.rows.len()).map(|index| self.eval.example(index)).collect();
        let counts = self.begin_step(&mut examples, micro_batch_size, groups)?;
        let replicas = groups.model_replicas();
        let micro_batches: Vec<&[Example<'_, L::Row>]> =
            replicas.round_robin(examples.chunks(micro_batch_size)).collect();

        let mut sums = Sums::default();
        forward_only::<_, _, Error>(
            self.policy,
            micro_batches.into_iter().map(|examples| self.collate(examples)),
            |(batch, _)| batch,
            |(_, micro_batch), hidden| {
                let share = no_grad(|| self.loss(&counts, &micro_batch, hidden, &mut sums))?;
                // The shares add up to the loss, which is the mean over the rows.
                sums.add("loss", share.double_value(&[]) * counts.rows, micro_batch.rows.len());
                Ok(())
            },
        )?;
        let mut metrics = Metrics::default();
        sums.all_reduce(replicas)?.push_means("eval/", &mut metrics);
        Ok(metrics)
    }
}

impl<'a, L: OfflineLoss> Offline<'a, L> {
    /// Computes the log-probabilities of a micro-batch from its last hidden states, and adds the entropy to
    /// `sums`.
    fn completions(
        &self,
        micro_batch: &MicroBatch<'a, L::Row>,
        hidden: &Tensor,
        sums: &mut Sums,
    ) -> Result<Completions<'a, L::Row>, Error> {
        let MicroBatch { rows, sequences, targets, reference, constants } = micro_batch;
        let found = head::logprobs(hidden, self.policy.head(), targets, 1.0)?;
        sums.add("entropy", found.entropy.sum(Kind::Double).double_value(&[]), targets.numel());

        let of_tokens = split(&found.logprobs, sequences);
        let logprobs = completion_logprobs(&of_tokens, sequences)?;
        let shape = [rows.len() as i64, -1];
        let alignment = if self.loss.reads_alignment() {
            let squares = split(&head::log_sum_of_squares(hidden, self.policy.head())?, sequences);
            let mean = |(tokens, squares): (&Tensor, &Tensor)| (tokens.detach() - squares).mean(Kind::Double);
            let means: Vec<Tensor> = of_tokens.iter().zip(&squares).map(mean).collect();
            Some(Tensor::stack(&means, 0).view(shape))
        } else {
            None
        };
        Ok(Completions {
            rows: rows.clone(),
            sequences: sequences.clone(),
            targets: of_tokens,
            logprobs: logprobs.view(shape),
            reference: reference.as_ref().map(Tensor::shallow_clone),
            constants: constants.shallow_clone(),
            alignment,
        })
    }
}

/// The log-probabilities of the completions of `sequences` under `model`, in their order. The weight replicas
/// share the sequences, and all of them get all results. No gradients.
pub fn logprobs(
    model: &CausalLm,
    sequences: &[Sequence<'_>],
    micro_batch_size: usize,
    groups: &ProcessGroups,
) -> Result<Vec<f64>, Error> {
    let replicas = groups.model_replicas();
    let micro_batches: Vec<(usize, &[Sequence<'_>])> =
        replicas.round_robin(sequences.chunks(micro_batch_size).enumerate()).collect();
    let collated = micro_batches.into_iter().map(|(index, sequences)| {
        let (batch, targets) = collate(sequences, model);
        (batch, targets, index, sequences)
    });

    let mut found: Vec<(usize, Vec<f64>)> = Vec::new();
    forward_only::<_, _, Error>(
        model,
        collated,
        |(batch, ..)| batch,
        |(_, targets, index, sequences), hidden| {
            let tokens = no_grad(|| head::logprobs(hidden, model.head(), &targets, 1.0))?.logprobs;
            let logprobs = completion_logprobs(&split(&tokens, sequences), sequences)?;
            found.push((index, check::to_f64_vec(&logprobs)));
            Ok(())
        },
    )?;
    let mut all = replicas.all_gather_object(found)?;
    all.sort_by_key(|(index, _)| *index);
    Ok(all.into_iter().flat_map(|(_, logprobs)| logprobs).collect())
}

/// The log-probabilities of `rows` under `reference`, in the layout of [`Rows`].
pub fn reference_logprobs<L: OfflineLoss>(
    loss: &L,
    rows: &[L::Row],
    reference: &CausalLm,
    micro_batch_size: usize,
    groups: &ProcessGroups,
) -> Result<Vec<f64>, Error> {
    logprobs(reference, &reference_sequences(loss, rows), micro_batch_size, groups)
}

/// The sequences that [`reference_logprobs`] scores.
pub fn reference_sequences<'a, L: OfflineLoss>(loss: &L, rows: &'a [L::Row]) -> Vec<Sequence<'a>> {
    rows.iter().flat_map(|row| [loss.sequences(row), loss.baseline(row)]).flatten().collect()
}

/// Builds the flat batch of some sequences, whose outputs are the tokens before the targets, and the ids of
/// the targets, int64 `[M]`.
fn collate(sequences: &[Sequence<'_>], model: &CausalLm) -> (Batch, Tensor) {
    let ids: Vec<&[i64]> = sequences.iter().map(|sequence| sequence.ids).collect();
    let (mut outputs, mut targets, mut offset) = (Vec::new(), Vec::new(), 0);
    for sequence in sequences {
        let places = sequence.first_target()..sequence.ids.len();
        outputs.extend(places.clone().map(|place| (offset + place - 1) as i64));
        targets.extend_from_slice(&sequence.ids[places]);
        offset += sequence.ids.len();
    }
    let device = model.device();
    (Batch::new(&ids, device).with_outputs(&outputs), upload(&targets, device))
}

/// Splits numbers of the targets of all sequences, `[M]`, by sequence.
fn split(numbers: &Tensor, sequences: &[Sequence<'_>]) -> Vec<Tensor> {
    let lengths: Vec<i64> = sequences.iter().map(|sequence| sequence.num_targets() as i64).collect();
    numbers.split_with_sizes(lengths, 0)
}

/// The log-probabilities of completions, `[S]` in fp64, from those of their targets. Each is a sum of its
/// own, which no other sequence changes. Refuses numbers that are not finite.
fn completion_logprobs(targets: &[Tensor], sequences: &[Sequence<'_>]) -> Result<Tensor, Error> {
    let of_sequence = |(targets, sequence): (&Tensor, &Sequence<'_>)| sequence.completion_logprob(targets);
    let logprobs = Tensor::stack(&targets.iter().zip(sequences).map(of_sequence).collect::<Vec<_>>(), 0);
    check::finite_values("log-probabilities of completions", &logprobs, sequences.len() as i64)?;
    Ok(logprobs)
}
