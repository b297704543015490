//! Evaluations: which models are asked, in which processes, and the folder of the results. The command
//! `eval`, pipelines and the stages run them.

pub(crate) mod held;
pub(crate) mod job;
mod marks;
pub(crate) mod model;
pub(crate) mod output;
pub(crate) mod progress;
mod sandbox;
pub(crate) mod share;

pub(crate) use model::Candidate;
pub(crate) use sandbox::most_memory;
