//! Correlation of two measurements of the same items, such as the scores of a judge and of a person.
//!
//! [`pearson`] is `sum (x - mx)(y - my) / sqrt(sum (x - mx)² sum (y - my)²)`: 1 on a rising line.
//! [`spearman`] is Pearson's coefficient of the ranks, and equal values share the average of their ranks
//! (Spearman 1904, American Journal of Psychology 15, p. 72): 1 on any rising curve. This file does not know
//! what was measured.

use super::check::check_finite;
use crate::Error;

/// Pearson's correlation coefficient, from -1 to 1.
pub fn pearson(left: &[f64], right: &[f64]) -> Result<f64, Error> {
    check(left, right)?;
    let (left, right) = (deviations(left), deviations(right));
    let product = |left: &[f64], right: &[f64]| -> f64 { left.iter().zip(right).map(|(x, y)| x * y).sum() };
    let scale = (product(&left, &left) * product(&right, &right)).sqrt();
    Ok((product(&left, &right) / scale).clamp(-1.0, 1.0))
}

/// Spearman's rank correlation coefficient, from -1 to 1.
pub fn spearman(left: &[f64], right: &[f64]) -> Result<f64, Error> {
    check(left, right)?;
    pearson(&ranks(left), &ranks(right))
}

fn check(left: &[f64], right: &[f64]) -> Result<(), Error> {
    if left.len() != right.len() {
        return Err(Error::Lengths { what: "a correlation", left: left.len(), right: right.len() });
    }
    if left.len() < 2 {
        return Err(Error::TooFew { what: "a correlation", needed: 2, got: left.len() });
    }
    for values in [left, right] {
        check_finite(values)?;
        if values.iter().all(|value| value == &values[0]) {
            return Err(Error::NoSpread { what: "a correlation", got: values[0] });
        }
    }
    Ok(())
}

/// The differences from the mean, scaled to at most 1 so that no square overflows or vanishes.
fn deviations(values: &[f64]) -> Vec<f64> {
    let largest = values.iter().fold(0.0_f64, |largest, value| largest.max(value.abs()));
    let scaled = values.iter().map(|value| value / largest);
    let mean = scaled.clone().sum::<f64>() / values.len() as f64;
    let deviations: Vec<f64> = scaled.map(|value| value - mean).collect();
    let widest = deviations.iter().fold(0.0_f64, |widest, deviation| widest.max(deviation.abs()));
    deviations.iter().map(|deviation| deviation / widest).collect()
}

/// The rank of each value, from 1; equal values share the average of their ranks.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut ascending: Vec<usize> = (0..values.len()).collect();
    ascending.sort_by(|&left, &right| values[left].total_cmp(&values[right]));
    let mut ranks = vec![0.0; values.len()];
    let mut below = 0;
    for equal in ascending.chunk_by(|&left, &right| values[left] == values[right]) {
        let average = below as f64 + f64::midpoint(1.0, equal.len() as f64);
        for &index in equal {
            ranks[index] = average;
        }
        below += equal.len();
    }
    ranks
}
