//! What the servers of the tests read from a client and write to it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use serde_json::Value;

/// A request as a server received it. Without a body, `body` is null.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) head: String,
    pub(crate) body: Value,
}

/// Reads a request. `None` if the client closed the connection, or if the body is not JSON.
pub(crate) fn receive(connection: &TcpStream) -> Option<Received> {
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
    Some(Received { head, body: serde_json::from_slice(&body).ok()? })
}

/// Writes a whole response. The client may have closed the connection, which is what some tests are about.
pub(crate) fn send(connection: &mut TcpStream, status: &str, headers: &str, body: &str) {
    let length = body.len();
    let _ = write!(connection, "HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\n\r\n{body}");
}
