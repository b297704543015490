//! Exit codes, and how an error is told.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | the run failed |
//! | 2 | usage or configuration |
//! | 3 | data |
//! | 4 | device or memory |
//! | 5 | the loss or the gradient diverged |
//! | 130 | a person interrupted it |
//!
//! The code follows from the innermost error that one of the crates knows.

use std::io;
use std::path::PathBuf;

use anyhow::Error;

use crate::config::ConfigError;

/// The run failed.
pub(crate) const FAILED: u8 = 1;
/// Usage or configuration.
pub(crate) const USAGE: u8 = 2;
/// Data.
pub(crate) const DATA: u8 = 3;
/// Device or memory.
pub(crate) const DEVICE: u8 = 4;
/// The loss or the gradient diverged.
pub(crate) const DIVERGED: u8 = 5;
/// A person interrupted it.
pub(crate) const INTERRUPTED: u8 = 130;

/// Ends of a command that no crate below knows.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// A check of `doctor` failed.
    #[error("{failed} of {total} checks failed: what they say is above")]
    Checks {
        /// Failed checks.
        failed: usize,
        /// All checks.
        total: usize,
    },
    /// `data check` found rows that cannot be used.
    #[error("{}: {unusable} of {rows} rows cannot be used: correct or remove them", file.display())]
    Rows {
        /// The file.
        file: PathBuf,
        /// Such rows.
        unusable: usize,
        /// All rows.
        rows: usize,
    },
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
    /// Rank 0 of a job, which speaks on this very terminal.
    #[error("rank 0 has said why")]
    Told {
        /// Its exit code.
        code: u8,
    },
    /// A rank of a job.
    #[error("rank {rank} {how}{said}; all ranks were stopped")]
    Rank {
        /// Which.
        rank: usize,
        /// How it ended.
        how: String,
        /// Its last words.
        said: String,
        /// Its exit code.
        code: u8,
    },
    /// A rank of another machine.
    #[error("{told}; the ranks of this machine were stopped")]
    Elsewhere {
        /// What the launcher there has told.
        told: String,
    },
}

/// The code for `error`.
pub(crate) fn code(error: &Error) -> u8 {
    if is_disk_full(error) {
        return FAILED;
    }
    error.chain().find_map(of_cause).unwrap_or(FAILED)
}

/// Whether the reader of our output went away, which is no failure: `colossal-chat ... | head`.
pub(crate) fn is_broken_pipe(error: &Error) -> bool {
    let broken = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
            || cause
                .downcast_ref::<serde_json::Error>()
                .is_some_and(|error| error.io_error_kind() == Some(io::ErrorKind::BrokenPipe))
    };
    error.chain().any(broken)
}

/// Whether a rank has told of the error already.
pub(crate) fn is_told(error: &Error) -> bool {
    error.chain().any(|cause| matches!(cause.downcast_ref(), Some(Failure::Told { .. })))
}

/// The causes of `error` on one line. A cause that its parent's message holds already is not told again.
pub(crate) fn text(error: &Error) -> String {
    let mut told = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if told.is_empty() {
            told = cause;
        } else if !told.contains(&cause) {
            told = format!("{told}: {cause}");
        }
    }
    if is_disk_full(error) && !told.contains(MAKE_SPACE) {
        told = format!("{told}: {MAKE_SPACE}; what was there before is untouched");
    }
    told
}

/// What to do about a full disk.
const MAKE_SPACE: &str = "free some space";

/// Whether a write failed because the disk is full. A library may hand on the system's words alone.
fn is_disk_full(error: &Error) -> bool {
    let full = |error: &io::Error| error.kind() == io::ErrorKind::StorageFull;
    error.chain().any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(full)
            || cause.to_string().contains("No space left on device")
    })
}

/// The code for a panic with this message: libtorch's allocator panics through tch's plain operators.
pub(crate) fn of_panic(message: &str) -> u8 {
    if is_out_of_memory(message) { DEVICE } else { FAILED }
}

/// Whether libtorch speaks of memory.
pub(crate) fn is_out_of_memory(message: &str) -> bool {
    ["can't allocate memory", "out of memory", "not enough memory"]
        .iter()
        .any(|words| message.contains(words))
}

fn of_cause(cause: &(dyn std::error::Error + 'static)) -> Option<u8> {
    if let Some(failure) = cause.downcast_ref::<Failure>() {
        return Some(match failure {
            Failure::Checks { .. } => DEVICE,
            Failure::Rows { .. } => DATA,
            Failure::Interrupted => INTERRUPTED,
            Failure::Elsewhere { .. } => FAILED,
            Failure::Told { code } | Failure::Rank { code, .. } => *code,
        });
    }
    cause
        .downcast_ref::<ConfigError>()
        .map(|error| if let ConfigError::Section(error) = error { of_rlhf(error) } else { USAGE })
        .or_else(|| cause.downcast_ref().map(of_rlhf))
        .or_else(|| cause.downcast_ref().map(of_gemini))
        .or_else(|| cause.downcast_ref().map(of_models))
        .or_else(|| cause.downcast_ref().map(of_datasets))
        .or_else(|| cause.downcast_ref().map(of_parallel))
        .or_else(|| cause.downcast_ref().map(of_sys))
        .or_else(|| cause.downcast_ref().map(of_torch))
}

fn of_rlhf(error: &rlhf::Error) -> u8 {
    use rlhf::Error;
    match error {
        Error::Gemini(error) => of_gemini(error),
        Error::Parallel(error) => of_parallel(error),
        Error::Models(error) => of_models(error),
        Error::Datasets(error) => of_datasets(error),
        Error::Setting { .. } | Error::Vocabulary { .. } | Error::Resume { .. } => USAGE,
        Error::NoRows { .. } | Error::Margin { .. } => DATA,
        Error::NotFinite { .. } => DIVERGED,
        Error::Interrupted { .. } => INTERRUPTED,
        _ => FAILED,
    }
}

fn of_gemini(error: &gemini::Error) -> u8 {
    use gemini::Error;
    match error {
        Error::Parallel(error) => of_parallel(error),
        Error::Sys(error) => of_sys(error),
        Error::Tensor { source, .. } => of_torch(source),
        Error::Diverged { .. } => DIVERGED,
        Error::Setting { .. } | Error::NothingTrained | Error::State { .. } | Error::Twins { .. } => USAGE,
        Error::File(error) => of_file(error, FAILED),
        Error::Io { .. } | Error::Layout { .. } => FAILED,
    }
}

/// `otherwise` is the code of a file that is not as it should be.
fn of_file(error: &parallel::tensor_file::Error, otherwise: u8) -> u8 {
    use parallel::tensor_file::Error;
    match error {
        Error::Parallel(error) => of_parallel(error),
        Error::Torch(error) => of_torch(error),
        _ => otherwise,
    }
}

fn of_parallel(error: &parallel::Error) -> u8 {
    match error {
        parallel::Error::Sys(error) => of_sys(error),
        parallel::Error::Collective { .. } => FAILED,
        _ => USAGE,
    }
}

fn of_sys(error: &parallel::SysError) -> u8 {
    match error {
        parallel::SysError::Torch { message, .. } => of_panic(message),
        parallel::SysError::Malloc { .. } => DEVICE,
        parallel::SysError::Shared { .. } | parallel::SysError::Nccl { .. } => FAILED,
    }
}

fn of_torch(error: &tch::TchError) -> u8 {
    of_panic(&error.to_string())
}

fn of_datasets(error: &datasets::Error) -> u8 {
    use datasets::Error;
    match error {
        Error::InRow { source, .. } => of_datasets(source),
        Error::Write { .. } => FAILED,
        Error::UnknownLayout { .. }
        | Error::BadMapping { .. }
        | Error::UnknownTemplate { .. }
        | Error::VocabularyTooSmall { .. }
        | Error::SynthShare { .. }
        | Error::UnknownModel { .. } => USAGE,
        _ => DATA,
    }
}

fn of_models(error: &models::Error) -> u8 {
    use models::Error;
    match error {
        Error::Parallel(error) => of_parallel(error),
        Error::Torch(error) => of_torch(error),
        Error::File(error) => of_file(error, DATA),
        Error::Disagreement { .. } => FAILED,
        Error::Sampling { .. } | Error::TooManyTokens { .. } | Error::Split { .. } => USAGE,
        Error::TooLarge { .. } => DEVICE,
        Error::LogitsNotFinite { .. } => DIVERGED,
        _ => DATA,
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    fn missing_file() -> io::Error {
        io::Error::from(io::ErrorKind::NotFound)
    }

    #[test]
    fn codes_follow_the_innermost_known_error() {
        let diverged = || gemini::Error::Diverged { what: "loss", step: 3, value: f64::NAN };
        let unread = || datasets::Error::Read { path: "x".into(), source: missing_file() };
        let memory =
            || parallel::SysError::Torch { call: "mm".into(), message: "can't allocate memory".into() };
        let cases: [(Error, u8); 8] = [
            (anyhow::anyhow!("anything"), FAILED),
            (ConfigError::PpoResume("x".into()).into(), USAGE),
            (ConfigError::Section(rlhf::Error::Gemini(diverged())).into(), DIVERGED),
            (rlhf::Error::Gemini(diverged()).into(), DIVERGED),
            (Error::from(unread()).context("while reading"), DATA),
            (rlhf::Error::Datasets(unread()).into(), DATA),
            (rlhf::Error::Parallel(parallel::Error::Sys(memory())).into(), DEVICE),
            (Failure::Interrupted.into(), INTERRUPTED),
        ];
        for (error, wanted) in cases {
            assert_eq!(code(&error), wanted, "{error:#}");
        }
    }

    #[test]
    fn a_cause_that_was_told_is_not_told_again() {
        let error = datasets::Error::Read { path: "x.jsonl".into(), source: missing_file() };
        let told = text(&Error::from(error).context("checking"));
        assert_eq!(told.matches("entity not found").count(), 1, "{told}");
        assert!(told.starts_with("checking: x.jsonl"), "{told}");
    }

    #[test]
    fn a_reader_that_went_away_is_found_behind_its_context() {
        let broken = || io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(is_broken_pipe(&Err::<(), _>(broken()).context("writing").unwrap_err()));
        assert!(!is_broken_pipe(&missing_file().into()));
    }
}
