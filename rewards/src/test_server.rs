//! A server for tests, which listens on a free loopback port.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::Value;

use crate::entry::HttpConfig;

/// A request as the server received it.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) head: String,
    pub(crate) body: Value,
}

/// Starts a server. `respond` writes the answer to a request, which has a number from 0 on. Returns the
/// settings of a client for it, and the requests so far.
pub(crate) fn server(
    respond: impl Fn(usize, &Received, &mut TcpStream) + Send + Sync + 'static,
) -> (HttpConfig, Arc<Mutex<Vec<Received>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/score", listener.local_addr().unwrap());
    let requests = Arc::new(Mutex::new(Vec::new()));
    let (received, respond) = (Arc::clone(&requests), Arc::new(respond));
    thread::spawn(move || {
        for connection in listener.incoming() {
            let (received, respond) = (Arc::clone(&received), Arc::clone(&respond));
            thread::spawn(move || {
                let mut connection = connection.unwrap();
                let Some(request) = receive(&connection) else { return };
                let number = {
                    let mut received = received.lock().unwrap();
                    received.push(request.clone());
                    received.len() - 1
                };
                respond(number, &request, &mut connection);
            });
        }
    });
    (
        HttpConfig {
            url,
            batch_size: 2,
            timeout: 20.0,
            attempts: 3,
            concurrency: 1,
            ..HttpConfig::default()
        },
        requests,
    )
}

/// Writes a whole response. The client may have closed the connection.
pub(crate) fn send(connection: &mut TcpStream, status: &str, headers: &str, body: &str) {
    let length = body.len();
    let _ = write!(connection, "HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\n\r\n{body}");
}

/// Reads a request. `None` if it is none.
pub(crate) fn receive(connection: &TcpStream) -> Option<Received> {
    let mut reader = BufReader::new(connection);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let lower = head.to_lowercase();
    let length = lower.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok())?;
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Received { head, body: serde_json::from_slice(&body).ok()? })
}
