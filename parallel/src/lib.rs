//! Who talks to whom, and what is split among them: the process mesh, placed parameters, and a network as segments.
//!
//! Knows no model family, no data and no algorithm.

pub mod launch;
pub mod mesh;
pub mod parameter;
pub mod segment;

pub use mesh::{Axis, Mesh};
pub use parallel_sys::{Error as SysError, autograd, dispatch, memory, runtime};
pub use parameter::{Parameter, Placement};
pub use segment::{Segmented, Tape};

/// What can go wrong in the training layer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// libtorch or the C library refused a call.
    #[error(transparent)]
    Sys(#[from] parallel_sys::Error),
    /// The mesh that was asked for does not match the processes that there are.
    #[error("the mesh is {mesh} = {wanted} ranks, but {there} {} running: change [parallel] or start as many", if *.there == 1 { "is" } else { "are" })]
    MeshSize {
        /// The axes as `data 2 x tensor 2`.
        mesh: String,
        /// The product of the axes.
        wanted: usize,
        /// The number of processes.
        there: usize,
    },
    /// A rank that the mesh does not hold.
    #[error("rank {rank} is outside the mesh of {size} ranks")]
    Rank {
        /// The rank.
        rank: usize,
        /// The ranks of the mesh.
        size: usize,
    },
    /// More threads than cores make every operation wait for the scheduler.
    #[error("{threads} threads were asked for and the machine has {cores} cores: lower `threads`")]
    Threads {
        /// The threads asked for.
        threads: usize,
        /// The cores there are.
        cores: usize,
    },
}
