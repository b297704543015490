//! `serve`: a real server on loopback, asked over HTTP.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Scratch, signal};
use crate::inference::world;

/// A running server.
pub(crate) struct Server {
    child: Child,
    port: u16,
    /// Gives what the server wrote to stderr, once it has ended.
    errors: Option<JoinHandle<String>>,
}

/// An answer.
pub(crate) struct Answer {
    pub(crate) status: u16,
    head: String,
    body: String,
}

impl Server {
    /// Starts a server with the flags, and waits until its models are loaded.
    pub(crate) fn start(scratch: &Scratch, flags: &[&str]) -> Self {
        let words = [&["serve", "--port", "0"], flags].concat();
        let mut child = scratch.command(&words).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        // Notices about the models come first.
        while !line.contains("http://127.0.0.1:") {
            assert!(errors.read_line(&mut line).unwrap() > 0, "{line}");
        }
        let address = line.split("http://127.0.0.1:").nth(1).unwrap();
        let port = address.split('/').next().unwrap().parse().unwrap();
        // Nobody must wait for this server to be read.
        let errors = Some(thread::spawn(move || {
            errors.read_to_string(&mut line).unwrap();
            line
        }));
        let server = Self { child, port, errors };
        let deadline = Instant::now() + Duration::from_secs(60);
        while server.get("/health", "").status != 200 {
            assert!(Instant::now() < deadline, "the models are not loaded after a minute");
            thread::sleep(Duration::from_millis(50));
        }
        server
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// Sends a request with more headers, each with its end of line, and reads the whole answer.
    pub(crate) fn ask(&self, method: &str, path: &str, headers: &str, body: &str) -> Answer {
        let mut stream = self.send(method, path, headers, body);
        let mut bytes = Vec::new();
        // A server that refuses a body may close the connection before all of it is written. What it has
        // answered is read all the same.
        let _ = stream.read_to_end(&mut bytes);
        let text = String::from_utf8(bytes).unwrap();
        let (head, rest) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{text}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let body = if head.to_lowercase().contains("transfer-encoding: chunked") {
            unchunked(rest)
        } else {
            rest.to_owned()
        };
        Answer { status, head: head.to_lowercase(), body }
    }

    fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> TcpStream {
        let mut stream = self.connect();
        let host = if headers.contains("Host:") {
            String::new()
        } else {
            format!("Host: 127.0.0.1:{}\r\n", self.port)
        };
        let length = body.len();
        let text = format!(
            "{method} {path} HTTP/1.1\r\n{host}Connection: close\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
        );
        let _ = stream.write_all(text.as_bytes());
        stream
    }

    pub(crate) fn get(&self, path: &str, headers: &str) -> Answer {
        self.ask("GET", path, headers, "")
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        self.ask("POST", path, "Content-Type: application/json\r\n", &body.to_string())
    }

    /// The value of a metric without labels of its own.
    fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics", "").body;
        let line = text.lines().find(|line| line.starts_with(&format!("colossal_chat_{name}")));
        line.map_or(0.0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
    }

    /// Waits until a metric has a value.
    fn wait_for(&self, name: &str, value: f64) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while self.metric(name) != value {
            assert!(Instant::now() < deadline, "{name} is {}, not {value}", self.metric(name));
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("{}\n{}", self.head, self.body))
    }

    /// The answer is an error with this status, whose message has these words.
    pub(crate) fn fails(&self, status: u16, words: &[&str]) {
        assert_eq!(self.status, status, "{}", self.body);
        let message = self.json()["error"]["message"].as_str().unwrap().to_owned();
        for word in words {
            assert!(message.contains(word), "{message} has no `{word}`");
        }
    }

    /// The data of server-sent events.
    fn events(&self) -> Vec<&str> {
        self.body.lines().filter_map(|line| line.strip_prefix("data: ")).collect()
    }
}

/// The text of chunks.
fn unchunked(mut rest: &str) -> String {
    let mut text = String::new();
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        text.push_str(&after[..size]);
        rest = &after[size + 2..];
        if size == 0 {
            break;
        }
    }
    text
}

fn ask() -> Value {
    json!({
        "model": "model", "messages": [{"role": "user", "content": "3 + 4"}], "max_tokens": 8, "temperature": 0,
        "ignore_eos": true,
    })
}

fn with(mut body: Value, fields: &Value) -> Value {
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

#[test]
fn answers_are_those_of_generate_whole_and_streamed() {
    let server = answers_are_those_of_generate(&[]);
    assert_eq!(server.metric("spec_decode_num_draft_tokens"), 0.0);
}

#[test]
fn answers_are_the_same_when_tokens_are_guessed() {
    answers_are_those_of_generate(&["--speculative-tokens", "3"]);
    let server = answers_are_those_of_generate(&["--speculative-tokens", "3", "--draft-model", "model"]);
    // The model itself guesses right, and a step gives several tokens.
    let [guessed, accepted] =
        ["draft", "accepted"].map(|kind| server.metric(&format!("spec_decode_num_{kind}_tokens")));
    assert!(accepted > 0.0 && accepted == guessed, "{accepted} of {guessed}");
}

/// Checks the answers of a server with more flags.
fn answers_are_those_of_generate(flags: &[&str]) -> Server {
    let scratch = world();
    let server = Server::start(scratch, &[&["--model", "model", "--template", "chatml"], flags].concat());
    let line = "generate --model model --template chatml --prompt 3_+_4 --max-new-tokens 8 --temperature 0 --ignore-eos";
    let words: Vec<String> = line.split(' ').map(|word| word.replace('_', " ")).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let wanted = scratch.run_with(&words, "").json()["text"].as_str().unwrap().to_owned();

    let whole = server.post("/v1/chat/completions", &ask()).json();
    let choice = &whole["choices"][0];
    assert_eq!(choice["message"]["content"], wanted.as_str());
    assert_eq!(
        (&choice["finish_reason"], &whole["usage"]["completion_tokens"]),
        (&json!("length"), &json!(8))
    );

    let fields = json!({"stream": true, "stream_options": {"include_usage": true}});
    let streamed = server.post("/v1/chat/completions", &with(ask(), &fields));
    assert!(streamed.head.contains("content-type: text/event-stream"));
    let events = streamed.events();
    let (done, events) = events.split_last().unwrap();
    assert_eq!(*done, "[DONE]");
    let events: Vec<Value> = events.iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    let text: String =
        events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, wanted);
    assert_eq!(events.last().unwrap()["usage"], whole["usage"]);

    // A stop string ends the reply before it.
    let stop: String = wanted.chars().skip(2).take(2).collect();
    let stopped = server.post("/v1/chat/completions", &with(ask(), &json!({"stop": stop}))).json();
    let choice = &stopped["choices"][0];
    assert_eq!(choice["message"]["content"], wanted.split(&stop).next().unwrap());
    assert_eq!(choice["finish_reason"], "stop");

    // Four samples with a seed are the same four again, and a prompt is computed once.
    let four = with(ask(), &json!({"n": 4, "seed": 7, "temperature": 1}));
    let texts = || {
        let answer = server.post("/v1/chat/completions", &four).json();
        (0..4).map(|index| answer["choices"][index]["message"]["content"].clone()).collect::<Vec<_>>()
    };
    let first = texts();
    assert_eq!(first, texts());
    assert!(first.iter().any(|text| *text != first[0]), "{first:?}");
    server.wait_for("num_requests_running", 0.0);
    assert_eq!(server.metric("kv_cache_used_tokens"), 0.0);
    server
}

#[test]
fn echo_gives_the_log_probabilities_of_the_command_logprobs() {
    let scratch = world();
    let server = Server::start(scratch, &["--model", "named=model"]);
    let tokens =
        server.post("/tokenize", &json!({"model": "named", "prompt": "one two three"})).json()["tokens"]
            .clone();
    scratch.write("echo.jsonl", &json!({"ids": tokens}).to_string());
    let wanted = scratch.run("logprobs --model model --input echo.jsonl").json()["logprobs"].clone();

    let body = json!({"model": "named", "prompt": tokens, "max_tokens": 0, "echo": true, "logprobs": 2});
    let answer = server.post("/v1/completions", &body).json();
    let logprobs = &answer["choices"][0]["logprobs"];
    let found = logprobs["token_logprobs"].as_array().unwrap();
    assert_eq!((found.len(), &found[0]), (tokens.as_array().unwrap().len(), &Value::Null));
    for (found, wanted) in found.iter().zip(wanted.as_array().unwrap()).skip(1) {
        assert!((found.as_f64().unwrap() - wanted.as_f64().unwrap()).abs() < 1e-5, "{found} {wanted}");
    }
    assert_eq!(logprobs["top_logprobs"][1].as_object().unwrap().len(), 2);
    let text =
        server.post("/detokenize", &json!({"model": "named", "tokens": tokens})).json()["prompt"].clone();
    assert_eq!((&answer["choices"][0]["text"], &answer["usage"]["completion_tokens"]), (&text, &json!(0)));

    // A stream has the log-probabilities of its tokens as well, and offsets that go on.
    let body = json!({"model": "named", "prompt": tokens, "max_tokens": 4, "temperature": 0, "logprobs": 2, "ignore_eos": true});
    let whole = server.post("/v1/completions", &body).json()["choices"][0]["logprobs"].clone();
    let streamed = server.post("/v1/completions", &with(body, &json!({"stream": true})));
    let parts: Vec<Value> =
        streamed.events().iter().filter_map(|event| serde_json::from_str(event).ok()).collect();
    for field in ["tokens", "token_logprobs", "text_offset"] {
        let parts = parts.iter().filter_map(|part| part["choices"][0]["logprobs"][field].as_array());
        assert_eq!(json!(parts.flatten().collect::<Vec<_>>()), whole[field], "{field}");
    }

    // Several prompts at once, each with its own answer.
    let body = json!({"model": "named", "prompt": ["one", "two"], "max_tokens": 3, "temperature": 0});
    let both = server.post("/v1/completions", &body).json();
    for (index, prompt) in ["one", "two"].into_iter().enumerate() {
        let body = json!({"model": "named", "prompt": prompt, "max_tokens": 3, "temperature": 0});
        let alone = server.post("/v1/completions", &body).json();
        assert_eq!(both["choices"][index]["text"], alone["choices"][0]["text"]);
    }
}

#[test]
fn a_reward_model_scores_as_the_command_reward_does() {
    let scratch = world();
    let server = Server::start(scratch, &["--model", "judge,model", "--template", "chatml"]);
    let messages = json!([{"role": "user", "content": "3 + 4"}, {"role": "assistant", "content": "7"}]);
    scratch.write("scored.jsonl", &json!({"messages": messages}).to_string());
    let wanted =
        scratch.run("reward --model judge --template chatml --input scored.jsonl").json()["score"].clone();
    let answer = server.post("/v1/score", &json!({"model": "judge", "messages": messages})).json();
    let difference = answer["data"][0]["score"].as_f64().unwrap() - wanted.as_f64().unwrap();
    assert!(difference.abs() < 1e-5, "{answer} {wanted}");
    server
        .post("/v1/score", &json!({"model": "model", "messages": messages}))
        .fails(400, &["gives no scores"]);
    server.post("/v1/chat/completions", &with(ask(), &json!({"model": "judge"}))).fails(400, &["/v1/score"]);

    let answer = server.post("/v1/embeddings", &json!({"model": "model", "input": ["one", "two"]})).json();
    let vector = answer["data"][1]["embedding"].as_array().unwrap();
    let length: f64 = vector.iter().map(|number| number.as_f64().unwrap().powi(2)).sum();
    assert!(vector.len() == 32 && (length - 1.0).abs() < 1e-5, "{length}");
}

#[test]
fn what_is_wrong_is_named_with_its_field_and_status() {
    let server = Server::start(world(), &["--model", "model", "--template", "chatml"]);
    let chat = |fields: &Value| server.post("/v1/chat/completions", &with(ask(), fields));
    chat(&json!({"model": "gpt-5"})).fails(404, &["gpt-5", "model"]);
    chat(&json!({"messages": []})).fails(400, &["messages"]);
    chat(&json!({"messages": [{"role": "robot", "content": "x"}]}))
        .fails(400, &["messages[0].role", "robot"]);
    chat(&json!({"temperature": "hot"})).fails(400, &["temperature"]);
    chat(&json!({"temperature": -1})).fails(400, &["temperature", "-1"]);
    chat(&json!({"n": 99})).fails(400, &["n", "99"]);
    chat(&json!({"max_tokens": "many"})).fails(400, &["max_tokens"]);
    chat(&json!({"max_tokens": 5000})).fails(400, &["5000", "96"]);
    chat(&json!({"stop": ["", "x"]})).fails(400, &["stop"]);
    chat(&json!({"logit_bias": {"99999": 5}})).fails(400, &["99999"]);
    chat(&json!({"tools": [{"type": "function"}]})).fails(400, &["tools"]);
    chat(&json!({"response_format": {"type": "json_object"}})).fails(400, &["response_format"]);
    chat(&json!({"top_logprobs": 3})).fails(400, &["top_logprobs", "logprobs"]);
    chat(&json!({"max_tokens": 0})).fails(400, &["max_tokens: 0"]);
    chat(&json!({"max_completion_tokens": 0})).fails(400, &["max_completion_tokens: 0"]);
    // Types have the names of JSON.
    chat(&json!({"max_tokens": -1})).fails(400, &["max_tokens", "a whole number, 0 or larger"]);
    chat(&json!({"stop": 3})).fails(400, &["stop", "a string, or an array of strings"]);
    chat(&json!({"messages": ["x"]})).fails(400, &["messages[0]", "an object"]);
    let complete =
        |prompt: &Value| server.post("/v1/completions", &json!({"model": "model", "prompt": prompt}));
    complete(&json!(3)).fails(400, &["prompt", "token ids"]);
    // A limit is named only to someone who set it.
    let long = "one ".repeat(200);
    let refused = chat(&json!({"messages": [{"role": "user", "content": long}], "max_tokens": null}));
    refused.fails(400, &["at most 96 with the reply: shorten the prompt"]);
    assert!(!refused.body.contains("max_tokens"), "{}", refused.body);
    let embed = |fields: &Value| {
        server.post("/v1/embeddings", &with(json!({"model": "model", "input": ["one", long]}), fields))
    };
    embed(&json!({})).fails(400, &["text 1", "at most 96: shorten it"]);
    embed(&json!({"input": "one", "dimensions": 8})).fails(400, &["dimensions"]);
    // What nobody knows is left alone, as OpenAI's clients expect.
    assert_eq!(chat(&json!({"user": "me", "future_field": 1})).status, 200);

    server
        .ask("POST", "/v1/chat/completions", "Content-Type: application/json\r\n", "{")
        .fails(400, &["EOF"]);
    server
        .ask("POST", "/v1/chat/completions", "Content-Type: text/plain\r\n", &ask().to_string())
        .fails(415, &["application/json"]);
    server.get("/v2/models", "").fails(404, &["/v2/models"]);
    server.get("/v1/completions", "").fails(405, &["method"]);
    let large = format!("{{\"model\": \"model\", \"prompt\": \"{}\"}}", "x".repeat(5 << 20));
    server
        .ask("POST", "/v1/completions", "Content-Type: application/json\r\n", &large)
        .fails(413, &["bytes"]);
    // Another host: a page of the web that points its own name here.
    server.get("/v1/models", "Host: evil.example\r\n").fails(403, &["localhost"]);
    // A page of another origin cannot make the server load weights, which takes no body.
    let reload =
        |origin: &str| server.ask("POST", "/v1/models/model/reload", &format!("Origin: {origin}\r\n"), "");
    reload("http://evil.example").fails(403, &["its own page"]);
    assert_eq!(reload(&format!("http://127.0.0.1:{}", server.port)).status, 200);

    // The description is one of version 3, and every name in it leads somewhere.
    let description = server.get("/openapi.json", "");
    assert!(description.json()["openapi"].as_str().unwrap().starts_with('3'));
    let names: Vec<&str> = description.body.split("\"$ref\":\"#").skip(1).collect();
    assert!(names.len() > 10, "{}", description.body);
    for name in names {
        let path = name.split('"').next().unwrap();
        assert!(description.json().pointer(path).is_some(), "{path} leads nowhere");
    }
}

#[test]
fn parts_of_a_character_have_their_bytes_and_its_place() {
    let server = Server::start(world(), &["--model", "model", "--template", "chatml"]);
    let text = "one 😀 two";
    let tokens =
        server.post("/tokenize", &json!({"model": "model", "prompt": text})).json()["tokens"].clone();
    let body = json!({"model": "model", "prompt": tokens, "max_tokens": 0, "echo": true, "logprobs": 0});
    let choice = server.post("/v1/completions", &body).json()["choices"][0].clone();
    let echoed: Vec<char> = choice["text"].as_str().unwrap().chars().collect();
    let logprobs = &choice["logprobs"];
    let offsets: Vec<u64> = serde_json::from_value(logprobs["text_offset"].clone()).unwrap();
    let names: Vec<String> = serde_json::from_value(logprobs["tokens"].clone()).unwrap();
    let parts: Vec<u64> = offsets
        .iter()
        .zip(&names)
        .filter(|(_, name)| name.contains('\u{fffd}'))
        .map(|(&offset, _)| offset)
        .collect();
    let place = echoed.iter().position(|&character| character == '😀').unwrap() as u64;
    assert_eq!(parts, [place; 4], "{logprobs}");
    // A token that is whole begins where its text does.
    for (offset, name) in offsets.iter().zip(&names).filter(|(_, name)| !name.contains('\u{fffd}')) {
        let found: String = echoed[*offset as usize..].iter().collect();
        assert!(found.starts_with(name.as_str()), "{name:?} is not at {offset} of {echoed:?}");
    }

    let part =
        tokens.as_array().unwrap()[offsets.iter().position(|&offset| offset == place).unwrap()].clone();
    let forced = json!({
        "max_tokens": 1, "logprobs": true, "top_logprobs": 1, "logit_bias": {part.to_string(): 100}, "ignore_eos": true
    });
    let answer = server.post("/v1/chat/completions", &with(ask(), &forced)).json();
    let token = &answer["choices"][0]["logprobs"]["content"][0];
    assert_eq!(token["bytes"], json!([0xF0]), "{answer}");
}

#[test]
fn a_cache_larger_than_the_memory_is_refused() {
    for tokens in [u64::MAX.to_string(), (1u64 << 40).to_string()] {
        let words = format!("serve --port 0 --model model --kv-cache-tokens {tokens}");
        world().run(&words).fails(2, &["--kv-cache-tokens", "GiB"]);
    }
}

#[test]
fn requests_that_are_ended_are_answered() {
    let mut server = Server::start(world(), &["--model", "model", "--template", "chatml", "--drain", "0"]);
    let long = with(ask(), &json!({"max_tokens": 60, "n": 16, "ignore_eos": true})).to_string();
    let mut stream = server.send("POST", "/v1/chat/completions", "Content-Type: application/json\r\n", &long);
    while server.metric("generation_tokens_total{") == 0.0 {
        thread::sleep(Duration::from_millis(1));
    }
    signal("TERM", server.child.id());
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    // On a fast machine the replies may have ended before the signal came.
    assert!(answer.starts_with("HTTP/1.1 503") || answer.starts_with("HTTP/1.1 200"), "{answer:?}");
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
}

#[test]
fn keys_are_asked_for_and_an_open_server_needs_one() {
    let scratch = world();
    scratch.write("keys.txt", "# two\nfirst-key\nsecond-key\n");
    let server = Server::start(scratch, &["--model", "model", "--api-key-file", "keys.txt"]);
    for header in [
        "",
        "Authorization: Bearer wrong\r\n",
        "Authorization: Bearer first-ke\r\n",
        "Authorization: first-key\r\n",
    ] {
        server.get("/v1/models", header).fails(401, &["Bearer"]);
    }
    for key in ["first-key", "second-key"] {
        let answer =
            server.get("/v1/models", &format!("Authorization: Bearer {key}\r\nHost: example.org\r\n"));
        assert_eq!((answer.status, &answer.json()["data"][0]["id"]), (200, &json!("model")));
    }
    assert_eq!(server.get("/health", "").status, 200);
    scratch.run("serve --model model --host 0.0.0.0 --port 0").fails(2, &["0.0.0.0", "--api-key-file"]);
    scratch.run("serve --model model,model").fails(2, &["two models", "NAME=DIR"]);
    let template = scratch.run("serve --model model --template {{");
    assert!(template.code == 3 && template.stderr.contains("chat template"), "{template:#?}");
    scratch.run("serve --model model --device cuda:99").fails(4, &["cuda:99"]);
    scratch.write("empty.txt", "# none\n");
    scratch.run("serve --model model --api-key-file empty.txt").fails(2, &["empty.txt", "no key"]);
    scratch.run("serve --model nowhere-at-all").fails(2, &["nowhere-at-all"]);
    scratch.run("serve --model tokenizer").fails(3, &["tokenizer/config.json"]);
}

#[test]
fn clients_that_leave_cost_nothing() {
    let server = Server::start(
        world(),
        &["--model", "model", "--template", "chatml", "--max-requests", "3", "--max-num-seqs", "1"],
    );
    let long = with(ask(), &json!({"max_tokens": 60, "stream": true, "temperature": 1})).to_string();
    let json_header = "Content-Type: application/json\r\n";
    let mut open: Vec<TcpStream> =
        (0..3).map(|_| server.send("POST", "/v1/chat/completions", json_header, &long)).collect();
    // Each has its first bytes, so each is under way or waits.
    for stream in &mut open {
        stream.read_exact(&mut [0; 16]).unwrap();
    }
    for stream in open {
        stream.shutdown(Shutdown::Both).unwrap();
    }
    // Each of them gives its place back, although none has ended.
    let deadline = Instant::now() + Duration::from_secs(30);
    while server.post("/v1/chat/completions", &ask()).status != 200 {
        assert!(Instant::now() < deadline, "the places of clients that left are taken");
        thread::sleep(Duration::from_millis(20));
    }
    server.wait_for("num_requests_running", 0.0);
    server.wait_for("num_requests_waiting", 0.0);
    server.wait_for("kv_cache_used_tokens", 0.0);
}

#[test]
fn more_requests_than_there_are_places_are_refused() {
    let flags = ["--model", "model", "--template", "chatml", "--max-requests", "1"];
    let server = Server::start(world(), &flags);
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut refused = None;
    // Several at once meet in the one place, sooner or later.
    while refused.is_none() {
        assert!(Instant::now() < deadline, "nothing is refused");
        let body = with(ask(), &json!({"max_tokens": 60}));
        let ask = || server.post("/v1/chat/completions", &body);
        let answers: Vec<Answer> = thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(answers.iter().all(|answer| matches!(answer.status, 200 | 429)));
        assert!(answers.iter().any(|answer| answer.status == 200));
        refused = answers.into_iter().find(|answer| answer.status == 429);
    }
    let refused = refused.unwrap();
    refused.fails(429, &["limit", "1"]);
    assert!(refused.head.contains("retry-after: 1"), "{}", refused.head);
}

#[test]
fn weights_are_loaded_again_without_a_restart_and_a_signal_lets_replies_end() {
    let scratch = Scratch::new();
    let copy = |from: &str| {
        for name in crate::harness::names(&world().path(from)) {
            std::fs::create_dir_all(scratch.path("model")).unwrap();
            std::fs::copy(world().path(from).join(&name), scratch.path("model").join(&name)).unwrap();
        }
    };
    copy("model");
    let mut server = Server::start(&scratch, &["--model", "model", "--template", "chatml"]);
    let answer = || {
        let answer = server.post("/v1/chat/completions", &with(ask(), &json!({"logprobs": true}))).json();
        answer["choices"][0]["logprobs"].clone()
    };
    let before = answer();
    world().run("model init config.json --tokenizer tokenizer --seed 6 --out other-weights").succeeds();
    copy("other-weights");
    assert_eq!(answer(), before);
    assert_eq!(server.ask("POST", "/v1/models/model/reload", "", "").status, 200);
    assert_ne!(answer(), before);

    // The reply that is under way is finished, and then the server ends without a fault.
    let long = with(ask(), &json!({"max_tokens": 60, "stream": true})).to_string();
    let mut stream = server.send("POST", "/v1/chat/completions", "Content-Type: application/json\r\n", &long);
    stream.read_exact(&mut [0; 16]).unwrap();
    signal("TERM", server.child.id());
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("[DONE]"), "{rest}");
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
    let said = server.errors.take().unwrap().join().unwrap();
    assert!(said.starts_with("the model model is being loaded; "), "{said}");
    assert_eq!(said.matches("the weights of model are read\n").count(), 2, "{said}");
    let end = "waits at most 30 seconds for those under way; a second signal ends them at once\nthe server has ended\n";
    assert!(said.ends_with(end), "{said}");
}

/// The script of the page runs under Node.js, with a document that the test makes.
#[test]
fn the_chat_page_keeps_what_is_typed_and_names_the_field_that_is_wrong() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut node = Command::new("node");
    node.arg(root.join("tests/chat_page.mjs")).arg(root.join("serve/src/page/chat.js"));
    let outcome = match node.output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            eprintln!("skipped: this system has no `node`, which runs the script of the chat page");
            return;
        }
        outcome => outcome.unwrap(),
    };
    assert!(outcome.status.success(), "{}", String::from_utf8_lossy(&outcome.stderr));
}

#[test]
fn a_draft_that_cannot_guess_is_refused_before_the_port_is_open() {
    let serve = |draft: &str| {
        world().run(&format!(
            "serve --model model --template chatml --port 0 --speculative-tokens 2 --draft-model {draft}"
        ))
    };
    for (draft, code, words) in [
        ("nope", 2, ["--draft-model nope: ", "there is no such folder"]),
        ("judge", 2, ["judge", "reward model"]),
    ] {
        let outcome = serve(draft);
        outcome.fails(code, &words);
        assert!(!outcome.stderr.contains("http://"), "{}", outcome.stderr);
    }
}
