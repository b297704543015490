//! The clipped squared error of the critic.
//!
//! The parent module gives formula and source. The clip limits how far values move from the values of the
//! rollout. The limit is 0.2 in the code of `OpenAI`, TRL, DeepSpeed-Chat and `NeMo` RL, and 0.5 in OpenRLHF
//! and verl.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use super::statistics::sums;
use crate::{Error, check};

/// The value loss of some slots.
#[derive(Debug)]
pub struct ValueLoss {
    /// The sum over the slots, a scalar with a gradient.
    pub loss: Tensor,
    /// Sums for the metrics.
    pub statistics: ValueStatistics,
}

/// Sums over slots. They can be added up over micro-batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ValueStatistics {
    /// Number of slots.
    pub slots: f64,
    /// Sum of the losses.
    pub loss: f64,
    /// Number of slots whose clipped side is the larger. Divided by `slots`, this is `val/clipfrac_avg` of
    /// TRL.
    pub clipped: f64,
    /// Sum of `R`.
    pub returns: f64,
    /// Sum of `R^2`.
    pub returns_squared: f64,
    /// Sum of `R - V`.
    pub error: f64,
    /// Sum of `(R - V)^2`.
    pub error_squared: f64,
}

impl ValueStatistics {
    /// Computes `1 - Var(R - V) / Var(R)`: 1 for a perfect critic, 0 for one that predicts no better than the
    /// mean. `None` when all returns are equal up to the rounding of these sums.
    pub fn explained_variance(&self) -> Option<f64> {
        const ROUNDING: f64 = 1e-12;
        let variance = |squares: f64, sum: f64| squares / self.slots - (sum / self.slots).powi(2);
        let returns = variance(self.returns_squared, self.returns);
        (returns > ROUNDING * self.returns_squared / self.slots)
            .then(|| 1.0 - variance(self.error_squared, self.error) / returns)
    }
}

impl AddAssign for ValueStatistics {
    fn add_assign(&mut self, other: Self) {
        self.slots += other.slots;
        self.loss += other.loss;
        self.clipped += other.clipped;
        self.returns += other.returns;
        self.returns_squared += other.returns_squared;
        self.error += other.error;
        self.error_squared += other.error_squared;
    }
}

/// Computes the value loss of `[N]` slots, with value clipping. `old_values` are the values of the rollout.
/// Only `values` has a gradient.
pub fn value_loss(
    values: &Tensor,
    old_values: &Tensor,
    returns: &Tensor,
    clip: Option<f64>,
) -> Result<ValueLoss, Error> {
    let old_values = check::detached_like("the old values", old_values, values)?;
    let returns = check::detached_like("the returns", returns, values)?;
    let values = check::upcast_to_fp32(values);

    let unclipped = (&values - &returns).square();
    let clipped = match clip {
        Some(clip) => {
            (values.clamp_tensor(Some(&old_values - clip), Some(&old_values + clip)) - &returns).square()
        }
        None => unclipped.shallow_clone(),
    };
    let losses = unclipped.maximum(&clipped) * 0.5;
    let loss = losses.sum(None);

    let error = &returns - &values;
    // In fp32, rounding would give equal returns a variance other than 0.
    let exact_square = |numbers: &Tensor| numbers.to_kind(Kind::Double).square();
    let [slots, loss_sum, clipped, returns, returns_squared, error, error_squared] = sums([
        returns.ones_like(),
        losses,
        clipped.gt_tensor(&unclipped),
        returns.shallow_clone(),
        exact_square(&returns),
        error.shallow_clone(),
        exact_square(&error),
    ]);
    let statistics =
        ValueStatistics { slots, loss: loss_sum, clipped, returns, returns_squared, error, error_squared };
    Ok(ValueLoss { loss, statistics })
}
