//! `kind = "choice"`: the reply chooses the letter of the row's answer.
//!
//! The letter that a reply chooses is, in this order:
//!
//! 1. the letter in the last `\boxed{}`, if there is a box;
//! 2. the letter behind the last of the words "answer" and 答案, perhaps with "is", 是 or a colon between them;
//! 3. the letter that the reply begins with, if a mark or the end of the line follows it: `B`, `(B)`, `B.
//!    Rome`;
//! 4. the only letter that stands alone in the reply.
//!
//! A reply that names several letters and does not say which one is its answer is wrong. A letter stands
//! alone if no letter or digit of an alphabet is beside it; Chinese characters may be. Small letters count in
//! a box and behind the word "answer" only, where no other word is meant.

use eval::math_answer::boxed;

use crate::answer::{given, unreadable};
use crate::entry::ChoiceConfig;
use crate::error::Wrong;
use crate::score::{Reply, ScoreError};

/// The words in front of an answer.
const ANSWER: [&str; 2] = ["answer", "答案"];
/// What may stand between the word and the letter.
const BETWEEN: [&str; 8] = ["is", "option", "choice", "是", "为", "选", r"\text{", r"\textbf{"];
/// Marks around a letter.
const MARKS: &str = " \t\r\n:：=*_\"'“”‘’`$()（）[]【】{}<>";

/// Compares letters.
#[derive(Debug)]
pub(crate) struct Choice {
    letters: Vec<char>,
}

impl Choice {
    pub(crate) fn new(config: &ChoiceConfig) -> Result<Self, Wrong> {
        let letters: Vec<char> = config.choices.chars().map(|c| c.to_ascii_uppercase()).collect();
        let wrong = |problem: &str| {
            let problem = format!("is {:?}, {problem}", config.choices);
            Err(Wrong::new("choices", problem, "give the letters or digits of all choices, such as \"ABCD\""))
        };
        if letters.len() < 2 {
            return wrong("which is no choice between two");
        }
        if !letters.iter().all(char::is_ascii_alphanumeric) {
            return wrong("which has other characters than ASCII letters and digits");
        }
        if letters.iter().enumerate().any(|(index, letter)| letters[..index].contains(letter)) {
            return wrong("which has a letter twice");
        }
        Ok(Self { letters })
    }

    pub(crate) fn score(&self, reply: &Reply<'_>) -> Result<f64, ScoreError> {
        let right = self.right(reply.answer)?;
        Ok(f64::from(self.chosen(reply.text) == Some(right)))
    }

    /// The letter in the answer of a row.
    pub(crate) fn right(&self, answer: Option<&str>) -> Result<char, ScoreError> {
        let answer = given(answer)?.trim();
        let right = self.chosen(answer).or_else(|| self.leading_letter(&answer.to_ascii_uppercase()));
        right.ok_or_else(|| unreadable("is none of the choices", answer))
    }

    /// The letter that a text chooses.
    fn chosen(&self, text: &str) -> Option<char> {
        if let Some(content) = boxed::last_content(text) {
            return self.first_letter(content);
        }
        let behind_word = last_word(text).and_then(|behind| self.first_letter(behind));
        behind_word.or_else(|| self.leading_letter(text)).or_else(|| self.only_letter(text))
    }

    /// The letter that a text begins with, in either case, after marks and words in between.
    fn first_letter(&self, text: &str) -> Option<char> {
        /// More marks and words than this are no way to say an answer.
        const MOST_STEPS: usize = 8;
        let is_mark = |c: char| MARKS.contains(c);
        let mut rest = text.trim_start_matches(is_mark);
        for _ in 0..MOST_STEPS {
            let word = BETWEEN.iter().find_map(|word| strip_word(rest, word));
            let Some(after) = word else { break };
            rest = after.trim_start_matches(is_mark);
        }
        let mut characters = rest.chars();
        let written = characters.next()?;
        let alone = match characters.next() {
            // "The answer is a city" has no letter.
            Some(' ') => written.is_ascii_uppercase() || written.is_ascii_digit(),
            behind => !behind.is_some_and(|c| joins(c) || is_apostrophe(c)),
        };
        let letter = written.to_ascii_uppercase();
        (alone && self.letters.contains(&letter)).then_some(letter)
    }

    /// The letter that a text begins with, if a mark or the end of the line follows it.
    fn leading_letter(&self, text: &str) -> Option<char> {
        let rest = text.trim_start_matches(|c: char| MARKS.contains(c));
        let mut characters = rest.chars();
        let letter = characters.next().filter(|letter| self.letters.contains(letter))?;
        let behind = characters.as_str().trim_start_matches(['*', '_']);
        let ends = behind.is_empty()
            || behind.starts_with(['.', ')', '）', ']', ':', '：', ',', '，', '。', '、', '\r', '\n']);
        ends.then_some(letter)
    }

    /// The letter that stands alone, if it is the only one.
    fn only_letter(&self, text: &str) -> Option<char> {
        let mut found = None;
        let mut before = ' ';
        let mut characters = text.chars().peekable();
        while let Some(c) = characters.next() {
            let alone = !joins(before)
                && !characters.peek().is_some_and(|&after| joins(after) || is_apostrophe(after));
            before = c;
            if alone && self.letters.contains(&c) {
                if found.is_some_and(|other| other != c) {
                    return None;
                }
                found = Some(c);
            }
        }
        found
    }
}

/// What stands behind the last of the words in front of an answer.
fn last_word(text: &str) -> Option<&str> {
    // Lower-case ASCII keeps the places of all bytes.
    let lower = text.to_ascii_lowercase();
    let behind = |word: &&str| lower.rfind(*word).map(|place| place + word.len());
    ANSWER.iter().filter_map(behind).max().map(|place| &text[place..])
}

/// `text` without `word` at its beginning, where the word ends there.
fn strip_word<'t>(text: &'t str, word: &str) -> Option<&'t str> {
    let start = text.get(..word.len())?;
    let rest = &text[word.len()..];
    let ends = !word.ends_with(|c: char| c.is_ascii_alphabetic()) || !rest.starts_with(joins);
    (start.eq_ignore_ascii_case(word) && ends).then_some(rest)
}

/// Whether a character makes another letter or a word of the letter beside it. Chinese and Japanese
/// characters do not.
fn joins(c: char) -> bool {
    c == '_' || ('\u{300}'..='\u{36f}').contains(&c) || (c.is_alphanumeric() && c < '\u{2e80}')
}

/// Whether it makes "D'Artagnan" or "A's" of a letter before it.
fn is_apostrophe(c: char) -> bool {
    c == '\'' || c == '’'
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hostile_text::hostile_texts;

    fn score(text: &str, answer: Option<&str>) -> Result<f64, ScoreError> {
        let reply = Reply { prompt: &[], text, answer, tokens: 0, stopped: true };
        Choice::new(&ChoiceConfig::default()).unwrap().score(&reply)
    }

    #[test]
    fn the_chosen_letter_is_found() {
        for text in [
            "B",
            " (B)\n",
            "B. Rome",
            "**B**",
            "B) because A is too small",
            "The answer is (B).",
            "Answer: B",
            "the ANSWER is: **b**",
            "A is wrong and C is wrong. So the answer is B",
            "My first answer is A, but the answer is option B.",
            r"The answer is $\boxed{\text{B}}$, not A.",
            r"\boxed{b}",
            "It must be B.",
            "所以选B。",
            "答案是：B",
            "答案：（B）",
            "I choose B, B and again B",
        ] {
            assert_eq!(score(text, Some("B")), Ok(1.0), "{text}");
            assert_eq!(score(text, Some("C")), Ok(0.0), "{text}");
        }
    }

    #[test]
    fn a_reply_without_one_choice_is_wrong() {
        for text in [
            "",
            "A or B",
            "It is A, B, C or D",
            "Rome",
            "b",
            "BC",
            "Vitamin B12",
            "B's sister",
            "E",
            r"\boxed{E} B",
            "The answer is Rome",
            "The answer is b flat",
            "É B́",
        ] {
            assert_eq!(score(text, Some("B")), Ok(0.0), "{text}");
        }
    }

    #[test]
    fn the_answer_of_the_row_is_a_letter() {
        for answer in ["B", "b", "(B)", "B. Rome", "B)", "The answer is B"] {
            assert_eq!(score("B", Some(answer)), Ok(1.0), "{answer}");
        }
        assert_eq!(score("B", None), Err(ScoreError::NoAnswer));
        for answer in ["Rome", "E", "7", "A or B"] {
            assert_eq!(score("B", Some(answer)).unwrap_err().name(), "unreadable_answer", "{answer}");
        }
    }

    #[test]
    fn choices_may_be_digits_and_are_checked() {
        let choice = Choice::new(&ChoiceConfig { choices: "1234".to_owned() }).unwrap();
        let reply = |text| Reply { prompt: &[], text, answer: Some("3"), tokens: 0, stopped: true };
        assert_eq!(choice.score(&reply("The answer is 3")), Ok(1.0));
        assert_eq!(choice.score(&reply("The answer is 33")), Ok(0.0));
        for choices in ["", "A", "AA", "aA", "A B", "AÉ"] {
            let wrong = Choice::new(&ChoiceConfig { choices: choices.to_owned() }).unwrap_err();
            assert_eq!(wrong.key, "choices", "{choices}");
        }
    }

    #[test]
    fn odd_texts_have_a_score() {
        for text in hostile_texts() {
            assert!(score(&text, Some("B")).is_ok(), "{text:?}");
            let _ = score("B", Some(&text));
        }
    }
}
