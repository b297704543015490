//! The line chat: streams replies to standard output as they are generated, without taking over the screen.
//!
//! On a terminal each turn begins with a prompt marker. Off a terminal, standard output holds only the
//! answers, each ended by one line feed. Statistics and notices go to standard error. [`text::Sanitizer`]
//! sanitizes replies in both cases, because piped output may be shown on a terminal later; `generate
//! --output` keeps the exact text.
//!
//! This module knows no models and no history: it takes text and writes bytes. The caller must hold back
//! incomplete UTF-8.

use std::io::{self, Write};
use std::time::Duration;

use ratatui::style::{Style, Stylize};
use ratatui::text::{Line, Span};

use crate::terminal::paint;
use text::number;

/// Measurements of the generation of one reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statistics {
    /// Tokens of the full prompt, including the history.
    pub prompt_tokens: u64,
    /// Tokens of the reply.
    pub new_tokens: u64,
    /// The context length of the model, in tokens.
    pub context: u64,
    /// Time from the request to the first token of the reply.
    pub first_token: Duration,
    /// Time from the request to the last token of the reply.
    pub total: Duration,
    /// The reason why the reply ended, such as `stop` or `length`.
    pub finish_reason: String,
}

impl Statistics {
    /// Tokens per second after the first token, or `None` for fewer than two tokens.
    pub fn tokens_per_second(&self) -> Option<f64> {
        let decoding = self.total.saturating_sub(self.first_token).as_secs_f64();
        (self.new_tokens > 1 && decoding > 0.0).then(|| (self.new_tokens - 1) as f64 / decoding)
    }
}

/// How to write to the two sinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminalStyle {
    /// Whether standard output is a terminal at which a user types.
    pub interactive: bool,
    /// Whether to colour standard output.
    pub color_output: bool,
    /// Whether to colour standard error.
    pub color_error: bool,
}

/// Writes a conversation line by line. `O` receives the answers, `E` receives statistics and notices.
#[derive(Debug)]
pub struct LineChat<O, E> {
    output: O,
    error: E,
    look: TerminalStyle,
    sanitizer: text::Sanitizer,
    at_line_start: bool,
}

impl<O: Write, E: Write> LineChat<O, E> {
    /// Creates a chat that has written nothing yet.
    pub fn new(output: O, error: E, look: TerminalStyle) -> Self {
        Self { output, error, look, sanitizer: text::Sanitizer::default(), at_line_start: true }
    }

    /// Writes the prompt marker. Off a terminal it writes nothing.
    pub fn prompt(&mut self) -> io::Result<()> {
        if !self.look.interactive {
            return Ok(());
        }
        let marker = Line::from(vec![">".bold().cyan(), " ".into()]);
        self.output.write_all(paint(&marker, self.look.color_output).as_bytes())?;
        self.output.flush()
    }

    /// Writes the next piece of the reply at once.
    pub fn push(&mut self, piece: &str) -> io::Result<()> {
        let harmless = self.sanitizer.push(piece);
        self.emit(&harmless)
    }

    /// Ends the reply with exactly one line feed and writes its statistics. On a terminal it also writes an
    /// empty line.
    pub fn finish(&mut self, statistics: Option<&Statistics>) -> io::Result<()> {
        let held_back = self.sanitizer.finish();
        self.emit(held_back)?;
        if !self.at_line_start {
            self.emit("\n")?;
        }
        if let Some(statistics) = statistics {
            self.dim(&describe(statistics))?;
        }
        if self.look.interactive {
            self.emit("\n")?;
        }
        self.at_line_start = true;
        Ok(())
    }

    /// Writes a message about the chat itself to standard error, on its own line.
    pub fn notice(&mut self, message: &str) -> io::Result<()> {
        if self.look.interactive && !self.at_line_start {
            self.emit("\n")?;
        }
        self.dim(&text::single_line(message))
    }

    fn emit(&mut self, harmless: &str) -> io::Result<()> {
        if let Some(last) = harmless.chars().next_back() {
            self.at_line_start = last == '\n';
            self.output.write_all(harmless.as_bytes())?;
            self.output.flush()?;
        }
        Ok(())
    }

    fn dim(&mut self, message: &str) -> io::Result<()> {
        let line = Line::from(Span::styled(message.to_owned(), Style::new().dim()));
        writeln!(self.error, "{}", paint(&line, self.look.color_error))?;
        self.error.flush()
    }
}

/// `ctx 60/4096 · 48 tokens · first 0.1s · 38 tok/s · stop`.
fn describe(statistics: &Statistics) -> String {
    let Statistics { prompt_tokens, new_tokens, context, first_token, finish_reason, .. } = statistics;
    let plural = if *new_tokens == 1 { "" } else { "s" };
    let mut parts = vec![
        format!("ctx {}/{context}", prompt_tokens + new_tokens),
        format!("{new_tokens} token{plural}"),
        format!("first {}", number::duration(*first_token)),
    ];
    if let Some(rate) = statistics.tokens_per_second() {
        parts.push(format!("{} tok/s", number::count(rate)));
    }
    parts.push(text::single_line(finish_reason));
    parts.join(" · ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(interactive: bool, color: bool) -> LineChat<Vec<u8>, Vec<u8>> {
        let look = TerminalStyle { interactive, color_output: color, color_error: color };
        LineChat::new(Vec::new(), Vec::new(), look)
    }

    fn written(chat: LineChat<Vec<u8>, Vec<u8>>) -> (String, String) {
        (String::from_utf8(chat.output).unwrap(), String::from_utf8(chat.error).unwrap())
    }

    fn statistics() -> Statistics {
        Statistics {
            prompt_tokens: 12,
            new_tokens: 48,
            context: 4096,
            first_token: Duration::from_millis(140),
            total: Duration::from_millis(1390),
            finish_reason: "stop".into(),
        }
    }

    #[test]
    fn off_a_terminal_only_the_answer_is_on_standard_output() {
        let mut chat = chat(false, false);
        chat.prompt().unwrap();
        chat.push("for").unwrap();
        chat.push("ty-two").unwrap();
        chat.finish(Some(&statistics())).unwrap();
        let (output, error) = written(chat);
        assert_eq!(output, "forty-two\n");
        // 47 tokens after the first in 1.25 s are 37.6 tokens per second.
        assert_eq!(error, "ctx 60/4096 · 48 tokens · first 0.1s · 38 tok/s · stop\n");
    }

    #[test]
    fn on_a_terminal_there_is_a_marker_and_air() {
        let mut chat = chat(true, true);
        chat.prompt().unwrap();
        chat.push("hi").unwrap();
        chat.finish(None).unwrap();
        assert_eq!(written(chat).0, "\u{1b}[1;36m>\u{1b}[0m hi\n\n");
    }

    #[test]
    fn an_answer_that_ends_its_line_gets_no_second_line_feed() {
        for (reply, expected) in [("a\n", "a\n"), ("a\r\n", "a\n"), ("a\r", "a␍\n"), ("", "")] {
            let mut chat = chat(false, false);
            chat.push(reply).unwrap();
            chat.finish(None).unwrap();
            assert_eq!(written(chat).0, expected, "{reply:?}");
        }
    }

    #[test]
    fn escape_sequences_split_over_pieces_are_harmless() {
        for interactive in [false, true] {
            let mut chat = chat(interactive, true);
            for piece in ["\u{1b}", "]0;owned", "\u{7}", "\u{1b}[", "2J"] {
                chat.push(piece).unwrap();
            }
            chat.notice("stopped \u{1b}[31m").unwrap();
            let (output, error) = written(chat);
            assert!(output.starts_with("␛]0;owned␇␛[2J") && !output.contains('\u{1b}'), "{output:?}");
            assert_eq!(error, "\u{1b}[2mstopped ␛[31m\u{1b}[0m\n");
        }
    }

    #[test]
    fn one_token_has_no_rate() {
        let one = Statistics { new_tokens: 1, ..statistics() };
        assert_eq!(one.tokens_per_second(), None);
        assert_eq!(describe(&one), "ctx 13/4096 · 1 token · first 0.1s · stop");
    }
}
