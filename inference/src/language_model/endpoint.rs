//! A model behind an endpoint, as an evaluation asks it.
//!
//! Requests are asked by a few threads at once, and each answer goes out as soon as it is there. Too many
//! requests (429), errors of the server (5xx) and failed connections are asked again after a while that
//! doubles, or that the server names. What then has no answer, and what comes too late or cannot be read, is
//! [`Response::Failed`] and names the endpoint. Two things end the evaluation at once: a refusal that
//! concerns all requests, such as a wrong key or model, and many failures of the server in a row. The answers
//! so far are kept.
//!
//! Answers are kept under what the server tells of its model. It need not tell of other weights under the
//! same name, so the same command with `--force` asks again.
//!
//! An endpoint gives no log-probabilities of a given text, and takes conversations alone.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use datasets::Message;
use eval::request::{LanguageModel, OnResponses, Prompt, Request, Response, sha256};

use crate::remote::{KeyChoice, RemoteError, RemoteModel, RemoteOptions};
use crate::request::FinishReason;
use crate::stop_text::StopText;

/// Changes when the same request gets other answers from the same endpoint.
const ENGINE: &str = "colossal-chat endpoint 3";
/// What the hash of such a model ends with.
pub const ENDPOINT_DIGEST: &str = "-endpoint";
/// The probability of the tokens that are drawn from: all.
const TOP_P: f64 = 1.0;
/// This many failures of the server in a row end the evaluation. A refusal of one request does not count.
const HOPELESS: usize = 20;
/// How often a thread that waits looks whether to stop.
const POLL: Duration = Duration::from_millis(100);

/// How an endpoint is asked.
#[derive(Clone, Debug)]
pub struct EndpointOptions {
    /// How many requests are under way at once.
    pub concurrency: NonZeroUsize,
    /// The time for one whole reply.
    pub timeout: Duration,
    /// How often a request is asked at most.
    pub attempts: u32,
    /// The wait before the second attempt; it doubles with each further one.
    pub wait: Duration,
    /// The longest wait. A server that asks for a longer one gets no further attempt.
    pub longest_wait: Duration,
    /// The key for the server.
    pub key: KeyChoice,
}

impl Default for EndpointOptions {
    fn default() -> Self {
        Self {
            concurrency: NonZeroUsize::new(4).expect("4 is not 0"),
            timeout: Duration::from_secs(600),
            attempts: 5,
            wait: Duration::from_secs(1),
            longest_wait: Duration::from_secs(60),
            key: KeyChoice::default(),
        }
    }
}

/// A model behind an endpoint.
#[derive(Clone)]
pub struct EndpointModel {
    model: RemoteModel,
    name: String,
    digest: String,
    options: EndpointOptions,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
enum Problem {
    /// The connection, or the server, failed.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// The reply was not whole in time.
    #[error(
        "no whole reply within {seconds} s: use a faster server, or allow more time with --endpoint-timeout"
    )]
    Late {
        /// The limit.
        seconds: u64,
    },
    /// The server sent no text, and said why.
    #[error("there is no text: {0}")]
    Withheld(String),
    /// The server sent no text, and counts no token: an empty answer has at least its end token.
    #[error("the reply is empty, and the server counts no token of it: look at its log")]
    Empty,
    /// Nothing works any more.
    #[error(
        "{failures} requests in a row failed: repair the endpoint and give the same command; the last one: {last}"
    )]
    Hopeless {
        /// How many.
        failures: usize,
        /// The last failure.
        last: String,
    },
}

/// What ends the evaluation.
type Fatal = Box<dyn std::error::Error + Send + Sync>;

/// A request as the endpoint gets it.
struct Asked<'a> {
    messages: &'a [Message],
    until: &'a [String],
    options: RemoteOptions,
}

/// What the threads share.
#[derive(Default)]
struct Run {
    /// The next place among the requests to ask.
    next: AtomicUsize,
    /// The failures of the server since its last answer.
    failures: AtomicUsize,
    stop: AtomicBool,
}

/// Why the caller ended a reply.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cut {
    /// It holds a stop string.
    StopString,
    /// It took too long.
    Late,
    /// The evaluation ends.
    Stopped,
}

impl EndpointModel {
    /// Finds the model of an address `http://HOST[:PORT][/v1][#NAME]`.
    pub fn connect(address: &str, options: EndpointOptions) -> Result<Self, RemoteError> {
        let model = RemoteModel::connect_within(address, options.timeout, options.key)?;
        let base = address.split_once('#').map_or(address, |(base, _)| base).trim_end_matches('/');
        let name = format!("{base}#{}", text::single_line(model.name()));
        let identity = model.identity()?;
        let told = format!("{ENGINE}\n{base}\n{}\n{identity}\ntop_p {TOP_P}", model.name());
        let digest = format!("{}{ENDPOINT_DIGEST}", sha256(told.as_bytes()));
        Ok(Self { model, name, digest, options })
    }

    /// Asks one request after the other until none is left.
    fn work(
        &self,
        requests: &[Request],
        todo: &[usize],
        run: &Run,
        answers: &Sender<(usize, Result<Response, Fatal>)>,
    ) {
        while !run.is_stopped() {
            let Some(&index) = todo.get(run.next.fetch_add(1, Ordering::Relaxed)) else { return };
            let answer = match asked(&requests[index]) {
                Ok(asked) => self.answer(&asked, run),
                Err(problem) => Some(Ok(Response::Failed { problem: format!("{}: {problem}", self.name) })),
            };
            // There is no answer, or nobody who takes it, if the evaluation ends.
            let Some(answer) = answer else { return };
            if answer.is_err() {
                run.stop.store(true, Ordering::Relaxed);
            }
            if answers.send((index, answer)).is_err() {
                return;
            }
        }
    }

    /// The answer after as many attempts as it takes. `None` if the evaluation ends.
    fn answer(&self, asked: &Asked<'_>, run: &Run) -> Option<Result<Response, Fatal>> {
        let mut attempt = 1;
        loop {
            let error = match self.attempt(asked, run) {
                Ok(Some(response)) => {
                    run.failures.store(0, Ordering::Relaxed);
                    return Some(Ok(response));
                }
                Ok(None) => return None,
                Err(Problem::Remote(error)) if error.is_usage() => return Some(Err(error.into())),
                Err(error) => error,
            };

            let wait = self.options.wait_after(&error, attempt);
            let Some(wait) = wait.filter(|_| attempt < self.options.attempts) else {
                return Some(self.given_up(&error, attempt, run));
            };
            if run.sleep(wait) {
                return None;
            }
            attempt += 1;
        }
    }

    /// One attempt. There is no response if the evaluation ends.
    fn attempt(&self, asked: &Asked<'_>, run: &Run) -> Result<Option<Response>, Problem> {
        let started = Instant::now();
        let stops = asked.until.iter().filter(|stop| !stop.is_empty()).cloned().collect();
        let (mut text, mut cut, mut stops) = (String::new(), None, StopText::new(stops));
        let reply = self.model.chat(asked.messages, &asked.options, &mut |piece| {
            text.push_str(piece);
            let (_, has_stop) = stops.push(piece);
            cut = if run.is_stopped() {
                Some(Cut::Stopped)
            } else if has_stop {
                Some(Cut::StopString)
            } else if started.elapsed() > self.options.timeout {
                Some(Cut::Late)
            } else {
                None
            };
            if cut.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;

        match (cut, reply.problem) {
            (Some(Cut::Stopped), _) => return Ok(None),
            (Some(Cut::Late), _) => {
                return Err(Problem::Late { seconds: self.options.timeout.as_secs() });
            }
            (Some(Cut::StopString), _) | (None, None) => {}
            (None, Some(problem)) => return Err(problem.into()),
        }
        // A filter of the server ends a reply for a reason of its own.
        let reason = reply.notices.iter().find(|notice| notice.contains("for another reason"));
        if let Some(reason) = reason.filter(|_| text.is_empty()) {
            return Err(Problem::Withheld(reason.clone()));
        }
        if text.is_empty() && cut.is_none() && reply.new_tokens == 0 {
            return Err(Problem::Empty);
        }
        // The stop strings cut the text in their order. If they overlap, this is not always the first place.
        Ok(Some(Response::Reply {
            text: eval::filter::cut_at_stop(&text, asked.until).to_owned(),
            tokens: reply.new_tokens as usize,
            ended: cut == Some(Cut::StopString) || reply.finish_reason == FinishReason::Stop,
            cut: 0,
        }))
    }

    /// What a request becomes whose last attempt failed.
    fn given_up(&self, error: &Problem, attempts: u32, run: &Run) -> Result<Response, Fatal> {
        let times = if attempts > 1 { format!(" (asked {attempts} times)") } else { String::new() };
        let problem = format!("{}{times}: {error}", self.name);
        if !is_of_server(error) {
            run.failures.store(0, Ordering::Relaxed);
            return Ok(Response::Failed { problem });
        }
        let failures = run.failures.fetch_add(1, Ordering::Relaxed) + 1;
        if failures >= HOPELESS {
            return Err(Problem::Hopeless { failures, last: problem }.into());
        }
        Ok(Response::Failed { problem })
    }
}

/// Whether a failure would have met any other request as well.
fn is_of_server(error: &Problem) -> bool {
    match error {
        Problem::Remote(RemoteError::Status { status, .. }) => matches!(status, 429 | 500..),
        Problem::Remote(RemoteError::Reported(_) | RemoteError::TooLong { .. }) | Problem::Withheld(_) => {
            false
        }
        _ => true,
    }
}

impl LanguageModel for EndpointModel {
    fn name(&self) -> &str {
        &self.name
    }

    fn digest(&self) -> &str {
        &self.digest
    }

    fn respond(
        &mut self,
        requests: &[Request],
        answered: &[bool],
        on_responses: &mut OnResponses<'_>,
    ) -> Result<(), eval::Error> {
        let todo: Vec<usize> = (0..requests.len()).filter(|&index| !answered[index]).collect();
        let (run, model) = (Run::default(), &*self);
        thread::scope(|scope| {
            let (sender, answers) = channel();
            for _ in 0..self.options.concurrency.get().min(todo.len()) {
                let (sender, run, todo) = (sender.clone(), &run, &todo);
                scope.spawn(move || model.work(requests, todo, run, &sender));
            }
            // The answers end when all threads have.
            drop(sender);

            let mut fatal = None;
            for (index, answer) in answers {
                let taken = match answer {
                    Ok(response) => on_responses(vec![(index, response)]),
                    // What other threads have answered by now is kept.
                    Err(source) => {
                        fatal.get_or_insert(eval::Error::Model { name: self.name.clone(), source });
                        Ok(())
                    }
                };
                if taken.is_err() {
                    run.stop.store(true, Ordering::Relaxed);
                    return taken;
                }
            }
            fatal.map_or(Ok(()), Err)
        })
    }
}

impl Run {
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Waits. Returns whether the evaluation ends.
    fn sleep(&self, wait: Duration) -> bool {
        let until = Instant::now() + wait;
        while !self.is_stopped() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            thread::sleep(left.min(POLL));
        }
        true
    }
}

impl EndpointOptions {
    /// How long to wait after the failure of an attempt. `None` if a further attempt is of no use.
    fn wait_after(&self, error: &Problem, attempt: u32) -> Option<Duration> {
        let asked = match error {
            Problem::Remote(RemoteError::Status { status: 429 | 500..=599, retry_after, .. }) => {
                Duration::from_secs(retry_after.unwrap_or(0))
            }
            Problem::Remote(RemoteError::Connection { .. }) => Duration::ZERO,
            _ => return None,
        };
        let doubled = self.wait.saturating_mul(2_u32.saturating_pow(attempt - 1)).min(self.longest_wait);
        (asked <= self.longest_wait).then_some(asked.max(doubled))
    }
}

/// A request as an endpoint takes it, or why it takes none.
fn asked(request: &Request) -> Result<Asked<'_>, &'static str> {
    let Request::GenerateUntil { context, until, max_gen_toks, temperature, sample } = request else {
        return Err(
            "an endpoint does not give the log-probabilities of a given text: name a model folder for tasks that \
             score texts, or choose tasks that generate",
        );
    };
    let Prompt::Chat(messages) = context else {
        return Err("an endpoint takes conversations alone: add --apply-chat-template");
    };
    let options = RemoteOptions {
        temperature: *temperature,
        top_p: TOP_P,
        top_k: 0,
        max_new_tokens: *max_gen_toks,
        seed: *sample,
    };
    Ok(Asked { messages, until, options })
}

#[cfg(test)]
mod tests;
