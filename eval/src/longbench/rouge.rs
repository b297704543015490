//! ROUGE-L of a summary (Lin 2004, "ROUGE: A Package for Automatic Evaluation of Summaries", section 3.2, as
//! `rouge_l_summary_level` of the Python package rouge 1.0.1 computes it).
//!
//! Sentences end at `.`. For each sentence of the answer, the words of its longest common subsequences with
//! all sentences of the reply are united. Every word counts once in the whole text, however often it occurs.
//! With u united words, m different words in the answer and n in the reply, recall is u/m and precision u/n.

use std::collections::HashSet;

use crate::Error;
use crate::python_text::is_space;

/// Keeps the F-measure of texts without a common word finite.
const EPSILON: f64 = 1e-8;

/// The largest product of the numbers of words of two sentences: a table of that size is filled.
const LARGEST_TABLE: usize = 1 << 28;

/// The F-measure of `reply`; 0 if either text has no sentence. Sentences whose table would be too large are
/// refused. (The package recurses once for each word and fails above some thousand words; the harness then
/// counts 0. Here such texts have their score.)
pub(super) fn f_measure(reply: &str, answer: &str) -> Result<f64, Error> {
    let (reply, answer) = (sentences(reply), sentences(answer));
    if reply.is_empty() || answer.is_empty() {
        return Ok(0.0);
    }
    let longest = |sentences: &[Vec<&str>]| sentences.iter().map(Vec::len).max().unwrap_or(0);
    let (in_reply, in_answer) = (longest(&reply), longest(&answer));
    if in_reply.saturating_mul(in_answer) > LARGEST_TABLE {
        return Err(Error::TooLongForRouge { in_reply, in_answer });
    }
    let mut united: HashSet<&str> = HashSet::new();
    for sentence in &answer {
        for other in &reply {
            united.extend(longest_common_subsequence(sentence, other));
        }
    }
    let share = |sentences: &[Vec<&str>]| {
        let different: HashSet<&str> = sentences.iter().flatten().copied().collect();
        united.len() as f64 / different.len() as f64
    };
    let (recall, precision) = (share(&answer), share(&reply));
    Ok(2.0 * ((precision * recall) / (precision + recall + EPSILON)))
}

/// The words of each sentence. A sentence of white space alone has one word, the empty one.
fn sentences(text: &str) -> Vec<Vec<&str>> {
    let mut sentences: Vec<Vec<&str>> = Vec::new();
    for sentence in text.split('.').filter(|sentence| !sentence.is_empty()) {
        let words: Vec<&str> = sentence.split(is_space).filter(|word| !word.is_empty()).collect();
        sentences.push(if words.is_empty() { vec![""] } else { words });
    }
    sentences
}

/// The words of a longest common subsequence. Of several, it is the one that the package finds: from the end,
/// it goes back in `left` only where that is better than to go back in `right`.
fn longest_common_subsequence<'t>(left: &[&'t str], right: &[&str]) -> Vec<&'t str> {
    let width = right.len() + 1;
    let mut lengths = vec![0_u32; (left.len() + 1) * width];
    for (i, word) in left.iter().enumerate() {
        for (j, other) in right.iter().enumerate() {
            let (above, here) = (i * width + j, (i + 1) * width + j);
            lengths[here + 1] =
                if word == other { lengths[above] + 1 } else { lengths[above + 1].max(lengths[here]) };
        }
    }

    let (mut i, mut j) = (left.len(), right.len());
    let mut found = Vec::new();
    while i > 0 && j > 0 {
        if left[i - 1] == right[j - 1] {
            found.push(left[i - 1]);
            (i, j) = (i - 1, j - 1);
        } else if lengths[(i - 1) * width + j] > lengths[i * width + j - 1] {
            i -= 1;
        } else {
            j -= 1;
        }
    }
    found
}
