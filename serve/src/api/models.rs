//! `/v1/models`: which models there are, and new weights for one of them.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State as Shared};
use serde::Serialize;
use utoipa::ToSchema;

use crate::error::{ApiError, Failures};
use crate::state::{Model, ModelKind, State};

/// The models of the server.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelList {
    object: &'static str,
    data: Vec<ModelEntry>,
}

/// A model.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelEntry {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    /// Of an adapter, the model whose weights it shares.
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<String>,
    /// The most tokens of a prompt with its reply; absent while the model is being loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_model_len: Option<usize>,
    /// Whether the model writes replies or gives scores; absent while it is being loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<ModelKind>,
}

impl ModelEntry {
    fn new(model: &Model) -> Self {
        let ready = model.ready().ok();
        Self {
            id: model.name.clone(),
            object: "model",
            created: model.created,
            owned_by: "colossal-chat",
            parent: model.parent.clone(),
            max_model_len: ready.map(|ready| ready.context.tokens),
            kind: ready.map(|ready| ready.kind),
        }
    }
}

/// Lists the models.
#[utoipa::path(get, path = "/v1/models", responses((status = 200, body = ModelList), Failures)
)]
pub(crate) async fn list(Shared(state): Shared<Arc<State>>) -> Json<ModelList> {
    let data = state.models.iter().map(|model| ModelEntry::new(model)).collect();
    Json(ModelList { object: "list", data })
}

/// Says what is known of one model.
#[utoipa::path(
    get, path = "/v1/models/{model}", params(("model" = String, Path)),
    responses((status = 200, body = ModelEntry), Failures)
)]
pub(crate) async fn show(
    Shared(state): Shared<Arc<State>>,
    Path(name): Path<String>,
) -> Result<Json<ModelEntry>, ApiError> {
    Ok(Json(ModelEntry::new(state.model(&name)?)))
}

/// Loads the weights of a model again, for example after its run has written a new checkpoint: of an adapter
/// its own, of a model also those of its adapters. Requests that are under way go on with the new weights.
#[utoipa::path(
    post, path = "/v1/models/{model}/reload", params(("model" = String, Path)),
    responses((status = 200, body = ModelEntry), Failures)
)]
pub(crate) async fn reload(
    Shared(state): Shared<Arc<State>>,
    Path(name): Path<String>,
) -> Result<Json<ModelEntry>, ApiError> {
    let model = state.model(&name)?;
    let _ = model.ready()?;
    model.reload().await?;
    Ok(Json(ModelEntry::new(model)))
}
