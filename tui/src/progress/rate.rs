//! The speed of a stage, from its most recent steps.
//!
//! The time per step is the median over the window. An evaluation, a checkpoint or a slow first step
//! therefore does not disturb the estimate of the remaining time, which covers steps only. Tokens per second
//! are the mean over the same window, including pauses, because that is the throughput the user gets.

use std::collections::VecDeque;
use std::time::Duration;

use text::number::median;

/// Number of updates in the window.
const WINDOW: usize = 64;

/// One update: its number of steps and tokens, and the time they took.
#[derive(Clone, Copy, Debug)]
struct Interval {
    steps: u64,
    tokens: u64,
    seconds: f64,
}

/// The most recent intervals between updates.
#[derive(Clone, Debug, Default)]
pub(super) struct Rate {
    recent: VecDeque<Interval>,
}

impl Rate {
    pub(super) fn record(&mut self, steps: u64, tokens: u64, elapsed: Duration) {
        if self.recent.len() == WINDOW {
            self.recent.pop_front();
        }
        self.recent.push_back(Interval { steps, tokens, seconds: elapsed.as_secs_f64() });
    }

    /// Median seconds per step, or `None` before the first step.
    pub(super) fn seconds_per_step(&self) -> Option<f64> {
        let stepped = self.recent.iter().filter(|interval| interval.steps > 0);
        median(stepped.map(|interval| interval.seconds / interval.steps as f64).collect())
    }

    /// Mean tokens per second, or `None` if no tokens were counted.
    pub(super) fn tokens_per_second(&self) -> Option<f64> {
        let tokens: u64 = self.recent.iter().map(|interval| interval.tokens).sum();
        let seconds: f64 = self.recent.iter().map(|interval| interval.seconds).sum();
        (tokens > 0 && seconds > 0.0).then(|| tokens as f64 / seconds)
    }

    /// Estimated time for `steps` more steps.
    pub(super) fn time_for(&self, steps: u64) -> Option<Duration> {
        // Capped at about a century, because a `Duration` cannot hold an infinite time.
        let seconds = (self.seconds_per_step()? * steps as f64).min(3.2e9);
        Some(Duration::from_secs_f64(seconds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    #[test]
    fn a_pause_does_not_move_the_time_left() {
        let mut rate = Rate::default();
        assert_eq!(rate.time_for(10), None);
        for elapsed in [9.0, 0.5, 0.5, 30.0, 0.5] {
            rate.record(1, 100, seconds(elapsed));
        }
        assert_eq!(rate.time_for(10), Some(seconds(5.0)));
        // 500 tokens in 40.5 s.
        assert!((rate.tokens_per_second().unwrap() - 500.0 / 40.5).abs() < 1e-9);
    }

    #[test]
    fn several_steps_in_one_update_share_its_time() {
        let mut rate = Rate::default();
        rate.record(10, 0, seconds(5.0));
        rate.record(1, 0, seconds(1.5));
        assert_eq!(rate.seconds_per_step(), Some(1.0));
        assert_eq!(rate.tokens_per_second(), None);
    }

    #[test]
    fn old_steps_are_forgotten() {
        let mut rate = Rate::default();
        for _ in 0..WINDOW {
            rate.record(1, 1, seconds(10.0));
        }
        for _ in 0..WINDOW {
            rate.record(1, 1, seconds(1.0));
        }
        assert_eq!(rate.seconds_per_step(), Some(1.0));
        assert_eq!(rate.tokens_per_second(), Some(1.0));
    }
}
