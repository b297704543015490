//! `kind = "numeric"`: the last number of the reply, or of a part of it, is the one of the row's answer.
//!
//! Two numbers are equal if `|reply - answer| <= tolerance max(1, |answer|)`. What a number is, and what is
//! left out of it, is in `number.rs`. The answer is read in the same way, so it may be a full solution that
//! ends with its number, as in GSM8K.

use crate::answer::{right_answers, unreadable};
use crate::entry::NumericConfig;
use crate::error::Wrong;
use crate::extract::Extractor;
use crate::number;
use crate::score::{Reply, ScoreError};

/// Compares numbers.
#[derive(Debug)]
pub(crate) struct Numeric {
    extractor: Extractor,
    tolerance: f64,
    any_of: bool,
}

impl Numeric {
    pub(crate) fn new(config: &NumericConfig) -> Result<Self, Wrong> {
        if !(config.tolerance.is_finite() && config.tolerance >= 0.0) {
            let problem = format!("is {}", config.tolerance);
            return Err(Wrong::new("tolerance", problem, "give 0, or a small share such as 1e-6"));
        }
        let extractor = Extractor::new(config.extract, &config.pattern)?;
        Ok(Self { extractor, tolerance: config.tolerance, any_of: config.any_of })
    }

    pub(crate) fn score(&self, reply: &Reply<'_>) -> Result<f64, ScoreError> {
        let wanted = self.wanted(reply.answer)?;
        let found = self.number(reply.text)?;
        let equal =
            |wanted: &f64, found: f64| (found - wanted).abs() <= self.tolerance * wanted.abs().max(1.0);
        let right = found.is_some_and(|found| wanted.iter().any(|wanted| equal(wanted, found)));
        Ok(f64::from(right))
    }

    /// The numbers in the answer of a row.
    pub(crate) fn wanted(&self, answer: Option<&str>) -> Result<Vec<f64>, ScoreError> {
        let mut wanted = Vec::new();
        for answer in right_answers(answer, self.any_of)? {
            let number = self.number(&answer)?.or_else(|| number::of(&answer));
            wanted.push(number.ok_or_else(|| unreadable("has no number", &answer))?);
        }
        Ok(wanted)
    }

    /// The number in the part of a text.
    fn number(&self, text: &str) -> Result<Option<f64>, ScoreError> {
        if self.extractor.is_number() {
            return Ok(number::of(text));
        }
        Ok(self.extractor.find(text)?.and_then(|part| number::of(&part)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Extract;
    use crate::hostile_text::hostile_texts;

    fn score(config: &NumericConfig, text: &str, answer: Option<&str>) -> Result<f64, ScoreError> {
        let reply = Reply { prompt: &[], text, answer, tokens: 0, stopped: true };
        Numeric::new(config).unwrap().score(&reply)
    }

    #[test]
    fn the_last_number_counts() {
        let config = NumericConfig::default();
        for (text, answer, expected) in [
            ("He has 3 + 4 = 7 apples.", "7", 1.0),
            ("7 or 8", "7", 0.0),
            ("1,234,567", "1234567", 1.0),
            ("It costs $1,250.00.", "He pays 2 x 625 = 1250.\n#### 1,250", 1.0),
            ("−5", "-5", 1.0),
            ("5", "-5", 0.0),
            (r"\frac{1}{2}", "0.5", 1.0),
            ("seven", "7", 1.0),
            ("4２", "42", 1.0),
            ("no number", "7", 0.0),
            ("1/0", "7", 0.0),
            ("", "0", 0.0),
        ] {
            assert_eq!(score(&config, text, Some(answer)), Ok(expected), "{text:?}");
        }
        assert_eq!(score(&config, "7", None), Err(ScoreError::NoAnswer));
        assert_eq!(score(&config, "7", Some("unknown")).unwrap_err().name(), "unreadable_answer");
        assert_eq!(score(&config, "7", Some("1e999")).unwrap_err().name(), "unreadable_answer");
    }

    #[test]
    fn the_tolerance_is_a_share_above_1_and_a_difference_below() {
        let config = NumericConfig { tolerance: 0.01, ..NumericConfig::default() };
        // 1 % of 200 is 2; below 1 the difference itself may be 0.01.
        for (text, answer, expected) in
            [("202", "200", 1.0), ("202.1", "200", 0.0), ("0.11", "0.1", 1.0), ("0.111", "0.1", 0.0)]
        {
            assert_eq!(score(&config, text, Some(answer)), Ok(expected), "{text}");
        }
        let exact = NumericConfig { tolerance: 0.0, ..NumericConfig::default() };
        assert_eq!(score(&exact, "0.1", Some("1e-1")), Ok(1.0));
        for tolerance in [-1.0, f64::NAN, f64::INFINITY] {
            let config = NumericConfig { tolerance, ..NumericConfig::default() };
            assert_eq!(Numeric::new(&config).unwrap_err().key, "tolerance");
        }
    }

    #[test]
    fn a_part_of_the_reply_can_be_read() {
        let boxed = NumericConfig { extract: Extract::Boxed, any_of: true, ..NumericConfig::default() };
        assert_eq!(score(&boxed, r"\boxed{12\text{ cm}} of 30", Some(r#"["0.12", 12]"#)), Ok(1.0));
        assert_eq!(score(&boxed, "12", Some("[12]")), Ok(0.0));
        let tag = NumericConfig {
            extract: Extract::Pattern,
            pattern: "<answer>(.*?)</answer>".to_owned(),
            ..NumericConfig::default()
        };
        assert_eq!(score(&tag, "<think>1</think><answer>x = 2</answer> 3", Some("2")), Ok(1.0));
    }

    #[test]
    fn odd_texts_have_a_score_or_none() {
        for text in hostile_texts() {
            for (reply, answer) in [(text.as_str(), "7"), ("7", text.as_str())] {
                let score = score(&NumericConfig::default(), reply, Some(answer));
                assert!(score.is_err() || score == Ok(0.0) || score == Ok(1.0), "{text:?}");
            }
        }
    }
}
