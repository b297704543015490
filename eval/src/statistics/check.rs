//! Checks of the numbers that statistics are computed from.

use crate::Error;

pub(super) fn check_finite(values: &[f64]) -> Result<(), Error> {
    match values.iter().enumerate().find(|(_, value)| !value.is_finite()) {
        Some((item, &got)) => Err(Error::NotFinite { field: format!("the value of item {item}"), got }),
        None => Ok(()),
    }
}

/// The largest sum of counts. Counts are summed one by one in places, and beyond it that takes too long.
const MOST_COUNTED: u64 = 1_000_000_000_000;

/// The sum of `counts`, which are `what`.
pub(super) fn total(what: &'static str, counts: &[u64]) -> Result<u64, Error> {
    let sum: u128 = counts.iter().map(|&count| u128::from(count)).sum();
    u64::try_from(sum).ok().filter(|&sum| sum <= MOST_COUNTED).ok_or_else(|| {
        let (field, fix) = (format!("the number of {what}"), "check the file that the counts come from");
        Error::OutOfRange { field, got: sum as f64, low: 0.0, high: MOST_COUNTED as f64, fix }
    })
}

/// The sum of weights, each of which must be above 0.
pub(super) fn total_weight(weights: impl Iterator<Item = f64>) -> Result<f64, Error> {
    let mut sum = 0.0;
    for (index, got) in weights.enumerate() {
        if !(got > 0.0 && got.is_finite()) {
            let (field, fix) = (format!("weight {index}"), "leave out what does not count");
            return Err(Error::OutOfRange { field, got, low: 0.0, high: f64::INFINITY, fix });
        }
        sum += got;
    }
    Ok(sum)
}
