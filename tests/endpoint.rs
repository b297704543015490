//! `chat` with a model behind an endpoint, which is a thread of the test, and the commands that take none.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use crate::harness::{Scratch, free_port};

/// Starts an endpoint with one model, whose replies are streams with this body. Returns its address.
fn endpoint(stream: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        listener.incoming().for_each(|connection| answer(connection.unwrap(), stream));
    });
    address
}

fn answer(mut connection: TcpStream, stream: &str) {
    let mut request = Vec::new();
    let mut bytes = [0; 4096];
    let (models, turn) = (b"GET /v1/models ", b"Be brief.");
    while !request.starts_with(models) && !request.windows(turn.len()).any(|part| part == turn) {
        match connection.read(&mut bytes) {
            Ok(read) if read > 0 => request.extend_from_slice(&bytes[..read]),
            _ => return,
        }
    }
    let body = if request.starts_with(models) { r#"{"data":[{"id":"m"}]}"# } else { stream };
    let response = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let _ = connection.write_all(response.as_bytes());
    // The rest of the request is read, so that closing the connection does not discard the response.
    while connection.read(&mut bytes).is_ok_and(|read| read > 0) {}
}

#[test]
fn a_piped_turn_is_answered_and_a_reply_that_breaks_off_ends_with_1() {
    let scratch = Scratch::new();
    let chat = |stream: &'static str| {
        let address = endpoint(stream);
        scratch.run_with(&["chat", "--system", "Be brief.", "--model", &address], "3 + 4?\n")
    };
    let whole = chat("data: {\"choices\":[{\"delta\":{\"content\":\"7\\u001b[2J\"}}]}\n\ndata: [DONE]\n\n");
    assert_eq!(whole.succeeds(), "7␛[2J\n");
    let broken = chat("data: {\"choices\":[{\"delta\":{\"content\":\"7\"}}]}\n\n");
    broken.fails(1, &["the connection ended before the reply was complete"]);
    assert_eq!(broken.stdout, "7\n");
    chat("event: error\ndata: out of memory\n\n").fails(1, &["the server reports: out of memory"]);
}

#[test]
fn an_endpoint_that_cannot_be_used_is_refused() {
    let scratch = Scratch::new();
    let address = format!("http://127.0.0.1:{}/v1", free_port());
    let chat = |words: &[&str]| scratch.run_with(&[&["chat", "--model"], words].concat(), "Hi");
    chat(&[&address]).fails(1, &[&address, "connection refused"]);
    chat(&["http://user:word@127.0.0.1"]).fails(2, &["http://127.0.0.1", "COLOSSAL_API_KEY"]);
    chat(&["http://"]).fails(2, &["http://HOST:PORT/v1"]);
    chat(&[&address, "--dtype", "bfloat16"]).fails(2, &["--dtype", "leave the flag out"]);
    chat(&[&address, "--ignore-eos"]).fails(2, &["--ignore-eos"]);
    chat(&[&address, "--temperature", "-1"]).fails(2, &["temperature"]);

    let weights = [address.as_str(), "only `chat` and `eval` talk with an endpoint"];
    scratch.run_with(&["generate", "--prompt", "Hi", "--model", &address], "").fails(2, &weights);
    scratch.run_with(&["model", "info", &address], "").fails(2, &weights);
    assert_eq!(scratch.names(), [""; 0]);
}
