//! The learning rate of a step, as a factor of the highest rate.
//!
//! The formulas are those of `transformers.get_scheduler`, so that learning-rate curves can be compared. With
//! `w` warm-up steps of `n` steps in total, and steps `s` counted from 0: `s / w` while `s < w`; then 1
//! (constant), `(n - s) / (n - w)` (linear), or `(1 + cos(pi (s - w) / (n - w))) / 2` (cosine). A decay `d` to a
//! lowest factor `m` is `m + (1 - m) d`.

use crate::config::{Scheduler, TrainConfig};

/// The factor for step `step` (from 0) of `total` steps.
pub fn lr_factor(config: &TrainConfig, step: u64, total: u64) -> f64 {
    let warmup = config.warmup(total);
    if step < warmup {
        return step as f64 / warmup as f64;
    }
    let progress = (step - warmup) as f64 / (total.saturating_sub(warmup)).max(1) as f64;
    let decay = match config.scheduler {
        Scheduler::Constant => 1.0,
        Scheduler::Linear => (1.0 - progress).max(0.0),
        Scheduler::Cosine => (0.5 * (1.0 + (std::f64::consts::PI * progress).cos())).max(0.0),
    };
    config.min_lr_ratio + (1.0 - config.min_lr_ratio) * decay
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
            let config = TrainConfig { warmup_steps: 4, ..TrainConfig::default() };
            let rate = |scheduler| lr_factor(&TrainConfig { scheduler, ..config.clone() }, step as u64, 10);
            assert!((rate(Scheduler::Cosine) - cosine[step]).abs() < 1e-7);
            assert!((rate(Scheduler::Linear) - linear[step]).abs() < 1e-7);
        }
        let constant = TrainConfig { scheduler: Scheduler::Constant, ..TrainConfig::default() };
        assert!((lr_factor(&constant, 9, 10) - 1.0).abs() < f64::EPSILON);
    }

    /// `transformers` 5.23.0: `get_scheduler("cosine_with_min_lr", optimizer, 3, 10, {"min_lr_rate": 0.1})`. 3 is
    /// a quarter of 10, rounded up.
    #[test]
    fn a_warm_up_by_a_ratio_and_a_lowest_rate_are_those_of_transformers() {
        let config = TrainConfig { warmup_ratio: 0.25, min_lr_ratio: 0.1, ..TrainConfig::default() };
        let rates = [
            0.0,
            0.333_333_3,
            0.666_666_7,
            1.0,
            0.955_436,
            0.830_570_4,
            0.650_134_4,
            0.449_865_6,
            0.269_429_6,
            0.144_564,
        ];
        for (step, rate) in rates.into_iter().enumerate() {
            assert!((lr_factor(&config, step as u64, 10) - rate).abs() < 1e-7, "{step}");
        }
        let config = TrainConfig { warmup_steps: 5, ..config };
        assert_eq!(config.warmup(10), 5);
    }
}
