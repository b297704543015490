//! Who may ask: keys, and the hosts under which a server without keys answers.

use sha2::{Digest, Sha256};

/// The keys of a service. Only their hashes are kept.
#[derive(Clone, Debug)]
pub struct Keys(Vec<[u8; 32]>);

/// Which key a request came with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    /// Requests of one caller may share computed prefixes.
    pub(crate) salt: u64,
}

impl Keys {
    /// The keys, one in each line of `text`. Empty lines and lines that begin with `#` are left out.
    pub fn parse(text: &str) -> Self {
        let keys = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        Self(keys.map(|key| Sha256::digest(key).into()).collect())
    }

    /// No key: everyone may ask.
    pub fn none() -> Self {
        Self(Vec::new())
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The caller with this `Authorization` header; `None` if the key is missing or wrong. The time does not
    /// depend on where a wrong key differs from a right one: hashes are compared, each to its end.
    pub(crate) fn caller(&self, authorization: Option<&str>) -> Option<Caller> {
        if self.is_empty() {
            return Some(Caller { salt: 0 });
        }
        let key = authorization.and_then(|header| header.strip_prefix("Bearer ")).unwrap_or_default();
        let given: [u8; 32] = Sha256::digest(key.trim()).into();
        let mut found = None;
        for hash in &self.0 {
            let difference =
                hash.iter().zip(&given).fold(0, |difference, (left, right)| difference | (left ^ right));
            if std::hint::black_box(difference) == 0 {
                let salt = u64::from_le_bytes(std::array::from_fn(|index| hash[index]));
                found = Some(Caller { salt });
            }
        }
        found
    }
}

/// Whether a `Host` header names this machine. A server on loopback without a key answers no other host: a
/// web page can make its own name point to 127.0.0.1 (DNS rebinding), but not the header of its requests.
pub(crate) fn is_local_host(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
}

/// Whether an `Origin` header names the server itself, whose `Host` header is `host`. Browsers send it with
/// what a page asks of another server, and programs do not. Without this check, any page could make the
/// server load its weights again, which needs no body.
pub(crate) fn is_origin_of(origin: &str, host: &str) -> bool {
    origin.split_once("://").is_some_and(|(_, authority)| authority.eq_ignore_ascii_case(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_keys_of_the_file_are_let_in() {
        let keys = Keys::parse("# team\nfirst-key\n\n  second  \n");
        let caller = |header| keys.caller(header);
        assert!(caller(Some("Bearer first-key")).is_some() && caller(Some("Bearer second")).is_some());
        assert_ne!(caller(Some("Bearer first-key")), caller(Some("Bearer second")));
        for wrong in [
            None,
            Some(""),
            Some("Bearer "),
            Some("Bearer first-ke"),
            Some("Bearer first-key2"),
            Some("first-key"),
        ] {
            assert_eq!(caller(wrong), None, "{wrong:?}");
        }
        assert!(Keys::none().caller(None).is_some());
    }

    #[test]
    fn other_hosts_are_not_this_machine() {
        for host in ["localhost", "localhost:8000", "127.0.0.1:8000", "[::1]:8000", "127.9.9.9"] {
            assert!(is_local_host(host), "{host}");
        }
        for host in
            ["evil.example", "evil.example:8000", "localhost.evil.example", "192.168.0.2", "[fe80::1]:80", ""]
        {
            assert!(!is_local_host(host), "{host}");
        }
    }

    #[test]
    fn only_the_page_of_the_server_is_of_its_origin() {
        assert!(is_origin_of("http://localhost:8000", "localhost:8000"));
        for origin in
            ["null", "", "http://localhost:3000", "http://evil.example", "http://localhost:8000.evil.example"]
        {
            assert!(!is_origin_of(origin, "localhost:8000"), "{origin}");
        }
    }
}
