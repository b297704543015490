//! Maps errors to exit codes and to one-line messages.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | the run failed: a full disk, a lost rank, the network |
//! | 2 | usage or configuration: the command line or the run file is wrong, or a path is already in use |
//! | 3 | data: a data file, a model, a tokenizer or a checkpoint cannot be read or used |
//! | 4 | device or memory |
//! | 5 | the loss or the gradient diverged |
//! | 130 | a signal stopped the program |
//!
//! The exit code is determined by the [`ErrorClass`] of the first error in the chain of causes whose type
//! belongs to this workspace. Which class an error has is said beside its type.

use std::any::Any;
use std::error::Error as StdError;
use std::io;

use anyhow::Error;
use inference::remote::RemoteError;
use parallel::{ErrorClass, error_class, safetensors_file};

use crate::config::error::ConfigError;
use crate::failure::Failure;

/// The run failed.
pub(crate) const FAILED: u8 = code_of(ErrorClass::Failed);
/// Usage or configuration.
pub(crate) const USAGE: u8 = code_of(ErrorClass::Usage);
/// Device or memory.
pub(crate) const DEVICE: u8 = code_of(ErrorClass::Device);
/// SIGINT, SIGTERM or SIGHUP stopped the program.
pub(crate) const INTERRUPTED: u8 = code_of(ErrorClass::Interrupted);

/// The exit code of a class.
const fn code_of(class: ErrorClass) -> u8 {
    match class {
        ErrorClass::Failed | ErrorClass::OfSource => 1,
        ErrorClass::Usage => 2,
        ErrorClass::Data => 3,
        ErrorClass::Device => 4,
        ErrorClass::Diverged => 5,
        ErrorClass::Interrupted => 130,
    }
}

/// The exit code for `error`.
pub(crate) fn code(error: &Error) -> u8 {
    if is_disk_full(error) {
        return FAILED;
    }
    if let Some(Failure::AlreadyReported { code } | Failure::Rank { code, .. }) = error.downcast_ref() {
        return *code;
    }
    let plain = |cause: &(dyn StdError + 'static)| {
        cause.downcast_ref().map(|error: &io::Error| ErrorClass::of_io(error.kind()))
    };
    let class = error.chain().find_map(class_of).or_else(|| error.chain().find_map(plain));
    code_of(class.unwrap_or(ErrorClass::Failed))
}

/// The class of an error of this workspace or of tch.
fn class_of(cause: &(dyn StdError + 'static)) -> Option<ErrorClass> {
    let rows = || cause.downcast_ref().map(datasets::Error::class);
    let evaluation = || cause.downcast_ref().map(eval::Error::class);
    let class = (cause.downcast_ref().map(Failure::class))
        .or_else(|| cause.downcast_ref().map(ConfigError::class))
        .or_else(|| cause.downcast_ref().map(RemoteError::class))
        .or_else(|| cause.downcast_ref().map(rlhf::Error::class))
        .or_else(|| cause.downcast_ref::<rewards::Error>().map(|_| ErrorClass::Usage))
        .or_else(|| cause.downcast_ref().map(gemini::Error::class))
        .or_else(|| cause.downcast_ref().map(serve::Error::class))
        .or_else(|| cause.downcast_ref().map(inference::Error::class))
        .or_else(|| cause.downcast_ref().map(models::Error::class))
        .or_else(|| cause.downcast_ref().map(parallel::Error::class))
        .or_else(|| cause.downcast_ref().map(parallel::SysError::class))
        .or_else(|| cause.downcast_ref().map(safetensors_file::Error::class))
        .or_else(|| cause.downcast_ref::<tch::TchError>().map(ErrorClass::of_torch))
        .or_else(|| rows().or_else(evaluation).map(inference::class_of_rows))?;
    if class != ErrorClass::OfSource {
        return Some(class);
    }
    cause.source().and_then(class_of).or(Some(ErrorClass::Failed))
}

/// Whether the reader of this program's output closed the pipe, as in `colossal-chat ... | head`. This is not
/// a failure. A broken network connection is one: it is wrapped in an error type of one of the crates.
pub(crate) fn is_broken_pipe(error: &Error) -> bool {
    if error.chain().any(|cause| class_of(cause).is_some()) {
        return false;
    }
    let broken = |cause: &(dyn StdError + 'static)| {
        cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
            || cause
                .downcast_ref::<serde_json::Error>()
                .is_some_and(|error| error.io_error_kind() == Some(io::ErrorKind::BrokenPipe))
    };
    error.chain().any(broken)
}

/// Whether a rank has already printed the error.
pub(crate) fn is_already_reported(error: &Error) -> bool {
    error.chain().any(|cause| matches!(cause.downcast_ref(), Some(Failure::AlreadyReported { .. })))
}

/// The chain of causes of `error` on one line. A cause whose text is already part of the message is not
/// repeated.
pub(crate) fn text(error: &Error) -> String {
    let mut message = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if message.is_empty() {
            message = cause;
        } else if !message.contains(&cause) {
            message = format!("{message}: {cause}");
        }
    }
    if is_disk_full(error) && !message.contains(MAKE_SPACE) {
        message = format!("{message}: {MAKE_SPACE}");
    }
    shortened(message)
}

/// The most characters of a message that are shown from its start, and from its end.
const SHOWN: [usize; 2] = [4000, 1000];

/// A message without its middle if it is very long, as one that quotes a name of a file from outside may be.
pub(crate) fn shortened(message: String) -> String {
    let count = message.chars().count();
    if count <= SHOWN[0] + SHOWN[1] {
        return message;
    }
    let head: String = message.chars().take(SHOWN[0]).collect();
    let tail: String = message.chars().skip(count - SHOWN[1]).collect();
    format!("{head} [{} more characters] {tail}", count - SHOWN[0] - SHOWN[1])
}

/// The advice for a full disk.
const MAKE_SPACE: &str = "free some space";

/// Whether a write failed because the disk is full. A library may pass on only the message of the operating
/// system, so the text of the causes is checked as well.
fn is_disk_full(error: &Error) -> bool {
    let full =
        |error: &io::Error| matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
    error.chain().any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(full)
            || cause.to_string().contains("No space left on device")
    })
}

/// The exit code for a panic with this message. When libtorch runs out of memory, the infallible operators of
/// tch panic.
pub(crate) fn of_panic(message: &str) -> u8 {
    code_of(ErrorClass::of_torch(message))
}

/// The message of a panic.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let constant = || panic.downcast_ref::<&str>().copied();
    panic.downcast_ref().map(String::as_str).or_else(constant).unwrap_or_default()
}

/// What the user should know about a panic with this message.
pub(crate) fn panic_text(message: &str) -> String {
    if let Some(reason) = error_class::refusal(message) {
        reason
    } else if error_class::is_out_of_memory(message) {
        "out of memory: lower train.micro_batch_size, --batch-size or data.max_length".to_owned()
    } else {
        format!("this program panicked, which is a bug in it: {message}")
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    const DATA: u8 = 3;
    const DIVERGED: u8 = 5;

    fn missing_file() -> io::Error {
        io::Error::from(io::ErrorKind::NotFound)
    }

    fn diverged() -> gemini::Error {
        gemini::Error::Diverged { what: "loss", step: 3, value: f64::NAN }
    }

    fn unread() -> datasets::Error {
        datasets::Error::Read { path: "x".into(), source: missing_file() }
    }

    fn torch(message: &str) -> parallel::SysError {
        parallel::SysError::Torch { call: "mm".into(), message: message.into() }
    }

    fn in_recorder(error: Error) -> rlhf::Error {
        rlhf::Error::Recorder(error.reallocate_into_boxed_dyn_error_without_backtrace())
    }

    fn have_codes<const N: usize>(cases: [(Error, u8); N]) {
        for (error, wanted) in cases {
            assert_eq!(code(&error), wanted, "{error:#}");
        }
    }

    #[test]
    fn codes_follow_the_class_of_an_error() {
        let place = |kind: io::ErrorKind| rlhf::Error::Io { path: "x".into(), source: kind.into() };
        let truncated = safetensors_file::Error::Truncated { path: "x".into(), expected: 2, got: 1 };
        let hub = |reason: &str| datasets::Error::Hub {
            model: "a/b".into(),
            file: "config.json".into(),
            endpoint: "https://hub".into(),
            reason: reason.into(),
        };
        have_codes([
            (torch("CUDA out of memory. Tried to allocate 20.00 MiB.").into(), DEVICE),
            (
                torch("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`").into(),
                DEVICE,
            ),
            (place(io::ErrorKind::PermissionDenied).into(), USAGE),
            (place(io::ErrorKind::StorageFull).into(), FAILED),
            (place(io::ErrorKind::QuotaExceeded).into(), FAILED),
            (place(io::ErrorKind::Other).into(), FAILED),
            (Error::from(io::Error::from(io::ErrorKind::ReadOnlyFilesystem)).context("logs"), USAGE),
            (eval::Error::GroupCycle { group: String::new() }.into(), USAGE),
            (truncated.into(), DATA),
            (Failure::Stdin(missing_file()).into(), DATA),
            (Failure::LongMessage { length: 9, room: 3, context: 4 }.into(), DATA),
            (Error::from(Failure::AlreadyReported { code: 7 }).context("rank 0"), 7),
            (hub("status code 404").into(), USAGE),
            (hub("connection refused").into(), FAILED),
            (RemoteError::WeightsWanted { address: "http://h".into() }.into(), USAGE),
            (RemoteError::Silent { seconds: 120 }.into(), FAILED),
            (anyhow::anyhow!("anything"), FAILED),
            (ConfigError::NothingToExtend("x".into()).into(), USAGE),
            (ConfigError::NoWholeCheckpoint { path: "x".into(), problems: vec![] }.into(), DATA),
            (ConfigError::Device { setting: "cuda".into(), problem: String::new() }.into(), DEVICE),
            (Error::from(unread()).context("while reading"), DATA),
            (Failure::Interrupted.into(), INTERRUPTED),
        ]);
    }

    #[test]
    fn codes_follow_the_innermost_known_error() {
        let truncated = safetensors_file::Error::Truncated { path: "x".into(), expected: 2, got: 1 };
        let of_model = |source: Error| {
            let source = source.reallocate_into_boxed_dyn_error_without_backtrace();
            eval::Error::Model { name: "m".into(), source }
        };
        let in_row = |source| eval::Error::InRow { task: "t".into(), row: 0, source: Box::new(source) };
        let (rank, group, collective) = (0, String::new(), "all_reduce");
        let collective =
            |cause| parallel::Error::Collective { rank, group: group.clone(), collective, cause };
        let over_budget = gemini::Error::OverBudget { needed: 3, evictable: 1, budget: 2 };
        let residency =
            parallel::Error::Residency { class: over_budget.class(), error: Box::new(over_budget) };
        let memory = || torch("can't allocate memory");
        have_codes([
            (of_model(RemoteError::WeightsWanted { address: "http://h".into() }.into()).into(), USAGE),
            (of_model(RemoteError::Silent { seconds: 120 }.into()).into(), FAILED),
            (of_model(anyhow::anyhow!("anything")).into(), FAILED),
            (of_model(inference::Error::Datasets(unread()).into()).into(), DATA),
            (inference::Error::ModelFiles(missing_file()).into(), USAGE),
            (
                in_row(datasets::Error::UnknownLayout { given: String::new(), known: String::new() }.into())
                    .into(),
                DATA,
            ),
            (in_row(eval::Error::SmallPool { needed: 2, pool: 1 }).into(), USAGE),
            (gemini::Error::File(truncated).into(), DATA),
            (in_recorder(anyhow::anyhow!("anything")).into(), FAILED),
            (in_recorder(missing_file().into()).into(), FAILED),
            (in_recorder(Error::from(diverged()).context("anything")).into(), FAILED),
            (in_recorder(ConfigError::OutHasRun("x".into()).into()).into(), USAGE),
            (ConfigError::Section(in_recorder(diverged().into())).into(), DIVERGED),
            (ConfigError::Section(rlhf::Error::Gemini(diverged())).into(), DIVERGED),
            (rlhf::Error::Gemini(diverged()).into(), DIVERGED),
            (rlhf::Error::Datasets(unread()).into(), DATA),
            (rlhf::Error::Parallel(parallel::Error::Sys(memory())).into(), DEVICE),
            (models::Error::Parallel(residency).into(), DEVICE),
            (collective(memory()).into(), DEVICE),
            (collective(torch("connection closed")).into(), FAILED),
        ]);
    }

    #[test]
    fn a_panic_of_libtorch_that_speaks_of_memory_is_one_of_the_device() {
        let refused = r#"an `Err` value: Torch("no memory for a tensor: set \"auto\"")"#;
        assert_eq!((of_panic(refused), panic_text(refused).as_str()), (DEVICE, r#"set "auto""#));
        assert_eq!(of_panic("DefaultCPUAllocator: can't allocate memory"), DEVICE);
        assert_eq!(of_panic("index out of bounds"), FAILED);
    }

    #[test]
    fn a_cause_that_was_told_is_not_told_again() {
        let error = datasets::Error::Read { path: "x.jsonl".into(), source: missing_file() };
        let reported = text(&Error::from(error).context("checking"));
        assert_eq!(reported.matches("entity not found").count(), 1, "{reported}");
        assert!(reported.starts_with("checking: x.jsonl"), "{reported}");
    }

    #[test]
    fn a_reader_that_went_away_is_found_behind_its_context() {
        let broken = || io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(is_broken_pipe(&Err::<(), _>(broken()).context("writing").unwrap_err()));
        assert!(!is_broken_pipe(&missing_file().into()));
        // An error of a crate that names the path or connection counts as a failure.
        assert!(!is_broken_pipe(&rlhf::Error::Io { path: "x".into(), source: broken() }.into()));
    }
}
