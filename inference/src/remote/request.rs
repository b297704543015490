//! Requests to an endpoint: `GET /models` and `POST /chat/completions`.
//!
//! Redirects are not followed, so the key reaches no other host. A request to this machine uses no proxy. No
//! connection is kept for a second request: a server may have closed it in the meantime, and a POST cannot be
//! repeated. Every failure is described with its fix. This file does not read replies.

use std::fmt;
use std::io::{self, Read};
use std::time::Duration;

use serde_json::{Map, Value, json};
use ureq::http::{Response, StatusCode};
use ureq::{Agent, Body, Proxy, RequestBuilder, Timeout};

use super::address::{Access, Address};
use super::answer::error_message;
use super::error::{RemoteError, excerpt};

/// The limit for connecting to a server.
const CONNECT: Duration = Duration::from_secs(10);
/// The usual limit for how long a server may be silent while it replies.
pub(super) const SILENCE: Duration = Duration::from_secs(120);
/// The limit for the list of models.
const LISTING: Duration = Duration::from_secs(30);
/// The longest list of models, in bytes.
const LISTING_BYTES: u64 = 8 << 20;
/// How much of a refusal is read, in bytes.
const REFUSAL_BYTES: u64 = 64 << 10;

/// A server with its key.
#[derive(Clone)]
pub(super) struct Endpoint {
    agent: Agent,
    /// The base URL.
    pub(super) base: String,
    host: String,
    access: Access,
    /// The limit for how long the server may be silent while it replies.
    pub(super) silence: Duration,
}

/// The key and the proxy, which may have a password, are not shown.
impl fmt::Debug for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Endpoint").field("base", &self.base).finish_non_exhaustive()
    }
}

/// A model that an endpoint offers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Offered {
    /// The name for requests.
    pub(super) name: String,
    /// The context length in tokens, if the server tells it.
    pub(super) context: Option<u64>,
    /// When the model was made, in seconds since 1970, if the server tells it. Some servers put the time of
    /// the request there.
    pub(super) created: Option<u64>,
    /// What else the server tells of it: where its weights are (`root`), whose it is, their sizes (`meta`).
    pub(super) details: String,
}

impl Endpoint {
    pub(super) fn new(address: &Address, access: Access, silence: Duration) -> Self {
        let proxy = if address.is_loopback { None } else { Proxy::try_from_env() };
        let config = Agent::config_builder()
            .proxy(proxy)
            .http_status_as_error(false)
            .max_redirects(0)
            .max_idle_connections(0)
            .timeout_connect(Some(CONNECT))
            .timeout_per_read(Some(silence))
            .timeout_per_write(Some(silence))
            .user_agent(concat!("colossal-chat/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .build();
        let (base, host) = (address.base.clone(), address.host.clone());
        Self { agent: config.into(), base, host, access, silence }
    }

    /// The models that the server lists.
    pub(super) fn models(&self) -> Result<Vec<Offered>, RemoteError> {
        let request = self.agent.get(format!("{}/models", self.base));
        let request = request.config().timeout_global(Some(LISTING)).build();
        let response = self.accept(self.with_key(request).call(), LISTING)?;
        let mut text = Vec::new();
        let read = response.into_body().into_reader().take(LISTING_BYTES).read_to_end(&mut text);
        read.map_err(|error| read_failure(&error, LISTING))?;
        let listing: Value = serde_json::from_slice(&text)
            .map_err(|_| RemoteError::NotAReply(excerpt(&String::from_utf8_lossy(&text))))?;
        let models = listing["data"].as_array().ok_or_else(|| {
            RemoteError::Malformed(format!(
                "the list of models has no `data`: {}",
                excerpt(&listing.to_string())
            ))
        })?;
        let named = models.iter().filter_map(|model| {
            Some(Offered {
                name: model["id"].as_str()?.to_owned(),
                context: context_length(model),
                created: model["created"].as_u64(),
                details: json!([model["root"], model["owned_by"], model["meta"]]).to_string(),
            })
        });
        Ok(named.collect())
    }

    /// Asks for a reply. A server may refuse settings that do not change what is asked for; they are left
    /// out, and `notices` says so.
    pub(super) fn reply(
        &self,
        mut body: Map<String, Value>,
        notices: &mut Vec<String>,
    ) -> Result<Response<Body>, RemoteError> {
        loop {
            let request = self.agent.post(format!("{}/chat/completions", self.base));
            let request = self.with_key(request).header("Accept", "text/event-stream");
            let refused = match self.accept(request.send_json(&body), self.silence) {
                Err(refused @ RemoteError::Status { status: 400 | 422, .. }) => refused,
                other => return other,
            };
            if !adapt(&mut body, &refused.to_string(), notices) {
                return Err(refused);
            }
        }
    }

    fn with_key<B>(&self, request: RequestBuilder<B>) -> RequestBuilder<B> {
        match &self.access.key {
            Some(key) => request.header("Authorization", format!("Bearer {}", key.secret)),
            None => request,
        }
    }

    /// Turns everything but a response with status 2xx into an error.
    fn accept(
        &self,
        outcome: Result<Response<Body>, ureq::Error>,
        silence: Duration,
    ) -> Result<Response<Body>, RemoteError> {
        let response = outcome.map_err(|error| self.connection_failure(&error, silence))?;
        let status = response.status();
        if status.is_success() {
            Ok(response)
        } else if status.is_redirection() {
            let location = self.harmless(header(&response, "location").unwrap_or("nowhere"));
            Err(RemoteError::Redirect { server: self.base.clone(), location })
        } else {
            Err(self.refusal(status, response))
        }
    }

    fn refusal(&self, status: StatusCode, response: Response<Body>) -> RemoteError {
        let reason = status.canonical_reason().unwrap_or("no reason given").to_owned();
        let status = status.as_u16();
        let wait = header(&response, "retry-after").map(excerpt);
        let retry_after = wait.as_deref().and_then(|wait| wait.parse().ok());
        let mut text = Vec::new();
        // Whatever arrived of the explanation is used; the status alone is an error already.
        let _ = response.into_body().into_reader().take(REFUSAL_BYTES).read_to_end(&mut text);
        let text = String::from_utf8_lossy(&text);
        let message = match serde_json::from_str::<Value>(&text) {
            Ok(object) if object.is_object() => error_message(&object),
            // The page of a proxy says nothing that its status does not.
            _ if text.trim().is_empty() || text.trim_start().starts_with('<') => reason,
            _ => text.into_owned(),
        };
        let hint = match status {
            401 | 403 => format!("; {}", self.access.advice),
            404 => {
                "; check the path of the address, which ends in /v1 with most servers, and the name of the \
                         model"
                    .to_owned()
            }
            429 => match wait {
                Some(wait) if wait.parse::<u64>().is_ok() => format!("; try again in {wait} s"),
                Some(wait) => format!("; try again after {wait}"),
                None => "; wait before the next request".to_owned(),
            },
            500.. => "; the log of the server says more".to_owned(),
            _ => String::new(),
        };
        let (server, message) = (self.base.clone(), self.harmless(&message));
        RemoteError::Status { server, status, message, hint, retry_after }
    }

    fn connection_failure(&self, error: &ureq::Error, silence: Duration) -> RemoteError {
        let cause = match error {
            ureq::Error::Io(error) => Some(error.kind()),
            _ => None,
        };
        let wants_tls = self.base.starts_with("https:");
        let is_tls = match error {
            ureq::Error::Tls(_) | ureq::Error::Rustls(_) => true,
            // A server without TLS may answer the handshake with data that TLS cannot read.
            _ => wants_tls && cause == Some(io::ErrorKind::InvalidData),
        };
        let detail = excerpt(&error.to_string());

        let reason = match error {
            ureq::Error::HostNotFound => {
                format!("the name {} has no address: check its spelling and the network", self.host)
            }
            _ if is_tls => format!(
                "no secure connection: {detail}; a server without TLS needs http://, and only certificates of public \
                 authorities are accepted"
            ),
            // A server without TLS may end the handshake, and any server may end a connection.
            _ if wants_tls && cause.is_some_and(is_end) => format!(
                "the server ended the connection before it answered: {detail}; if it has no TLS, it needs http://"
            ),
            _ if cause == Some(io::ErrorKind::ConnectionRefused) => {
                "nothing listens there (connection refused): start the server, or check the port".to_owned()
            }
            ureq::Error::Timeout(Timeout::Resolve | Timeout::Connect) => {
                format!("no connection within {} s: check the address and the firewall", CONNECT.as_secs())
            }
            ureq::Error::Timeout(_) => return RemoteError::Silent { seconds: silence.as_secs() },
            ureq::Error::Protocol(_) | ureq::Error::LargeResponseHeader(..) => {
                "the answer is not HTTP: check the port, and whether the server wants https://".to_owned()
            }
            ureq::Error::InvalidProxyUrl | ureq::Error::ConnectProxyFailed(_) => {
                format!("the proxy of the environment (HTTPS_PROXY, ALL_PROXY) refuses: {detail}")
            }
            _ => format!("the connection failed: {detail}"),
        };
        RemoteError::Connection { server: self.base.clone(), reason }
    }

    /// The beginning of a text of the server. A server may repeat the key that it was sent.
    fn harmless(&self, text: &str) -> String {
        match &self.access.key {
            Some(key) => excerpt(&text.replace(&key.secret, "(the key)")),
            None => excerpt(text),
        }
    }
}

/// Whether a connection that failed in this way was ended by the other side.
fn is_end(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(kind, UnexpectedEof | ConnectionReset | ConnectionAborted | BrokenPipe)
}

/// Describes a failed read of a response.
pub(super) fn read_failure(error: &io::Error, silence: Duration) -> RemoteError {
    match error.get_ref().and_then(|error| error.downcast_ref()) {
        Some(ureq::Error::Timeout(_)) => RemoteError::Silent { seconds: silence.as_secs() },
        _ => RemoteError::Ended(excerpt(&error.to_string())),
    }
}

/// A header of a response, if it is text.
fn header<'a>(response: &'a Response<Body>, name: &str) -> Option<&'a str> {
    response.headers().get(name)?.to_str().ok()
}

/// The context length of a listed model. vLLM says `max_model_len`, llama.cpp `meta.n_ctx` or `n_ctx_train`,
/// others `context_length`.
fn context_length(model: &Value) -> Option<u64> {
    let known = [
        &model["max_model_len"],
        &model["meta"]["n_ctx"],
        &model["meta"]["n_ctx_train"],
        &model["context_length"],
        &model["context_window"],
    ];
    known.into_iter().find_map(Value::as_u64).filter(|&tokens| tokens > 0)
}

/// Changes a request so that a server that refused it for one of its settings may accept it. Returns whether
/// something was changed.
fn adapt(body: &mut Map<String, Value>, refusal: &str, notices: &mut Vec<String>) -> bool {
    if refusal.contains("stream_options") && body.remove("stream_options").is_some() {
        notices.push("this server cannot report token counts: each piece counts as one token".to_owned());
        return true;
    }
    // OpenAI renamed the limit for newer models.
    if refusal.contains("max_completion_tokens")
        && let Some(limit) = body.remove("max_tokens")
    {
        body.insert("max_completion_tokens".to_owned(), limit);
        return true;
    }
    if refusal.contains("seed") && body.remove("seed").is_some() {
        notices.push("this server takes no seed: the same question may get another answer".to_owned());
        return true;
    }
    false
}

/// How replies are drawn.
#[derive(Clone, Debug)]
pub struct RemoteOptions {
    /// Divides the logits.
    pub temperature: f64,
    /// The probability of the most likely tokens that are drawn from.
    pub top_p: f64,
    /// The number of the most likely tokens that are drawn from; 0 is all, and is not sent.
    pub top_k: usize,
    /// The longest reply, in tokens.
    pub max_new_tokens: usize,
    /// Chooses the draws.
    pub seed: u64,
}

/// The body of a request for a reply.
pub(super) fn body(model: &str, messages: Value, options: &RemoteOptions) -> Map<String, Value> {
    let mut body = Map::new();
    let settings = [
        ("model", json!(model)),
        ("messages", messages),
        ("stream", json!(true)),
        ("stream_options", json!({ "include_usage": true })),
        ("max_tokens", json!(options.max_new_tokens)),
        ("temperature", json!(options.temperature)),
        ("top_p", json!(options.top_p)),
        ("seed", json!(options.seed)),
    ];
    body.extend(settings.map(|(name, value)| (name.to_owned(), value)));
    // This one is not part of OpenAI's API, and 0 means that it is off.
    if options.top_k > 0 {
        body.insert("top_k".to_owned(), json!(options.top_k));
    }
    body
}
