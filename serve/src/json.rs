//! Bodies in JSON, whose faults are named by their field.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::header;
use serde::de::DeserializeOwned;

use crate::api::sampling::Sampling;
use crate::error::ApiError;
use crate::state::State;

/// A body.
pub(crate) struct Json<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<Arc<State>> for Json<T> {
    type Rejection = ApiError;

    /// A web page of another origin cannot send `application/json` without asking first, and this server
    /// allows no origin.
    async fn from_request(request: Request, state: &Arc<State>) -> Result<Self, ApiError> {
        let content_type = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let media_type = content_type.and_then(|value| value.split(';').next()).unwrap_or_default();
        if !media_type.trim().eq_ignore_ascii_case("application/json") {
            return Err(ApiError::content_type());
        }
        let limit = state.limits.body_bytes;
        let body = tokio::time::timeout(state.limits.read_time, Bytes::from_request(request, state)).await;
        let body = body.map_err(|_| ApiError::slow_body())?.map_err(|_| ApiError::too_large(limit))?;
        let mut deserializer = serde_json::Deserializer::from_slice(&body);
        let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
            // serde knows no path within fields that it flattens.
            let error =
                if error.path().to_string() == "." { sampling_error(&body).unwrap_or(error) } else { error };
            match error.path().to_string().as_str() {
                "." => ApiError::body(in_plain_words(error.inner())),
                path => ApiError::field(path, in_plain_words(error.inner())),
            }
        })?;
        deserializer.end().map_err(|error| ApiError::body(error.to_string()))?;
        Ok(Self(value))
    }
}

/// The message of an error, in which types of Rust have the names that JSON gives them.
fn in_plain_words(error: &serde_json::Error) -> String {
    const WORDS: [(&str, &str); 6] = [
        ("expected usize", "expected a whole number, 0 or larger"),
        ("expected u32", "expected a whole number from 0 to 4294967295"),
        ("expected i64", "expected a whole number"),
        ("expected f64", "expected a number"),
        ("expected f32", "expected a number"),
        ("expected a sequence", "expected an array"),
    ];
    let message = error.to_string();
    // What is expected comes last, after a value that is the client's own.
    let found = WORDS.iter().find_map(|(of_serde, plain)| Some((message.rfind(of_serde)?, of_serde, plain)));
    match found {
        Some((at, of_serde, plain)) => {
            format!("{}{plain}{}", &message[..at], &message[at + of_serde.len()..])
        }
        None => message,
    }
}

/// The error of the sampling fields of a body, if they have one.
fn sampling_error(body: &[u8]) -> Option<serde_path_to_error::Error<serde_json::Error>> {
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    serde_path_to_error::deserialize::<_, Sampling>(&mut deserializer).err()
}
