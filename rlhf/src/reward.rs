//! The reward model: predicts which of two replies a person prefers.
//!
//! Bradley-Terry loss: `-log sigmoid(s_chosen - s_rejected - margin)`, plus `c (s_chosen + s_rejected)^2` to
//! centre the scores, averaged over the pairs of the optimizer step (Bradley and Terry 1952; Ouyang et al.
//! 2022, arXiv 2203.02155, equation 1; centering: Eisenstein et al. 2023, arXiv 2312.09244). The score is a
//! linear map of the hidden state at the last token of a reply, in fp32.

use std::path::Path;

use datasets::PreferenceRow;
use models::batch::Batch;
use models::scalar_model::ScalarModel;
use parallel::comm::ProcessGroup;
use parallel::pipeline::forward_only;
use parallel::{ProcessGroups, Segmented, upload};
use tch::Tensor;

use crate::config::RmConfig;
use crate::event::Metrics;
use crate::sums::Sums;
use crate::trainer::Objective;
use crate::{Error, check, loss};

/// The objective of a reward model: score the preferred reply of a pair higher than the other.
pub struct Reward<'a> {
    model: &'a ScalarModel,
    train: &'a [PreferenceRow],
    eval: &'a [PreferenceRow],
    config: &'a RmConfig,
}

impl<'a> Reward<'a> {
    /// Creates the objective. `eval` contains the held-out pairs and may be empty. Refuses training margins
    /// that are not finite.
    pub fn new(
        model: &'a ScalarModel,
        train: &'a [PreferenceRow],
        eval: &'a [PreferenceRow],
        config: &'a RmConfig,
    ) -> Result<Self, Error> {
        let bad_margin = |pair: &PreferenceRow| pair.margin.filter(|margin| !margin.is_finite());
        match train.iter().enumerate().find_map(|(index, pair)| Some((index + 1, bad_margin(pair)?))) {
            None => Ok(Self { model, train, eval, config }),
            Some((pair, margin)) => Err(Error::Margin { pair, margin }),
        }
    }
}

impl<'a> Objective for Reward<'a> {
    type Model = ScalarModel;
    type Example = &'a PreferenceRow;
    /// The margin of each pair, `[B]`; `None` if no pair has one.
    type Targets = Option<Tensor>;
    /// The pairs of the step.
    type Step = f64;

    fn model(&self) -> &ScalarModel {
        self.model
    }

    fn save(&self, folder: &Path) -> Result<(), Error> {
        Ok(self.model.save(folder)?)
    }

    fn num_examples(&self) -> usize {
        self.train.len()
    }

    fn example(&self, index: usize) -> &'a PreferenceRow {
        &self.train[index]
    }

    fn content_hash(&self) -> String {
        let margins: Vec<i64> =
            self.train.iter().map(|pair| pair.margin.map_or(0, |margin| margin.to_bits() as i64)).collect();
        let pairs = self.train.iter().flat_map(|pair| [&pair.chosen, &pair.rejected]);
        datasets::rows::content_hash(pairs.chain([&margins]))
    }

    fn num_tokens(&self, pair: &&'a PreferenceRow) -> usize {
        pair.chosen.len() + pair.rejected.len()
    }

    fn begin_step(&self, pairs: &mut [&'a PreferenceRow], _: usize, _: &ProcessGroups) -> Result<f64, Error> {
        Ok(pairs.len() as f64)
    }

    fn collate(&self, pairs: &[&'a PreferenceRow]) -> (Batch, Option<Tensor>) {
        (collate(pairs, self.model), margins(pairs, self.model))
    }

    fn loss(
        &self,
        pairs: &f64,
        margins: &Option<Tensor>,
        hidden: &Tensor,
        sums: &mut Sums,
    ) -> Result<Tensor, Error> {
        let (chosen, rejected) = score_pairs(self.model, hidden)?;
        let mut scores = PairScores::default();
        scores.add(&chosen, &rejected)?;
        scores.add_to(sums);
        let centering = self.config.center_rewards_coefficient;
        let loss = loss::pairwise_reward_loss(&chosen, &rejected, margins.as_ref(), centering)?;
        Ok(loss * (1.0 / pairs))
    }

    fn has_eval(&self) -> bool {
        !self.eval.is_empty()
    }

    fn evaluate(&self, micro_batch_size: usize, groups: &ProcessGroups) -> Result<Metrics, Error> {
        let mut metrics = Metrics::default();
        let mut sums = Sums::default();
        evaluate(self.model, self.eval, micro_batch_size, groups)?.add_to(&mut sums);
        sums.push_means("eval/", &mut metrics);
        Ok(metrics)
    }
}

/// The scores of pairs. Both vectors have one entry per pair.
#[derive(Clone, Debug, Default)]
pub struct PairScores {
    /// Scores of the preferred replies.
    pub chosen: Vec<f64>,
    /// Scores of the other replies.
    pub rejected: Vec<f64>,
}

impl PairScores {
    fn add(&mut self, chosen: &Tensor, rejected: &Tensor) -> Result<(), Error> {
        let pairs = chosen.numel() as i64;
        self.chosen.extend(check::finite_values("scores of the preferred replies", chosen, pairs)?);
        self.rejected.extend(check::finite_values("scores of the other replies", rejected, pairs)?);
        Ok(())
    }

    /// All-gathers the scores of all ranks of `group`.
    fn all_gather(self, group: &ProcessGroup) -> Result<Self, Error> {
        let (chosen, rejected) =
            (group.all_gather_object(self.chosen)?, group.all_gather_object(self.rejected)?);
        Ok(Self { chosen, rejected })
    }

    /// Returns one entry per pair: 1 when the preferred reply scores higher, 0 when it scores lower, 0.5 for
    /// a tie.
    pub fn correct(&self) -> Vec<f64> {
        let value = |(chosen, rejected): (&f64, &f64)| match chosen.total_cmp(rejected) {
            std::cmp::Ordering::Greater => 1.0,
            std::cmp::Ordering::Equal => 0.5,
            std::cmp::Ordering::Less => 0.0,
        };
        self.chosen.iter().zip(&self.rejected).map(value).collect()
    }

    fn add_to(&self, sums: &mut Sums) {
        let margins = self.chosen.iter().zip(&self.rejected).map(|(chosen, rejected)| chosen - rejected);
        sums.extend("accuracy", &self.correct());
        sums.extend("margin", &margins.collect::<Vec<_>>());
        sums.extend("chosen_score", &self.chosen);
        sums.extend("rejected_score", &self.rejected);
    }
}

/// Scores held-out pairs, which are split over the weight replicas, and returns the scores of all pairs.
pub fn evaluate(
    model: &ScalarModel,
    pairs: &[PreferenceRow],
    micro_batch_size: usize,
    groups: &ProcessGroups,
) -> Result<PairScores, Error> {
    let mut scores = PairScores::default();
    let micro_batches: Vec<&[PreferenceRow]> =
        groups.model_replicas().round_robin(pairs.chunks(micro_batch_size)).collect();
    let batches = micro_batches.into_iter().map(|pairs| collate(&pairs.iter().collect::<Vec<_>>(), model));
    forward_only::<_, _, Error>(
        model,
        batches,
        |batch| batch,
        |_, hidden| {
            let (chosen, rejected) = tch::no_grad(|| score_pairs(model, hidden))?;
            scores.add(&chosen, &rejected)
        },
    )?;
    scores.all_gather(groups.model_replicas())
}

/// Computes the score of each row at its last token, `[rows]`, fp32, without gradients.
pub fn score(model: &ScalarModel, rows: &[&[i64]]) -> Result<Tensor, Error> {
    let batch = Batch::new(rows, model.device()).with_last_outputs();
    Ok(tch::no_grad(|| model.values(&model.forward_no_grad(&batch)?))?)
}

/// Builds the batch of the pairs, all preferred replies first, then all other replies. Its outputs are their
/// last tokens.
fn collate(pairs: &[&PreferenceRow], model: &ScalarModel) -> Batch {
    let chosen = pairs.iter().map(|pair| pair.chosen.as_slice());
    let rows: Vec<&[i64]> = chosen.chain(pairs.iter().map(|pair| pair.rejected.as_slice())).collect();
    Batch::new(&rows, model.device()).with_last_outputs()
}

fn score_pairs(model: &ScalarModel, hidden: &Tensor) -> Result<(Tensor, Tensor), Error> {
    let scores = model.values(hidden)?;
    let half = scores.size()[0] / 2;
    Ok((scores.narrow(0, 0, half), scores.narrow(0, half, half)))
}

/// Returns the margins of `pairs`, `[B]`, fp32, with 0 for a pair that has none; `None` if no pair has a
/// margin.
fn margins(pairs: &[&PreferenceRow], model: &ScalarModel) -> Option<Tensor> {
    let margins: Vec<f32> = pairs.iter().map(|pair| pair.margin.unwrap_or(0.0) as f32).collect();
    let any = pairs.iter().any(|pair| pair.margin.is_some());
    any.then(|| upload(&margins, model.device()))
}
