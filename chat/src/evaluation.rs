//! Evaluations: models that answer the requests of the crate `eval`, and the folder of the results. The
//! command `eval`, pipelines and the stages run them.

mod engine;
pub(crate) mod job;
pub(crate) mod output;
mod sandbox;
pub(crate) mod share;

pub(crate) use engine::Engine;
