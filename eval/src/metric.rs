//! Metrics of single replies and of scored text.
//!
//! Exact match: a reply is right when, with the white space at both ends removed, it equals the answer.
//!
//! Perplexity, with L the summed natural-log probability of a text and N the number of units in it:
//! `ppl = exp(-L / N)`, and `bits per byte = -L / (bytes ln 2)` (Jurafsky and Martin, "Speech and Language Processing",
//! eq. 3.14; Gao et al. 2020, "The Pile", section 3.1, for bits per byte). Over several texts L and N are summed first: this
//! is the perplexity of the corpus, not the mean of the perplexities of its texts.
//!
//! This file does not know how replies or log-probabilities are obtained.

use std::f64::consts::LN_2;
use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

use crate::Error;

/// Whether `reply`, stripped of white space at both ends, equals `answer` (which is taken as it is).
pub fn exact_match(reply: &str, answer: &str) -> bool {
    reply.trim() == answer
}

/// Summed log-probability of one or more texts, and the units to spread it over.
///
/// Word and byte figures do not depend on the tokenizer and may be compared between models; token figures may not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Likelihood {
    /// Sum of natural-log probabilities of the scored tokens (nats, not positive).
    pub log_prob: f64,
    /// Scored tokens.
    pub tokens: u64,
    /// White-space separated words of the scored text.
    pub words: u64,
    /// UTF-8 bytes of the scored text.
    pub bytes: u64,
}

impl Likelihood {
    /// The likelihood of `text`, scored as `tokens` tokens with `log_prob` nats in all.
    ///
    /// Words are maximal runs without white space, so white space at the ends adds none.
    pub fn of_text(text: &str, log_prob: f64, tokens: u64) -> Self {
        let words = text.split_whitespace().count() as u64;
        Self { log_prob, tokens, words, bytes: text.len() as u64 }
    }

    /// `exp(-L / tokens)`.
    pub fn token_perplexity(&self) -> Result<f64, Error> {
        self.nats_per("token", self.tokens).map(f64::exp)
    }

    /// `exp(-L / words)`.
    pub fn word_perplexity(&self) -> Result<f64, Error> {
        self.nats_per("word", self.words).map(f64::exp)
    }

    /// `exp(-L / bytes)`.
    pub fn byte_perplexity(&self) -> Result<f64, Error> {
        self.nats_per("byte", self.bytes).map(f64::exp)
    }

    /// `-L / (bytes ln 2)`.
    pub fn bits_per_byte(&self) -> Result<f64, Error> {
        self.nats_per("byte", self.bytes).map(|nats| nats / LN_2)
    }

    fn nats_per(&self, unit: &'static str, units: u64) -> Result<f64, Error> {
        if units == 0 {
            return Err(Error::NoUnits { unit });
        }
        if !self.log_prob.is_finite() {
            return Err(Error::NotFinite { field: "summed log-probability".into(), got: self.log_prob });
        }
        Ok(-self.log_prob / units as f64)
    }
}

impl AddAssign for Likelihood {
    fn add_assign(&mut self, other: Self) {
        self.log_prob += other.log_prob;
        self.tokens += other.tokens;
        self.words += other.words;
        self.bytes += other.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_match_strips_the_reply_and_nothing_else() {
        assert!(exact_match(" 42\n", "42"));
        assert!(exact_match("\u{3000}星期三 ", "星期三"));
        assert!(exact_match("  ", ""));
        assert!(!exact_match("42.", "42"));
        assert!(!exact_match("4 2", "42"));
        assert!(!exact_match("Monday", "monday"));
        assert!(!exact_match("42", "42 "));
    }

    #[test]
    fn uniform_bytes_cost_eight_bits() {
        // Four bytes, one token each, p = 1/256: L = -4 ln 256, so 256 per token and per byte, 8 bits per byte;
        // two words, so exp(2 ln 256) = 65536 per word.
        let scored = Likelihood::of_text("a b\n", -4.0 * 256_f64.ln(), 4);
        assert_eq!((scored.words, scored.bytes), (2, 4));
        assert!((scored.token_perplexity().unwrap() - 256.0).abs() < 1e-9);
        assert!((scored.byte_perplexity().unwrap() - 256.0).abs() < 1e-9);
        assert!((scored.word_perplexity().unwrap() - 65_536.0).abs() < 1e-6);
        assert!((scored.bits_per_byte().unwrap() - 8.0).abs() < 1e-12);
    }

    #[test]
    fn bytes_are_utf8_bytes() {
        // Three Chinese characters are nine bytes and one word: 18 ln 2 nats are 2 bits per byte.
        let scored = Likelihood::of_text("星期三", -18.0 * LN_2, 3);
        assert_eq!((scored.words, scored.bytes), (1, 9));
        assert!((scored.bits_per_byte().unwrap() - 2.0).abs() < 1e-12);
        assert!((scored.token_perplexity().unwrap() - 64.0).abs() < 1e-9);
    }

    #[test]
    fn a_corpus_is_summed_before_it_is_divided() {
        // Texts of 1 token at p = 1/2 and 3 tokens at p = 1/8: exp((ln 2 + 9 ln 2) / 4) = 2^2.5, not (2 + 8) / 2.
        let mut corpus = Likelihood::of_text("a", -LN_2, 1);
        corpus += Likelihood::of_text("b c d", -9.0 * LN_2, 3);
        assert!((corpus.token_perplexity().unwrap() - 2_f64.powf(2.5)).abs() < 1e-12);
        assert_eq!((corpus.words, corpus.bytes), (4, 6));
    }

    #[test]
    fn nothing_scored_is_an_error_that_names_the_unit() {
        let error = Likelihood::default().word_perplexity().unwrap_err();
        assert_eq!(
            error.to_string(),
            "perplexity per word of a text with no words is undefined; drop empty texts"
        );
        let broken = Likelihood::of_text("a", f64::NEG_INFINITY, 1);
        assert!(matches!(broken.token_perplexity(), Err(Error::NotFinite { .. })));
    }
}
