//! The stage `sft`.

use std::path::Path;
use std::sync::Arc;

use datasets::{SftRow, Tokenizer};
use inference::model_folder::ModelFolder;
use models::causal_lm::{CausalLm, LoadOptions};
use models::config::Config;
use models::decoder::HeadKind;
use models::lora::LoraPlan;
use planner::segment::RowTokens;
use rlhf::sft::Sft;
use rlhf::trainer::{self, Objective};
use tui::dashboard::{Charts, THROUGHPUT};

use super::context::{
    self, Hooks, StageContext, run_in_folder, start_folder, tokenizer_folder, trainable_options,
};

/// The charts of a stage that learns from demonstrations.
pub(super) const CHARTS: Charts = &[
    ("loss", &["loss", "eval/loss"]),
    ("accuracy", &["eval/accuracy"]),
    ("gradient norm", &["grad_norm"]),
    ("learning rate", &["lr"]),
    ("throughput, tokens/s", &[THROUGHPUT]),
];
use super::definition::{CommandHelp, InitSpec, PipelineFolder, RowKind, Stage};
use super::lengths::{SequenceLengths, TaskReplies};
use super::model_memory::PlannedModel;
use super::plan::Plan;
use super::predict;
use super::preflight::{Preflight, describe, steps};
use super::rows::{self, TrainEvalRows};
use super::tasks::Tasks;
use crate::config::stage::PTX;
use crate::config::{ConfigError, RunConfig, StageSchema, Units};
use crate::console::print_stderr;
use crate::model_folder;

/// The stage `sft`.
pub(crate) static STAGE: Stage = Stage {
    schema: StageSchema {
        name: "sft",
        units: Units::ROWS,
        has_rollouts: false,
        sections: &[],
        ignored_keys: &[PTX],
        defaults: None,
    },
    command: Some(CommandHelp {
        about: "Teach a model to answer by example (supervised fine-tuning)",
        title: "Supervised fine-tuning",
        examples: "\
Examples:
  colossal-chat sft --config run.toml --dry-run
  colossal-chat sft --config run.toml --set train.lr=2e-5 --set out=runs/sft
  colossal-chat sft --config run.toml --resume",
    }),
    init: Some(InitSpec {
        rows: RowKind::Demonstrations,
        after: None,
        is_in_all: true,
        other_model: None,
        lr: ["2e-5", "1e-3"],
        keys: |_| Vec::new(),
    }),
    curves: &["loss"],
    charts: CHARTS,
    set_pipeline_paths,
    preflight,
    run,
};

fn set_pipeline_paths(config: &mut RunConfig, pipeline: &PipelineFolder<'_>) {
    pipeline.set_path(&mut config.model.path, "base/final");
    pipeline.set_files(&mut config.data.train, "data/sft.parquet");
}

fn preflight(preflight: &mut Preflight<'_>, config: &RunConfig) -> anyhow::Result<String> {
    let mut model = preflight.model("model.path", config.model_path(&STAGE.schema)?)?;
    model.tokenizer = model.tokenizer_of(&config.tokenizer, true)?;
    let tokenizer = model.load_tokenizer()?;
    context::check_mesh(config, &[&model.config], preflight.mesh)?;
    model.refuse_reward_model("model.path")?;
    if let Some(files) = model.tokenizer.as_ref().filter(|files| files.adds_tokens) {
        let prepared = model_folder::tokenizer_to_train(&files.folder, files.template.as_deref())?;
        grow(&mut model.config, &prepared.tokenizer, &prepared.added)?;
    }
    let line = preflight_rows(&STAGE.schema, preflight, config, &model.config, tokenizer.as_ref())?;
    preflight.add_model(config, model);
    Ok(line)
}

/// Checks the rows of a stage that trains on demonstrations. Returns a summary line.
pub(super) fn preflight_rows(
    stage: &StageSchema,
    preflight: &Preflight<'_>,
    config: &RunConfig,
    model: &Config,
    tokenizer: Option<&Tokenizer>,
) -> anyhow::Result<String> {
    preflight.rows::<SftRow>(stage, config, tokenizer, |tokenizer| {
        let train = inputs(stage, config, model, tokenizer)?.train;
        let bins = rlhf::sft::bins(&train.rows, packing(config))?.len();
        Ok(describe(stage, &train, &steps(config, bins)))
    })
}

fn run(config: &RunConfig, ctx: &mut StageContext<'_>) -> anyhow::Result<()> {
    let folder = start_folder(config, ctx)?;
    let prepared = model_folder::tokenizer_to_train(
        &tokenizer_folder(config, &folder)?,
        config.tokenizer.template.as_deref(),
    )?;
    let (tokenizer, added) = (prepared.tokenizer, prepared.added);
    let mut architecture = folder.config()?;
    let held = architecture.vocab_size();
    grow(&mut architecture, &tokenizer, &added)?;
    let inputs = inputs(ctx.stage, config, &architecture, &tokenizer)?;
    let tasks = Tasks::prepare(config, ctx.groups)?;

    let replies = tasks.as_ref().and_then(|tasks| tasks.replies(&tokenizer));
    let ids = ids_of(&added, &tokenizer);
    let mut adapter = context::new_adapter(config, &folder, ctx)?;
    if let Some(lora) = &mut adapter {
        Arc::make_mut(lora).train_rows(architecture.architecture(), &ids)?;
    }
    let lora = context::trained_adapter(adapter.as_ref(), &folder)?;
    if let Some(lora) = lora.as_ref().filter(|_| folder.base().is_some()) {
        refuse_tokens_without_rows(&folder, lora, &architecture, &added, &ids)?;
    }
    report_added_tokens(&added, [held, architecture.vocab_size()], lora.is_some(), ctx);
    let (head, kind) = (HeadKind::Vocabulary, config.model.dtype.kind());
    let trained = PlannedModel::trained("model", &architecture, head, kind).with_adapter(lora.as_ref());
    let plan = planned(config, ctx, &[trained], &inputs, replies)?;
    if context::ends_with_plan(&plan, ctx) {
        return Ok(());
    }
    let options = trainable_options(config, ctx)?;
    let model = match &adapter {
        _ if architecture.vocab_size() == held => {
            context::load_trained(&folder, adapter.as_ref(), config.seed, &options)?
        }
        None => CausalLm::load_resized(folder.path(), architecture.vocab_size(), &options)?,
        Some(lora) => {
            let frozen = LoadOptions { trainable: false, ..options };
            let trunk = CausalLm::load_resized(folder.path(), architecture.vocab_size(), &frozen)?;
            trunk.with_new_adapter(lora, config.seed, true)?
        }
    };
    let objective = objective(config, &model, &inputs)?;
    train(config, &objective, plan, &tokenizer, tasks.as_ref(), ctx)
}

/// The plan of a stage that trains the first of `models` on demonstrations. `replies` are those to the tasks
/// that it is asked.
pub(super) fn planned(
    config: &RunConfig,
    ctx: &StageContext<'_>,
    models: &[PlannedModel<'_>],
    inputs: &TrainEvalRows<SftRow>,
    replies: Option<TaskReplies>,
) -> anyhow::Result<Plan> {
    let configs: Vec<&Config> = models.iter().map(|model| model.config).collect();
    context::check_split(config, &configs, ctx)?;
    let train = &inputs.train;
    let lengths = match packing(config) {
        Some(max_length) => SequenceLengths::packed(train, max_length, mean_row(&train.rows)),
        None => SequenceLengths::of(train, 1, mean_row(&train.rows)),
    };
    let frozen = models.iter().filter(|model| !model.is_trained);
    let state = |model: &PlannedModel<'_>| {
        model.config.architecture().hidden_size as usize * model.kind.elt_size_in_bytes()
    };
    let lengths = SequenceLengths { task_replies: replies, frozen_state: frozen.map(state).sum(), ..lengths };
    let models = predict::check(config, ctx, models, &lengths)?;
    let num_examples = rlhf::sft::bins(&train.rows, packing(config))?.len();
    Ok(Plan::one_model(ctx.stage, config, ctx.mesh, models, train, num_examples))
}

/// The mean of demonstrations: the positions with a loss have logits.
pub(super) fn mean_row(rows: &[SftRow]) -> RowTokens {
    RowTokens::mean(rows, |row| ([row.input_ids.len()], row.num_label_tokens()))
}

/// Raises the vocabulary size of the model if the tokens that were `added` to the tokenizer exceed its
/// embeddings.
fn grow(model: &mut Config, tokenizer: &Tokenizer, added: &[&str]) -> anyhow::Result<()> {
    let (held, wanted) = (model.vocab_size(), tokenizer.vocab_size() as i64);
    // A tokenizer that is too large even without the added tokens belongs to another model. A later check
    // refuses it.
    if wanted > held && wanted - added.len() as i64 <= held {
        model.set("vocab_size", wanted.into())?;
    }
    Ok(())
}

/// The ids of the tokens that were `added` to the tokenizer.
fn ids_of(added: &[&str], tokenizer: &Tokenizer) -> Vec<i64> {
    let id = |token: &&str| tokenizer.token_to_id(token).expect("the tokenizer has what was added to it");
    added.iter().map(id).collect()
}

/// Refuses to train on an adapter that has no rows of its own for the tokens that were `added` to its
/// tokenizer.
fn refuse_tokens_without_rows(
    adapter: &ModelFolder,
    lora: &LoraPlan,
    model: &Config,
    added: &[&str],
    ids: &[i64],
) -> anyhow::Result<()> {
    let grows = model.vocab_size() > adapter.config()?.vocab_size();
    if !grows && lora.modules_without_rows(model.architecture(), ids)?.is_empty() {
        return Ok(());
    }
    let message = format!(
        "the template adds the tokens {}, whose rows this adapter does not train: name a template whose tokens the \
         model has, or merge the adapter into its model with `model merge`, and train a new one",
        added.join(" and ")
    );
    Err(ConfigError::Value { place: None, key: "tokenizer.template".to_owned(), message }.into())
}

/// Says which tokens were added, and what becomes of the `held` rows of the embeddings, of which the
/// tokenizer wants `wanted`.
fn report_added_tokens(added: &[&str], [held, wanted]: [i64; 2], has_adapter: bool, ctx: &StageContext<'_>) {
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
    let trained = if has_adapter { "; the rows of these tokens are trained with the adapter" } else { "" };
    print_stderr(&format!(
        "template chatml: added the tokens {} to the tokenizer; {rows}{trained}",
        added.join(" and ")
    ));
}

/// Reads the rows and checks them against the model's configuration. Reads no weights.
pub(super) fn inputs(
    stage: &StageSchema,
    config: &RunConfig,
    model: &Config,
    tokenizer: &Tokenizer,
) -> anyhow::Result<TrainEvalRows<SftRow>> {
    rows::inputs(stage, config, (model, tokenizer), "the longest row")
}

/// Returns the length of a bin of packed rows; `None` without packing.
fn packing(config: &RunConfig) -> Option<usize> {
    config.data.packing.then_some(config.data.max_length)
}

/// The objective of supervised fine-tuning on the rows of the stage.
pub(super) fn objective<'a>(
    config: &RunConfig,
    model: &'a CausalLm,
    inputs: &'a TrainEvalRows<SftRow>,
) -> Result<Sft<'a>, rlhf::Error> {
    Sft::new(model, &inputs.train.rows, &inputs.eval.rows, packing(config))
}

/// Trains a loaded language model.
pub(super) fn train<O: Objective<Model = CausalLm>>(
    config: &RunConfig,
    objective: &O,
    plan: Plan,
    tokenizer: &Tokenizer,
    tasks: Option<&Tasks>,
    ctx: &mut StageContext<'_>,
) -> anyhow::Result<()> {
    let model = objective.model();
    context::warn_about_dropout(ctx.groups, &[("model", model.config())]);
    let companions = |folder: &Path| model_folder::save_tokenizer(folder, tokenizer, model.config());
    let evaluate_tasks = tasks.map(|tasks| |step| tasks.evaluate((model, tokenizer), step));
    let hooks = Hooks::new(&companions, evaluate_tasks.as_ref());
    run_in_folder(config, plan, &hooks, ctx, |run| {
        trainer::train(objective, config.data.shuffle, &config.train, run)
    })
}
