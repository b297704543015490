//! Whether rows of a benchmark stand in the training data: overlap of n-grams (Brown et al. 2020, arXiv
//! 2005.14165, appendix C, which uses 13 words).
//!
//! A text is split into words: runs of letters and digits in lower case; a character of Chinese, Japanese or
//! Korean is a word of its own. A text of fewer than n words is compared as a whole. The n-grams of the
//! documents are kept as 64-bit hashes, and the training texts are read past them once, so that memory grows
//! with the documents alone. Among a billion training n-grams, one in 10^10 would match a document by chance.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use datasets::{Row, TableReader};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Error;
use crate::evaluation::{Evaluation, ModelRun};

/// The words of an n-gram.
pub const WORDS: usize = 13;
/// The characters of an n-gram in a text without spaces.
pub const CHARACTERS: usize = 20;
/// A shorter text says too little to be compared.
const SHORTEST: usize = 5;

/// How many documents of a task the training data holds, and what a model scores on them and on the others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Contamination {
    /// The task.
    pub task: String,
    /// The model.
    pub model: String,
    /// The first metric of the task, with its filter.
    pub metric: String,
    /// The documents that the training data holds: an n-gram of one of their texts stands in it.
    pub contaminated: usize,
    /// All documents.
    pub checked: usize,
    /// The score on the documents that the training data does not hold.
    pub clean_score: Option<f64>,
    /// The score on those that it holds.
    pub dirty_score: Option<f64>,
}

/// For each task of an evaluation, whether the training data holds each of its documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlaps(Vec<Vec<bool>>);

impl Overlaps {
    /// Reads the training data: all texts of all rows of `files`.
    pub fn find(evaluation: &Evaluation, files: &[PathBuf]) -> Result<Self, Error> {
        let documents = || evaluation.tasks.iter().flat_map(|task| &task.documents.documents);
        let mut index = Index::for_documents(documents().flat_map(|document| texts(&document.row)));
        for file in files {
            index.add_file(file)?;
        }
        let is_held =
            |row: &Row| texts(row).iter().any(|text| index.overlap(text).is_some_and(|share| share > 0.0));
        let tasks = evaluation.tasks.iter();
        let of_task = |documents: &[crate::document::Document]| {
            documents.iter().map(|document| is_held(&document.row)).collect()
        };
        Ok(Self(tasks.map(|task| of_task(&task.documents.documents)).collect()))
    }

    /// What each model scores on both kinds of documents.
    pub fn scores(&self, evaluation: &Evaluation, runs: &[ModelRun]) -> Result<Vec<Contamination>, Error> {
        let mut found = Vec::new();
        for (index, prepared) in evaluation.tasks.iter().enumerate() {
            for run in runs {
                let held = &self.0[index];
                let part = |wanted: bool| {
                    let samples = run.samples[index].iter().zip(held);
                    let samples: Vec<_> = samples
                        .filter(|(_, held)| **held == wanted)
                        .map(|(sample, _)| sample.clone())
                        .collect();
                    prepared.scores(&samples).map(|scores| scores.into_iter().next())
                };
                let (clean, dirty) = (part(false)?, part(true)?);
                let named = clean.as_ref().or(dirty.as_ref());
                let metric = named.map_or_else(String::new, |score| match score.filter.as_str() {
                    "none" => score.metric.clone(),
                    filter => format!("{}, {filter}", score.metric),
                });
                found.push(Contamination {
                    task: prepared.task.task.clone(),
                    model: run.name.clone(),
                    metric,
                    contaminated: held.iter().filter(|held| **held).count(),
                    checked: held.len(),
                    clean_score: clean.map(|score| score.aggregated.value),
                    dirty_score: dirty.map(|score| score.aggregated.value),
                });
            }
        }
        Ok(found)
    }
}

/// All texts of a row, also those in lists and messages.
fn texts(row: &Row) -> Vec<String> {
    fn collect(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::String(text) => found.push(text.clone()),
            Value::Array(list) => list.iter().for_each(|value| collect(value, found)),
            Value::Object(object) => object.values().for_each(|value| collect(value, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    row.values().for_each(|value| collect(value, &mut found));
    found
}

/// The n-grams of documents, and which of them the training data holds.
#[derive(Debug, Default)]
struct Index {
    grams: HashMap<u64, bool>,
    /// The numbers of words of these n-grams.
    lengths: Vec<usize>,
}

impl Index {
    fn for_documents(documents: impl Iterator<Item = String>) -> Self {
        let mut index = Self::default();
        for document in documents {
            let words = words(&document);
            let length = length(&words);
            if length < SHORTEST {
                continue;
            }
            if !index.lengths.contains(&length) {
                index.lengths.push(length);
            }
            index.grams.extend(grams(&words, length).map(|gram| (gram, false)));
        }
        index
    }

    fn add_file(&mut self, file: &Path) -> Result<(), Error> {
        for row in TableReader::open(file)?.rows(None)? {
            for text in texts(&row?.1) {
                self.add(&text);
            }
        }
        Ok(())
    }

    /// Marks the n-grams that a training text holds.
    fn add(&mut self, text: &str) {
        let words = words(text);
        for &length in &self.lengths {
            for gram in grams(&words, length) {
                if let Some(held) = self.grams.get_mut(&gram) {
                    *held = true;
                }
            }
        }
    }

    /// The share of the n-grams of a document's text that the training data holds, from 0 to 1. `None` for a
    /// text that is too short to be compared.
    fn overlap(&self, document: &str) -> Option<f64> {
        let words = words(document);
        let length = length(&words);
        if length < SHORTEST {
            return None;
        }
        let held = |gram: &u64| self.grams.get(gram).copied().unwrap_or(false);
        let found = grams(&words, length).filter(held).count();
        Some(found as f64 / (words.len() + 1 - length) as f64)
    }
}

/// A word of a text.
#[derive(Clone, Copy, Debug)]
struct Word {
    hash: u64,
    /// Whether it is one character of a script without spaces.
    is_character: bool,
}

impl Word {
    fn new(text: &str, is_character: bool) -> Self {
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        Self { hash: hasher.finish(), is_character }
    }
}

/// The length of the n-grams of a text: [`WORDS`] or [`CHARACTERS`], or the whole text if it is shorter.
fn length(words: &[Word]) -> usize {
    let characters = words.iter().filter(|word| word.is_character).count();
    let full = if 2 * characters > words.len() { CHARACTERS } else { WORDS };
    full.min(words.len())
}

/// The hashes of the n-grams of a text.
fn grams(words: &[Word], length: usize) -> impl Iterator<Item = u64> {
    words.windows(length).map(|gram| {
        let mut hasher = DefaultHasher::new();
        for word in gram {
            hasher.write_u64(word.hash);
        }
        hasher.finish()
    })
}

/// The words of a text in lower case, without punctuation.
fn words(text: &str) -> Vec<Word> {
    let mut words: Vec<Word> = Vec::new();
    let mut word = String::new();
    let end = |word: &mut String, words: &mut Vec<Word>| {
        if !word.is_empty() {
            words.push(Word::new(word, false));
            word.clear();
        }
    };
    for c in text.chars().flat_map(char::to_lowercase) {
        if c.is_alphanumeric() && !is_character_word(c) {
            word.push(c);
            continue;
        }
        end(&mut word, &mut words);
        if is_character_word(c) {
            words.push(Word::new(c.encode_utf8(&mut [0; 4]), true));
        }
    }
    end(&mut word, &mut words);
    words
}

/// Whether a character is a word of its own: the scripts that are written without spaces.
fn is_character_word(c: char) -> bool {
    matches!(c, '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{ac00}'..='\u{d7af}' | '\u{f900}'..='\u{faff}'
        | '\u{20000}'..='\u{3134f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_n_gram_in_the_training_text_is_found_in_any_spelling() {
        let document = "One two three four five six seven eight nine ten eleven twelve thirteen fourteen.";
        let short = "what is the capital of france";
        let chinese = "一二三四五六七八九十一二三四五六七八九十甲";
        let mut index =
            Index::for_documents([document, short, chinese, "too short"].map(str::to_owned).into_iter());
        assert_eq!(index.overlap(document), Some(0.0));
        index.add("zero, ONE two three; four five six seven eight nine ten eleven twelve thirteen - end");
        index.add("Q: What is the capital of France? A: Paris");
        index.add("他说：一二三四五六七八九十，一二三四五六七八九十。");
        assert_eq!(index.overlap(document), Some(0.5));
        assert_eq!(index.overlap(short), Some(1.0));
        assert_eq!(index.overlap(chinese), Some(0.5));
        assert_eq!(index.overlap("too short"), None);
        assert_eq!(index.overlap("what is the capital of spain"), Some(0.0));
    }
}
