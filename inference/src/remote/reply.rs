//! Reads one reply to its end, and passes its text on piece by piece.
//!
//! A response that begins with `{` is the one JSON object of a server that does not stream; any other is a
//! stream of events. The stream ends with the data `[DONE]`. A stream that ends without it is complete if the
//! server has said why the reply ended.

use std::io::Read;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use serde_json::{Map, Value};

use super::answer::{Answer, error_message};
use super::error::{RemoteError, excerpt};
use super::request::{Endpoint, read_failure};
use super::sse::{Event, Parser};

/// The longest response, in bytes.
const LONGEST: usize = 16 << 20;
/// How many bytes are read at once.
const BUFFER: usize = 8 << 10;

/// What the reader tells the caller.
pub(super) enum Update {
    /// The next bytes have arrived.
    Piece {
        /// Their text, which may be empty.
        text: String,
        /// The number of chunks with text or thoughts.
        chunks: u64,
    },
    /// The reply is over, and this is the last update.
    End(Result<Ending, RemoteError>),
}

/// A reply apart from its text.
pub(super) struct Ending {
    /// The counts, and why the reply ended.
    pub(super) answer: Answer,
    /// The failure that ended the reply after its first text.
    pub(super) problem: Option<RemoteError>,
    /// Which settings the server did not accept.
    pub(super) notices: Vec<String>,
}

/// Sends a request and reads the reply. It ends early, and closes the connection, if nobody receives the
/// updates.
pub(super) fn read(
    endpoint: &Endpoint,
    body: Map<String, Value>,
    updates: &SyncSender<Update>,
) -> Result<Ending, RemoteError> {
    let mut notices = Vec::new();
    let reader = Box::new(endpoint.reply(body, &mut notices)?.into_body().into_reader());
    let (answer, problem) = Reading::new(reader, endpoint.silence, updates).run()?;
    Ok(Ending { answer, problem, notices })
}

/// The bytes of a response.
struct Response {
    reader: Box<dyn Read + Send>,
    total: usize,
    silence: Duration,
}

impl Response {
    /// The next bytes; there are none at the end.
    fn next(&mut self) -> Result<Vec<u8>, RemoteError> {
        let mut bytes = vec![0; BUFFER];
        let read = self.reader.read(&mut bytes).map_err(|error| read_failure(&error, self.silence))?;
        self.total += read;
        if self.total > LONGEST {
            return Err(RemoteError::TooLong { what: "a reply", bytes: LONGEST });
        }
        bytes.truncate(read);
        Ok(bytes)
    }
}

struct Reading<'a> {
    response: Response,
    answer: Answer,
    updates: &'a SyncSender<Update>,
}

impl<'a> Reading<'a> {
    fn new(reader: Box<dyn Read + Send>, silence: Duration, updates: &'a SyncSender<Update>) -> Self {
        Self { response: Response { reader, total: 0, silence }, answer: Answer::default(), updates }
    }

    /// Reads the whole reply. A failure after the first text is part of the outcome. A connection that ends
    /// after the server has said why the reply ended is no failure.
    fn run(mut self) -> Result<(Answer, Option<RemoteError>), RemoteError> {
        let outcome = self.read();
        match outcome {
            Err(RemoteError::Ended(_) | RemoteError::Silent { .. }) if self.answer.finish().is_some() => {
                Ok((self.answer, None))
            }
            Err(error) if self.answer.pieces == 0 => Err(error),
            outcome => Ok((self.answer, outcome.err())),
        }
    }

    fn read(&mut self) -> Result<(), RemoteError> {
        // Blank bytes before an object or a stream mean nothing.
        let start = loop {
            let bytes = self.response.next()?;
            if bytes.is_empty() {
                return Err(RemoteError::Ended("the server sent no reply".to_owned()));
            }
            match bytes.trim_ascii_start() {
                [] => {}
                rest => break rest.to_owned(),
            }
        };
        if start[0] == b'{' { self.read_object(start) } else { self.read_stream(start) }
    }

    fn read_object(&mut self, mut object: Vec<u8>) -> Result<(), RemoteError> {
        loop {
            let bytes = self.response.next()?;
            if bytes.is_empty() {
                break;
            }
            object.extend(bytes);
        }
        let text = self.answer.take(&object)?;
        self.answer.check_choice()?;
        self.pass_on(text, 1);
        Ok(())
    }

    fn read_stream(&mut self, start: Vec<u8>) -> Result<(), RemoteError> {
        let first_line = excerpt(&String::from_utf8_lossy(&start));
        let mut parser = Parser::default();
        let mut is_stream = false;
        let mut bytes = start;
        while !bytes.is_empty() {
            let events = parser.push(&bytes)?;
            is_stream |= !events.is_empty();
            if !self.take(events)? {
                return Ok(());
            }
            bytes = self.response.next()?;
        }
        Err(if is_stream { RemoteError::Ended(String::new()) } else { RemoteError::NotAReply(first_line) })
    }

    /// Takes the events of the bytes that arrived. Returns whether to read on.
    fn take(&mut self, events: Vec<Event>) -> Result<bool, RemoteError> {
        if events.is_empty() {
            return Ok(self.pass_on(String::new(), 0));
        }
        for Event { name, data } in events {
            if name == "error" {
                let told = serde_json::from_str::<Value>(&data).ok().filter(Value::is_object);
                return Err(RemoteError::Reported(
                    told.map_or_else(|| excerpt(&data), |told| error_message(&told)),
                ));
            }
            match data.trim() {
                "[DONE]" => return self.answer.check_choice().map(|()| false),
                "" => {}
                chunk => {
                    let before = self.answer.pieces + self.answer.thoughts;
                    let text = self.answer.take(chunk.as_bytes())?;
                    let after = self.answer.pieces + self.answer.thoughts;
                    if !self.pass_on(text, after - before) {
                        return Ok(false);
                    }
                }
            }
        }
        Ok(true)
    }

    /// Passes on what arrived. Returns whether somebody still receives it.
    fn pass_on(&self, text: String, chunks: u64) -> bool {
        self.updates.send(Update::Piece { text, chunks }).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;
    use std::sync::mpsc;

    use super::*;

    const STREAM: &str = "\r\n: ping\r\n\r\ndata: {\"choices\":[{\"delta\":{\"content\":\"今天是\"}}]}\n\n\
                          data: {\"choices\":[{\"delta\":{\"content\":\"星期三 👩‍👩‍👧\"}}]}\r\r\
                          data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";

    /// Reads two parts, which arrive one after the other.
    fn reply(first: &[u8], second: &[u8]) -> Result<(String, Answer, Option<RemoteError>), RemoteError> {
        let (sender, updates) = mpsc::sync_channel(1);
        let reader = Box::new(Cursor::new(first.to_owned()).chain(Cursor::new(second.to_owned())));
        let pieces = std::thread::spawn(move || {
            let text = |update| match update {
                Update::Piece { text, .. } => text,
                Update::End(_) => unreachable!("only `chat` sends the end"),
            };
            updates.iter().map(text).collect::<String>()
        });
        let outcome = Reading::new(reader, Duration::ZERO, &sender).run();
        drop(sender);
        let text = pieces.join().unwrap();
        outcome.map(|(answer, problem)| (text, answer, problem))
    }

    #[test]
    fn every_cut_of_a_response_gives_the_same_text() {
        let bytes = STREAM.as_bytes();
        for cut in 0..=bytes.len() {
            let (text, answer, problem) = reply(&bytes[..cut], &bytes[cut..]).unwrap();
            assert_eq!((text.as_str(), answer.pieces), ("今天是星期三 👩‍👩‍👧", 2), "cut at {cut}");
            assert!(problem.is_none() && answer.finish().is_some());
        }
    }

    #[test]
    fn every_beginning_of_a_response_keeps_its_text_and_is_incomplete_until_the_reason() {
        let complete = STREAM.find("data: [DONE]").unwrap();
        let first = STREAM.find("data: {\"choices\":[{\"delta\":{\"content\":\"星").unwrap();
        for end in 0..STREAM.len() {
            let outcome = reply(&STREAM.as_bytes()[..end], b"");
            match outcome {
                Err(RemoteError::Ended(_) | RemoteError::NotAReply(_)) => assert!(end < first, "{end}"),
                Ok((text, _, Some(RemoteError::Ended(_)))) => {
                    assert!((first..complete).contains(&end) && text.starts_with("今天是"), "{end}");
                }
                Ok((_, _, None)) => assert!(end >= complete, "{end}"),
                other => panic!("{end}: {:?}", other.err()),
            }
        }
    }

    #[test]
    fn nothing_is_read_once_nobody_receives() {
        let (sender, updates) = mpsc::sync_channel(1);
        drop(updates);
        let endless = Box::new(std::io::repeat(b'\n').take(3).chain(std::io::repeat(b':')));
        let (answer, problem) = Reading::new(endless, Duration::ZERO, &sender).run().unwrap();
        assert!(problem.is_none() && answer.pieces == 0);
    }

    #[test]
    fn a_reply_that_never_ends_is_refused() {
        let chunk = b"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
        let long = chunk.repeat(LONGEST / chunk.len() + 1);
        let comment = [b": ".repeat(500).as_slice(), b"\n"].concat().repeat(LONGEST / 1000);
        let (text, answer, problem) = reply(chunk, &comment).unwrap();
        assert!(matches!(problem, Some(RemoteError::TooLong { what: "a reply", .. })), "{problem:?}");
        assert_eq!((text.as_str(), answer.pieces), ("a", 1));
        assert!(matches!(reply(b"{", &long), Err(RemoteError::TooLong { .. })));
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let fragments: [&[u8]; 14] = [
            b"data: ",
            b"\n",
            b"\r",
            b"\n\n",
            b":",
            b"event: error",
            b"{",
            b"}",
            b"[DONE]",
            b"\xff\xfe",
            b"\"",
            b"{\"choices\":[{\"delta\":{\"content\":",
            b"null}}]}",
            b"\"\\ud83d\"}}]}",
        ];
        let mut state = 7_u64;
        let mut next = |bound: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % bound as u64) as usize
        };
        for _ in 0..2000 {
            let mut bytes = Vec::new();
            for _ in 0..next(30) {
                match next(fragments.len() + 2) {
                    index if index < fragments.len() => bytes.extend_from_slice(fragments[index]),
                    _ => bytes.push(next(256) as u8),
                }
            }
            let cut = next(bytes.len() + 1);
            let whole = reply(&bytes, b"").map(|(text, ..)| text).map_err(|error| error.is_usage());
            let parts = reply(&bytes[..cut], &bytes[cut..]).map(|(text, ..)| text);
            assert_eq!(
                whole,
                parts.map_err(|error| error.is_usage()),
                "{:?}",
                String::from_utf8_lossy(&bytes)
            );
        }
    }
}
