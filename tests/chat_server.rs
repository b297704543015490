//! An endpoint of the test's process: a server with the chat completions API that answers as a test wants.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

/// What the server answers.
pub(crate) enum Reply {
    /// A reply with this text.
    Text(String),
    /// This status, with these headers.
    Status(&'static str, &'static str),
    /// This body.
    Body(&'static str),
    /// Nothing, until the client has closed the connection.
    Silence,
}

/// A server with one model, `m`.
pub(crate) struct ChatServer {
    /// The address of its model.
    pub(crate) address: String,
    asked: Arc<Mutex<Vec<Vec<String>>>>,
    bodies: Arc<Mutex<Vec<Value>>>,
}

impl ChatServer {
    /// Starts a server. `respond` gets the texts of the messages, and how often they were asked before.
    pub(crate) fn start(respond: impl Fn(&[String], usize) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}/v1#m", listener.local_addr().unwrap());
        let (asked, bodies) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
        let (respond, server) = (Arc::new(respond), (asked.clone(), bodies.clone()));
        std::thread::spawn(move || {
            for connection in listener.incoming().map_while(Result::ok) {
                let (respond, (asked, bodies)) = (respond.clone(), server.clone());
                std::thread::spawn(move || {
                    let Some((head, body)) = receive(&connection) else { return };
                    if head.starts_with("GET /v1/models ") {
                        return send(&connection, "200 OK", "", r#"{"data":[{"id":"m"}]}"#);
                    }
                    let messages = texts(&body);
                    let before = {
                        let mut asked = asked.lock().unwrap();
                        let before = asked.iter().filter(|other: &&Vec<String>| **other == messages).count();
                        asked.push(messages.clone());
                        bodies.lock().unwrap().push(body);
                        before
                    };
                    answer(&connection, respond(&messages, before));
                });
            }
        });
        Self { address, asked, bodies }
    }

    /// What was asked so far: the texts of the messages of each request.
    pub(crate) fn asked(&self) -> Vec<Vec<String>> {
        self.asked.lock().unwrap().clone()
    }

    /// The bodies of the requests so far.
    pub(crate) fn bodies(&self) -> Vec<Value> {
        self.bodies.lock().unwrap().clone()
    }
}

fn texts(body: &Value) -> Vec<String> {
    let messages = body["messages"].as_array().unwrap();
    messages.iter().map(|message| message["content"].as_str().unwrap().to_owned()).collect()
}

fn answer(connection: &TcpStream, reply: Reply) {
    match reply {
        Reply::Text(text) => {
            let choice = json!({"message": {"content": text}, "finish_reason": "stop"});
            send(connection, "200 OK", "", &json!({"choices": [choice]}).to_string());
        }
        Reply::Status(status, headers) => send(connection, status, headers, "{}"),
        Reply::Body(body) => send(connection, "200 OK", "", body),
        Reply::Silence => {
            let mut connection = connection;
            while connection.read(&mut [0; 64]).is_ok_and(|read| read > 0) {}
        }
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
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).ok()?;
    let body = if body.is_empty() { Value::Null } else { serde_json::from_slice(&body).ok()? };
    Some((head, body))
}

fn send(mut connection: &TcpStream, status: &str, headers: &str, body: &str) {
    let length = body.len();
    // The client may have closed the connection.
    let _ = write!(connection, "HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\n\r\n{body}");
}
