//! The KL divergence between policy and reference, and the coefficient of the KL penalty.
//!
//! With `d = log p(a) - log p_ref(a)` for a sampled token `a`, the one-sample estimates of `KL(p || p_ref)`
//! are (Schulman 2020, "Approximating KL divergence"):
//!
//! ```text
//!   k1 = d                  unbiased, high variance; the penalty of Ziegler et al. 2019 (arXiv 1909.08593),
//!                           equation 2
//!   k2 = d^2 / 2            biased, never negative
//!   k3 = exp(-d) - 1 + d    unbiased, never negative
//!   abs = |d|               the default of NeMo-Aligner
//! ```
//! The coefficient of the penalty is fixed or follows a target (Ziegler et al. 2019, section 2.2):
//!
//! ```text
//!   e = clip(KL / target - 1, -0.2, 0.2)        coefficient *= 1 + e n / horizon
//! ```
//! where KL is the mean over sequences of the *sum* over tokens, and n is the number of sequences. (verl uses
//! the mean over tokens instead, with a target of 0.1.) This module uses no rewards.

use serde::{Deserialize, Serialize};
use tch::Tensor;

use crate::{Error, check};

/// The estimator of the KL divergence at one token from its two log-probabilities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KlEstimator {
    /// `d`: the default of most PPO implementations.
    #[default]
    K1,
    /// `d^2 / 2`.
    K2,
    /// `exp(-d) - 1 + d`.
    K3,
    /// `|d|`.
    Abs,
}

impl KlEstimator {
    /// Estimates the KL divergence at each token. Both tensors must have the same shape, which is also the
    /// shape of the result. The result is at least fp32. `d` is clamped to plus or minus `clamp`.
    ///
    /// A log-probability of minus infinity on one side gives a finite estimate if the clamp is finite. On both
    /// sides it gives NaN, which [`crate::advantage::token_rewards`] refuses with the index of the token.
    pub fn estimate(
        self,
        logprobs: &Tensor,
        reference_logprobs: &Tensor,
        clamp: f64,
    ) -> Result<Tensor, Error> {
        check::shape("the reference's log-probabilities", reference_logprobs, &logprobs.size())?;
        let log_ratio = (check::upcast_to_fp32(logprobs) - check::upcast_to_fp32(reference_logprobs))
            .clamp(-clamp, clamp);
        Ok(match self {
            Self::K1 => log_ratio,
            Self::K2 => log_ratio.square() * 0.5,
            Self::K3 => (-&log_ratio).expm1() + log_ratio,
            Self::Abs => log_ratio.abs(),
        })
    }
}

/// The controller of the KL penalty coefficient. Checkpoints contain its serialized form.
/// TRL: `AdaptiveKLController`, `FixedKLController`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum KlController {
    /// The coefficient does not change.
    Fixed {
        /// The coefficient.
        coefficient: f64,
    },
    /// The coefficient rises while the divergence is above the target and falls while it is below.
    Adaptive {
        /// The coefficient of the next rollout.
        coefficient: f64,
        /// The target KL of a full sequence (`OpenAI`: 6).
        target: f64,
        /// Number of sequences over which an error of 1 would double the coefficient (`OpenAI`: 10 000).
        horizon: f64,
    },
}

impl KlController {
    /// Creates an adaptive controller if there is a target, else a fixed one.
    pub fn new(coefficient: f64, target: Option<f64>, horizon: f64) -> Self {
        match target {
            Some(target) => Self::Adaptive { coefficient, target, horizon },
            None => Self::Fixed { coefficient },
        }
    }

    /// Returns the coefficient of the next rollout.
    pub fn coefficient(&self) -> f64 {
        match *self {
            Self::Fixed { coefficient } | Self::Adaptive { coefficient, .. } => coefficient,
        }
    }

    /// Updates the coefficient after `sequences` new sequences whose KL, summed over tokens, was
    /// `sequence_kl_mean` on average.
    pub fn update(&mut self, sequence_kl_mean: f64, sequences: usize) -> Result<(), Error> {
        if !sequence_kl_mean.is_finite() {
            return Err(Error::NotFinite {
                what: "the mean KL of a sequence",
                index: 0,
                value: sequence_kl_mean,
            });
        }
        if let Self::Adaptive { coefficient, target, horizon } = self {
            let error = (sequence_kl_mean / *target - 1.0).clamp(-0.2, 0.2);
            *coefficient *= 1.0 + error * sequences as f64 / *horizon;
        }
        Ok(())
    }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "the expected numbers are exact")]
mod tests {
    use super::*;

    fn estimate(estimator: KlEstimator, difference: f64) -> f64 {
        let zero = Tensor::from_slice(&[0.0f64]);
        let logprobs = Tensor::from_slice(&[difference]);
        estimator.estimate(&logprobs, &zero, 20.0).unwrap().double_value(&[0])
    }

    #[test]
    fn k3_is_exact_for_tiny_differences() {
        // exp(-d) - 1 + d = d^2 / 2 - d^3 / 6 + ..; the plain form loses every digit at 1e-9.
        let got = estimate(KlEstimator::K3, 1e-5);
        let series = 0.5e-10 - 1e-15 / 6.0;
        assert!((got / series - 1.0).abs() < 1e-5, "{got} {series}");
    }

    #[test]
    fn one_impossible_token_gives_a_finite_estimate() {
        for estimator in [KlEstimator::K1, KlEstimator::K2, KlEstimator::K3, KlEstimator::Abs] {
            for difference in [f64::NEG_INFINITY, f64::INFINITY] {
                assert!(estimate(estimator, difference).is_finite(), "{estimator:?} {difference}");
            }
        }
    }

    #[test]
    fn shapes_that_would_broadcast_are_refused() {
        let column = Tensor::zeros([3, 1], tch::kind::FLOAT_CPU);
        let row = Tensor::zeros([3], tch::kind::FLOAT_CPU);
        let error = KlEstimator::K1.estimate(&column, &row, 20.0).unwrap_err();
        assert!(matches!(error, Error::Shape { ref expected, .. } if expected == &[3, 1]), "{error}");
    }

    #[test]
    fn a_controller_survives_a_checkpoint() {
        let mut whole = KlController::new(0.15, Some(6.0), 1e4);
        whole.update(9.0, 512).unwrap();
        let text = serde_json::to_string(&whole).unwrap();
        let mut resumed: KlController = serde_json::from_str(&text).unwrap();
        whole.update(5.4, 512).unwrap();
        resumed.update(5.4, 512).unwrap();
        assert_eq!(whole, resumed);
        assert!(
            serde_json::from_str::<KlController>(r#"{"kind":"fixed","coefficient":1.0,"target":6.0}"#)
                .is_err()
        );
    }

    #[test]
    fn a_fixed_controller_stays_and_a_broken_divergence_is_refused() {
        let mut controller = KlController::new(0.05, None, 1e4);
        controller.update(100.0, 512).unwrap();
        assert_eq!(controller.coefficient(), 0.05);
        assert!(controller.update(f64::NAN, 512).is_err());
    }
}
