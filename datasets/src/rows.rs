//! Rows as the training stages take them: token ids, with what the loss needs to know beside them.
//!
//! Plain data. Labels are not shifted: `labels[t]` is the id at position t, to be predicted from positions before t, or
//! [`IGNORE_INDEX`]. Masks and lengths are carried here and never derived from ids. Knows no text and no file.

use serde::{Deserialize, Serialize};

use crate::conversation::Message;

/// The label of a position that takes no part in the loss.
pub const IGNORE_INDEX: i64 = -100;

/// A row of supervised fine-tuning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SftRow {
    /// Token ids, `[T]`.
    pub input_ids: Vec<i64>,
    /// The same ids where the loss counts, [`IGNORE_INDEX`] elsewhere, `[T]`.
    pub labels: Vec<i64>,
}

impl SftRow {
    /// Positions that count in the loss: label 0 has nothing before it to be predicted from.
    pub fn num_label_tokens(&self) -> usize {
        self.labels.iter().skip(1).filter(|&&label| label != IGNORE_INDEX).count()
    }
}

/// A pair of answers to one prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PreferenceRow {
    /// Prompt and better answer, `[P + C]`.
    pub chosen: Vec<i64>,
    /// Prompt and worse answer, `[P + R]`.
    pub rejected: Vec<i64>,
    /// Ids of the prompt at the head of both, P.
    pub prompt_length: usize,
    /// By how much the one is better, in units of reward.
    pub margin: Option<f64>,
}

/// A prompt to answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptRow {
    /// Token ids, with the generation prompt at the end, `[P]`.
    pub input_ids: Vec<i64>,
    /// The turns behind the ids.
    pub messages: Vec<Message>,
    /// The expected answer, for verifiers.
    pub answer: Option<String>,
}

/// An answer that is good or bad by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnpairedRow {
    /// Prompt and answer, `[P + C]`.
    pub input_ids: Vec<i64>,
    /// Ids of the prompt, P.
    pub prompt_length: usize,
    /// Whether the answer is good.
    pub label: bool,
}
