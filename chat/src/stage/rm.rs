//! The stage `rm`.

use std::path::Path;

use datasets::{PreferenceRow, Tokenizer};
use models::causal_lm::LoadOptions;
use models::config::Config;
use models::scalar_model::ScalarModel;
use rlhf::reward;

use super::{Around, Plan, in_run_folder, rows, start_folder, tokenizer, trainable};
use crate::config::{RunConfig, Stage};
use crate::session;

/// The pairs of the stage, which fit its model.
pub(super) struct Inputs {
    pub(super) train: rows::Encoded<PreferenceRow>,
    pub(super) eval: rows::Encoded<PreferenceRow>,
}

pub(super) fn run(config: &RunConfig, around: &mut Around<'_>) -> anyhow::Result<()> {
    let folder = start_folder(config, around)?;
    let tokenizer = tokenizer(config, &folder)?;
    let Inputs { train, eval } = inputs(config, &Config::from_folder(&folder)?, &tokenizer)?;
    let model = load(&folder, config.seed, &trainable(config, around.groups))?;
    super::tell_dropout(around.groups, &[("model", model.config())]);
    super::check_split(config, &[model.config()], around)?;

    let data = reward::Data { train: &train.rows, eval: &eval.rows, shuffle: config.data.shuffle };
    let parameters = super::num_values(&model, around.groups)?;
    let sizes = [train.rows.len(), train.dropped, train.tokens];
    let plan = Plan::one_model(Stage::Rm, config, around.mesh, parameters, sizes, train.rows.len());
    let companions = |folder: &Path| Ok(tokenizer.save(folder)?);
    in_run_folder(Stage::Rm, config, plan, &companions, around, |run| {
        reward::train(&model, &data, &config.reward, &config.train, run)
    })
}

/// Reads the pairs and checks them against the model's configuration. Reads no weights.
pub(super) fn inputs(config: &RunConfig, model: &Config, tokenizer: &Tokenizer) -> anyhow::Result<Inputs> {
    session::check_vocabulary(tokenizer, model)?;
    let [train, eval] = rows::train_and_eval::<PreferenceRow>(tokenizer, &config.data, config.seed)?;
    rows::refuse_none(&train, Stage::Rm)?;
    model.check_length("the longest reply with its prompt", train.longest.max(eval.longest))?;
    Ok(Inputs { train, eval })
}

/// A scalar model: a sequence-classification folder as it is, a causal language model with a new score head.
pub(super) fn load(folder: &Path, seed: u64, options: &LoadOptions) -> anyhow::Result<ScalarModel> {
    let config = Config::from_folder(folder)?;
    if config.is_sequence_classification() {
        return Ok(ScalarModel::load(folder, options)?);
    }
    Ok(ScalarModel::from_causal_lm(folder, seed, options)?)
}
