//! The stage `sft`.

use std::path::Path;

use models::causal_lm::CausalLm;

use super::{Around, Plan, in_run_folder, rows, start_folder, tokenizer, trainable};
use crate::config::{RunConfig, Stage};
use crate::session;

pub(super) fn run(config: &RunConfig, around: &mut Around<'_>) -> anyhow::Result<()> {
    let folder = start_folder(config, around.resume)?;
    let tokenizer = tokenizer(config, &folder)?;
    let model = CausalLm::load(&folder, &trainable(config, around.groups))?;
    session::check_vocabulary(&tokenizer, model.config())?;
    let train = rows::demonstrations(&config.data.train, &tokenizer, &config.data)?;
    let eval = rows::demonstrations(&config.data.eval, &tokenizer, &config.data)?;
    train_on(Stage::Sft, config, &model, [&train, &eval], &tokenizer, around)
}

/// Supervised training, of a stage that has its model and its rows.
pub(super) fn train_on(
    stage: Stage,
    config: &RunConfig,
    model: &CausalLm,
    [train, eval]: [&rows::Encoded<datasets::SftRow>; 2],
    tokenizer: &datasets::Tokenizer,
    around: &mut Around<'_>,
) -> anyhow::Result<()> {
    super::check_split(config, &[model.config()], around)?;
    model.config().check_length("the longest row", train.longest.max(eval.longest))?;
    let packing = config.data.packing.then_some(config.data.max_length);
    let data = rlhf::sft::Data::new(&train.rows, &eval.rows, packing, config.data.shuffle)?;
    let parameters = super::num_values(model, around.groups)?;
    let sizes = [train.rows.len(), train.dropped, train.tokens];
    let plan = Plan::one_model(stage, config, around.mesh, parameters, sizes, data.units.len());
    let companions = |folder: &Path| session::save_companions(folder, tokenizer, model.config());
    in_run_folder(stage, config, plan, &companions, around, |run| {
        rlhf::sft::train(model, &data, &config.train, run)
    })
}
