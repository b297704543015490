//! The errors of the service: of the whole of it, and of one request.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use parallel::ErrorClass;
use serde::Serialize;
use utoipa::{IntoResponses, ToSchema};

use crate::context_length::ContextLength;

/// An error of another crate.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be used.
    #[error("{address}: {source}; another program may use this port: choose another one with --port")]
    Bind {
        /// The address.
        address: std::net::SocketAddr,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// A server that other machines reach needs a key.
    #[error(
        "other machines reach {address}, and the server has no key: name a file of keys with --api-key-file, set \
         COLOSSAL_CHAT_SERVE_KEYS, or listen on 127.0.0.1"
    )]
    OpenWithoutKey {
        /// The address.
        address: std::net::SocketAddr,
    },
    /// The operating system refused something.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// A model could not be loaded or run.
    #[error("the model {name} cannot be served: {source}")]
    Model {
        /// The name.
        name: String,
        /// Why.
        source: BoxError,
    },
    /// The thread of a model has panicked.
    #[error("the model {name} cannot be served any more: this is a bug, please report the message above")]
    Panicked {
        /// The name.
        name: String,
    },
}

impl Error {
    /// The class of this error.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Bind { source, .. } | Self::Io(source) => ErrorClass::of_io(source.kind()),
            Self::OpenWithoutKey { .. } => ErrorClass::Usage,
            Self::Model { .. } => ErrorClass::OfSource,
            Self::Panicked { .. } => ErrorClass::Failed,
        }
    }
}

/// Why a request gets no answer, in the form of OpenAI's API.
#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    message: String,
    /// The field that is wrong.
    param: Option<String>,
    code: Option<&'static str>,
}

/// The body of an error.
#[derive(Serialize, ToSchema)]
pub(crate) struct ErrorBody {
    error: ErrorFields,
}

/// What went wrong.
#[derive(Serialize, ToSchema)]
pub(crate) struct ErrorFields {
    message: String,
    r#type: &'static str,
    param: Option<String>,
    code: Option<&'static str>,
}

impl ApiError {
    fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: None, code: None }
    }

    /// A field is wrong.
    pub(crate) fn field(param: &str, message: impl Into<String>) -> Self {
        let message = format!("{param}: {}", message.into());
        Self { param: Some(param.to_owned()), ..Self::new(StatusCode::BAD_REQUEST, message) }
    }

    /// The body is not JSON of the right form.
    pub(crate) fn body(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// The body is not sent as JSON.
    pub(crate) fn content_type() -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "send the body with `Content-Type: application/json`")
    }

    /// The body is too large.
    pub(crate) fn too_large(limit: usize) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, format!("a body may have {limit} bytes"))
    }

    /// The body does not come.
    pub(crate) fn slow_body() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "the body of the request did not come in time")
    }

    /// A prompt leaves no room for a reply.
    pub(crate) fn long_prompt(prompt: usize, context: ContextLength) -> Self {
        let message =
            format!("the prompt has {prompt} tokens, and {context} with the reply: shorten the prompt");
        Self::too_long(message)
    }

    /// A prompt with the reply that `field` asks for is longer than the context.
    pub(crate) fn long_reply(prompt: usize, field: &str, reply: usize, context: ContextLength) -> Self {
        Self::too_long(format!(
            "the prompt has {prompt} tokens and {field} allows {reply} more, together {}; {context}: shorten the \
             prompt, or lower {field}",
            prompt + reply
        ))
    }

    /// A text to embed or to score is longer than the context.
    pub(crate) fn long_text(index: usize, tokens: usize, positions: usize) -> Self {
        let message =
            format!("text {index} has {tokens} tokens, and this model takes at most {positions}: shorten it");
        Self::too_long(message)
    }

    fn too_long(message: String) -> Self {
        Self { code: Some("context_length_exceeded"), ..Self::new(StatusCode::BAD_REQUEST, message) }
    }

    /// The key is missing or wrong.
    pub(crate) fn unauthorized() -> Self {
        let message = "send a key of this server: `Authorization: Bearer KEY`";
        Self { code: Some("invalid_api_key"), ..Self::new(StatusCode::UNAUTHORIZED, message) }
    }

    /// The host is not this machine.
    pub(crate) fn host() -> Self {
        Self::new(StatusCode::FORBIDDEN, "without a key, this server answers to the name localhost only")
    }

    /// A page of another origin asks.
    pub(crate) fn origin() -> Self {
        Self::new(
            StatusCode::FORBIDDEN,
            "without a key, this server answers to its own page and to programs only",
        )
    }

    /// There is no such model.
    pub(crate) fn no_model(name: &str, names: &[String]) -> Self {
        let message = format!("there is no model `{name}`; this server has {}", names.join(", "));
        Self {
            code: Some("model_not_found"),
            param: Some("model".into()),
            ..Self::new(StatusCode::NOT_FOUND, message)
        }
    }

    /// There is no such path.
    pub(crate) fn no_path(path: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, format!("there is no {path}; /openapi.json lists what there is"))
    }

    /// The path is asked in another way.
    pub(crate) fn method() -> Self {
        let message = "this path takes another method: /openapi.json lists what there is";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, message)
    }

    /// The template refuses the messages.
    pub(crate) fn template(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, message)
    }

    /// Too many requests wait.
    pub(crate) fn busy(limit: usize) -> Self {
        let message =
            format!("the limit of requests that are under way or wait, {limit}, is reached: try again later");
        Self { code: Some("queue_full"), ..Self::new(StatusCode::TOO_MANY_REQUESTS, message) }
    }

    /// The model is not there yet.
    pub(crate) fn loading(name: &str) -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            format!("the model {name} is being loaded: try again later"),
        )
    }

    /// The server ends.
    pub(crate) fn stopping() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "the server is being stopped")
    }

    /// The model failed.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    /// The client does not read what it asked for.
    pub(crate) fn slow_reader() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "the reply was not read, and has ended")
    }

    /// The body.
    pub(crate) fn to_body(&self) -> ErrorBody {
        let r#type = match self.status.as_u16() {
            401 | 403 => "authentication_error",
            429 => "rate_limit_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        };
        let (message, param) = (self.message.clone(), self.param.clone());
        ErrorBody { error: ErrorFields { message, r#type, param, code: self.code } }
    }
}

/// The answers of a path besides the one of a request that works, for the description of the paths.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "only their description is used")]
pub(crate) enum Failures {
    /// A field is wrong, or the prompt is too long.
    #[response(status = 400)]
    Field(ErrorBody),
    /// The key is missing or wrong.
    #[response(status = 401)]
    Key(ErrorBody),
    /// Without keys, the server answers to the name of this machine only.
    #[response(status = 403)]
    Host(ErrorBody),
    /// There is no such model.
    #[response(status = 404)]
    Model(ErrorBody),
    /// The client sends or reads too slowly.
    #[response(status = 408)]
    Slow(ErrorBody),
    /// The body is too large.
    #[response(status = 413)]
    Large(ErrorBody),
    /// The body is not sent as JSON.
    #[response(status = 415)]
    MediaType(ErrorBody),
    /// The template refuses the messages.
    #[response(status = 422)]
    Template(ErrorBody),
    /// Too many requests are under way or wait.
    #[response(status = 429)]
    Busy(ErrorBody),
    /// The model failed.
    #[response(status = 500)]
    Failed(ErrorBody),
    /// The model is being loaded, or the server is being stopped.
    #[response(status = 503)]
    Unavailable(ErrorBody),
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.to_body())).into_response();
        let headers = response.headers_mut();
        match self.status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        response
    }
}
