//! Whether rows of a benchmark stand in the training data: overlap of n-grams (Brown et al. 2020, arXiv
//! 2005.14165, appendix C, which uses 13 words).
//!
//! A text is split into words: runs of letters and digits in lower case; a character of Chinese, Japanese or
//! Korean is a word of its own. The n-grams of the training texts are kept as 64-bit hashes, so that a large
//! set fits in memory; among a billion of them, one in 10^10 texts would match by chance. A document whose
//! question is shorter than n words is compared as a whole.

use std::collections::HashSet;
use std::hash::{BuildHasher, Hasher};

use sha2::{Digest, Sha256};

/// The words of an n-gram.
pub const WORDS: usize = 13;
/// The characters of an n-gram in a text without spaces.
pub const CHARACTERS: usize = 20;
/// A shorter text says too little to be compared.
const SHORTEST: usize = 5;

/// The n-grams of training texts.
#[derive(Debug, Default)]
pub struct Index {
    grams: HashSet<u64, Identity>,
    /// Shorter lengths for which documents were registered before the texts were read.
    lengths: Vec<usize>,
}

/// A hash is its own hash.
#[derive(Clone, Copy, Debug, Default)]
pub struct Identity(u64);

impl BuildHasher for Identity {
    type Hasher = Self;

    fn build_hasher(&self) -> Self {
        Self(0)
    }
}

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 << 8) | u64::from(byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

impl Index {
    /// An index for documents of these texts. Texts shorter than an n-gram are compared as a whole, so their
    /// lengths must be known before the training texts are read.
    pub fn for_documents<'a>(documents: impl Iterator<Item = &'a str>) -> Self {
        let mut lengths: Vec<usize> = documents.map(|text| length(&words(text))).collect();
        lengths.sort_unstable();
        lengths.dedup();
        Self { grams: HashSet::default(), lengths: lengths.into_iter().filter(|&n| n >= SHORTEST).collect() }
    }

    /// Adds the n-grams of a training text.
    pub fn add(&mut self, text: &str) {
        let words = words(text);
        for &length in &self.lengths {
            for gram in words.windows(length) {
                self.grams.insert(hash(gram));
            }
        }
    }

    /// The share of the document's n-grams that stand in the training texts, from 0 to 1. `None` for a text
    /// that is too short to be compared.
    pub fn overlap(&self, document: &str) -> Option<f64> {
        let words = words(document);
        let length = length(&words);
        if length < SHORTEST {
            return None;
        }
        let grams: Vec<u64> = words.windows(length).map(hash).collect();
        let found = grams.iter().filter(|gram| self.grams.contains(gram)).count();
        Some(found as f64 / grams.len() as f64)
    }
}

/// The length of the n-grams of a text: that of [`WORDS`] or [`CHARACTERS`], or the whole text if it is
/// shorter.
fn length(words: &[String]) -> usize {
    let characters = words.iter().filter(|word| word.chars().all(is_character_word)).count();
    let full = if 2 * characters > words.len() { CHARACTERS } else { WORDS };
    full.min(words.len())
}

/// The words of a text in lower case, without punctuation.
fn words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut word = String::new();
    for c in text.chars().flat_map(char::to_lowercase) {
        if c.is_alphanumeric() && !is_character_word(c) {
            word.push(c);
            continue;
        }
        if !word.is_empty() {
            words.push(std::mem::take(&mut word));
        }
        if is_character_word(c) {
            words.push(c.to_string());
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

/// Whether a character is a word of its own: the scripts that are written without spaces.
fn is_character_word(c: char) -> bool {
    matches!(c, '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{ac00}'..='\u{d7af}' | '\u{f900}'..='\u{faff}'
        | '\u{20000}'..='\u{3134f}')
}

fn hash(gram: &[String]) -> u64 {
    let mut hash = Sha256::new();
    for word in gram {
        hash.update(word);
        hash.update([0]);
    }
    let digest = hash.finalize();
    u64::from_be_bytes(digest[..8].try_into().expect("a digest has 32 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_n_gram_in_the_training_text_is_found_in_any_spelling() {
        let document = "One two three four five six seven eight nine ten eleven twelve thirteen fourteen.";
        let short = "what is the capital of france";
        let chinese = "一二三四五六七八九十一二三四五六七八九十甲";
        let mut index = Index::for_documents([document, short, chinese, "too short"].into_iter());
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
