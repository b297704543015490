//! The tokenizer of a model folder: text to ids and back, the special tokens, and the chat template that belongs to it.
//!
//! Reads `tokenizer.json` and, beside it, `tokenizer_config.json`, `special_tokens_map.json`, `generation_config.json`,
//! `config.json` (special ids only) and `chat_template.jinja`, with the precedence that transformers has. Truncation and
//! padding that a `tokenizer.json` may ask for are switched off, and so is the clean-up of spaces in decoding: lengths are
//! the caller's business and decoding must not lose text. Knows no model weights.

mod compare;
mod dropped;
mod folder;
mod stream;
mod train;
mod turns;

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::path::Path;
use std::sync::Mutex;

use serde_json::{Map, Value};

use crate::conversation::{Message, Role};
use crate::error::{Error, Result};
use crate::template::{self, ChatTemplate, RenderOptions, Rendered};
use crate::untrusted::decode;

pub(crate) use folder::{SMALL_FILE_BYTES, read_small};
pub use stream::StreamDecoder;
pub use train::TrainOptions;

/// A token with a meaning of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SpecialToken {
    pub(crate) text: String,
    pub(crate) id: i64,
}

/// A text as ids, each with the byte range of the text that it stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pieces {
    pub(crate) ids: Vec<i64>,
    pub(crate) ranges: Vec<Range<usize>>,
}

/// A chat template that does not compile.
#[derive(Debug)]
struct BrokenTemplate {
    source: String,
    reason: String,
}

/// A tokenizer with its special tokens and chat template.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// `tokenizer_config.json` as read, without the chat template.
    config: Map<String, Value>,
    /// `bos_token`, `eos_token`, `pad_token`, `unk_token` … that have an id.
    special: BTreeMap<String, SpecialToken>,
    /// End ids that `generation_config.json` or `config.json` names.
    generation_eos: Vec<i64>,
    template: Option<ChatTemplate>,
    /// A template of the folder that cannot be used. It matters only if it is asked for.
    broken_template: Option<BrokenTemplate>,
    end_of_turn: Option<i64>,
    stop_ids: Vec<i64>,
    vocab_size: usize,
    name: String,
    /// Orders of roles of which the chat template renders every turn, without and with the generation prompt.
    kept_orders: Mutex<HashSet<(Vec<Role>, bool)>>,
}

impl Tokenizer {
    /// Reads the tokenizer of a model folder.
    pub fn from_folder(folder: &Path) -> Result<Self> {
        folder::load(folder)
    }

    /// Trains a byte-level BPE tokenizer with single digits and `ChatML` turns; equal input gives equal output.
    pub fn train(texts: impl Iterator<Item = String> + Send, options: &TrainOptions) -> Result<Self> {
        train::train(texts, options)
    }

    /// Writes the tokenizer and its chat template so that transformers' `AutoTokenizer` loads them.
    pub fn save(&self, folder: &Path) -> Result<()> {
        folder::save(self, folder)
    }

    /// Text to ids. With `add_special` the post-processor of `tokenizer.json` runs and the `add_bos_token` and
    /// `add_eos_token` settings hold; a BOS or EOS that the text brings along is not doubled.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<i64>> {
        let encoding =
            decode(|| self.inner.encode_fast(text, add_special)).map_err(|reason| self.failed(&reason))?;
        let encoding = encoding.map_err(|error| self.failed(&error))?;
        let mut ids: Vec<i64> = encoding.get_ids().iter().map(|&id| i64::from(id)).collect();
        if add_special {
            self.adjust_bos(&mut ids, text);
            self.adjust_eos(&mut ids, text);
        }
        Ok(ids)
    }

    /// Ids to text; with `skip_special` the special tokens leave no trace.
    pub fn decode(&self, ids: &[i64], skip_special: bool) -> Result<String> {
        let ids: Vec<u32> = ids.iter().map(|&id| self.checked("decode", id)).collect::<Result<_>>()?;
        let text = decode(|| self.inner.decode(&ids, skip_special)).map_err(|reason| self.failed(&reason))?;
        text.map_err(|error| self.failed(&error))
    }

    /// A decoder that takes ids one by one and gives text as soon as it is complete.
    pub fn stream_decoder(&self, skip_special: bool) -> StreamDecoder<'_> {
        StreamDecoder::new(self, skip_special)
    }

    /// Highest id + 1.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The id that begins a sequence.
    pub fn bos_id(&self) -> Option<i64> {
        self.special_id("bos_token")
    }

    /// The id that ends a sequence.
    pub fn eos_id(&self) -> Option<i64> {
        self.special_id("eos_token")
    }

    /// The id that fills a batch.
    pub fn pad_id(&self) -> Option<i64> {
        self.special_id("pad_token")
    }

    /// The ids that end an answer: those of `generation_config.json`, the EOS, and the token with which the chat template
    /// ends an assistant turn. Sorted, each once.
    pub fn stop_ids(&self) -> &[i64] {
        &self.stop_ids
    }

    /// The token with which the chat template ends an assistant turn.
    pub fn end_of_turn_id(&self) -> Option<i64> {
        self.end_of_turn
    }

    /// The id of a token given by its text in the vocabulary.
    pub fn token_to_id(&self, token: &str) -> Option<i64> {
        self.inner.token_to_id(token).map(i64::from)
    }

    /// The text of a token in the vocabulary (bytes of byte-level tokens appear as printable symbols).
    pub fn id_to_token(&self, id: i64) -> Option<String> {
        self.inner.id_to_token(u32::try_from(id).ok()?)
    }

    /// Whether an id is a special token: one that `skip_special` leaves out, or one that ends an answer.
    pub fn is_special(&self, id: i64) -> bool {
        self.stop_ids.binary_search(&id).is_ok()
            || self.special.values().any(|token| token.id == id)
            || self
                .id_to_token(id)
                .is_some_and(|text| self.inner.get_added_vocabulary().is_special_token(&text))
    }

    /// A special token that stands in the text and would be taken for a real one, if any: in the words of a user that
    /// is an injection.
    pub fn special_text_in(&self, text: &str) -> Option<String> {
        let tokens = self.inner.get_added_tokens_decoder();
        let inside = |token: &&tokenizers::AddedToken| token.special && text.contains(&token.content);
        tokens.values().filter(inside).map(|token| token.content.clone()).min()
    }

    /// The name for messages: the model folder.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The chat template, if there is one.
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.template.as_ref()
    }

    /// Replaces the chat template by Jinja source.
    pub fn set_chat_template(&mut self, source: impl Into<String>) -> Result<()> {
        self.template = Some(ChatTemplate::new(self.name.clone(), source)?);
        self.broken_template = None;
        self.kept_orders = Mutex::default();
        self.find_stops();
        Ok(())
    }

    /// Replaces the chat template by a built-in one: `chatml` or `plain`. Refuses one whose tokens are not
    /// there; see [`Self::add_turn_tokens`].
    pub fn set_built_in_template(&mut self, name: &str) -> Result<()> {
        let source = template::built_in(name)?;
        let needs_eos = name == "plain" && self.eos_id().is_none();
        if needs_eos {
            return Err(Error::MissingSpecialToken { name: self.name.clone(), token: "eos_token" });
        }
        let missing = turns::TOKENS.into_iter().find(|token| self.token_to_id(token).is_none());
        if let Some(token) = missing.filter(|_| name == "chatml") {
            return Err(Error::MissingTurnToken { name: self.name.clone(), token });
        }
        self.set_chat_template(source)
    }

    /// Renders a conversation as text with the chat template. A turn that the template leaves out is an
    /// error.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<Rendered> {
        let rendered = self.render_unchecked(messages, add_generation_prompt)?;
        self.check_turns(messages, add_generation_prompt, &rendered)?;
        Ok(rendered)
    }

    fn render_unchecked(&self, messages: &[Message], add_generation_prompt: bool) -> Result<Rendered> {
        let missing = || match &self.broken_template {
            Some(broken) => Error::TemplateSyntax { name: self.name.clone(), reason: broken.reason.clone() },
            None => Error::NoChatTemplate { name: self.name.clone(), known: template::BUILT_IN },
        };
        let template = self.template.as_ref().ok_or_else(missing)?;
        template.render(messages, &self.render_options(add_generation_prompt))
    }

    /// What the template sees beside the messages; tools may be added.
    pub fn render_options(&self, add_generation_prompt: bool) -> RenderOptions {
        let text = |(name, token): (&String, &SpecialToken)| (name.clone(), token.text.clone());
        RenderOptions {
            add_generation_prompt,
            tools: None,
            special_tokens: self.special.iter().map(text).collect(),
        }
    }

    /// Text to ids without any added token, with the place of each id in the text.
    pub(crate) fn pieces(&self, text: &str) -> Result<Pieces> {
        let encoding = decode(|| self.inner.encode(text, false)).map_err(|reason| self.failed(&reason))?;
        let encoding = encoding.map_err(|error| self.failed(&error))?;
        Ok(Pieces {
            ids: encoding.get_ids().iter().map(|&id| i64::from(id)).collect(),
            ranges: encoding.get_offsets().iter().map(|&(start, end)| start..end).collect(),
        })
    }

    /// All that decides which ids a conversation becomes, as text: two tokenizers with the same text give the
    /// same ids.
    pub(crate) fn fingerprint(&self) -> Result<String> {
        let inner = self.inner.to_string(false).map_err(|error| self.failed(&error))?;
        let template = self.template.as_ref().map_or("", |template| template.source());
        // A template that writes the date renders another text tomorrow.
        let day = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |time| time.as_secs() / 86_400);
        let day = if template.contains("strftime_now") { day } else { 0 };
        let config = Value::Object(self.config.clone());
        Ok(format!("{inner}\n{config}\n{:?}\n{template}\n{day}", self.special))
    }

    /// Tells whether an id has a token.
    pub(crate) fn checked(&self, place: &str, id: i64) -> Result<u32> {
        match u32::try_from(id) {
            Ok(small) if (small as usize) < self.vocab_size => Ok(small),
            _ => Err(Error::IdOutsideVocabulary { place: place.to_owned(), id, vocab_size: self.vocab_size }),
        }
    }

    fn special_id(&self, name: &str) -> Option<i64> {
        self.special.get(name).map(|token| token.id)
    }

    fn failed(&self, error: &dyn std::fmt::Display) -> Error {
        Error::Tokenize { name: self.name.clone(), reason: error.to_string() }
    }

    fn flag(&self, name: &str) -> Option<bool> {
        self.config.get(name).and_then(Value::as_bool)
    }

    fn adjust_bos(&self, ids: &mut Vec<i64>, text: &str) {
        let Some(bos) = self.special.get("bos_token") else { return };
        let in_text = text.starts_with(&bos.text);
        let leading = ids.iter().take_while(|&&id| id == bos.id).count();
        let wanted = match self.flag("add_bos_token") {
            Some(true) => 1,
            Some(false) => usize::from(in_text),
            None => leading.min(1),
        };
        ids.splice(..leading, std::iter::repeat_n(bos.id, wanted));
    }

    fn adjust_eos(&self, ids: &mut Vec<i64>, text: &str) {
        let Some(eos) = self.special.get("eos_token") else { return };
        let trailing = ids.iter().rev().take_while(|&&id| id == eos.id).count();
        let wanted = match self.flag("add_eos_token") {
            Some(true) => 1,
            Some(false) => usize::from(text.ends_with(&eos.text)),
            None => trailing,
        };
        ids.truncate(ids.len() - trailing);
        ids.extend(std::iter::repeat_n(eos.id, wanted));
    }

    /// Works out which token ends an assistant turn, and with it the stop ids.
    fn find_stops(&mut self) {
        self.end_of_turn = self.template.is_some().then(|| self.probe_end_of_turn()).flatten();
        let ends =
            self.end_of_turn.into_iter().chain(self.eos_id()).chain(self.generation_eos.iter().copied());
        self.stop_ids = ends.collect();
        self.stop_ids.sort_unstable();
        self.stop_ids.dedup();
    }

    /// The first special token behind the answer of a conversation made for the purpose.
    fn probe_end_of_turn(&self) -> Option<i64> {
        const ANSWER: &str = "Zq7x";
        let rendered = self.render(&[Message::user("Hello"), Message::assistant(ANSWER)], false).ok()?;
        let end = rendered.text.rfind(ANSWER)? + ANSWER.len();
        let pieces = self.pieces(&rendered.text).ok()?;
        let mut behind = pieces.ids.iter().zip(&pieces.ranges).filter(|(_, range)| range.start >= end);
        behind.find(|(id, _)| self.is_special(**id)).map(|(id, _)| *id)
    }
}

#[cfg(test)]
pub(crate) mod tests;
