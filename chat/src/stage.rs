//! The training stages. A stage is one file with a `static STAGE`; a new one is added to [`ALL`].

pub(crate) mod base;
mod chunk_uses;
pub(crate) mod context;
mod cpo;
pub(crate) mod definition;
mod distill;
mod dpo;
mod episodes;
pub(crate) mod fit;
mod gkd;
mod grpo;
mod kto;
mod lengths;
mod model_memory;
mod model_parallel;
mod offline;
mod on_policy;
mod online;
mod online_dpo;
mod orpo;
mod peak_memory;
pub(crate) mod plan;
pub(crate) mod ppo;
mod predict;
pub(crate) mod preflight;
pub(crate) mod quantities;
mod reference;
mod reinforce;
mod rloo;
pub(crate) mod rm;
pub(crate) mod rows;
pub(crate) mod search;
mod segments;
pub(crate) mod sft;
mod simpo;
mod step_time;
pub(crate) mod tasks;
mod work;

pub(crate) use definition::Stage;
use definition::{InitStage, RowKind};

use crate::config::StageSchema;

/// Every stage, in the order of a pipeline.
pub(crate) static ALL: [&Stage; 15] = [
    &base::STAGE,
    &sft::STAGE,
    &distill::STAGE,
    &rm::STAGE,
    &dpo::STAGE,
    &kto::STAGE,
    &orpo::STAGE,
    &simpo::STAGE,
    &cpo::STAGE,
    &ppo::STAGE,
    &grpo::STAGE,
    &rloo::STAGE,
    &reinforce::STAGE,
    &online_dpo::STAGE,
    &gkd::STAGE,
];

/// Returns what the configuration knows of every stage.
pub(crate) fn schemas() -> Vec<&'static StageSchema> {
    ALL.iter().map(|stage| &stage.schema).collect()
}

/// The stages that `init` writes a run file for.
pub(crate) fn with_init() -> impl Iterator<Item = InitStage> {
    ALL.into_iter().filter_map(|stage| Some(InitStage { stage, init: stage.init.as_ref()? }))
}

/// The first stage that learns from such rows.
pub(crate) fn for_rows(rows: RowKind) -> Option<InitStage> {
    with_init().find(|stage| stage.init.rows == rows)
}

/// The stages whose models answer tasks, in the order of a pipeline.
pub(crate) fn language_models() -> impl Iterator<Item = &'static Stage> {
    ALL.into_iter().filter(|stage| !trains_reward_model(stage.schema.name))
}

/// Whether a stage trains a reward model, which answers no tasks.
pub(crate) fn trains_reward_model(name: &str) -> bool {
    find(name).is_some_and(|stage| !stage.schema.reads("eval.tasks"))
}

/// Returns the stage of the given name.
pub(crate) fn find(name: &str) -> Option<&'static Stage> {
    ALL.into_iter().find(|stage| stage.schema.name == name)
}
