//! `kind = "repetition"`: minus the share of the n-grams of a reply that occurred in it before,
//!
//! ```text
//! -penalty (1 - distinct n-grams / n-grams)
//! ```
//!
//! which is what open-r1 makes of the repetition penalty of Yeo et al. 2025 (arXiv 2502.03373, appendix C.2).
//! A reply with fewer words than an n-gram repeats nothing.
//!
//! A word is a run of letters and digits in lower case; a Chinese, Japanese or Thai character and every other
//! sign is a word of its own. A run that is longer than any word is taken letter by letter, so that
//! "hahaha..." repeats itself too.

use std::collections::{HashMap, HashSet};

use crate::entry::RepetitionConfig;
use crate::error::Wrong;
use crate::score::Reply;

/// The longest word, in characters.
const LONGEST_WORD: usize = 40;
/// The longest n-gram.
const LONGEST_NGRAM: usize = 64;

/// Counts repetitions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Repetition {
    ngram: usize,
    penalty: f64,
}

impl Repetition {
    pub(crate) fn new(config: &RepetitionConfig) -> Result<Self, Wrong> {
        if !(1..=LONGEST_NGRAM).contains(&config.ngram) {
            let problem = format!("is {}", config.ngram);
            return Err(Wrong::new(
                "ngram",
                problem,
                format!("give a number of words from 1 to {LONGEST_NGRAM}"),
            ));
        }
        if !(config.penalty.is_finite() && config.penalty > 0.0) {
            let problem = format!("is {}", config.penalty);
            let fix = "give a number above 0: it is what a reply loses that only repeats itself";
            return Err(Wrong::new("penalty", problem, fix));
        }
        Ok(Self { ngram: config.ngram, penalty: config.penalty })
    }

    pub(crate) fn score(self, reply: &Reply<'_>) -> f64 {
        0.0 - self.penalty * repeated_share(reply.text, self.ngram)
    }
}

/// The share of n-grams that occurred before, from 0 to 1.
fn repeated_share(text: &str, ngram: usize) -> f64 {
    let mut numbers: HashMap<String, usize> = HashMap::new();
    let mut words = Vec::new();
    for word in split(text) {
        let next = numbers.len();
        words.push(*numbers.entry(word).or_insert(next));
    }
    let total = (words.len() + 1).saturating_sub(ngram);
    if total == 0 {
        return 0.0;
    }
    let distinct = words.windows(ngram).collect::<HashSet<_>>().len();
    1.0 - distinct as f64 / total as f64
}

/// The words of a text.
fn split(text: &str) -> Vec<String> {
    let (mut words, mut run) = (Vec::new(), String::new());
    for c in text.chars() {
        if c.is_alphanumeric() && !is_ideographic(c) {
            run.extend(c.to_lowercase());
            continue;
        }
        end_run(&mut run, &mut words);
        if !c.is_whitespace() {
            words.push(c.to_string());
        }
    }
    end_run(&mut run, &mut words);
    words
}

/// Adds a run to the words: as one, or letter by letter if it is too long.
fn end_run(run: &mut String, words: &mut Vec<String>) {
    let run = std::mem::take(run);
    if run.chars().nth(LONGEST_WORD).is_some() {
        words.extend(run.chars().map(String::from));
    } else if !run.is_empty() {
        words.push(run);
    }
}

/// Whether a character of a script without spaces between words.
fn is_ideographic(c: char) -> bool {
    let (thai_and_lao, kana) = ('\u{e00}'..='\u{eff}', '\u{3040}'..='\u{30ff}');
    let chinese = ['\u{3400}'..='\u{9fff}', '\u{f900}'..='\u{faff}', '\u{20000}'..='\u{323af}'];
    thai_and_lao.contains(&c) || kana.contains(&c) || chinese.iter().any(|range| range.contains(&c))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hostile_text::hostile_texts;

    fn score(ngram: usize, penalty: f64, text: &str) -> f64 {
        let reply = Reply { prompt: &[], text, answer: None, tokens: 0, stopped: true };
        Repetition::new(&RepetitionConfig { ngram, penalty }).unwrap().score(&reply)
    }

    #[test]
    fn the_share_of_repeated_ngrams_is_lost() {
        // Pairs: a b, b a, a b, b a, a b: 2 of 5 are distinct.
        assert_eq!(score(2, 1.0, "a b A  b\na b"), 0.0 - (1.0 - 2.0 / 5.0));
        assert_eq!(score(2, 0.5, "a b a b a b"), -0.5 * (1.0 - 2.0 / 5.0));
        assert_eq!(score(4, 1.0, "one two three four five"), 0.0);
        // Words: `-`, 1, `,`, 000 twice.
        assert_eq!(score(4, 1.0, "-1,000 -1,000"), 0.0 - (1.0 - 4.0 / 5.0));
        assert_eq!(score(1, 1.0, "是是是是"), -0.75);
        assert_eq!(score(1, 1.0, "!!!!"), -0.75);
        assert_eq!(score(1, 1.0, &"ha".repeat(50)), 0.0 - (1.0 - 2.0 / 100.0));
    }

    #[test]
    fn short_replies_repeat_nothing() {
        for text in ["", " ", "a", "a a a", "\u{3000}是\n"] {
            assert_eq!(score(4, 1.0, text), 0.0, "{text:?}");
            assert!(score(4, 1.0, text).is_sign_positive());
        }
    }

    #[test]
    fn settings_are_checked() {
        for (ngram, penalty, key) in [
            (0, 1.0, "ngram"),
            (65, 1.0, "ngram"),
            (4, 0.0, "penalty"),
            (4, -1.0, "penalty"),
            (4, f64::NAN, "penalty"),
        ] {
            assert_eq!(Repetition::new(&RepetitionConfig { ngram, penalty }).unwrap_err().key, key);
        }
    }

    #[test]
    fn odd_texts_have_a_score_from_minus_the_penalty_to_0() {
        for text in hostile_texts() {
            for ngram in [1, 4, 64] {
                assert!((-1.0..=0.0).contains(&score(ngram, 1.0, &text)), "{text:?}");
            }
        }
    }
}
