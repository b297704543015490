//! The training stages. A stage is one file with a `static STAGE`; a new one is added to [`ALL`].

pub(crate) mod base;
mod chunk_uses;
pub(crate) mod context;
mod cpo;
pub(crate) mod definition;
mod dpo;
pub(crate) mod fit;
mod kto;
mod model_memory;
mod offline;
mod orpo;
mod peak_memory;
mod plan;
pub(crate) mod ppo;
pub(crate) mod preflight;
mod reference;
pub(crate) mod rm;
mod rows;
pub(crate) mod sft;
mod simpo;
mod step_time;
pub(crate) mod tasks;

pub(crate) use definition::Stage;

use crate::config::StageSchema;

/// Every stage, in the order of a pipeline.
pub(crate) static ALL: [&Stage; 9] = [
    &base::STAGE,
    &sft::STAGE,
    &rm::STAGE,
    &dpo::STAGE,
    &kto::STAGE,
    &orpo::STAGE,
    &simpo::STAGE,
    &cpo::STAGE,
    &ppo::STAGE,
];

/// Returns what the configuration knows of every stage.
pub(crate) fn schemas() -> Vec<&'static StageSchema> {
    ALL.iter().map(|stage| &stage.schema).collect()
}

/// Returns the stage of the given name.
pub(crate) fn find(name: &str) -> Option<&'static Stage> {
    ALL.into_iter().find(|stage| stage.schema.name == name)
}
