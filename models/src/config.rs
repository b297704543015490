//! A HF `config.json`: the content of the file, and the [`Architecture`] that it describes.
//!
//! All keys of the source are kept, so a saved file contains everything that transformers wrote. Only the
//! keys that depend on the new weights are changed. This module knows nothing about weights.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::architecture::{Architecture, Position};
use crate::fields::Fields;
use crate::quantize::{Quantization, settings};
use crate::{Error, family};

/// The maximum size in bytes of a JSON file in a model folder.
const LARGEST_TEXT: u64 = 32 << 20;

/// A parsed and checked `config.json`.
#[derive(Clone, Debug)]
pub struct Config {
    origin: String,
    raw: Map<String, Value>,
    architecture: Architecture,
    quantization: Option<Quantization>,
}

impl Config {
    /// Reads `folder/config.json`.
    pub fn from_folder(folder: &Path) -> Result<Self, Error> {
        let path = folder.join("config.json");
        let text = read_text(&path)?;
        Self::from_json(&text, &path.display().to_string())
    }

    /// Parses the text of a `config.json`. `origin` names the file in error messages.
    pub fn from_json(text: &str, origin: &str) -> Result<Self, Error> {
        let raw: Map<String, Value> =
            serde_json::from_str(text).map_err(|source| Error::Json { path: origin.to_owned(), source })?;
        let fields = Fields::new(&raw, origin);
        let (architecture, quantization) = (family::resolve(&fields)?, settings::quantization(&fields)?);
        Ok(Self { origin: origin.to_owned(), raw, architecture, quantization })
    }

    /// The resolved architecture.
    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    /// How the files of the model hold the weights of its linear layers; `None` for numbers.
    pub fn quantization(&self) -> Option<Quantization> {
        self.quantization
    }

    /// Where the configuration came from.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// The configuration as JSON text: the keys of the source in their order, then the added keys.
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(&self.raw).expect("a JSON map has only text keys");
        text.push('\n');
        text
    }

    /// The value of a key; `None` if it is absent or null.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.raw.get(key).filter(|value| !value.is_null())
    }

    /// Sets a key, then resolves and checks the configuration again.
    pub fn set(&mut self, key: &str, value: Value) -> Result<(), Error> {
        self.raw.insert(key.to_owned(), value);
        let fields = Fields::new(&self.raw, &self.origin);
        (self.architecture, self.quantization) =
            (family::resolve(&fields)?, settings::quantization(&fields)?);
        Ok(())
    }

    /// The number of rows of the token embedding.
    pub fn vocab_size(&self) -> i64 {
        self.architecture.vocab_size
    }

    /// Width of the residual stream.
    pub fn hidden_size(&self) -> i64 {
        self.architecture.hidden_size
    }

    /// The coefficient of the load-balancing auxiliary loss in training; 0 for a model without experts.
    pub fn router_aux_loss_coef(&self) -> f64 {
        self.architecture.experts.as_ref().map_or(0.0, |experts| experts.router_aux_loss_coef)
    }

    /// The number of blocks.
    pub fn num_layers(&self) -> i64 {
        self.architecture.num_layers
    }

    /// The number of query heads.
    pub fn num_heads(&self) -> i64 {
        self.architecture.num_heads
    }

    /// The number of key-value heads.
    pub fn num_kv_heads(&self) -> i64 {
        self.architecture.num_kv_heads
    }

    /// Width of one head.
    pub fn head_dim(&self) -> i64 {
        self.architecture.head_dim
    }

    /// The number of positions that the model was trained for.
    pub fn max_positions(&self) -> i64 {
        self.architecture.max_positions
    }

    /// The end-of-sequence token ids: `eos_token_id` is one number or a list. Empty if there is none.
    pub fn eos_token_ids(&self) -> Vec<i64> {
        match self.value("eos_token_id") {
            Some(Value::Array(ids)) => ids.iter().filter_map(Value::as_i64).collect(),
            Some(id) => id.as_i64().into_iter().collect(),
            None => Vec::new(),
        }
    }

    /// The padding token id. This project never pads, but other software that loads the model does.
    pub fn pad_token_id(&self) -> Option<i64> {
        self.value("pad_token_id").and_then(Value::as_i64)
    }

    /// Whether the model has a scalar head instead of a vocabulary head.
    pub fn is_sequence_classification(&self) -> bool {
        self.classes().any(|name| name.ends_with("ForSequenceClassification"))
    }

    /// The transformers class named in `architectures`, if it has a head other than a vocabulary head.
    pub(crate) fn other_head_class(&self) -> Option<&str> {
        const ENDS: [&str; 4] = [
            "ForSequenceClassification",
            "ForTokenClassification",
            "ForQuestionAnswering",
            "ForMultipleChoice",
        ];
        self.classes().find(|name| ENDS.iter().any(|end| name.ends_with(end)))
    }

    /// The class names in `architectures`.
    fn classes(&self) -> impl Iterator<Item = &str> {
        let names = self.value("architectures").and_then(Value::as_array);
        names.into_iter().flatten().filter_map(Value::as_str)
    }

    /// Returns an error if a vocabulary of `needed` tokens has more ids than the embedding. `what` names it
    /// in the error.
    pub fn check_vocabulary(&self, what: &str, needed: i64) -> Result<(), Error> {
        if needed <= self.vocab_size() {
            return Ok(());
        }
        Err(Error::VocabMismatch {
            origin: self.origin.clone(),
            model: self.vocab_size(),
            what: what.to_owned(),
            needed,
        })
    }

    /// Returns an error if a training row is longer than the model's positions.
    pub fn check_length(&self, what: &str, length: usize) -> Result<(), Error> {
        self.check_positions(what, length, |limit, stretches| {
            let fix = format!("set [data] max_length to {limit} or less");
            if !stretches {
                return fix;
            }
            let keys = "`rope_scaling` and a larger `max_position_embeddings` in config.json";
            format!("{fix}, or stretch the rotations with {keys}")
        })
    }

    /// Returns an error if a prompt with its reply is longer than the model's positions.
    pub fn check_reply(&self, what: &str, length: usize) -> Result<(), Error> {
        self.check_positions(what, length, |limit, _| {
            format!("lower [data] max_length and [ppo] max_new_tokens until they add up to {limit} or less")
        })
    }

    /// `fix` makes the advice in the error from the maximum number of tokens and a flag for rotary
    /// embeddings, which can be stretched.
    fn check_positions(
        &self,
        what: &str,
        length: usize,
        fix: impl Fn(i64, bool) -> String,
    ) -> Result<(), Error> {
        let Some(limit) = self.architecture.position_limit().filter(|&limit| length as i64 > limit) else {
            return Ok(());
        };
        let stretches = matches!(self.architecture.position, Position::Rope(_));
        let (origin, what, fix) = (self.origin.clone(), what.to_owned(), fix(limit, stretches));
        Err(Error::TooManyTokens { origin, limit, what, length, fix })
    }

    /// The keys and values of all dropout probabilities above 0 that transformers would use in training: the
    /// values in the file, and the family's defaults for keys that the file does not have. This project never
    /// applies dropout.
    pub fn dropout(&self) -> Vec<(&'static str, f64)> {
        const KEYS: [&str; 7] = [
            "attention_dropout",
            "hidden_dropout",
            "dropout",
            "activation_dropout",
            "attn_pdrop",
            "embd_pdrop",
            "resid_pdrop",
        ];

        let silent: &[&str] = match self.raw.get("model_type").and_then(Value::as_str) {
            Some("gpt2") => &["attn_pdrop", "embd_pdrop", "resid_pdrop"],
            Some("opt") => &["dropout"],
            _ => &[],
        };
        let share = |key| match self.raw.get(key) {
            Some(value) => value.as_f64().unwrap_or(0.0),
            None if silent.contains(&key) => 0.1,
            None => 0.0,
        };
        KEYS.map(|key| (key, share(key))).into_iter().filter(|(_, share)| *share > 0.0).collect()
    }

    /// The configuration of the same model with a vocabulary head and weights in dtype `kind`.
    pub(crate) fn for_causal_lm(&self, kind: tch::Kind) -> Self {
        let mut config = self.with_dtype(kind);
        config
            .raw
            .insert("architectures".to_owned(), json!([self.class(self.architecture.names.causal_suffix)]));
        for key in ["num_labels", "id2label", "label2id", "problem_type"] {
            config.raw.shift_remove(key);
        }
        config
    }

    /// The configuration of the same model with a scalar head and weights in dtype `kind`. transformers finds
    /// the last token of a row by `pad_token_id`. If that key is missing or is an end-of-sequence token, it
    /// is set to the first id that is not one, because rows end with the end-of-sequence token, which must be
    /// scored.
    pub(crate) fn for_sequence_classification(&self, kind: tch::Kind) -> Self {
        let mut config = self.with_dtype(kind);
        config.raw.insert("architectures".to_owned(), json!([self.class("ForSequenceClassification")]));
        config.raw.insert("num_labels".to_owned(), json!(1));
        config.raw.insert("id2label".to_owned(), json!({"0": "LABEL_0"}));
        config.raw.insert("label2id".to_owned(), json!({"LABEL_0": 0}));
        let eos_ids = self.eos_token_ids();
        if config.pad_token_id().is_none_or(|pad| eos_ids.contains(&pad)) {
            let pad = (0..self.vocab_size()).find(|id| !eos_ids.contains(id)).unwrap_or(0);
            config.raw.insert("pad_token_id".to_owned(), json!(pad));
        }
        config
    }

    fn class(&self, suffix: &str) -> String {
        format!("{}{suffix}", self.architecture.names.class)
    }

    /// The same configuration for weights that are numbers of this kind.
    fn with_dtype(&self, kind: tch::Kind) -> Self {
        let mut config = self.clone().without_codes();
        let key = if self.raw.contains_key("torch_dtype") { "torch_dtype" } else { "dtype" };
        config.raw.insert(key.to_owned(), json!(dtype_name(kind)));
        config
    }

    /// The same configuration for weights that are numbers.
    #[must_use]
    pub(crate) fn without_codes(mut self) -> Self {
        self.raw.shift_remove(settings::KEY);
        self.quantization = None;
        self
    }

    /// The same configuration for weights that are held as those of `other` are.
    #[must_use]
    pub(crate) fn held_as(self, other: &Self) -> Self {
        let mut config = self.without_codes();
        if let Some(value) = other.value(settings::KEY) {
            config.raw.insert(settings::KEY.to_owned(), value.clone());
        }
        config.quantization = other.quantization;
        config
    }
}

/// The name of a kind of numbers in `config.json`, which is torch's.
pub(crate) fn dtype_name(kind: tch::Kind) -> &'static str {
    match kind {
        tch::Kind::BFloat16 => "bfloat16",
        tch::Kind::Half => "float16",
        tch::Kind::Double => "float64",
        _ => "float32",
    }
}

/// Reads a small text file. Files above 32 MiB are errors, because a parsed file takes up to 36 times as
/// much, and so are pipes and devices, because reading a pipe could block forever.
pub(crate) fn read_text(path: &Path) -> Result<String, Error> {
    let io = |source| Error::Io { path: path.to_owned(), source };
    let about = std::fs::metadata(path).map_err(io)?;
    if !about.is_file() {
        return Err(io(std::io::Error::other("it is a folder, a pipe or a device")));
    }
    if about.len() > LARGEST_TEXT {
        return Err(io(std::io::Error::other(format!(
            "it has {} bytes, which is too large for such a file",
            about.len()
        ))));
    }
    std::fs::read_to_string(path).map_err(io)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LLAMA: &str = r#"{"model_type": "llama", "vocab_size": 8, "hidden_size": 4, "intermediate_size": 6,
        "num_hidden_layers": 1, "num_attention_heads": 2, "mystery": {"b": 1, "a": [2.50]}}"#;

    #[test]
    fn unknown_keys_survive_in_their_order() {
        let config = Config::from_json(LLAMA, "test").unwrap().for_causal_lm(tch::Kind::Float);
        let text = config.to_json();
        let saved: Map<String, Value> = serde_json::from_str(&text).unwrap();
        assert_eq!(saved["mystery"].to_string(), r#"{"b":1,"a":[2.5]}"#);
        assert_eq!(saved.keys().next().unwrap(), "model_type");
        assert_eq!(saved["architectures"], json!(["LlamaForCausalLM"]));
        assert_eq!(saved["dtype"], "float32");
    }

    #[test]
    fn a_score_gets_one_label_and_a_pad_id() {
        let config =
            Config::from_json(&LLAMA.replace("\"mystery\"", "\"eos_token_id\": [7, 3], \"mystery\""), "t");
        let saved = config.unwrap().for_sequence_classification(tch::Kind::Float);
        assert_eq!(saved.pad_token_id(), Some(0));
        assert_eq!(saved.value("num_labels"), Some(&json!(1)));
    }

    #[test]
    fn a_pad_id_that_ends_a_text_is_replaced_in_a_score() {
        let with = |pad: u8| {
            let keys = format!("\"eos_token_id\": 3, \"pad_token_id\": {pad}, \"mystery\"");
            Config::from_json(&LLAMA.replace("\"mystery\"", &keys), "t")
                .unwrap()
                .for_sequence_classification(tch::Kind::Float)
        };
        assert_eq!((with(3).pad_token_id(), with(5).pad_token_id()), (Some(0), Some(5)));
    }

    #[test]
    fn a_row_beyond_a_table_of_positions_is_refused() {
        let gpt2 = r#"{"model_type": "gpt2", "vocab_size": 8, "n_embd": 4, "n_layer": 1, "n_head": 2, "n_positions": 16}"#;
        let config = Config::from_json(gpt2, "dir").unwrap();
        config.check_length("the longest row", 16).unwrap();
        let error = config.check_length("the longest row", 17).unwrap_err().to_string();
        assert!(
            error.starts_with("dir: the model has 16 positions and the longest row has 17 tokens"),
            "{error}"
        );
        assert!(error.ends_with("set [data] max_length to 16 or less"), "{error}");
    }

    #[test]
    fn a_row_beyond_trained_rotations_is_refused_and_biases_have_no_end() {
        let with = |keys: &str| {
            let text = LLAMA.replacen('{', &format!("{{\"max_position_embeddings\": 16, {keys}"), 1);
            Config::from_json(&text, "dir").unwrap()
        };
        let scaled = |rope: &str| format!("\"rope_scaling\": {{{rope}}}, ");
        for (keys, limit) in [
            (String::new(), 16),
            // Linear scaling divides positions by 2, but the model was trained for the positions in the file.
            (scaled("\"type\": \"linear\", \"factor\": 2.0"), 16),
            (scaled("\"type\": \"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": 4"), 16),
            // Dynamic scaling starts after the positions in the file.
            (scaled("\"type\": \"dynamic\", \"factor\": 2.0"), 32),
        ] {
            let config = with(&keys);
            config.check_length("the longest row", limit).unwrap();
            let error = config.check_length("the longest row", limit + 1).unwrap_err().to_string();
            assert!(error.contains(&format!("the model has {limit} positions")), "{error}");
            assert!(
                error.contains(&format!("set [data] max_length to {limit} or less, or stretch")),
                "{error}"
            );
        }
        let bloom = r#"{"model_type": "bloom", "vocab_size": 8, "hidden_size": 4, "n_layer": 1, "n_head": 2,
            "seq_length": 16}"#;
        Config::from_json(bloom, "dir").unwrap().check_length("the longest row", 1 << 20).unwrap();
    }

    #[test]
    fn dropout_is_what_the_file_or_its_family_says() {
        let of = |text: &str| Config::from_json(text, "dir").unwrap().dropout();
        assert_eq!(of(LLAMA), []);
        let llama = LLAMA.replacen('{', r#"{"attention_dropout": 0.1, "hidden_dropout": 0.0, "#, 1);
        assert_eq!(of(&llama), [("attention_dropout", 0.1)]);
        let gpt2 = r#"{"model_type": "gpt2", "vocab_size": 8, "n_embd": 4, "n_layer": 1, "n_head": 2,
            "attn_pdrop": 0}"#;
        assert_eq!(of(gpt2), [("embd_pdrop", 0.1), ("resid_pdrop", 0.1)]);
    }

    #[test]
    fn a_vocabulary_beyond_the_embedding_is_refused() {
        let config = Config::from_json(LLAMA, "dir").unwrap();
        config.check_vocabulary("the tokenizer", 8).unwrap();
        let error = config.check_vocabulary("the tokenizer", 9).unwrap_err().to_string();
        assert!(error.contains("embeddings for 8 tokens and the tokenizer needs 9"), "{error}");
    }
}
