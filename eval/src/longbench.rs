//! LongBench's measures of one reply against one right answer (Bai et al. 2024, "LongBench: A Bilingual,
//! Multitask Benchmark for Long Context Understanding", table 1; `tasks/longbench/metrics.py` of
//! lm-evaluation-harness 0.4.13 and the packages rouge 1.0.1, fuzzywuzzy 0.18.0 and jieba 0.42.1 behind it).
//!
//! All measures lie between 0 and 1. Of several right answers the best one counts; that choice is made in
//! [`crate::score`].

mod rouge;
mod sequence_matcher;

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::LazyLock;

use jieba_rs::Jieba;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::python_regex::PythonRegex;
use crate::python_text::{is_space, strip};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// F1 of the words that reply and answer share, without case, punctuation and articles.
    QaF1,
    /// [`Self::QaF1`] of Chinese text, in the words that jieba finds.
    QaF1Zh,
    /// ROUGE-L of a summary.
    Rouge,
    /// [`Self::Rouge`] of Chinese text, in the words that jieba finds.
    RougeZh,
    /// Whether the reply names the right class, divided by the number of classes that it names. The classes
    /// are the choices of the task.
    Classification,
    /// The share of the numbers in the reply that are the right count.
    Count,
    /// The share of the numbers in the reply that are the number of the right paragraph.
    Retrieval,
    /// [`Self::Retrieval`] with Chinese answers.
    RetrievalZh,
    /// How alike the first line of code in the reply and the right line are.
    CodeSim,
}

impl Measure {
    /// The name in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::QaF1 => "qa_f1_score",
            Self::QaF1Zh => "qa_f1_zh_score",
            Self::Rouge => "rouge_score",
            Self::RougeZh => "rouge_zh_score",
            Self::Classification => "classification_score",
            Self::Count => "count_score",
            Self::Retrieval => "retrieval_score",
            Self::RetrievalZh => "retrieval_zh_score",
            Self::CodeSim => "code_sim_score",
        }
    }

    /// The score of `reply`, and whether it holds an answer at all: a number or a class, where one is asked
    /// for. `classes` are all classes of the task.
    pub fn score(self, reply: &str, answer: &str, classes: &[String]) -> Result<(f64, bool), Error> {
        // A line of code keeps its indentation.
        let reply = if self == Self::CodeSim { reply } else { strip(reply) };
        let always_parsed = |score| (score, true);
        Ok(match self {
            Self::QaF1 => always_parsed(f1(&words(reply)?, &words(answer)?)),
            Self::QaF1Zh => always_parsed(f1(&chinese_words(reply), &chinese_words(answer))),
            Self::Rouge => always_parsed(rouge::f_measure(reply, answer)?),
            Self::RougeZh => always_parsed(rouge::f_measure(&spaced(reply), &spaced(answer))?),
            Self::Classification => classification(reply, answer, classes),
            Self::Count => share_of_numbers(reply, answer)?,
            Self::Retrieval => share_of_numbers(reply, &paragraph(answer, r"Paragraph (\d+)")?)?,
            Self::RetrievalZh => share_of_numbers(reply, &paragraph(answer, r"段落(\d+)")?)?,
            Self::CodeSim => always_parsed(code_similarity(reply, answer)),
        })
    }
}

/// The harmonic mean of precision and recall of words, which count as often as they occur.
fn f1<T: Eq + Hash>(reply: &[T], answer: &[T]) -> f64 {
    let mut left: HashMap<&T, usize> = HashMap::new();
    for word in answer {
        *left.entry(word).or_default() += 1;
    }
    let mut shared = 0.0;
    for word in reply {
        if let Some(count) = left.get_mut(word).filter(|count| **count > 0) {
            *count -= 1;
            shared += 1.0;
        }
    }
    if shared == 0.0 {
        return 0.0;
    }
    let (precision, recall) = (shared / reply.len() as f64, shared / answer.len() as f64);
    (2.0 * precision * recall) / (precision + recall)
}

/// The words of English text, without case, ASCII punctuation and articles.
fn words(text: &str) -> Result<Vec<String>, Error> {
    static ARTICLES: LazyLock<PythonRegex> = LazyLock::new(|| {
        PythonRegex::new(r"\b(a|an|the)\b").expect("the pattern is a constant that a test compiles")
    });
    let mut text = text.to_lowercase();
    text.retain(|c| !c.is_ascii_punctuation());
    let text = ARTICLES.replace_all(&text, |_| " ".to_owned())?;
    Ok(text.split(is_space).filter(|word| !word.is_empty()).map(str::to_owned).collect())
}

/// The words of Chinese text, without case, white space and punctuation.
fn chinese_words(text: &str) -> Vec<String> {
    const PUNCTUATION: &str = "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣､、〃》「」『』【】〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏.";
    let is_left_out = |c: char| c.is_ascii_punctuation() || PUNCTUATION.contains(c) || is_space(c);
    let bare = |word: &&str| word.to_lowercase().replace(is_left_out, "");
    segmented(text).iter().map(bare).filter(|word| !word.is_empty()).collect()
}

/// Chinese text with a space after each word but the last.
fn spaced(text: &str) -> String {
    segmented(text).join(" ")
}

/// The words of Chinese text as `jieba.cut` returns them.
fn segmented(text: &str) -> Vec<&str> {
    static JIEBA: LazyLock<Jieba> = LazyLock::new(Jieba::new);
    JIEBA.cut(text, true).into_iter().map(|token| token.word).collect()
}

/// The score of a reply that names classes, and whether it names any. A class whose name is part of the right
/// one does not count, unless it follows another such class in the list: Python's loop skips the item after
/// one that it removes.
fn classification(reply: &str, answer: &str, classes: &[String]) -> (f64, bool) {
    let mut named: Vec<&str> =
        classes.iter().map(String::as_str).filter(|class| reply.contains(class)).collect();
    let parsed = !named.is_empty();
    let mut index = 0;
    while index < named.len() {
        if answer.contains(named[index]) && named[index] != answer {
            named.remove(index);
        }
        index += 1;
    }
    let hit = named.contains(&answer);
    (if hit { 1.0 / named.len() as f64 } else { 0.0 }, parsed)
}

/// The share of the numbers in `reply` that are `answer`, and whether there are any.
fn share_of_numbers(reply: &str, answer: &str) -> Result<(f64, bool), Error> {
    static NUMBER: LazyLock<PythonRegex> =
        LazyLock::new(|| PythonRegex::new(r"\d+").expect("the pattern is a constant that a test compiles"));
    let numbers = NUMBER.find_all(reply)?;
    if numbers.is_empty() {
        return Ok((0.0, false));
    }
    let right = numbers.iter().filter(|number| number[0] == answer).count();
    Ok((right as f64 / numbers.len() as f64, true))
}

/// The number of the paragraph that an answer names.
fn paragraph(answer: &str, pattern: &str) -> Result<String, Error> {
    let found = PythonRegex::new(pattern)?.find(answer, 0)?;
    let number = found.as_ref().and_then(|groups| groups.first());
    number.map(|number| (*number).to_owned()).ok_or_else(|| Error::BadColumn {
        key: "doc_to_target",
        problem: format!("gives {answer:?}, which does not match {pattern:?}"),
    })
}

/// `fuzz.ratio` of the right line and the first line of `reply` that is code.
fn code_similarity(reply: &str, answer: &str) -> f64 {
    let is_code = |line: &&str| !strip(line).is_empty() && !line.contains(['`', '#']) && !line.contains("//");
    let line = reply.split('\n').find(is_code).unwrap_or_default();
    if line == answer {
        return 1.0;
    }
    if line.is_empty() || answer.is_empty() {
        return 0.0;
    }
    (100.0 * sequence_matcher::ratio(line, answer)).round_ties_even() / 100.0
}

#[cfg(test)]
mod tests;
