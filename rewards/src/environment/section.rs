//! The `[environment]` section: which environment answers the policy, and for how many turns.
//!
//! ```toml
//! [environment]
//! kind = "command"
//! command = ["python3", "environment.py"]
//! max_turns = 6
//! ```
//! A key that the environment does not read is refused, as is an unknown one.

use std::collections::BTreeMap;

use serde::de::{self, Deserializer};
use serde::{Deserialize, Serialize};

use super::calculator::calculate;
use super::episode::Environment;
use super::remote;
use super::search::search;
use super::tool::ToolEnvironment;
use crate::client;
use crate::entry::{CommandConfig, HttpConfig};
use crate::error::{Error, Wrong};
use crate::limits::within;
use crate::program::{self, ProgramLog};

/// The name of the section in messages.
const SECTION: &str = "environment";
/// The most turns of an episode.
const MOST_TURNS: usize = 1000;
/// The most tokens of an episode.
const MOST_TOKENS: usize = 1 << 24;

/// The names of the kinds, as serde wants them.
static KINDS: [&str; 4] = ["calculator", "search", "command", "http"];

/// The `[environment]` section.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnvironmentSection {
    /// Required. What answers the policy: `calculator`, `search`, `command` or `http`.
    pub kind: EnvironmentKind,
    /// The most turns that the policy writes in an episode.
    #[serde(default = "four")]
    pub max_turns: usize,
    /// The most tokens of an episode, with its prompt. If absent, as many as the policy has positions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_episode_tokens: Option<usize>,
    /// Required with `kind = "command"`. The program and its arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Required with `kind = "http"`. The address, `http://` or `https://`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Headers that are sent to the server. `${NAME}` stands for an environment variable.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// The most turns of a request. If absent, 32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_size: Option<usize>,
    /// The seconds that a request may take. If absent, 60 for a program and 30 for a server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<f64>,
    /// How many programs, or requests to the server, run at the same time. If absent, 1 and 4.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<usize>,
    /// How often programs that failed are started again. If absent, 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_restarts: Option<usize>,
    /// How often a request that the server did not take is sent, at most. If absent, 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts: Option<usize>,
}

/// What answers the policy between its turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EnvironmentKind {
    /// Computes `= 12*7+3`.
    Calculator,
    /// Looks up `? friday`.
    Search,
    /// A program of the user.
    Command,
    /// A server of the user.
    Http,
}

impl EnvironmentKind {
    /// Every kind, in the order of [`KINDS`].
    const ALL: [Self; 4] = [Self::Calculator, Self::Search, Self::Command, Self::Http];

    /// The name in `kind`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Calculator => "calculator",
            Self::Search => "search",
            Self::Command => "command",
            Self::Http => "http",
        }
    }
}

impl<'de> Deserialize<'de> for EnvironmentKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // A section without the key reads as none here, so that its error can list the kinds.
        let Some(name) = Option::<String>::deserialize(deserializer)? else {
            let message = format!("has no `kind`; give one of {}", KINDS.join(", "));
            return Err(de::Error::custom(message));
        };
        let named = Self::ALL.into_iter().find(|kind| kind.name() == name);
        named.ok_or_else(|| de::Error::unknown_variant(&name, &KINDS))
    }
}

impl EnvironmentSection {
    /// Refuses settings that cannot work. Starts nothing and makes no connection.
    pub fn check(&self) -> Result<(), Error> {
        self.check_keys().map_err(|wrong| wrong.of(SECTION))
    }

    /// Opens the environment: starts its programs, or asks its server whether it answers. What programs write
    /// to stderr goes to `log`.
    pub fn open(&self, log: &ProgramLog) -> Result<Box<dyn Environment>, Error> {
        self.check()?;
        let opened: Result<Box<dyn Environment>, Wrong> = match self.kind {
            EnvironmentKind::Calculator => Ok(Box::new(ToolEnvironment::new(calculate))),
            EnvironmentKind::Search => Ok(Box::new(ToolEnvironment::new(search))),
            EnvironmentKind::Command => {
                remote::command(&self.command(), log).map(|environment| Box::new(environment) as _)
            }
            EnvironmentKind::Http => remote::http(&self.http()).map(|environment| Box::new(environment) as _),
        };
        opened.map_err(|wrong| wrong.of(SECTION))
    }

    /// Whether it may give rewards of its own. The tools inside give none: what scores the episode is left to
    /// `[[reward]]`.
    pub fn may_reward(&self) -> bool {
        matches!(self.kind, EnvironmentKind::Command | EnvironmentKind::Http)
    }

    fn check_keys(&self) -> Result<(), Wrong> {
        within("max_turns", self.max_turns, MOST_TURNS)?;
        within("max_episode_tokens", self.max_episode_tokens.unwrap_or(1), MOST_TOKENS)?;
        let (command, http) = (EnvironmentKind::Command, EnvironmentKind::Http);
        let keys: [(&str, bool, &[EnvironmentKind]); 8] = [
            ("command", !self.command.is_empty(), &[command]),
            ("max_restarts", self.max_restarts.is_some(), &[command]),
            ("url", self.url.is_some(), &[http]),
            ("headers", !self.headers.is_empty(), &[http]),
            ("attempts", self.attempts.is_some(), &[http]),
            ("batch_size", self.batch_size.is_some(), &[command, http]),
            ("timeout", self.timeout.is_some(), &[command, http]),
            ("concurrency", self.concurrency.is_some(), &[command, http]),
        ];
        for (key, is_given, readers) in keys {
            if is_given && !readers.contains(&self.kind) {
                let readers: Vec<String> =
                    readers.iter().map(|kind| format!("kind = {:?}", kind.name())).collect();
                let problem = format!("has no effect with kind = {:?}", self.kind.name());
                let fix = format!("leave it out, or choose {}", readers.join(" or "));
                return Err(Wrong::new(key, problem, fix));
            }
        }
        match self.kind {
            EnvironmentKind::Calculator | EnvironmentKind::Search => Ok(()),
            EnvironmentKind::Command => program::check(&self.command()),
            EnvironmentKind::Http => client::check(&self.http()),
        }
    }

    fn command(&self) -> CommandConfig {
        CommandConfig {
            command: self.command.clone(),
            batch_size: self.batch_size.unwrap_or(32),
            timeout: self.timeout.unwrap_or(60.0),
            max_restarts: self.max_restarts.unwrap_or(3),
            concurrency: self.concurrency.unwrap_or(1),
        }
    }

    fn http(&self) -> HttpConfig {
        HttpConfig {
            url: self.url.clone().unwrap_or_default(),
            batch_size: self.batch_size.unwrap_or(32),
            timeout: self.timeout.unwrap_or(30.0),
            attempts: self.attempts.unwrap_or(3),
            concurrency: self.concurrency.unwrap_or(4),
            headers: self.headers.clone(),
        }
    }
}

fn four() -> usize {
    4
}

#[cfg(test)]
mod tests {
    use datasets::Message;

    use super::*;
    use crate::environment::{Step, Turn};

    fn read(text: &str) -> Result<EnvironmentSection, String> {
        toml::from_str(text).map_err(|error| error.message().to_owned())
    }

    fn refusal(text: &str) -> String {
        read(text).unwrap().check().unwrap_err().to_string()
    }

    #[test]
    fn a_kind_is_required_and_other_keys_have_defaults() {
        let section = read("kind = \"calculator\"").unwrap();
        assert_eq!((section.kind, section.max_turns), (EnvironmentKind::Calculator, 4));
        section.check().unwrap();
        assert_eq!(
            read("max_turns = 3").unwrap_err(),
            "has no `kind`; give one of calculator, search, command, http"
        );
        assert_eq!(
            read("kind = \"shell\"").unwrap_err(),
            "unknown variant `shell`, expected one of `calculator`, `search`, `command`, `http`"
        );
        for kind in KINDS {
            assert_eq!(read(&format!("kind = {kind:?}")).unwrap().kind.name(), kind);
        }
        assert!(read("kind = \"search\"\nturns = 3").unwrap_err().contains("turns"));
        // The saved form has no keys that have no effect, and reads as the same.
        let saved = toml::to_string(&section).unwrap();
        assert_eq!(saved, "kind = \"calculator\"\nmax_turns = 4\n");
        let text =
            "kind = \"http\"\nurl = \"http://127.0.0.1:1/x\"\ntimeout = 2.5\nheaders = { X-A = \"b\" }";
        let http = read(text).unwrap();
        assert_eq!(read(&toml::to_string(&http).unwrap()).unwrap(), http);
        assert_eq!(http.http().timeout, 2.5);
        assert_eq!((http.http().batch_size, http.http().attempts, http.http().concurrency), (32, 3, 4));
    }

    #[test]
    fn a_setting_that_cannot_work_is_refused_by_name() {
        for (text, key) in [
            ("kind = \"calculator\"\nmax_turns = 0", "environment.max_turns"),
            ("kind = \"calculator\"\ncommand = [\"x\"]", "environment.command"),
            ("kind = \"search\"\ntimeout = 3.0", "environment.timeout"),
            ("kind = \"command\"", "environment.command"),
            ("kind = \"command\"\ncommand = []", "environment.command"),
            ("kind = \"command\"\ncommand = [\"x\"]\nurl = \"http://h\"", "environment.url"),
            ("kind = \"command\"\ncommand = [\"x\"]\nattempts = 3", "environment.attempts"),
            ("kind = \"command\"\ncommand = [\"x\"]\nbatch_size = 0", "environment.batch_size"),
            ("kind = \"http\"", "environment.url"),
            ("kind = \"http\"\nurl = \"h:80\"", "environment.url"),
            ("kind = \"http\"\nurl = \"http://h\"\nmax_restarts = 1", "environment.max_restarts"),
            ("kind = \"http\"\nurl = \"http://h\"\nconcurrency = 0", "environment.concurrency"),
            ("kind = \"http\"\nurl = \"http://h\"\nheaders = { Host = \"x\" }", "environment.headers.Host"),
        ] {
            let message = refusal(text);
            assert!(message.contains(&format!("`{key}`")), "{text}: {message}");
        }
        let message = refusal("kind = \"search\"\ntimeout = 3.0");
        assert!(message.contains("kind = \"command\" or kind = \"http\""), "{message}");
    }

    #[test]
    fn built_in_environments_open_without_anything() {
        for (kind, call, answer) in
            [("calculator", "= 37+45", "82"), ("search", "? hours", "1 hour = 60 minutes")]
        {
            let section = read(&format!("kind = {kind:?}")).unwrap();
            let mut environment = section.open(&ProgramLog::Stderr).unwrap();
            environment.reset(1, &[Message::user("?")], None).unwrap();
            let steps = environment.step(&[Turn { episode: 1, text: call }]);
            assert_eq!(
                steps,
                [Ok(Step { messages: vec![Message::tool(answer)], reward: None, done: false })]
            );
            assert!(environment.step(&[Turn { episode: 1, text: "82" }])[0].as_ref().unwrap().done);
            assert_eq!(environment.tools(), None);
        }
    }

    #[test]
    fn a_server_that_is_not_there_is_named() {
        let section = read("kind = \"http\"\nurl = \"http://127.0.0.1:1/x\"\nattempts = 1").unwrap();
        let message = section.open(&ProgramLog::Stderr).map(|_| ()).unwrap_err().to_string();
        assert!(
            message.contains("`environment.url`") && message.contains("http://127.0.0.1:1/x"),
            "{message}"
        );
    }
}
