//! One metric by step: its points, its newest values and its smoothed form.
//!
//! Smoothing is an exponential moving average without the bias of its beginning: with the weight `w`, `s_t =
//! (1 - w) sum_i w^i x_(t-i) / (1 - w^t)`, as in TensorBoard. A value that is not finite is a gap, and the
//! average goes on behind it.

use text::number::median;

/// The weights of the smoothing levels; the first weight smooths nothing.
pub(super) const SMOOTHING: [f64; 8] = [0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99];

/// The values of one metric.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// The name of the metric.
    pub name: String,
    /// Pairs of step and value, in the order of the rows.
    pub points: Vec<(f64, f64)>,
}

impl Series {
    /// A metric with its first value.
    pub fn new(name: String, step: u64, value: f64) -> Self {
        Self { name, points: vec![(step as f64, value)] }
    }

    /// Appends a value.
    pub fn push(&mut self, step: u64, value: f64) {
        self.points.push((step as f64, value));
    }

    /// The newest value.
    pub fn last(&self) -> Option<f64> {
        self.points.last().map(|point| point.1)
    }

    /// The number of values that are not finite.
    pub(super) fn gaps(&self) -> usize {
        self.points.iter().filter(|point| !point.1.is_finite()).count()
    }

    /// The finite ones of the newest `count` values.
    fn newest(&self, count: usize) -> Vec<f64> {
        let from = self.points.len().saturating_sub(count);
        self.points[from..].iter().map(|point| point.1).filter(|value| value.is_finite()).collect()
    }

    /// The mean of the newest `count` values.
    pub(super) fn mean_of_last(&self, count: usize) -> Option<f64> {
        mean(&self.newest(count))
    }

    /// The mean of the first `count` values.
    pub(super) fn mean_of_first(&self, count: usize) -> Option<f64> {
        let first: Vec<f64> =
            self.points.iter().take(count).map(|point| point.1).filter(|value| value.is_finite()).collect();
        mean(&first)
    }

    /// The median of the newest `count` values.
    pub(super) fn median_of_last(&self, count: usize) -> Option<f64> {
        median(self.newest(count))
    }

    /// The mean of the newest `window` values minus the mean of the `window` values before them.
    pub(super) fn change(&self, window: usize) -> Option<f64> {
        let cut = self.points.len().checked_sub(window)?;
        let before = self.points[..cut].iter().rev().take(window).map(|point| point.1);
        let before: Vec<f64> = before.filter(|value| value.is_finite()).collect();
        Some(self.mean_of_last(window)? - mean(&before)?)
    }

    /// The points, smoothed with `weight`.
    pub(super) fn smoothed(&self, weight: f64) -> Vec<(f64, f64)> {
        let (mut sum, mut total) = (0.0, 0.0);
        let smooth = |&(step, value): &(f64, f64)| {
            if !value.is_finite() {
                return (step, value);
            }
            sum = weight * sum + (1.0 - weight) * value;
            total = weight * total + (1.0 - weight);
            (step, sum / total)
        };
        self.points.iter().map(smooth).collect()
    }
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(values: &[f64]) -> Series {
        let mut series = Series::new("x".to_owned(), 1, values[0]);
        (2..).zip(&values[1..]).for_each(|(step, &value)| series.push(step, value));
        series
    }

    #[test]
    fn the_change_compares_the_last_window_with_the_one_before() {
        let rising = series(&[1.0, 3.0, 5.0, 7.0, f64::NAN]);
        // (7) - (3 + 5) / 2, because the newest value is no number.
        assert_eq!(rising.change(2), Some(3.0));
        assert_eq!(rising.change(5), None);
        // The newest value is no number, and 5 and 7 are left.
        assert_eq!(rising.median_of_last(3), Some(6.0));
    }

    #[test]
    fn smoothing_has_no_bias_at_its_beginning_and_goes_on_behind_a_gap() {
        let smooth = series(&[2.0, 4.0, f64::NAN, 4.0]).smoothed(0.5);
        assert_eq!(smooth[0], (1.0, 2.0));
        // (0.5 * 1 + 0.5 * 4) / (0.5 * 0.5 + 0.5)
        assert!((smooth[1].1 - 10.0 / 3.0).abs() < 1e-12);
        assert!(smooth[2].1.is_nan());
        // (0.5 * 2.5 + 0.5 * 4) / (0.5 * 0.75 + 0.5)
        assert!((smooth[3].1 - 3.25 / 0.875).abs() < 1e-12);
    }
}
