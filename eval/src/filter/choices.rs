//! The letter of a choice in a reply (`MultiChoiceRegexFilter` in `filters/extraction.py` and
//! `tasks/bbh/zeroshot/utils.py` of lm-evaluation-harness 0.4.13).
//!
//! Three searches follow each other until one finds something: the pattern, such as `(\([A-Z]\))`; the text
//! of a choice; a letter after a colon. The choices have the letters A, B, C in their order, also where the
//! input letters them otherwise.

use serde::{Deserialize, Serialize};

use super::selected::{invalid, select};
use crate::Error;
use crate::python_regex::PythonRegex;
use crate::python_text::{is_space, remove_punctuation, strip};

/// How a choice is found in a reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MultipleChoice {
    /// The pattern of the first search.
    pub regex_pattern: PythonRegex,
    /// The match that is taken in each search: 0 the first, -1 the last.
    #[serde(default)]
    pub group_select: isize,
    /// The text of a reply without a choice.
    #[serde(default = "invalid")]
    pub fallback: String,
    /// Whether texts of choices are searched in lower case.
    #[serde(default)]
    pub ignore_case: bool,
    /// Whether punctuation is removed before texts of choices are searched.
    #[serde(default)]
    pub ignore_punctuation: bool,
    /// Patterns whose matches are removed before texts of choices are searched.
    #[serde(default)]
    pub regexes_to_ignore: Vec<PythonRegex>,
    /// The pattern that finds the choices in the input. Without it, they are those of the document.
    pub choices_pattern: Option<PythonRegex>,
}

/// What a filter may know about the document of a reply.
#[derive(Clone, Copy, Debug)]
pub struct Document<'a> {
    /// The question, for filters that read choices or words in it.
    pub input: &'a str,
    /// The texts of the choices, without letters.
    pub choices: &'a [String],
}

impl MultipleChoice {
    /// The answer, `(B)` for the second choice.
    pub(super) fn find(&self, reply: &str, document: Document<'_>) -> Result<Option<String>, Error> {
        let found = select(&self.regex_pattern, reply, self.group_select)?.filter(|found| !found.is_empty());
        if found.is_some() {
            return Ok(found);
        }
        let choices = self.choices(document)?;
        let by_text = self.choice_text(&self.simplified(reply)?, &choices);
        Ok(by_text.or_else(|| letter_after_colon(reply, choices.len(), self.group_select)))
    }

    /// The texts of the choices as they are searched.
    fn choices(&self, document: Document<'_>) -> Result<Vec<String>, Error> {
        let texts: Vec<String> = match &self.choices_pattern {
            None => document.choices.to_vec(),
            Some(pattern) => {
                let found = pattern.find_all(document.input)?;
                found.into_iter().map(|groups| groups[0].to_owned()).collect()
            }
        };
        if texts.len() > usize::from(b'Z' - b'A') + 1 {
            return Err(Error::TooManyChoices { choices: texts.len() });
        }
        texts.iter().map(|text| self.simplified(strip(text))).collect()
    }

    fn simplified(&self, text: &str) -> Result<String, Error> {
        let mut text = text.to_owned();
        for pattern in &self.regexes_to_ignore {
            text = pattern.remove_from(&text)?;
        }
        if self.ignore_case {
            text = text.to_lowercase();
        }
        Ok(if self.ignore_punctuation { remove_punctuation(&text) } else { text })
    }

    /// The letter of the selected choice text in `reply`. Of choices with the same text, the last has it. A
    /// text that is no choice any more without the blanks at its ends stands for itself.
    fn choice_text(&self, reply: &str, choices: &[String]) -> Option<String> {
        let found = strip(literal(reply, choices, self.group_select)?);
        if found.is_empty() {
            return None;
        }
        let place = choices.iter().rposition(|choice| choice == found);
        Some(place.map_or_else(|| found.to_owned(), answer))
    }
}

/// `(A)` for the first choice.
fn answer(place: usize) -> String {
    format!("({})", char::from(b'A' + place as u8))
}

/// What `findall` of all `choices` as alternatives finds at place `select`. Longer choices come first, so
/// that "blue" is not found in "blue box". An empty choice is found everywhere else.
fn literal<'t>(text: &'t str, choices: &[String], select: isize) -> Option<&'t str> {
    let mut sorted: Vec<&str> = choices.iter().map(String::as_str).collect();
    sorted.sort_by_key(|choice| std::cmp::Reverse(choice.chars().count()));
    let mut found = Vec::new();
    let mut start = 0;
    loop {
        let rest = &text[start..];
        let choice = sorted.iter().find(|choice| rest.starts_with(**choice));
        found.extend(choice.map(|choice| &rest[..choice.len()]));
        if let Some(item) = usize::try_from(select).ok().and_then(|place| found.get(place).copied()) {
            return Some(item);
        }

        // After an empty match, the search goes on one character further.
        let length = choice.map_or(0, |choice| choice.len());
        match rest.chars().next() {
            Some(next) => start += if length > 0 { length } else { next.len_utf8() },
            None => break,
        }
    }
    // A place from the start would have been found by now.
    let place = if select < 0 { found.len().checked_add_signed(select)? } else { return None };
    found.get(place).copied()
}

/// The first `count` letters are searched after a colon and any white space.
fn letter_after_colon(reply: &str, count: usize, select: isize) -> Option<String> {
    let letter = |after: &str| {
        let first = after.trim_start_matches(is_space).bytes().next()?;
        Some(usize::from(first.checked_sub(b'A')?)).filter(|&place| place < count)
    };
    let found: Vec<usize> = reply.split(':').skip(1).filter_map(letter).collect();
    let place = if select < 0 { found.len().checked_add_signed(select)? } else { select as usize };
    found.get(place).map(|&place| answer(place))
}
