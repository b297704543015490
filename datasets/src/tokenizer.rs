//! The tokenizer of a model folder: encoding and decoding of text, special tokens, and the chat template.
//!
//! It reads `tokenizer.json` and, next to it, `tokenizer_config.json`, `special_tokens_map.json`,
//! `generation_config.json`, `config.json` (special ids only) and `chat_template.jinja`, with the same
//! precedence as transformers. Truncation and padding settings of `tokenizer.json` are switched off, because
//! the caller controls lengths. The clean-up of spaces in decoding is switched off too, because decoding must
//! not lose text. This module knows no model weights.

mod compare;
mod dropped;
mod folder;
mod foreign;
pub mod gguf_vocabulary;
mod growth;
pub mod stream;
pub mod train;
mod turn_order;
mod turns;

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::{Mutex, OnceLock};

use serde_json::{Map, Value};

use crate::conversation::{Conversation, Message};
use crate::error::{Error, Result};
use crate::template::{BUILT_IN, ChatTemplate, RenderOptions, Rendered};
use crate::untrusted::decode;

use growth::Growth;
use turn_order::TurnOrder;

/// A special token: its text and its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SpecialToken {
    pub(crate) text: String,
    pub(crate) id: i64,
}

/// An encoded text: ids, each with the byte range of the text that it covers.
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
    /// How much `inner` may make of a text or of ids.
    growth: Growth,
    /// The bytes of the longest token.
    longest_token: usize,
    /// `tokenizer_config.json` as read, without the chat template.
    config: Map<String, Value>,
    /// The special tokens that have an id, by name: `bos_token`, `eos_token`, `pad_token`, `unk_token` …
    special: BTreeMap<String, SpecialToken>,
    /// End-of-sequence ids from `generation_config.json` or `config.json`.
    generation_eos: Vec<i64>,
    template: Option<ChatTemplate>,
    /// A chat template in the folder that does not compile. It causes an error only when it is used.
    broken_template: Option<BrokenTemplate>,
    end_of_turn: Option<i64>,
    stop_ids: Vec<i64>,
    vocab_size: usize,
    name: String,
    /// Orders of turns for which the chat template is known to render every turn, call and tool.
    kept_orders: Mutex<HashSet<TurnOrder>>,
    /// A copy of `inner` that takes the text of special tokens for text, made when it is needed.
    literal: OnceLock<Box<tokenizers::Tokenizer>>,
}

impl Tokenizer {
    /// Encodes text to ids. With `add_special`, the post-processor of `tokenizer.json` runs and the settings
    /// `add_bos_token` and `add_eos_token` apply. A BOS or EOS that is already in the text is not doubled.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<i64>> {
        self.check_text(text)?;
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

    /// Decodes ids to text. With `skip_special`, special tokens are left out.
    pub fn decode(&self, ids: &[i64], skip_special: bool) -> Result<String> {
        let ids: Vec<u32> = ids.iter().map(|&id| self.checked("decode", id)).collect::<Result<_>>()?;
        let length = |&id: &u32| self.inner.id_to_token(id).map_or(0, |token| token.len());
        let exact = || ids.iter().map(length).sum();
        self.growth.check_ids(ids.len(), self.longest_token, exact).map_err(|reason| self.failed(&reason))?;
        let text = decode(|| self.inner.decode(&ids, skip_special)).map_err(|reason| self.failed(&reason))?;
        text.map_err(|error| self.failed(&error))
    }

    /// The highest id plus 1.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The BOS id, which begins a sequence.
    pub fn bos_id(&self) -> Option<i64> {
        self.special_id("bos_token")
    }

    /// The EOS id, which ends a sequence.
    pub fn eos_id(&self) -> Option<i64> {
        self.special_id("eos_token")
    }

    /// The padding id.
    pub fn pad_id(&self) -> Option<i64> {
        self.special_id("pad_token")
    }

    /// The ids that end a reply: the ids of `generation_config.json`, the EOS, and the token with which the
    /// chat template ends an assistant turn. Sorted, without duplicates.
    pub fn stop_ids(&self) -> &[i64] {
        &self.stop_ids
    }

    /// The token with which the chat template ends an assistant turn.
    pub fn end_of_turn_id(&self) -> Option<i64> {
        self.end_of_turn
    }

    /// The id of a token, given its text in the vocabulary.
    pub fn token_to_id(&self, token: &str) -> Option<i64> {
        self.inner.token_to_id(token).map(i64::from)
    }

    /// The text of a token in the vocabulary (byte-level tokens show their bytes as printable symbols).
    pub fn id_to_token(&self, id: i64) -> Option<String> {
        self.inner.id_to_token(u32::try_from(id).ok()?)
    }

    /// Whether an id is a special token: one that `skip_special` leaves out, or one that ends a reply.
    pub fn is_special(&self, id: i64) -> bool {
        self.is_stop(id)
            || self.special.values().any(|token| token.id == id)
            || self
                .id_to_token(id)
                .is_some_and(|text| self.inner.get_added_vocabulary().is_special_token(&text))
    }

    /// Whether an id ends a reply.
    pub(crate) fn is_stop(&self, id: i64) -> bool {
        self.stop_ids.binary_search(&id).is_ok()
    }

    /// Returns a special token whose text occurs in `text`, if any. The tokenizer would encode it as the real
    /// token; in user input this is an injection.
    pub fn special_text_in(&self, text: &str) -> Option<String> {
        let tokens = self.inner.get_added_vocabulary().get_added_tokens_decoder();
        let inside = |(id, token): &(&u32, &tokenizers::AddedToken)| {
            text.contains(&token.content) && (token.special || self.is_special(i64::from(**id)))
        };
        tokens.iter().filter(inside).map(|(_, token)| token.content.clone()).min()
    }

    /// The name for error messages: the model folder.
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

    /// Renders a conversation to text with the chat template. Returns an error if the template leaves out a
    /// turn, the calls of a turn, or the tools.
    pub fn render<'a>(
        &self,
        conversation: impl Into<Conversation<'a>>,
        add_generation_prompt: bool,
    ) -> Result<Rendered> {
        let conversation = conversation.into();
        let rendered = self.render_unchecked(conversation, add_generation_prompt);
        let rendered = rendered.map_err(|error| self.without_calls(conversation, error))?;
        self.check_turns(conversation, add_generation_prompt, &rendered)?;
        Ok(rendered)
    }

    pub(crate) fn render_unchecked(
        &self,
        conversation: Conversation<'_>,
        add_generation_prompt: bool,
    ) -> Result<Rendered> {
        let missing = || match &self.broken_template {
            Some(broken) => Error::TemplateSyntax { name: self.name.clone(), reason: broken.reason.clone() },
            None => Error::NoChatTemplate { name: self.name.clone(), known: BUILT_IN },
        };
        let template = self.template.as_ref().ok_or_else(missing)?;
        let options = self.render_options(add_generation_prompt);
        let options = RenderOptions { tools: conversation.tools.cloned(), ..options };
        template.render(conversation.messages, &options)
    }

    /// The variables of the template other than the messages, without tools. The caller may add tools.
    pub fn render_options(&self, add_generation_prompt: bool) -> RenderOptions {
        let text = |(name, token): (&String, &SpecialToken)| (name.clone(), token.text.clone());
        RenderOptions {
            add_generation_prompt,
            tools: None,
            special_tokens: self.special.iter().map(text).collect(),
        }
    }

    /// Encodes text without adding any token, and returns the byte range of each id in the text.
    pub(crate) fn pieces(&self, text: &str) -> Result<Pieces> {
        self.check_text(text)?;
        let encoding = decode(|| self.inner.encode(text, false)).map_err(|reason| self.failed(&reason))?;
        let encoding = encoding.map_err(|error| self.failed(&error))?;
        Ok(Pieces {
            ids: encoding.get_ids().iter().map(|&id| i64::from(id)).collect(),
            ranges: encoding.get_offsets().iter().map(|&(start, end)| start..end).collect(),
        })
    }

    /// A text with everything that determines the ids of a conversation: tokenizers with equal fingerprints
    /// produce equal ids.
    pub fn fingerprint(&self) -> Result<String> {
        let inner = self.inner.to_string(false).map_err(|error| self.failed(&error))?;
        let template = self.template.as_ref().map_or("", |template| template.source());
        // A template that prints the date renders another text on another day.
        let day = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |time| time.as_secs() / 86_400);
        let day = if template.contains("strftime_now") { day } else { 0 };
        let config = Value::Object(self.config.clone());
        Ok(format!("{inner}\n{config}\n{:?}\n{template}\n{day}", self.special))
    }

    /// Checks that an id is in the vocabulary.
    pub(crate) fn checked(&self, place: &str, id: i64) -> Result<u32> {
        match u32::try_from(id) {
            Ok(small) if (small as usize) < self.vocab_size => Ok(small),
            _ => Err(Error::IdOutsideVocabulary { place: place.to_owned(), id, vocab_size: self.vocab_size }),
        }
    }

    fn special_id(&self, name: &str) -> Option<i64> {
        self.special.get(name).map(|token| token.id)
    }

    /// Refuses a text that the normalizer may make too much of.
    fn check_text(&self, text: &str) -> Result<()> {
        self.growth.check_text(text.len()).map_err(|reason| self.failed(&reason))
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

    /// Determines which token ends an assistant turn, and from it the stop ids.
    fn find_stops(&mut self) {
        self.end_of_turn = self.template.is_some().then(|| self.probe_end_of_turn()).flatten();
        let ends =
            self.end_of_turn.into_iter().chain(self.eos_id()).chain(self.generation_eos.iter().copied());
        self.stop_ids = ends.collect();
        self.stop_ids.sort_unstable();
        self.stop_ids.dedup();
    }

    /// Renders a probe conversation and returns the first special token after its answer.
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
