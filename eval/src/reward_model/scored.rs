//! Files of rows with their scores.

use serde_json::{Value, json};

use super::entry::{DataFile, Entry, Facts};

/// A file with the scores of its replies.
#[derive(Clone, Debug)]
pub struct ScoredFile {
    /// The rows.
    pub data: DataFile,
    /// The score of each reply of each entry; all are finite.
    pub scores: Vec<Vec<f64>>,
    /// The replies whose conversation was cut, because it was too long for the model.
    pub cut: usize,
}

/// An entry with its scores.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScoredEntry<'a> {
    pub(super) entry: &'a Entry,
    pub(super) scores: &'a [f64],
}

impl<'a> ScoredEntry<'a> {
    pub(super) fn pair(self) -> Option<ScoredPair<'a>> {
        let Self { entry, scores: &[chosen, rejected] } = self else { return None };
        let length = |index: usize| entry.replies[index].chars().count();
        (entry.facts == Facts::Pair).then(|| ScoredPair {
            group: &entry.group,
            chosen,
            rejected,
            chosen_length: length(0),
            rejected_length: length(1),
        })
    }
}

/// A pair with its scores and the lengths of its replies, in characters.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScoredPair<'a> {
    pub(super) group: &'a str,
    pub(super) chosen: f64,
    pub(super) rejected: f64,
    pub(super) chosen_length: usize,
    pub(super) rejected_length: usize,
}

impl ScoredPair<'_> {
    pub(super) fn margin(&self) -> f64 {
        self.chosen - self.rejected
    }

    pub(super) fn is_right(&self) -> bool {
        self.chosen > self.rejected
    }

    pub(super) fn is_tie(&self) -> bool {
        self.chosen == self.rejected
    }
}

impl ScoredFile {
    pub(super) fn entries(&self) -> Vec<ScoredEntry<'_>> {
        let entries = self.data.entries.iter().zip(&self.scores);
        entries.map(|(entry, scores)| ScoredEntry { entry, scores }).collect()
    }

    pub(super) fn pairs(&self) -> Vec<ScoredPair<'_>> {
        self.entries().into_iter().filter_map(ScoredEntry::pair).collect()
    }

    /// One row for each entry: the conversation, the replies, and their scores.
    pub fn sample_rows(&self) -> impl Iterator<Item = Value> + '_ {
        self.data.entries.iter().zip(&self.scores).map(|(entry, scores)| {
            let mut row = json!({
                "file": self.data.name,
                "row": entry.at.row,
                "group": entry.group,
                "prompt": entry.prompt,
            });
            match (&entry.facts, scores.as_slice()) {
                (Facts::Pair, &[chosen, rejected]) => {
                    row["chosen"] = json!(entry.replies[0]);
                    row["rejected"] = json!(entry.replies[1]);
                    row["chosen_score"] = json!(chosen);
                    row["rejected_score"] = json!(rejected);
                    row["margin"] = json!(chosen - rejected);
                }
                (facts, scores) => {
                    row["replies"] = json!(entry.replies);
                    row["scores"] = json!(scores);
                    match facts {
                        Facts::Gold(gold) => row["gold"] = json!(gold),
                        Facts::Completions { id, correct } => {
                            row["id"] = json!(id);
                            row["num_correct"] = json!(correct);
                        }
                        Facts::Pair => {}
                    }
                }
            }
            row
        })
    }
}
