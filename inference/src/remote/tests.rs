//! The client against servers of this process, which listen on a free loopback port.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use super::*;
use crate::test_http::{Received, receive, send};

/// A reply of two pieces.
const STREAM: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"Hel\"}}]}\n\n\
                      data: {\"choices\":[{\"delta\":{\"content\":\"lo\"}}]}\n\n\
                      data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n\
                      data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":6}}\n\n\
                      data: [DONE]\n\n";
const MODELS: &str = r#"{"data":[{"id":"m","max_model_len":512}]}"#;
const OPTIONS: RemoteOptions =
    RemoteOptions { temperature: 0.5, top_p: 0.9, top_k: 0, max_new_tokens: 7, seed: 3 };

/// Starts a server whose answers `respond` writes. Returns its address, and what it receives.
fn server(respond: impl Fn(&Received, &mut TcpStream) + Send + 'static) -> (String, Receiver<Received>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (sender, requests) = channel();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.unwrap();
            let Some(request) = receive(&connection) else { continue };
            respond(&request, &mut connection);
            let _ = sender.send(request);
        }
    });
    (address, requests)
}

/// A server that lists one model and answers each request for a reply with `respond`.
fn chat_server(respond: impl Fn(&Received, &mut TcpStream) + Send + 'static) -> (String, Receiver<Received>) {
    server(move |request, connection| {
        if request.head.starts_with("GET /v1/models ") {
            send(connection, "200 OK", "", MODELS);
        } else {
            respond(request, connection);
        }
    })
}

fn no_variables(_: &str) -> Option<String> {
    None
}

fn model(address: &str) -> RemoteModel {
    RemoteModel::find(address, KeyChoice::default(), no_variables, Duration::from_secs(20)).unwrap()
}

/// A reply with its text.
#[derive(Debug)]
struct Heard {
    text: String,
    reply: RemoteReply,
}

/// Asks for a reply and takes all of it.
fn ask(model: &RemoteModel) -> Result<Heard, RemoteError> {
    let mut text = String::new();
    let reply = model.chat(&[Message::user("Hi")], &OPTIONS, &mut |piece| {
        text.push_str(piece);
        ControlFlow::Continue(())
    });
    reply.map(|reply| Heard { text, reply })
}

/// The reply to a response with this body.
fn answered(body: &'static str) -> Result<Heard, RemoteError> {
    let (address, _) = chat_server(move |_, connection| send(connection, "200 OK", "", body));
    ask(&model(&address))
}

#[test]
fn a_reply_is_streamed_and_counted() {
    let (address, requests) = chat_server(|_, connection| {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
        connection.write_all(head.as_bytes()).unwrap();
        for bytes in STREAM.as_bytes().chunks(7) {
            write!(connection, "{:x}\r\n", bytes.len()).unwrap();
            connection.write_all(&[bytes, b"\r\n"].concat()).unwrap();
        }
        connection.write_all(b"0\r\n\r\n").unwrap();
    });
    let model = model(&address);
    assert_eq!(model.name(), "m");

    let mut pieces = Vec::new();
    let mut options = OPTIONS;
    let reply = model.chat(&[Message::system("Be brief."), Message::user("Hi")], &options, &mut |piece| {
        pieces.push(piece.to_owned());
        ControlFlow::Continue(())
    });
    let reply = reply.unwrap();
    pieces.retain(|piece| !piece.is_empty());
    assert_eq!((pieces.concat(), pieces.len()), ("Hello".to_owned(), 2));
    assert_eq!((reply.finish_reason, reply.context), (FinishReason::Stop, Some(512)));
    assert_eq!((reply.prompt_tokens, reply.new_tokens), (Some(5), 6));
    assert!(reply.problem.is_none() && reply.notices.is_empty());

    let listing = requests.recv().unwrap();
    assert!(!listing.head.to_lowercase().contains("authorization"), "{}", listing.head);
    let request = requests.recv().unwrap();
    assert!(request.head.starts_with("POST /v1/chat/completions HTTP/1.1\r\n"), "{}", request.head);
    let expected = serde_json::json!({
        "model": "m",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        "stream": true, "stream_options": {"include_usage": true},
        "max_tokens": 7, "temperature": 0.5, "top_p": 0.9, "seed": 3,
    });
    assert_eq!(request.body, expected);

    options.top_k = 4;
    model.chat(&[Message::user("Hi")], &options, &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(requests.recv().unwrap().body["top_k"], 4);
}

#[test]
fn the_model_is_the_only_one_or_the_named_one() {
    let listing = |body: &'static str| server(move |_, connection| send(connection, "200 OK", "", body)).0;
    let find = |address: &str| {
        RemoteModel::find(address, KeyChoice::default(), no_variables, Duration::from_secs(20))
    };
    let several = listing(r#"{"data":[{"id":"a"},{"id":"b\u001b[2J","context_length":9}]}"#);
    let text = find(&several).unwrap_err().to_string();
    assert!(text.contains("offers 2 models, a, b␛[2J: choose one with --model"), "{text}");
    assert!(find(&listing(r#"{"data":[]}"#)).unwrap_err().to_string().contains("offers no model"));
    assert!(find(&several).unwrap_err().is_usage());

    let named = find(&format!("{several}#b\u{1b}[2J")).unwrap();
    assert_eq!(named.context(), Some(9));
    // A name that is not listed may still be an alias.
    assert_eq!(find(&format!("{several}/v1#c")).unwrap().name(), "c");
    assert!(matches!(find(&listing("[]")), Err(RemoteError::Malformed(_))));
    assert!(matches!(find(&listing("hello")), Err(RemoteError::NotAReply(_))));
}

#[test]
fn a_refusal_tells_the_status_the_message_and_the_fix() {
    let refused = |status: &'static str, headers: &'static str, body: &'static str| {
        let (address, _) = chat_server(move |_, connection| send(connection, status, headers, body));
        let error = ask(&model(&address)).unwrap_err();
        (error.to_string(), error.is_usage())
    };
    let cases = [
        (
            "401 Unauthorized",
            "",
            r#"{"error":{"message":"no key"}}"#,
            "401: no key; set COLOSSAL_API_KEY",
            true,
        ),
        ("403 Forbidden", "", "", "403: Forbidden; set COLOSSAL_API_KEY", true),
        (
            "404 Not Found",
            "",
            r#"{"detail":"Not Found"}"#,
            "404: Not Found; check the path of the address",
            true,
        ),
        ("429 Too Many Requests", "Retry-After: 17\r\n", "{}", "429: {}; try again in 17 s", false),
        (
            "429 Slow",
            "Retry-After: Fri, 1 Jan\r\n",
            "",
            "429: Too Many Requests; try again after Fri, 1 Jan",
            false,
        ),
        ("400 Bad Request", "", r#"{"message":"too long"}"#, "400: too long", false),
        (
            "503 Down",
            "",
            "<html>proxy</html>",
            "503: Service Unavailable; the log of the server says more",
            false,
        ),
        ("500 Error", "", "out\x1b]52;c;x\x07\nof memory", "500: out␛]52;c;x␇↵of memory; the log", false),
    ];
    for (status, headers, body, expected, usage) in cases {
        let (text, is_usage) = refused(status, headers, body);
        assert!(text.contains(&format!("/v1 answers {expected}")), "{text}");
        assert_eq!(is_usage, usage, "{text}");
    }
    let (address, _) = chat_server(|_, connection| send(connection, "500 E", "", &"y".repeat(1 << 17)));
    assert_eq!(ask(&model(&address)).unwrap_err().to_string().matches('y').count(), 301);
}

#[test]
fn the_key_is_sent_and_is_never_repeated() {
    let (address, requests) = chat_server(|request, connection| {
        send(connection, "401 Unauthorized", "", &format!("{{\"error\":\"{:?} is wrong\"}}", request.head));
    });
    let variable = |name: &str| (name == "COLOSSAL_API_KEY").then(|| "sk-hunter2".to_owned());
    let model = RemoteModel::find(&address, KeyChoice::default(), variable, Duration::from_secs(20)).unwrap();
    let error = ask(&model).unwrap_err();
    assert!(requests.recv().unwrap().head.contains("authorization: Bearer sk-hunter2\r\n"));
    for text in [error.to_string(), format!("{error:?}"), format!("{model:?}")] {
        assert!(!text.contains("hunter2"), "{text}");
    }
    assert!(error.to_string().contains("the key in COLOSSAL_API_KEY is not accepted here"), "{error}");
}

#[test]
fn the_key_of_openai_is_not_sent_to_another_server() {
    let (address, requests) = chat_server(|_, connection| send(connection, "403 Forbidden", "", ""));
    let variable = |name: &str| (name == "OPENAI_API_KEY").then(|| "sk-hunter2".to_owned());
    let model = RemoteModel::find(&address, KeyChoice::default(), variable, Duration::from_secs(20)).unwrap();
    let error = ask(&model).unwrap_err().to_string();
    for request in [requests.recv().unwrap(), requests.recv().unwrap()] {
        assert!(!request.head.contains("hunter2"), "{}", request.head);
    }
    let advice =
        "403: Forbidden; set COLOSSAL_API_KEY to a key for this server, because the one in OPENAI_API_KEY";
    assert!(error.contains(advice), "{error}");
}

#[test]
fn a_redirect_is_not_followed() {
    let (other, visits) = server(|_, connection| send(connection, "200 OK", "", MODELS));
    let location = format!("Location: {other}/v1/models\r\n");
    let (address, _) = server(move |_, connection| send(connection, "307 Moved", &location, ""));
    let variable = |_: &str| Some("sk-1".to_owned());
    let error =
        RemoteModel::find(&address, KeyChoice::default(), variable, Duration::from_secs(20)).unwrap_err();
    assert!(error.to_string().contains(&format!("redirects to {other}/v1/models")), "{error}");
    assert!(error.is_usage() && visits.try_recv().is_err());
}

#[test]
fn settings_that_a_server_does_not_know_are_left_out_with_a_notice() {
    let (address, requests) = chat_server(|request, connection| {
        let refuse = |connection: &mut TcpStream, message: &str| {
            send(connection, "422 Unprocessable", "", &format!("{{\"detail\":\"unknown {message}\"}}"));
        };
        match &request.body {
            body if body.get("stream_options").is_some() => refuse(connection, "stream_options"),
            body if body.get("seed").is_some() => refuse(connection, "seed"),
            body if body.get("max_tokens").is_some() => {
                refuse(connection, "max_tokens, use max_completion_tokens");
            }
            _ => send(connection, "200 OK", "", STREAM),
        }
    });
    let Heard { text, reply } = ask(&model(&address)).unwrap();
    assert_eq!((text.as_str(), reply.notices.len()), ("Hello", 2));
    assert!(reply.notices[0].contains("token counts") && reply.notices[1].contains("seed"));
    let last = requests.try_iter().last();
    assert!(last.is_none_or(|last| last.body["max_completion_tokens"] == 7));

    let (address, _) = chat_server(|_, connection| send(connection, "400 Bad", "", "unknown seed and top_k"));
    assert!(ask(&model(&address)).unwrap_err().to_string().contains("unknown seed and top_k"));
}

#[test]
fn no_server_and_no_http_are_told_apart() {
    let find = |address: &str| {
        RemoteModel::find(address, KeyChoice::default(), no_variables, Duration::from_secs(20))
            .unwrap_err()
            .to_string()
    };
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let text = find(&format!("http://{free}"));
    assert!(text.contains(&free.to_string()) && text.contains("connection refused"), "{text}");
    let (address, _) = server(|_, connection| connection.write_all(b"SSH-2.0-OpenSSH_9.6\r\n").unwrap());
    assert!(find(&address).contains("the answer is not HTTP"), "{}", find(&address));
    let (address, _) = server(|_, _| {});
    assert!(find(&address).contains("the connection failed"), "{}", find(&address));
    // Servers without TLS: one closes the connection, the other one sends what TLS cannot read.
    for (answer, said) in [("", "ended the connection before it answered"), ("SSH-2.0\r\n", "no secure")] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("https://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for mut connection in listener.incoming().map(Result::unwrap) {
                let _ = connection.read(&mut [0; 1 << 14]);
                let _ = connection.write_all(answer.as_bytes());
            }
        });
        assert!(find(&address).contains(said), "{}", find(&address));
    }
}

#[test]
fn a_server_that_does_not_stream_works_and_other_responses_are_refused() {
    let Heard { text, reply: whole } =
        answered(r#"  {"choices":[{"message":{"content":"Hello"},"finish_reason":"length"}]}"#).unwrap();
    assert_eq!((text.as_str(), whole.finish_reason), ("Hello", FinishReason::Length));
    let undone = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}]}\n\n";
    assert_eq!(answered(undone).unwrap().reply.finish_reason, FinishReason::Stop);

    let failed = |body| answered(body).unwrap_err().to_string();
    assert!(failed("<!doctype html><title>x").contains("<!doctype html>"));
    assert!(failed("hello\n\n").contains("neither a stream of events nor a JSON object"));
    assert!(failed("").contains("the server sent no reply"));
    assert!(failed("{\"choices\":[{\"mess").contains("cannot be read"));
    assert!(failed("data: {\"choices\":[\n\n").contains("cannot be read"));
    assert!(failed(r#"{"error":{"message":"overloaded"}}"#).contains("the server reports: overloaded"));
    assert!(failed("event: error\ndata: {\"message\":\"bad\"}\n\n").contains("the server reports: bad"));
}

#[test]
fn text_that_arrived_before_a_failure_is_kept() {
    for (end, problem) in [
        ("", "ended before the reply was complete"),
        ("data: {\"error\":\"no memory\"}\n\n", "no memory"),
        ("event: error\ndata: gone\n\n", "gone"),
        ("data: {\n\n", "cannot be read"),
    ] {
        let body = format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"Hel\"}}}}]}}\n\n{end}");
        let Heard { text, reply } = answered(body.leak()).unwrap();
        assert_eq!((text.as_str(), reply.finish_reason), ("Hel", FinishReason::Interrupted));
        assert!(reply.problem.unwrap().to_string().contains(problem), "{problem}");
    }
    // The connection ends before the announced length.
    let (address, _) = chat_server(|_, connection| {
        connection.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n").unwrap();
        connection.write_all(&STREAM.as_bytes()[..60]).unwrap();
    });
    let Heard { text, reply } = ask(&model(&address)).unwrap();
    assert!(matches!(reply.problem, Some(RemoteError::Ended(_))) && text == "Hel", "{reply:?}");
}

#[test]
fn a_silent_server_is_given_up() {
    for (sent, has_text) in
        [("", false), ("HTTP/1.1 200 OK\r\n\r\n", false), ("HTTP/1.1 200 OK\r\n\r\n", true)]
    {
        let (address, _) = chat_server(move |_, connection| {
            connection.write_all(sent.as_bytes()).unwrap();
            if has_text {
                connection.write_all(&STREAM.as_bytes()[..60]).unwrap();
            }
            // Until the client closes the connection.
            let _ = std::io::Read::read(connection, &mut [0]);
        });
        let model =
            RemoteModel::find(&address, KeyChoice::default(), no_variables, Duration::from_millis(400))
                .unwrap();
        match ask(&model) {
            Err(RemoteError::Silent { .. }) => assert!(!has_text),
            Ok(Heard { text, reply }) => {
                assert!(has_text && matches!(reply.problem, Some(RemoteError::Silent { .. })), "{reply:?}");
                assert_eq!(text, "Hel");
            }
            Err(other) => panic!("{sent:?}: {other}"),
        }
    }
}

#[test]
fn a_caller_that_waits_for_the_first_byte_can_stop() {
    let (address, _) = chat_server(|_, connection| {
        let _ = std::io::Read::read(connection, &mut [0]);
    });
    let model = model(&address);
    let started = Instant::now();
    let mut calls = 0;
    let reply = model.chat(&[Message::user("Hi")], &OPTIONS, &mut |piece| {
        assert_eq!(piece, "");
        calls += 1;
        if calls == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let reply = reply.unwrap();
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert_eq!((reply.finish_reason, reply.new_tokens), (FinishReason::Interrupted, 0));
    assert!(reply.problem.is_none());
}

#[test]
fn stopping_closes_the_connection_also_during_thoughts() {
    for field in ["content", "reasoning_content"] {
        let (closed, is_closed) = channel();
        let (address, _) = chat_server(move |_, connection| {
            connection.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
            let chunk = format!("data: {{\"choices\":[{{\"delta\":{{\"{field}\":\"a\"}}}}]}}\n\n");
            while connection.write_all(chunk.as_bytes()).is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
            closed.send(()).unwrap();
        });
        let reply = model(&address).chat(&[Message::user("Hi")], &OPTIONS, &mut |_| ControlFlow::Break(()));
        let reply = reply.unwrap();
        assert_eq!((reply.finish_reason, reply.new_tokens), (FinishReason::Interrupted, 1));
        is_closed.recv_timeout(Duration::from_secs(20)).expect("the connection is closed");
    }
}

#[test]
fn no_response_makes_the_client_panic() {
    let mut state = 3_u64;
    for _ in 0..60 {
        let mut bytes = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\ndata:\r\n".to_vec();
        for _ in 0..8 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let place = (state >> 33) as usize % bytes.len();
            bytes[place] = (state >> 20) as u8;
        }
        let (address, _) = chat_server(move |_, connection| connection.write_all(&bytes).unwrap());
        assert!(ask(&model(&address)).is_err());
    }
}

#[test]
fn only_addresses_are_remote() {
    for model in ["http://h", "https://h/v1", "HTTP://h"] {
        assert!(is_endpoint(model), "{model}");
    }
    for model in ["runs/sft/final", "owner/name", "http:/x", "httpd", "ü", ""] {
        assert!(!is_endpoint(model), "{model}");
    }
}

#[test]
fn what_a_server_tells_of_its_model_is_its_identity_and_the_time_of_a_request_is_not() {
    let offering = |details: &'static str, moves: bool| {
        let (address, _) = server(move |_, connection| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
            let created = if moves { format!(",\"created\":{now}") } else { String::new() };
            send(connection, "200 OK", "", &format!("{{\"data\":[{{\"id\":\"m\"{created}{details}}}]}}"));
        });
        model(&address).identity().unwrap()
    };
    let plain = offering("", false);
    assert_eq!(offering("", true), plain);
    for details in [
        r#","root":"/models/b""#,
        r#","owned_by":"me""#,
        r#","meta":{"n_params":7}"#,
        r#","created":1700000000"#,
        r#","max_model_len":4096"#,
    ] {
        assert_ne!(offering(details, false), plain, "{details}");
        assert_eq!(offering(details, false), offering(details, false));
    }
}
