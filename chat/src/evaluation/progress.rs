//! The progress of requests on stderr: one line or block for each round of requests.

use std::fmt::Display;
use std::io::{IsTerminal, Stderr};

use eval::request_set::Progress;
use tui::terminal::{Environment, Mode};

/// Shows the progress of one round of requests after the other.
pub(crate) struct RequestProgress {
    display: tui::progress::Progress<Stderr>,
    round: Option<String>,
}

impl RequestProgress {
    /// A display on stderr.
    pub(crate) fn new() -> Self {
        let mode = Mode::detect(std::io::stderr().is_terminal(), &Environment::read());
        let mut display = tui::progress::Progress::new(std::io::stderr(), mode);
        display.call_steps("request");
        Self { display, round: None }
    }

    /// Shows how far a round is. Another name begins another round.
    pub(crate) fn show(&mut self, round: &str, state: Progress) {
        // A closed stderr does not stop the work.
        let _ = if self.round.as_deref() == Some(round) {
            self.display.update(state.done as u64, &[("share", state.share)])
        } else {
            self.round = Some(round.to_owned());
            self.display.start_at(round, state.total as u64, state.done as u64)
        };
    }

    /// Ends the display with what came of the requests.
    pub(crate) fn end<T, E: Display>(mut self, outcome: &Result<T, E>) {
        let _ = match outcome {
            Ok(_) => self.display.finish(),
            Err(error) => self.display.fail(&error.to_string()),
        };
    }
}
