//! Distributed runtime: the device mesh, process groups and collectives, sharded parameters, and models that
//! run as a list of segments.
//!
//! Knows no model family, no data and no algorithm.

pub mod comm;
pub mod launch;
pub mod mappings;
pub mod mesh;
pub mod parameter;
pub mod pipeline;
pub mod rendezvous;
pub mod safetensors_file;
pub mod segment;
pub mod sequence;
pub mod weight_grad_store;
pub mod world;

pub use mesh::{Axis, Mesh};
pub use parallel_sys::{Error as SysError, autograd, c10d, dispatch, memory, process, runtime};
pub use parameter::{Parameter, Placement, ShardSpec};
pub use pipeline::PipelineStages;
pub use segment::{Segmented, Tape};
pub use world::{ProcessGroups, RankInfo, Transport, World};

/// What can go wrong in the training layer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// libtorch or the C library refused a call.
    #[error(transparent)]
    Sys(#[from] parallel_sys::Error),
    /// The mesh that was asked for does not match the processes that there are.
    #[error("the mesh is {mesh} = {expected_size} ranks, but {world_size} {} running: change [parallel] or start as many", if *.world_size == 1 { "is" } else { "are" })]
    MeshSize {
        /// The axes as `data 2 x tensor 2`.
        mesh: String,
        /// The product of the axes.
        expected_size: usize,
        /// The number of processes.
        world_size: usize,
    },
    /// A stage got no gradient to hand on.
    #[error("stage {stage} of the pipeline has no gradient to hand on: its parameters are frozen")]
    NoInputGradient {
        /// The stage.
        stage: usize,
    },
    /// A rank that the mesh does not hold.
    #[error("rank {rank} is outside the mesh of {size} ranks")]
    RankOutOfRange {
        /// The rank.
        rank: usize,
        /// The ranks of the mesh.
        size: usize,
    },
    /// A collective failed.
    #[error("rank {rank}: {collective} of the group {group}: {cause}")]
    Collective {
        /// The rank that tells.
        rank: usize,
        /// The group.
        group: String,
        /// The collective.
        collective: &'static str,
        /// What went wrong.
        #[source]
        cause: parallel_sys::Error,
    },
    /// The port of the store cannot be had.
    #[error(
        "the ranks cannot meet at {address}: {cause}; choose another free port as MASTER_PORT or --master-port"
    )]
    Port {
        /// Where the job meets.
        address: String,
        /// The system's reason.
        #[source]
        cause: std::io::Error,
    },
    /// The store failed.
    #[error("the ranks cannot meet at {address}: {cause}")]
    Rendezvous {
        /// Where the job meets.
        address: String,
        /// What went wrong.
        #[source]
        cause: parallel_sys::Error,
    },
    /// What listens at the address of the store is something else.
    #[error(
        "what listens at {address} {problem}, so it is no store of this job; look at MASTER_ADDR and \
         MASTER_PORT (--master-addr, --master-port), at COLOSSAL_JOB_SECRET, and for another program at \
         that port"
    )]
    NotAStore {
        /// Where the job meets.
        address: String,
        /// What it did.
        problem: &'static str,
    },
    /// A job of several processes without a secret.
    #[error(
        "rank {rank} of {size}: COLOSSAL_JOB_SECRET is not set, and without it anybody who reaches the port \
         of the job could take part; give every rank the same random text: `export \
         COLOSSAL_JOB_SECRET=$(openssl rand -hex 32)` before the launcher, and the same on every machine"
    )]
    NoSecret {
        /// This process.
        rank: usize,
        /// All processes.
        size: usize,
    },
    /// A secret that can be guessed.
    #[error(
        "COLOSSAL_JOB_SECRET has {length} characters and must have at least {}: `openssl rand -hex 32` \
         makes one",
        parallel_sys::c10d::Secret::MIN_LENGTH
    )]
    ShortSecret {
        /// The characters there are.
        length: usize,
    },
    /// A value at the store that a stranger has written.
    #[error(
        "what the store at {address} holds as `{subject}` of rank {rank} was not written by a rank of this \
         job: a stranger wrote it, or that rank was started with another COLOSSAL_JOB_SECRET"
    )]
    InvalidTag {
        /// The rank that should have written it.
        rank: usize,
        /// What it is about.
        subject: String,
        /// Where the job meets.
        address: String,
        /// What the store said.
        #[source]
        cause: parallel_sys::Error,
    },
    /// A rank that speaks another version's words.
    #[error("rank {rank} runs another version of this program: start every rank from the same build")]
    VersionMismatch {
        /// The rank.
        rank: usize,
    },
    /// The host of the store does not answer.
    #[error(
        "{address} cannot be reached: {cause}; look at MASTER_ADDR or --master-addr, and at the network between the machines"
    )]
    Unreachable {
        /// Where the job meets.
        address: String,
        /// The system's reason.
        #[source]
        cause: std::io::Error,
    },
    /// Ranks that did not come.
    #[error("rank {rank} waited {seconds} s at {address}, and {} {} did not come: look at their logs", if missing.len() == 1 { "rank" } else { "ranks" }, list(missing))]
    MissingRanks {
        /// The rank that tells.
        rank: usize,
        /// Those that did not come.
        missing: Vec<usize>,
        /// Where the job meets.
        address: String,
        /// How long it waited.
        seconds: u64,
    },
    /// What a launcher says of a process does not make sense.
    #[error("{launcher} started this process, and {name}{} {problem}", if value.is_empty() { String::new() } else { format!(" = {value:?}") })]
    LauncherVars {
        /// The launcher.
        launcher: &'static str,
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// What is wrong.
        problem: &'static str,
    },
    /// Shared memory was asked for between hosts.
    #[error(
        "the group {group} lies on several hosts (ranks {hosts}), which share no memory: set [parallel] transport = \"auto\""
    )]
    SpansHosts {
        /// The group.
        group: String,
        /// The ranks of each host.
        hosts: String,
    },
    /// More threads than cores make every operation wait for the scheduler.
    #[error(
        "{threads} threads in each of {processes} processes on {cores} cores: give --threads, or `threads` \
         in the run file, at least 1 and at most {}", (cores / processes).max(1)
    )]
    Threads {
        /// The threads asked for.
        threads: usize,
        /// The processes of this host.
        processes: usize,
        /// The cores there are.
        cores: usize,
    },
    /// More processes than can do anything but wait.
    #[error(
        "{processes} processes on {cores} cores would only wait for one another: use --nproc {cores}, or at \
         most {most} to try a layout out"
    )]
    Processes {
        /// The processes of this host.
        processes: usize,
        /// The cores there are.
        cores: usize,
        /// The most that are allowed.
        most: usize,
    },
}

/// A backward pass hands libtorch's kind of error on.
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
