//! What the stages share that learn from rollouts: policy, reference, critic, teacher and reward models in
//! each process, the rows, the plan, and the run. The stages themselves are files with their texts and
//! defaults.

mod algorithm;
mod roles;

use std::path::Path;
use std::sync::Arc;

use datasets::{PromptRow, SftRow, Tokenizer};
use inference::session::{self, check_vocabulary};
use models::config::Config;
use planner::segment::RowTokens;
use rlhf::on_policy::Data;
use rlhf::rollout::RolloutModels;
use text::number::counted;
use tui::dashboard::{Charts, THROUGHPUT};

use self::algorithm::Algorithm;
use self::roles::{ModelSet, PerRole, PlannedRole};
use super::context::{self, Hooks, StageContext, run_in_folder, tokenizer};
use super::definition::{InitKey, InitSizes, OtherModel, PipelineFolder};
use super::episodes;
use super::lengths::{SequenceLengths, TaskReplies};
use super::model_memory::ParameterCounts;
use super::plan::Plan;
use super::preflight::{ModelSpec, Preflight, deferred_line, describe};
use super::tasks::Tasks;
use super::{distill, predict, rows, sft};
use crate::config::stage::IgnoredKey;
use crate::config::{ConfigError, RunConfig, StageSchema, Units};
use crate::console::print_stderr;
use crate::model_folder;
use crate::reward_list;

/// The keys of other sections without effect on a stage that learns from rollouts.
pub(super) const IGNORED_KEYS: &[IgnoredKey] = &[
    ("train.steps", "the length of this run is [ppo] iterations"),
    ("train.epochs", "the length of this run is [ppo] iterations"),
    ("train.gradient_accumulation_steps", "the number of replies per step is [ppo] mini_batch_size"),
    ("data.packing", "prompts are not packed"),
    ("data.eval", "this stage reports the metrics of its rollouts and evaluates no rows"),
    ("data.eval_fraction", "this stage reports the metrics of its rollouts and evaluates no rows"),
];

/// The sections that such a stage reads.
pub(super) const SECTIONS: &[&str] = &["ppo", "reward", "environment"];

/// The words for what such a stage counts.
pub(super) const UNITS: Units = Units { row: "prompt", step: "iteration", sample: "reply" };

/// The curves of the report.
pub(super) const CURVES: &[&str] =
    &["objective/scores", "objective/kl", "objective/entropy", "response_length/mean"];

/// The charts of the dashboard. Those whose metrics a run does not have are left out.
pub(super) const CHARTS: Charts = &[
    ("reward", &["objective/scores"]),
    ("KL to the reference", &["objective/kl"]),
    ("policy loss", &["loss/policy_avg"]),
    ("entropy", &["objective/entropy"]),
    ("clip fraction, policy and value", &["policy/clipfrac_avg", "val/clipfrac_avg"]),
    ("value loss", &["loss/value_avg"]),
    ("reply length", &["response_length/mean"]),
    ("cut replies", &["truncated_rate"]),
    ("prompts without variance", &["groups/zero_variance"]),
    ("repetition", &["monitor/repetition"]),
    ("importance weights that were cut", &["correction/cut"]),
    ("reward minus KL penalty", &["objective/rlhf_reward"]),
    ("explained variance", &["val/explained_variance"]),
    ("gradient norm", &["grad_norm", "critic_grad_norm"]),
    ("throughput, tokens/s", &[THROUGHPUT]),
];

/// The model that `init` asks for when a stage has no critic.
pub(super) const REWARD_MODEL: OtherModel = OtherModel {
    flag: "--reward-model",
    question: "The reward model: the folder that `rm` has written",
    key: "reward_model",
    comment: "The model that scores answers. Verifiers and programs are [[reward]] entries.",
    is_reward_model: true,
};

/// The keys that `init` writes for a stage that compares the replies to a prompt.
pub(super) fn group_init_keys(sizes: &InitSizes, kl_coef: &str) -> Vec<InitKey> {
    let (iterations, prompts, samples, replies) =
        if sizes.is_quick { ("3", "4", "2", "8") } else { ("100", "16", "8", "128") };
    let comment = "Iterations. In each the model answers prompts and learns from the rewards.";
    let tie = "What keeps the model near the one it started from. Raise it when the replies degenerate.";
    vec![
        InitKey::new(comment, "iterations", iterations),
        InitKey::new("Prompts of one iteration.", "rollout_batch_size", prompts),
        InitKey::new("Replies to each prompt, which are compared.", "samples_per_prompt", samples),
        InitKey::new("Replies of one optimizer step.", "mini_batch_size", replies),
        InitKey::new("The longest reply in tokens.", "max_new_tokens", &sizes.max_new_tokens.to_string()),
        InitKey::new(tie, "kl_coef", kl_coef),
    ]
}

/// The rows of the stage, checked against its models.
struct Inputs {
    prompts: rows::EncodedRows<PromptRow>,
    ptx: rows::EncodedRows<SftRow>,
    /// What the user must know of the prompts.
    warnings: Vec<String>,
}

/// Sets the paths of a pipeline. Its reward model scores the replies unless the file has rewards of its own.
pub(super) fn set_pipeline_paths(config: &mut RunConfig, pipeline: &PipelineFolder<'_>) {
    pipeline.set_path(&mut config.model.path, "sft/final");
    if config.reward.is_empty() && config.environment.is_none() {
        pipeline.set_files(&mut config.ppo.reward_model, "rm/final");
    }
    pipeline.set_files(&mut config.data.train, "data/prompts.parquet");
    if config.ppo.ptx_coef > 0.0 {
        pipeline.set_files(&mut config.data.ptx, "data/sft.parquet");
    }
}

/// Checks the inputs of a stage without reading weights. Returns a summary line.
pub(super) fn preflight(
    stage: &'static StageSchema,
    preflight: &mut Preflight<'_>,
    config: &RunConfig,
) -> anyhow::Result<String> {
    let models = PerRole::find(config, stage, |key, name| preflight.model(key, name))?;
    let mut policy = models.policy.clone();
    policy.tokenizer = policy.tokenizer_of(&config.tokenizer, false)?;
    let tokenizer = policy.load_tokenizer()?;
    let line = preflight_rows(stage, preflight, config, &models, tokenizer.as_ref())?;
    preflight.add_model(config, policy);
    Ok(line)
}

fn preflight_rows(
    stage: &'static StageSchema,
    preflight: &Preflight<'_>,
    config: &RunConfig,
    models: &PerRole<ModelSpec>,
    tokenizer: Option<&Tokenizer>,
) -> anyhow::Result<String> {
    models.policy.refuse_reward_model("model.path")?;
    let mut reference = models.reference.iter();
    reference.try_for_each(|model| model.refuse_reward_model("ppo.reference_model"))?;
    let mut teacher = models.teacher.iter();
    teacher.try_for_each(|model| model.refuse_reward_model("distill.teacher"))?;
    let named = models.rewards.iter().zip(reward_list::models(config));
    named.into_iter().try_for_each(|(model, named)| model.need_reward_model(named.key))?;
    for (role, model) in models.others() {
        model.check_tokenizer(role, tokenizer)?;
    }
    let configs = models.map(|model| Ok(model.config.clone()))?;
    context::check_mesh(config, &configs.all(), preflight.mesh)?;

    let Some(tokenizer) = tokenizer.filter(|_| preflight.have_rows(config)) else {
        preflight.parse::<PromptRow>(&config.data.train, &config.data)?;
        preflight.parse::<SftRow>(&config.data.ptx, &config.data)?;
        return Ok(deferred_line(stage));
    };
    let inputs = inputs(stage, config, &configs, tokenizer)?;
    let replies = counted(config.ppo.replies()? as u64, "reply");
    let length = format!("{} of {replies}", counted(config.ppo.iterations, "iteration"));
    Ok(describe(stage, &inputs.prompts, &length))
}

/// Loads the models and rows, and trains.
pub(super) fn run(config: &RunConfig, ctx: &mut StageContext<'_>) -> anyhow::Result<()> {
    let folders = PerRole::find(config, ctx.stage, |_, name| model_folder::find(name))?;
    let configs = folders.map(|folder| Ok(folder.config()?))?;
    let tokenizer = tokenizer(config, &folders.policy)?;
    folders.check_tokenizers(&tokenizer, ctx.groups)?;

    let mut inputs = inputs(ctx.stage, config, &configs, &tokenizer)?;
    if ctx.groups.is_rank_zero() {
        inputs.warnings.iter().for_each(|warning| print_stderr(warning));
    }
    episodes::show_tools(config, ctx, &tokenizer, &mut inputs.prompts)?;
    check_lengths(config, &configs, inputs.prompts.longest)?;
    let tasks = Tasks::prepare(config, ctx.groups)?;
    context::check_split(config, &configs.all(), ctx)?;
    let replies = tasks.as_ref().and_then(|tasks| tasks.replies(&tokenizer));
    let folders = folders.resumed_from(ctx.folder.checkpoint())?;
    let adapter = context::new_adapter(config, &folders.policy, ctx)?;
    let planned = PerRole::find_planned(config, &folders, adapter.as_ref())?;
    let plan = planned.plan(config, ctx, &inputs, replies)?;
    if context::ends_with_plan(&plan, ctx) {
        return Ok(());
    }
    let Inputs { prompts, ptx, .. } = inputs;
    let models = ModelSet::load(config, &folders, adapter.as_ref(), ctx)?;
    let critic = models.critic.iter().map(|critic| ("critic", critic.config()));
    let trained: Vec<_> = std::iter::once(("policy", models.policy.config())).chain(critic).collect();
    context::warn_about_dropout(ctx.groups, &trained);

    let stop_ids = session::stop_ids(&tokenizer, models.policy.config());
    // The text is only logged for people, so an id that cannot be decoded becomes an error text and does not
    // stop the run.
    let decode = |ids: &[i64]| tokenizer.decode(ids, true).unwrap_or_else(|error| format!("<{error}>"));

    let follow = episodes::follow(&tokenizer);
    let memory = Arc::clone(&ctx.memory);
    let roles = RolloutModels {
        policy: &models.policy,
        reference: models.reference.as_ref(),
        critic: models.critic.as_ref(),
        reward_models: models.rewards.iter().collect(),
        memory: &memory,
    };
    let data = Data {
        prompts: &prompts.rows,
        shuffle: config.data.shuffle,
        ptx: &ptx.rows,
        stop_ids: &stop_ids,
        decode: &decode,
        rewards: reward_list::function(config, ctx.groups)?,
        turns: episodes::turns(config, ctx, models.policy.config(), &follow)?,
    };

    let groups = Arc::clone(ctx.groups);
    let algorithm = Algorithm::of(ctx.stage);
    let train = algorithm.training(config, (roles, models.teacher.as_ref()), data, &groups)?;
    let companions = |folder: &Path| model_folder::save_tokenizer(folder, &tokenizer, models.policy.config());
    let policy = (&models.policy, &tokenizer);
    let evaluate_tasks = tasks.as_ref().map(|tasks| move |step| tasks.evaluate(policy, step));
    let hooks = Hooks::new(&companions, evaluate_tasks.as_ref());
    run_in_folder(config, plan, &hooks, ctx, train)
}

/// Reads the rows and checks them against the configurations of the models. Reads no weights.
fn inputs(
    stage: &'static StageSchema,
    config: &RunConfig,
    models: &PerRole<Config>,
    tokenizer: &Tokenizer,
) -> anyhow::Result<Inputs> {
    check_vocabulary(tokenizer, &models.policy)?;
    if let Some(teacher) = &models.teacher {
        distill::check_teacher(config, &models.policy, teacher)?;
    }
    let prompts = rows::load_all(&config.data.train, tokenizer, &config.data)?;
    rows::refuse_none(&prompts, stage)?;
    let warnings = reward_list::check_answers(config, &prompts.rows)?;
    let ptx = rows::load_all(&config.data.ptx, tokenizer, &config.data)?;
    check_lengths(config, models, prompts.longest)?;
    models.policy.check_length("the longest ptx row", ptx.longest)?;
    Ok(Inputs { prompts, ptx, warnings })
}

/// Refuses prompts that leave no room for a reply, and replies that exceed the positions of a model.
fn check_lengths(config: &RunConfig, models: &PerRole<Config>, longest: usize) -> anyhow::Result<()> {
    let room = models.policy.max_positions() as usize;
    if longest >= room {
        return Err(ConfigError::NoRoom { longest, room }.into());
    }
    let whole = longest.saturating_add(reply_tokens(config, room)).min(room);
    for (_, config) in models.others() {
        config.check_reply("the longest prompt with its reply", whole)?;
    }
    Ok(())
}

/// The most tokens that follow a prompt, in a model with `positions` positions: those of a reply, or of an
/// episode with what its environment answers.
fn reply_tokens(config: &RunConfig, positions: usize) -> usize {
    let most = match &config.environment {
        Some(environment) => environment.max_episode_tokens.unwrap_or(positions),
        None => config.ppo.max_new_tokens,
    };
    most.min(positions)
}

impl PerRole<PlannedRole> {
    /// The plan for these models.
    fn plan(
        &self,
        config: &RunConfig,
        ctx: &StageContext<'_>,
        inputs: &Inputs,
        task_replies: Option<TaskReplies>,
    ) -> anyhow::Result<Plan> {
        let Inputs { prompts, ptx, .. } = inputs;
        let prompt = RowTokens::mean(&prompts.rows, |row| ([row.input_ids.len()], 0));
        let positions = self.policy.config.max_positions() as usize;
        let algorithm = Algorithm::of(ctx.stage);
        let bytes = config.model.dtype.kind().elt_size_in_bytes();
        let states = self.teacher.iter().map(|teacher| teacher.config.architecture().hidden_size as usize);
        let lengths = SequenceLengths {
            new_tokens: config.ppo.max_new_tokens.min(positions),
            reply_tokens: reply_tokens(config, positions),
            learned_per_prompt: algorithm.learned_per_prompt(config),
            task_replies,
            ptx: (config.ppo.ptx_coef > 0.0).then(|| sft::mean_row(&ptx.rows)),
            frozen_state: states.map(|state| state * bytes).sum(),
            ..SequenceLengths::of(prompts, algorithm.sequences_per_row(), prompt)
        };
        let mut models = predict::check(config, ctx, &self.planned(config), &lengths)?;

        // The reward models count as one.
        let is_reward = |role: &str| role == "reward";
        let rewards = models.parameters.iter().filter(|(role, _)| is_reward(role));
        let rewards = rewards.map(|(_, count)| count.all).sum();
        models.parameters.retain(|(role, _)| !is_reward(role));
        if !self.rewards.is_empty() {
            models.parameters.push(("reward", ParameterCounts { all: rewards, trained: 0, adapters: None }));
        }
        let steps = (config.ppo.iterations, config.ppo.replies()?);
        Ok(Plan::new(ctx.stage, ctx.mesh, models, prompts, steps))
    }
}
