//! The learning rate of a step, as a factor of the highest rate.
//!
//! The formulas are those of `transformers.get_scheduler` and `torch.optim.lr_scheduler`, so that
//! learning-rate curves can be compared. With `w` warm-up steps of `n` steps in total, and steps `s` counted
//! from 0, the factor is `s / w` while `s < w`. Then, with `x = (s - w) / (n - w)`, it is
//!
//! | schedule | factor |
//! |---|---|
//! | constant | `1` |
//! | linear | `1 - x` |
//! | cosine | `(1 + cos(pi x)) / 2` |
//! | polynomial | `(1 - x)^p`, `p` = `decay_power` |
//! | `inverse_sqrt` | `sqrt(t / (s - w + t))`, `t = w`, or 10,000 without a warm-up |
//! | `warmup_stable_decay` | `1`; in the last `d` steps `(1 + cos(pi (s - n + d) / d)) / 2` |
//! | exponential | `m^x`, `m` = `min_lr_ratio` |
//! | multistep | `gamma^k` after `k` of the `milestones` |
//! | `one_cycle` | half a cosine from 1/25 to 1, then one down to 1/250,000; no other warm-up |
//!
//! Here `d` is `decay_ratio n`, rounded up. A decay `f` to a lowest factor `m` is `m + (1 - m) f`, but for
//! the last three, whose ends are their own.

use std::f64::consts::PI;

use crate::config::{Scheduler, TrainConfig};

/// The time scale of `inverse_sqrt` without a warm-up.
const TIMESCALE: f64 = 10_000.0;
/// Of `one_cycle`: the first rate and the last one, and the part of the steps in which the rate rises if no
/// warm-up says it.
const ONE_CYCLE_START: f64 = 1.0 / 25.0;
const ONE_CYCLE_END: f64 = ONE_CYCLE_START / 1e4;
const ONE_CYCLE_RISE: f64 = 0.3;

/// The factor for step `step` (from 0) of `total` steps.
pub fn lr_factor(config: &TrainConfig, step: u64, total: u64) -> f64 {
    let warmup = config.warmup(total);
    if config.scheduler == Scheduler::OneCycle {
        return one_cycle(warmup, step, total);
    }
    if step < warmup {
        return step as f64 / warmup as f64;
    }

    let after = (step - warmup) as f64;
    let progress = after / (total.saturating_sub(warmup)).max(1) as f64;
    let lowest = config.min_lr_ratio;
    let decay = match config.scheduler {
        Scheduler::Constant => 1.0,
        Scheduler::Linear => (1.0 - progress).max(0.0),
        Scheduler::Cosine => half_cosine(progress),
        Scheduler::Polynomial => (1.0 - progress).max(0.0).powf(config.decay_power),
        Scheduler::InverseSqrt => {
            let scale = if warmup == 0 { TIMESCALE } else { warmup as f64 };
            (scale / (after + scale)).sqrt()
        }
        Scheduler::WarmupStableDecay => {
            let decay_steps = (config.decay_ratio * total as f64).ceil().max(1.0);
            half_cosine(((step as f64 + decay_steps - total as f64) / decay_steps).max(0.0))
        }
        Scheduler::Exponential => return lowest.powf(progress),
        Scheduler::Multistep => {
            let is_past = |part: &&f64| step as f64 >= (*part * total as f64).ceil();
            return config.gamma.powi(config.milestones.iter().filter(is_past).count() as i32);
        }
        Scheduler::OneCycle => unreachable!("it was computed above"),
    };
    lowest + (1.0 - lowest) * decay
}

/// Half a cosine from 1 to 0, and 0 after it.
fn half_cosine(progress: f64) -> f64 {
    0.5 * (1.0 + (PI * progress.min(1.0)).cos())
}

/// One cycle, whose rate rises until step `warmup`, or in the first part of the steps if that is 0.
fn one_cycle(warmup: u64, step: u64, total: u64) -> f64 {
    let (step, last) = (step as f64, total.max(2) as f64 - 1.0);
    // torch: the step of the highest rate is a fraction.
    let top = if warmup == 0 { ONE_CYCLE_RISE * total as f64 - 1.0 } else { warmup as f64 };
    if step <= top {
        return 1.0 + (ONE_CYCLE_START - 1.0) * half_cosine(step / top);
    }
    ONE_CYCLE_END + (1.0 - ONE_CYCLE_END) * half_cosine((step - top) / (last - top))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(config: &TrainConfig, rates: &[f64]) {
        for (step, rate) in rates.iter().enumerate() {
            let found = lr_factor(config, step as u64, rates.len() as u64);
            assert!((found - rate).abs() < 1e-7, "{:?}, step {step}: {found}, {rate}", config.scheduler);
        }
    }

    fn warmed(scheduler: Scheduler, warmup_steps: u64) -> TrainConfig {
        TrainConfig { scheduler, warmup_steps, ..TrainConfig::default() }
    }

    /// `transformers` 5.23.0: `get_scheduler(name, optimizer, 4, 10)` with lr 1, the rate before each of ten
    /// steps.
    #[test]
    fn rates_equal_those_of_transformers() {
        let cosine = [0.0, 0.25, 0.5, 0.75, 1.0, 0.933_012_7, 0.75, 0.5, 0.25, 0.066_987_3];
        let linear = [0.0, 0.25, 0.5, 0.75, 1.0, 0.833_333_3, 0.666_666_7, 0.5, 0.333_333_3, 0.166_666_7];
        check(&warmed(Scheduler::Cosine, 4), &cosine);
        check(&warmed(Scheduler::Linear, 4), &linear);
        check(&warmed(Scheduler::Constant, 0), &[1.0; 10]);
    }

    /// The same with lr 1 and: `polynomial`, 2 of 8, `{"power": 2.0, "lr_end": 0.1}`; `inverse_sqrt`, 2 and 0
    /// of 8; `warmup_stable_decay`, 2 of 10, `{"num_decay_steps": 4, "min_lr_ratio": 0.1}`.
    #[test]
    fn further_schedules_equal_those_of_transformers() {
        let polynomial =
            TrainConfig { decay_power: 2.0, min_lr_ratio: 0.1, ..warmed(Scheduler::Polynomial, 2) };
        check(&polynomial, &[0.0, 0.5, 1.0, 0.725, 0.5, 0.325, 0.2, 0.125]);
        let warm = [0.0, 0.5, 1.0, 0.816_496_6, 0.5_f64.sqrt(), 0.632_455_5, 0.577_350_3, 0.534_522_5];
        check(&warmed(Scheduler::InverseSqrt, 2), &warm);
        let cold = [1.0, 0.999_95, 0.999_9, 0.999_85, 0.999_800_1, 0.999_750_1, 0.999_700_1, 0.999_650_2];
        check(&warmed(Scheduler::InverseSqrt, 0), &cold);
        // Its warm-up starts at the lowest rate, and ours at 0.
        let stable =
            TrainConfig { decay_ratio: 0.4, min_lr_ratio: 0.1, ..warmed(Scheduler::WarmupStableDecay, 2) };
        check(&stable, &[0.0, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 0.868_198_1, 0.55, 0.231_801_9]);
    }

    /// torch 2.11.0 with lr 1: `ExponentialLR(gamma=0.1 ** (1 / 8))`, `MultiStepLR([4, 7], gamma=0.1)`, and
    /// `OneCycleLR(1.0, 10)`, without and with `pct_start=0.5`.
    #[test]
    fn further_schedules_equal_those_of_torch() {
        let exponential = TrainConfig { min_lr_ratio: 0.1, ..warmed(Scheduler::Exponential, 0) };
        check(
            &exponential,
            &[1.0, 0.749_894_2, 0.562_341_3, 0.421_696_5, 0.316_227_8, 0.237_137_4, 0.177_827_9, 0.133_352_1],
        );
        let multistep = TrainConfig { milestones: vec![0.5, 0.875], ..warmed(Scheduler::Multistep, 0) };
        check(&multistep, &[1.0, 1.0, 1.0, 1.0, 0.1, 0.1, 0.1, 0.01]);
        let rates = [
            0.04,
            0.52,
            1.0,
            0.950_484_6,
            0.811_745_7,
            0.611_262,
            0.388_742,
            0.188_258_3,
            0.049_519_4,
            0.000_004,
        ];
        check(&warmed(Scheduler::OneCycle, 0), &rates);
        let rates = [
            0.04,
            0.180_588_7,
            0.52,
            0.859_411_3,
            1.0,
            0.904_508_5,
            0.654_508_5,
            0.345_491_5,
            0.095_491_5,
            0.000_004,
        ];
        // torch rounds the last four rates above by 4e-7, the end of its cycle.
        let config = warmed(Scheduler::OneCycle, 4);
        for (step, rate) in rates.into_iter().enumerate() {
            assert!((lr_factor(&config, step as u64, 10) - rate).abs() < 4e-6, "{step}");
        }
    }
    /// `transformers` 5.23.0: `get_scheduler("cosine_with_min_lr", optimizer, 3, 10, {"min_lr_rate": 0.1})`.
    /// 3 is a quarter of 10, rounded up.
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
        check(&config, &rates);
        let config = TrainConfig { warmup_steps: 5, ..config };
        assert_eq!(config.warmup(10), 5);
    }
}
