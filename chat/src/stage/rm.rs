//! The stage `rm`.

use std::path::Path;
use std::sync::Arc;

use datasets::{PreferenceRow, Tokenizer};
use inference::model_folder::ModelFolder;
use models::causal_lm::LoadOptions;
use models::config::Config;
use models::decoder::HeadKind;
use models::lora::LoraPlan;
use models::scalar_model::ScalarModel;
use planner::segment::RowTokens;
use rlhf::reward::Reward;
use rlhf::trainer;
use tui::dashboard::{Charts, THROUGHPUT};

use super::context::{self, Hooks, StageContext, run_in_folder, start_folder, tokenizer, trainable_options};
use super::definition::{CommandHelp, InitSpec, PipelineFolder, RowKind, Stage};
use super::lengths::SequenceLengths;
use super::model_memory::PlannedModel;
use super::plan::Plan;
use super::predict;
use super::preflight::{Preflight, describe, steps};
use super::rows::{self, TrainEvalRows};
use crate::config::stage::PTX;
use crate::config::{RunConfig, StageSchema, Units};

/// The stage `rm`.
pub(crate) static STAGE: Stage = Stage {
    schema: StageSchema {
        name: "rm",
        units: Units::ROWS,
        has_rollouts: false,
        sections: &["rm"],
        ignored_keys: &[
            PTX,
            ("data.packing", "pairs are not packed"),
            ("eval.tasks", "a reward model answers no tasks"),
        ],
        defaults: None,
    },
    command: Some(CommandHelp {
        about: "Train a reward model on pairs of a better and a worse answer",
        title: "The reward model",
        examples: "\
Examples:
  colossal-chat rm --config run.toml
  colossal-chat rm --config run.toml --set model.path=runs/sft/final",
    }),
    init: Some(InitSpec {
        rows: RowKind::Pairs,
        after: Some("sft"),
        is_in_all: true,
        other_model: None,
        lr: ["1e-5", "5e-4"],
        keys: |_| Vec::new(),
    }),
    curves: &["loss", "accuracy"],
    charts: CHARTS,
    set_pipeline_paths,
    preflight,
    run,
};

const CHARTS: Charts = &[
    ("loss", &["loss"]),
    ("accuracy", &["accuracy", "eval/accuracy"]),
    ("margin", &["margin", "eval/margin"]),
    ("scores, preferred and other", &["chosen_score", "rejected_score"]),
    ("gradient norm", &["grad_norm"]),
    ("throughput, tokens/s", &[THROUGHPUT]),
];

fn set_pipeline_paths(config: &mut RunConfig, pipeline: &PipelineFolder<'_>) {
    pipeline.set_path(&mut config.model.path, "sft/final");
    pipeline.set_preferences(config);
}

fn preflight(preflight: &mut Preflight<'_>, config: &RunConfig) -> anyhow::Result<String> {
    let mut model = preflight.model("model.path", config.model_path(&STAGE.schema)?)?;
    model.tokenizer = model.tokenizer_of(&config.tokenizer, false)?;
    model.is_reward_model = true;
    let tokenizer = model.load_tokenizer()?;
    context::check_mesh(config, &[&model.config], preflight.mesh)?;
    let line = preflight.rows::<PreferenceRow>(&STAGE.schema, config, tokenizer.as_ref(), |tokenizer| {
        let train = inputs(config, &model.config, tokenizer)?.train;
        Ok(describe(&STAGE.schema, &train, &steps(config, train.rows.len())))
    })?;
    preflight.add_model(config, model);
    Ok(line)
}

fn run(config: &RunConfig, ctx: &mut StageContext<'_>) -> anyhow::Result<()> {
    let folder = start_folder(config, ctx)?;
    let tokenizer = tokenizer(config, &folder)?;
    let architecture = folder.config()?;
    let TrainEvalRows { train, eval } = inputs(config, &architecture, &tokenizer)?;
    let (head, kind) = (HeadKind::Scalar, config.model.dtype.kind());
    let adapter = context::new_adapter(config, &folder, ctx)?;
    let lora = context::trained_adapter(adapter.as_ref(), &folder)?;
    let planned = PlannedModel::trained("model", &architecture, head, kind).with_adapter(lora.as_ref());
    context::check_split(config, &[&architecture], ctx)?;
    let row = RowTokens::mean(&train.rows, |row| ([row.chosen.len(), row.rejected.len()], 0));
    let models = predict::check(config, ctx, &[planned], &SequenceLengths::of(&train, 2, row))?;
    let plan = Plan::one_model(ctx.stage, config, ctx.mesh, models, &train, train.rows.len());
    if context::ends_with_plan(&plan, ctx) {
        return Ok(());
    }
    let model = load(&folder, adapter.as_ref(), config.seed, &trainable_options(config, ctx)?)?;
    context::warn_about_dropout(ctx.groups, &[("model", model.config())]);

    let objective = Reward::new(&model, &train.rows, &eval.rows, &config.rm)?;
    let companions = |folder: &Path| Ok(tokenizer.save(folder)?);
    let hooks = Hooks { save_tokenizer: &companions, evaluate_tasks: None };
    run_in_folder(config, plan, &hooks, ctx, |run| {
        trainer::train(&objective, config.data.shuffle, &config.train, run)
    })
}

/// Reads the pairs and checks them against the model's configuration. Reads no weights.
fn inputs(
    config: &RunConfig,
    model: &Config,
    tokenizer: &Tokenizer,
) -> anyhow::Result<TrainEvalRows<PreferenceRow>> {
    rows::inputs(&STAGE.schema, config, (model, tokenizer), "the longest reply with its prompt")
}

/// Loads a scalar model: a sequence-classification model as it is, or a causal language model or an adapter
/// of one with a new score head, and with the adapters `new_adapter`.
pub(super) fn load(
    folder: &ModelFolder,
    new_adapter: Option<&Arc<LoraPlan>>,
    seed: u64,
    options: &LoadOptions,
) -> Result<ScalarModel, models::Error> {
    if let Some(lora) = new_adapter {
        return ScalarModel::on_trunk(&context::load_trunk(folder, options)?, Some(lora), seed, true);
    }
    if folder.config()?.is_sequence_classification() {
        folder.scalar_model(options)
    } else {
        folder.new_scalar_model(seed, options)
    }
}
