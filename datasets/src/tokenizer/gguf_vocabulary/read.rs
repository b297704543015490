//! Reads a tokenizer from metadata. The texts and numbers come from a file that nobody vouches for: the lists
//! must have the length of the vocabulary, the ids must be in it, and what is made is read again as every
//! other `tokenizer.json` is, with its bounds.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use gguf::Metadata;
use serde_json::{Map, Value, json};

use super::keys::{
    ADD_BOS, ADD_EOS, ADD_SPACE, END_IDS, END_KEYS, MERGES, MODEL, PRE, SCORES, SPECIAL_KEYS, TEMPLATE,
    TEXTS_HAVE_BOS, TOKEN_TYPES, TOKENS, TokenType, padding,
};
use super::pre_tokenizer::{PreTokenizer, byte_level};
use super::scores;
use crate::error::{Error, Result};

/// A tokenizer that was read from a GGUF file.
#[derive(Debug)]
pub struct GgufTokenizer {
    tokenizer: Value,
    config: Map<String, Value>,
    generation: Value,
    template: Option<String>,
}

impl GgufTokenizer {
    /// Reads the tokenizer of a model with `vocab_size` embeddings.
    pub fn read(metadata: &Metadata, vocab_size: usize) -> Result<Self> {
        let tokens = Tokens::read(metadata, vocab_size)?;
        let (parts, adds_bos) = match metadata.text(MODEL)? {
            "gpt2" => bytes_parts(metadata, &tokens)?,
            "llama" => scores_parts(metadata, &tokens)?,
            _ => {
                let fix = "gpt2 and llama can be imported: take the model's HF folder";
                return Err(metadata.unsupported(MODEL, fix).into());
            }
        };
        let special = special_tokens(metadata, &tokens)?;
        let has_bos = match metadata.optional_bool(TEXTS_HAVE_BOS)? {
            Some(true) => true,
            _ => metadata.optional_bool(ADD_BOS)?.unwrap_or(adds_bos),
        };
        let has_eos = metadata.optional_bool(ADD_EOS)?.unwrap_or(false);
        let template = metadata.optional_text(TEMPLATE)?.map(str::to_owned);

        let mut config = Map::new();
        config.insert("tokenizer_class".to_owned(), json!("PreTrainedTokenizerFast"));
        config.insert("clean_up_tokenization_spaces".to_owned(), json!(false));
        config.extend(special.iter().map(|(name, token)| ((*name).to_owned(), json!(token.text))));
        let wanted = |key: &str, name: &str, is_wanted: bool| match (is_wanted, special.get(name)) {
            (false, _) => Ok(None),
            (true, Some(token)) => Ok(Some(token)),
            (true, None) => Err(metadata.wrong(key, "false in a file without such a token")),
        };
        let bos = wanted(ADD_BOS, "bos_token", has_bos)?;
        let eos = wanted(ADD_EOS, "eos_token", has_eos)?;
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null,
            "added_tokens": tokens.added(),
            "normalizer": parts.normalizer,
            "pre_tokenizer": parts.pre_tokenizer,
            "post_processor": post_processor(bos, eos),
            "decoder": parts.decoder,
            "model": parts.model,
        });
        Ok(Self { tokenizer, config, generation: generation(metadata, &tokens)?, template })
    }

    /// Writes the files of the tokenizer to a folder.
    pub fn save(&self, folder: &Path) -> Result<()> {
        let write = |name: &str, text: &str| {
            let path = folder.join(name);
            fs::write(&path, text).map_err(|source| Error::Write { path, source })
        };
        write("tokenizer.json", &self.tokenizer.to_string())?;
        write("tokenizer_config.json", &format!("{:#}\n", Value::Object(self.config.clone())))?;
        write("generation_config.json", &format!("{:#}\n", self.generation))?;
        self.template.as_ref().map_or(Ok(()), |source| write("chat_template.jinja", source))
    }
}

/// The parts of a `tokenizer.json` that a model of llama.cpp means.
struct Parts {
    normalizer: Value,
    pre_tokenizer: Value,
    decoder: Value,
    model: Value,
}

/// A special token.
struct Special {
    text: String,
    id: i64,
}

/// The tokens of a file.
struct Tokens<'a> {
    texts: &'a [String],
    types: Vec<i64>,
    ids: HashMap<String, u32>,
}

impl<'a> Tokens<'a> {
    fn read(metadata: &'a Metadata, vocab_size: usize) -> Result<Self> {
        let texts = metadata.texts(TOKENS)?;
        if texts.len() != vocab_size {
            return Err(metadata.wrong(TOKENS, "a token for each row of the token embedding").into());
        }
        let types = metadata.optional_integers(TOKEN_TYPES)?.unwrap_or_default();
        if types.len() != vocab_size {
            return Err(metadata.wrong(TOKEN_TYPES, "a type for each token").into());
        }
        let mut ids = HashMap::new();
        for (id, text) in texts.iter().enumerate() {
            let is_padding = types[id] == TokenType::Unused as i64 && *text == padding(id);
            if !is_padding && ids.insert(text.clone(), id as u32).is_some() {
                return Err(metadata.wrong(TOKENS, "texts that differ").into());
            }
        }
        Ok(Self { texts, types, ids })
    }

    fn is(&self, id: usize, kind: TokenType) -> bool {
        self.types[id] == kind as i64
    }

    /// The tokens that are found in a text before it is split.
    fn added(&self) -> Vec<Value> {
        let added = (0..self.texts.len()).filter_map(|id| {
            let special = self.is(id, TokenType::Control) || self.is(id, TokenType::Unknown);
            (special || self.is(id, TokenType::UserDefined)).then(|| {
                json!({
                    "id": id, "content": self.texts[id], "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": special
                })
            })
        });
        added.collect()
    }

    /// The token of an id that a key holds.
    fn named(&self, metadata: &Metadata, key: &str) -> Result<Option<Special>> {
        let Some(id) = metadata.optional_integer(key)? else { return Ok(None) };
        let text = usize::try_from(id).ok().and_then(|id| self.texts.get(id));
        let text = text.filter(|text| self.ids.contains_key(*text));
        let text = text.ok_or_else(|| metadata.wrong(key, "the id of a token"))?;
        Ok(Some(Special { text: text.clone(), id }))
    }
}

/// Byte-level BPE, and whether BOS is added unless the file says otherwise.
fn bytes_parts(metadata: &Metadata, tokens: &Tokens<'_>) -> Result<(Parts, bool)> {
    let Some(pre) = PreTokenizer::by_name(metadata.text(PRE)?) else {
        let path = metadata.origin().to_owned();
        let found = format!("`{PRE}` = {:?} beside {}", metadata.text(PRE)?, PreTokenizer::all_names());
        return Err(gguf::Error::Unsupported { path, found, fix: "take the model's HF folder" }.into());
    };
    let mut merges = Vec::new();
    for merge in metadata.texts(MERGES)? {
        // A token may begin with a space, as llama.cpp reads it.
        let space = merge.char_indices().skip(1).find(|(_, symbol)| *symbol == ' ');
        let pair = space.map(|(at, _)| [merge[..at].to_owned(), merge[at + 1..].to_owned()]);
        let pair = pair.filter(|[left, right]| {
            [left, right, &format!("{left}{right}")].iter().all(|token| tokens.ids.contains_key(*token))
        });
        merges.push(pair.ok_or_else(|| metadata.wrong(MERGES, "pairs of tokens that make a token"))?);
    }
    let parts = Parts {
        normalizer: if pre.is_nfc { json!({"type": "NFC"}) } else { Value::Null },
        pre_tokenizer: pre.part(),
        decoder: byte_level(true),
        model: json!({
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": pre.ignore_merges, "vocab": tokens.ids, "merges": merges
        }),
    };
    Ok((parts, pre.adds_bos))
}

/// Tokens with scores, and whether BOS is added unless the file says otherwise.
fn scores_parts(metadata: &Metadata, tokens: &Tokens<'_>) -> Result<(Parts, bool)> {
    let scores = metadata.optional_fractions(SCORES)?.unwrap_or_default();
    if scores.len() != tokens.texts.len() || scores.iter().any(|score| score.is_nan()) {
        return Err(metadata.wrong(SCORES, "a number for each token").into());
    }
    let merges = scores::to_merges(tokens.texts, &scores, &tokens.ids).map_err(|reason| {
        let path = metadata.origin().to_owned();
        gguf::Error::Malformed { path, reason: format!("`{TOKENS}`: {reason}") }
    })?;
    let unknown = (0..tokens.texts.len()).find(|&id| tokens.is(id, TokenType::Unknown));
    let adds_space = metadata.optional_bool(ADD_SPACE)?.unwrap_or(true);
    let replace =
        |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    let mut normalizers = vec![replace(" ", "▁")];
    let mut decoders = vec![replace("▁", " "), json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
    if adds_space {
        normalizers.insert(0, json!({"type": "Prepend", "prepend": "▁"}));
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    let parts = Parts {
        normalizer: json!({"type": "Sequence", "normalizers": normalizers}),
        pre_tokenizer: Value::Null,
        decoder: json!({"type": "Sequence", "decoders": decoders}),
        model: json!({
            "type": "BPE", "dropout": null, "unk_token": unknown.map(|id| &tokens.texts[id]),
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": true,
            "byte_fallback": true, "ignore_merges": false, "vocab": tokens.ids, "merges": merges
        }),
    };
    Ok((parts, true))
}

fn special_tokens(metadata: &Metadata, tokens: &Tokens<'_>) -> Result<BTreeMap<&'static str, Special>> {
    let mut special = BTreeMap::new();
    for (name, key) in SPECIAL_KEYS {
        if let Some(token) = tokens.named(metadata, key)? {
            special.insert(name, token);
        }
    }
    Ok(special)
}

/// The part that adds BOS and EOS; null for neither.
fn post_processor(bos: Option<&Special>, eos: Option<&Special>) -> Value {
    if bos.is_none() && eos.is_none() {
        return Value::Null;
    }
    let piece =
        |token: &Special, sequence: u8| json!({"SpecialToken": {"id": token.text, "type_id": sequence}});
    let around = |name: &str, sequence: u8| {
        let text = json!({"Sequence": {"id": name, "type_id": sequence}});
        let before = bos.map(|token| piece(token, sequence));
        before.into_iter().chain([text]).chain(eos.map(|token| piece(token, sequence))).collect::<Vec<_>>()
    };
    let ids = bos.into_iter().chain(eos).map(|token| {
        (token.text.clone(), json!({"id": token.text, "ids": [token.id], "tokens": [token.text]}))
    });
    let pair = [around("A", 0), around("B", 1)].concat();
    json!({
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": pair,
        "special_tokens": ids.collect::<Map<_, _>>()
    })
}

/// The ids of `generation_config.json`.
fn generation(metadata: &Metadata, tokens: &Tokens<'_>) -> Result<Value> {
    let id = |key: &str| Ok::<_, Error>(tokens.named(metadata, key)?.map(|token| token.id));
    let mut ends: Vec<i64> = Vec::new();
    for key in std::iter::once("tokenizer.ggml.eos_token_id").chain(END_KEYS) {
        ends.extend(id(key)?.filter(|end| !ends.contains(end)));
    }
    for end in metadata.optional_integers(END_IDS)?.unwrap_or_default() {
        if !usize::try_from(end).is_ok_and(|end| end < tokens.texts.len()) {
            return Err(metadata.wrong(END_IDS, "ids of tokens").into());
        }
        if !ends.contains(&end) {
            ends.push(end);
        }
    }
    Ok(json!({
        "bos_token_id": id("tokenizer.ggml.bos_token_id")?,
        "eos_token_id": ends,
        "pad_token_id": id("tokenizer.ggml.padding_token_id")?,
    }))
}
