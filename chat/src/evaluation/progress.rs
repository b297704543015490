//! The progress of requests on stderr: one line or block for each round of requests.

use std::fmt::Display;
use std::io::{IsTerminal, Stderr};

use eval::request_set::Progress;
use inference::remote::is_endpoint;
use tui::terminal::{Environment, Mode};

use super::Candidate;

/// Shows the progress of one round of requests after the other.
pub(crate) struct RequestProgress {
    display: tui::progress::Progress<Stderr>,
    round: Option<String>,
    /// The requests of the round that have no answer.
    failed: usize,
    /// Whether a model behind an endpoint answers in all rounds.
    asks_endpoint: bool,
}

impl RequestProgress {
    /// A display on stderr.
    pub(crate) fn new() -> Self {
        let mode = Mode::detect(std::io::stderr().is_terminal(), &Environment::read());
        let mut display = tui::progress::Progress::new(std::io::stderr(), mode);
        display.call_steps("request");
        Self { display, round: None, failed: 0, asks_endpoint: false }
    }

    /// A display of the requests to one model.
    pub(crate) fn of(model: &Candidate) -> Self {
        Self { asks_endpoint: model.folder().is_none(), ..Self::new() }
    }

    /// Shows how far a round is. Another name, such as that of the model, begins another round.
    pub(crate) fn show(&mut self, round: &str, state: Progress) {
        // A closed stderr does not stop the work.
        let _ = if self.round.as_deref() == Some(round) {
            self.failed = state.failed;
            let figures = [("share", state.share), ("failed", state.failed as f64)];
            let shown = if state.failed > 0 { &figures[..] } else { &figures[..1] };
            self.display.update(state.done as u64, shown)
        } else {
            self.begin(round, state)
        };
    }

    fn begin(&mut self, round: &str, state: Progress) -> std::io::Result<()> {
        self.display.finish_with_failures(self.failed as u64)?;
        (self.round, self.failed) = (Some(round.to_owned()), state.failed);
        self.display.start_at(round, state.total as u64, state.done as u64)?;
        self.tell_earlier(round, state)
    }

    /// Says how many answers an earlier run has given.
    fn tell_earlier(&mut self, round: &str, Progress { done, total, .. }: Progress) -> std::io::Result<()> {
        if done == 0 {
            return Ok(());
        }
        let is_endpoint = self.asks_endpoint || is_endpoint(round);
        let fix = if is_endpoint { "; the same command with --force asks again" } else { "" };
        self.display.message(&format!("{done} of {total} answers are from an earlier run{fix}"))
    }

    /// Ends the display with what came of the requests.
    pub(crate) fn end<T, E: Display>(mut self, outcome: &Result<T, E>) {
        let _ = match outcome {
            Ok(_) => self.display.finish_with_failures(self.failed as u64),
            Err(error) => self.display.fail(&error.to_string()),
        };
    }
}
