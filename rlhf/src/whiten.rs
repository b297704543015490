//! Numbers shifted to mean 0 and scaled to variance 1, so that their size does not choose the learning rate.
//!
//! `x' = (x - mean) / sqrt(variance + 1e-8) [+ mean]` over the entries that a mask leaves.
//!
//! | peer | variance | entries |
//! |---|---|---|
//! | `OpenAI` `lm-human-preferences` | biased | all, padding too |
//! | TRL, verl | unbiased | masked, of one rank (TRL) |
//! | OpenRLHF | biased | masked, of the whole rollout |
//!
//! Advantages are shifted, rewards (TRL's `whiten_rewards`) are only scaled. torchtune's `whiten` takes its flag the wrong way
//! round. Moments of parts merge exactly (Chan, Golub and `LeVeque` 1983, equation 2.1), so ranks need to exchange three numbers.

use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use crate::{Error, check};

/// Added to the variance.
const EPSILON: f64 = 1e-8;

/// What the sum of squared deviations is divided by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Variance {
    /// `n - 1`: TRL, verl.
    #[default]
    Unbiased,
    /// `n`: `OpenAI`, OpenRLHF.
    Biased,
}

/// Count, mean and sum of squared deviations of some numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moments {
    /// How many numbers.
    pub count: f64,
    /// Their mean.
    pub mean: f64,
    /// The sum of `(x - mean)^2`.
    pub deviations: f64,
}

impl Moments {
    /// Of the entries of `values` (any shape) where `mask` (the same shape) is not zero, computed in fp64.
    pub fn of(values: &Tensor, mask: Option<&Tensor>) -> Result<Self, Error> {
        let kept = keep(values, mask)?;
        let count = kept.numel() as f64;
        if count == 0.0 {
            return Ok(Self::default());
        }
        let mean = kept.mean(Kind::Double);
        let deviations = (kept - &mean).square().sum(Kind::Double).double_value(&[]);
        Ok(Self { count, mean: mean.double_value(&[]), deviations })
    }

    /// Of both together.
    #[must_use]
    pub fn merge(self, other: Self) -> Self {
        let count = self.count + other.count;
        if count == 0.0 {
            return self;
        }
        let distance = other.mean - self.mean;
        Self {
            count,
            mean: self.mean + distance * other.count / count,
            deviations: self.deviations
                + other.deviations
                + distance * distance * self.count * other.count / count,
        }
    }

    /// Of one number it is 0 in either form: nothing deviates. Refuses no numbers at all, and numbers that
    /// are not finite.
    pub fn variance(&self, variance: Variance) -> Result<f64, Error> {
        if self.count < 1.0 {
            return Err(Error::TooFew { what: "whitening", needed: 1, got: 0 });
        }
        let divisor = match variance {
            Variance::Unbiased => (self.count - 1.0).max(1.0),
            Variance::Biased => self.count,
        };
        let value = self.deviations / divisor;
        if value.is_finite() {
            Ok(value)
        } else {
            Err(Error::NotFinite { what: "the variance", index: 0, value })
        }
    }
}

fn keep(values: &Tensor, mask: Option<&Tensor>) -> Result<Tensor, Error> {
    let values = values.detach().to_kind(Kind::Double);
    let Some(mask) = mask else { return Ok(values) };
    check::shape("the mask", mask, &values.size())?;
    Ok(values.masked_select(&mask.ne(0.0)))
}

/// Whitens `values` (any shape) over the entries where `mask` is not zero; the others become 0. Without `shift_mean` the mean
/// is left where it was. At least fp32.
pub fn whiten(
    values: &Tensor,
    mask: Option<&Tensor>,
    variance: Variance,
    shift_mean: bool,
) -> Result<Tensor, Error> {
    whiten_with(values, mask, &Moments::of(values, mask)?, variance, shift_mean)
}

/// The same with moments from elsewhere: those of all ranks, say.
pub fn whiten_with(
    values: &Tensor,
    mask: Option<&Tensor>,
    moments: &Moments,
    variance: Variance,
    shift_mean: bool,
) -> Result<Tensor, Error> {
    let scale = 1.0 / (moments.variance(variance)? + EPSILON).sqrt();
    let back = if shift_mean { 0.0 } else { moments.mean };
    let whitened = (check::widen(values) - moments.mean) * scale + back;
    match mask {
        Some(mask) => {
            check::shape("the mask", mask, &values.size())?;
            Ok(whitened.masked_fill(&mask.eq(0.0), 0.0))
        }
        None => Ok(whitened),
    }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "the expected numbers are exact")]
mod tests {
    use super::*;

    fn vector(values: &[f64]) -> Tensor {
        Tensor::from_slice(values)
    }

    #[test]
    fn whitened_numbers_have_mean_zero_and_variance_one() {
        let values = vector(&[3.0, -1.0, 4.0, 1.0, -5.0, 9.0, 2.0]) * 1e3 + 1e6;
        for variance in [Variance::Unbiased, Variance::Biased] {
            let whitened = whiten(&values, None, variance, true).unwrap();
            let moments = Moments::of(&whitened, None).unwrap();
            assert!(moments.mean.abs() < 1e-9, "{moments:?}");
            assert!((moments.variance(variance).unwrap() - 1.0).abs() < 1e-9, "{moments:?}");
            let scaled = whiten(&values, None, variance, false).unwrap();
            assert!(
                (Moments::of(&scaled, None).unwrap().mean - Moments::of(&values, None).unwrap().mean).abs()
                    < 1e-6
            );
        }
    }

    #[test]
    fn masked_entries_count_for_nothing() {
        let dense = whiten(&vector(&[1.0, 2.0, 6.0]), None, Variance::Unbiased, true).unwrap();
        let values = vector(&[1.0, f64::NAN, 2.0, 6.0, 1e9]);
        let mask = vector(&[1.0, 0.0, 1.0, 1.0, 0.0]);
        let masked = check::read(&whiten(&values, Some(&mask), Variance::Unbiased, true).unwrap());
        let dense = check::read(&dense);
        assert_eq!(masked, [dense[0], 0.0, dense[1], dense[2], 0.0]);
    }

    #[test]
    fn moments_of_ranks_merge_to_those_of_the_whole() {
        let values = [0.3, -2.0, 5.0, 1.0, 4.0, 4.0, -7.0];
        let whole = Moments::of(&vector(&values), None).unwrap();
        for cut in 0..=values.len() {
            let (left, right) = values.split_at(cut);
            let of = |part: &[f64]| Moments::of(&vector(part), None).unwrap();
            let merged = of(left).merge(of(right));
            assert_eq!(merged.count, whole.count);
            assert!((merged.mean - whole.mean).abs() < 1e-14);
            assert!((merged.deviations - whole.deviations).abs() < 1e-12);
        }
    }

    #[test]
    fn equal_numbers_become_zero_and_none_are_refused() {
        let zeros = whiten(&vector(&[2.5; 4]), None, Variance::Unbiased, true).unwrap();
        assert_eq!(check::read(&zeros), [0.0; 4]);
        for variance in [Variance::Unbiased, Variance::Biased] {
            assert_eq!(check::read(&whiten(&vector(&[3.0]), None, variance, true).unwrap()), [0.0]);
            assert_eq!(check::read(&whiten(&vector(&[3.0]), None, variance, false).unwrap()), [3.0]);
        }
        assert!(whiten(&vector(&[]), None, Variance::Biased, true).is_err());
        assert!(whiten(&vector(&[1.0, f64::NAN]), None, Variance::Biased, true).is_err());
    }
}
