//! The training stages. A stage is one file with a `static STAGE`; a new one is added to [`ALL`].

pub(crate) mod base;
mod chunk_uses;
pub(crate) mod context;
pub(crate) mod definition;
pub(crate) mod fit;
mod model_memory;
mod peak_memory;
mod plan;
pub(crate) mod ppo;
pub(crate) mod preflight;
pub(crate) mod rm;
mod rows;
pub(crate) mod sft;
mod step_time;
pub(crate) mod tasks;

pub(crate) use definition::Stage;

use crate::config::StageSchema;

/// Every stage, in the order of a pipeline.
pub(crate) static ALL: [&Stage; 4] = [&base::STAGE, &sft::STAGE, &rm::STAGE, &ppo::STAGE];

/// Returns what the configuration knows of every stage.
pub(crate) fn schemas() -> Vec<&'static StageSchema> {
    ALL.iter().map(|stage| &stage.schema).collect()
}

/// Returns the stage of the given name.
pub(crate) fn find(name: &str) -> Option<&'static Stage> {
    ALL.into_iter().find(|stage| stage.schema.name == name)
}
