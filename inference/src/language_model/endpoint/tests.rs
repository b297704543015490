//! A model behind an endpoint against servers of this process, which answer as the tests want.

use std::fmt::Write as _;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Barrier, Mutex};

use serde_json::{Value, json};

use super::*;
use crate::test_http::{Received, receive, send};

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
                let (mut connection, respond, held) = (connection.unwrap(), respond.clone(), held.clone());
                thread::spawn(move || {
                    let Some(Received { head, body }) = receive(&connection) else { return };
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

fn ask(model: &mut EndpointModel, requests: &[Request]) -> (Vec<Option<Response>>, Result<(), eval::Error>) {
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
    let server = Server::new(|connection, _, _| send(connection, "429 Slow", "Retry-After: 3600\r\n", "{}"));
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
    for (status, words) in [("401 Unauthorized", "COLOSSAL_API_KEY"), ("404 Not Found", "name of the model")]
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
    for (response, words) in responses.iter().zip(["log-probabilities", "log-probabilities", "--apply-chat"])
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
