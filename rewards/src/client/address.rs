//! The address of a server of the user, and the headers that it is sent.
//!
//! `${NAME}` in a header stands for an environment variable, so that no key has to be in a file. A header with
//! such a value, and one that is made for keys (`Authorization`), is sent over https or to this machine alone,
//! where nobody reads it on the way. This file makes no connection.

use std::collections::BTreeMap;
use std::str::FromStr;

use ureq::http::{HeaderName, HeaderValue};
use url::{Host, Url};

use crate::error::Wrong;

/// Headers that are made for keys.
const CONFIDENTIAL: [&str; 4] = ["authorization", "cookie", "proxy-authorization", "x-api-key"];
/// Headers that belong to the connection or to the form of the body.
const OWN: [&str; 7] = [
    "accept-encoding",
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "transfer-encoding",
];
/// Shorter secrets are not looked for in the texts of a server: they would be found in every word.
const SHORTEST_SECRET: usize = 4;

/// A checked address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) url: String,
    /// The address in messages: without a query, which may hold a key.
    pub(super) shown: String,
    pub(super) host: String,
    /// Whether the host is this machine.
    pub(super) is_loopback: bool,
    pub(super) is_https: bool,
}

impl Address {
    pub(super) fn parse(text: &str) -> Result<Self, Wrong> {
        const FORM: &str = "write http://HOST:PORT/PATH or https://HOST/PATH";
        let wrong = |problem: &str, fix: &str| Wrong::new("url", problem, fix);
        if text.is_empty() {
            return Err(wrong("names no server", FORM));
        }
        let url = Url::parse(text).map_err(|error| wrong(&format!("is no address: {error}"), FORM))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(wrong("begins with neither http:// nor https://", FORM));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(wrong("holds a password", "send it in `headers`, as \"${VARIABLE}\""));
        }
        if url.fragment().is_some() {
            return Err(wrong("has a part behind #, which is not sent", "leave it out"));
        }
        // Not every resolver keeps the names below `localhost` on this machine.
        let is_loopback = match url.host() {
            Some(Host::Domain(name)) => name == "localhost",
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.is_loopback(),
            None => false,
        };
        Ok(Self {
            shown: format!("{}{}", url.origin().ascii_serialization(), url.path()),
            host: url.host_str().unwrap_or_default().to_owned(),
            is_loopback,
            is_https: url.scheme() == "https",
            url: url.into(),
        })
    }
}

/// The headers of the user. They have no `Debug`, so that no message can show them.
#[derive(Clone, Default)]
pub(super) struct Headers {
    pub(super) pairs: Vec<(HeaderName, HeaderValue)>,
    /// What no message may show.
    secrets: Vec<String>,
}

impl Headers {
    /// Fills in environment variables, which `variable` looks up.
    pub(super) fn read(
        headers: &BTreeMap<String, String>,
        address: &Address,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, Wrong> {
        let mut read = Self::default();
        for (name, text) in headers {
            let key = format!("headers.{name}");
            let wrong = |problem: &str, fix: &str| Wrong::new(key.clone(), problem, fix);
            let header = HeaderName::from_str(name)
                .map_err(|_| wrong("is no name of a header", "write a name such as X-Key"))?;
            if OWN.contains(&header.as_str()) {
                return Err(wrong("is set by the client itself", "leave it out"));
            }
            let mut secrets = Vec::new();
            let value = fill(text, variable, &mut secrets).map_err(|(problem, fix)| wrong(&problem, &fix))?;
            let is_confidential = !secrets.is_empty() || CONFIDENTIAL.contains(&header.as_str());
            if is_confidential && !address.is_https && !address.is_loopback {
                let fix = "use https, or a tunnel to 127.0.0.1";
                return Err(wrong(
                    "is not sent over http to another machine, where others could read it",
                    fix,
                ));
            }
            if is_confidential {
                secrets.push(value.clone());
            }
            let value = HeaderValue::from_str(&value)
                .map_err(|_| wrong("holds a character that no header has", "correct the value"))?;
            read.pairs.push((header, value));
            read.secrets.extend(secrets.into_iter().filter(|secret| secret.len() >= SHORTEST_SECRET));
        }
        // A whole header first: then the key in it is gone with it.
        read.secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        Ok(read)
    }

    /// A text of the server without secrets: it may repeat what it was sent.
    pub(super) fn without_secrets(&self, text: &str) -> String {
        self.secrets.iter().fold(text.to_owned(), |text, secret| text.replace(secret, "(a header)"))
    }
}

/// A value with its variables filled in. What they hold is added to `secrets`.
fn fill(
    text: &str,
    variable: &dyn Fn(&str) -> Option<String>,
    secrets: &mut Vec<String>,
) -> Result<String, (String, String)> {
    let mut filled = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let Some((name, after)) = after.split_once('}') else {
            return Err(("has ${ without }".to_owned(), "write ${NAME}".to_owned()));
        };
        let value = variable(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
        let Some(value) = value else {
            let problem = format!("needs the environment variable {name:?}, which is not set");
            return Err((problem, "set it before the run starts".to_owned()));
        };
        filled.push_str(before);
        filled.push_str(&value);
        secrets.push(value);
        rest = after;
    }
    filled.push_str(rest);
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_is_none_is_refused() {
        let problem = |text: &str| Address::parse(text).unwrap_err();
        for (text, part) in [
            ("", "no server"),
            ("score", "no address"),
            ("ftp://h/x", "neither"),
            ("file:///etc/passwd", "neither"),
            ("http://h/x#part", "#"),
        ] {
            assert!(problem(text).problem.contains(part), "{text}: {:?}", problem(text));
        }
        for text in ["http://user:hunter2@h/x", "http://hunter2@h"] {
            let wrong = problem(text);
            assert!(
                wrong.problem.contains("password") && !format!("{wrong:?}").contains("hunter2"),
                "{text}"
            );
        }
    }

    #[test]
    fn messages_show_no_query() {
        let address = Address::parse("https://Example.org:443/a/b?key=hunter2").unwrap();
        assert_eq!(address.shown, "https://example.org/a/b");
        assert_eq!(address.url, "https://example.org/a/b?key=hunter2");
        assert!(address.is_https && !address.is_loopback);
        for text in ["http://127.0.0.1:1", "http://localhost", "http://[::1]/x", "http://127.9.9.9"] {
            assert!(Address::parse(text).unwrap().is_loopback, "{text}");
        }
        for text in ["http://localhost.example.org", "http://a.localhost", "http://10.0.0.1"] {
            assert!(!Address::parse(text).unwrap().is_loopback, "{text}");
        }
    }

    fn read(url: &str, name: &str, value: &str) -> Result<Headers, Wrong> {
        let headers = BTreeMap::from([(name.to_owned(), value.to_owned())]);
        let variable = |name: &str| match name {
            "TOKEN" => Some("hunter2\n".to_owned()),
            "EMPTY" => Some(" ".to_owned()),
            _ => None,
        };
        Headers::read(&headers, &Address::parse(url).unwrap(), &variable)
    }

    #[test]
    fn variables_are_filled_in_and_shown_nowhere() {
        let headers = read("https://h", "Authorization", "Bearer ${TOKEN}!").unwrap();
        assert_eq!(headers.pairs[0].0, "authorization");
        assert_eq!(headers.pairs[0].1, "Bearer hunter2!");
        let said = "no user hunter2, you sent Bearer hunter2!";
        assert_eq!(headers.without_secrets(said), "no user (a header), you sent (a header)");
        // A text without variables is taken as it is.
        assert_eq!(read("http://h", "X-Kind", "$1 {a}").unwrap().pairs[0].1, "$1 {a}");
    }

    #[test]
    fn a_header_that_cannot_be_sent_is_refused_by_name() {
        for (name, value, part) in [
            ("X-A", "${NONE}", "NONE"),
            ("X-A", "${EMPTY}", "EMPTY"),
            ("X-A", "${TOKEN", "without"),
            ("X-A", "a\nb", "character"),
            ("X A", "a", "name"),
            ("", "a", "name"),
            ("Content-Length", "3", "itself"),
            ("host", "other", "itself"),
        ] {
            let wrong = read("https://h", name, value).map(|_| ()).unwrap_err();
            assert!(wrong.problem.contains(part), "{name}: {wrong:?}");
            assert_eq!(wrong.key, format!("headers.{name}"));
        }
    }

    #[test]
    fn a_secret_is_sent_only_over_https_or_to_this_machine() {
        for (name, value) in [("X-A", "${TOKEN}"), ("Authorization", "Bearer abc"), ("x-api-key", "abc")] {
            for url in ["https://h", "http://127.0.0.1:1", "http://localhost/x"] {
                assert!(read(url, name, value).is_ok(), "{url}");
            }
            for url in ["http://h", "http://10.0.0.1", "http://localhost.example.org"] {
                let wrong = read(url, name, value).map(|_| ()).unwrap_err();
                assert!(wrong.problem.contains("over http") && !format!("{wrong:?}").contains("hunter2"));
            }
        }
        assert!(read("http://h", "X-Kind", "plain").is_ok());
    }
}
