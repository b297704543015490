//! Why a server of the user gives no answer. The messages say what it did, and the fix.
//!
//! What a server sends is quoted ([`quoted`](crate::score::quoted)). Secrets of headers are in no message.

use crate::error::Wrong;
use crate::score::ScoreError;

/// Why a server of the user gives no answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum ServerError {
    /// No connection came about.
    #[error("{server}: {reason}")]
    Unreachable {
        server: String,
        /// What happened, and what to check.
        reason: String,
    },
    /// The connection ended before the answer was complete.
    #[error(
        "{server}: the connection ended before the answer was complete ({reason}); the log of the server says more"
    )]
    Ended { server: String, reason: String },
    /// The server answers with another status than 200.
    #[error("{server} answers with status {status}: \"{body}\"{hint}")]
    Status {
        server: String,
        status: u16,
        body: String,
        /// How to fix it, with a leading semicolon; empty if there is nothing to advise.
        hint: String,
    },
    /// The server gives no answer.
    #[error(
        "{server}: no answer within {seconds} s: if it needs longer, raise `timeout` or lower `batch_size`"
    )]
    Silent { server: String, seconds: f64 },
    /// The answer is too long.
    #[error(
        "{server}: the answer has more than {limit} bytes: answer with what is asked for, or lower `batch_size`"
    )]
    TooLong { server: String, limit: usize },
    /// The answer is not the one of the protocol.
    #[error(
        "{server}: the answer begins with \"{said}\" and cannot be used ({problem}): answer with one JSON object, with null in \
         place of NaN and Infinity"
    )]
    NotAnAnswer { server: String, said: String, problem: String },
    /// The server says that it cannot answer the request.
    #[error("{server} reports \"{message}\"")]
    Reported { server: String, message: String },
}

impl ServerError {
    /// The setting to blame if a server does not work at the start of a run.
    pub(crate) fn wrong(&self) -> Wrong {
        let fix = match self {
            Self::Unreachable { .. } => "start the server before the run, or correct `url`",
            Self::Status { status: 401 | 403, .. } => "give the server's key in `headers`",
            Self::Status { status: 429 | 503, .. } => "start the run when the server takes requests",
            Self::Status { .. } => "correct `url` and its path, or the server",
            Self::Silent { .. } => "raise `timeout`, or start the server before the run",
            _ => "correct the server, and try it by hand with one request",
        };
        Wrong::new("url", format!("gives no answer: {self}"), fix)
    }

    /// Why the replies of the request have no score.
    pub(crate) fn of_score(&self) -> ScoreError {
        let reason = self.to_string();
        match self {
            Self::Unreachable { .. } | Self::Ended { .. } => ScoreError::Unreachable { reason },
            Self::Status { .. } => ScoreError::Refused { reason },
            Self::Silent { seconds, .. } => ScoreError::TimedOut { seconds: *seconds },
            Self::TooLong { .. } | Self::NotAnAnswer { .. } => ScoreError::NotAScore { reason },
            Self::Reported { .. } => ScoreError::Declined { reason },
        }
    }
}
