//! Whitening: shifts numbers to mean 0 and scales them to variance 1, so that the effective learning rate
//! does not depend on their scale.
//!
//! `x' = (x - mean) / sqrt(variance + 1e-8) [+ mean]`, with the unbiased variance (divided by `n - 1`) as in
//! TRL and verl. `lm-human-preferences` of `OpenAI` and OpenRLHF divide by `n`. Advantages are shifted and
//! scaled; rewards (`whiten_rewards` of TRL) are only scaled. Statistics cover the full rollout, where TRL
//! uses those of one rank. The flag of torchtune's `whiten` has the opposite meaning.

use tch::{Kind, Tensor};

use crate::{Error, check};

/// Added to the variance, against a division by 0.
const EPSILON: f64 = 1e-8;

/// Whitens `values` (any shape). Statistics are computed in fp64; the result has the dtype of `values`, at
/// least fp32. Without `shift_mean` the mean stays as it is. A single number has the variance 0. Refuses an
/// empty tensor and numbers that are not finite.
/// TRL: `masked_whiten`.
pub fn whiten(values: &Tensor, shift_mean: bool) -> Result<Tensor, Error> {
    let count = values.numel() as f64;
    if count == 0.0 {
        return Err(Error::TooFew { what: "whitening", needed: 1, got: 0 });
    }

    let exact = values.detach().to_kind(Kind::Double);
    let mean = exact.mean(Kind::Double).double_value(&[]);
    let deviations = (exact - mean).square().sum(Kind::Double).double_value(&[]);
    let variance = deviations / (count - 1.0).max(1.0);
    if !variance.is_finite() {
        return Err(Error::NotFinite { what: "the variance", index: 0, value: variance });
    }

    let scale = 1.0 / (variance + EPSILON).sqrt();
    let shift = if shift_mean { 0.0 } else { mean };
    Ok((check::upcast_to_fp32(values) - mean) * scale + shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vector(values: &[f64]) -> Tensor {
        Tensor::from_slice(values)
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
