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

use std::sync::Arc;

use eval::code_execution::CodeRunner;

pub(crate) use model::Candidate;
pub(crate) use sandbox::most_memory;

use crate::failure::Failure;

/// The sandbox in which programs of a model run.
pub(crate) fn code_runner() -> Result<Arc<dyn CodeRunner + Send + Sync>, Failure> {
    Ok(Arc::new(sandbox::Sandbox::open()?))
}
