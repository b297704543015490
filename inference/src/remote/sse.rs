//! Server-sent events: splits the bytes of a response into events.
//!
//! The format is that of the HTML standard, section 9.2.6 "Interpreting an event stream": lines end in LF, CR
//! or CRLF, an empty line ends an event, lines that begin with a colon are comments, and several `data` lines
//! of one event are joined by line feeds. The bytes may be cut anywhere, also within a character. An event
//! without its empty line at the end of the stream is incomplete and is not reported. Lines and events have a
//! limit, because the server is not trusted. This file does not know what the events mean.

use super::error::RemoteError;

/// The longest line and the longest event, in bytes.
pub(super) const LONGEST: usize = 1 << 20;

/// One event.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Event {
    /// The name of the event; it is empty for plain messages.
    pub(super) name: String,
    /// The data. Bytes that are not UTF-8 are replaced by U+FFFD.
    pub(super) data: String,
}

/// Collects bytes until events are complete.
#[derive(Debug, Default)]
pub(super) struct Parser {
    line: Vec<u8>,
    event: Event,
    has_data: bool,
    /// Whether the last byte was CR. An LF that follows belongs to the same line end.
    after_cr: bool,
    /// Whether the first line is complete. Only the first line may begin with a byte order mark.
    started: bool,
}

impl Parser {
    /// Takes the next bytes, and returns the events that they complete.
    pub(super) fn push(&mut self, mut bytes: &[u8]) -> Result<Vec<Event>, RemoteError> {
        let mut events = Vec::new();
        while !bytes.is_empty() {
            if std::mem::take(&mut self.after_cr) && bytes[0] == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let end = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            let part = &bytes[..end.unwrap_or(bytes.len())];
            if self.line.len() + part.len() > LONGEST {
                return Err(RemoteError::TooLong { what: "a line", bytes: LONGEST });
            }
            self.line.extend_from_slice(part);
            let Some(end) = end else { break };
            self.after_cr = bytes[end] == b'\r';
            bytes = &bytes[end + 1..];
            events.extend(self.end_line()?);
        }
        Ok(events)
    }

    /// Interprets the line that is complete. Returns the event that it ends.
    fn end_line(&mut self) -> Result<Option<Event>, RemoteError> {
        let bytes = std::mem::take(&mut self.line);
        let text = String::from_utf8_lossy(&bytes);
        let first = !std::mem::replace(&mut self.started, true);
        let line = text.strip_prefix('\u{feff}').filter(|_| first).unwrap_or(&text);
        if line.is_empty() {
            let event = std::mem::take(&mut self.event);
            return Ok(std::mem::take(&mut self.has_data).then_some(event));
        }

        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.event.name),
            "data" => {
                if self.event.data.len() + value.len() >= LONGEST {
                    return Err(RemoteError::TooLong { what: "an event", bytes: LONGEST });
                }
                if std::mem::replace(&mut self.has_data, true) {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(value);
            }
            // A comment, whose field name is empty, or a field that has no use here: `id`, `retry`.
            _ => {}
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = "\u{feff}data: {\"a\": \"星期三\"}\n\n: a comment\r\ndata:one\r\ndata:  two\r\ndata\r\n\r\n\
                          event: error\rdata: bad\r\rid: 7\nretry: 10\n\nevent: empty\n\ndata: 👩‍👩‍👧\n\ndata: cut";

    fn event(name: &str, data: &str) -> Event {
        Event { name: name.to_owned(), data: data.to_owned() }
    }

    #[test]
    fn an_event_has_the_lines_of_its_data_and_its_name() {
        let events = Parser::default().push(STREAM.as_bytes()).unwrap();
        let expected = [
            event("", "{\"a\": \"星期三\"}"),
            event("", "one\n two\n"),
            event("error", "bad"),
            event("", "👩‍👩‍👧"),
        ];
        assert_eq!(events, expected);
    }

    #[test]
    fn every_cut_of_a_stream_gives_the_same_events() {
        let bytes = STREAM.as_bytes();
        let whole = Parser::default().push(bytes).unwrap();
        for first in 0..=bytes.len() {
            for second in [first, (first + 1).min(bytes.len()), (first + 5).min(bytes.len())] {
                let mut parser = Parser::default();
                let mut events = parser.push(&bytes[..first]).unwrap();
                events.extend(parser.push(&bytes[first..second]).unwrap());
                events.extend(parser.push(&bytes[second..]).unwrap());
                assert_eq!(events, whole, "cut at {first} and {second}");
            }
        }
        let mut parser = Parser::default();
        let single: Vec<Event> = bytes.iter().flat_map(|byte| parser.push(&[*byte]).unwrap()).collect();
        assert_eq!(single, whole);
    }

    #[test]
    fn a_mark_within_the_stream_is_part_of_the_line() {
        let events = Parser::default().push("data: a\n\u{feff}data: b\n\n".as_bytes()).unwrap();
        assert_eq!(events, [event("", "a")]);
    }

    #[test]
    fn bytes_that_are_not_text_become_visible() {
        let events = Parser::default().push(b"data: \xff\xfea\n\n").unwrap();
        assert_eq!(events, [event("", "\u{fffd}\u{fffd}a")]);
    }

    #[test]
    fn a_line_and_an_event_that_never_end_are_refused() {
        let mut parser = Parser::default();
        assert!(parser.push(&vec![b'x'; LONGEST]).is_ok());
        assert!(matches!(parser.push(b"x"), Err(RemoteError::TooLong { what: "a line", .. })));

        let line = [b"data: ".as_slice(), &vec![b'x'; LONGEST / 2], b"\n"].concat();
        let mut parser = Parser::default();
        assert!(parser.push(&line).is_ok());
        assert!(matches!(parser.push(&line), Err(RemoteError::TooLong { what: "an event", .. })));
        // Comments do not add up.
        let mut parser = Parser::default();
        let comment = [b":".as_slice(), &vec![b'x'; LONGEST / 2], b"\n"].concat();
        assert!((0..4).all(|_| parser.push(&comment).is_ok()));
    }
}
