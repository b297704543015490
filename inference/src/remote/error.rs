//! The errors of a model behind an endpoint. A message names the server, what it answered, and the fix.
//!
//! What a server sends is not trusted: [`excerpt`] makes it one short line without control characters. A key
//! is in no message.

use parallel::ErrorClass;

/// The longest text of a server in a message, in characters.
const EXCERPT: usize = 300;

/// A failure of a model behind an endpoint.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The address is not one of an endpoint.
    #[error("--model {address}: {problem}")]
    Address {
        /// The address as given.
        address: String,
        /// What is wrong, and what is expected.
        problem: String,
    },
    /// An address was given where the weights of a model are needed.
    #[error(
        "{address}: this command needs the weights of a model, which an endpoint does not give: name a model folder or a \
         hub model; only `chat` and `eval` talk with an endpoint"
    )]
    WeightsWanted {
        /// The address as given.
        address: String,
    },
    /// The connection would show the key to others.
    #[error(
        "{server}: the key in {variable} is not sent over http, where others could read it: use https or an ssh tunnel to \
         127.0.0.1; if this server needs no key, start the program with `env -u {variable}`"
    )]
    OpenKey {
        /// The base URL.
        server: String,
        /// The environment variable that holds the key.
        variable: &'static str,
    },
    /// Two machines would get the same key.
    #[error(
        "the key in {variable} would be sent to both {first} and {second}: put the key of a judge into \
         COLOSSAL_JUDGE_API_KEY, ask the servers by separate commands, or send none with `env -u {variable}`"
    )]
    SharedKey {
        /// The environment variable that holds the key.
        variable: String,
        /// One base URL.
        first: String,
        /// The other one.
        second: String,
    },
    /// The key cannot be sent in a header.
    #[error("the key in {variable} holds a character that no key has: set the variable again")]
    BadKey {
        /// The environment variable that holds the key.
        variable: &'static str,
    },
    /// Nobody answers, or not in a way that can be understood.
    #[error("{server}: {reason}")]
    Connection {
        /// The base URL.
        server: String,
        /// What happened, and what to check.
        reason: String,
    },
    /// The server refused the request.
    #[error("{server} answers {status}{}{hint}", colon(message))]
    Status {
        /// The base URL.
        server: String,
        /// The status of the response.
        status: u16,
        /// The reason that the server sent, without control characters.
        message: String,
        /// How to fix it, with a leading semicolon; empty if there is nothing to advise.
        hint: String,
        /// After how many seconds the server wants to be asked again, if it says so.
        retry_after: Option<u64>,
    },
    /// The server wants the request at another address.
    #[error(
        "{server} redirects to {location}: redirects are not followed; if you trust that address, give it to --model"
    )]
    Redirect {
        /// The base URL.
        server: String,
        /// Where it redirects, without control characters.
        location: String,
    },
    /// The server offers no model or several ones.
    #[error("{server} offers {}: choose one with --model '{server}#NAME'", listed(names))]
    Choose {
        /// The base URL.
        server: String,
        /// The names of the models, without control characters.
        names: Vec<String>,
    },
    /// The server reports an error within a reply.
    #[error("the server reports: {0}")]
    Reported(String),
    /// The response is not one of a chat endpoint.
    #[error(
        "the response is neither a stream of events nor a JSON object, it begins with {0:?}: check the address, which ends in /v1 with most servers"
    )]
    NotAReply(String),
    /// An event or object of the response cannot be understood.
    #[error("the response cannot be read: {0}")]
    Malformed(String),
    /// The response is too long.
    #[error("the server sent {what} of more than {bytes} bytes, which is refused")]
    TooLong {
        /// What is too long.
        what: &'static str,
        /// The limit.
        bytes: usize,
    },
    /// The server sends nothing.
    #[error(
        "the server sent nothing for {seconds} s: check its log; it may be overloaded, or still loading the model"
    )]
    Silent {
        /// How long.
        seconds: u64,
    },
    /// The connection broke within a reply.
    #[error("the connection ended before the reply was complete{}", colon(.0))]
    Ended(String),
}

impl RemoteError {
    /// Whether the command line or the environment has to be changed.
    pub fn is_usage(&self) -> bool {
        self.class() == ErrorClass::Usage
    }

    /// The class of this error: usage, or else a failure of the server or of the network.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Address { .. }
            | Self::WeightsWanted { .. }
            | Self::OpenKey { .. }
            | Self::SharedKey { .. }
            | Self::BadKey { .. }
            | Self::Redirect { .. }
            | Self::Choose { .. }
            | Self::Status { status: 401 | 403 | 404, .. } => ErrorClass::Usage,
            _ => ErrorClass::Failed,
        }
    }
}

/// The beginning of a text that a server sent, on one line and without control characters.
pub(super) fn excerpt(text: &str) -> String {
    let line = text::single_line(text.trim());
    match line.char_indices().nth(EXCERPT) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

fn colon(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(": {text}") }
}

/// At most this many names are listed.
const NAMES: usize = 20;

fn listed(names: &[String]) -> String {
    match names.len() {
        0 => "no model".to_owned(),
        number if number > NAMES => {
            format!("{number} models, among them {}", names[..NAMES].join(", "))
        }
        number => format!("{number} models, {}", names.join(", ")),
    }
}
