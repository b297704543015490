//! The language model of an evaluation: a model behind an endpoint.
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
use inference::remote::{KeyChoice, RemoteError, RemoteModel, RemoteOptions};
use inference::request::FinishReason;

/// Changes when the same request gets other answers from the same endpoint.
const ENGINE: &str = "colossal-chat endpoint 3";
/// What the hash of such a model ends with.
pub(super) const ENDPOINT_DIGEST: &str = "-endpoint";
/// The probability of the tokens that are drawn from: all.
const TOP_P: f64 = 1.0;
/// This many failures of the server in a row end the evaluation. A refusal of one request does not count.
const HOPELESS: usize = 20;
/// How often a thread that waits looks whether to stop.
const POLL: Duration = Duration::from_millis(100);

/// How an endpoint is asked.
#[derive(Clone, Debug)]
pub(crate) struct EndpointOptions {
    /// How many requests are under way at once.
    pub(crate) concurrency: NonZeroUsize,
    /// The time for one whole reply.
    pub(crate) timeout: Duration,
    /// How often a request is asked at most.
    pub(crate) attempts: u32,
    /// The wait before the second attempt; it doubles with each further one.
    pub(crate) wait: Duration,
    /// The longest wait. A server that asks for a longer one gets no further attempt.
    pub(crate) longest_wait: Duration,
    /// The key for the server.
    pub(crate) key: KeyChoice,
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
pub(crate) struct EndpointModel {
    model: RemoteModel,
    name: String,
    digest: String,
    options: EndpointOptions,
}

/// Why there is no answer, apart from the errors of the connection.
#[derive(Debug, thiserror::Error)]
enum Problem {
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
    /// It holds a stop text.
    StopText,
    /// It took too long.
    Late,
    /// The evaluation ends.
    Stopped,
}

impl EndpointModel {
    /// Finds the model of an address `http://HOST[:PORT][/v1][#NAME]`.
    pub(crate) fn connect(address: &str, options: EndpointOptions) -> anyhow::Result<Self> {
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
                Err(error) => error,
            };

            let error = match error.downcast::<RemoteError>() {
                Ok(error) if error.is_usage() => return Some(Err(error.into())),
                Ok(error) => {
                    let wait = self.options.wait_after(&error, attempt);
                    if let Some(wait) = wait.filter(|_| attempt < self.options.attempts) {
                        if run.sleep(wait) {
                            return None;
                        }
                        attempt += 1;
                        continue;
                    }
                    error.into()
                }
                Err(error) => error,
            };
            return Some(self.given_up(&error, attempt, run));
        }
    }

    /// One attempt. There is no response if the evaluation ends.
    fn attempt(&self, asked: &Asked<'_>, run: &Run) -> anyhow::Result<Option<Response>> {
        let started = Instant::now();
        let longest = asked.until.iter().map(String::len).max().unwrap_or(0);
        let (mut text, mut cut) = (String::new(), None);
        let reply = self.model.chat(asked.messages, &asked.options, &mut |piece| {
            let from = boundary_before(&text, text.len().saturating_sub(longest));
            text.push_str(piece);
            let is_at_stop = |stop: &String| !stop.is_empty() && text[from..].contains(stop.as_str());
            cut = if run.is_stopped() {
                Some(Cut::Stopped)
            } else if asked.until.iter().any(is_at_stop) {
                Some(Cut::StopText)
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
                return Err(Problem::Late { seconds: self.options.timeout.as_secs() }.into());
            }
            (Some(Cut::StopText), _) | (None, None) => {}
            (None, Some(problem)) => return Err(problem.into()),
        }
        // A filter of the server ends a reply for a reason of its own.
        let reason = reply.notices.iter().find(|notice| notice.contains("for another reason"));
        if let Some(reason) = reason.filter(|_| text.is_empty()) {
            return Err(Problem::Withheld(reason.clone()).into());
        }
        if text.is_empty() && cut.is_none() && reply.new_tokens == 0 {
            return Err(Problem::Empty.into());
        }
        Ok(Some(Response::Reply {
            text: eval::filter::cut_at_stop(&text, asked.until).to_owned(),
            tokens: reply.new_tokens as usize,
            ended: cut == Some(Cut::StopText) || reply.finish_reason == FinishReason::Stop,
            cut: 0,
        }))
    }

    /// What a request becomes whose last attempt failed.
    fn given_up(&self, error: &anyhow::Error, attempts: u32, run: &Run) -> Result<Response, Fatal> {
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
fn is_of_server(error: &anyhow::Error) -> bool {
    match error.downcast_ref::<RemoteError>() {
        Some(RemoteError::Status { status, .. }) => matches!(status, 429 | 500..),
        Some(error) => !matches!(error, RemoteError::Reported(_) | RemoteError::TooLong { .. }),
        None => !matches!(error.downcast_ref(), Some(Problem::Withheld(_))),
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
    fn wait_after(&self, error: &RemoteError, attempt: u32) -> Option<Duration> {
        let asked = match error {
            RemoteError::Status { status: 429 | 500..=599, retry_after, .. } => {
                Duration::from_secs(retry_after.unwrap_or(0))
            }
            RemoteError::Connection { .. } => Duration::ZERO,
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

/// The last boundary of a character at or before `place`.
fn boundary_before(text: &str, place: usize) -> usize {
    (0..=place).rev().find(|&place| text.is_char_boundary(place)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::{Arc, Barrier, Mutex};

    use serde_json::{Value, json};

    use super::*;

    /// A server of this process, with a thread for each connection.
    struct Server {
        address: String,
        /// The bodies of the requests for replies.
        bodies: Arc<Mutex<Vec<Value>>>,
    }

    impl Server {
        /// `respond` gets the connection, the body of the request and its number, from 0.
        fn new(respond: impl Fn(&mut TcpStream, &Value, usize) + Send + Sync + 'static) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = format!("http://{}/v1#m", listener.local_addr().unwrap());
            let bodies = Arc::new(Mutex::new(Vec::new()));
            let (respond, held) = (Arc::new(respond), bodies.clone());
            thread::spawn(move || {
                for connection in listener.incoming() {
                    let (mut connection, respond, held) =
                        (connection.unwrap(), respond.clone(), held.clone());
                    thread::spawn(move || {
                        let Some((head, body)) = receive(&connection) else { return };
                        if head.starts_with("GET /v1/models ") {
                            return send(&mut connection, "200 OK", "", r#"{"data":[{"id":"m"}]}"#);
                        }
                        let number = {
                            let mut held = held.lock().unwrap();
                            held.push(body.clone());
                            held.len() - 1
                        };
                        respond(&mut connection, &body, number);
                    });
                }
            });
            Self { address, bodies }
        }

        fn model(&self) -> EndpointModel {
            EndpointModel::connect(&self.address, quick()).unwrap()
        }

        fn asked(&self) -> usize {
            self.bodies.lock().unwrap().len()
        }
    }

    /// Options for tests: short waits, and no limit that a slow machine could reach.
    fn quick() -> EndpointOptions {
        EndpointOptions {
            concurrency: NonZeroUsize::new(4).unwrap(),
            timeout: Duration::from_secs(30),
            attempts: 3,
            wait: Duration::from_millis(10),
            longest_wait: Duration::from_secs(2),
            key: KeyChoice::default(),
        }
    }

    fn receive(connection: &TcpStream) -> Option<(String, Value)> {
        let mut reader = BufReader::new(connection);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).ok()? == 0 {
                return None;
            }
        }
        let lower = head.to_lowercase();
        let length = lower.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
        let mut body = Vec::new();
        match length {
            Some(length) => {
                body.resize(length, 0);
                reader.read_exact(&mut body).ok()?;
            }
            None if lower.contains("chunked") => loop {
                let mut line = String::new();
                reader.read_line(&mut line).ok()?;
                let size = usize::from_str_radix(line.trim(), 16).ok()?;
                let mut chunk = vec![0; size + 2];
                reader.read_exact(&mut chunk).ok()?;
                if size == 0 {
                    break;
                }
                body.extend_from_slice(&chunk[..size]);
            },
            None => body.extend_from_slice(b"null"),
        }
        Some((head, serde_json::from_slice(&body).ok()?))
    }

    fn send(connection: &mut TcpStream, status: &str, headers: &str, body: &str) {
        let length = body.len();
        // The client may have closed the connection.
        let _ = write!(connection, "HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\n\r\n{body}");
    }

    fn say(connection: &mut TcpStream, text: &str, finish_reason: &str) {
        let reply = json!({
            "choices": [{"message": {"content": text}, "finish_reason": finish_reason}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 5},
        });
        send(connection, "200 OK", "", &reply.to_string());
    }

    fn question(text: &str, until: &[&str]) -> Request {
        Request::GenerateUntil {
            context: Prompt::Chat(vec![Message::user(text)]),
            until: until.iter().map(|&text| text.to_owned()).collect(),
            max_gen_toks: 7,
            temperature: 0.0,
            sample: 2,
        }
    }

    fn ask(
        model: &mut EndpointModel,
        requests: &[Request],
    ) -> (Vec<Option<Response>>, Result<(), eval::Error>) {
        let mut responses = vec![None; requests.len()];
        let outcome = model.respond(requests, &vec![false; requests.len()], &mut |batch| {
            for (index, response) in batch {
                responses[index] = Some(response);
            }
            Ok(())
        });
        (responses, outcome)
    }

    /// The answer to one question.
    fn one(model: &mut EndpointModel) -> Response {
        let (mut responses, outcome) = ask(model, &[question("Hi", &[])]);
        outcome.unwrap();
        responses.remove(0).unwrap()
    }

    fn problem(response: &Response) -> &str {
        match response {
            Response::Failed { problem } => problem,
            other => panic!("wanted a failure, got {other:?}"),
        }
    }

    fn reply(text: &str, ended: bool) -> Response {
        Response::Reply { text: text.to_owned(), tokens: 5, ended, cut: 0 }
    }

    #[test]
    fn replies_are_asked_with_the_settings_of_the_request() {
        let server = Server::new(|connection, _, _| say(connection, "Hello", "stop"));
        let mut model = server.model();
        assert_eq!(one(&mut model), reply("Hello", true));
        let body = server.bodies.lock().unwrap()[0].clone();
        assert_eq!((&body["model"], &body["messages"][0]["content"]), (&json!("m"), &json!("Hi")));
        assert_eq!((&body["temperature"], &body["top_p"]), (&json!(0.0), &json!(1.0)));
        assert_eq!((&body["max_tokens"], &body["seed"]), (&json!(7), &json!(2)));

        assert_eq!(model.name(), server.address);
        let other = server.address.replace("#m", "#other");
        let other = EndpointModel::connect(&other, quick()).unwrap();
        assert!(other.digest() != model.digest() && other.digest().ends_with(ENDPOINT_DIGEST));
        assert_eq!(server.model().digest(), model.digest());
    }

    #[test]
    fn a_reply_ends_at_its_limit_or_before_a_stop_text() {
        let server = Server::new(|connection, _, _| say(connection, "中 a\nQ: b", "length"));
        let mut model = server.model();
        let (responses, _) = ask(&mut model, &[question("x", &[]), question("x", &["", "\nQ"])]);
        assert_eq!(responses[0], Some(reply("中 a\nQ: b", false)));
        // The reply was cut before the server's count came.
        assert!(matches!(&responses[1], Some(Response::Reply { text, ended: true, .. }) if text == "中 a"));
    }

    #[test]
    fn a_stop_text_may_come_in_pieces() {
        let server = Server::new(|connection, _, _| {
            let mut body = String::new();
            for piece in ["中", "E", "N", "D", "more"] {
                let _ = write!(body, "data: {}\n\n", json!({"choices": [{"delta": {"content": piece}}]}));
            }
            send(connection, "200 OK", "", &body);
        });
        let (responses, _) = ask(&mut server.model(), &[question("x", &["END"])]);
        assert!(matches!(&responses[0], Some(Response::Reply { text, ended: true, .. }) if text == "中"));
    }

    #[test]
    fn what_cannot_be_read_fails_and_is_not_asked_again() {
        for body in [
            "<html>",
            "{\"choices\": 7",
            "",
            "{\"error\": \"no memory\"}",
            "{\"choices\":[]}",
            "{\"choices\":[{}]}",
            "{}",
            "data: {\"choices\":[]}\n\ndata: [DONE]\n\n",
            "data: [DONE]\n\n",
            "{\"choices\":[{\"message\":{}}]}",
            "{\"choices\":[{\"message\":{\"content\":null},\"finish_reason\":\"stop\"}]}",
            "{\"choices\":[{\"message\":{\"content\":\"\"}}],\"usage\":{\"completion_tokens\":0}}",
        ] {
            let server = Server::new(move |connection, _, _| send(connection, "200 OK", "", body));
            let mut model = server.model();
            let response = one(&mut model);
            assert!(problem(&response).starts_with(&server.address), "{response:?}");
            assert_eq!(server.asked(), 1, "{body}");
        }
        // A model that draws its end first has answered, and the server counts that token.
        let server = Server::new(|connection, _, _| say(connection, "", "stop"));
        assert_eq!(one(&mut server.model()), reply("", true));
        let server = Server::new(|connection, _, _| say(connection, "", "content_filter"));
        assert!(problem(&one(&mut server.model())).contains("content_filter"));
    }

    #[test]
    fn a_busy_server_is_asked_again() {
        for status in ["429 Too Many Requests", "503 Busy"] {
            let server = Server::new(move |connection, _, number| match number {
                0 => send(connection, status, "Retry-After: 1\r\n", "{}"),
                1 => send(connection, status, "", "{}"),
                _ => say(connection, "Hello", "stop"),
            });
            let started = Instant::now();
            assert_eq!(one(&mut server.model()), reply("Hello", true));
            assert_eq!(server.asked(), 3);
            assert!(started.elapsed() >= Duration::from_secs(1), "{:?}", started.elapsed());
        }
    }

    #[test]
    fn a_server_that_stays_busy_fails_with_its_name() {
        let server = Server::new(|connection, _, _| send(connection, "429 Slow", "Retry-After: 0\r\n", "{}"));
        let response = one(&mut server.model());
        let text = problem(&response);
        assert!(text.starts_with(&format!("{} (asked 3 times): ", server.address)), "{text}");
        assert!(text.contains("429") && text.contains("try again in 0 s"), "{text}");
        assert_eq!(server.asked(), 3);

        // A wait beyond the limit is not waited for.
        let server =
            Server::new(|connection, _, _| send(connection, "429 Slow", "Retry-After: 3600\r\n", "{}"));
        let response = one(&mut server.model());
        assert!(problem(&response).contains("try again in 3600 s"), "{response:?}");
        assert_eq!(server.asked(), 1);
    }

    #[test]
    fn a_reply_that_takes_too_long_fails() {
        let server = Server::new(|connection, _, _| {
            let _ = connection.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
            // Until the client closes the connection.
            while connection.write_all(b": wait\n\n").is_ok() {
                thread::sleep(Duration::from_millis(20));
            }
        });
        let options = EndpointOptions { timeout: Duration::from_millis(300), ..quick() };
        let mut model = EndpointModel::connect(&server.address, options).unwrap();
        let response = one(&mut model);
        assert!(problem(&response).contains("no whole reply within"), "{response:?}");
        assert_eq!(server.asked(), 1);
    }

    #[test]
    fn a_wrong_key_or_model_ends_the_evaluation() {
        for (status, words) in
            [("401 Unauthorized", "COLOSSAL_API_KEY"), ("404 Not Found", "name of the model")]
        {
            let server = Server::new(move |connection, _, _| send(connection, status, "", "{}"));
            let mut model = server.model();
            let requests: Vec<Request> = (0..50).map(|number| question(&number.to_string(), &[])).collect();
            let (responses, outcome) = ask(&mut model, &requests);
            let Err(eval::Error::Model { name, source }) = outcome else { panic!("wanted an error") };
            assert_eq!(name, server.address);
            assert!(source.to_string().contains(words), "{source}");
            assert!(source.downcast_ref::<RemoteError>().is_some_and(RemoteError::is_usage));
            assert!(responses.iter().all(Option::is_none) && server.asked() < 50);
        }
    }

    #[test]
    fn many_failures_in_a_row_end_the_evaluation() {
        let server = Server::new(|connection, body, _| match body["messages"][0]["content"].as_str() {
            Some("15") => say(connection, "Hello", "stop"),
            Some("50") => send(connection, "400 Bad Request", "", "too long"),
            _ => send(connection, "500 Error", "", "out of memory"),
        });
        let mut model = server.model();
        (model.options.concurrency, model.options.attempts) = (NonZeroUsize::MIN, 1);
        let requests: Vec<Request> = (0..60).map(|number| question(&number.to_string(), &[])).collect();
        let (responses, outcome) = ask(&mut model, &requests);
        let Err(eval::Error::Model { source, .. }) = outcome else { panic!("wanted an error") };
        assert!(source.to_string().contains("20 requests in a row failed"), "{source}");
        assert!(source.to_string().contains("out of memory"), "{source}");
        // 15 failures, an answer, 19 failures.
        assert_eq!(responses.iter().flatten().count(), 35);
        assert_eq!(responses[15], Some(reply("Hello", true)));

        // Requests that the server refuses, one by one, end nothing.
        let (responses, outcome) = ask(&mut model, &vec![question("50", &[]); 30]);
        outcome.unwrap();
        assert!(responses.iter().flatten().all(|response| problem(response).contains("too long")));
    }

    #[test]
    fn what_an_endpoint_does_not_give_fails_without_a_request() {
        let server = Server::new(|connection, _, _| say(connection, "Hello", "stop"));
        let context = Prompt::Text("Q:".to_owned());
        let requests = [
            Request::Loglikelihood { context: context.clone(), continuation: " a".to_owned() },
            Request::LoglikelihoodRolling { text: "a".to_owned() },
            Request::GenerateUntil { context, until: vec![], max_gen_toks: 1, temperature: 0.0, sample: 0 },
        ];
        let (responses, outcome) = ask(&mut server.model(), &requests);
        outcome.unwrap();
        for (response, words) in
            responses.iter().zip(["log-probabilities", "log-probabilities", "--apply-chat"])
        {
            let response = response.as_ref().unwrap();
            assert!(problem(response).starts_with(&server.address) && problem(response).contains(words));
        }
        assert_eq!(server.asked(), 0);
    }

    #[test]
    fn several_requests_are_under_way_and_answered_ones_are_left_out() {
        let together = Barrier::new(4);
        let server = Server::new(move |connection, body, _| {
            together.wait();
            say(connection, body["messages"][0]["content"].as_str().unwrap(), "stop");
        });
        let requests: Vec<Request> = (0..10).map(|number| question(&number.to_string(), &[])).collect();
        let answered: Vec<bool> = (0..10).map(|number| number == 1 || number == 8).collect();
        let mut responses = vec![None; 10];
        let outcome = server.model().respond(&requests, &answered, &mut |batch| {
            for (index, response) in batch {
                responses[index] = Some(response);
            }
            Ok(())
        });
        outcome.unwrap();
        for (index, response) in responses.iter().enumerate() {
            let wanted = (!answered[index]).then(|| reply(&index.to_string(), true));
            assert_eq!(*response, wanted);
        }
        assert_eq!(server.asked(), 8);
    }

    #[test]
    fn an_error_of_the_caller_stops_all_threads() {
        let server = Server::new(|connection, _, _| send(connection, "503 Busy", "Retry-After: 2\r\n", "{}"));
        let mut requests = vec![question("slow", &[]); 3];
        requests.insert(0, Request::LoglikelihoodRolling { text: "a".to_owned() });
        let started = Instant::now();
        let outcome = server
            .model()
            .respond(&requests, &[false; 4], &mut |_| Err(eval::Error::WrongResponse { wanted: "nothing" }));
        assert!(matches!(outcome, Err(eval::Error::WrongResponse { .. })));
        assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    }
}
