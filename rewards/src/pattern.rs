//! `kind = "regex"`: a pattern in Python's syntax is found in the reply, or matches all of it.
//!
//! A search backtracks at most as often as the crate `eval` lets it. A reply on which it would take longer
//! has no score.

use eval::python_regex::PythonRegex;

use crate::entry::RegexConfig;
use crate::error::Wrong;
use crate::extract::{compile, too_slow};
use crate::score::{Reply, ScoreError};

/// Searches for a pattern.
#[derive(Debug)]
pub(crate) struct Pattern {
    regex: PythonRegex,
    full: bool,
}

impl Pattern {
    pub(crate) fn new(config: &RegexConfig) -> Result<Self, Wrong> {
        if config.pattern.is_empty() {
            return Err(Wrong::new("pattern", "is missing", "give the pattern that a reply must have"));
        }
        // The error is about the pattern as it was written.
        let regex = compile(&config.pattern)?;
        let regex = if config.full { compile(&whole(&config.pattern))? } else { regex };
        Ok(Self { regex, full: config.full })
    }

    pub(crate) fn score(&self, reply: &Reply<'_>) -> Result<f64, ScoreError> {
        let text = if self.full { reply.text.trim() } else { reply.text };
        let found = self.regex.find(text, 0).map_err(|error| too_slow(&error))?;
        Ok(f64::from(found.is_some()))
    }
}

/// The pattern for the whole text. Flags of the whole pattern stay at its beginning, where Python takes them.
fn whole(pattern: &str) -> String {
    let flags = pattern.strip_prefix("(?").and_then(|rest| rest.split_once(')'));
    let is_flags = |flags: &&str| !flags.is_empty() && flags.chars().all(|c| c.is_ascii_alphabetic());
    match flags.filter(|(flags, _)| is_flags(flags)) {
        Some((flags, rest)) => format!(r"(?{flags})\A(?:{rest})\Z"),
        None => format!(r"\A(?:{pattern})\Z"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hostile_text::hostile_texts;

    fn score(pattern: &str, full: bool, text: &str) -> Result<f64, ScoreError> {
        let reply = Reply { prompt: &[], text, answer: None, tokens: 0, stopped: true };
        Pattern::new(&RegexConfig { pattern: pattern.to_owned(), full }).unwrap().score(&reply)
    }

    #[test]
    fn a_pattern_is_found_anywhere_or_matches_all() {
        assert_eq!(score("b+", false, "abbc"), Ok(1.0));
        assert_eq!(score("b+", false, "ac"), Ok(0.0));
        assert_eq!(score("b+", true, "abbc"), Ok(0.0));
        assert_eq!(score("b+", true, " bb\u{3000}\n"), Ok(1.0));
        // Both sides of an alternative are the whole text, and flags stay in front.
        assert_eq!(score("a|b", true, "ab"), Ok(0.0));
        assert_eq!(score("(?is)a.b", true, "A\nB"), Ok(1.0));
        assert_eq!(score("(?:a)", true, "a"), Ok(1.0));
        assert_eq!(score("(?m)^-1,250$", false, "x\n-1,250\n"), Ok(1.0));
        assert_eq!(score(r"\bé\b", false, "é!"), Ok(1.0));
        assert_eq!(score("x", false, ""), Ok(0.0));
    }

    #[test]
    fn a_slow_search_has_no_score() {
        let error = score("(a|aa)+$", true, &format!("{}b", "a".repeat(300))).unwrap_err();
        assert_eq!(error.name(), "slow_pattern");
    }

    #[test]
    fn patterns_are_checked() {
        for pattern in ["", "(", r"\N{DASH}", "*"] {
            let config = RegexConfig { pattern: pattern.to_owned(), full: false };
            assert_eq!(Pattern::new(&config).unwrap_err().key, "pattern", "{pattern}");
        }
    }

    #[test]
    fn odd_texts_have_a_score() {
        for text in hostile_texts() {
            assert!(score(r"(?s)<think>.*</think>", false, &text).is_ok(), "{text:?}");
        }
    }
}
