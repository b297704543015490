//! Why a program of the user gives no answer. The messages say what it did, and the fix.
//!
//! What a program writes is quoted ([`quoted`](crate::score::quoted)). Its name is not in the messages: who
//! shows them knows it.

use crate::error::Wrong;
use crate::score::ScoreError;

/// Why a program of the user gives no answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum ProgramError {
    /// The program does not start.
    #[error("`{command}` cannot be started: {problem}")]
    Start { command: String, problem: String },
    /// The program ended with a request under way, or between two requests.
    #[error("the program ended ({status}){}", last_line(words))]
    Ended {
        /// Its exit code or signal.
        status: String,
        /// The last line that it wrote to stderr.
        words: String,
    },
    /// The program gives no answer.
    #[error(
        "no answer within {seconds} s, so the program was ended: it has to flush stdout after each line (Python: print(..., \
         flush=True)); if it needs longer, raise `timeout` or lower `batch_size`{}",
        last_line(words)
    )]
    Silent { seconds: f64, words: String },
    /// A line on stdout is no answer.
    #[error(
        "stdout holds \"{said}\", which is no answer ({problem}): write one JSON object a line to stdout and nothing else, print \
         to stderr, and write null in place of NaN and Infinity, which are no JSON"
    )]
    NotAnAnswer { said: String, problem: String },
    /// An answer belongs to no request.
    #[error(
        "an answer has the id {found}, and the request has {wanted}: answer each request once, with its id"
    )]
    WrongId { wanted: u64, found: String },
    /// Something was written to stdout without a request.
    #[error(
        "stdout holds \"{said}\" without a request: answer each request with one line, and print to stderr"
    )]
    Unasked { said: String },
    /// A line on stdout does not end.
    #[error("a line on stdout has more than {limit} bytes: write the answer alone, or lower `batch_size`")]
    LineTooLong { limit: usize },
    /// The program says that it cannot answer the request.
    #[error("the program reports \"{message}\"")]
    Reported { message: String },
    /// The program has failed too often.
    #[error("the program has failed more often than `max_restarts` allows, at last because {cause}")]
    Exhausted { cause: String },
}

impl ProgramError {
    /// Whether the process that caused this error may still be asked.
    pub(super) fn leaves_process(&self) -> bool {
        matches!(self, Self::Reported { .. })
    }

    /// The setting to blame if a program does not work at the start of a run.
    pub(crate) fn wrong(&self) -> Wrong {
        let fix = match self {
            Self::Start { .. } => "correct `command`; its first entry is looked up in PATH",
            Self::Silent { .. } => "raise `timeout`, which also covers the start of the program",
            _ => "correct the program, and try it by hand with one request on its stdin",
        };
        Wrong::new("command", format!("gives no answer: {self}"), fix)
    }

    /// Why the replies of the request have no score.
    pub(crate) fn of_score(&self) -> ScoreError {
        let reason = self.to_string();
        match self {
            Self::Ended { .. } => ScoreError::Died { reason },
            Self::Silent { seconds, .. } => ScoreError::TimedOut { seconds: *seconds },
            Self::NotAnAnswer { .. }
            | Self::WrongId { .. }
            | Self::Unasked { .. }
            | Self::LineTooLong { .. } => ScoreError::NotAScore { reason },
            Self::Reported { .. } => ScoreError::Declined { reason },
            Self::Start { .. } | Self::Exhausted { .. } => ScoreError::Unreachable { reason },
        }
    }
}

/// The end of a message with the last line of stderr, if there is one.
fn last_line(words: &str) -> String {
    if words.is_empty() { String::new() } else { format!("; the last line of its stderr: \"{words}\"") }
}
