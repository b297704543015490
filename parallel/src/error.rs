//! Errors of the distributed runtime.

use parallel_sys::{Error as SysError, ErrorClass, error_class};

/// An error of the distributed runtime.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message of a variant says what its fields are")]
pub enum Error {
    /// libtorch or the C library refused a call.
    #[error(transparent)]
    Sys(#[from] SysError),
    /// The requested mesh does not match the number of processes.
    #[error("the mesh is {mesh} = {expected_size} ranks, but {world_size} {} running: change [parallel] or start that many processes", if *.world_size == 1 { "is" } else { "are" })]
    MeshSize {
        /// The axes as `data 2 x tensor 2`.
        mesh: String,
        /// The product of the axes.
        expected_size: usize,
        /// The number of processes.
        world_size: usize,
    },
    /// A stage has no gradient to send to the previous stage.
    #[error(
        "stage {stage} of the pipeline has no gradient for the stage before it: its parameters are frozen"
    )]
    NoInputGradient { stage: usize },
    /// The rank is outside the mesh.
    #[error("rank {rank} is outside the mesh of {size} ranks")]
    RankOutOfRange {
        rank: usize,
        /// The number of ranks of the mesh.
        size: usize,
    },
    /// A collective failed.
    #[error("rank {rank}: {collective} of the group {group}: {cause}")]
    Collective {
        /// The rank that reports the error.
        rank: usize,
        group: String,
        collective: &'static str,
        #[source]
        cause: SysError,
    },
    /// The port of the store cannot be bound.
    #[error(
        "the ranks cannot meet at {address}: {cause}; choose another free port as MASTER_PORT or --master-port"
    )]
    Port {
        /// The address of the store.
        address: String,
        /// The error of the operating system.
        #[source]
        cause: std::io::Error,
    },
    /// The store failed.
    #[error("the ranks cannot meet at {address}: {cause}")]
    Rendezvous {
        /// The address of the store.
        address: String,
        #[source]
        cause: SysError,
    },
    /// The listener at the address of the store is not the store of this job.
    #[error(
        "the server at {address} is not the rendezvous store of this job: it {problem}; check MASTER_ADDR and \
         MASTER_PORT (--master-addr, --master-port) and COLOSSAL_JOB_SECRET, and whether another program uses that port"
    )]
    NotAStore {
        /// The address of the store.
        address: String,
        /// What is wrong with the listener's behaviour.
        problem: &'static str,
    },
    /// A job of several processes has no secret.
    #[error(
        "rank {rank} of {size}: COLOSSAL_JOB_SECRET is not set, and without it anybody who reaches the port \
         of the job could take part; give every rank the same random text: `export \
         COLOSSAL_JOB_SECRET=$(openssl rand -hex 32)` before the launcher, and the same on every machine"
    )]
    NoSecret {
        /// The rank of this process.
        rank: usize,
        /// The number of processes.
        size: usize,
    },
    /// The secret is so short that it can be guessed.
    #[error(
        "COLOSSAL_JOB_SECRET has {length} characters and must have at least {}: `openssl rand -hex 32` \
         makes one",
        parallel_sys::c10d::Secret::MIN_LENGTH
    )]
    ShortSecret {
        /// The number of characters of the secret.
        length: usize,
    },
    /// A value at the store was not written by a rank of this job.
    #[error(
        "what the store at {address} holds as `{subject}` of rank {rank} was not written by a rank of this \
         job: another process wrote it, or that rank was started with another COLOSSAL_JOB_SECRET"
    )]
    InvalidTag {
        /// The rank that should have written it.
        rank: usize,
        /// The subject of the value.
        subject: String,
        /// The address of the store.
        address: String,
        /// The error of the store.
        #[source]
        cause: SysError,
    },
    /// A rank runs another version of this program, so its messages cannot be parsed.
    #[error("rank {rank} runs another version of this program: start every rank from the same build")]
    VersionMismatch { rank: usize },
    /// The host of the store does not answer.
    #[error(
        "{address} cannot be reached: {cause}; check MASTER_ADDR or --master-addr, and the network between the machines"
    )]
    Unreachable {
        /// The address of the store.
        address: String,
        /// The error of the operating system.
        #[source]
        cause: std::io::Error,
    },
    /// Some ranks did not arrive at the rendezvous.
    #[error("rank {rank} waited {seconds} s at {address}, and {} {} did not arrive: see their logs", if missing.len() == 1 { "rank" } else { "ranks" }, list(missing))]
    MissingRanks {
        /// The rank that reports the error.
        rank: usize,
        /// The missing ranks.
        missing: Vec<usize>,
        /// The address of the store.
        address: String,
        /// How long the rank waited.
        seconds: u64,
    },
    /// The environment variables of the launcher are inconsistent.
    #[error("{launcher} started this process, and {name}{} {problem}", if value.is_empty() { String::new() } else { format!(" = {value:?}") })]
    LauncherVars {
        launcher: &'static str,
        /// The variable.
        name: &'static str,
        value: String,
        problem: &'static str,
    },
    /// Shared memory was requested for a group that spans several hosts.
    #[error(
        "the group {group} spans several hosts (ranks {hosts}), which share no memory: set [parallel] transport = \"auto\""
    )]
    SpansHosts {
        group: String,
        /// The ranks of each host.
        hosts: String,
    },
    /// The memory manager could not bring weights into memory.
    #[error("{error}")]
    Residency {
        /// The class of the error.
        class: ErrorClass,
        /// The error of a crate above this one. The message says all of it, so it is not a source.
        error: Box<dyn std::error::Error + Send + Sync>,
    },
    /// More threads than cores make every operation wait for the scheduler.
    #[error(
        "{threads} threads in each of {processes} processes on {cores} cores: give --threads, or `threads` \
         in the run file, at least 1 and at most {}", (cores / processes).max(1)
    )]
    Threads {
        /// The requested number of threads.
        threads: usize,
        /// The number of processes on this host.
        processes: usize,
        /// The number of available cores.
        cores: usize,
    },
    /// There are so many processes that they would mostly wait for one another.
    #[error(
        "{processes} processes on {cores} cores would only wait for one another: use --nproc {cores}, or at \
         most {most} to try a layout out"
    )]
    Processes {
        /// The number of processes on this host.
        processes: usize,
        /// The number of available cores.
        cores: usize,
        /// The maximum number of processes.
        most: usize,
    },
}

impl Error {
    /// The class of this error. Most errors are about how a job is started.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Sys(error) => error.class(),
            Self::Residency { class, .. } => *class,
            Self::Collective { cause: SysError::Torch { message, .. }, .. }
                if error_class::is_out_of_memory(message) =>
            {
                ErrorClass::Device
            }
            Self::Collective { .. }
            | Self::NoInputGradient { .. }
            | Self::MissingRanks { .. }
            | Self::InvalidTag { .. }
            | Self::VersionMismatch { .. } => ErrorClass::Failed,
            _ => ErrorClass::Usage,
        }
    }
}

/// Converts the error for a custom backward function, which must return a [`SysError`].
impl From<Error> for SysError {
    fn from(error: Error) -> Self {
        match error {
            Error::Sys(error) => error,
            error => Self::Torch { call: "backward".to_owned(), message: error.to_string() },
        }
    }
}

fn list(ranks: &[usize]) -> String {
    ranks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
