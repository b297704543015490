//! The address of an endpoint, `http://HOST[:PORT][/PATH][#NAME]`, and the key for it.
//!
//! Without a path the endpoint is below `/v1`, as with most servers. The key is read from `COLOSSAL_API_KEY`
//! or `OPENAI_API_KEY`. It is sent only over https or to this machine. This file makes no connection.

use url::{Host, Url};

use super::error::RemoteError;

/// The path of an address without one.
const PATH: &str = "/v1";
/// The variables that may hold a key; the first that is set and not empty counts.
pub(super) const KEY_VARIABLES: [&str; 2] = ["COLOSSAL_API_KEY", "OPENAI_API_KEY"];

/// An endpoint, and the name of a model there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    /// The URL that the paths of requests are appended to. It does not end in `/`.
    pub(super) base: String,
    /// The host, for messages.
    pub(super) host: String,
    /// The model that `#NAME` names.
    pub(super) model: Option<String>,
    /// Whether the host is this machine.
    pub(super) is_loopback: bool,
    is_https: bool,
}

impl Address {
    /// Parses the value of `--model`.
    pub(super) fn parse(text: &str) -> Result<Self, RemoteError> {
        let (endpoint, name) = text.split_once('#').map_or((text, None), |(url, name)| (url, Some(name)));
        let shown = without_secrets(endpoint);
        let invalid =
            |problem: &str| RemoteError::Address { address: shown.clone(), problem: problem.to_owned() };

        let url = Url::parse(endpoint).map_err(|error| {
            invalid(&format!(
                "{error}; an address is http://HOST:PORT/v1, with #NAME for one model of several"
            ))
        })?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(invalid("an address begins with http:// or https://"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(invalid("a key does not belong into the address: set COLOSSAL_API_KEY"));
        }
        if url.query().is_some() {
            return Err(invalid("a query (?...) has no use here: leave it out"));
        }
        if name.is_some_and(|name| name.trim().is_empty()) {
            return Err(invalid("there is no name after #: write the name of the model or leave # out"));
        }

        let path = url.path().trim_end_matches('/');
        let origin = url.origin().ascii_serialization();
        let is_loopback = match url.host() {
            Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.is_loopback(),
            None => false,
        };
        Ok(Self {
            base: format!("{origin}{}", if path.is_empty() { PATH } else { path }),
            host: url.host_str().unwrap_or_default().to_owned(),
            model: name.map(|name| name.trim().to_owned()),
            is_loopback,
            is_https: url.scheme() == "https",
        })
    }
}

/// An address as a message may quote it: a password before the host and a query may hold a key.
fn without_secrets(endpoint: &str) -> String {
    let (scheme, rest) = endpoint.split_once("://").unwrap_or(("", endpoint));
    let host_and_path = rest.split_once('@').map_or(rest, |(_, rest)| rest);
    let path = host_and_path.split_once('?').map_or(host_and_path, |(path, _)| path);
    format!("{scheme}://{path}")
}

/// A key, and the variable that it was read from. It has no `Debug`, so that no message can show it.
#[derive(Clone)]
pub(super) struct Key {
    /// The key itself.
    pub(super) secret: String,
    /// The variable.
    pub(super) variable: &'static str,
}

impl Key {
    /// Reads the key for `address` from environment variables. Empty variables count as not set.
    pub(super) fn read(
        address: &Address,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, RemoteError> {
        let read = |name| {
            let secret = variable(name)?.trim().to_owned();
            (!secret.is_empty()).then_some(Self { secret, variable: name })
        };
        let Some(key) = KEY_VARIABLES.into_iter().find_map(read) else { return Ok(None) };
        let variable = key.variable;
        if !key.secret.chars().all(|character| character.is_ascii_graphic()) {
            return Err(RemoteError::BadKey { variable });
        }
        if !address.is_https && !address.is_loopback {
            return Err(RemoteError::OpenKey { server: address.base.clone(), variable });
        }
        Ok(Some(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> String {
        Address::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn an_address_without_a_path_is_below_v1() {
        for (text, base) in [
            ("http://127.0.0.1:8000", "http://127.0.0.1:8000/v1"),
            ("http://127.0.0.1:8000/", "http://127.0.0.1:8000/v1"),
            ("http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000/v1"),
            ("https://Example.org/api/v1", "https://example.org/api/v1"),
            ("https://example.org:443/v2#m", "https://example.org/v2"),
            ("http://[::1]:80/v1", "http://[::1]/v1"),
        ] {
            assert_eq!(Address::parse(text).unwrap().base, base, "{text}");
        }
    }

    #[test]
    fn a_name_after_the_hash_is_taken_as_it_is() {
        let name = |text: &str| Address::parse(text).unwrap().model;
        assert_eq!(name("http://h/v1#Qwen/Qwen3 8B#x%20y"), Some("Qwen/Qwen3 8B#x%20y".to_owned()));
        assert_eq!(name("http://h/v1"), None);
        assert!(problem("http://h/v1#").contains("no name after #"));
    }

    #[test]
    fn an_address_that_is_none_is_refused_and_no_password_is_repeated() {
        for text in ["http://", "http://h:99999/v1", "http:// h/v1", "http://[::1/v1"] {
            assert!(problem(text).contains(text), "{}", problem(text));
        }
        assert!(problem("http://h/v1?key=1").contains("a query"));
        for text in
            ["http://user:hunter2@h/v1", "http://a:hunter2@h:port", "https://h?k=hunter2", "http:hunter2@h"]
        {
            assert!(!problem(text).contains("hunter2"), "{}", problem(text));
        }
    }

    #[test]
    fn a_key_is_sent_only_over_https_or_to_this_machine() {
        let key = |address: &str| Key::read(&Address::parse(address).unwrap(), |_| Some("sk-1".to_owned()));
        for address in
            ["https://h", "http://127.0.0.1:1", "http://127.9.9.9", "http://localhost", "http://[::1]"]
        {
            assert_eq!(key(address).unwrap().unwrap().secret, "sk-1", "{address}");
        }
        for address in
            ["http://h", "http://10.0.0.1", "http://127.0.0.1.example.org", "http://localhost.example.org"]
        {
            let text = key(address).err().unwrap().to_string();
            assert!(text.contains("COLOSSAL_API_KEY") && !text.contains("sk-1"), "{text}");
        }
    }

    #[test]
    fn the_variable_of_this_program_comes_first_and_an_empty_one_is_not_set() {
        let address = Address::parse("https://h").unwrap();
        let read = |own: &str, other: &str| {
            let variables = [own.to_owned(), other.to_owned()];
            let variable = |name: &str| KEY_VARIABLES.iter().position(|known| *known == name);
            Key::read(&address, |name| Some(variables[variable(name)?].clone()))
        };
        assert_eq!(read("a", "b").unwrap().unwrap().variable, "COLOSSAL_API_KEY");
        assert_eq!(read(" ", "b\n").unwrap().unwrap().secret, "b");
        assert!(read("", "").unwrap().is_none());
        assert!(matches!(read("a b", ""), Err(RemoteError::BadKey { variable: "COLOSSAL_API_KEY" })));
    }
}
