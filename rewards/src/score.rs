//! A reply, what scores replies, and why a reply has no score.
//!
//! A reply that cannot be scored is no bad reply: a score of 0 in its place would teach the policy to avoid
//! what it did when a server was down. So a scorer returns a [`ScoreError`] for such a reply, and the caller
//! leaves the reply out and counts it.
//!
//! This file does not know how a score is made, weighted or normalized.

use datasets::Message;

/// One reply of the policy.
#[derive(Clone, Copy, Debug)]
pub struct Reply<'a> {
    /// The turns before the reply.
    pub prompt: &'a [Message],
    /// The text of the reply.
    pub text: &'a str,
    /// The right answer of the row.
    pub answer: Option<&'a str>,
    /// The length of the reply in tokens, with the one that ends it.
    pub tokens: usize,
    /// Whether the reply ended by itself, and not at the limit of tokens.
    pub stopped: bool,
}

/// Gives scores to replies.
pub trait Scorer: Send {
    /// One result for each reply, in their order. Every score is finite.
    fn score(&mut self, replies: &[Reply<'_>]) -> Vec<Result<f64, ScoreError>>;
}

/// Why a reply has no score. Texts from outside are short and harmless for a terminal ([`quoted`]).
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ScoreError {
    /// The verifier compares with the answer of the row.
    #[error("the row has no `answer`")]
    NoAnswer,
    /// The answer of the row cannot be compared with.
    #[error("the `answer` of the row {problem}: \"{answer}\"")]
    UnreadableAnswer {
        /// What is wrong with it.
        problem: &'static str,
        /// The answer, quoted.
        answer: String,
    },
    /// The reply or the answer is longer than any that is looked at.
    #[error("a text of {bytes} bytes is longer than {limit}, the longest that is looked at")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The longest length.
        limit: usize,
    },
    /// A pattern backtracked too often.
    #[error("the search took too many steps: {reason}")]
    SlowPattern {
        /// What the search says, quoted.
        reason: String,
    },
    /// The template of a program could not be filled in.
    #[error("its program cannot be written: {reason}")]
    Template {
        /// What the template says, quoted.
        reason: String,
    },
    /// No program could be run.
    #[error("no program can be run: {reason}")]
    Sandbox {
        /// What the sandbox says, quoted.
        reason: String,
    },
    /// There was no score in time.
    #[error("no score within {seconds} s")]
    TimedOut {
        /// The limit.
        seconds: f64,
    },
    /// The program that gives scores ended.
    #[error("{reason}")]
    Died {
        /// How it ended, with the end of what it wrote to standard error, quoted.
        reason: String,
    },
    /// Something was returned that gives the reply no finite number.
    #[error("{reason}")]
    NotAScore {
        /// What was returned, quoted, and what is wrong with it.
        reason: String,
    },
    /// The server answered with an error.
    #[error("{reason}")]
    Refused {
        /// The status of HTTP, with the beginning of the answer, quoted.
        reason: String,
    },
    /// The server could not be reached, or the program could not be started.
    #[error("{reason}")]
    Unreachable {
        /// What the system says, quoted.
        reason: String,
    },
    /// The program or the server says itself that it has no score.
    #[error("{reason}")]
    Declined {
        /// What it says, quoted.
        reason: String,
    },
}

impl ScoreError {
    /// A short name, under which replies without a score are counted.
    pub fn name(&self) -> &'static str {
        match self {
            Self::NoAnswer => "no_answer",
            Self::UnreadableAnswer { .. } => "unreadable_answer",
            Self::TooLong { .. } => "too_long",
            Self::SlowPattern { .. } => "slow_pattern",
            Self::Template { .. } => "template",
            Self::Sandbox { .. } => "sandbox",
            Self::TimedOut { .. } => "timed_out",
            Self::Died { .. } => "died",
            Self::NotAScore { .. } => "not_a_score",
            Self::Refused { .. } => "refused",
            Self::Unreachable { .. } => "unreachable",
            Self::Declined { .. } => "declined",
        }
    }
}

/// The beginning of a text from outside, on one line and without control characters.
pub fn quoted(text: &str) -> String {
    /// Characters that are looked at, and the cells that they may take.
    const LOOKED_AT: usize = 400;
    const COLUMNS: usize = 120;
    let beginning: String = text.trim().chars().take(LOOKED_AT).collect();
    text::truncate(&text::single_line(&beginning), COLUMNS)
}

/// The longest reply or answer that a verifier looks at, in bytes.
pub(crate) const LONGEST_TEXT: usize = 1 << 20;

/// Refuses a text of more than `limit` bytes.
pub(crate) fn at_most(text: &str, limit: usize) -> Result<(), ScoreError> {
    if text.len() <= limit { Ok(()) } else { Err(ScoreError::TooLong { bytes: text.len(), limit }) }
}

/// Scores each reply by itself.
pub(crate) struct EachReply<F>(pub(crate) F);

impl<F: Send + FnMut(&Reply<'_>) -> Result<f64, ScoreError>> Scorer for EachReply<F> {
    fn score(&mut self, replies: &[Reply<'_>]) -> Vec<Result<f64, ScoreError>> {
        let score = |reply: &Reply<'_>| {
            at_most(reply.text, LONGEST_TEXT)?;
            at_most(reply.answer.unwrap_or_default(), LONGEST_TEXT)?;
            (self.0)(reply)
        };
        replies.iter().map(score).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_from_outside_are_short_and_harmless() {
        assert_eq!(quoted(" a\n\u{1b}[2Jb\t\u{202e}c "), "a↵␛[2Jb \u{fffd}c");
        let long = quoted(&"字".repeat(100_000));
        assert!(text::width(&long) <= 120 && long.starts_with("字字"), "{long}");
        assert_eq!(quoted(""), "");
    }

    #[test]
    fn a_text_that_is_too_long_has_no_score_and_its_neighbours_do() {
        let mut scorer = EachReply(|reply: &Reply<'_>| Ok(reply.text.len() as f64));
        let long = "x".repeat(LONGEST_TEXT + 1);
        let reply = |text, answer| Reply { prompt: &[], text, answer, tokens: 1, stopped: true };
        let scores = scorer.score(&[reply("ab", None), reply(&long, None), reply("c", Some(&long))]);
        let too_long = ScoreError::TooLong { bytes: LONGEST_TEXT + 1, limit: LONGEST_TEXT };
        assert_eq!(scores, [Ok(2.0), Err(too_long.clone()), Err(too_long)]);
    }
}
