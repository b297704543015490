//! The address of an endpoint, `http://HOST[:PORT][/PATH][#NAME]`, and the key for it.
//!
//! Without a path the endpoint is below `/v1`, as with most servers. `COLOSSAL_API_KEY` is the key for the
//! server that the user names. `OPENAI_API_KEY`, which many programs share, is sent to `OpenAI`'s own host
//! alone, and `COLOSSAL_JUDGE_API_KEY` to the judge alone. A key is sent only over https or to this machine,
//! and no key to two other machines in one command ([`KeyPlan`]). This file makes no connection.

use std::fmt::Write as _;

use url::{Host, Url};

use super::error::RemoteError;

/// The path of an address without one.
const PATH: &str = "/v1";
/// The variable with the key for any server.
const OWN_VARIABLE: &str = "COLOSSAL_API_KEY";
/// The variable with the key for [`OPENAI_HOST`].
const OPENAI_VARIABLE: &str = "OPENAI_API_KEY";
/// The variable with the key for the server of a judge.
const JUDGE_VARIABLE: &str = "COLOSSAL_JUDGE_API_KEY";
/// The only host that gets the key of [`OPENAI_VARIABLE`].
const OPENAI_HOST: &str = "api.openai.com";

/// Whether a model is named by the address of an endpoint.
pub fn is_endpoint(model: &str) -> bool {
    let starts =
        |scheme: &str| model.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme));
    starts("http://") || starts("https://")
}

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
    /// Scheme, host and port.
    origin: String,
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
        // RFC 6761 reserves every name below `localhost`, but not every resolver keeps to it, so that a
        // request for such a name may leave this machine.
        let is_loopback = match url.host() {
            Some(Host::Domain(name)) => name == "localhost",
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
            origin,
        })
    }

    /// Whether nobody between here and the server can read a key.
    fn may_get_key(&self) -> bool {
        self.is_https || self.is_loopback
    }
}

/// An address as a message may quote it: a password before the host and a query may hold a key.
fn without_secrets(endpoint: &str) -> String {
    let (scheme, rest) = endpoint.split_once("://").unwrap_or(("", endpoint));
    let path = rest.split_once('?').map_or(rest, |(path, _)| path);
    // A password may hold an `@` itself. If one stands in the path, less is quoted than could be.
    let path = path.rsplit_once('@').map_or(path, |(_, path)| path);
    format!("{scheme}://{path}")
}

/// A key, and the variable that it was read from. It has no `Debug`, so that no message can show it.
#[derive(Clone)]
pub(super) struct Key {
    /// The key itself.
    pub(super) secret: String,
    pub(super) variable: &'static str,
}

/// What a server is sent to be let in, if anything.
#[derive(Clone)]
pub(super) struct Access {
    pub(super) key: Option<Key>,
    /// What the user can do if the server refuses.
    pub(super) advice: String,
}

/// Which key a server gets among those of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyChoice {
    /// Whether the server is that of a judge.
    is_judge: bool,
    /// Whether another server of the command gets the key that this one would get.
    is_for_another: bool,
}

/// The servers that a command talks with, and the keys that they get.
#[derive(Debug)]
pub struct KeyPlan(Vec<(Address, KeyChoice)>);

impl KeyPlan {
    /// Plans the keys for the models of a command and its judge; those that are no addresses get none.
    /// Refuses to send one key to two machines besides this one.
    pub fn new<'a>(
        models: impl IntoIterator<Item = &'a String>,
        judge: Option<&String>,
    ) -> Result<Self, RemoteError> {
        Self::from_variables(models, judge, &|name| std::env::var(name).ok())
    }

    fn from_variables<'a>(
        models: impl IntoIterator<Item = &'a String>,
        judge: Option<&String>,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, RemoteError> {
        let models = models.into_iter().map(|model| (model, false));
        let all = models.chain(judge.map(|judge| (judge, true)));
        let mut servers = Vec::new();
        for (text, is_judge) in all.filter(|(text, _)| is_endpoint(text)) {
            servers.push((Address::parse(text)?, KeyChoice { is_judge, is_for_another: false }));
        }

        let keys: Vec<Option<&str>> = servers
            .iter()
            .map(|(address, choice)| Some(key_of(address, choice.is_judge, variable)?.variable))
            .collect();
        for this in 0..servers.len() {
            let Some(variable) = keys[this] else { continue };
            for other in (0..servers.len()).filter(|&other| keys[other] == Some(variable)) {
                let ((first, _), (second, _)) = (&servers[this], &servers[other]);
                if first.origin == second.origin || !second.may_get_key() {
                    continue;
                }
                if first.is_https && second.is_https && !first.is_loopback && !second.is_loopback {
                    let [first, second] = [first, second].map(|address| address.base.clone());
                    return Err(RemoteError::SharedKey { variable: variable.to_owned(), first, second });
                }
                servers[this].1.is_for_another = true;
            }
        }
        Ok(Self(servers))
    }

    /// The key for one of the servers.
    pub fn choice(&self, address: &str, is_judge: bool) -> KeyChoice {
        let parsed = Address::parse(address).ok();
        let is_same = |(other, choice): &&(Address, KeyChoice)| {
            parsed.as_ref().is_some_and(|parsed| parsed.origin == other.origin) && choice.is_judge == is_judge
        };
        let found = self.0.iter().find(is_same).map(|(_, choice)| *choice);
        found.unwrap_or(KeyChoice { is_judge, is_for_another: false })
    }
}

/// The key for a server. Empty variables count as not set.
fn key_of(
    address: &Address,
    is_judge: bool,
    variable: &(impl Fn(&str) -> Option<String> + ?Sized),
) -> Option<Key> {
    let read = |name| {
        let secret = variable(name)?.trim().to_owned();
        (!secret.is_empty()).then_some(Key { secret, variable: name })
    };
    let of_judge = if is_judge { read(JUDGE_VARIABLE) } else { None };
    let of_openai = || if address.host == OPENAI_HOST { read(OPENAI_VARIABLE) } else { None };
    of_judge.or_else(of_openai).or_else(|| read(OWN_VARIABLE))
}

impl Access {
    /// Reads the key for `address` from environment variables.
    pub(super) fn read(
        address: &Address,
        KeyChoice { is_judge, is_for_another }: KeyChoice,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, RemoteError> {
        let is_openai = address.host == OPENAI_HOST;
        let Some(key) = key_of(address, is_judge, &variable) else {
            let wanted = if is_openai { OPENAI_VARIABLE } else { OWN_VARIABLE };
            let mut advice = format!("set {wanted} to a key for this server");
            if variable(OPENAI_VARIABLE).is_some_and(|secret| !secret.trim().is_empty()) {
                let _ =
                    write!(advice, ", because the one in {OPENAI_VARIABLE} is sent to {OPENAI_HOST} alone");
            }
            return Ok(Self { key: None, advice });
        };

        let variable = key.variable;
        if !key.secret.chars().all(|character| character.is_ascii_graphic()) {
            return Err(RemoteError::BadKey { variable });
        }
        if !address.may_get_key() && is_for_another {
            let advice = format!("the key in {variable} is sent to the other server alone, over https");
            return Ok(Self { key: None, advice });
        }
        if !address.may_get_key() {
            return Err(RemoteError::OpenKey { server: address.base.clone(), variable });
        }
        Ok(Self { key: Some(key), advice: format!("the key in {variable} is not accepted here") })
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

    /// The secret that is sent to `address` if the variables hold `own` and `openai`.
    fn sent(address: &str, own: &str, openai: &str) -> Result<Option<String>, RemoteError> {
        Ok(access(address, own, openai)?.key.map(|key| key.secret))
    }

    fn access(address: &str, own: &str, openai: &str) -> Result<Access, RemoteError> {
        Access::read(&Address::parse(address).unwrap(), KeyChoice::default(), |name| match name {
            "COLOSSAL_API_KEY" => Some(own.to_owned()),
            "OPENAI_API_KEY" => Some(openai.to_owned()),
            _ => None,
        })
    }

    #[test]
    fn a_key_is_sent_only_over_https_or_to_this_machine() {
        for address in
            ["https://h", "http://127.0.0.1:1", "http://127.9.9.9", "http://localhost", "http://[::1]"]
        {
            assert_eq!(sent(address, "sk-1", "").unwrap().unwrap(), "sk-1", "{address}");
        }
        for address in [
            "http://h",
            "http://10.0.0.1",
            "http://127.0.0.1.example.org",
            "http://localhost.example.org",
            // A resolver may answer for these, and for the mapped address the route decides.
            "http://evil.localhost",
            "http://localhost.",
            "http://[::ffff:127.0.0.1]",
        ] {
            let text = sent(address, "sk-1", "").unwrap_err().to_string();
            assert!(text.contains("COLOSSAL_API_KEY") && !text.contains("sk-1"), "{address}: {text}");
        }
        assert!(matches!(
            sent("http://api.openai.com/v1", "", "sk-1"),
            Err(RemoteError::OpenKey { variable: "OPENAI_API_KEY", .. })
        ));
    }

    #[test]
    fn the_key_of_openai_is_sent_to_openai_alone() {
        for address in ["https://api.openai.com", "https://API.OpenAI.com:443/v1#gpt"] {
            assert_eq!(sent(address, "", "sk-o").unwrap().as_deref(), Some("sk-o"), "{address}");
            assert_eq!(sent(address, "sk-c", "sk-o").unwrap().as_deref(), Some("sk-o"), "{address}");
            assert_eq!(sent(address, "sk-c", " ").unwrap().as_deref(), Some("sk-c"), "{address}");
        }
        for address in [
            "https://h",
            "http://127.0.0.1",
            "http://h",
            "https://openai.com",
            "https://api.openai.com.evil.org",
            "https://api.openai.com.",
            "https://evil.org/api.openai.com",
        ] {
            let access = access(address, "", "sk-o").unwrap();
            assert!(access.key.is_none(), "{address}");
            assert!(
                access.advice.contains("set COLOSSAL_API_KEY") && access.advice.contains("OPENAI_API_KEY")
            );
            assert!(!access.advice.contains("sk-o"), "{}", access.advice);
        }
        assert_eq!(sent("https://h", "sk-c", "sk-o").unwrap().as_deref(), Some("sk-c"));
    }

    #[test]
    fn without_a_key_the_advice_names_the_variable_that_the_host_reads() {
        let advice = |address: &str| access(address, "", "").unwrap().advice;
        assert_eq!(advice("https://h"), "set COLOSSAL_API_KEY to a key for this server");
        assert_eq!(advice("https://api.openai.com"), "set OPENAI_API_KEY to a key for this server");
    }

    #[test]
    fn white_space_around_a_key_is_no_part_of_it_and_within_it_is_an_error() {
        assert_eq!(sent("https://h", "b\n", "").unwrap().as_deref(), Some("b"));
        assert!(sent("https://h", " ", "").unwrap().is_none());
        assert!(matches!(
            sent("https://h", "a b", ""),
            Err(RemoteError::BadKey { variable: "COLOSSAL_API_KEY" })
        ));
    }

    /// What each server of a command gets: the variable of its key.
    fn planned(models: &[&str], judge: &str, set: &[&str]) -> Result<Vec<Option<&'static str>>, RemoteError> {
        let variable = |name: &str| set.contains(&name).then(|| format!("key-of-{name}"));
        let models: Vec<String> = models.iter().map(|&model| model.to_owned()).collect();
        let judge = judge.to_owned();
        let plan = KeyPlan::from_variables(&models, Some(&judge), &variable)?;
        let all = models.iter().map(|model| (model, false)).chain([(&judge, true)]);
        all.filter(|(text, _)| is_endpoint(text))
            .map(|(text, is_judge)| {
                let access =
                    Access::read(&Address::parse(text).unwrap(), plan.choice(text, is_judge), variable)?;
                Ok(access.key.map(|key| key.variable))
            })
            .collect()
    }

    #[test]
    fn one_key_is_not_sent_to_two_machines() {
        const OWN: Option<&str> = Some(OWN_VARIABLE);
        const JUDGE: Option<&str> = Some(JUDGE_VARIABLE);
        let both = ["COLOSSAL_API_KEY", "COLOSSAL_JUDGE_API_KEY"];
        let shared = planned(&["https://a/v1#m"], "https://b", &both[..1]).unwrap_err().to_string();
        assert!(
            ["https://a/v1", "https://b/v1", "COLOSSAL_API_KEY", "COLOSSAL_JUDGE_API_KEY"]
                .iter()
                .all(|word| shared.contains(word)),
            "{shared}"
        );
        assert!(planned(&["https://a", "https://b"], "folder", &both).is_err());
        assert_eq!(planned(&["https://a"], "https://b", &both).unwrap(), [OWN, JUDGE]);
        // Ports are other servers; names of one server share its key.
        assert!(planned(&["https://a:1"], "https://a:2", &both[..1]).is_err());
        assert_eq!(planned(&["https://a#m", "https://a#n"], "folder", &both).unwrap(), [OWN, OWN]);
        assert_eq!(planned(&["http://localhost:1"], "https://b", &both[..1]).unwrap(), [OWN, OWN]);
        assert_eq!(planned(&["https://a"], "https://b", &[]).unwrap(), [None, None]);
    }

    #[test]
    fn a_server_that_gets_no_key_does_not_stop_the_one_that_does() {
        let own = ["COLOSSAL_API_KEY"];
        assert_eq!(planned(&["http://h:8000"], "https://b", &own).unwrap(), [None, Some(OWN_VARIABLE)]);
        assert!(matches!(planned(&["http://h:8000"], "folder", &own), Err(RemoteError::OpenKey { .. })));
        assert!(planned(&["http://h:8000"], "http://i", &own).is_err());
        // The key of the judge is meant for the judge.
        let judge = ["COLOSSAL_JUDGE_API_KEY"];
        assert_eq!(planned(&["http://h:8000"], "https://b", &judge).unwrap(), [None, Some(JUDGE_VARIABLE)]);
        assert!(planned(&["https://a"], "http://h", &judge).is_err());
    }
}
