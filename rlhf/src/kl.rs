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
//! As a term of a loss ([`KlLoss`]), the gradient matters and not the value. The gradient of k1 is 0 on
//! average, that of k3 is biased, and that of k2 is the gradient of the KL divergence for tokens that the
//! policy itself sampled (Liu et al. 2025, arXiv 2510.01555). Two remedies are in use: the gradient of k2
//! under the value of another estimate ([`KlGradient::StraightThrough`]), and the ratio to the policy that
//! sampled the tokens as a factor with a gradient ([`KlLoss::importance`]).
//!
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
    /// A log-probability of minus infinity on one side gives a finite estimate if the clamp is finite. On
    /// both sides it gives NaN, which [`token_rewards`](crate::advantage::token_rewards()) refuses with the
    /// index of the token.
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

    /// The same estimates from vectors `[N]` on the host, for rewards, which have no gradient.
    pub fn estimate_f64(self, logprobs: &[f64], reference: &[f64], clamp: f64) -> Result<Vec<f64>, Error> {
        check::length("the reference's log-probabilities", reference.len(), logprobs.len())?;
        let log_ratios = logprobs.iter().zip(reference).map(|(logprob, reference)| logprob - reference);
        let estimate = |log_ratio: f64| match self {
            Self::K1 => log_ratio,
            Self::K2 => log_ratio * log_ratio * 0.5,
            Self::K3 => (-log_ratio).exp_m1() + log_ratio,
            Self::Abs => log_ratio.abs(),
        };
        Ok(log_ratios.map(|log_ratio| estimate(log_ratio.clamp(-clamp, clamp))).collect())
    }
}

/// The KL divergence from the reference as a term of the policy loss.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KlLoss {
    /// The estimator.
    pub estimator: KlEstimator,
    /// The log-ratio is clamped to plus or minus this value, and has no gradient beyond it.
    pub clamp: f64,
    /// The gradient of the estimate.
    pub gradient: KlGradient,
    /// Whether the estimate is multiplied by the ratio of the policy to that of the rollout. Then it is right
    /// for tokens that an older policy sampled. The ratio has a gradient with [`KlGradient::Direct`] (TRL:
    /// `use_bias_correction_kl`; `DeepSeek`-V3.2, arXiv 2512.02556) and is a constant with
    /// [`KlGradient::StraightThrough`], whose gradient is complete without it (OpenRLHF:
    /// `kl.unbiased_gradient`).
    pub importance: bool,
}

/// The gradient of an estimate of the KL divergence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KlGradient {
    /// The gradient of the estimate.
    #[default]
    Direct,
    /// The gradient of k2, whatever the value is an estimate by. verl: `k3+`, `low_var_kl+`.
    StraightThrough,
}

impl KlLoss {
    /// Estimates the KL divergence at each token, `[N]`. Only `logprobs` has a gradient. `old` has the
    /// log-probabilities of the rollout.
    pub fn of_tokens(&self, logprobs: &Tensor, reference: &Tensor, old: &Tensor) -> Result<Tensor, Error> {
        let reference = check::detached_like("the reference's log-probabilities", reference, logprobs)?;
        let old = check::detached_like("the old log-probabilities", old, logprobs)?;
        let logprobs = check::upcast_to_fp32(logprobs);
        let value = self.estimator.estimate(&logprobs, &reference, self.clamp)?;
        let ratio = || (&logprobs - &old).clamp(-self.clamp, self.clamp).exp();
        let (estimate, ratio) = match self.gradient {
            KlGradient::Direct => (value, self.importance.then(ratio)),
            KlGradient::StraightThrough => {
                let k2 = KlEstimator::K2.estimate(&logprobs, &reference, self.clamp)?;
                let without_value = &k2 - k2.detach();
                (without_value + value.detach(), self.importance.then(|| ratio().detach()))
            }
        };
        Ok(match ratio {
            Some(ratio) => estimate * ratio,
            None => estimate,
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

    /// Log-probabilities -1.2, -0.5, -2, -0.1 of the policy and -1, -0.7, -1.5, -0.3 of the reference.
    #[test]
    fn estimates_by_hand() {
        let (logprobs, reference) = ([-1.2, -0.5, -2.0, -0.1], [-1.0, -0.7, -1.5, -0.3]);
        let expected: [(KlEstimator, [f64; 4]); 4] = [
            (KlEstimator::K1, [-0.2, 0.2, -0.5, 0.2]),
            (KlEstimator::K2, [0.02, 0.02, 0.125, 0.02]),
            (KlEstimator::K3, [0.021_402_76, 0.018_730_75, 0.148_721_27, 0.018_730_75]),
            (KlEstimator::Abs, [0.2, 0.2, 0.5, 0.2]),
        ];
        for (estimator, expected) in expected {
            let got = estimator.estimate_f64(&logprobs, &reference, 20.0).unwrap();
            let tensors = [logprobs, reference].map(|values| Tensor::from_slice(&values));
            let of_tensors = check::to_f64_vec(&estimator.estimate(&tensors[0], &tensors[1], 20.0).unwrap());
            for ((got, expected), of_tensor) in got.iter().zip(expected).zip(of_tensors) {
                assert!((got - expected).abs() < 6e-9, "{estimator:?} {got} {expected}");
                assert!((got - of_tensor).abs() < 1e-15, "{estimator:?} {got} {of_tensor}");
            }
        }
        // The clamp, and a probability of 0 on one side.
        let k1 = KlEstimator::K1.estimate_f64(&[-9.0, f64::NEG_INFINITY], &[-1.0, -1.0], 5.0).unwrap();
        assert_eq!(k1, [-5.0, -5.0]);
        let short = KlEstimator::K1.estimate_f64(&[0.0, 0.0], &[0.0], 5.0);
        assert!(matches!(short, Err(Error::Shape { .. })));
    }

    /// Value and gradient of the loss of one token, to which the policy, the reference and the rollout give
    /// these log-probabilities.
    fn loss_of(rule: KlLoss, [policy, reference, old]: [f64; 3]) -> (f64, f64) {
        let logprobs = Tensor::from_slice(&[policy]).set_requires_grad(true);
        let [reference, old] = [reference, old].map(|value| Tensor::from_slice(&[value]));
        let loss = rule.of_tokens(&logprobs, &reference, &old).unwrap();
        loss.sum(None).backward();
        (loss.double_value(&[0]), logprobs.grad().double_value(&[0]))
    }

    #[test]
    fn a_loss_has_the_gradient_that_is_asked_for() {
        // The policy gives the token twice the probability of the reference and half of the rollout's: d is
        // ln 2, k3 is 1/2 - 1 + ln 2 with the slope 1 - 1/2, k2 has the slope ln 2, and the ratio is 1/2.
        let logprobs = [0.25f64.ln(), 0.125f64.ln(), 0.5f64.ln()];
        let (d, k3) = (2f64.ln(), 2f64.ln() - 0.5);
        let cases = [
            (KlGradient::Direct, false, k3, 0.5),
            // The ratio is a factor with a gradient: 1/2 (k3 + 1/2) = d / 2, which is the ratio times d.
            (KlGradient::Direct, true, k3 / 2.0, d / 2.0),
            (KlGradient::StraightThrough, false, k3, d),
            (KlGradient::StraightThrough, true, k3 / 2.0, d / 2.0),
        ];
        for (gradient, importance, value, slope) in cases {
            let rule = KlLoss { estimator: KlEstimator::K3, clamp: 20.0, gradient, importance };
            let (got, got_slope) = loss_of(rule, logprobs);
            assert!((got - value).abs() < 1e-14, "{rule:?} {got} {value}");
            assert!((got_slope - slope).abs() < 1e-14, "{rule:?} {got_slope} {slope}");
        }
    }

    #[test]
    fn a_clamped_loss_has_no_gradient_and_stays_finite() {
        for gradient in [KlGradient::Direct, KlGradient::StraightThrough] {
            for importance in [false, true] {
                let rule = KlLoss { estimator: KlEstimator::K3, clamp: 2.0, gradient, importance };
                // The reference is beyond the clamp on either side, and the rollout where the policy is.
                for (reference, value) in [(-9.0, (-2f64).exp() + 1.0), (-1.0, 2f64.exp() - 3.0)] {
                    let (got, slope) = loss_of(rule, [-5.0, reference, -5.0]);
                    assert!((got - value).abs() < 1e-12, "{rule:?} {got} {value}");
                    let of_ratio = if importance && gradient == KlGradient::Direct { value } else { 0.0 };
                    assert!((slope - of_ratio).abs() < 1e-12, "{rule:?} {slope}");
                }
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
