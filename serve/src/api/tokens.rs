//! `/tokenize` and `/detokenize`.

use std::sync::Arc;

use axum::extract::State as Shared;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::{ApiError, Failures};
use crate::json::Json;
use crate::state::State;

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
    let response =
        tokio::task::spawn_blocking(encode).await.map_err(|error| ApiError::failed(error.to_string()))?;
    response.map(axum::Json)
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
    let ready = state.model(&request.model)?.ready()?;
    let text = ready.tokenizer.decode(&request.tokens, false);
    let prompt = text.map_err(|error| ApiError::field("tokens", error.to_string()))?;
    Ok(axum::Json(DetokenizeResponse { prompt }))
}
