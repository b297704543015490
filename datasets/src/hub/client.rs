//! Requests to the hub.
//!
//! Redirects are followed here, one by one. The token is sent only to the hub's own origin (scheme, host and
//! port), and an HTTPS URL never redirects to HTTP. Connecting and every read have the timeout from the
//! settings. This module knows no cache.

use std::io::Read;
use std::time::Duration;

use ureq::http::Response;
use ureq::{Agent, Body, Timeout};
use url::Url;

use super::bounds::{self, Pace};

/// The largest listing of a repository, in bytes.
const LISTING_BYTES: u64 = 64 << 20;
const REDIRECTS: usize = 10;

/// An HTTP client for the hub.
pub(super) struct Client {
    agent: Agent,
    endpoint: Url,
    token: Option<String>,
    timeout: Duration,
}

/// What the hub reports about a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FileInfo {
    /// The `ETag` as sent.
    pub(super) etag: String,
    /// Its length in bytes.
    pub(super) size: u64,
}

/// A response, with the headers that the hub itself sent on the way to it.
struct Reply {
    response: Response<Body>,
    /// `x-linked-etag` or `etag` of the last response from the hub itself, before any redirect to another
    /// host.
    etag: Option<String>,
    linked_size: Option<u64>,
}

impl Client {
    pub(super) fn new(endpoint: &str, token: Option<String>, timeout: Duration) -> Result<Self, String> {
        let endpoint = Url::parse(endpoint).map_err(|error| format!("HF_ENDPOINT is not a URL: {error}"))?;
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_connect(Some(timeout))
            .timeout_per_read(Some(timeout))
            .timeout_recv_response(Some(bounds::grace(timeout)))
            .timeout_per_write(Some(timeout))
            .user_agent(concat!("colossal-chat/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .build();
        Ok(Self { agent: config.into(), endpoint, token, timeout })
    }

    /// Requests a JSON object from the hub's API.
    pub(super) fn listing<T: serde::de::DeserializeOwned>(&self, path: &str) -> Result<T, String> {
        let response = self.get(path, None)?.response;
        let text = self.read_all(response.into_body().into_reader().take(LISTING_BYTES))?;
        serde_json::from_slice(&text).map_err(|error| format!("the hub's answer cannot be read: {error}"))
    }

    fn read_all(&self, mut reader: impl Read) -> Result<Vec<u8>, String> {
        let pace = Pace::new(self.timeout);
        let (mut text, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
        loop {
            match reader.read(&mut buffer) {
                Ok(0) => return Ok(text),
                Ok(count) => text.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.explain_io(&error)),
            }
            pace.check(text.len() as u64)?;
        }
    }

    /// Requests the `ETag` and the length of a file.
    pub(super) fn file_info(&self, path: &str) -> Result<FileInfo, String> {
        let reply = self.get(path, Some("bytes=0-0"))?;
        let header = |name: &str| header(&reply.response, name);
        let total = header("content-range").and_then(|range| range.rsplit('/').next()?.parse().ok());
        let length = || header("content-length").and_then(|length| length.parse().ok());
        let whole = (reply.response.status().as_u16() == 200).then(length).flatten();
        Ok(FileInfo {
            etag: reply.etag.ok_or("the hub's answer has no ETag")?,
            size: reply.linked_size.or(total).or(whole).ok_or("the hub's answer has no length")?,
        })
    }

    /// Requests the bytes of a file from `start` on. The flag is `false` if the server ignores `start` and
    /// sends the file from the beginning.
    pub(super) fn bytes_from(&self, path: &str, start: u64) -> Result<(impl Read, bool), String> {
        let response = self.get(path, Some(&format!("bytes={start}-")))?.response;
        let partial = response.status().as_u16() == 206;
        Ok((response.into_body().into_reader(), partial || start == 0))
    }

    /// Describes a failed read.
    pub(super) fn explain_io(&self, error: &std::io::Error) -> String {
        match error.get_ref().and_then(|error| error.downcast_ref()) {
            Some(ureq::Error::Timeout(_)) => {
                format!("the server sent nothing for {} s", self.timeout.as_secs_f64())
            }
            _ => error.to_string(),
        }
    }

    fn get(&self, path: &str, range: Option<&str>) -> Result<Reply, String> {
        let joined = format!("{}{path}", self.endpoint.as_str().trim_end_matches('/'));
        let mut url = Url::parse(&joined).map_err(|error| error.to_string())?;
        let (mut etag, mut linked_size) = (None, None);

        for _ in 0..=REDIRECTS {
            let response = self.ask(&url, range)?;
            if url.origin() == self.endpoint.origin() {
                etag = header(&response, "x-linked-etag").or(header(&response, "etag")).map(str::to_owned);
                linked_size = header(&response, "x-linked-size").and_then(|size| size.parse().ok());
            }

            if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok(Reply { response, etag, linked_size });
            }

            let location = header(&response, "location").ok_or("a redirect without a Location header")?;
            let next = url
                .join(location)
                .map_err(|error| format!("a redirect to something that is not a URL: {error}"))?;
            if !matches!(next.scheme(), "http" | "https")
                || (url.scheme() == "https" && next.scheme() != "https")
            {
                return Err(format!(
                    "a redirect from {} to {}, which is not safe",
                    url.scheme(),
                    next.scheme()
                ));
            }

            url = next;
        }

        Err(format!("more than {REDIRECTS} redirects"))
    }

    fn ask(&self, url: &Url, range: Option<&str>) -> Result<Response<Body>, String> {
        let mut request = self.agent.get(url.as_str());
        if let Some(range) = range {
            request = request.header("Range", range);
        }
        if let Some(token) = self.token.as_ref().filter(|_| url.origin() == self.endpoint.origin()) {
            // A token with another character would be refused without a word that it is the token.
            if !token.chars().all(|character| character.is_ascii_graphic()) {
                return Err("the token (HF_TOKEN or its file) holds a character that no token has".to_owned());
            }
            request = request.header("Authorization", format!("Bearer {token}"));
        }

        let host = url.host_str().unwrap_or_default();
        let response = request.call().map_err(|error| self.explain(host, &error))?;
        if response.status().is_client_error() || response.status().is_server_error() {
            return Err(format!("{host} answers {}", response.status()));
        }
        Ok(response)
    }

    /// Describes a failed request. The host is included, because it may be another host than the hub.
    fn explain(&self, host: &str, error: &ureq::Error) -> String {
        match error {
            ureq::Error::Timeout(Timeout::RecvResponse) => {
                format!("{host} did not answer within {} s", bounds::grace(self.timeout).as_secs_f64())
            }
            ureq::Error::Timeout(_) => {
                format!("{host} did not answer within {} s", self.timeout.as_secs_f64())
            }
            ureq::Error::HostNotFound => format!("{host}: the name has no address"),
            _ => format!("{host}: {error}"),
        }
    }
}

/// A header of a response, if it is text.
fn header<'a>(response: &'a Response<Body>, name: &str) -> Option<&'a str> {
    response.headers().get(name)?.to_str().ok()
}
