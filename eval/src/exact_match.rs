//! `exact_match` with its options (`exact_match_hf_evaluate` in `api/metrics.py` of lm-evaluation-harness
//! 0.4.13, after the metric of that name in Hugging Face's evaluate).
//!
//! Reply and target are rewritten in the same way and in this order: what the patterns match is removed,
//! letters become lower-case, ASCII punctuation is removed, ASCII digits are removed. Then they must be
//! equal. Nothing is stripped: a leading space makes a reply wrong.
//!
//! This file does not know where a reply comes from.

use serde::{Deserialize, Serialize};

use crate::Error;
#[cfg(test)]
use crate::filter::Filtered;
use crate::python_regex::PythonRegex;

/// What is ignored in the comparison.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ExactMatch {
    /// Patterns whose matches are removed, one pattern after the other.
    pub regexes_to_ignore: Vec<PythonRegex>,
    /// Compare letters in lower case.
    pub ignore_case: bool,
    /// Remove the 32 punctuation characters of ASCII.
    pub ignore_punctuation: bool,
    /// Remove the ten digits of ASCII.
    pub ignore_numbers: bool,
}

/// What was compared in the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Comparison {
    /// The reply without what is ignored.
    pub reply: String,
    /// The target without what is ignored.
    pub target: String,
    /// Whether they are equal.
    pub equal: bool,
}

/// How a reply is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The answer is right.
    Right,
    /// An answer was found, and it is wrong.
    Wrong,
    /// No answer was found in the reply. It counts as wrong.
    Unparsed,
}

/// What the recorded scores of the filters are held against.
#[cfg(test)]
impl Verdict {
    /// The verdict on a filtered reply. A reply without an answer is right if the text that stands for it is
    /// the target, as in lm-evaluation-harness.
    pub(crate) fn new(reply: &Filtered, equal: bool) -> Self {
        match (equal, reply.unparsed) {
            (true, _) => Self::Right,
            (false, false) => Self::Wrong,
            (false, true) => Self::Unparsed,
        }
    }

    /// The score: 1 for a right answer, 0 otherwise.
    pub(crate) fn score(self) -> f64 {
        if self == Self::Right { 1.0 } else { 0.0 }
    }
}

impl ExactMatch {
    /// Compares `reply` with `target`.
    pub fn compare(&self, reply: &str, target: &str) -> Result<Comparison, Error> {
        let (reply, target) = (self.rewritten(reply)?, self.rewritten(target)?);
        // numpy, in which the harness compares, drops NUL at the end of a text.
        let equal = reply.trim_end_matches('\0') == target.trim_end_matches('\0');
        Ok(Comparison { reply, target, equal })
    }

    fn rewritten(&self, text: &str) -> Result<String, Error> {
        let mut text = text.to_owned();
        for pattern in &self.regexes_to_ignore {
            text = pattern.remove_from(&text)?;
        }
        if self.ignore_case {
            text = text.to_lowercase();
        }
        if self.ignore_punctuation {
            text.retain(|c| !c.is_ascii_punctuation());
        }
        if self.ignore_numbers {
            text.retain(|c| !c.is_ascii_digit());
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hostile_text::hostile_texts;

    fn options(json: serde_json::Value) -> ExactMatch {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn nothing_is_ignored_unless_asked() {
        let plain = ExactMatch::default();
        let equal = |reply, target| plain.compare(reply, target).unwrap().equal;
        assert!(equal("(B)", "(B)"));
        assert!(!equal(" (B)", "(B)") && !equal("(b)", "(B)") && !equal("(B).", "(B)"));
        assert!(equal("", "") && equal("a\0", "a") && !equal("\0a", "a"));
    }

    #[test]
    fn patterns_come_before_case_and_punctuation() {
        // The pattern knows capitals and the full stop, so it must see them.
        let options = options(serde_json::json!({
            "regexes_to_ignore": [r"Answer\.", " "], "ignore_case": true, "ignore_punctuation": true,
            "ignore_numbers": true
        }));
        let comparison = options.compare("Answer. B-2 C!", "b c").unwrap();
        assert_eq!((comparison.reply.as_str(), comparison.target.as_str()), ("bc", "bc"));
        assert!(comparison.equal);
        // Only ASCII punctuation and digits are removed.
        assert_eq!(options.compare("a…٣", "").unwrap().reply, "a…٣");
    }

    #[test]
    fn the_options_of_gsm8k_reduce_the_gold_solution_to_its_number() {
        let options = options(serde_json::json!({
            "regexes_to_ignore": [",", r"\$", "(?s).*#### ", r"\.$"], "ignore_case": true
        }));
        let comparison = options.compare("$1,250.", "He pays 1,000.\n#### 1,250").unwrap();
        assert_eq!((comparison.reply.as_str(), comparison.target.as_str()), ("1250", "1250"));
    }

    #[test]
    fn an_unknown_option_is_refused() {
        assert!(serde_json::from_str::<ExactMatch>(r#"{"ignore_cases": true}"#).is_err());
    }

    #[test]
    fn hostile_texts_equal_themselves() {
        let options = options(serde_json::json!({
            "regexes_to_ignore": [",", r"\$", "(?s).*#### ", r"\.$", r"\n"], "ignore_case": true,
            "ignore_punctuation": true, "ignore_numbers": true
        }));
        for text in hostile_texts() {
            assert!(options.compare(&text, &text).unwrap().equal);
        }
    }
}
