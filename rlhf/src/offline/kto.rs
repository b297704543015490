//! KTO: single completions, each good or bad (Ethayarajh et al. 2024, arXiv 2402.01306, equation 8).
//!
//! ```text
//!   u   log p(y|x) - log q(y|x); q is the reference
//!   z   max(0, mean of log p(y'|x) - log q(y'|x) over the step), y' the completion of another row
//!   good   w_D (1 - sigmoid(b (u - z)))
//!   bad    w_U (1 - sigmoid(b (z - u)))
//! ```
//! z has no gradient. It is the mean over the full step, so that neither micro-batches nor ranks change it. As
//! in TRL, y' is the completion of the row before in the file, and that of the last row for the first; a row
//! keeps its y' when rows are shuffled, so the reference scores it once. Where rows with one prompt follow each
//! other, y' comes from so many rows before that no row meets its own prompt. Under `apo_zero_unpaired` z is 0.

use datasets::UnpairedRow;
use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use super::{Completions, OfflineLoss, Sequence, StepCounts};
use crate::setting::{not_negative, positive};
use crate::sums::Sums;
use crate::{Error, check};

/// The loss of a completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KtoLoss {
    /// With the baseline z.
    #[default]
    Kto,
    /// Without (D'Oosterlinck et al. 2024, arXiv 2408.06266, equation 7).
    ApoZeroUnpaired,
}

/// The `[kto]` section.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KtoConfig {
    /// The strength of the tie to the reference.
    pub beta: f64,
    /// The loss: `kto`, or `apo_zero_unpaired` without a baseline.
    /// TRL: `loss_type`.
    pub loss: KtoLoss,
    /// The weight of good completions.
    pub desirable_weight: f64,
    /// The weight of bad completions.
    pub undesirable_weight: f64,
}

impl Default for KtoConfig {
    fn default() -> Self {
        Self { beta: 0.1, loss: KtoLoss::Kto, desirable_weight: 1.0, undesirable_weight: 1.0 }
    }
}

impl KtoConfig {
    /// Refuses settings out of bounds.
    pub fn check(&self) -> Result<(), Error> {
        positive("kto", "beta", self.beta)?;
        not_negative("kto", "desirable_weight", self.desirable_weight)?;
        not_negative("kto", "undesirable_weight", self.undesirable_weight)
    }

    /// The loss of each completion, `[B]`, from its log-ratio and the baseline z, both `[B]`, and from
    /// whether it is good.
    pub fn losses(&self, log_ratios: &Tensor, baseline: &Tensor, labels: &[bool]) -> Tensor {
        let of_labels = |good: f64, bad: f64| {
            let values: Vec<f64> = labels.iter().map(|&label| if label { good } else { bad }).collect();
            check::vector_like(&values, log_ratios)
        };
        let differences = match self.loss {
            KtoLoss::Kto => log_ratios - baseline,
            KtoLoss::ApoZeroUnpaired => log_ratios.shallow_clone(),
        };
        // 1 - sigmoid(x) is sigmoid(-x), which is exact where sigmoid(x) rounds to 1.
        let losses = (differences * of_labels(-self.beta, self.beta)).sigmoid();
        losses * of_labels(self.desirable_weight, self.undesirable_weight)
    }
}

/// A completion, and the same prompt with the completion of another row.
#[derive(Clone, Debug)]
pub struct KtoRow {
    row: UnpairedRow,
    mismatched: Vec<i64>,
}

impl KtoRow {
    /// Gives every row the completion of another row, cut to `max_length` tokens with its prompt. Every
    /// completion is used once.
    pub fn of_rows(rows: Vec<UnpairedRow>, max_length: usize) -> Vec<Self> {
        let shift = shift(&rows);
        let mismatched: Vec<Vec<i64>> = (0..rows.len())
            .map(|index| {
                let (row, other) = (&rows[index], &rows[before(index, shift, rows.len())]);
                let completion = &other.input_ids[other.prompt_length..];
                let mut ids = [&row.input_ids[..row.prompt_length], completion].concat();
                ids.truncate(max_length);
                ids
            })
            .collect();
        rows.into_iter().zip(mismatched).map(|(row, mismatched)| Self { row, mismatched }).collect()
    }
}

/// How many rows before a row the completion comes from that does not belong to its prompt: as few as leave
/// no row with its own prompt, or else with the fewest of them.
fn shift(rows: &[UnpairedRow]) -> usize {
    const MOST: usize = 64;
    let prompt = |index: usize| &rows[index].input_ids[..rows[index].prompt_length];
    let meetings = |shift: usize| {
        (0..rows.len()).filter(|&index| prompt(index) == prompt(before(index, shift, rows.len()))).count()
    };
    let shifts = (1..rows.len().min(MOST)).map(|shift| (meetings(shift), shift));
    let mut best = (usize::MAX, 1);
    for found in shifts {
        best = best.min(found);
        if best.0 == 0 {
            break;
        }
    }
    best.1
}

/// The row that is `shift` rows before row `index` of `count`; before the first one comes the last.
fn before(index: usize, shift: usize, count: usize) -> usize {
    (index + count - shift % count) % count
}

/// The algorithm KTO.
#[derive(Clone, Debug)]
pub struct Kto(pub KtoConfig);

impl OfflineLoss for Kto {
    type Row = KtoRow;

    fn has_reference(&self) -> bool {
        true
    }

    fn sequences<'r>(&self, row: &'r KtoRow) -> Vec<Sequence<'r>> {
        vec![Sequence::new(&row.row.input_ids, row.row.prompt_length)]
    }

    fn baseline<'r>(&self, row: &'r KtoRow) -> Vec<Sequence<'r>> {
        match self.0.loss {
            KtoLoss::Kto => vec![Sequence::new(&row.mismatched, row.row.prompt_length)],
            KtoLoss::ApoZeroUnpaired => Vec::new(),
        }
    }

    fn constants(&self, policy: &[f64], reference: &[f64]) -> Vec<Vec<f64>> {
        let sum: f64 = policy.iter().zip(reference).map(|(policy, reference)| policy - reference).sum();
        let baseline = (sum / policy.len() as f64).max(0.0);
        vec![vec![baseline]; policy.len()]
    }

    fn labels(&self, row: &KtoRow) -> Vec<i64> {
        vec![i64::from(row.row.label)]
    }

    fn loss(
        &self,
        completions: &Completions<'_, KtoRow>,
        counts: &StepCounts,
        sums: &mut Sums,
    ) -> Result<Tensor, Error> {
        let labels: Vec<bool> = completions.rows.iter().map(|row| row.row.label).collect();
        let log_ratios = completions.logprobs(0) - completions.reference_logprobs(0);
        let baseline = match self.0.loss {
            KtoLoss::Kto => completions.constants(0),
            KtoLoss::ApoZeroUnpaired => log_ratios.detach().zeros_like(),
        };
        let losses = self.0.losses(&log_ratios, &baseline, &labels);

        let rewards = log_ratios.detach() * self.0.beta;
        let rewards = check::finite_values("rewards", &rewards, labels.len() as i64)?;
        for (wanted, name) in [(true, "rewards/chosen"), (false, "rewards/rejected")] {
            let of_side = rewards.iter().zip(&labels).filter(|(_, label)| **label == wanted);
            sums.extend(name, &of_side.map(|(reward, _)| *reward).collect::<Vec<_>>());
        }
        sums.extend("kl", &check::to_f64_vec(&baseline));
        Ok(losses.sum(Kind::Double) / counts.rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(prompt: i64, completion: i64) -> UnpairedRow {
        UnpairedRow { input_ids: vec![prompt, completion], prompt_length: 1, label: true }
    }

    #[test]
    fn a_row_gets_the_completion_before_it_and_none_of_its_own_prompt() {
        let mismatched = |rows: &[(i64, i64)]| -> Vec<Vec<i64>> {
            let rows = rows.iter().map(|&(prompt, completion)| row(prompt, completion)).collect();
            KtoRow::of_rows(rows, 8).into_iter().map(|row| row.mismatched).collect()
        };
        assert_eq!(mismatched(&[(1, 10), (2, 20), (3, 30)]), [[1, 30], [2, 10], [3, 20]]);
        // Pairs: two rows with one prompt follow each other, and each completion is used once.
        let pairs = mismatched(&[(1, 10), (1, 11), (2, 20), (2, 21)]);
        assert_eq!(pairs, [[1, 20], [1, 21], [2, 10], [2, 11]]);
        // A single prompt has no other one.
        assert_eq!(mismatched(&[(1, 10), (1, 11)]), [[1, 11], [1, 10]]);
        assert_eq!(mismatched(&[(1, 10)]), [[1, 10]]);
    }

    #[test]
    fn the_baseline_is_the_mean_of_the_step_and_not_below_zero() {
        let config = KtoConfig::default();
        let kto = Kto(config);
        assert_eq!(kto.constants(&[-1.0, -2.0], &[-2.0, -4.0]), [[1.5], [1.5]]);
        assert_eq!(kto.constants(&[-3.0, -4.0], &[-2.0, -4.0]), [[0.0], [0.0]]);
    }
}
