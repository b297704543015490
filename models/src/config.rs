//! A HF `config.json`: the file as it was, and the [`Architecture`] that it means.
//!
//! The source text is kept key by key, so that what is saved beside new weights is what transformers wrote, with only the keys
//! changed that the new weights change. Knows no weights.

mod fields;

use std::path::Path;

use serde_json::{Map, Value, json};

pub use self::fields::Fields;
use crate::architecture::{Architecture, Position};
use crate::{Error, family};

/// The most bytes of a JSON file beside weights.
const LARGEST_TEXT: u64 = 100_000_000;

/// A parsed and checked `config.json`.
#[derive(Clone, Debug)]
pub struct Config {
    origin: String,
    raw: Map<String, Value>,
    architecture: Architecture,
}

impl Config {
    /// Reads `folder/config.json`.
    pub fn from_folder(folder: &Path) -> Result<Self, Error> {
        let path = folder.join("config.json");
        let text = read_text(&path)?;
        Self::from_json(&text, &path.display().to_string())
    }

    /// Parses the text of a `config.json`; `origin` names it in messages.
    pub fn from_json(text: &str, origin: &str) -> Result<Self, Error> {
        let raw: Map<String, Value> =
            serde_json::from_str(text).map_err(|source| Error::Json { path: origin.to_owned(), source })?;
        let architecture = family::resolve(&Fields::new(&raw, origin))?;
        Ok(Self { origin: origin.to_owned(), raw, architecture })
    }

    /// The resolved architecture.
    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    /// Where the configuration came from.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// The text of the file: the keys of the source in their order, then those that were added.
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(&self.raw).expect("a JSON map has only text keys");
        text.push('\n');
        text
    }

    /// The value of a key of the source; `None` where it is absent or null.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.raw.get(key).filter(|value| !value.is_null())
    }

    /// Sets a key of the file and checks the result anew.
    pub fn set(&mut self, key: &str, value: Value) -> Result<(), Error> {
        self.raw.insert(key.to_owned(), value);
        self.architecture = family::resolve(&Fields::new(&self.raw, &self.origin))?;
        Ok(())
    }

    /// Rows of the token embedding.
    pub fn vocab_size(&self) -> i64 {
        self.architecture.vocab_size
    }

    /// Width of the residual stream.
    pub fn hidden_size(&self) -> i64 {
        self.architecture.hidden_size
    }

    /// The weight of the term that keeps experts equally busy, in training; 0 without it.
    pub fn router_aux_loss_coef(&self) -> f64 {
        self.architecture.experts.as_ref().map_or(0.0, |experts| experts.router_aux_loss_coef)
    }

    /// Blocks.
    pub fn num_layers(&self) -> i64 {
        self.architecture.num_layers
    }

    /// Query heads.
    pub fn num_heads(&self) -> i64 {
        self.architecture.num_heads
    }

    /// Key and value heads.
    pub fn num_kv_heads(&self) -> i64 {
        self.architecture.num_kv_heads
    }

    /// Width of one head.
    pub fn head_dim(&self) -> i64 {
        self.architecture.head_dim
    }

    /// Positions that the model was made for.
    pub fn max_positions(&self) -> i64 {
        self.architecture.max_positions
    }

    /// The ids that end a text: `eos_token_id` as one number or a list; empty where there is none.
    pub fn eos_token_ids(&self) -> Vec<i64> {
        match self.value("eos_token_id") {
            Some(Value::Array(ids)) => ids.iter().filter_map(Value::as_i64).collect(),
            Some(id) => id.as_i64().into_iter().collect(),
            None => Vec::new(),
        }
    }

    /// The id that fills up a row for software that needs rows of equal length.
    pub fn pad_token_id(&self) -> Option<i64> {
        self.value("pad_token_id").and_then(Value::as_i64)
    }

    /// Whether the folder holds a model with a score in place of a vocabulary head.
    pub fn is_sequence_classification(&self) -> bool {
        self.classes().any(|name| name.ends_with("ForSequenceClassification"))
    }

    /// The class of transformers that has neither a vocabulary head nor none, if `architectures` names one.
    pub(crate) fn other_head_class(&self) -> Option<&str> {
        const ENDS: [&str; 4] = [
            "ForSequenceClassification",
            "ForTokenClassification",
            "ForQuestionAnswering",
            "ForMultipleChoice",
        ];
        self.classes().find(|name| ENDS.iter().any(|end| name.ends_with(end)))
    }

    /// The names under `architectures`.
    fn classes(&self) -> impl Iterator<Item = &str> {
        let names = self.value("architectures").and_then(Value::as_array);
        names.into_iter().flatten().filter_map(Value::as_str)
    }

    /// Refuses a vocabulary that has ids beyond the embedding.
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

    /// Refuses a row of training that is longer than the model's positions.
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

    /// Refuses a reply that runs beyond the model's positions together with its prompt.
    pub fn check_reply(&self, what: &str, length: usize) -> Result<(), Error> {
        self.check_positions(what, length, |limit, _| {
            format!("lower [data] max_length and [ppo] max_new_tokens until they add up to {limit} or less")
        })
    }

    /// `fix` says what to do, from the most tokens and whether positions are rotations that can be stretched.
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

    /// The shares above 0 that transformers would drop in training, by their keys: those of the file, and
    /// those that its family drops where the file is silent. Nothing is dropped here.
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

    /// The same model with a vocabulary head, its weights stored as `kind`.
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

    /// The same model with a score, its weights stored as `kind`. transformers finds the last token by `pad_token_id`:
    /// where that is missing, or ends a text, the first id is written that ends none, since a row ends with the token that is
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

    fn with_dtype(&self, kind: tch::Kind) -> Self {
        let name = match kind {
            tch::Kind::BFloat16 => "bfloat16",
            tch::Kind::Half => "float16",
            tch::Kind::Double => "float64",
            _ => "float32",
        };
        let mut config = self.clone();
        let key = if self.raw.contains_key("torch_dtype") { "torch_dtype" } else { "dtype" };
        config.raw.insert(key.to_owned(), json!(name));
        config
    }
}

/// The text of a small file. What is no file (a pipe would be waited for without end), or has 100 MB, is
/// refused.
pub(crate) fn read_text(path: &Path) -> Result<String, Error> {
    let io = |source| Error::Io { path: path.to_owned(), source };
    let about = std::fs::metadata(path).map_err(io)?;
    if !about.is_file() {
        return Err(io(std::io::Error::other("it is a folder, a pipe or a device")));
    }
    if about.len() > LARGEST_TEXT {
        return Err(io(std::io::Error::other(format!(
            "it has {} bytes, which is no such file",
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
            // Linear scaling divides positions by 2, but the model was trained for those that its file says.
            (scaled("\"type\": \"linear\", \"factor\": 2.0"), 16),
            (scaled("\"type\": \"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": 4"), 16),
            // Dynamic scaling begins behind the positions of the file.
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
        assert!(error.contains("knows 8 tokens and the tokenizer needs 9"), "{error}");
    }
}
