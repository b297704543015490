//! Reads `.json` files as rows: an array of objects, or a sequence of objects, one object at a time.
//!
//! A window over the file is parsed. If the window ends inside a value, it grows and the value is parsed
//! again, so that a value is parsed about twice at most. This module does not know what the columns mean.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::json::{Problem, Strict, within_row};
use super::limits::{RECORD_BYTES, record_too_long, row_too_large};
use super::row::{Row, Rows};
use super::source::{Bytes, failed};
use super::text::{BYTE_ORDER_MARK, row};
use crate::error::{Error, Result, RowLocation};

/// The number of bytes that are read at a time, at least.
const STEP: usize = 1 << 16;

/// Reads the rows of a file. After an error of the syntax there is no further row.
pub(super) fn json(reader: Bytes, path: &Path, gzipped: bool) -> Rows {
    let mut document = Document {
        reader,
        path: path.to_owned(),
        gzipped,
        window: Vec::new(),
        start: 0,
        is_last: false,
        place: Place { line: 1, column: 0 },
        state: State::Begin,
        rows: 0,
    };
    Box::new(std::iter::from_fn(move || document.next_row()))
}

/// What comes next in a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// A byte order mark, or what [`State::Values`] has.
    Begin,
    /// A value or the end of the file.
    Values,
    /// The first element of the array or its end.
    FirstElement,
    /// A comma or the end of the array.
    Elements,
    /// Nothing: the file ended, or it is broken.
    End,
}

/// A place in a file: its line, from 1, and the bytes before it in that line.
#[derive(Clone, Copy)]
struct Place {
    line: usize,
    column: usize,
}

struct Document {
    reader: Bytes,
    path: PathBuf,
    gzipped: bool,
    /// The bytes that were read, the first `start` of which are done with.
    window: Vec<u8>,
    start: usize,
    /// Whether the file ends with the window.
    is_last: bool,
    /// The place of `start`.
    place: Place,
    state: State,
    rows: usize,
}

impl Document {
    fn next_row(&mut self) -> Option<Result<(usize, Row)>> {
        let found = self.next_value().transpose()?;
        if found.as_ref().is_err_and(|error| !matches!(error, Error::NotAnObject { .. })) {
            self.state = State::End;
        }
        Some(found)
    }

    /// Reads up to the end of the next value.
    fn next_value(&mut self) -> Result<Option<(usize, Row)>> {
        if self.state == State::Begin {
            self.grow()?;
            if self.window.starts_with(BYTE_ORDER_MARK) {
                self.start = BYTE_ORDER_MARK.len();
            }
            self.state = State::Values;
        }
        loop {
            let next = self.peek()?;
            match (self.state, next) {
                (State::Begin | State::End, _) | (State::Values, None) => return Ok(None),
                // Only what comes first may be the array.
                (State::Values, Some(b'[')) if self.rows == 0 => {
                    self.advance(1);
                    self.state = State::FirstElement;
                }
                (State::FirstElement | State::Elements, Some(b']')) => {
                    self.advance(1);
                    self.state = State::Values;
                }
                (State::FirstElement | State::Elements, None) => {
                    return Err(self.broken("EOF while parsing a list", 0));
                }
                (State::Elements, Some(b',')) => {
                    self.advance(1);
                    if self.peek()? == Some(b']') {
                        return Err(self.broken("trailing comma", 1));
                    }
                    return self.value().map(Some);
                }
                (State::Elements, Some(_)) => return Err(self.broken("expected `,` or `]`", 1)),
                (State::FirstElement, Some(_)) => {
                    self.state = State::Elements;
                    return self.value().map(Some);
                }
                (State::Values, Some(_)) => return self.value().map(Some),
            }
        }
    }

    /// Parses the value at the start of the window.
    fn value(&mut self) -> Result<(usize, Row)> {
        self.rows += 1;
        let at = RowLocation { path: self.path.clone(), row: self.rows };
        loop {
            let rest = &self.window[self.start..];
            let mut values = serde_json::Deserializer::from_slice(rest).into_iter::<Strict>();
            let parsed = within_row(|| values.next().transpose());
            let length = values.byte_offset();
            let ends = length == rest.len();
            match parsed {
                // A number at the end of the window may go on.
                Ok(Some(Strict(value))) if !ends || self.is_last => {
                    self.advance(length);
                    return row(value, at);
                }
                Err(Problem::TooLarge) => return Err(row_too_large(at)),
                Err(Problem::Broken(error)) if self.is_last || !error.is_eof() => {
                    return Err(self.broken_value(at, &error));
                }
                Ok(None) if self.is_last => return Err(self.broken("EOF while parsing a value", 0)),
                _ if rest.len() > RECORD_BYTES => return Err(record_too_long(at)),
                Ok(_) | Err(Problem::Broken(_)) => self.grow()?,
            }
        }
    }

    /// The next byte that is not white space.
    fn peek(&mut self) -> Result<Option<u8>> {
        loop {
            let rest = &self.window[self.start..];
            let is_space = |byte: &u8| matches!(byte, b' ' | b'\n' | b'\t' | b'\r');
            let spaces = rest.iter().take_while(|byte| is_space(byte)).count();
            let next = rest.get(spaces).copied();
            self.advance(spaces);
            if next.is_some() || self.is_last {
                return Ok(next);
            }
            self.grow()?;
        }
    }

    /// Reads more of the file, as much as the window holds if a value may be that long.
    fn grow(&mut self) -> Result<()> {
        self.window.drain(..self.start);
        self.start = 0;
        let held = self.window.len();
        let more = held.max(STEP).min(RECORD_BYTES + STEP - held) as u64;
        let read = self.reader.by_ref().take(more).read_to_end(&mut self.window);
        let read = read.map_err(|source| failed(&self.path, self.gzipped, source))?;
        self.is_last = (read as u64) < more;
        Ok(())
    }

    /// Goes past bytes of the window.
    fn advance(&mut self, count: usize) {
        let passed = &self.window[self.start..self.start + count];
        for line in passed.split_inclusive(|&byte| byte == b'\n') {
            if line.ends_with(b"\n") {
                self.place.line += 1;
                self.place.column = 0;
            } else {
                self.place.column += line.len();
            }
        }
        self.start += count;
    }

    /// An error a number of bytes after the place.
    fn broken(&self, reason: &str, column: usize) -> Error {
        Error::BadJson {
            at: RowLocation { path: self.path.clone(), row: self.rows + 1 },
            line: self.place.line,
            column: self.place.column + column,
            reason: reason.to_owned(),
        }
    }

    /// The error of the parser, whose lines begin at the place.
    fn broken_value(&self, at: RowLocation, error: &serde_json::Error) -> Error {
        let before = if error.line() == 1 { self.place.column } else { 0 };
        Error::BadJson {
            at,
            line: self.place.line + error.line() - 1,
            column: before + error.column(),
            reason: Error::reason_of_json(error),
        }
    }
}
