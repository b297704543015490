//! Pairs of a chosen and a rejected completion, under any [`PreferenceLoss`].

use datasets::PreferenceRow;
use tch::{Kind, Tensor};

use super::{Completions, OfflineLoss, Sequence, StepCounts};
use crate::loss::preference::{Pairs, PreferenceLoss, Side};
use crate::sums::Sums;
use crate::{Error, check};

/// The completions of a pair, in this order.
const CHOSEN: i64 = 0;
const REJECTED: i64 = 1;

/// An offline algorithm that learns from pairs.
#[derive(Clone, Debug)]
pub struct Pairwise<L>(pub L);

impl<L: PreferenceLoss> OfflineLoss for Pairwise<L> {
    type Row = PreferenceRow;

    fn has_reference(&self) -> bool {
        self.0.has_reference()
    }

    fn sequences<'r>(&self, row: &'r PreferenceRow) -> Vec<Sequence<'r>> {
        let [mut chosen, mut rejected] =
            [&row.chosen, &row.rejected].map(|ids| Sequence::new(ids, row.prompt_length));
        let shared = chosen.completion_length().min(rejected.completion_length());
        let tail = self.0.tail_weight().map(|weight| (shared, weight));
        (chosen.tail, rejected.tail) = (tail, tail);
        chosen.reads_prompt = self.0.nll().is_some_and(|nll| nll.reads_prompt);
        vec![chosen, rejected]
    }

    fn baseline<'r>(&self, row: &'r PreferenceRow) -> Vec<Sequence<'r>> {
        if self.0.compares_pairs() { self.sequences(row) } else { Vec::new() }
    }

    fn constants(&self, policy: &[f64], reference: &[f64]) -> Vec<Vec<f64>> {
        let without = vec![0.0; policy.len()];
        self.0.constants(policy, if reference.is_empty() { &without } else { reference })
    }

    fn num_tokens(&self, row: &PreferenceRow) -> usize {
        self.sequences(row)[CHOSEN as usize].num_targets()
    }

    fn reads_alignment(&self) -> bool {
        self.0.reads_alignment()
    }

    fn loss(
        &self,
        completions: &Completions<'_, PreferenceRow>,
        counts: &StepCounts,
        sums: &mut Sums,
    ) -> Result<Tensor, Error> {
        let side = |index| Side {
            logprobs: completions.logprobs(index),
            reference: completions.reference_logprobs(index),
            lengths: completions.lengths(index),
            alignment: completions.alignment(index),
        };
        let constants = completions.all_constants();
        let pairs = Pairs { chosen: side(CHOSEN), rejected: side(REJECTED), constants };

        let mut loss = self.0.losses(&pairs).sum(Kind::Double) / counts.rows;
        if let Some(nll) = self.0.nll() {
            let sum = completions.negative_log_likelihood(CHOSEN);
            sums.add("nll", sum.double_value(&[]), completions.num_targets(CHOSEN));
            loss += sum * (nll.weight / counts.tokens);
        }
        self.add_metrics(&pairs, sums)?;
        Ok(loss)
    }
}

impl<L: PreferenceLoss> Pairwise<L> {
    /// TRL: the metrics of `DPOTrainer`. Equal rewards count half in the accuracy.
    fn add_metrics(&self, pairs: &Pairs, sums: &mut Sums) -> Result<(), Error> {
        let [chosen, rejected] = self.0.rewards(pairs);
        let count = chosen.numel() as i64;
        let chosen = check::finite_values("rewards of chosen completions", &chosen.detach(), count)?;
        let rejected = check::finite_values("rewards of rejected completions", &rejected.detach(), count)?;
        let margins: Vec<f64> =
            chosen.iter().zip(&rejected).map(|(chosen, rejected)| chosen - rejected).collect();
        let wins: Vec<f64> =
            margins.iter().map(|&margin| if margin == 0.0 { 0.5 } else { f64::from(margin > 0.0) }).collect();

        sums.extend("rewards/accuracies", &wins);
        sums.extend("rewards/margins", &margins);
        sums.extend("rewards/chosen", &chosen);
        sums.extend("rewards/rejected", &rejected);
        sums.extend("logps/chosen", &check::to_f64_vec(&pairs.chosen.logprobs));
        sums.extend("logps/rejected", &check::to_f64_vec(&pairs.rejected.logprobs));
        Ok(())
    }
}
