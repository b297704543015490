//! What the stages have in common that learn from given completions: `dpo`, `kto`, `orpo`, `simpo`, `cpo`.
//! Each of them is an [`Algorithm`] in a file of its own; those that learn from pairs are a
//! [`PairAlgorithm`].

use std::path::Path;

use datasets::dataset::TrainingRow;
use datasets::{PreferenceRow, Tokenizer};
use models::config::Config;
use models::decoder::HeadKind;
use planner::segment::RowTokens;
use rlhf::loss::preference::PreferenceLoss;
use rlhf::offline::pairs::Pairwise;
use rlhf::offline::{Offline, OfflineLoss, Rows};
use rlhf::trainer;
use tui::dashboard::{Charts, THROUGHPUT};

use super::context::{self, Hooks, StageContext, run_in_folder, start_folder, tokenizer, trainable_options};
use super::definition::PipelineFolder;
use super::lengths::SequenceLengths;
use super::model_memory::PlannedModel;
use super::plan::Plan;
use super::predict;
use super::preflight::{Preflight, describe, steps};
use super::reference::Reference;
use super::rows::{self, TrainEvalRows};
use super::tasks::Tasks;
use crate::config::stage::{IgnoredKey, PTX};
use crate::config::{RunConfig, StageSchema};
use crate::model_folder;

/// The keys that have no effect on these stages.
pub(super) const IGNORED_KEYS: &[IgnoredKey] = &[PTX, ("data.packing", "completions are not packed")];

/// The charts of a stage that learns from pairs.
pub(super) const PAIR_CHARTS: Charts = &[
    ("loss", &["loss", "eval/loss"]),
    ("accuracy of the rewards", &["rewards/accuracies", "eval/rewards/accuracies"]),
    ("margin of the rewards", &["rewards/margins", "eval/rewards/margins"]),
    ("rewards, better and worse", &["rewards/chosen", "rewards/rejected"]),
    ("log-probability, better and worse", &["logps/chosen", "logps/rejected"]),
    ("entropy", &["entropy"]),
    ("gradient norm", &["grad_norm"]),
    ("learning rate", &["lr"]),
    ("throughput, tokens/s", &[THROUGHPUT]),
];

/// An algorithm that learns from given completions.
pub(super) trait Algorithm {
    /// A row of `[data]`.
    type Row: TrainingRow;
    /// The loss.
    type Loss: OfflineLoss;

    /// What the configuration knows of the stage.
    fn schema() -> &'static StageSchema;

    /// The loss with the settings of the stage.
    fn loss(config: &RunConfig) -> Self::Loss;

    /// The rows as the loss reads them.
    fn rows(rows: Vec<Self::Row>, config: &RunConfig) -> Vec<<Self::Loss as OfflineLoss>::Row>;

    /// Whether the loss needs a pass over the rows of a step before any gradient.
    fn runs_before_step(config: &RunConfig) -> bool;

    /// The tokens of each sequence of a row, and the number of positions with logits.
    fn lengths(row: &Self::Row) -> (Vec<usize>, usize);
}

/// An algorithm that learns from pairs by a loss of them.
pub(super) trait PairAlgorithm {
    /// The section of the stage, which is its loss.
    type Settings: PreferenceLoss + Clone;

    /// What the configuration knows of the stage.
    fn schema() -> &'static StageSchema;

    /// The section of the stage.
    fn settings(config: &RunConfig) -> &Self::Settings;
}

impl<A: PairAlgorithm> Algorithm for A {
    type Row = PreferenceRow;
    type Loss = Pairwise<A::Settings>;

    fn schema() -> &'static StageSchema {
        <A as PairAlgorithm>::schema()
    }

    fn loss(config: &RunConfig) -> Self::Loss {
        Pairwise(A::settings(config).clone())
    }

    fn rows(rows: Vec<PreferenceRow>, _: &RunConfig) -> Vec<PreferenceRow> {
        rows
    }

    fn runs_before_step(config: &RunConfig) -> bool {
        A::settings(config).compares_pairs()
    }

    fn lengths(pair: &PreferenceRow) -> (Vec<usize>, usize) {
        let lengths = [&pair.chosen, &pair.rejected].map(Vec::len);
        (lengths.to_vec(), lengths.iter().sum::<usize>() - 2 * pair.prompt_length)
    }
}

/// The paths of a pipeline, for the stages that learn from pairs.
pub(super) fn set_pipeline_paths(config: &mut RunConfig, pipeline: &PipelineFolder<'_>) {
    pipeline.set_path(&mut config.model.path, "sft/final");
    pipeline.set_preferences(config);
}

pub(super) fn preflight<A: Algorithm>(
    preflight: &mut Preflight<'_>,
    config: &RunConfig,
) -> anyhow::Result<String> {
    let mut model = preflight.model("model.path", config.model_path(A::schema())?)?;
    model.tokenizer = model.tokenizer_of(&config.tokenizer, false)?;
    let tokenizer = model.load_tokenizer()?;
    model.refuse_reward_model("model.path")?;
    // A file for several stages may name a reference that this loss does not read.
    if let Some(name) = config.reference.model.as_ref().filter(|_| A::loss(config).has_reference()) {
        let reference = preflight.model("reference.model", name)?;
        reference.refuse_reward_model("reference.model")?;
        reference.check_tokenizer("reference", tokenizer.as_ref())?;
    }
    context::check_mesh(config, &[&model.config], preflight.mesh)?;
    let line = preflight.rows::<A::Row>(A::schema(), config, tokenizer.as_ref(), |tokenizer| {
        let train = inputs::<A>(config, &model.config, tokenizer)?.train;
        Ok(describe(A::schema(), &train, &steps(config, train.rows.len())))
    })?;
    preflight.add_model(config, model);
    Ok(line)
}

pub(super) fn run<A: Algorithm>(config: &RunConfig, ctx: &mut StageContext<'_>) -> anyhow::Result<()> {
    let folder = start_folder(config, ctx)?;
    let tokenizer = tokenizer(config, &folder)?;
    let architecture = folder.config()?;
    let inputs = inputs::<A>(config, &architecture, &tokenizer)?;
    let tasks = Tasks::prepare(config, ctx.groups)?;
    let loss = A::loss(config);
    let reference = Reference::find(config, ctx, &loss, &tokenizer)?;

    let adapter = context::new_adapter(config, &folder, ctx)?;
    let (head, kind) = (HeadKind::Vocabulary, config.model.dtype.kind());
    let lora = context::trained_adapter(adapter.as_ref(), &folder)?;
    let model = PlannedModel::trained("model", &architecture, head, kind).with_adapter(lora.as_ref());
    let plan = planned::<A>(config, ctx, (model, &inputs), tasks.as_ref(), &tokenizer)?;
    if context::ends_with_plan(&plan, ctx) {
        return Ok(());
    }
    let options = trainable_options(config, ctx)?;
    let policy = context::load_trained(&folder, adapter.as_ref(), config.seed, &options)?;
    context::warn_about_dropout(ctx.groups, &[("model", policy.config())]);

    let TrainEvalRows { train, eval } = inputs;
    let [train, eval] = [train, eval].map(|encoded| A::rows(encoded.rows, config));
    let companions = |folder: &Path| model_folder::save_tokenizer(folder, &tokenizer, policy.config());
    let evaluate_tasks = tasks.as_ref().map(|tasks| |step| tasks.evaluate((&policy, &tokenizer), step));
    let hooks = Hooks::new(&companions, evaluate_tasks.as_ref());
    run_in_folder(config, plan, &hooks, ctx, |run| {
        let [of_train, of_eval] = match &reference {
            Some(reference) => {
                reference.logprobs((&loss, &policy, &options), [&train[..], &eval[..]], config, run)?
            }
            None => [Vec::new(), Vec::new()],
        };
        let (train, eval) = (Rows::new(&train, of_train), Rows::new(&eval, of_eval));
        let objective = Offline::new(&policy, loss, train, eval)?;
        trainer::train(&objective, config.data.shuffle, &config.train, run)
    })
}

fn planned<A: Algorithm>(
    config: &RunConfig,
    ctx: &StageContext<'_>,
    (model, inputs): (PlannedModel<'_>, &TrainEvalRows<A::Row>),
    tasks: Option<&Tasks>,
    tokenizer: &Tokenizer,
) -> anyhow::Result<Plan> {
    context::check_split(config, &[model.config], ctx)?;
    let train = &inputs.train;
    let per_row = train.rows.first().map_or(1, |row| A::lengths(row).0.len());
    let row = RowTokens::mean(&train.rows, A::lengths);
    let task_replies = tasks.and_then(|tasks| tasks.replies(tokenizer));
    let before_step = A::runs_before_step(config).then_some(row);
    let lengths = SequenceLengths { before_step, task_replies, ..SequenceLengths::of(train, per_row, row) };
    let models = predict::check(config, ctx, &[model], &lengths)?;
    Ok(Plan::one_model(ctx.stage, config, ctx.mesh, models, train, train.rows.len()))
}

/// Reads the rows and checks them against the model's configuration. Reads no weights.
fn inputs<A: Algorithm>(
    config: &RunConfig,
    model: &Config,
    tokenizer: &Tokenizer,
) -> anyhow::Result<TrainEvalRows<A::Row>> {
    rows::inputs(A::schema(), config, (model, tokenizer), "the longest completion with its prompt")
}
