//! Whitening: shifts numbers to mean 0 and scales them to variance 1, so that the effective learning rate
//! does not depend on their scale.
//!
//! `x' = (x - mean) / sqrt(variance + epsilon) [+ mean]`. Advantages are shifted and scaled; rewards
//! (`whiten_rewards` of TRL) are only scaled. Statistics cover the full rollout, where TRL uses those of one
//! rank. The flag of torchtune's `whiten` has the opposite meaning.

use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use crate::{Error, check};

/// What the squared deviations of `n` numbers are divided by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Variance {
    /// `n - 1`: TRL, verl.
    #[default]
    Unbiased,
    /// `n`: `lm-human-preferences` of `OpenAI`, OpenRLHF.
    Biased,
}

/// How numbers are whitened.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Whitening {
    /// The variance that the numbers are scaled by.
    pub variance: Variance,
    /// Added to the variance, against a division by 0.
    pub epsilon: f64,
}

impl Default for Whitening {
    fn default() -> Self {
        Self { variance: Variance::Unbiased, epsilon: 1e-8 }
    }
}

/// Whitens `values` (any shape). Statistics are computed in fp64; the result has the dtype of `values`, at
/// least fp32. Without `shift_mean` the mean stays as it is. A single number has the variance 0. Refuses an
/// empty tensor and numbers that are not finite.
/// TRL: `masked_whiten`.
pub fn whiten(values: &Tensor, shift_mean: bool, whitening: Whitening) -> Result<Tensor, Error> {
    let count = values.numel() as f64;
    if count == 0.0 {
        return Err(Error::TooFew { what: "whitening", needed: 1, got: 0 });
    }

    let exact = values.detach().to_kind(Kind::Double);
    let mean = exact.mean(Kind::Double).double_value(&[]);
    let deviations = (exact - mean).square().sum(Kind::Double).double_value(&[]);
    let variance = match whitening.variance {
        Variance::Unbiased => deviations / (count - 1.0).max(1.0),
        Variance::Biased => deviations / count,
    };
    if !variance.is_finite() {
        return Err(Error::NotFinite { what: "the variance", index: 0, value: variance });
    }

    let scale = 1.0 / (variance + whitening.epsilon).sqrt();
    let shift = if shift_mean { 0.0 } else { mean };
    Ok((check::upcast_to_fp32(values) - mean) * scale + shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vector(values: &[f64]) -> Tensor {
        Tensor::from_slice(values)
    }

    fn whiten(values: &Tensor, shift_mean: bool) -> Result<Tensor, Error> {
        super::whiten(values, shift_mean, Whitening::default())
    }

    #[test]
    fn a_biased_variance_and_an_epsilon_by_hand() {
        // The deviations are -1 and 1: a biased variance of 1, and an unbiased one of 2.
        let by = |variance, epsilon| {
            let whitened =
                super::whiten(&vector(&[2.0, 4.0]), true, Whitening { variance, epsilon }).unwrap();
            whitened.double_value(&[1])
        };
        assert!((by(Variance::Biased, 0.0) - 1.0).abs() < 1e-12);
        assert!((by(Variance::Unbiased, 0.0) - 0.5f64.sqrt()).abs() < 1e-12);
        assert!((by(Variance::Unbiased, 2.0) - 0.5).abs() < 1e-12);
    }

    #[test]
    fn whitened_numbers_have_mean_zero_and_variance_one() {
        let values = vector(&[3.0, -1.0, 4.0, 1.0, -5.0, 9.0, 2.0]) * 1e3 + 1e6;
        let moments = |values: &Tensor| {
            (values.mean(Kind::Double).double_value(&[]), values.var(true).double_value(&[]))
        };
        let (mean, variance) = moments(&whiten(&values, true).unwrap());
        assert!(mean.abs() < 1e-9 && (variance - 1.0).abs() < 1e-9, "{mean} {variance}");
        let (scaled_mean, variance) = moments(&whiten(&values, false).unwrap());
        assert!(
            (scaled_mean - moments(&values).0).abs() < 1e-6 && (variance - 1.0).abs() < 1e-6,
            "{scaled_mean} {variance}"
        );
    }

    #[test]
    fn equal_numbers_become_zero_and_none_are_refused() {
        assert_eq!(check::to_f64_vec(&whiten(&vector(&[2.5; 4]), true).unwrap()), [0.0; 4]);
        assert_eq!(check::to_f64_vec(&whiten(&vector(&[3.0]), true).unwrap()), [0.0]);
        assert_eq!(check::to_f64_vec(&whiten(&vector(&[3.0]), false).unwrap()), [3.0]);
        assert!(whiten(&vector(&[]), true).is_err());
        assert!(whiten(&vector(&[1.0, f64::NAN]), true).is_err());
    }
}
