//! Requests to an endpoint: `GET /models` and `POST /chat/completions`.
//!
//! Redirects are not followed, so the key reaches no other host. A request to this machine uses no proxy. No
//! connection is kept for a second request: a server may have closed it in the meantime, and a POST cannot be
//! repeated. Every failure is described with its fix. This file does not read replies.

use std::error::Error;
use std::fmt;
use std::io::{self, Read};
use std::time::Duration;

use serde_json::{Map, Value, json};
use ureq::{Agent, AgentBuilder, ErrorKind, Request, Response, Transport};

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
        let agent = AgentBuilder::new()
            .try_proxy_from_env(!address.is_loopback)
            .redirects(0)
            .max_idle_connections(0)
            .timeout_connect(CONNECT)
            .timeout_read(silence)
            .timeout_write(silence)
            .user_agent(concat!("colossal-chat/", env!("CARGO_PKG_VERSION")))
            .build();
        Self { agent, base: address.base.clone(), host: address.host.clone(), access, silence }
    }

    /// The models that the server lists.
    pub(super) fn models(&self) -> Result<Vec<Offered>, RemoteError> {
        let request = self.request("GET", "/models").timeout(LISTING);
        let response = self.accept(request.call(), LISTING)?;
        let mut text = Vec::new();
        let read = response.into_reader().take(LISTING_BYTES).read_to_end(&mut text);
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
    ) -> Result<Response, RemoteError> {
        loop {
            let request = self.request("POST", "/chat/completions").set("Accept", "text/event-stream");
            let refused = match self.accept(request.send_json(&body), self.silence) {
                Err(refused @ RemoteError::Status { status: 400 | 422, .. }) => refused,
                other => return other,
            };
            if !adapt(&mut body, &refused.to_string(), notices) {
                return Err(refused);
            }
        }
    }

    fn request(&self, method: &str, path: &str) -> Request {
        let url = format!("{}{path}", self.base);
        let request = self.agent.request(method, &url).set("Accept-Encoding", "identity");
        match &self.access.key {
            Some(key) => request.set("Authorization", &format!("Bearer {}", key.secret)),
            None => request,
        }
    }

    /// Turns everything but a response with status 2xx into an error.
    fn accept(
        &self,
        outcome: Result<Response, ureq::Error>,
        silence: Duration,
    ) -> Result<Response, RemoteError> {
        match outcome {
            Ok(response) if (200..300).contains(&response.status()) => Ok(response),
            Ok(response) => {
                let location = self.harmless(response.header("location").unwrap_or("nowhere"));
                Err(RemoteError::Redirect { server: self.base.clone(), location })
            }
            Err(ureq::Error::Status(status, response)) => Err(self.refusal(status, response)),
            Err(ureq::Error::Transport(error)) => Err(self.connection_failure(&error, silence)),
        }
    }

    fn refusal(&self, status: u16, response: Response) -> RemoteError {
        let reason = response.status_text().to_owned();
        let wait = response.header("retry-after").map(excerpt);
        let retry_after = wait.as_deref().and_then(|wait| wait.parse().ok());
        let mut text = Vec::new();
        // Whatever arrived of the explanation is used; the status alone is an error already.
        let _ = response.into_reader().take(REFUSAL_BYTES).read_to_end(&mut text);
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

    fn connection_failure(&self, error: &Transport, silence: Duration) -> RemoteError {
        let mut source = error.source();
        let mut cause = None;
        while let Some(inner) = source {
            cause = inner.downcast_ref::<io::Error>().or(cause);
            source = inner.source();
        }
        let kind = cause.map(io::Error::kind);
        let timed_out = matches!(kind, Some(io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock));
        let detail = excerpt(
            &cause.map_or_else(|| error.message().unwrap_or_default().to_owned(), io::Error::to_string),
        );
        let is_tls = error.message().is_some_and(|message| message.contains("tls"));
        let detail = if is_tls && timed_out { "no answer to the TLS handshake".to_owned() } else { detail };

        let reason = match error.kind() {
            ErrorKind::Dns => {
                format!(
                    "the name {} has no address: check its spelling and the network ({detail})",
                    self.host
                )
            }
            _ if is_tls => format!(
                "no secure connection: {detail}; a server without TLS needs http://, and only certificates of public \
                 authorities are accepted"
            ),
            ErrorKind::ConnectionFailed if kind == Some(io::ErrorKind::ConnectionRefused) => {
                "nothing listens there (connection refused): start the server, or check the port".to_owned()
            }
            ErrorKind::ConnectionFailed if timed_out => {
                format!("no connection within {} s: check the address and the firewall", CONNECT.as_secs())
            }
            ErrorKind::BadStatus | ErrorKind::BadHeader => {
                "the answer is not HTTP: check the port, and whether the server wants https://".to_owned()
            }
            ErrorKind::InvalidProxyUrl | ErrorKind::ProxyConnect | ErrorKind::ProxyUnauthorized => {
                format!("the proxy of the environment (HTTPS_PROXY, ALL_PROXY) refuses: {}", error.kind())
            }
            _ if timed_out => return RemoteError::Silent { seconds: silence.as_secs() },
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

/// Describes a failed read of a response.
pub(super) fn read_failure(error: &io::Error, silence: Duration) -> RemoteError {
    match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
            RemoteError::Silent { seconds: silence.as_secs() }
        }
        _ => RemoteError::Ended(excerpt(&error.to_string())),
    }
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

/// The body of a request for a reply.
pub(super) fn body(model: &str, messages: Value, options: &super::RemoteOptions) -> Map<String, Value> {
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
