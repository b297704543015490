//! Whitening: shifts numbers to mean 0 and scales them to variance 1, so that the effective learning rate
//! does not depend on their scale.
//!
//! `x' = (x - mean) / sqrt(variance + epsilon) [+ mean]`. Advantages are shifted and scaled; rewards
//! (`whiten_rewards` of TRL) are only scaled. Statistics cover the full rollout, where TRL uses those of one
//! rank. The flag of torchtune's `whiten` has the opposite meaning. This module does not know what the
//! numbers are, and is told which of them count.

use serde::{Deserialize, Serialize};

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
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
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

/// Whitens `values`. With `counted` (as long as `values`), the statistics are over the counted numbers, and
/// the others stay as they are. Without `shift_mean` the mean stays as it is. A single number has the variance 0. Refuses to whiten no numbers, and numbers that are counted
/// and not finite.
/// TRL, verl: `masked_whiten`.
pub fn whiten(
    values: &[f64],
    counted: Option<&[bool]>,
    shift_mean: bool,
    whitening: Whitening,
) -> Result<Vec<f64>, Error> {
    if let Some(counted) = counted {
        check::length("the numbers that whitening counts", counted.len(), values.len())?;
    }
    let is_counted = |index: usize| counted.is_none_or(|counted| counted[index]);
    let (mut chosen, mut indices) = (Vec::new(), Vec::new());
    for (index, &value) in values.iter().enumerate().filter(|&(index, _)| is_counted(index)) {
        if !value.is_finite() {
            return Err(Error::NotFinite { what: "the numbers to whiten", index, value });
        }
        chosen.push(value);
        indices.push(index);
    }
    let count = chosen.len() as f64;
    if chosen.is_empty() {
        return Err(Error::TooFew { what: "whitening", needed: 1, got: 0 });
    }

    let mean = chosen.iter().sum::<f64>() / count;
    let deviations: f64 = chosen.iter().map(|value| (value - mean).powi(2)).sum();
    let variance = match whitening.variance {
        Variance::Unbiased => deviations / (count - 1.0).max(1.0),
        Variance::Biased => deviations / count,
    };
    check::finite("the variance", &[variance])?;

    let scale = 1.0 / (variance + whitening.epsilon).sqrt();
    let shift = if shift_mean { 0.0 } else { mean };
    let mut whitened = values.to_vec();
    for index in indices {
        whitened[index] = (values[index] - mean) * scale + shift;
    }
    Ok(whitened)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whiten_all(values: &[f64], shift_mean: bool) -> Result<Vec<f64>, Error> {
        whiten(values, None, shift_mean, Whitening::default())
    }

    fn moments(values: &[f64]) -> (f64, f64) {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        (mean, values.iter().map(|value| (value - mean) * (value - mean)).sum::<f64>() / (count - 1.0))
    }

    #[test]
    fn a_biased_variance_and_an_epsilon_by_hand() {
        // The deviations are -1 and 1: a biased variance of 1, and an unbiased one of 2.
        let by =
            |variance, epsilon| whiten(&[2.0, 4.0], None, true, Whitening { variance, epsilon }).unwrap()[1];
        assert!((by(Variance::Biased, 0.0) - 1.0).abs() < 1e-12);
        assert!((by(Variance::Unbiased, 0.0) - 0.5f64.sqrt()).abs() < 1e-12);
        assert!((by(Variance::Unbiased, 2.0) - 0.5).abs() < 1e-12);
    }

    #[test]
    fn whitened_numbers_have_mean_zero_and_variance_one() {
        let values = [3.0, -1.0, 4.0, 1.0, -5.0, 9.0, 2.0].map(|value| value * 1e3 + 1e6);
        let (mean, variance) = moments(&whiten_all(&values, true).unwrap());
        assert!(mean.abs() < 1e-9 && (variance - 1.0).abs() < 1e-9, "{mean} {variance}");
        let (scaled_mean, variance) = moments(&whiten_all(&values, false).unwrap());
        assert!(
            (scaled_mean - moments(&values).0).abs() < 1e-6 && (variance - 1.0).abs() < 1e-6,
            "{scaled_mean} {variance}"
        );
    }

    #[test]
    fn numbers_that_are_not_counted_change_nothing_and_stay() {
        let counted = [true, false, true, false];
        let whitening = Whitening { variance: Variance::Biased, epsilon: 0.0 };
        // The counted numbers are 2 and 4. What is between them may be anything.
        let got = whiten(&[2.0, 0.0, 4.0, f64::NAN], Some(&counted), true, whitening).unwrap();
        assert_eq!(got[..3], [-1.0, 0.0, 1.0]);
        assert!(got[3].is_nan());
        let error = whiten(&[2.0, 0.0, f64::NAN, 0.0], Some(&counted), true, whitening).unwrap_err();
        assert!(matches!(error, Error::NotFinite { index: 2, .. }), "{error}");
        assert!(matches!(whiten(&[1.0, 2.0], Some(&counted), true, whitening), Err(Error::Shape { .. })));
    }

    #[test]
    fn equal_numbers_become_zero_and_none_are_refused() {
        assert_eq!(whiten_all(&[2.5; 4], true).unwrap(), [0.0; 4]);
        assert_eq!(whiten_all(&[3.0], true).unwrap(), [0.0]);
        assert_eq!(whiten_all(&[3.0], false).unwrap(), [3.0]);
        assert!(matches!(whiten_all(&[], true), Err(Error::TooFew { .. })));
        assert!(matches!(
            whiten(&[1.0], Some(&[false]), true, Whitening::default()),
            Err(Error::TooFew { .. })
        ));
    }
}
