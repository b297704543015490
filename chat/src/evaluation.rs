//! Evaluations: models that answer the requests of the crate `eval`, and the folder of the results. The
//! command `eval`, pipelines and the stages run them.

pub(crate) mod endpoint;
pub(crate) mod engine;
pub(crate) mod held;
pub(crate) mod job;
mod marks;
pub(crate) mod model;
pub(crate) mod output;
pub(crate) mod progress;
mod sandbox;
pub(crate) mod share;

pub(crate) use engine::Engine;
pub(crate) use model::Candidate;
pub(crate) use sandbox::most_memory;
