//! The client against servers that refuse, hang, and answer what they should not.

use std::io::Write;
use std::net::TcpListener;

use serde_json::json;

use super::*;
use crate::test_server::{Received, receive, send, server};

fn client(config: &HttpConfig) -> Client {
    Client::with_variables(config, 1000, &|_| None).unwrap()
}

fn ask(config: &HttpConfig) -> Result<Map<String, Value>, ServerError> {
    client(config).ask(&json!({"what": "a"}))
}

/// The outcome of a request to a server with this response, and how often it was sent.
fn answered(
    status: &'static str,
    headers: &'static str,
    body: impl Into<String>,
) -> (Result<Map<String, Value>, ServerError>, usize) {
    let body = body.into();
    let (config, requests) =
        server(move |_, _: &Received, connection| send(connection, status, headers, &body));
    let outcome = ask(&config);
    let sent = requests.lock().unwrap().len();
    (outcome, sent)
}

#[test]
fn a_request_is_a_post_of_json_with_the_headers_of_the_user() {
    let (mut config, requests) = server(|_, _, connection| send(connection, "200 OK", "", r#"{"n": 1}"#));
    config.headers = [("X-Kind".to_owned(), "${KIND}".to_owned())].into();
    let client = Client::with_variables(&config, 1000, &|_| Some("math".to_owned())).unwrap();
    assert_eq!(Value::Object(client.ask(&json!({"what": "a"})).unwrap()), json!({"n": 1}));
    assert!(client.clone().ask(&json!({"what": "b"})).is_ok());

    let requests = requests.lock().unwrap();
    let bodies: Vec<Value> = requests.iter().map(|request| request.body.clone()).collect();
    assert_eq!(bodies, [json!({"id": 1, "what": "a"}), json!({"id": 2, "what": "b"})]);
    let head = requests[0].head.to_lowercase();
    assert!(head.starts_with("post /score http/1.1\r\n"), "{head}");
    for header in ["content-type: application/json\r\n", "x-kind: math\r\n", "user-agent: colossal-chat/"] {
        assert!(head.contains(header), "{header}: {head}");
    }
}

#[test]
fn a_request_that_was_not_taken_is_sent_again() {
    for refusal in ["429 Too Many Requests", "503 Service Unavailable"] {
        let (config, requests) = server(move |number, _, connection| match number {
            0 => send(connection, refusal, "Retry-After: 0\r\n", "busy"),
            1 => send(connection, refusal, "", ""),
            _ => send(connection, "200 OK", "", r#"{"n": 3}"#),
        });
        assert_eq!(ask(&config).unwrap()["n"], 3);
        let requests = requests.lock().unwrap();
        assert_eq!(requests.len(), 3);
        assert!(requests.iter().all(|request| request.body["id"] == 1));
    }
}

#[test]
fn a_server_that_takes_nothing_is_asked_only_so_often() {
    let (outcome, sent) = answered("503 Service Unavailable", "Retry-After: 0\r\n", "busy\u{1b}[2J");
    let error = outcome.unwrap_err();
    assert!(
        matches!(&error, ServerError::Status { status: 503, body, .. } if body == "busy␛[2J"),
        "{error:?}"
    );
    assert_eq!(sent, 3);
    assert!(error.to_string().contains("; it was sent 3 times: lower `concurrency`, or raise"), "{error}");
    // A pause that is longer than the time limit (20 s) is not waited for, and not cut short.
    let (outcome, sent) = answered("429 Too Many Requests", "Retry-After: 3600\r\n", "");
    let error = outcome.unwrap_err();
    let told = "status 429: \"\"; it was sent 1 time, and not again, because the pause before that, 3600 s, is \
                longer than `timeout`, 20 s";
    assert!(error.to_string().ends_with(told), "{error}");
    assert_eq!(error.of_score().to_string(), error.to_string());
    assert!(error.wrong().fix.contains("start the run when"), "{error}");
    assert_eq!(sent, 1);
}

#[test]
fn a_request_that_may_have_been_acted_on_is_not_sent_again() {
    for status in [
        "500 Internal Server Error",
        "502 Bad Gateway",
        "504 Gateway Timeout",
        "400 Bad Request",
        "401 Unauthorized",
        "404 Not Found",
        "201 Created",
        "204 No Content",
    ] {
        let (outcome, sent) = answered(status, "Retry-After: 0\r\n", "no key");
        let code: u16 = status[..3].parse().unwrap();
        assert!(matches!(outcome, Err(ServerError::Status { status, .. }) if status == code), "{status}");
        assert_eq!(sent, 1, "{status}");
    }
    // The connection ends without a response, in the middle of the head, and in the middle of the body.
    for beginning in
        ["", "HTTP/1.1 200 OK\r\nContent-", "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"n\":"]
    {
        let (config, requests) = server(move |_, _, connection| {
            let _ = connection.write_all(beginning.as_bytes());
        });
        let error = ask(&config).unwrap_err();
        assert!(matches!(error, ServerError::Ended { .. } | ServerError::Unreachable { .. }), "{error:?}");
        assert_eq!(requests.lock().unwrap().len(), 1, "{beginning}");
    }
}

#[test]
fn a_slow_server_costs_the_request() {
    for beginning in ["", "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{\"n\""] {
        let (mut config, requests) = server(move |_, _, connection| {
            let _ = connection.write_all(beginning.as_bytes());
            thread::sleep(Duration::from_secs(30));
        });
        config.timeout = 0.5;
        let error = ask(&config).unwrap_err();
        assert!(matches!(error, ServerError::Silent { seconds: 0.5, .. }), "{error:?}");
        assert_eq!(requests.lock().unwrap().len(), 1);
    }
}

#[test]
fn redirects_are_not_followed() {
    let (elsewhere, reached) = server(|_, _, connection| send(connection, "200 OK", "", "{}"));
    for status in [
        "301 Moved Permanently",
        "302 Found",
        "303 See Other",
        "307 Temporary Redirect",
        "308 Permanent Redirect",
    ] {
        let location = format!("Location: {}\r\n", elsewhere.url);
        let (config, requests) = server(move |_, _, connection| send(connection, status, &location, ""));
        let error = ask(&config).unwrap_err();
        assert!(error.to_string().contains(&elsewhere.url), "{error}");
        assert_eq!(requests.lock().unwrap().len(), 1);
    }
    assert!(reached.lock().unwrap().is_empty());
}

#[test]
fn what_is_no_answer_costs_the_request() {
    let latin = String::from("caf\u{e9}");
    for body in [
        "",
        "ok",
        "[1]",
        "7",
        r#"{"scores": [NaN]}"#,
        r#"{"scores": [1e999]}"#,
        r#"{"scores": [1]"#,
        r#"{"id": 2}"#,
        r#"{"id": "1"}"#,
        "<html>",
        &latin,
    ] {
        let (outcome, sent) = answered("200 OK", "", body);
        let error = outcome.unwrap_err();
        assert!(matches!(error, ServerError::NotAnAnswer { .. }), "{body}: {error:?}");
        assert_eq!(sent, 1);
    }
    let (outcome, _) = answered("200 OK", "", r#"{"error": "no key"}"#);
    assert!(matches!(outcome, Err(ServerError::Reported { message, .. }) if message == "no key"));
    assert!(answered("200 OK", "", r#"{"id": 1, "error": null}"#).0.is_ok());
    assert!(answered("200 OK", "", r#"{"id": null}"#).0.is_ok());
}

#[test]
fn the_length_of_an_answer_is_limited() {
    // {"x":""} has 8 bytes.
    let filled = |fill: usize| answered("200 OK", "", format!(r#"{{"x":"{}"}}"#, "y".repeat(fill))).0;
    assert!(filled(1000 - 8).is_ok());
    assert!(matches!(filled(1001 - 8), Err(ServerError::TooLong { limit: 1000, .. })));
    let (config, _) = server(|_, _, connection| {
        let _ = connection.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
        while connection.write_all(&[b'x'; 4096]).is_ok() {}
    });
    assert!(matches!(ask(&config), Err(ServerError::TooLong { limit: 1000, .. })));
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let url = "http://127.0.0.1:1/score?key=hunter2".to_owned();
    let client = client(&HttpConfig { url, attempts: 2, ..HttpConfig::default() });
    let wrong = client.ask(&json!({})).unwrap_err().wrong();
    assert_eq!(wrong.key, "url");
    assert!(wrong.problem.contains("http://127.0.0.1:1/score: nothing listens there"), "{wrong:?}");
    assert!(wrong.fix.contains("start the server"));
    assert!(!format!("{wrong:?} {client:?}").contains("hunter2"));
}

#[test]
fn a_server_that_comes_up_in_the_meantime_gets_the_request() {
    // A port that was free a moment ago. If another process takes it, there is nothing to test.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("http://127.0.0.1:{port}/score");
    // Eight attempts take 25 s.
    let client = client(&HttpConfig { url, attempts: 8, ..HttpConfig::default() });
    let listening = thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        let mut connection = TcpListener::bind(("127.0.0.1", port)).ok()?.accept().ok()?.0;
        let request = receive(&connection)?;
        send(&mut connection, "200 OK", "", r#"{"n": 1}"#);
        Some(request)
    });
    let outcome = client.ask(&json!({"what": "a"}));
    if let Some(request) = listening.join().unwrap() {
        assert_eq!((&request.body["what"], &outcome.unwrap()["n"]), (&json!("a"), &json!(1)));
    }
}

#[test]
fn a_server_that_repeats_a_key_shows_it_to_nobody() {
    let (mut config, _) = server(|_, request, connection| {
        send(
            connection,
            "401 Unauthorized",
            "",
            &format!("no entry with {}", request.head.replace("\r\n", " ")),
        );
    });
    config.headers = [("Authorization".to_owned(), "Bearer ${TOKEN}".to_owned())].into();
    let client = Client::with_variables(&config, 1000, &|_| Some("hunter2".to_owned())).unwrap();
    let error = client.ask(&json!({})).unwrap_err();
    assert!(!format!("{error:?} {error} {client:?}").contains("hunter2"), "{error:?}");
    assert!(error.wrong().fix.contains("headers"));
}

#[test]
fn settings_that_cannot_work_are_refused_by_name() {
    let config = HttpConfig { url: "http://127.0.0.1:1".to_owned(), ..HttpConfig::default() };
    assert_eq!(check(&config), Ok(()));
    let key = |config: HttpConfig| check(&config).unwrap_err().key;
    assert_eq!(key(HttpConfig { attempts: 0, ..config.clone() }), "attempts");
    assert_eq!(key(HttpConfig { concurrency: 257, ..config.clone() }), "concurrency");
    assert_eq!(key(HttpConfig { batch_size: 0, ..config.clone() }), "batch_size");
    assert_eq!(key(HttpConfig { timeout: 0.0, ..config.clone() }), "timeout");
    assert_eq!(key(HttpConfig { url: String::new(), ..config }), "url");
}

/// The standard library says this of a name, and has no kind of error for it.
#[test]
fn a_name_without_an_address_was_asked_nothing() {
    let client = client(&HttpConfig { url: "http://judge.example:1".to_owned(), ..HttpConfig::default() });
    let text = "failed to lookup address information: Name or service not known";
    for (error, is_untouched) in [
        (ureq::Error::HostNotFound, true),
        (ureq::Error::Io(io::Error::other(text)), true),
        (ureq::Error::Io(io::Error::other("broken pipe")), false),
    ] {
        let failed = client.no_response(&error);
        assert_eq!(failed.is_untouched, is_untouched, "{error}");
        let message = failed.error.to_string();
        assert_eq!(message.contains("the name judge.example has no address"), is_untouched, "{message}");
    }
}
