//! Models behind an endpoint: a client for servers with the chat completions API of `OpenAI`, such as vLLM,
//! llama.cpp, Ollama and `transformers serve`.
//!
//! The reply is read by a thread of its own, so that the caller can stop it at any time: while nothing
//! arrives, the caller's function is called with an empty piece every 100 ms. The thread closes the
//! connection as soon as the caller has stopped and the next byte arrives, or when the server has been silent
//! for its limit. A failure before the first text is an error. After it, the text that arrived is kept and
//! the failure is part of the reply.
//!
//! The server is not trusted: the length of lines and replies is limited, and messages quote it only in short
//! harmless lines. The text of a reply is passed on as it is, and has to be sanitised like that of any model.
//! This module knows no screen and no tokens.

mod address;
mod answer;
mod error;
mod reply;
mod request;
mod sse;

use std::ops::ControlFlow;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::request::FinishReason;
use datasets::Message;

use self::address::{Access, Address};
pub use self::address::{KeyChoice, KeyPlan, is_endpoint};
pub use self::error::RemoteError;
use self::error::excerpt;
use self::reply::{Ending, Update};
pub use self::request::RemoteOptions;
use self::request::{Endpoint, Offered, SILENCE};

/// How often a caller that waits is asked whether to go on.
const POLL: Duration = Duration::from_millis(100);
/// A model that is this old was not made at the time of the request.
const RECENT: Duration = Duration::from_secs(24 * 3600);
/// After this, the time of a request is another one: servers tell seconds.
const SECOND_LOOK: Duration = Duration::from_millis(1100);
/// How many pieces may wait for the caller before the connection is read no further.
const QUEUE: usize = 256;

/// A model behind an endpoint, such as `http://127.0.0.1:8000/v1`.
#[derive(Clone, Debug)]
pub struct RemoteModel {
    endpoint: Endpoint,
    offered: Offered,
}

/// What the server streamed.
#[derive(Debug)]
pub struct RemoteReply {
    /// Why the reply ended: it is interrupted if the caller stopped it, or if `problem` did.
    pub finish_reason: FinishReason,
    /// The tokens of the prompt, if the server counts them.
    pub prompt_tokens: Option<u64>,
    /// The tokens of the reply, if the server counts them, otherwise the number of pieces.
    pub new_tokens: u64,
    /// The context length of the model in tokens, if the server tells it.
    pub context: Option<u64>,
    /// The failure that ended the reply after its first text.
    pub problem: Option<RemoteError>,
    /// What the user should know about the reply, one harmless line each.
    pub notices: Vec<String>,
}

impl RemoteModel {
    /// Finds the model of an address `http://HOST[:PORT][/v1][#NAME]`. Without `#NAME`, this is the only
    /// model that the server lists.
    pub fn connect(address: &str) -> Result<Self, RemoteError> {
        Self::connect_within(address, SILENCE, KeyChoice::default())
    }

    /// Like [`Self::connect`], for a server that may be silent for longer than usual while it replies, and
    /// that is one of several.
    pub fn connect_within(address: &str, silence: Duration, choice: KeyChoice) -> Result<Self, RemoteError> {
        Self::find(address, choice, |name| std::env::var(name).ok(), silence.max(SILENCE))
    }

    /// The name of the model.
    pub fn name(&self) -> &str {
        &self.offered.name
    }

    /// What the server tells of the model besides its name: it changes if the server was started with other
    /// weights under the same name, as far as the server shows it.
    pub fn identity(&self) -> Result<String, RemoteError> {
        let Offered { name, context, created, details } = &self.offered;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let is_recent = |created: &u64| created.abs_diff(now) < RECENT.as_secs();
        let mut created = *created;
        if created.as_ref().is_some_and(is_recent) {
            // A time that moves with the clock is that of the request.
            std::thread::sleep(SECOND_LOOK);
            created = named(&self.endpoint, name)?.created.filter(|again| created == Some(*again));
        }
        Ok(format!("{created:?} {context:?} {details}"))
    }

    /// The context length of the model in tokens, if the server tells it.
    pub fn context(&self) -> Option<u64> {
        self.offered.context
    }

    fn find(
        address: &str,
        choice: KeyChoice,
        variable: impl Fn(&str) -> Option<String>,
        silence: Duration,
    ) -> Result<Self, RemoteError> {
        let address = Address::parse(address)?;
        let access = Access::read(&address, choice, variable)?;
        let endpoint = Endpoint::new(&address, access, silence);
        let offered = match &address.model {
            Some(name) => named(&endpoint, name)?,
            None => only(&endpoint)?,
        };
        Ok(Self { endpoint, offered })
    }

    /// Asks for the reply to a conversation. Each piece of text goes to `on_piece` as soon as it arrives, and
    /// an empty piece every 100 ms while nothing arrives; `on_piece` may stop the reply each time.
    pub fn chat(
        &self,
        messages: &[Message],
        options: &RemoteOptions,
        on_piece: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<RemoteReply, RemoteError> {
        let failed = |problem: &dyn std::fmt::Display| RemoteError::Ended(problem.to_string());
        let messages = serde_json::to_value(messages).map_err(|error| failed(&error))?;
        let body = request::body(self.name(), messages, options);
        let (sender, updates) = mpsc::sync_channel(QUEUE);
        let endpoint = self.endpoint.clone();
        let read = move || {
            let outcome = reply::read(&endpoint, body, &sender);
            // There is no receiver if the caller has stopped the reply.
            let _ = sender.send(Update::End(outcome));
        };
        let reader = std::thread::Builder::new()
            .name("remote reply".to_owned())
            .spawn(read)
            .map_err(|error| failed(&error))?;

        let mut tokens = 0;
        loop {
            let (piece, chunks) = match updates.recv_timeout(POLL) {
                Ok(Update::Piece { text, chunks }) => (text, chunks),
                Ok(Update::End(outcome)) => return Ok(self.finished(outcome?)),
                Err(RecvTimeoutError::Timeout) => (String::new(), 0),
                Err(RecvTimeoutError::Disconnected) => match reader.join() {
                    Ok(()) => return Err(failed(&"the reply has no end")),
                    Err(panic) => std::panic::resume_unwind(panic),
                },
            };
            tokens += chunks;
            if on_piece(&piece).is_break() {
                return Ok(self.stopped(tokens));
            }
        }
    }

    fn finished(&self, ending: Ending) -> RemoteReply {
        let Ending { answer, problem, mut notices } = ending;
        let finish_reason = match (answer.finish(), &problem) {
            (_, Some(_)) => FinishReason::Interrupted,
            (Some((reason, word)), None) => {
                notices.extend(
                    word.map(|word| format!("the server ended the reply for another reason: {word}")),
                );
                reason
            }
            (None, None) => FinishReason::Stop,
        };
        if answer.thoughts > 0 {
            notices.push(format!("{} pieces of thought are not shown", answer.thoughts));
        }
        RemoteReply {
            finish_reason,
            prompt_tokens: answer.prompt_tokens,
            new_tokens: answer.tokens(),
            context: self.context(),
            problem,
            notices,
        }
    }

    fn stopped(&self, new_tokens: u64) -> RemoteReply {
        RemoteReply {
            finish_reason: FinishReason::Interrupted,
            prompt_tokens: None,
            new_tokens,
            context: self.context(),
            problem: None,
            notices: Vec::new(),
        }
    }
}

/// The model that the address names. A server need not list its models, and may accept names that it does not
/// list; then the first request tells. A server that does not answer or wants a key is an error at once.
fn named(endpoint: &Endpoint, name: &str) -> Result<Offered, RemoteError> {
    let listed = match endpoint.models() {
        Ok(listed) => listed,
        Err(RemoteError::Status { status, .. }) if !matches!(status, 401 | 403) => Vec::new(),
        Err(RemoteError::NotAReply(_) | RemoteError::Malformed(_)) => Vec::new(),
        Err(error) => return Err(error),
    };
    let unlisted = Offered { name: name.to_owned(), ..Offered::default() };
    Ok(listed.into_iter().find(|model| model.name == name).unwrap_or(unlisted))
}

fn only(endpoint: &Endpoint) -> Result<Offered, RemoteError> {
    let mut listed = endpoint.models()?;
    if listed.len() == 1 {
        return Ok(listed.remove(0));
    }
    let names = listed.iter().map(|model| excerpt(&model.name)).collect();
    Err(RemoteError::Choose { server: endpoint.base.clone(), names })
}

#[cfg(test)]
mod tests;
