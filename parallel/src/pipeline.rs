//! Pipeline parallelism: the layers are split over the ranks of a group. Each rank has one or more contiguous
//! ranges of segments, called stages, and every micro-batch passes through all stages.
//!
//! ```text
//!   schedule    the order of the actions of each rank, as data
//!   stages      which segments each rank holds (`PipelineStages`)
//!   sends       messages to other ranks that are under way
//!   execute     runs one rank's actions of a step
//! ```

mod execute;
pub mod schedule;
mod sends;
mod stages;

pub use execute::{ScheduleOptions, StepHandler, forward_only, run_schedule};
pub use schedule::{Action, ComputationType, Schedule, ScheduleKind};
pub use sends::PendingSends;
pub use stages::{PipelineStages, partition_balanced};
