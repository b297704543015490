//! What the dashboard is told, and what it asks its caller for.

use ratatui::crossterm::event::KeyEvent;

use super::state::{Memory, RankState, RunFacts, Sample};

/// What happens.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The user presses a key.
    Key(KeyEvent),
    /// A row of numbers of one step. A number that is not finite is NaN.
    Row {
        /// The step.
        step: u64,
        /// The numbers by name.
        numbers: Vec<(String, f64)>,
    },
    /// A sample.
    Sample(Sample),
    /// A line for the log.
    Message(String),
    /// A line for the log that says what is wrong with the files of the run.
    Problem(String),
    /// The answer of the run to a request, or another line that the user should see at once.
    Notice(String),
    /// News of the run.
    Run(RunFacts),
    /// What the processes say of themselves.
    Ranks(Vec<RankState>),
    /// The memory of the run.
    Memory(Memory),
    /// The rows are read anew, because the run has dropped some.
    ForgetRows,
    /// The samples are read anew.
    ForgetSamples,
}

/// What the caller must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Close the dashboard; the run goes on.
    Close,
    /// Send a request to the run.
    Ask(Request),
}

/// What a run can be asked for. It is done after the current step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Wait.
    Pause,
    /// Go on.
    Continue,
    /// Save a checkpoint.
    Checkpoint,
    /// Save a checkpoint and end.
    Stop,
}
