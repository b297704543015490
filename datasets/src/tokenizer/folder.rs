//! Reads and writes the tokenizer files of an HF model folder.
//!
//! The precedence is the same as in transformers. `chat_template.jinja` comes before the `chat_template` of
//! `tokenizer_config.json`, which is a text or a list of named templates (`default` is used). Special tokens
//! of `tokenizer_config.json` come before those of `special_tokens_map.json`. The ids of
//! `generation_config.json` and `config.json` are used only if both of these files name no token. This module
//! does not know encoding.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

use serde_json::{Map, Value, json};
use tokenizers::AddedToken;

use super::growth::{self, Growth};
use super::{BrokenTemplate, SpecialToken, Tokenizer};
use crate::error::{Error, Result};
use crate::small_file::{read_small, read_up_to};
use crate::template::ChatTemplate;
use crate::untrusted::decode;

const SPECIAL_NAMES: [&str; 7] =
    ["bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token"];

impl Tokenizer {
    /// Reads the tokenizer of a model folder.
    pub fn from_folder(folder: &Path) -> Result<Self> {
        let path = folder.join("tokenizer.json");
        let text = read_small(&path)?.ok_or_else(|| Error::TokenizerMissing { folder: folder.to_owned() })?;
        let parts = decode(|| serde_json::from_slice::<growth::Parts>(&text));
        let parts =
            parts.map_err(|reason| invalid(&path, &reason))?.map_err(|error| invalid(&path, &error))?;
        let growth = parts.growth().map_err(|reason| invalid(&path, &reason))?;
        let inner =
            decode(|| tokenizers::Tokenizer::from_bytes(text)).map_err(|reason| invalid(&path, &reason))?;
        let mut inner = inner.map_err(|error| invalid(&path, &error))?;

        // The caller controls lengths.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| invalid(&path, &error))?;

        let mut config = read_object(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
        add_tokens(&mut inner, &config, growth, &folder.join("tokenizer_config.json"))?;
        let source = chat_template(folder, config.remove("chat_template"))?;

        let generation = read_object(&folder.join("generation_config.json"))?.unwrap_or_default();
        let model = read_object(&folder.join("config.json"))?.unwrap_or_default();
        let map = read_object(&folder.join("special_tokens_map.json"))?.unwrap_or_default();
        let special = special_tokens(&inner, [&config, &map], [&generation, &model]);
        let end =
            generation.get("eos_token_id").filter(|end| !end.is_null()).or_else(|| model.get("eos_token_id"));

        let mut tokenizer = Parts { inner, growth, config, special, generation_eos: ids(end) }
            .build(folder.display().to_string());

        // A template that does not compile is an error only when it is used.
        if let Some(source) = source {
            match ChatTemplate::new(tokenizer.name.clone(), source.clone()) {
                Ok(template) => tokenizer.template = Some(template),
                Err(Error::TemplateSyntax { reason, .. }) => {
                    tokenizer.broken_template = Some(BrokenTemplate { source, reason });
                }
                Err(error) => return Err(error),
            }
            tokenizer.find_stops();
        }

        Ok(tokenizer)
    }

    /// Writes the tokenizer and its chat template in the form that transformers' `AutoTokenizer` loads.
    pub fn save(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder).map_err(|source| Error::Write { path: folder.to_owned(), source })?;
        let path = folder.join("tokenizer.json");
        let text = self.inner.to_string(true).map_err(|error| invalid(&path, &error))?;
        write(path, &text)?;
        let mut config = self.config.clone();
        let mut map = Map::new();
        for (name, token) in &self.special {
            map.insert(name.clone(), json!(token.text));
            config.entry(name.clone()).or_insert_with(|| json!(token.text));
        }
        config.entry("tokenizer_class").or_insert_with(|| json!("PreTrainedTokenizerFast"));
        let broken = self.broken_template.as_ref().map(|broken| broken.source.as_str());
        if let Some(source) = self.template.as_ref().map(ChatTemplate::source).or(broken) {
            write(folder.join("chat_template.jinja"), source)?;
            config.insert("chat_template".to_owned(), json!(source));
        }
        write(folder.join("special_tokens_map.json"), &pretty(map))?;
        write(folder.join("tokenizer_config.json"), &pretty(config))
    }
}

/// The parts from which a tokenizer is built.
pub(super) struct Parts {
    pub(super) inner: tokenizers::Tokenizer,
    pub(super) growth: Growth,
    pub(super) config: Map<String, Value>,
    pub(super) special: BTreeMap<String, SpecialToken>,
    pub(super) generation_eos: Vec<i64>,
}

impl Parts {
    /// Builds a tokenizer without a chat template.
    pub(super) fn build(self, name: String) -> Tokenizer {
        let tokens = self.inner.get_vocab(true);
        let highest = tokens.values().max();
        let mut tokenizer = Tokenizer {
            vocab_size: highest.map_or(0, |&id| id as usize + 1),
            longest_token: tokens.keys().map(String::len).max().unwrap_or(0),
            inner: self.inner,
            growth: self.growth,
            config: self.config,
            special: self.special,
            generation_eos: self.generation_eos,
            template: None,
            broken_template: None,
            end_of_turn: None,
            stop_ids: Vec::new(),
            name,
            kept_orders: Mutex::default(),
            literal: OnceLock::new(),
        };
        tokenizer.find_stops();
        tokenizer
    }
}

fn pretty(map: Map<String, Value>) -> String {
    let mut text =
        serde_json::to_string_pretty(&Value::Object(map)).expect("JSON values can be written as JSON");
    text.push('\n');
    text
}

fn write(path: PathBuf, text: &str) -> Result<()> {
    fs::write(&path, text).map_err(|source| Error::Write { path, source })
}

fn invalid(path: &Path, reason: &dyn std::fmt::Display) -> Error {
    Error::TokenizerInvalid { path: path.to_owned(), reason: reason.to_string() }
}

/// The largest size in bytes of a file that is read as a JSON object, which takes up to 36 times as much.
const OBJECT_BYTES: u64 = 16 << 20;

/// Reads a JSON object from a file; `None` if the file does not exist.
fn read_object(path: &Path) -> Result<Option<Map<String, Value>>> {
    let Some(text) = read_up_to(path, OBJECT_BYTES)? else { return Ok(None) };
    serde_json::from_slice(&text)
        .map(Some)
        .map_err(|error| Error::ModelFile { path: path.to_owned(), reason: error.to_string() })
}

/// Adds the tokens that only `tokenizer_config.json` lists, and checks that they get the listed ids.
fn add_tokens(
    inner: &mut tokenizers::Tokenizer,
    config: &Map<String, Value>,
    growth: Growth,
    path: &Path,
) -> Result<()> {
    let Some(Value::Object(decoder)) = config.get("added_tokens_decoder") else { return Ok(()) };
    let mut tokens: Vec<(u32, &Value)> = Vec::new();
    for (id, token) in decoder {
        tokens.push((id.parse().map_err(|_| invalid(path, &format!("{id:?} is not a token id")))?, token));
    }
    tokens.sort_by_key(|(id, _)| *id);

    for (id, token) in tokens {
        let flag = |name| token.get(name).and_then(Value::as_bool).unwrap_or(false);
        let Some(content) = text_of(token) else { continue };
        let known = inner.token_to_id(content);
        if known == Some(id) {
            continue;
        }

        growth.check_text(content.len()).map_err(|reason| invalid(path, &reason))?;
        let added = AddedToken::from(content, flag("special"))
            .lstrip(flag("lstrip"))
            .rstrip(flag("rstrip"))
            .single_word(flag("single_word"))
            .normalized(flag("normalized"));
        inner.add_tokens([added]).map_err(|error| invalid(path, &error))?;
        if inner.token_to_id(content) != Some(id) {
            let reason =
                format!("token {content:?} should have id {id}, but tokenizer.json gives it another");
            return Err(invalid(path, &reason));
        }
    }

    Ok(())
}

/// The text of a token that is given as a string or as an object with `content`.
fn text_of(token: &Value) -> Option<&str> {
    token.as_str().or_else(|| token.get("content").and_then(Value::as_str))
}

fn special_tokens(
    inner: &tokenizers::Tokenizer,
    by_text: [&Map<String, Value>; 2],
    by_id: [&Map<String, Value>; 2],
) -> BTreeMap<String, SpecialToken> {
    let mut special = BTreeMap::new();
    for name in SPECIAL_NAMES {
        let texts = by_text.into_iter().filter_map(|map| map.get(name).and_then(text_of).map(str::to_owned));
        let named = by_id.into_iter().filter_map(|map| ids(map.get(&format!("{name}_id"))).first().copied());
        let named = named.filter_map(|id| inner.id_to_token(u32::try_from(id).ok()?));
        for text in texts.chain(named) {
            if let Some(id) = inner.token_to_id(&text) {
                special.entry(name.to_owned()).or_insert(SpecialToken { text, id: i64::from(id) });
            }
        }
    }
    special
}

/// Reads one id or a list of ids.
fn ids(value: Option<&Value>) -> Vec<i64> {
    match value {
        Some(Value::Array(list)) => list.iter().filter_map(Value::as_i64).collect(),
        Some(single) => single.as_i64().into_iter().collect(),
        None => Vec::new(),
    }
}

fn chat_template(folder: &Path, in_config: Option<Value>) -> Result<Option<String>> {
    let path = folder.join("chat_template.jinja");
    if let Some(source) = read_small(&path)? {
        return String::from_utf8(source).map(Some).map_err(|error| invalid(&path, &error));
    }
    Ok(match in_config {
        Some(Value::String(source)) => Some(source),
        Some(Value::Array(named)) => {
            let default = named.iter().find(|entry| entry["name"] == "default");
            default.and_then(|entry| entry["template"].as_str()).map(str::to_owned)
        }
        _ => None,
    })
}
