//! The texts of requests as token ids, as lm-evaluation-harness encodes them.
//!
//! Protocol: `models/huggingface.py` and `api/model.py` of lm-evaluation-harness 0.4.13. White space at the
//! end of a context moves to the continuation, the two are encoded together, and the cut is made by the
//! number of tokens of the context.
//!
//! A result may have more tokens than the model takes: the callers cut it or refuse it.

use datasets::Tokenizer;
use eval::request::{Prompt, move_trailing_space};
use models::config::Config;

/// Why a request cannot be answered; it becomes [`eval::request::Response::Failed`].
pub(super) type Refusal = String;

/// Encodes the requests to one model.
pub(super) struct Encoder<'a> {
    /// The tokenizer of the model.
    pub(super) tokenizer: &'a Tokenizer,
    /// The most tokens that the model reads.
    pub(super) max_length: usize,
    /// The token that stands before a text without a context.
    pub(super) prefix: i64,
    /// The text of the token `prefix`. A text that begins with it gets no special tokens.
    prefix_text: String,
}

impl<'a> Encoder<'a> {
    /// `max_length` limits the tokens of a row below what the model allows.
    pub(super) fn new(config: &Config, tokenizer: &'a Tokenizer, max_length: Option<usize>) -> Self {
        let eos = config.eos_token_ids().first().copied();
        let prefix = tokenizer.bos_id().or_else(|| tokenizer.eos_id()).or(eos).unwrap_or(0);
        let longest = config.max_positions() as usize;
        let max_length = max_length.unwrap_or(longest).min(longest);
        let prefix_text = tokenizer.decode(&[prefix], false).unwrap_or_default();
        Self { tokenizer, max_length, prefix, prefix_text }
    }

    /// The tokens of a text. `add_special` tells whether the tokenizer adds its special tokens.
    pub(super) fn encode(&self, text: &str, add_special: bool) -> Result<Vec<i64>, Refusal> {
        let has_prefix = !self.prefix_text.is_empty() && text.starts_with(&self.prefix_text);
        let add_special = add_special && !has_prefix;
        let encoded = self.tokenizer.encode(text, add_special);
        encoded.map_err(|error| error.to_string())
    }

    /// The text of a prompt; a conversation goes through the chat template.
    pub(super) fn text(&self, prompt: &Prompt) -> Result<String, Refusal> {
        match prompt {
            Prompt::Text(text) => Ok(text.clone()),
            Prompt::Chat(messages) => {
                let rendered = self.tokenizer.render(messages, true);
                rendered.map(|rendered| rendered.text).map_err(|error| error.to_string())
            }
        }
    }

    /// The tokens of a context and of its continuation. `add_special` tells whether the tokenizer adds its
    /// special tokens.
    pub(super) fn encode_pair(
        &self,
        context: &str,
        continuation: &str,
        add_special: bool,
    ) -> Result<(Vec<i64>, Vec<i64>), Refusal> {
        if context.is_empty() {
            let mut ids = self.encode(continuation, false)?;
            let has_prefix = ids.first() == Some(&self.prefix);
            let continuation = ids.split_off(usize::from(has_prefix));
            return Ok((vec![self.prefix], continuation));
        }
        let (kept, continuation) = move_trailing_space(context, continuation);
        let whole = self.encode(&format!("{kept}{continuation}"), add_special)?;
        let context = self.encode(kept, add_special)?;
        let continuation = whole.get(context.len()..).unwrap_or_default().to_vec();
        Ok((context, continuation))
    }
}

/// Whether a prompt is plain text. A chat template writes the special tokens itself.
pub(super) fn is_text(prompt: &Prompt) -> bool {
    matches!(prompt, Prompt::Text(_))
}
