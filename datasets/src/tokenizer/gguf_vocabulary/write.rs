//! Writes a tokenizer as metadata, or refuses it with the part that llama.cpp would compute differently.

use std::collections::HashMap;

use gguf::{Metadata, Value};
use serde_json::Value as Json;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use super::super::Tokenizer;
use super::ends::{self, refused};
use super::keys::{
    ADD_BOS, ADD_EOS, ADD_SPACE, MERGES, MODEL, PRE, SCORES, TEMPLATE, TEXTS_HAVE_BOS, TOKEN_TYPES, TOKENS,
    TokenType, padding,
};
use super::pre_tokenizer::PreTokenizer;
use super::scores;
use crate::conversation::Message;
use crate::error::{Error, Result};

/// The mark of a space in `SentencePiece`'s tokens.
const SPACE: &str = "▁";

/// What a file with a tokenizer depends on beside the tokenizer.
#[derive(Clone, Copy, Debug)]
pub struct GgufOptions<'a> {
    /// The rows of the token embedding. A file has a token for each.
    pub vocab_size: usize,
    /// The tokens that end a reply.
    pub stop_ids: &'a [i64],
}

impl Tokenizer {
    /// Adds the keys of the tokenizer to `metadata`. Returns sentences for the user about what llama.cpp does
    /// otherwise. Returns an error that names the part if llama.cpp would make other ids.
    pub fn describe_gguf(&self, options: &GgufOptions<'_>, metadata: &mut Metadata) -> Result<Vec<String>> {
        let text = self.inner.to_string(false).map_err(|error| self.failed(&error))?;
        let json: Json = serde_json::from_str(&text).map_err(|error| self.failed(&error))?;
        let mut vocabulary = Vocabulary::new(self, &json, options.vocab_size)?;
        check_added_tokens(self, &json)?;

        let mut notes = Vec::new();
        if json["model"]["byte_fallback"] == true {
            vocabulary.describe_scores(metadata)?;
        } else {
            notes.extend(vocabulary.describe_bytes(metadata)?);
        }
        metadata.set(TOKENS, Value::Texts(vocabulary.tokens));
        let types: Vec<i32> = vocabulary.types.iter().map(|&kind| kind as i32).collect();
        metadata.set(TOKEN_TYPES, Value::i32s(&types));

        let others = ends::describe(self, options.stop_ids, metadata)?;
        if !others.is_empty() {
            notes.push(format!("llama.cpp ends a reply also at {}", others.join(", ")));
        }
        notes.extend(describe_ends_of_texts(self, metadata)?);
        Ok(notes)
    }
}

/// The tokens of a file.
struct Vocabulary<'a> {
    tokenizer: &'a Tokenizer,
    json: &'a Json,
    tokens: Vec<String>,
    types: Vec<TokenType>,
    ids: HashMap<String, u32>,
}

impl<'a> Vocabulary<'a> {
    fn new(tokenizer: &'a Tokenizer, json: &'a Json, size: usize) -> Result<Self> {
        let kind = json["model"]["type"].as_str().unwrap_or("no type");
        if kind != "BPE" {
            let fix =
                "only byte-pair encoding can be: convert the model with llama.cpp from its tokenizer.model";
            return Err(refused(tokenizer, "model", kind.to_owned(), fix));
        }
        for key in ["dropout", "continuing_subword_prefix", "end_of_word_suffix"] {
            let value = &json["model"][key];
            if !value.is_null() && value != "" {
                let fix = "llama.cpp has no such setting: use a tokenizer without it";
                return Err(refused(tokenizer, "model", format!("{key} = {value}"), fix));
            }
        }
        let ids = tokenizer.inner.get_vocab(true);
        let mut tokens: Vec<String> = (0..size).map(padding).collect();
        let mut types = vec![TokenType::Unused; size];
        for (text, &id) in &ids {
            let fix = "use the tokenizer that came with the model";
            let Some(place) = tokens.get_mut(id as usize) else {
                let found = format!("the id {id} beyond the {size} embeddings of the model");
                return Err(refused(tokenizer, "model", found, fix));
            };
            if text.is_empty() {
                return Err(refused(tokenizer, "model", format!("the empty token {id}"), fix));
            }
            place.clone_from(text);
            types[id as usize] = TokenType::Normal;
        }
        let added = tokenizer.inner.get_added_tokens_decoder();
        for (id, token) in added {
            let kind = if token.special { TokenType::Control } else { TokenType::UserDefined };
            types[id as usize] = kind;
        }
        let vocabulary = Self { tokenizer, json, tokens, types, ids };
        vocabulary.check_padding()?;
        Ok(vocabulary)
    }

    /// Returns an error if the text of an id without a token is that of another token. llama.cpp ends the
    /// process at such a file.
    fn check_padding(&self) -> Result<()> {
        let unused = self.types.iter().enumerate().filter(|(_, kind)| **kind == TokenType::Unused);
        match unused.map(|(id, _)| padding(id)).find(|text| self.ids.contains_key(text)) {
            None => Ok(()),
            Some(text) => {
                let fix = "the file would need this text for an id that has no token: rename the token";
                Err(self.refused("model", format!("the token {text:?}"), fix))
            }
        }
    }

    /// Byte-level BPE. Returns a sentence if texts are normalized.
    fn describe_bytes(&self, metadata: &mut Metadata) -> Result<Option<String>> {
        let ignore_merges = self.json["model"]["ignore_merges"] == true;
        let part = &self.json["pre_tokenizer"];
        let Some(pre) = PreTokenizer::by_part(part, ignore_merges) else {
            let found: String = part.to_string().chars().take(160).collect();
            let found = format!("{found} with ignore_merges = {ignore_merges}");
            let fix = "llama.cpp has a name for the pre-tokenizers of GPT-2, SmolLM (which this program trains), Qwen2 \
                       and LLaMA 3: convert the model with llama.cpp if it has one for this";
            return Err(self.refused("pre_tokenizer", found, fix));
        };
        let normalizer = &self.json["normalizer"];
        let is_nfc = normalizer["type"] == "NFC";
        if !is_nfc && !normalizer.is_null() {
            let fix = "llama.cpp normalizes no text: use a tokenizer without a normalizer";
            return Err(self.refused("normalizer", normalizer.to_string(), fix));
        }
        if let Some(symbol) = ByteLevel::alphabet().iter().find(|&symbol| !self.has(&symbol.to_string())) {
            let fix = "llama.cpp needs a token for every byte: train the tokenizer again with all 256";
            return Err(self.refused(
                "model",
                format!("no token for the byte that is shown as {symbol:?}"),
                fix,
            ));
        }
        let merges = self.merges()?;
        if let Some([left, right]) = merges.iter().find(|merge| merge.iter().any(|part| part.contains(' '))) {
            let fix = "a file separates the two by a space: use a tokenizer whose tokens have none";
            return Err(self.refused("model", format!("the merge of {left:?} and {right:?}"), fix));
        }
        metadata.set(MODEL, Value::text("gpt2"));
        metadata.set(PRE, Value::text(pre.names[0]));
        let joined = merges.iter().map(|[left, right]| format!("{left} {right}"));
        metadata.set(MERGES, Value::Texts(joined.collect()));
        let note = "the tokenizer normalizes texts to NFC and llama.cpp does not: letters with separate accents may get \
                    other ids there";
        Ok(is_nfc.then(|| note.to_owned()))
    }

    /// Tokens with scores, as of `SentencePiece`.
    fn describe_scores(&mut self, metadata: &mut Metadata) -> Result<()> {
        let adds_space = self.adds_space()?;
        if self.json["model"]["ignore_merges"] == true {
            let fix = "llama.cpp has no such setting for tokens with scores: use a tokenizer without it";
            return Err(self.refused("model", "ignore_merges = true".to_owned(), fix));
        }

        for byte in 0..=u8::MAX {
            let text = format!("<0x{byte:02X}>");
            let Some(&id) = self.ids.get(&text) else {
                let fix = "llama.cpp needs a token for every byte: use a tokenizer with all 256";
                return Err(self.refused("model", format!("byte_fallback without the token {text}"), fix));
            };
            self.types[id as usize] = TokenType::Byte;
        }
        let unknown = self.json["model"]["unk_token"].as_str().and_then(|text| self.ids.get(text));
        if let Some(&id) = unknown {
            self.types[id as usize] = TokenType::Unknown;
        }
        let scores = scores::of_merges(&self.merges()?, &self.ids, self.tokens.len()).map_err(|reason| {
            let fix =
                "llama.cpp merges by scores, which cannot say this: use a tokenizer made from SentencePiece";
            self.refused("model", reason, fix)
        })?;
        metadata.set(MODEL, Value::text("llama"));
        metadata.set(PRE, Value::text("default"));
        metadata.set(SCORES, Value::f32s(&scores));
        metadata.set(ADD_SPACE, Value::bool(adds_space));
        Ok(())
    }

    /// Whether a text, and what stands behind a special token, begins with a space that is added.
    fn adds_space(&self) -> Result<bool> {
        let (normalizer, part) = (&self.json["normalizer"], &self.json["pre_tokenizer"]);
        let is_replace = |part: &Json| {
            part["type"] == "Replace" && part["pattern"]["String"] == " " && part["content"] == SPACE
        };
        let is_prepend = |part: &Json| part["type"] == "Prepend" && part["prepend"] == SPACE;
        let never = part["type"] == "Metaspace"
            && part["replacement"] == SPACE
            && part["prepend_scheme"] == "never"
            && part["split"] == false;
        let steps =
            normalizer["normalizers"].as_array().map_or(std::slice::from_ref(normalizer), Vec::as_slice);
        match steps {
            [prepend, replace] if part.is_null() && is_prepend(prepend) && is_replace(replace) => Ok(true),
            [replace] if part.is_null() && is_replace(replace) => Ok(false),
            [nothing] if nothing.is_null() && never => Ok(false),
            _ => {
                let fix = "llama.cpp marks every space, and adds one before a text and behind every special token or \
                           nowhere: use the normalizers Prepend and Replace of \"▁\", or Replace alone, and no \
                           pre-tokenizer";
                Err(self.refused("normalizer and pre_tokenizer", format!("{normalizer} and {part}"), fix))
            }
        }
    }

    fn merges(&self) -> Result<Vec<[String; 2]>> {
        serde_json::from_value(self.json["model"]["merges"].clone())
            .map_err(|error| self.tokenizer.failed(&error))
    }

    fn has(&self, text: &str) -> bool {
        self.ids.contains_key(text)
    }

    fn refused(&self, part: &'static str, found: String, fix: &'static str) -> Error {
        refused(self.tokenizer, part, found, fix)
    }
}

/// Returns an error for an added token that takes spaces with it, needs a word of its own, or is looked for
/// in a text that was changed before.
fn check_added_tokens(tokenizer: &Tokenizer, json: &Json) -> Result<()> {
    let is_nfc = json["normalizer"]["type"] == "NFC";
    for token in json["added_tokens"].as_array().into_iter().flatten() {
        let content = token["content"].as_str().unwrap_or_default();
        let unchanged = json["normalizer"].is_null() || (is_nfc && content.is_ascii());
        let wrong = ["lstrip", "rstrip", "single_word", "normalized"]
            .into_iter()
            .find(|&flag| token[flag] == true && !(flag == "normalized" && unchanged));
        if let Some(flag) = wrong {
            let fix = "llama.cpp finds added tokens in the text as it is: set this to false";
            return Err(refused(tokenizer, "added_tokens", format!("{flag} of {content:?}"), fix));
        }
    }
    Ok(())
}

/// Adds the chat template and whether texts begin with BOS and end with EOS. Returns a sentence if the two
/// are at odds: llama.cpp writes BOS before every prompt or before none, and this program takes a rendered
/// conversation as it is.
fn describe_ends_of_texts(tokenizer: &Tokenizer, metadata: &mut Metadata) -> Result<Option<String>> {
    let [plain, whole] = [tokenizer.encode("a", false)?, tokenizer.encode("a", true)?];
    let known = |id: Option<i64>| id.map(|id| vec![id]).unwrap_or_default();
    let (bos, eos) = (known(tokenizer.bos_id()), known(tokenizer.eos_id()));
    let with = |has_bos: bool, has_eos: bool| {
        let [begin, end] =
            [(&bos, has_bos), (&eos, has_eos)].map(|(ids, has)| if has { &ids[..] } else { &[] });
        [begin, &plain, end].concat()
    };
    let all = [(false, false), (true, false), (false, true), (true, true)];
    let Some((adds_bos, adds_eos)) = all.into_iter().find(|&(bos, eos)| with(bos, eos) == whole) else {
        let fix = "llama.cpp adds nothing but BOS and EOS: use a tokenizer whose post-processor does no more";
        return Err(refused(tokenizer, "post_processor", format!("the ids {whole:?} of \"a\""), fix));
    };
    metadata.set(ADD_EOS, Value::bool(adds_eos));

    let Some(template) = tokenizer.chat_template() else {
        if let Some(broken) = &tokenizer.broken_template {
            let (name, reason) = (tokenizer.name.clone(), broken.reason.clone());
            return Err(Error::TemplateSyntax { name, reason });
        }
        metadata.set(ADD_BOS, Value::bool(adds_bos));
        return Ok(None);
    };
    if adds_eos {
        let fix = "llama.cpp would also end the prompts of a chat with it: use a tokenizer that adds none";
        return Err(refused(tokenizer, "post_processor", "EOS behind every text".to_owned(), fix));
    }
    if bos.is_empty() && template.source().contains("bos_token") {
        let fix = "llama.cpp would write another token there: set bos_token, or take it out of the template";
        return Err(refused(tokenizer, "chat_template", "bos_token without a BOS".to_owned(), fix));
    }
    metadata.set(TEMPLATE, Value::text(template.source()));
    let prompt = tokenizer.encode_prompt(&[Message::user("a")])?;
    let chat_has_bos = !bos.is_empty() && prompt.starts_with(&bos);
    metadata.set(ADD_BOS, Value::bool(adds_bos && chat_has_bos));
    if !adds_bos || chat_has_bos {
        return Ok(None);
    }
    metadata.set(TEXTS_HAVE_BOS, Value::bool(true));
    let note = "conversations of this model do not begin with BOS, so llama.cpp is told not to add it; put it before raw \
                texts yourself";
    Ok(Some(note.to_owned()))
}
