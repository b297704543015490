//! `kind = "exact"`: a part of the reply is the answer of the row, letter for letter.
//!
//! The same part of the answer is taken; where it is not in the answer, all of it. White space around both is
//! left out. The comparison is `exact_match` of the crate `eval`.

use eval::exact_match::ExactMatch;

use crate::answer::right_answers;
use crate::entry::ExactConfig;
use crate::error::Wrong;
use crate::extract::{Extractor, too_slow};
use crate::score::{Reply, ScoreError};

/// Compares texts.
#[derive(Debug)]
pub(crate) struct Exact {
    extractor: Extractor,
    comparison: ExactMatch,
    any_of: bool,
}

impl Exact {
    pub(crate) fn new(config: &ExactConfig) -> Result<Self, Wrong> {
        let comparison = ExactMatch { ignore_case: config.ignore_case, ..ExactMatch::default() };
        let extractor = Extractor::new(config.extract, &config.pattern)?;
        Ok(Self { extractor, comparison, any_of: config.any_of })
    }

    pub(crate) fn score(&self, reply: &Reply<'_>) -> Result<f64, ScoreError> {
        let wanted = self.wanted(reply.answer)?;
        let Some(found) = self.extractor.find(reply.text)? else { return Ok(0.0) };
        for wanted in wanted {
            if self.comparison.compare(&found, wanted.trim()).map_err(|error| too_slow(&error))?.equal {
                return Ok(1.0);
            }
        }
        Ok(0.0)
    }

    /// The parts of the answer of a row of which the reply has to have one.
    pub(crate) fn wanted(&self, answer: Option<&str>) -> Result<Vec<String>, ScoreError> {
        let answers = right_answers(answer, self.any_of)?;
        answers.iter().map(|answer| self.extractor.find_in_answer(answer)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Extract;
    use crate::hostile_text::hostile_texts;

    fn score(config: &ExactConfig, text: &str, answer: Option<&str>) -> Result<f64, ScoreError> {
        let reply = Reply { prompt: &[], text, answer, tokens: 0, stopped: true };
        Exact::new(config).unwrap().score(&reply)
    }

    #[test]
    fn a_reply_is_its_answer_or_not() {
        let plain = ExactConfig::default();
        for (text, answer, expected) in [
            ("Paris", "Paris", 1.0),
            (" \u{3000}Paris\r\n", "Paris ", 1.0),
            ("paris", "Paris", 0.0),
            ("Paris.", "Paris", 0.0),
            ("", "Paris", 0.0),
            ("巴黎", "巴黎", 1.0),
            // The same letter with its accent as a character of its own.
            ("e\u{301}", "é", 0.0),
        ] {
            assert_eq!(score(&plain, text, Some(answer)), Ok(expected), "{text:?}");
        }
        assert_eq!(score(&plain, "Paris", None), Err(ScoreError::NoAnswer));
        assert_eq!(score(&plain, "", Some(" ")), Err(ScoreError::NoAnswer));
    }

    #[test]
    fn case_and_further_answers_count_if_asked() {
        let config = ExactConfig { ignore_case: true, any_of: true, ..ExactConfig::default() };
        assert_eq!(score(&config, "NEW YORK", Some(r#"["NYC", "New York"]"#)), Ok(1.0));
        assert_eq!(score(&config, "York", Some(r#"["NYC", "New York"]"#)), Ok(0.0));
        let error = score(&config, "New York", Some("New York")).unwrap_err();
        assert_eq!(error.name(), "unreadable_answer");
    }

    #[test]
    fn the_part_is_taken_from_both() {
        let boxed = ExactConfig { extract: Extract::Boxed, ..ExactConfig::default() };
        assert_eq!(score(&boxed, r"so $\boxed{ -7 }$", Some("-7")), Ok(1.0));
        assert_eq!(score(&boxed, "-7", Some("-7")), Ok(0.0));
        assert_eq!(score(&boxed, r"\boxed{7}", Some(r"Because. \boxed{7}")), Ok(1.0));
        let number = ExactConfig { extract: Extract::LastNumber, ..ExactConfig::default() };
        assert_eq!(score(&number, "that is 1,250 in all", Some("... #### 1250")), Ok(1.0));
        assert_eq!(score(&number, "1250.0", Some("1250")), Ok(0.0));
        assert_eq!(score(&number, "-1250", Some("1250")), Ok(0.0));
    }

    #[test]
    fn odd_texts_are_their_own_answer() {
        let config = ExactConfig { ignore_case: true, ..ExactConfig::default() };
        for text in hostile_texts() {
            let expected = if text.trim().is_empty() { Err(ScoreError::NoAnswer) } else { Ok(1.0) };
            assert_eq!(score(&config, &text, Some(&text)), expected, "{text:?}");
        }
    }
}
