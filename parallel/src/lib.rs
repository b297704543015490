//! Distributed runtime: the device mesh, process groups and collectives, sharded parameters, and models that
//! run as a list of segments.
//!
//! This crate knows no model family, no data and no algorithm.

pub mod comm;
pub mod device;
mod error;
pub mod hash;
pub mod launch;
pub mod mappings;
pub mod mesh;
pub mod parameter;
pub mod pipeline;
pub mod rendezvous;
pub mod residency;
pub mod safetensors_file;
pub mod segment;
pub mod sequence;
pub mod weight_grad_store;
pub mod world;

pub use device::upload;
pub use error::Error;
pub use hash::fnv1a;
pub use mesh::{Axis, Mesh};
pub use parallel_sys::{
    Error as SysError, ErrorClass, adamw, allocator, arena, autograd, c10d, device_allocator, disk, dispatch,
    driver, elements, error_class, heap, kernels, memory, operations, process, regular_file, runtime,
    softmax, syscall_filter,
};
pub use parameter::{Parameter, Placement, ShardSpec};
pub use pipeline::PipelineStages;
pub use segment::{ForwardPass, GradientSource, Segmented};
pub use world::{LocalRank, ProcessGroups, RankInfo, Transport, World};
