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
//! The exit code is determined by the first error in the chain of causes whose type belongs to this
//! workspace, and by the error that it wraps.

use std::any::Any;
use std::io;

use anyhow::Error;

use crate::config::ConfigError;
use crate::failure::Failure;
use crate::remote::RemoteError;

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
/// SIGINT, SIGTERM or SIGHUP stopped the program.
pub(crate) const INTERRUPTED: u8 = 130;

/// The exit code for `error`.
pub(crate) fn code(error: &Error) -> u8 {
    if is_disk_full(error) {
        return FAILED;
    }
    let plain = |cause: &(dyn std::error::Error + 'static)| cause.downcast_ref::<io::Error>().map(of_io);
    error.chain().find_map(of_cause).or_else(|| error.chain().find_map(plain)).unwrap_or(FAILED)
}

/// Whether the reader of this program's output closed the pipe, as in `colossal-chat ... | head`. This is not
/// a failure. A broken network connection is one: it is wrapped in an error type of one of the crates.
pub(crate) fn is_broken_pipe(error: &Error) -> bool {
    if error.chain().any(|cause| of_cause(cause).is_some()) {
        return false;
    }
    let broken = |cause: &(dyn std::error::Error + 'static)| {
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
    if is_out_of_memory(message) || over_budget(message).is_some() { DEVICE } else { FAILED }
}

/// The message of a panic.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let constant = || panic.downcast_ref::<&str>().copied();
    panic.downcast_ref().map(String::as_str).or_else(constant).unwrap_or_default()
}

/// What the user should know about a panic with this message.
pub(crate) fn panic_text(message: &str) -> String {
    if let Some(text) = over_budget(message) {
        text
    } else if is_out_of_memory(message) {
        "out of memory: lower train.micro_batch_size, --batch-size or data.max_length".to_owned()
    } else {
        format!("this program panicked, which is a bug in it: {message}")
    }
}

/// The reason of the memory manager inside a message of libtorch, or inside the panic of a tensor operation,
/// which quotes that message as `Torch("...")`.
pub(crate) fn over_budget(message: &str) -> Option<String> {
    let (_, reason) = message.split_once(gemini::NO_MEMORY_FOR_TENSOR)?;
    Some(reason.lines().next()?.trim_end_matches("\")").replace("\\\"", "\""))
}

/// Whether a libtorch message reports that memory ran out.
pub(crate) fn is_out_of_memory(message: &str) -> bool {
    // `_STATUS_ALLOC_FAILED` ends what the libraries of CUDA say, such as CUBLAS_STATUS_ALLOC_FAILED.
    [
        "can't allocate memory",
        "out of memory",
        "not enough memory",
        "_STATUS_ALLOC_FAILED",
        "bad_alloc",
        "Cannot allocate memory",
    ]
    .iter()
    .any(|words| message.contains(words))
}

fn of_cause(cause: &(dyn std::error::Error + 'static)) -> Option<u8> {
    if let Some(failure) = cause.downcast_ref::<Failure>() {
        return Some(match failure {
            Failure::Checks { .. } | Failure::DoesNotFit(_) => DEVICE,
            Failure::Rows { .. } | Failure::File { .. } | Failure::LongMessage { .. } | Failure::Stdin(_) => {
                DATA
            }
            Failure::NotFinite { .. } => DIVERGED,
            Failure::Interrupted => INTERRUPTED,
            Failure::Sandbox { .. } | Failure::RankStopped { .. } | Failure::OtherMachineFailed { .. } => {
                FAILED
            }
            Failure::AlreadyReported { code } | Failure::Rank { code, .. } => *code,
        });
    }

    cause
        .downcast_ref::<ConfigError>()
        .map(of_config)
        .or_else(|| cause.downcast_ref().map(of_remote))
        .or_else(|| cause.downcast_ref().map(of_rlhf))
        .or_else(|| cause.downcast_ref().map(of_gemini))
        .or_else(|| cause.downcast_ref().map(of_models))
        .or_else(|| cause.downcast_ref().map(of_datasets))
        .or_else(|| cause.downcast_ref().map(of_parallel))
        .or_else(|| cause.downcast_ref().map(of_sys))
        .or_else(|| cause.downcast_ref().map(of_eval))
        .or_else(|| cause.downcast_ref().map(of_file))
        .or_else(|| cause.downcast_ref().map(of_torch))
}

/// The exit code for a file or folder that cannot be created or written: a bad path is a usage error, any
/// other I/O error is a failed run.
fn of_io(error: &io::Error) -> u8 {
    use io::ErrorKind::{
        AlreadyExists, InvalidFilename, IsADirectory, NotADirectory, NotFound, PermissionDenied,
        ReadOnlyFilesystem,
    };
    match error.kind() {
        AlreadyExists | InvalidFilename | IsADirectory | NotADirectory | NotFound | PermissionDenied
        | ReadOnlyFilesystem => USAGE,
        _ => FAILED,
    }
}

/// The exit code for an error of the configuration or the command line: usage, except for an error that wraps
/// one of another crate and for damaged checkpoints.
fn of_config(error: &ConfigError) -> u8 {
    match error {
        ConfigError::Section(error) => of_rlhf(error),
        ConfigError::NoWholeCheckpoint { .. } => DATA,
        ConfigError::Device { .. } => DEVICE,
        _ => USAGE,
    }
}

fn of_remote(error: &RemoteError) -> u8 {
    if error.is_usage() { USAGE } else { FAILED }
}

fn of_eval(error: &eval::Error) -> u8 {
    use eval::Error;
    match error {
        Error::Datasets(error) => of_datasets(error),
        Error::InRow { source, .. } => match &**source {
            Error::Datasets(_) | Error::BadColumn { .. } => DATA,
            source => of_eval(source),
        },
        Error::Write { source, .. } | Error::Read { source, .. } => of_io(source),
        Error::Model { source, .. } => of_cause(source.as_ref()).unwrap_or(FAILED),
        Error::TaskFile { .. }
        | Error::UnknownTask { .. }
        | Error::GroupCycle { .. }
        | Error::UnknownInGroup { .. }
        | Error::WrongMetric { .. }
        | Error::CodeNotAllowed { .. }
        | Error::NotAFile { .. }
        | Error::UnknownAnchor { .. }
        | Error::Pattern { .. }
        | Error::UnsupportedPattern { .. }
        | Error::SmallPool { .. } => USAGE,
        Error::TooFew { .. }
        | Error::NoSpread { .. }
        | Error::EqualDifferences { .. }
        | Error::TooFewClusters { .. }
        | Error::TooFewSamples { .. }
        | Error::LengthsDecide
        | Error::Undetermined { .. }
        | Error::SelfComparison { .. }
        | Error::NoWordList { .. }
        | Error::NoRowsFound { .. }
        | Error::NoConfigColumn { .. }
        | Error::NoRowsOfConfig { .. }
        | Error::TwoFormats { .. }
        | Error::SplitFiles { .. }
        | Error::TooManyRows { .. }
        | Error::NoDocuments { .. }
        | Error::BadColumn { .. }
        | Error::Instruction { .. }
        | Error::InstructionPattern { .. } => DATA,
        Error::EmptyItem { .. }
        | Error::Unpaired { .. }
        | Error::NotARate { .. }
        | Error::NotAProbability { .. }
        | Error::NotFinite { .. }
        | Error::Interval { .. }
        | Error::Lengths { .. }
        | Error::OutOfRange { .. }
        | Error::NotConverged { .. }
        | Error::SlowPattern { .. }
        | Error::FewReplies { .. }
        | Error::TooLongForRouge { .. }
        | Error::TooManyChoices { .. }
        | Error::WrongResponse { .. }
        | Error::CodeRunner { .. }
        | Error::Json(_) => FAILED,
    }
}

fn of_rlhf(error: &rlhf::Error) -> u8 {
    use rlhf::Error;
    match error {
        Error::Gemini(error) => of_gemini(error),
        Error::Parallel(error) => of_parallel(error),
        Error::Models(error) => of_models(error),
        Error::Datasets(error) => of_datasets(error),
        Error::Setting { .. }
        | Error::Vocabulary { .. }
        | Error::TooFew { .. }
        | Error::Groups { .. }
        | Error::SamplerDiffers { .. } => USAGE,
        Error::NoRows { .. }
        | Error::Margin { .. }
        | Error::EmptyCompletion { .. }
        | Error::RunFolder { .. } => DATA,
        Error::NotFinite { .. } => DIVERGED,
        Error::Interrupted { .. } => INTERRUPTED,
        Error::Io { source, .. } => of_io(source),
        Error::Recorder(source) | Error::Tasks(source) | Error::TasksOnPart(source) => {
            of_cause(source.as_ref()).unwrap_or(FAILED)
        }
        Error::RankZeroFailed | Error::Shape { .. } | Error::EmptyReply { .. } => FAILED,
    }
}

fn of_gemini(error: &gemini::Error) -> u8 {
    use gemini::Error;
    match error {
        Error::Parallel(error) => of_parallel(error),
        Error::Sys(error) => of_sys(error),
        Error::Tensor { source, .. } => of_torch(source),
        Error::Diverged { .. } => DIVERGED,
        Error::Setting { .. }
        | Error::NoTrainableParameters
        | Error::State { .. }
        | Error::AlreadyExists { .. }
        | Error::ReplicasDiffer { .. } => USAGE,
        Error::Damaged { .. } => DATA,
        Error::File(error) => of_file(error),
        Error::Io { source, .. } | Error::Thread(source) => of_io(source),
        Error::OverBudget { .. } | Error::SharedDevice { .. } | Error::OverHostMemory { .. } => DEVICE,
        Error::NotContiguous { .. } | Error::Unsharded { .. } | Error::ReplicasDrifted { .. } => FAILED,
    }
}

fn of_file(error: &parallel::safetensors_file::Error) -> u8 {
    use parallel::safetensors_file::Error;
    match error {
        Error::Parallel(error) => of_parallel(error),
        Error::Torch(error) => of_torch(error),
        Error::Io { .. }
        | Error::Truncated { .. }
        | Error::Malformed { .. }
        | Error::Missing { .. }
        | Error::Shape { .. }
        | Error::Dtype { .. }
        | Error::Value { .. } => DATA,
        Error::NotFinite { .. } => DIVERGED,
    }
}

fn of_parallel(error: &parallel::Error) -> u8 {
    use parallel::Error;
    match error {
        Error::Sys(error) | Error::Collective { cause: error, .. } if is_memory(error) => DEVICE,
        Error::Sys(error) => of_sys(error),
        Error::Residency(error) => of_cause(error.as_ref()).unwrap_or(FAILED),
        Error::Collective { .. }
        | Error::NoInputGradient { .. }
        | Error::MissingRanks { .. }
        | Error::InvalidTag { .. }
        | Error::VersionMismatch { .. } => FAILED,
        Error::MeshSize { .. }
        | Error::Port { .. }
        | Error::NotAStore { .. }
        | Error::NoSecret { .. }
        | Error::ShortSecret { .. }
        | Error::Processes { .. }
        | Error::RankOutOfRange { .. }
        | Error::Rendezvous { .. }
        | Error::Unreachable { .. }
        | Error::LauncherVars { .. }
        | Error::SpansHosts { .. }
        | Error::Threads { .. } => USAGE,
    }
}

fn is_memory(error: &parallel::SysError) -> bool {
    matches!(error, parallel::SysError::Torch { message, .. } if is_out_of_memory(message))
}

fn of_sys(error: &parallel::SysError) -> u8 {
    match error {
        parallel::SysError::Torch { message, .. } => of_panic(message),
        parallel::SysError::DiskSpace { .. }
        | parallel::SysError::DiskTransfer { .. }
        | parallel::SysError::Disk { .. }
        | parallel::SysError::DiskQueue { .. }
        | parallel::SysError::DeviceMemory { .. }
        | parallel::SysError::Driver { .. }
        | parallel::SysError::Arena { .. } => DEVICE,
        parallel::SysError::Adamw { .. }
        | parallel::SysError::InvalidTag { .. }
        | parallel::SysError::Memory { .. }
        | parallel::SysError::Shared { .. }
        | parallel::SysError::Nccl { .. } => FAILED,
    }
}

fn of_torch(error: &tch::TchError) -> u8 {
    of_panic(&error.to_string())
}

#[expect(
    clippy::too_many_lines,
    reason = "a table of every error, so that a new one does not compile without a code"
)]
fn of_datasets(error: &datasets::Error) -> u8 {
    use datasets::Error;
    match error {
        Error::InRow { source, .. } => of_datasets(source),
        Error::Write { source, .. } => of_io(source),
        // The hub refused: the model does not exist, or this user has no access. Anything else is the
        // network.
        Error::Hub { reason, .. } if ["401", "403", "404"].iter().any(|code| reason.contains(code)) => USAGE,
        Error::Hub { .. } | Error::HubSpace { .. } => FAILED,
        Error::UnknownLayout { .. }
        | Error::BadMapping { .. }
        | Error::UnknownTemplate { .. }
        | Error::VocabularyTooSmall { .. }
        | Error::SynthShare { .. }
        | Error::SynthExhausted { .. }
        | Error::Offline { .. }
        | Error::UnknownModel { .. }
        | Error::NotAFolder { .. }
        | Error::MissingTurnToken { .. } => USAGE,
        Error::Read { .. }
        | Error::NoFiles { .. }
        | Error::UnsupportedExtension { .. }
        | Error::Compressed { .. }
        | Error::NotAFile { .. }
        | Error::TooLong { .. }
        | Error::Unpacks { .. }
        | Error::WrongFormat { .. }
        | Error::DamagedGzip { .. }
        | Error::ParquetCompression { .. }
        | Error::Csv { .. }
        | Error::DuplicateColumn { .. }
        | Error::NothingUsable { .. }
        | Error::UnreadField { .. }
        | Error::EmptyTurn { .. }
        | Error::NoRows { .. }
        | Error::BadJson { .. }
        | Error::NotAnObject { .. }
        | Error::Parquet { .. }
        | Error::Arrow { .. }
        | Error::MissingColumn { .. }
        | Error::AmbiguousLayout { .. }
        | Error::MixedLayouts { .. }
        | Error::MissingField { .. }
        | Error::WrongType { .. }
        | Error::UnknownRole { .. }
        | Error::EmptyConversation { .. }
        | Error::NoAssistantTurn
        | Error::NothingToScore
        | Error::EmptyCompletion { .. }
        | Error::NotOneAnswer { .. }
        | Error::LengthMismatch { .. }
        | Error::IdOutsideVocabulary { .. }
        | Error::BadPromptLength { .. }
        | Error::BadForeignRow { .. }
        | Error::TemplateSyntax { .. }
        | Error::TemplateRender { .. }
        | Error::RowTemplate { .. }
        | Error::NoChatTemplate { .. }
        | Error::NotAPrefix { .. }
        | Error::GenerationBlocks { .. }
        | Error::TokenizerMissing { .. }
        | Error::TokenizerInvalid { .. }
        | Error::Tokenize { .. }
        | Error::MissingSpecialToken { .. }
        | Error::RowTooLong { .. }
        | Error::NothingToSample
        | Error::SamplerState { .. }
        | Error::ModelFile { .. }
        | Error::DroppedTurn { .. }
        | Error::LongForModel { .. }
        | Error::HostileName { .. }
        | Error::DatasetName { .. }
        | Error::WeightIndex { .. }
        | Error::HubFileMissing { .. } => DATA,
    }
}

fn of_models(error: &models::Error) -> u8 {
    use models::Error;
    match error {
        Error::Parallel(error) => of_parallel(error),
        Error::Torch(error) => of_torch(error),
        Error::File(error) => of_file(error),
        Error::RanksDiverged { .. } => FAILED,
        Error::Sampling { .. } | Error::TooManyTokens { .. } | Error::Indivisible { .. } => USAGE,
        Error::TooLarge { .. } => DEVICE,
        Error::LogitsNotFinite { .. } => DIVERGED,
        Error::Io { .. }
        | Error::Json { .. }
        | Error::Field { .. }
        | Error::Unsupported { .. }
        | Error::TooManyParameters { .. }
        | Error::WrongModelKind { .. }
        | Error::WeightNotFinite { .. }
        | Error::UntiedHead { .. }
        | Error::MissingTensor { .. }
        | Error::UnexpectedTensor { .. }
        | Error::VocabMismatch { .. }
        | Error::EmptyPrompt { .. }
        | Error::LongPrompt { .. }
        | Error::TokenOutsideVocabulary { .. } => DATA,
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
        let place = |kind: io::ErrorKind| rlhf::Error::Io { path: "x".into(), source: kind.into() };
        let truncated =
            || parallel::safetensors_file::Error::Truncated { path: "x".into(), expected: 2, got: 1 };
        let hub = |reason: &str| datasets::Error::Hub {
            model: "a/b".into(),
            file: "config.json".into(),
            endpoint: "https://hub".into(),
            reason: reason.into(),
        };
        let in_recorder =
            |error: Error| rlhf::Error::Recorder(error.reallocate_into_boxed_dyn_error_without_backtrace());
        let of_model = |source: Error| {
            let source = source.reallocate_into_boxed_dyn_error_without_backtrace();
            eval::Error::Model { name: "m".into(), source }
        };
        let on_gpu = |message: &str| parallel::SysError::Torch { call: "mm".into(), message: message.into() };
        let cases: [(Error, u8); 29] = [
            (on_gpu("CUDA out of memory. Tried to allocate 20.00 MiB.").into(), DEVICE),
            (
                on_gpu("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`").into(),
                DEVICE,
            ),
            (place(io::ErrorKind::PermissionDenied).into(), USAGE),
            (place(io::ErrorKind::StorageFull).into(), FAILED),
            (place(io::ErrorKind::QuotaExceeded).into(), FAILED),
            (place(io::ErrorKind::Other).into(), FAILED),
            (Error::from(io::Error::from(io::ErrorKind::ReadOnlyFilesystem)).context("logs"), USAGE),
            (eval::Error::GroupCycle { group: String::new() }.into(), USAGE),
            (of_model(RemoteError::WeightsWanted { address: "http://h".into() }.into()).into(), USAGE),
            (of_model(RemoteError::Silent { seconds: 120 }.into()).into(), FAILED),
            (of_model(anyhow::anyhow!("anything")).into(), FAILED),
            (gemini::Error::File(truncated()).into(), DATA),
            (truncated().into(), DATA),
            (Failure::Stdin(missing_file()).into(), DATA),
            (Failure::LongMessage { length: 9, room: 3, context: 4 }.into(), DATA),
            (hub("status code 404").into(), USAGE),
            (hub("connection refused").into(), FAILED),
            (RemoteError::WeightsWanted { address: "http://h".into() }.into(), USAGE),
            (RemoteError::Silent { seconds: 120 }.into(), FAILED),
            (anyhow::anyhow!("anything"), FAILED),
            (in_recorder(anyhow::anyhow!("anything")).into(), FAILED),
            (in_recorder(ConfigError::OutHasRun("x".into()).into()).into(), USAGE),
            (ConfigError::NothingToExtend("x".into()).into(), USAGE),
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
