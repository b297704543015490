//! The stage `sft`.

use std::path::Path;

use datasets::{SftRow, Tokenizer};
use models::causal_lm::CausalLm;
use models::config::Config;
use rlhf::sft::Sft;
use rlhf::trainer::{self, Objective};

use super::context::{self, StageContext, run_in_folder, start_folder, tokenizer_folder, trainable_options};
use super::plan::Plan;
use super::rows::{self, TrainEvalRows};
use crate::config::{RunConfig, Stage};
use crate::console::print_stderr;
use crate::session;

pub(super) fn run(config: &RunConfig, ctx: &mut StageContext<'_>) -> anyhow::Result<()> {
    let folder = start_folder(Stage::Sft, config, ctx)?;
    let prepared = session::tokenizer_to_train(
        &tokenizer_folder(config, &folder)?,
        config.tokenizer.template.as_deref(),
    )?;
    let (tokenizer, added) = (prepared.tokenizer, prepared.added);
    let mut architecture = Config::from_folder(&folder)?;
    let held = architecture.vocab_size();
    grow(&mut architecture, &tokenizer, &added)?;
    let inputs = inputs(Stage::Sft, config, &architecture, &tokenizer)?;

    report_added_tokens(&added, held, architecture.vocab_size(), ctx);
    let options = trainable_options(config, ctx.groups)?;
    let model = if architecture.vocab_size() > held {
        CausalLm::load_resized(&folder, architecture.vocab_size(), &options)?
    } else {
        CausalLm::load(&folder, &options)?
    };
    train_on(Stage::Sft, config, &model, &inputs, &tokenizer, ctx)
}

/// Raises the vocabulary size of the model if the tokens that were `added` to the tokenizer exceed its
/// embeddings.
pub(super) fn grow(model: &mut Config, tokenizer: &Tokenizer, added: &[&str]) -> anyhow::Result<()> {
    let (held, wanted) = (model.vocab_size(), tokenizer.vocab_size() as i64);
    // A tokenizer that is too large even without the added tokens belongs to another model. A later check
    // refuses it.
    if wanted > held && wanted - added.len() as i64 <= held {
        model.set("vocab_size", wanted.into())?;
    }
    Ok(())
}

fn report_added_tokens(added: &[&str], held: i64, wanted: i64, ctx: &StageContext<'_>) {
    if added.is_empty() || !ctx.groups.is_rank_zero() {
        return;
    }
    let rows = if wanted > held {
        format!(
            "the embeddings grow from {held} to {wanted} rows; a new row begins as the mean of the others"
        )
    } else {
        format!("the embeddings have {held} rows, which is enough")
    };
    print_stderr(&format!(
        "template chatml: added the tokens {} to the tokenizer; {rows}",
        added.join(" and ")
    ));
}

/// Reads the rows and checks them against the model's configuration. Reads no weights.
pub(super) fn inputs(
    stage: Stage,
    config: &RunConfig,
    model: &Config,
    tokenizer: &Tokenizer,
) -> anyhow::Result<TrainEvalRows<SftRow>> {
    session::check_vocabulary(tokenizer, model)?;
    let rows = TrainEvalRows::load(tokenizer, &config.data, config.seed)?;
    rows::refuse_none(&rows.train, stage)?;
    model.check_length("the longest row", rows.longest())?;
    Ok(rows)
}

/// Returns the length of a bin of packed rows; `None` without packing.
pub(super) fn packing(config: &RunConfig) -> Option<usize> {
    config.data.packing.then_some(config.data.max_length)
}

/// Runs supervised training on a loaded model and its rows.
pub(super) fn train_on(
    stage: Stage,
    config: &RunConfig,
    model: &CausalLm,
    inputs: &TrainEvalRows<SftRow>,
    tokenizer: &Tokenizer,
    ctx: &mut StageContext<'_>,
) -> anyhow::Result<()> {
    context::warn_about_dropout(ctx.groups, &[("model", model.config())]);
    context::check_split(config, &[model.config()], ctx)?;
    let objective = Sft::new(model, &inputs.train.rows, &inputs.eval.rows, packing(config))?;
    let parameters = context::num_parameters(model, ctx.groups)?;
    let plan = Plan::one_model(stage, config, ctx.mesh, parameters, &inputs.train, objective.num_examples());
    let companions = |folder: &Path| session::save_tokenizer(folder, tokenizer, model.config());
    run_in_folder(stage, config, plan, &companions, ctx, |run| {
        trainer::train(&objective, config.data.shuffle, &config.train, run)
    })
}
