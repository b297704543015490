//! `kind = "length"`: the length of the reply in tokens, `n`, beside a target or a maximum.
//!
//! With a target, the score is 1 at the target and falls by 1 over `tolerance` tokens on both sides:
//!
//! ```text
//! max(0, 1 - |n - target| / tolerance)
//! ```
//!
//! With a maximum, the score is 0 up to it and falls to -1 over the next `tolerance` tokens:
//!
//! ```text
//! -min(1, max(0, n - max) / tolerance)
//! ```
//!
//! The second is the soft overlong punishment of DAPO (Yu et al. 2025, arXiv 2503.14476, equation 13), with
//! `L_cache = tolerance` and `L_max = max + tolerance`.

use crate::entry::LengthConfig;
use crate::error::Wrong;
use crate::score::Reply;

/// Scores lengths.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Length {
    limit: Limit,
    tolerance: f64,
}

#[derive(Clone, Copy, Debug)]
enum Limit {
    Target(f64),
    Max(f64),
}

impl Length {
    pub(crate) fn new(config: &LengthConfig) -> Result<Self, Wrong> {
        let limit = match (config.target, config.max) {
            (Some(target), None) => Limit::Target(target as f64),
            (None, Some(max)) => Limit::Max(max as f64),
            (None, None) => {
                let problem = "is missing, and so is `max`";
                return Err(Wrong::new("target", problem, "give one of them, in tokens"));
            }
            (Some(_), Some(_)) => {
                let problem = "stands beside `max`, and a reply cannot be scored by both";
                return Err(Wrong::new("target", problem, "leave one of them out, or write two entries"));
            }
        };
        let wrong = |problem: String| {
            let fix = "give the number of tokens over which the score falls by 1, more than 0";
            Wrong::new("tolerance", problem, fix)
        };
        let tolerance = config.tolerance.ok_or_else(|| wrong("is missing".to_owned()))?;
        if !(tolerance.is_finite() && tolerance > 0.0) {
            return Err(wrong(format!("is {tolerance}")));
        }
        Ok(Self { limit, tolerance })
    }

    pub(crate) fn score(self, reply: &Reply<'_>) -> f64 {
        let length = reply.tokens as f64;
        match self.limit {
            Limit::Target(target) => (1.0 - (length - target).abs() / self.tolerance).max(0.0),
            // Not -0 for a reply that is short enough.
            Limit::Max(max) => 0.0 - ((length - max).max(0.0) / self.tolerance).min(1.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn score(config: &LengthConfig, tokens: usize) -> f64 {
        let reply = Reply { prompt: &[], text: "字", answer: None, tokens, stopped: false };
        Length::new(config).unwrap().score(&reply)
    }

    #[test]
    fn the_score_falls_on_both_sides_of_a_target() {
        let config = LengthConfig { target: Some(100), max: None, tolerance: Some(40.0) };
        for (tokens, expected) in
            [(100, 1.0), (90, 0.75), (110, 0.75), (60, 0.0), (0, 0.0), (usize::MAX, 0.0)]
        {
            assert_eq!(score(&config, tokens), expected, "{tokens}");
        }
    }

    #[test]
    fn the_score_falls_above_a_maximum() {
        let config = LengthConfig { target: None, max: Some(100), tolerance: Some(40.0) };
        for (tokens, expected) in
            [(0, 0.0), (100, 0.0), (110, -0.25), (140, -1.0), (141, -1.0), (usize::MAX, -1.0)]
        {
            assert_eq!(score(&config, tokens), expected, "{tokens}");
        }
        assert!(score(&config, 7).is_sign_positive());
    }

    #[test]
    fn settings_are_checked() {
        for (target, max, tolerance, key) in [
            (None, None, Some(1.0), "target"),
            (Some(1), Some(2), Some(1.0), "target"),
            (Some(1), None, Some(0.0), "tolerance"),
            (Some(1), None, Some(-1.0), "tolerance"),
            (None, Some(1), Some(f64::NAN), "tolerance"),
        ] {
            assert_eq!(Length::new(&LengthConfig { target, max, tolerance }).unwrap_err().key, key);
        }
        let problem = |tolerance| {
            let config = LengthConfig { target: Some(1), max: None, tolerance };
            Length::new(&config).unwrap_err().problem
        };
        assert_eq!((problem(None), problem(Some(0.0))), ("is missing".to_owned(), "is 0".to_owned()));
    }
}
