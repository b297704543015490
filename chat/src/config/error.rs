//! The errors of the configuration and of the command line. A message names the place, the key, the value
//! that was found, and the value that is expected.

use std::path::PathBuf;

use parallel::ErrorClass;
use text::number::counted;

use super::location::SourceLocation;

/// An error of the configuration or of the command line.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// The file is not TOML.
    #[error("{place}: {message}")]
    Syntax {
        /// Where the error is.
        place: SourceLocation,
        /// The parser's message.
        message: String,
    },
    /// `--set` without a key or without a value.
    #[error("--set {0}: wanted KEY=VALUE with a dotted key, such as --set train.lr=1e-4")]
    SetSyntax(String),
    /// A key that no section has.
    #[error("{}unknown key `{key}`{} (known here: {known})", at(place.as_ref()), hint(nearest.as_deref()))]
    UnknownKey {
        /// Where the key was written.
        place: Option<SourceLocation>,
        /// The dotted key.
        key: String,
        /// The most similar known key, if any is similar enough.
        nearest: Option<String>,
        /// All keys of the section.
        known: String,
    },
    /// A name that the key does not accept.
    #[error("{}`{key}` is {value:?}{}; wanted one of {known}", at(place.as_ref()), hint(nearest.as_deref()))]
    UnknownValue {
        /// Where the key was written.
        place: Option<SourceLocation>,
        /// The dotted key.
        key: String,
        /// The value that was written.
        value: String,
        /// The most similar accepted name, if any is similar enough.
        nearest: Option<String>,
        /// All names that the key accepts.
        known: String,
    },
    /// A value of the wrong type.
    #[error("{}`{key}` is {found}, wanted {wanted}", at(place.as_ref()))]
    Type {
        /// Where the key was written.
        place: Option<SourceLocation>,
        /// The dotted key.
        key: String,
        /// The type or value that was written.
        found: String,
        /// The type that is expected.
        wanted: String,
    },
    /// A required key is missing; serde detects this.
    #[error("{}`{key}` is missing", at(place.as_ref()))]
    Missing {
        /// Where its section is.
        place: Option<SourceLocation>,
        /// The dotted key.
        key: String,
    },
    /// A value that is out of range or contradicts another one.
    #[error("{}`{key}`: {message}", at(place.as_ref()))]
    Value {
        /// Where the key was written.
        place: Option<SourceLocation>,
        /// The dotted key.
        key: String,
        /// The reason, and how to fix it.
        message: String,
    },
    /// A value that another crate refuses because it defines the section.
    #[error(transparent)]
    Section(#[from] rlhf::Error),
    /// A key that the stage needs and that is not set.
    #[error("`{key}` is not set, and {stage} needs {what}: write it in the file or give --set {key}=...")]
    Needed {
        /// The dotted key.
        key: &'static str,
        stage: &'static str,
        /// A description of the value that the stage needs.
        what: &'static str,
    },
    /// A stage that learns from rewards has none.
    #[error(
        "[[reward]] is not set, and {stage} needs something that scores replies: write an entry, such as kind = \"math\", or \
         name a reward model with --set ppo.reward_model=..., the short form of kind = \"model\""
    )]
    NoReward { stage: &'static str },
    /// The list of rewards as a table, as the section of reward-model training was called.
    #[error(
        "{place}: `{key}` is a table, and [[reward]] is the list of rewards: write [[reward]] with two brackets for an entry of \
         it; the settings of reward-model training are in [rm] now"
    )]
    RewardTable {
        /// Where the key was written.
        place: SourceLocation,
        /// The dotted key.
        key: String,
    },
    /// A model folder that does not exist and that no earlier part of the pipeline writes.
    #[error(
        "`{key}`: {} does not exist, and no earlier part of this pipeline writes it: add that part to [pipeline] stages, or \
         name another model folder",
        path.display()
    )]
    NotMade {
        /// The dotted key.
        key: &'static str,
        path: PathBuf,
    },
    /// A key that has no effect on the stage.
    #[error("{place}: `{key}` has no effect on {stage}: {reason}")]
    NoEffect {
        /// Where the key was written.
        place: SourceLocation,
        /// The dotted key.
        key: String,
        stage: &'static str,
        /// Why it has no effect, and what to do about it.
        reason: &'static str,
    },
    /// `--nproc` was given to a process that a launcher has already started as a rank.
    #[error(
        "--nproc {processes}: this process is rank {rank} of {size} already, which a launcher started; leave --nproc out"
    )]
    Launched {
        /// The requested number of processes.
        processes: usize,
        /// The rank of this process.
        rank: usize,
        /// The world size that the launcher has set.
        size: usize,
    },
    /// Ranks that were started with different settings.
    #[error(
        "rank {rank} has `{key}` = {own}, and rank 0 has {first}: start every rank with the same command, file and --set"
    )]
    RanksDiffer {
        /// The first rank that differs.
        rank: usize,
        /// The dotted key.
        key: String,
        /// The value on this rank.
        own: String,
        /// The value on rank 0.
        first: String,
    },
    /// A rank could not prepare itself for the job.
    #[error("rank {rank}: {problem}")]
    RankFailed {
        /// The rank that failed.
        rank: usize,
        /// The rank's error message.
        problem: String,
    },
    /// A rank cannot use the checkpoint that rank 0 has chosen.
    #[error(
        "{}: rank 0 continues from {first}, which rank {rank} cannot use ({problem}): `out` must be one folder that all machines share",
        path.display()
    )]
    Checkpoints {
        /// The folder of the checkpoints.
        path: PathBuf,
        /// The first rank that cannot use it.
        rank: usize,
        /// The name of the checkpoint.
        first: String,
        /// What is wrong with the checkpoint as that rank sees it.
        problem: String,
    },
    /// The models of a stage have different tokenizers.
    #[error(
        "{}: the {role} model has another tokenizer than the model in training: {difference}; all models of a \
         stage are shown the same ids, so take one of the same base",
        folder.display()
    )]
    Tokenizers {
        /// The role of the model that differs from the trained one.
        role: &'static str,
        /// The folder of that model.
        folder: PathBuf,
        /// The first token that differs.
        difference: String,
    },
    /// The longest prompt uses all of the policy's positions.
    #[error(
        "[data] max_length: the longest prompt has {longest} tokens and the policy {room} positions, which leaves no room for a reply; set data.max_length below {room}"
    )]
    NoRoom {
        /// The length of the longest prompt in tokens.
        longest: usize,
        /// The number of positions of the policy.
        room: usize,
    },
    /// A resumed run has other settings than it began with.
    #[error("{}: the run began with `{key}` = {was}, and it is {now} here: resume with what it began with, or choose another `out`", path.display())]
    Changed {
        /// The saved configuration.
        path: PathBuf,
        /// The dotted key.
        key: String,
        /// The value that the run began with.
        was: String,
        /// The value that is set now.
        now: String,
    },
    /// The run folder already holds a run, and `--resume` was not given.
    #[error("{}: there is a run in this folder already: continue it with --resume, or choose another `out`", .0.display())]
    OutHasRun(PathBuf),
    /// The run folder contains a file or folder that this program did not make.
    #[error(
        "{}: no run of this program made this, and a run would overwrite it: choose another `out`, or move it away",
        .0.display()
    )]
    ForeignFile(PathBuf),
    /// There is something that is neither a file nor a folder under a name that this program uses.
    #[error(
        "{}: this is {found}, and this program follows and opens none in its folders: move it away",
        path.display()
    )]
    NotPlain {
        /// The place.
        path: PathBuf,
        /// What is there.
        found: &'static str,
    },
    /// A run is to be continued in a folder without a marker.
    #[error(
        "{}: it has no file .colossal-chat, by which this program knows its folders: if a run made it, write the \
         line `colossal-chat 1 run` into that file", .0.display()
    )]
    NoMarker(PathBuf),
    /// The marker of a folder cannot be read.
    #[error(
        "{}: {problem}: if no command of this program made this folder, choose another one; if one did, mend or \
         remove this file", path.display()
    )]
    Marker {
        /// The marker.
        path: PathBuf,
        problem: String,
    },
    /// The run file is the very file to which the run saves its resolved configuration.
    #[error(
        "{}: this is the run file, and the run would overwrite it with the resolved configuration: copy it to another place, or choose another `out`",
        .0.display()
    )]
    RunFileInOut(PathBuf),
    /// The folder of a run or of results, `out` or `--output`, cannot be created or used.
    #[error("{:?} cannot be used: {problem}: choose another folder", path.display().to_string())]
    BadOut {
        path: PathBuf,
        /// The reason.
        problem: String,
    },
    /// Another process is writing to the run folder.
    #[error(
        "{}: {holder} is running in this folder: wait until it has ended, or choose another `out`",
        path.display()
    )]
    Locked {
        /// The run folder.
        path: PathBuf,
        /// The process that holds the lock.
        holder: String,
    },
    /// Every checkpoint of the run is damaged.
    #[error(
        "{}: every checkpoint is damaged, so there is nothing to resume from ({}): restore one from a copy, or begin a new run in another `out`",
        path.display(), problems.join("; ")
    )]
    NoWholeCheckpoint {
        /// The folder of the checkpoints.
        path: PathBuf,
        /// What is wrong with each checkpoint, newest first.
        problems: Vec<String>,
    },
    /// A finished run that kept no checkpoint cannot become longer.
    #[error(
        "{}: this run is finished and has kept no checkpoint, so it cannot become longer: start a new run from its `final` ([model] path), with [checkpoint] every above 0",
        .0.display()
    )]
    NothingToExtend(PathBuf),
    /// A resumed run that would become shorter.
    #[error(
        "{}: this run has {}, and {now} are asked for: a run can become longer, not shorter; ask for {was} or more, or choose another `out`",
        path.display(),
        counted(*was, unit)
    )]
    Shorter {
        /// The run folder.
        path: PathBuf,
        /// What is counted, in the singular: step, iteration or epoch.
        unit: &'static str,
        /// The length of the run.
        was: u64,
        /// The length that is asked for.
        now: u64,
    },
    /// A stage of a pipeline that later stages have already started from.
    #[error(
        "stage {stage} cannot become longer: its model has already been used by {}: remove the folders of these stages in {}, which will be made again, or choose another `out`",
        later.join(", "),
        path.display()
    )]
    UsedByLaterStages {
        /// The stage that would become longer.
        stage: &'static str,
        /// The later stages that have a run folder.
        later: Vec<&'static str>,
        /// The folder of the pipeline.
        path: PathBuf,
    },
    /// A device that this machine does not have, or that the processes of a job cannot share.
    #[error("device {setting}: {problem}")]
    Device { setting: String, problem: String },
    /// A command-line argument that is not acceptable.
    #[error("{argument}: {problem}")]
    Argument {
        /// The argument as it was typed.
        argument: String,
        problem: String,
    },
}

// `with_sections` is beside the names of sections (`read`), and `placed` beside the places of keys (`tree`).
impl ConfigError {
    /// The class of this error: usage, except for an error of another crate, for damaged checkpoints and for
    /// devices.
    pub(crate) fn class(&self) -> ErrorClass {
        match self {
            Self::Section(error) => error.class(),
            Self::NoWholeCheckpoint { .. } => ErrorClass::Data,
            Self::Device { .. } => ErrorClass::Device,
            _ => ErrorClass::Usage,
        }
    }
}

fn at(place: Option<&SourceLocation>) -> String {
    place.map_or_else(String::new, |place| format!("{place}: "))
}

fn hint(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |nearest| format!(", did you mean `{nearest}`?"))
}
