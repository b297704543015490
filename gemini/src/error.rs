//! Errors of training steps and checkpoints.

use std::path::PathBuf;

use parallel::ErrorClass;

/// What can go wrong in a training step or a checkpoint.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message of a variant says what its fields are")]
pub enum Error {
    /// An error of the `parallel` crate.
    #[error(transparent)]
    Parallel(#[from] parallel::Error),
    /// A call to libtorch or the C library failed.
    #[error(transparent)]
    Sys(#[from] parallel::SysError),
    /// A tensor operation failed, most often for lack of memory.
    #[error("{what}: {source}")]
    Tensor {
        /// The operation that failed.
        what: &'static str,
        /// libtorch's reason.
        #[source]
        source: tch::TchError,
    },
    /// What has to be in memory at the same time exceeds the budget.
    #[error(
        "the models need {} MiB at the same time, {} MiB of which could be moved to the disk, and [gemini] \
         device_memory is {} MiB: raise it, lower [train] micro_batch_size, set activation_checkpointing, or let \
         chunks leave memory with placement = \"auto\"",
        needed >> 20, evictable >> 20, budget >> 20
    )]
    OverBudget {
        /// The bytes that would be in memory.
        needed: usize,
        /// The bytes of chunks that are not in use.
        evictable: usize,
        /// The bytes that are allowed.
        budget: usize,
    },
    /// Other processes leave too little of the budget.
    #[error(
        "the models need {} MiB at the same time, and other processes on the device leave {} of the {} MiB of \
         [gemini] device_memory: end those processes, or resume the run when they have ended",
        needed >> 20, left >> 20, budget >> 20
    )]
    SharedDevice {
        /// The bytes that would be in memory.
        needed: usize,
        /// The bytes that are left.
        left: usize,
        /// The bytes of the budget.
        budget: usize,
    },
    /// Chunks that have left the device exceed the memory of the host, and none of them can go to the disk.
    #[error(
        "{} MiB of chunks that leave the device need room in memory of the host, {} MiB of which could be moved to the \
         disk, and [gemini] host_memory is {} MiB (by default, three quarters of the machine's memory): set it to a \
         size that this machine has, and chunks beyond it go to the disk",
        needed >> 20, evictable >> 20, limit >> 20
    )]
    OverHostMemory {
        /// The bytes that would be in memory of the host.
        needed: usize,
        /// The bytes that can go.
        evictable: usize,
        /// The bytes that are allowed.
        limit: usize,
    },
    /// The loss or the gradient is no longer finite.
    #[error(
        "the {what} of optimizer step {step} is {value}: lower [train] lr, raise warmup_steps, or check the rows of this step"
    )]
    Diverged {
        /// `loss` or `gradient norm`.
        what: &'static str,
        /// The optimizer step, from 1.
        step: u64,
        value: f64,
    },
    /// Ranks that should hold the same weights hold different ones.
    #[error(
        "ranks {rank} and {other} start from different weights: the folders of the models must be the same on all machines"
    )]
    ReplicasDiffer {
        rank: usize,
        /// A rank whose weights differ from those of the other.
        other: usize,
    },
    /// Ranks that should hold the same values hold different ones after the training.
    #[error(
        "{name} is not the same on ranks {rank} and {other}, which hold copies of it: their processors compute different \
         numbers, or one of them is faulty; nothing more is saved. Train again on machines of one kind, or resume from a \
         checkpoint, which holds the copies of one rank"
    )]
    ReplicasDrifted {
        /// The parameter, or a tensor of the optimizer for it.
        name: String,
        rank: usize,
        /// The first rank whose values differ from those of the other.
        other: usize,
    },
    /// An invalid setting.
    #[error("[train] {key} = {value}: {wanted}")]
    Setting {
        key: &'static str,
        value: String,
        /// The allowed values.
        wanted: &'static str,
    },
    /// A trained parameter whose tensor is not contiguous.
    #[error(
        "{name} is trained and its tensor is not contiguous; the update would mix up its values. \
             Load the model with LoadOptions::trainable"
    )]
    NotContiguous {
        /// The parameter.
        name: String,
    },
    /// A weight that is not divided over the ranks as its gradient is.
    #[error(
        "{name} is not sharded over the data-parallel ranks as ZeRO needs it: load the model with \
             LoadOptions::memory, and train all of its parameters"
    )]
    Unsharded {
        /// The parameter.
        name: String,
    },
    /// No parameter is trained.
    #[error("no parameter of this model is trained: every one is frozen")]
    NoTrainableParameters,
    /// A safetensors file could not be read or written.
    #[error(transparent)]
    File(#[from] parallel::safetensors_file::Error),
    /// The system refuses a thread.
    #[error("cannot start the thread that reads ahead: {0}")]
    Thread(#[source] std::io::Error),
    /// A file system operation failed.
    #[error("{}: {source}{}", path.display(), space_hint(source))]
    Io {
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// Something already exists where a folder is to be created.
    #[error("{}: there is something at this place already, and nothing is overwritten: choose another place, or move it away", path.display())]
    AlreadyExists { path: PathBuf },
    /// A file of a checkpoint is damaged.
    #[error("{}: {problem}", path.display())]
    Damaged { path: PathBuf, problem: String },
    /// A saved state that does not belong to this run.
    #[error("{}: {problem}; resume with the model and the [train] section that wrote it", path.display())]
    State {
        path: PathBuf,
        /// What does not match.
        problem: String,
    },
}

impl Error {
    /// The class of this error.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Parallel(error) => error.class(),
            Self::Sys(error) => error.class(),
            Self::File(error) => error.class(),
            Self::Tensor { source, .. } => ErrorClass::of_torch(source),
            Self::Io { source, .. } | Self::Thread(source) => ErrorClass::of_io(source.kind()),
            Self::Diverged { .. } => ErrorClass::Diverged,
            Self::Setting { .. }
            | Self::NoTrainableParameters
            | Self::State { .. }
            | Self::AlreadyExists { .. }
            | Self::ReplicasDiffer { .. } => ErrorClass::Usage,
            Self::Damaged { .. } => ErrorClass::Data,
            Self::OverBudget { .. } | Self::SharedDevice { .. } | Self::OverHostMemory { .. } => {
                ErrorClass::Device
            }
            Self::NotContiguous { .. } | Self::Unsharded { .. } | Self::ReplicasDrifted { .. } => {
                ErrorClass::Failed
            }
        }
    }
}

/// Suggests a fix when the disk is full.
/// An error of the manager, as the `parallel` crate passes it on.
pub(crate) fn residency_error(error: Error) -> parallel::Error {
    match error {
        Error::Parallel(error) => error,
        error => parallel::Error::Residency { class: error.class(), error: Box::new(error) },
    }
}

fn space_hint(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
            ": free some space, or lower [checkpoint] keep; earlier checkpoints are untouched"
        }
        _ => "",
    }
}
