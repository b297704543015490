//! The stage `rm`.

use std::path::Path;

use datasets::{PreferenceRow, Tokenizer};
use models::causal_lm::LoadOptions;
use models::config::Config;
use models::scalar_model::ScalarModel;
use rlhf::reward::Reward;
use rlhf::trainer;

use super::context::{self, StageContext, run_in_folder, start_folder, tokenizer, trainable_options};
use super::plan::Plan;
use super::rows::{self, TrainEvalRows};
use crate::config::{RunConfig, Stage};
use crate::session;

pub(super) fn run(config: &RunConfig, ctx: &mut StageContext<'_>) -> anyhow::Result<()> {
    let folder = start_folder(Stage::Rm, config, ctx)?;
    let tokenizer = tokenizer(config, &folder)?;
    let TrainEvalRows { train, eval } = inputs(config, &Config::from_folder(&folder)?, &tokenizer)?;
    let model = load(&folder, config.seed, &trainable_options(config, ctx.groups)?)?;
    context::warn_about_dropout(ctx.groups, &[("model", model.config())]);
    context::check_split(config, &[model.config()], ctx)?;

    let objective = Reward::new(&model, &train.rows, &eval.rows, &config.reward)?;
    let parameters = context::num_parameters(&model, ctx.groups)?;
    let plan = Plan::one_model(Stage::Rm, config, ctx.mesh, parameters, &train, train.rows.len());
    let companions = |folder: &Path| Ok(tokenizer.save(folder)?);
    run_in_folder(Stage::Rm, config, plan, &companions, ctx, |run| {
        trainer::train(&objective, config.data.shuffle, &config.train, run)
    })
}

/// Reads the pairs and checks them against the model's configuration. Reads no weights.
pub(super) fn inputs(
    config: &RunConfig,
    model: &Config,
    tokenizer: &Tokenizer,
) -> anyhow::Result<TrainEvalRows<PreferenceRow>> {
    session::check_vocabulary(tokenizer, model)?;
    let rows = TrainEvalRows::load(tokenizer, &config.data, config.seed)?;
    rows::refuse_none(&rows.train, Stage::Rm)?;
    model.check_length("the longest reply with its prompt", rows.longest())?;
    Ok(rows)
}

/// Loads a scalar model: a sequence-classification model as it is, or a causal language model with a new
/// score head.
pub(super) fn load(folder: &Path, seed: u64, options: &LoadOptions) -> anyhow::Result<ScalarModel> {
    let config = Config::from_folder(folder)?;
    if config.is_sequence_classification() {
        return Ok(ScalarModel::load(folder, options)?);
    }
    Ok(ScalarModel::from_causal_lm(folder, seed, options)?)
}
