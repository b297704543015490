//! Tokenized rows as the training stages use them: token ids and the other inputs of the loss.
//!
//! These are plain data types. Labels are not shifted: `labels[t]` is the id at position t, which is
//! predicted from positions before t, or [`IGNORE_INDEX`]. Masks and lengths are stored explicitly and are
//! never inferred from ids. This module does not depend on text or file formats.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::conversation::Message;

/// The label of a position without loss.
pub const IGNORE_INDEX: i64 = -100;

/// Returns the SHA-256 of token id sequences in their order, in hexadecimal. Lengths are hashed too, so
/// moving ids from one sequence to the next changes the hash.
pub fn content_hash(sequences: impl IntoIterator<Item = impl AsRef<[i64]>>) -> String {
    let mut hasher = Sha256::new();
    let mut bytes = Vec::new();
    for sequence in sequences {
        let sequence = sequence.as_ref();
        bytes.clear();
        bytes.extend_from_slice(&(sequence.len() as u64).to_le_bytes());
        bytes.extend(sequence.iter().flat_map(|id| id.to_le_bytes()));
        hasher.update(&bytes);
    }
    hasher.finalize().iter().fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"))
}

/// A supervised fine-tuning row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SftRow {
    /// Token ids, `[T]`.
    pub input_ids: Vec<i64>,
    /// The token id at positions with loss, [`IGNORE_INDEX`] at all others, `[T]`.
    pub labels: Vec<i64>,
}

impl SftRow {
    /// Returns the number of positions with loss. Label 0 is not counted, because no position before it can
    /// predict it.
    pub fn num_label_tokens(&self) -> usize {
        self.labels.iter().skip(1).filter(|&&label| label != IGNORE_INDEX).count()
    }
}

/// A preference pair: two completions of one prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PreferenceRow {
    /// Prompt and chosen (better) completion, `[P + C]`.
    pub chosen: Vec<i64>,
    /// Prompt and rejected (worse) completion, `[P + R]`.
    pub rejected: Vec<i64>,
    /// Number of prompt ids at the start of both sides, P.
    pub prompt_length: usize,
    /// How much better the chosen completion is, in units of reward.
    pub margin: Option<f64>,
}

/// A prompt for generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptRow {
    /// Token ids, with the generation prompt at the end, `[P]`.
    pub input_ids: Vec<i64>,
    /// The turns that the ids encode.
    pub messages: Vec<Message>,
    /// The tools that the assistant may call, which the ids describe. They are stored as JSON text.
    #[serde(with = "json_text")]
    pub tools: Option<Value>,
    /// The expected answer, for verifiers.
    pub answer: Option<String>,
}

/// A completion that is labelled good or bad by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnpairedRow {
    /// Prompt and completion, `[P + C]`.
    pub input_ids: Vec<i64>,
    /// Number of prompt ids, P.
    pub prompt_length: usize,
    /// Whether the completion is good.
    pub label: bool,
}

/// A value as JSON text, for formats that do not store the types of JSON values.
mod json_text {
    use serde::de::{DeserializeOwned, Error as _};
    use serde::ser::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<T: Serialize, S: Serializer>(
        value: &T,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serde_json::to_string(value).map_err(S::Error::custom)?.serialize(serializer)
    }

    pub(super) fn deserialize<'de, T: DeserializeOwned, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<T, D::Error> {
        serde_json::from_str(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}
