//! Whether the server lives and is ready, its metrics, and the description of its paths.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Json;
use axum::extract::State as Shared;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use utoipa::OpenApi;

use super::{chat, completions, models, pooling, tokens};
use crate::error::ErrorBody;
use crate::state::State;

/// The description of the paths.
#[derive(OpenApi)]
#[openapi(
    info(title = "colossal-chat", description = "Replies of language models, in the form of OpenAI's API."),
    components(schemas(ErrorBody)),
    paths(
        chat::complete,
        completions::complete,
        pooling::embed,
        pooling::score,
        models::list,
        models::show,
        models::reload,
        tokens::tokenize,
        tokens::detokenize,
        health,
        ready,
        metrics
    )
)]
struct Description;

/// 200 while the server lives and its models are loaded, 503 while they are being loaded.
#[utoipa::path(get, path = "/health", responses((status = 200), (status = 503)))]
pub(crate) async fn health(Shared(state): Shared<Arc<State>>) -> StatusCode {
    if state.models.iter().all(|model| model.is_ready()) {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    }
}

/// 200 while the server takes requests, 503 while it loads models. A server that is being stopped takes no new
/// connections, and answers 503 on one that was open.
#[utoipa::path(get, path = "/ready", responses((status = 200), (status = 503)))]
pub(crate) async fn ready(state: Shared<Arc<State>>) -> StatusCode {
    if state.is_stopping.load(Ordering::Relaxed) {
        StatusCode::SERVICE_UNAVAILABLE
    } else {
        health(state).await
    }
}

/// The metrics, in the text format of Prometheus.
#[utoipa::path(
    get, path = "/metrics",
    responses((status = 200, body = String, content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8"))
)]
pub(crate) async fn metrics(Shared(state): Shared<Arc<State>>) -> impl IntoResponse {
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, content_type)], state.metrics.text())
}

/// The description of the paths as JSON.
pub(crate) async fn description() -> Json<utoipa::openapi::OpenApi> {
    Json(Description::openapi())
}
