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
        Ok(TokenizeResponse { count: tokens.len(), max_model_len: ready.context, tokens })
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

/// The text of a token beside its log-probability. A token without a text, as tables that are larger than the
/// tokenizer have, is shown by its id, as vLLM does.
pub(crate) fn token_text(model: &Model, id: i64) -> String {
    let text = model.ready().ok().and_then(|ready| ready.tokenizer.token_text(id).ok());
    text.unwrap_or_else(|| format!("token_id:{id}"))
}
