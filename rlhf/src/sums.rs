//! The statistics of a step as sums, which micro-batches add up and ranks add to one another.

use parallel::comm::ProcessGroup;

use crate::Error;
use crate::event::Metrics;

/// Sums by name, each with the number of terms. Their means are the metrics of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sums(Vec<(String, f64, f64)>);

impl Sums {
    /// Adds `sum`, a sum of `count` terms, to the sum called `name`.
    pub fn add(&mut self, name: &str, sum: f64, count: usize) {
        self.add_sum(name, sum, count as f64);
    }

    /// Adds every number of `terms` to the sum called `name`.
    pub fn extend(&mut self, name: &str, terms: &[f64]) {
        self.add(name, terms.iter().sum(), terms.len());
    }

    fn add_sum(&mut self, name: &str, sum: f64, count: f64) {
        match self.0.iter_mut().find(|(known, ..)| known == name) {
            Some((_, total, total_count)) => {
                *total += sum;
                *total_count += count;
            }
            None => self.0.push((name.to_owned(), sum, count)),
        }
    }

    /// The sums over the ranks of `group`, all of which call this. A rank without rows has no names of its
    /// own.
    pub fn all_reduce(self, group: &ProcessGroup) -> Result<Self, Error> {
        let mut total = Self::default();
        for (name, sum, count) in group.all_gather_object(self.0)? {
            total.add_sum(&name, sum, count);
        }
        Ok(total)
    }

    /// Adds the mean of every sum to `metrics`, under its name after `prefix`. A sum without terms has no
    /// mean.
    pub fn push_means(&self, prefix: &str, metrics: &mut Metrics) {
        for (name, sum, count) in self.0.iter().filter(|(.., count)| *count > 0.0) {
            metrics.push(&format!("{prefix}{name}"), sum / count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_over_all_terms_and_not_over_micro_batches() {
        let mut sums = Sums::default();
        sums.extend("margin", &[1.0, 2.0, 6.0]);
        sums.add("entropy", 4.0, 2);
        sums.extend("margin", &[-1.0]);
        sums.add("empty", 0.0, 0);
        let mut metrics = Metrics::default();
        sums.push_means("eval/", &mut metrics);
        let expected = [("eval/margin".to_owned(), 2.0), ("eval/entropy".to_owned(), 2.0)];
        assert_eq!(metrics.0, expected);
    }
}
