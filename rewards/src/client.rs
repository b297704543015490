//! A client for servers of the user that answer requests in JSON.
//!
//! ```text
//!   POST url    {"id": 7, ...}
//!   200         {...}                or {"error": "why not"}
//! ```
//! A request is sent again only if the server cannot have acted on it: there was no connection, or the server
//! answered 429 or 503. The pause is the one of `Retry-After`, or doubles each time. After anything else (a
//! time-out, a connection that broke, another status, an answer that cannot be read) the request may have
//! been acted on, and has failed.
//!
//! Redirects are not followed, so no reply and no header reaches another host. No connection is kept for a
//! second request: a server may have closed it in the meantime, and nobody would know whether the request
//! arrived. A request to this machine uses no proxy. The server is not trusted: the length of its answers is
//! limited. This file does not know what is asked.

mod address;
mod error;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};
use text::number::counted;
use ureq::http::Response;
use ureq::{Agent, Body, Proxy, Timeout};

use self::address::{Address, Headers};
use crate::entry::HttpConfig;
use crate::error::Wrong;
use crate::exchange::{reported, request};
use crate::limits::{check_batches, within};
use crate::score::quoted;

pub(crate) use self::error::ServerError;

/// The longest time for a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// The first pause before a request is sent again.
const PAUSE: Duration = Duration::from_millis(200);
/// How much of a refusal is read, in bytes.
const REFUSAL_BYTES: u64 = 64 << 10;
/// The most requests at a time, and the most times that one is sent.
const MOST_REQUESTS: usize = 256;
const MOST_ATTEMPTS: usize = 100;

/// A server and how it is asked. A clone is another connection to it.
#[derive(Clone)]
pub(crate) struct Client {
    agent: Agent,
    address: Address,
    headers: Headers,
    timeout: Duration,
    attempts: usize,
    /// The longest answer, in bytes.
    longest: usize,
    /// How many requests there have been, over all clones.
    requests: Arc<AtomicU64>,
}

/// The headers and the proxy, which may hold passwords, are not shown.
impl fmt::Debug for Client {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Client").field("server", &self.address.shown).finish_non_exhaustive()
    }
}

/// A request that failed.
#[derive(Debug)]
struct Failed {
    error: ServerError,
    /// Whether the server cannot have acted on it.
    is_untouched: bool,
    /// The pause that the server asks for.
    pause: Option<Duration>,
}

impl From<ServerError> for Failed {
    fn from(error: ServerError) -> Self {
        Self { error, is_untouched: false, pause: None }
    }
}

/// Refuses settings of a server that cannot work.
pub(crate) fn check(config: &HttpConfig) -> Result<(), Wrong> {
    Client::new(config, 0).map(|_| ())
}

impl Client {
    /// A client for answers of at most `longest` bytes. It makes no connection.
    pub(crate) fn new(config: &HttpConfig, longest: usize) -> Result<Self, Wrong> {
        Self::with_variables(config, longest, &|name| std::env::var(name).ok())
    }

    fn with_variables(
        config: &HttpConfig,
        longest: usize,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, Wrong> {
        check_batches(config.batch_size, config.timeout)?;
        within("attempts", config.attempts, MOST_ATTEMPTS)?;
        within("concurrency", config.concurrency, MOST_REQUESTS)?;
        let address = Address::parse(&config.url)?;
        let headers = Headers::read(&config.headers, &address, variable)?;
        let timeout = Duration::from_secs_f64(config.timeout);
        let proxy = if address.is_loopback { None } else { Proxy::try_from_env() };
        let agent = Agent::config_builder()
            .proxy(proxy)
            .http_status_as_error(false)
            .max_redirects(0)
            .max_idle_connections(0)
            .timeout_connect(Some(CONNECT.min(timeout)))
            .timeout_global(Some(timeout))
            .user_agent(concat!("colossal-chat/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .build();
        let (attempts, requests) = (config.attempts, Arc::default());
        Ok(Self { agent: agent.into(), address, headers, timeout, attempts, longest, requests })
    }

    /// Sends a request and returns the answer.
    pub(crate) fn ask(&self, body: &impl Serialize) -> Result<Map<String, Value>, ServerError> {
        let id = self.requests.fetch_add(1, Ordering::Relaxed) + 1;
        self.read(id, &self.send(&request(id, body))?)
    }

    /// Sends a request until the server has taken it.
    fn send(&self, request: &[u8]) -> Result<Vec<u8>, ServerError> {
        let (mut attempt, mut backoff) = (1, PAUSE);
        loop {
            let failed = match self.attempt(request) {
                Ok(answer) => return Ok(answer),
                Err(failed) => failed,
            };
            let pause = failed.pause.unwrap_or(backoff);
            if !failed.is_untouched {
                return Err(failed.error);
            }
            if attempt >= self.attempts || pause > self.timeout {
                return Err(self.given_up(failed.error, attempt, pause));
            }
            thread::sleep(pause);
            (attempt, backoff) = (attempt + 1, (2 * backoff).min(self.timeout));
        }
    }

    /// The error of a request that was sent `attempts` times, and is not sent again after a further `pause`.
    fn given_up(&self, mut error: ServerError, attempts: usize, pause: Duration) -> ServerError {
        if let ServerError::Status { hint, .. } = &mut error {
            let times = counted(attempts as u64, "time");
            *hint = if pause > self.timeout {
                let [pause, timeout] = [pause, self.timeout].map(|time| time.as_secs_f64());
                format!(
                    "; it was sent {times}, and not again, because the pause before that, {pause} s, is longer \
                     than `timeout`, {timeout} s"
                )
            } else {
                format!("; it was sent {times}: lower `concurrency`, or raise `attempts`")
            };
        }
        error
    }

    fn attempt(&self, request: &[u8]) -> Result<Vec<u8>, Failed> {
        let mut post = self.agent.post(&self.address.url).header("Content-Type", "application/json");
        post = post.header("Accept", "application/json");
        for (name, value) in &self.headers.pairs {
            post = post.header(name, value);
        }
        let response = post.send(request).map_err(|error| self.no_response(&error))?;
        if response.status().as_u16() != 200 {
            return Err(self.refusal(response));
        }
        let mut answer = Vec::new();
        let read = response.into_body().into_reader().take(self.longest as u64 + 1).read_to_end(&mut answer);
        read.map_err(|error| self.broken_answer(&error))?;
        if answer.len() > self.longest {
            return Err(ServerError::TooLong { server: self.shown(), limit: self.longest }.into());
        }
        Ok(answer)
    }

    fn read(&self, id: u64, answer: &[u8]) -> Result<Map<String, Value>, ServerError> {
        let unusable = |problem: String| ServerError::NotAnAnswer {
            server: self.shown(),
            said: self.quoted(&String::from_utf8_lossy(&answer[..answer.len().min(1024)])),
            problem,
        };
        let object: Map<String, Value> = serde_json::from_slice(answer).map_err(|error| {
            unusable(format!("it is no JSON object: {}", self.quoted(&error.to_string())))
        })?;
        // Servers need not repeat the id, because an answer comes on the connection of its request.
        match object.get("id") {
            None | Some(Value::Null) => {}
            Some(found) if found.as_u64() == Some(id) => {}
            Some(_) => return Err(unusable(format!("its `id` is not {id}"))),
        }
        match reported(&object) {
            None => Ok(object),
            Some(message) => {
                Err(ServerError::Reported { server: self.shown(), message: self.quoted(&message) })
            }
        }
    }

    /// The failure of a request with another status than 200.
    fn refusal(&self, response: Response<Body>) -> Failed {
        let status = response.status();
        let header = |name: &str| Some(response.headers().get(name)?.to_str().ok()?.trim().to_owned());
        let pause = header("retry-after").and_then(|seconds| seconds.parse().ok()).map(Duration::from_secs);
        let hint = match status.as_u16() {
            300..400 => {
                let location = self.quoted(&header("location").unwrap_or_default());
                format!("; redirects are not followed: set `url` to where it leads (\"{location}\")")
            }
            _ => String::new(),
        };
        let mut text = Vec::new();
        // Whatever arrived of the explanation is used; the status alone is a failure already.
        let _ = response.into_body().into_reader().take(REFUSAL_BYTES).read_to_end(&mut text);
        let body = self.quoted(&String::from_utf8_lossy(&text));
        let is_untouched = matches!(status.as_u16(), 429 | 503);
        let error = ServerError::Status { server: self.shown(), status: status.as_u16(), body, hint };
        Failed { error, is_untouched, pause }
    }

    /// The failure of a request without a response.
    fn no_response(&self, error: &ureq::Error) -> Failed {
        use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable};
        let host = &self.address.host;
        let untouched = match error {
            error if is_unknown_name(error) => {
                Some(format!("the name {host} has no address: check its spelling and the network"))
            }
            ureq::Error::Io(error) if error.kind() == ConnectionRefused => Some(
                "nothing listens there (connection refused): start the server, or check the port".to_owned(),
            ),
            ureq::Error::Io(error) if matches!(error.kind(), HostUnreachable | NetworkUnreachable) => {
                Some(format!("there is no way to {host}: check the address and the network"))
            }
            ureq::Error::Timeout(Timeout::Resolve | Timeout::Connect) => {
                let seconds = CONNECT.min(self.timeout).as_secs_f64();
                Some(format!("no connection within {seconds} s: check the address and the firewall"))
            }
            ureq::Error::InvalidProxyUrl | ureq::Error::ConnectProxyFailed(_) => {
                Some("the proxy of the environment (HTTPS_PROXY, ALL_PROXY) gives no connection".to_owned())
            }
            _ => None,
        };
        if let Some(reason) = untouched {
            let error = ServerError::Unreachable { server: self.shown(), reason };
            return Failed { error, is_untouched: true, pause: None };
        }
        let reason = self.quoted(&error.to_string());
        match error {
            ureq::Error::Timeout(_) => self.silent().into(),
            ureq::Error::Tls(_) | ureq::Error::Rustls(_) => {
                let reason = format!(
                    "no secure connection ({reason}): a server without TLS needs http://, and only certificates of public \
                     authorities are accepted"
                );
                ServerError::Unreachable { server: self.shown(), reason }.into()
            }
            ureq::Error::Protocol(_) | ureq::Error::LargeResponseHeader(..) => {
                let reason = "the answer is not HTTP: check the port, and whether the server wants https://"
                    .to_owned();
                ServerError::Unreachable { server: self.shown(), reason }.into()
            }
            _ => ServerError::Ended { server: self.shown(), reason }.into(),
        }
    }

    /// The failure of an answer that broke off.
    fn broken_answer(&self, error: &io::Error) -> ServerError {
        match error.get_ref().and_then(|error| error.downcast_ref()) {
            Some(ureq::Error::Timeout(_)) => self.silent(),
            _ => ServerError::Ended { server: self.shown(), reason: self.quoted(&error.to_string()) },
        }
    }

    fn silent(&self) -> ServerError {
        ServerError::Silent { server: self.shown(), seconds: self.timeout.as_secs_f64() }
    }

    fn shown(&self) -> String {
        self.address.shown.clone()
    }

    fn quoted(&self, text: &str) -> String {
        quoted(&self.headers.without_secrets(text))
    }
}

/// Whether the name of the server has no address. Where the resolver of the system says so, the standard
/// library has no kind of error for it.
fn is_unknown_name(error: &ureq::Error) -> bool {
    match error {
        ureq::Error::HostNotFound => true,
        ureq::Error::Io(error) => error.to_string().starts_with("failed to lookup address information"),
        _ => false,
    }
}
