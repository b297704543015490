//! The failures that this program detects itself. The libraries have error types of their own.

use std::io;
use std::path::PathBuf;

use parallel::ErrorClass;

/// A failure that this program detects itself.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// A check of `doctor` failed.
    #[error("{failed} of {total} checks failed: what they say is above")]
    Checks {
        /// The number of failed checks.
        failed: usize,
        /// The number of all checks.
        total: usize,
    },
    /// `data check` found rows that cannot be used.
    #[error("{}: {unusable} of {rows} rows cannot be used: correct or remove them", file.display())]
    Rows {
        file: PathBuf,
        /// The number of rows that cannot be used.
        unusable: usize,
        rows: usize,
    },
    /// A file that another command or an earlier run has written cannot be used.
    #[error("{}: {problem}", path.display())]
    File {
        path: PathBuf,
        /// What is wrong with the file, and how to fix it.
        problem: String,
    },
    /// A message does not fit into the context of a model.
    #[error(
        "the last message takes {length} tokens with the instructions and the beginning of the answer, and {room} of \
         the {context} tokens of the context are free for them: shorten it"
    )]
    LongMessage {
        /// The tokens of the message, the instructions and the beginning of the answer.
        length: usize,
        /// The tokens that are free for them.
        room: usize,
        /// The context length, in tokens.
        context: usize,
    },
    /// Standard input cannot be read as text.
    #[error("stdin is not UTF-8 text: {0}")]
    Stdin(#[source] io::Error),
    /// A model returned NaN or infinity.
    #[error(
        "{at}: the model gives {number}: its weights hold NaN or infinity, or overflow in this dtype; check the run that \
         trained it, or use --dtype float32"
    )]
    NotFinite {
        /// The row.
        at: datasets::RowLocation,
        /// The value that the model returned.
        number: f32,
    },
    /// Programs of a model cannot be run in isolation on this machine.
    #[error("the sandbox for code execution {problem}; docs/eval.md says what it needs")]
    Sandbox {
        /// What is missing or does not hold.
        problem: String,
    },
    /// A run whose models do not fit into memory.
    #[error("{0}")]
    DoesNotFit(String),
    /// A signal interrupted the program.
    #[error("interrupted")]
    Interrupted,
    /// Rank 0 of a job failed. It writes to the same terminal and has already printed its error.
    #[error("rank 0 has said why")]
    AlreadyReported {
        /// The exit code of rank 0.
        code: u8,
    },
    /// A rank of a job failed.
    #[error("rank {rank} {exit_status}{last_error}; all ranks were stopped")]
    Rank {
        /// The rank that failed.
        rank: usize,
        /// How the process ended: its exit code or the signal that killed it.
        exit_status: String,
        /// The last error line of its log.
        last_error: String,
        /// The exit code of the process.
        code: u8,
    },
    /// A signal has stopped a rank for too long.
    #[error(
        "a signal has stopped rank {rank} for {seconds} s, and other ranks are done: continue it sooner (SIGCONT)"
    )]
    RankStopped {
        rank: usize,
        /// For how long the launcher has waited.
        seconds: u64,
    },
    /// A rank of another machine failed.
    #[error("{failure}; the ranks of this machine were stopped")]
    OtherMachineFailed {
        /// The failure that the launcher of that machine reported.
        failure: String,
    },
}

impl Failure {
    /// The class of this failure. The exit code of a rank counts more.
    pub(crate) fn class(&self) -> ErrorClass {
        match self {
            Self::Checks { .. } | Self::DoesNotFit(_) => ErrorClass::Device,
            Self::Rows { .. } | Self::File { .. } | Self::LongMessage { .. } | Self::Stdin(_) => {
                ErrorClass::Data
            }
            Self::NotFinite { .. } => ErrorClass::Diverged,
            Self::Interrupted => ErrorClass::Interrupted,
            Self::Sandbox { .. }
            | Self::AlreadyReported { .. }
            | Self::Rank { .. }
            | Self::RankStopped { .. }
            | Self::OtherMachineFailed { .. } => ErrorClass::Failed,
        }
    }
}
