//! What can be wrong with a configuration. Each message says where, which key, what was found, and what is
//! wanted.

use std::path::PathBuf;

use super::tree::SourceLocation;

/// The error of the configuration and of the command line; the program ends with code 2.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// The file is not TOML.
    #[error("{place}: {message}")]
    Syntax {
        /// Where.
        place: SourceLocation,
        /// What the parser says.
        message: String,
    },
    /// `--set` without a key or without a value.
    #[error("--set {0}: wanted KEY=VALUE with a dotted key, such as --set train.lr=1e-4")]
    SetSyntax(String),
    /// A key that no section has.
    #[error("{}unknown key `{key}`{} (known here: {known})", at(place.as_ref()), hint(nearest.as_deref()))]
    UnknownKey {
        /// Where.
        place: Option<SourceLocation>,
        /// The dotted key.
        key: String,
        /// The most alike.
        nearest: Option<String>,
        /// Every key that the section has.
        known: String,
    },
    /// A name that a key does not take.
    #[error("{}`{key}` is {value:?}{}; wanted one of {known}", at(place.as_ref()), hint(nearest.as_deref()))]
    UnknownValue {
        /// Where.
        place: Option<SourceLocation>,
        /// The dotted key.
        key: String,
        /// What was written.
        value: String,
        /// The most alike.
        nearest: Option<String>,
        /// Every name that it takes.
        known: String,
    },
    /// A value of the wrong type.
    #[error("{}`{key}` is {found}, wanted {wanted}", at(place.as_ref()))]
    Type {
        /// Where.
        place: Option<SourceLocation>,
        /// The dotted key.
        key: String,
        /// What was written.
        found: String,
        /// What is wanted.
        wanted: String,
    },
    /// A key without which nothing can be done, found by serde.
    #[error("{}`{key}` is missing", at(place.as_ref()))]
    Missing {
        /// Where its section is.
        place: Option<SourceLocation>,
        /// The dotted key.
        key: String,
    },
    /// A value that its section refuses.
    #[error("{}`{key}`: {message}", at(place.as_ref()))]
    Value {
        /// Where.
        place: Option<SourceLocation>,
        /// The dotted key.
        key: String,
        /// Why, and the fix.
        message: String,
    },
    /// A value that the crate which reads its section refuses.
    #[error(transparent)]
    Section(#[from] rlhf::Error),
    /// A key that the stage needs and nobody set.
    #[error("`{key}` is not set, and {stage} needs {what}: write it in the file or give --set {key}=...")]
    Needed {
        /// The dotted key.
        key: &'static str,
        /// The stage.
        stage: &'static str,
        /// What it is.
        what: &'static str,
    },
    /// A model folder of the pipeline that none of its parts makes.
    #[error(
        "`{key}`: {} does not exist, and no earlier part of this pipeline writes it: add that part to [pipeline] stages, or \
         name another model folder",
        path.display()
    )]
    NotMade {
        /// The key.
        key: &'static str,
        /// The folder.
        path: PathBuf,
    },
    /// A key that changes nothing.
    #[error("{place}: `{key}` has no effect on {stage}: {reason}")]
    NoEffect {
        /// Where.
        place: SourceLocation,
        /// The dotted key.
        key: String,
        /// The stage.
        stage: &'static str,
        /// Why, and what to do.
        reason: &'static str,
    },
    /// Processes that would start processes.
    #[error(
        "--nproc {processes}: this process is rank {rank} of {size} already, which a launcher started; leave --nproc out"
    )]
    Launched {
        /// The processes asked for.
        processes: usize,
        /// This one.
        rank: usize,
        /// Those of the launcher.
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
        /// Its value here.
        own: String,
        /// Its value at rank 0.
        first: String,
    },
    /// A rank that cannot take part.
    #[error("rank {rank}: {problem}")]
    RankFailed {
        /// Which.
        rank: usize,
        /// What it says.
        problem: String,
    },
    /// A checkpoint that a rank does not see as rank 0 does.
    #[error(
        "{}: rank 0 goes on from {first}, which rank {rank} cannot use ({problem}): `out` must be one folder that all machines share",
        path.display()
    )]
    Checkpoints {
        /// The folder.
        path: PathBuf,
        /// The rank that cannot.
        rank: usize,
        /// The checkpoint that rank 0 has chosen.
        first: String,
        /// What is wrong with it there.
        problem: String,
    },
    /// Models of PPO that do not read the same tokens.
    #[error(
        "{}: the {role} model has another tokenizer than the policy: {difference}; the four models of PPO are \
         shown the same ids, so train it from the same base as the policy",
        folder.display()
    )]
    Tokenizers {
        /// The other model's role.
        role: &'static str,
        /// Its folder.
        folder: PathBuf,
        /// The first token that differs.
        difference: String,
    },
    /// Prompts that fill the policy's positions.
    #[error(
        "[data] max_length: the longest prompt has {longest} tokens and the policy {room} positions, which leaves no room for a reply; set data.max_length below {room}"
    )]
    NoRoom {
        /// Tokens of the longest prompt.
        longest: usize,
        /// Positions of the policy.
        room: usize,
    },
    /// A resumed run with other settings.
    #[error("{}: the run began with `{key}` = {was}, and it is {now} here: resume with what it began with, or choose another `out`", path.display())]
    Changed {
        /// The saved configuration.
        path: PathBuf,
        /// The dotted key.
        key: String,
        /// What the run began with.
        was: String,
        /// What is asked for now.
        now: String,
    },
    /// A run folder that holds another run.
    #[error("{}: there is a run in this folder already: continue it with --resume, or choose another `out`", .0.display())]
    OutHasRun(PathBuf),
    /// Something of somebody else in a run folder.
    #[error(
        "{}: no run of this program made this, and a run would overwrite it: choose another `out`, or move it away",
        .0.display()
    )]
    ForeignFile(PathBuf),
    /// A run file at the very place where the run saves its own.
    #[error(
        "{}: this is the run file, and the run would overwrite it with the resolved configuration: copy it to another place, or choose another `out`",
        .0.display()
    )]
    RunFileInOut(PathBuf),
    /// A run folder that cannot be made.
    #[error("`out` = {:?}: {problem}: choose another `out`", path.display().to_string())]
    BadOut {
        /// The folder.
        path: PathBuf,
        /// Why.
        problem: String,
    },
    /// A run folder that another process is writing to.
    #[error(
        "{}: {holder} is running in this folder: wait until it has ended, or choose another `out`",
        path.display()
    )]
    Locked {
        /// The folder.
        path: PathBuf,
        /// Who holds it.
        holder: String,
    },
    /// Checkpoints of which none is whole.
    #[error(
        "{}: every checkpoint is damaged, so there is nothing to resume from ({}): restore one from a copy, or begin a new run in another `out`",
        path.display(), problems.join("; ")
    )]
    NoWholeCheckpoint {
        /// The folder.
        path: PathBuf,
        /// What is wrong with each, newest first.
        problems: Vec<String>,
    },
    /// Nothing to continue.
    #[error("{}: there is no checkpoint to resume from: leave --resume out, or correct `out`", .0.display())]
    NothingToResume(PathBuf),
    /// An argument of the command line that cannot be.
    #[error("{argument}: {problem}")]
    Argument {
        /// The argument as typed.
        argument: String,
        /// What is wrong, and the fix.
        problem: String,
    },
}

fn at(place: Option<&SourceLocation>) -> String {
    place.map_or_else(String::new, |place| format!("{place}: "))
}

fn hint(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |nearest| format!(", did you mean `{nearest}`?"))
}
