//! `/v1/embeddings` and `/v1/score`: one vector, or one number, for a text.

use std::sync::Arc;

use axum::extract::State as Shared;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::chat::{ChatMessage, to_messages};
use super::completions::Prompts;
use super::tokens::off_thread;
use crate::error::{ApiError, Failures};
use crate::json::Json;
use crate::state::{Model, ModelKind, Ready, State};

/// Texts.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
pub(crate) struct EmbeddingRequest {
    /// The name of a language model.
    model: String,
    /// One text or several, or their token ids.
    input: Prompts,
    /// `float` or `base64`, which is the bytes of the numbers as little-endian fp32.
    encoding_format: Option<String>,
    // A vector has the width of the model: a shorter one would be another vector.
    #[schema(ignore)]
    dimensions: Option<IgnoredAny>,
}

/// Vectors of texts.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EmbeddingResponse {
    object: &'static str,
    data: Vec<Embedding>,
    model: String,
    usage: PoolingUsage,
}

/// The vector of a text: the final hidden state of its last token, with length 1.
#[derive(Debug, Serialize, ToSchema)]
#[expect(clippy::struct_field_names, reason = "the names of the API")]
pub(crate) struct Embedding {
    object: &'static str,
    index: usize,
    embedding: Vector,
}

/// The numbers of a vector.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Vector {
    /// As numbers.
    Numbers(Vec<f32>),
    /// As the Base64 of their bytes.
    Base64(String),
}

/// Numbers of tokens.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PoolingUsage {
    prompt_tokens: usize,
    total_tokens: usize,
}

/// Conversations to score.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
pub(crate) struct ScoreRequest {
    /// The name of a reward model.
    model: String,
    /// A conversation that ends with a message of the assistant.
    messages: Option<Vec<ChatMessage>>,
    /// Several conversations, in place of `messages`.
    conversations: Option<Vec<Vec<ChatMessage>>>,
}

/// The scores of conversations.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ScoreResponse {
    object: &'static str,
    data: Vec<Score>,
    model: String,
    usage: PoolingUsage,
}

/// The score of a conversation.
#[derive(Debug, Serialize, ToSchema)]
#[expect(clippy::struct_field_names, reason = "the names of the API")]
pub(crate) struct Score {
    object: &'static str,
    index: usize,
    score: f32,
}

/// Makes vectors of texts.
#[utoipa::path(
    post, path = "/v1/embeddings", request_body = EmbeddingRequest,
    responses((status = 200, body = EmbeddingResponse), Failures)
)]
pub(crate) async fn embed(
    Shared(state): Shared<Arc<State>>,
    Json(request): Json<EmbeddingRequest>,
) -> Result<axum::Json<EmbeddingResponse>, ApiError> {
    let model = Arc::clone(state.model(&request.model)?);
    let is_base64 = match request.encoding_format.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(other) => return Err(ApiError::field("encoding_format", format!("`{other}`; float or base64"))),
    };
    if request.dimensions.is_some() {
        return Err(ApiError::field("dimensions", "this server does not do this: leave it out"));
    }
    let _ = model.ready_as(ModelKind::Language)?;
    let rows = request.input.tokens(Arc::clone(&model), "input", &state.limits).await?;
    let rows: Vec<Vec<i64>> = rows.iter().map(|row| row.to_vec()).collect();
    let usage = check_rows(&rows, &model)?;

    let vectors = model.pool(rows, state.limits.requests).await?;
    let embedding = |(index, vector): (usize, Vec<f32>)| {
        let vector = with_unit_length(vector);
        let bytes = || vector.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>();
        let embedding =
            if is_base64 { Vector::Base64(STANDARD.encode(bytes())) } else { Vector::Numbers(vector) };
        Embedding { object: "embedding", index, embedding }
    };
    let data = vectors.into_iter().enumerate().map(embedding).collect();
    Ok(axum::Json(EmbeddingResponse { object: "list", data, model: request.model, usage }))
}

/// Scores conversations with a reward model.
#[utoipa::path(
    post, path = "/v1/score", request_body = ScoreRequest,
    responses((status = 200, body = ScoreResponse), Failures)
)]
pub(crate) async fn score(
    Shared(state): Shared<Arc<State>>,
    Json(request): Json<ScoreRequest>,
) -> Result<axum::Json<ScoreResponse>, ApiError> {
    let model = Arc::clone(state.model(&request.model)?);
    let _ = model.ready_as(ModelKind::Reward)?;
    let conversations = match (request.messages, request.conversations) {
        (Some(messages), None) => vec![messages],
        (None, Some(conversations)) => conversations,
        _ => return Err(ApiError::field("messages", "give either messages or conversations")),
    };
    let (count, most) = (conversations.len(), state.limits.prompts);
    if !(1..=most).contains(&count) {
        return Err(ApiError::field("conversations", format!("{count} conversations; from 1 to {most}")));
    }

    let encoding = Arc::clone(&model);
    let encode = move || -> Result<Vec<Vec<i64>>, ApiError> {
        let tokenizer = &encoding.ready()?.tokenizer;
        let tokens = |messages: &Vec<ChatMessage>| {
            let tokens = tokenizer.encode_scored(&to_messages(messages)?);
            tokens.map_err(|error| ApiError::template(error.to_string()))
        };
        conversations.iter().map(tokens).collect()
    };
    let rows = off_thread(encode).await?;
    let usage = check_rows(&rows, &model)?;

    let scores = model.pool(rows, state.limits.requests).await?;
    let score = |(index, score): (usize, Vec<f32>)| Score { object: "score", index, score: score[0] };
    let data = scores.into_iter().enumerate().map(score).collect();
    Ok(axum::Json(ScoreResponse { object: "list", data, model: request.model, usage }))
}

/// Checks the lengths of rows.
fn check_rows(rows: &[Vec<i64>], model: &Model) -> Result<PoolingUsage, ApiError> {
    let Ready { positions, .. } = *model.ready()?;
    if let Some((index, row)) = rows.iter().enumerate().find(|(_, row)| row.len() > positions) {
        return Err(ApiError::long_text(index, row.len(), positions));
    }
    let prompt_tokens = rows.iter().map(Vec::len).sum();
    Ok(PoolingUsage { prompt_tokens, total_tokens: prompt_tokens })
}

fn with_unit_length(mut vector: Vec<f32>) -> Vec<f32> {
    let length = vector.iter().map(|&number| f64::from(number).powi(2)).sum::<f64>().sqrt();
    if length > 0.0 {
        for number in &mut vector {
            *number = (f64::from(*number) / length) as f32;
        }
    }
    vector
}
