//! Runs one training stage from its resolved configuration: load, check, train. `sft`, `rm`, `ppo` and every
//! training part of `pipeline` use this module.

pub(crate) mod base;
pub(crate) mod context;
mod plan;
mod ppo;
pub(crate) mod preflight;
mod rm;
mod rows;
mod sft;

use base::BaseModelSpec;
use context::StageContext;

use crate::config::{RunConfig, Stage};

/// Runs a stage that starts from a model folder.
pub(crate) fn run(stage: Stage, config: &RunConfig, ctx: &mut StageContext<'_>) -> anyhow::Result<()> {
    match stage {
        Stage::Base => anyhow::bail!("the base model is trained by `pipeline`"),
        Stage::Sft => sft::run(config, ctx),
        Stage::Rm => rm::run(config, ctx),
        Stage::Ppo => ppo::run(config, ctx),
    }
}

/// Trains a base model, with random initial weights, on plain text.
pub(crate) fn run_base(
    config: &RunConfig,
    network: &BaseModelSpec<'_>,
    ctx: &mut StageContext<'_>,
) -> anyhow::Result<()> {
    base::run(config, network, ctx)
}
