//! `/tokenize` and `/detokenize`.

use std::sync::Arc;

use axum::extract::State as Shared;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::{ApiError, Failures};
use crate::json::Json;
use crate::state::{Model, State};

/// A text.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
pub(crate) struct TokenizeRequest {
    /// A name of `/v1/models`.
    model: String,
    prompt: String,
    /// Whether the special tokens are added that the tokenizer adds; `true` if absent.
    add_special_tokens: Option<bool>,
}

/// The tokens of a text.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TokenizeResponse {
    count: usize,
    max_model_len: usize,
    tokens: Vec<i64>,
}

/// Token ids.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
pub(crate) struct DetokenizeRequest {
    /// A name of `/v1/models`.
    model: String,
    tokens: Vec<i64>,
}

/// The text of tokens.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DetokenizeResponse {
    prompt: String,
}

/// Divides a text into tokens.
#[utoipa::path(
    post, path = "/tokenize", request_body = TokenizeRequest,
    responses((status = 200, body = TokenizeResponse), Failures)
)]
pub(crate) async fn tokenize(
    Shared(state): Shared<Arc<State>>,
    Json(request): Json<TokenizeRequest>,
) -> Result<axum::Json<TokenizeResponse>, ApiError> {
    let model = Arc::clone(state.model(&request.model)?);
    let encode = move || -> Result<TokenizeResponse, ApiError> {
        let ready = model.ready()?;
        let add_special = request.add_special_tokens.unwrap_or(true);
        let tokens = ready.tokenizer.encode(&request.prompt, add_special);
        let tokens = tokens.map_err(|error| ApiError::body(error.to_string()))?;
        Ok(TokenizeResponse { count: tokens.len(), max_model_len: ready.context.tokens, tokens })
    };
    off_thread(encode).await.map(axum::Json)
}

/// Makes text of tokens.
#[utoipa::path(
    post, path = "/detokenize", request_body = DetokenizeRequest,
    responses((status = 200, body = DetokenizeResponse), Failures)
)]
pub(crate) async fn detokenize(
    Shared(state): Shared<Arc<State>>,
    Json(request): Json<DetokenizeRequest>,
) -> Result<axum::Json<DetokenizeResponse>, ApiError> {
    let model = Arc::clone(state.model(&request.model)?);
    let decode = move || {
        let text = model.ready()?.tokenizer.decode(&request.tokens, false);
        text.map_err(|error| ApiError::field("tokens", error.to_string()))
    };
    let prompt = off_thread(decode).await?;
    Ok(axum::Json(DetokenizeResponse { prompt }))
}

/// Runs a tokenizer or a template on a thread of its own: it may take long, and other requests go on
/// meanwhile.
pub(crate) async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| ApiError::failed(error.to_string()))?
}

/// A token beside its log-probability.
pub(crate) struct TokenText {
    /// Its text. A part of a character is shown as the replacement character.
    pub(crate) text: String,
    /// The bytes that it adds to the text, also if they are a part of a character.
    pub(crate) bytes: Vec<u8>,
}

impl TokenText {
    /// A token without a text, as tables that are larger than the tokenizer have, is shown by its id, as vLLM
    /// does.
    pub(crate) fn new(model: &Model, id: i64) -> Self {
        let tokenizer = model.ready().ok().map(|ready| &ready.tokenizer);
        let known = tokenizer.and_then(|tokenizer| {
            let text = tokenizer.token_text(id).ok()?;
            Some(Self { bytes: tokenizer.token_bytes(id, &text), text })
        });
        known.unwrap_or_else(|| Self::whole(format!("token_id:{id}")))
    }

    /// The first token of a text: there is no token before it, and no space.
    pub(crate) fn first(model: &Model, id: i64) -> Self {
        let alone = model.ready().ok().and_then(|ready| ready.tokenizer.decode(&[id], false).ok());
        match alone.filter(|alone| !alone.contains(char::REPLACEMENT_CHARACTER)) {
            Some(text) => Self::whole(text),
            None => Self::new(model, id),
        }
    }

    /// A token of whole characters.
    fn whole(text: String) -> Self {
        Self { bytes: text.clone().into_bytes(), text }
    }
}

/// Where the tokens of a text begin, in characters.
#[derive(Clone, Debug, Default)]
pub(crate) struct TextOffset {
    /// The characters that are whole.
    characters: usize,
    /// The bytes of the character that is not.
    rest: Vec<u8>,
}

impl TextOffset {
    /// Takes the bytes of the next token, and returns the character within which, or before which, it begins.
    /// Bytes that are no text count as replacement characters, as they are decoded.
    pub(crate) fn add(&mut self, bytes: &[u8]) -> usize {
        let start = self.characters;
        self.rest.extend(bytes);
        loop {
            let (valid, wrong) = match str::from_utf8(&self.rest) {
                Ok(text) => (text.len(), Some(0)),
                Err(error) => (error.valid_up_to(), error.error_len()),
            };
            self.characters += str::from_utf8(&self.rest[..valid]).map_or(0, |text| text.chars().count());
            self.rest.drain(..valid);
            match wrong {
                Some(length @ 1..) => {
                    self.characters += 1;
                    self.rest.drain(..length);
                }
                _ => return start,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::TextOffset;

    #[test]
    fn a_token_within_a_character_begins_where_the_character_does() {
        let offsets = |tokens: &[&[u8]]| {
            let mut offset = TextOffset::default();
            tokens.iter().map(|bytes| offset.add(bytes)).collect::<Vec<_>>()
        };
        // "a春b" in five tokens, of which three are the bytes of one character.
        assert_eq!(offsets(&[b"a", &[0xE6], &[0x98], &[0xA5], b"b"]), [0, 1, 1, 1, 2]);
        // Each of the bytes that begin no character is one replacement character: "\u{fffd}\u{fffd}é".
        assert_eq!(offsets(&[&[0xFF], &[0xFE], "é".as_bytes(), b"x"]), [0, 1, 2, 3]);
        // A character that is broken off by another one is a replacement character.
        assert_eq!(offsets(&[&[0xE6, 0x98], b"yz", b"!"]), [0, 0, 3]);
    }
}
