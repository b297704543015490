//! The learning rate of a step, as a factor of the highest rate.
//!
//! The formulas are those of `transformers.get_scheduler`, so that learning-rate curves can be compared. With
//! `w` warm-up steps of `n` steps in total, and steps `s` counted from 0: `s / w` while `s < w`; then 1
//! (constant), `(n - s) / (n - w)` (linear), or `(1 + cos(pi (s - w) / (n - w))) / 2` (cosine).

use crate::config::Scheduler;

/// The factor for step `step` (from 0) of `total` steps.
pub fn lr_factor(scheduler: Scheduler, step: u64, warmup: u64, total: u64) -> f64 {
    if step < warmup {
        return step as f64 / warmup as f64;
    }
    let progress = (step - warmup) as f64 / (total.saturating_sub(warmup)).max(1) as f64;
    match scheduler {
        Scheduler::Constant => 1.0,
        Scheduler::Linear => (1.0 - progress).max(0.0),
        Scheduler::Cosine => (0.5 * (1.0 + (std::f64::consts::PI * progress).cos())).max(0.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `transformers` 5.23.0: `get_scheduler(name, optimizer, 4, 10)` with lr 1, the rate before each of ten
    /// steps.
    #[test]
    fn rates_equal_those_of_transformers() {
        let cosine = [0.0, 0.25, 0.5, 0.75, 1.0, 0.933_012_7, 0.75, 0.5, 0.25, 0.066_987_3];
        let linear = [0.0, 0.25, 0.5, 0.75, 1.0, 0.833_333_3, 0.666_666_7, 0.5, 0.333_333_3, 0.166_666_7];
        for step in 0..10 {
            let rate = |scheduler| lr_factor(scheduler, step as u64, 4, 10);
            assert!((rate(Scheduler::Cosine) - cosine[step]).abs() < 1e-7);
            assert!((rate(Scheduler::Linear) - linear[step]).abs() < 1e-7);
        }
        assert!((lr_factor(Scheduler::Constant, 9, 4, 10) - 1.0).abs() < f64::EPSILON);
    }
}
