//! Filters, or answer extraction: what is taken out of a reply before it is scored (`filters/` and `tasks/bbh/zeroshot/utils.py` of
//! lm-evaluation-harness 0.4.13; [`Filter::CutAtStop`] and [`Filter::StripThinking`] are what
//! `postprocess_generated_text` in its `models/utils.py` does).
//!
//! A [`Pipeline`] is data: in a file it has the names of the harness (`filter_list`, `function`,
//! `regex_pattern`, ...). Each step is kept, so that a log can show how a reply became an answer. A reply
//! without an answer goes on as the fall-back text, `[invalid]` unless told otherwise, and is marked as
//! unparsed.
//!
//! Where the harness stops with an exception at a reply (no match at the place `group_select`, number words
//! without a value), the reply is unparsed. This file does not score.

mod choices;
mod map;
mod selected;

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::math_answer::boxed;
use crate::number_words;
use crate::python_regex::PythonRegex;
use crate::python_text::{is_space, strip};
pub use choices::{Document, MultipleChoice};
pub use map::{PatternMap, PatternValue};
pub use selected::INVALID;
use selected::{invalid, select};

/// A named list of filters; each gets what the one before it returned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pipeline {
    /// The name that the metrics of its results bear.
    pub name: String,
    /// The filters in their order.
    pub filter: Vec<Filter>,
}

/// One filter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "function", rename_all = "snake_case", deny_unknown_fields)]
pub enum Filter {
    /// Keeps the first reply.
    TakeFirst {},
    /// Keeps the first `k` replies.
    TakeFirstK {
        /// The number of replies.
        k: usize,
    },
    /// Keeps the most frequent reply; of equally frequent ones, the first.
    MajorityVote {},
    /// Takes a match of a pattern out of each reply.
    Regex(RegexFilter),
    /// Takes the letter of a choice out of each reply.
    MultiChoiceRegex(MultipleChoice),
    /// Takes a value that depends on the pattern that matches.
    MapRegex(MapRegex),
    /// Takes a number out of each reply: a match of the pattern, or else English number words as digits.
    NumberRegex(RegexFilter),
    /// Takes the words that the input lists after `List:`, in the order of their last places in the reply.
    WordSort {},
    /// Replaces each reply with its value.
    Map {
        /// Replies and their values.
        mapping_dict: std::collections::BTreeMap<String, String>,
        /// The value of all other replies. Without it, they are unparsed and stay as they are.
        default_value: Option<String>,
    },
    /// Turns letters into lower case.
    Lowercase {},
    /// Turns letters into upper case.
    Uppercase {},
    /// Removes white space at both ends.
    RemoveWhitespace {},
    /// Keeps what stands before the first of the stop texts.
    CutAtStop {
        /// The stop texts. An empty one is ignored.
        until: Vec<String>,
    },
    /// Keeps what follows the last end of a thinking block, without white space before it. A reply without
    /// that marker stays whole.
    StripThinking {
        /// The end marker, such as `</think>`.
        think_end_token: String,
    },
    /// Takes the content of the last `\boxed{}`.
    LastBoxed {
        /// The text of a reply without a box.
        #[serde(default = "invalid")]
        fallback: String,
    },
}

/// A pattern and which of its matches is taken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegexFilter {
    /// The pattern. If it has groups, the first one that is not empty is taken.
    pub regex_pattern: PythonRegex,
    /// The match that is taken: 0 the first, -1 the last.
    #[serde(default)]
    pub group_select: isize,
    /// The text of a reply without a match.
    #[serde(default = "invalid")]
    pub fallback: String,
}

/// Patterns with a value each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MapRegex {
    /// The patterns and their values. The match of any pattern decides the place, the order of the patterns
    /// decides the value.
    pub regex_pattern_to_value: PatternMap,
    /// The match that is taken: 0 the first, -1 the last.
    #[serde(default)]
    pub group_select: isize,
    /// The text of a reply without a match.
    #[serde(default = "invalid")]
    pub fallback: String,
    /// Whether the reply is searched in lower case.
    #[serde(default)]
    pub ignore_case: bool,
}

/// A reply after a filter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Filtered {
    /// The text that is scored.
    pub text: String,
    /// Whether a filter found no answer, so that `text` only stands for it.
    pub unparsed: bool,
}

/// The replies after one filter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stage {
    /// The name of the filter.
    pub function: &'static str,
    /// What it returned.
    pub replies: Vec<Filtered>,
}

impl Pipeline {
    /// The pipeline of a task that names none: the first reply as it is.
    pub fn none() -> Self {
        Self { name: "none".to_owned(), filter: vec![Filter::TakeFirst {}] }
    }

    /// The number of replies that are left of `replies` replies.
    pub(crate) fn num_replies(&self, replies: usize) -> usize {
        self.filter.iter().fold(replies, |replies, filter| match filter {
            Filter::TakeFirst {} | Filter::MajorityVote {} => replies.min(1),
            Filter::TakeFirstK { k } => replies.min(*k),
            _ => replies,
        })
    }

    /// What each filter makes of the replies to one document. The last stage is the result.
    pub fn apply(&self, replies: &[String], document: Document<'_>) -> Result<Vec<Stage>, Error> {
        let found = |text: &String| Filtered { text: text.clone(), unparsed: false };
        let mut replies: Vec<Filtered> = replies.iter().map(found).collect();
        let mut stages = Vec::with_capacity(self.filter.len());
        for filter in &self.filter {
            replies = filter.apply(replies, document)?;
            stages.push(Stage { function: filter.name(), replies: replies.clone() });
        }
        Ok(stages)
    }
}

impl Filter {
    /// The name that the filter has in a file.
    pub fn name(&self) -> &'static str {
        match self {
            Self::TakeFirst {} => "take_first",
            Self::TakeFirstK { .. } => "take_first_k",
            Self::MajorityVote {} => "majority_vote",
            Self::Regex(_) => "regex",
            Self::MultiChoiceRegex(_) => "multi_choice_regex",
            Self::MapRegex(_) => "map_regex",
            Self::NumberRegex(_) => "number_regex",
            Self::WordSort {} => "word_sort",
            Self::Map { .. } => "map",
            Self::Lowercase {} => "lowercase",
            Self::Uppercase {} => "uppercase",
            Self::RemoveWhitespace {} => "remove_whitespace",
            Self::CutAtStop { .. } => "cut_at_stop",
            Self::StripThinking { .. } => "strip_thinking",
            Self::LastBoxed { .. } => "last_boxed",
        }
    }

    /// What the filter makes of the replies to one document.
    pub fn apply(&self, replies: Vec<Filtered>, document: Document<'_>) -> Result<Vec<Filtered>, Error> {
        match self {
            Self::TakeFirst {} => self.first(replies, 1),
            Self::TakeFirstK { k } => self.first(replies, *k),
            Self::MajorityVote {} => {
                let most = most_frequent(&replies);
                self.first(most.into_iter().collect(), 1)
            }
            _ => replies.iter().map(|reply| self.apply_to_one(reply, document)).collect(),
        }
    }

    fn first(&self, mut replies: Vec<Filtered>, count: usize) -> Result<Vec<Filtered>, Error> {
        if replies.len() < count {
            return Err(Error::FewReplies { filter: self.name(), needed: count, got: replies.len() });
        }
        replies.truncate(count);
        Ok(replies)
    }

    fn apply_to_one(&self, reply: &Filtered, document: Document<'_>) -> Result<Filtered, Error> {
        let text = &reply.text;
        let (found, fallback) = match self {
            Self::Regex(filter) => (filter.find(text)?, filter.fallback.as_str()),
            Self::NumberRegex(filter) => (filter.find_number(text)?, filter.fallback.as_str()),
            Self::MultiChoiceRegex(filter) => (filter.find(text, document)?, filter.fallback.as_str()),
            Self::MapRegex(filter) => (filter.find(text)?, filter.fallback.as_str()),
            Self::WordSort {} => (sorted_words(text, document.input)?, ""),
            Self::Map { mapping_dict, default_value } => {
                (mapping_dict.get(text).or(default_value.as_ref()).cloned(), text.as_str())
            }
            Self::LastBoxed { fallback } => (boxed::last_content(text).map(str::to_owned), fallback.as_str()),
            Self::Lowercase {} => (Some(text.to_lowercase()), ""),
            Self::Uppercase {} => (Some(text.to_uppercase()), ""),
            Self::RemoveWhitespace {} => (Some(strip(text).to_owned()), ""),
            Self::CutAtStop { until } => (Some(cut_at_stop(text, until).to_owned()), ""),
            Self::StripThinking { think_end_token } => {
                (Some(strip_thinking(text, think_end_token).to_owned()), "")
            }
            Self::TakeFirst {} | Self::TakeFirstK { .. } | Self::MajorityVote {} => (Some(text.clone()), ""),
        };
        // What an earlier filter did not find, no later one finds: it sees the fall-back text only.
        let unparsed = reply.unparsed || found.is_none();
        Ok(Filtered { text: found.unwrap_or_else(|| fallback.to_owned()), unparsed })
    }
}

impl RegexFilter {
    /// The text of the selected match. It may be empty if the pattern has at most one group.
    fn find(&self, text: &str) -> Result<Option<String>, Error> {
        select(&self.regex_pattern, text, self.group_select)
    }

    fn find_number(&self, text: &str) -> Result<Option<String>, Error> {
        let digits = self.find(text)?.filter(|digits| !digits.is_empty());
        if digits.is_some() {
            return Ok(digits);
        }
        let words = number_words::find(text, self.group_select)?;
        Ok(words.and_then(|words| number_words::value(&words)).map(|value| value.to_string()))
    }
}

impl MapRegex {
    fn find(&self, text: &str) -> Result<Option<String>, Error> {
        let text = if self.ignore_case { text.to_lowercase() } else { text.to_owned() };
        self.regex_pattern_to_value.find(&text, self.group_select)
    }
}

/// The reply with the most copies; of several, the one that comes first.
fn most_frequent(replies: &[Filtered]) -> Option<Filtered> {
    let mut counts: std::collections::HashMap<&str, usize> = std::collections::HashMap::new();
    for reply in replies {
        *counts.entry(&reply.text).or_default() += 1;
    }
    let most = counts.values().max()?;
    replies.iter().find(|reply| counts[reply.text.as_str()] == *most).cloned()
}

/// The words of the input's list that stand in `text`, in the order of their last places.
fn sorted_words(text: &str, input: &str) -> Result<Option<String>, Error> {
    /// Characters of the input in an error.
    const SHOWN: usize = 80;
    let no_list = || Error::NoWordList { input: input.chars().take(SHOWN).collect() };
    let list = input.split("List:").nth(1).ok_or_else(no_list)?;
    let words = list.split(is_space).filter(|word| !word.is_empty());
    // The words are patterns: the harness does not escape them.
    let pattern: Vec<String> = words.map(|word| format!(r"\b{word}\b")).collect();
    let found = PythonRegex::new(&pattern.join("|"))?.find_all(text)?;

    let mut seen = std::collections::HashSet::new();
    let mut last: Vec<&str> =
        found.iter().rev().map(|groups| groups[0]).filter(|word| seen.insert(*word)).collect();
    last.reverse();
    let sorted = last.join(" ");
    Ok((!sorted.is_empty()).then_some(sorted))
}

/// What stands before the first of the stop texts.
pub fn cut_at_stop<'t>(text: &'t str, until: &[String]) -> &'t str {
    let before = |text: &'t str, stop: &String| text.find(stop.as_str()).map_or(text, |end| &text[..end]);
    until.iter().filter(|stop| !stop.is_empty()).fold(text, before)
}

/// What follows the last `end`, without white space before it.
pub fn strip_thinking<'t>(text: &'t str, end: &str) -> &'t str {
    if end.is_empty() {
        return text;
    }
    text.rsplit(end).next().unwrap_or(text).trim_start_matches(is_space)
}

#[cfg(test)]
mod tests;
