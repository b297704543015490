//! What the stages share that learn from rollouts: policy, reference, critic, teacher and reward models in
//! each process, the rows, the plan, and the run. The stages themselves are files with their texts and
//! defaults.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use datasets::{PromptRow, SftRow, Tokenizer};
use inference::model_folder::{ModelFolder, Trunk};
use inference::session::{self, check_vocabulary};
use models::causal_lm::{CausalLm, LoadOptions};
use models::config::Config;
use models::decoder::HeadKind;
use models::lora::LoraPlan;
use models::scalar_model::ScalarModel;
use parallel::ProcessGroups;
use rlhf::loss::preference::PreferenceLoss;
use rlhf::on_policy::Data;
use rlhf::online::Settings;
use rlhf::online::distill::Gkd;
use rlhf::online::dpo::OnlineDpo;
use rlhf::ppo::{CRITIC_FOLDER, Ppo};
use rlhf::rollout::RolloutModels;
use rlhf::run::StageRun;
use tch::Kind;
use text::number::counted;
use tui::dashboard::{Charts, THROUGHPUT};

use super::context::{self, Hooks, StageContext, run_in_folder, tokenizer, trainable_options};
use super::definition::{InitKey, InitSizes, OtherModel, PipelineFolder};
use super::episodes;
use super::model_memory::{ParameterCounts, PlannedModel};
use super::peak_memory::{RowTokens, SequenceLengths, TaskReplies};
use super::plan::Plan;
use super::preflight::{ModelSpec, Preflight, deferred_line, describe};
use super::tasks::Tasks;
use super::{distill, predict, rm, rows, sft};
use crate::config::stage::IgnoredKey;
use crate::config::{ConfigError, RunConfig, StageSchema, Units};
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

/// What a stage learns of its rollouts. The keys that the stage reads tell which it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Algorithm {
    /// Tokens with advantages: PPO, GRPO, RLOO, REINFORCE++ and kin.
    PolicyGradient,
    /// Pairs of replies.
    OnlineDpo,
    /// What a teacher says of the replies.
    Distillation,
}

impl Algorithm {
    fn of(stage: &StageSchema) -> Self {
        if stage.reads("distill.teacher") {
            Self::Distillation
        } else if stage.reads("dpo.beta") {
            Self::OnlineDpo
        } else {
            Self::PolicyGradient
        }
    }

    /// Whether it compares the policy with a reference.
    fn has_reference(self, config: &RunConfig) -> bool {
        match self {
            Self::PolicyGradient => config.ppo.has_reference(),
            Self::OnlineDpo => config.dpo.has_reference(),
            Self::Distillation => false,
        }
    }

    /// The sequences of a row of an optimizer step, and the replies to a prompt that become rows, if any do.
    fn rows(self, config: &RunConfig) -> (usize, Option<usize>) {
        match self {
            Self::PolicyGradient => (1, None),
            Self::OnlineDpo => (2, Some(2)),
            Self::Distillation => (1, Some(config.ppo.samples_per_prompt)),
        }
    }
}

/// The loaded models. Those that are adapters of the same model share its weights.
struct ModelSet {
    policy: CausalLm,
    reference: Option<CausalLm>,
    critic: Option<ScalarModel>,
    teacher: Option<CausalLm>,
    rewards: Vec<ScalarModel>,
}

/// One value for each model.
struct PerRole<T> {
    policy: T,
    /// `None` without a KL penalty, and if the loss of pairs has none.
    reference: Option<T>,
    /// `None` if there are no advantages, or if they come from the other replies to the same prompt.
    critic: Option<T>,
    /// The teacher of a distillation.
    teacher: Option<T>,
    rewards: Vec<T>,
}

/// The rows of the stage, checked against its models.
struct Inputs {
    prompts: rows::EncodedRows<PromptRow>,
    ptx: rows::EncodedRows<SftRow>,
}

impl<T: Clone> PerRole<T> {
    /// Calls `find` for each model with the setting that names it and the name that the setting gives. By
    /// default the reference is the policy, and the critic starts as the first reward model.
    fn find(
        config: &RunConfig,
        stage: &StageSchema,
        mut find: impl FnMut(&'static str, &str) -> anyhow::Result<T>,
    ) -> anyhow::Result<Self> {
        let ppo = &config.ppo;
        let policy = find("model.path", config.model_path(stage)?)?;
        let models = reward_list::models(config);
        let rewards: Vec<T> =
            models.iter().map(|model| find(model.key, model.folder)).collect::<Result<_, _>>()?;
        let mut named = |key, name: Option<&str>, otherwise: Option<&T>| match (name, otherwise) {
            (Some(name), _) => find(key, name),
            (None, Some(otherwise)) => Ok(otherwise.clone()),
            (None, None) => {
                Err(ConfigError::Needed { key, stage: stage.name, what: "a model to start from" }.into())
            }
        };
        let algorithm = Algorithm::of(stage);
        let reference = if algorithm.has_reference(config) {
            Some(named("ppo.reference_model", ppo.reference_model.as_deref(), Some(&policy))?)
        } else {
            None
        };
        let critic = if ppo.advantage_estimator.has_critic() {
            Some(named("ppo.critic_model", ppo.critic_model.as_deref(), rewards.first())?)
        } else {
            None
        };
        let teacher = match algorithm {
            Algorithm::Distillation => Some(find("distill.teacher", distill::teacher_name(config, stage)?)?),
            _ => None,
        };
        Ok(Self { policy, reference, critic, teacher, rewards })
    }
}

impl<T> PerRole<T> {
    /// Converts the value of each model.
    fn map<U>(&self, mut to: impl FnMut(&T) -> anyhow::Result<U>) -> anyhow::Result<PerRole<U>> {
        Ok(PerRole {
            policy: to(&self.policy)?,
            reference: self.reference.as_ref().map(&mut to).transpose()?,
            critic: self.critic.as_ref().map(&mut to).transpose()?,
            teacher: self.teacher.as_ref().map(&mut to).transpose()?,
            rewards: self.rewards.iter().map(&mut to).collect::<Result<_, _>>()?,
        })
    }

    /// The models besides the policy, with their roles.
    fn others(&self) -> Vec<(&'static str, &T)> {
        let rewards = self.rewards.iter().map(|reward| ("reward", reward));
        let critic = self.critic.iter().map(|critic| ("critic", critic));
        let teacher = self.teacher.iter().map(|teacher| ("teacher", teacher));
        let reference = self.reference.iter().map(|reference| ("reference", reference));
        reference.chain(rewards).chain(critic).chain(teacher).collect()
    }

    /// All models, the policy first.
    fn all(&self) -> Vec<&T> {
        std::iter::once(&self.policy).chain(self.others().into_iter().map(|(_, model)| model)).collect()
    }
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
    episodes::show_tools(config, ctx, &tokenizer, &mut inputs.prompts)?;
    check_lengths(config, &configs, inputs.prompts.longest)?;
    let tasks = Tasks::prepare(config, ctx.groups)?;
    context::check_split(config, &configs.all(), ctx)?;
    let replies = tasks.as_ref().and_then(|tasks| tasks.replies(&tokenizer));
    let folders = folders.resumed_from(ctx.folder.checkpoint())?;
    let adapter = context::new_adapter(config, &folders.policy, ctx)?;
    let planned = PerRole::find_planned(config, &folders, adapter.as_ref())?;
    let plan = planned.plan(config, ctx, &inputs, replies)?;
    if context::ends_with_plan(&plan, ctx)? {
        return Ok(());
    }
    let Inputs { prompts, ptx } = inputs;
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
    let train = training(config, ctx.stage, (roles, models.teacher.as_ref()), data, &groups)?;
    let companions = |folder: &Path| model_folder::save_tokenizer(folder, &tokenizer, models.policy.config());
    let policy = (&models.policy, &tokenizer);
    let evaluate_tasks = tasks.as_ref().map(|tasks| move |step| tasks.evaluate(policy, step));
    let hooks = Hooks::new(&companions, evaluate_tasks.as_ref());
    run_in_folder(config, plan, &hooks, ctx, train)
}

/// Trains the models of a stage.
type Training<'a> = Box<dyn FnMut(&mut StageRun<'_>) -> Result<(), rlhf::Error> + 'a>;

/// Begins what trains the models: the algorithm of the stage in the loop of all of them.
fn training<'a>(
    config: &'a RunConfig,
    stage: &StageSchema,
    (roles, teacher): (RolloutModels<'a>, Option<&'a CausalLm>),
    data: Data<'a>,
    groups: &'a Arc<ProcessGroups>,
) -> Result<Training<'a>, rlhf::Error> {
    let RunConfig { ppo, train, seed, .. } = config;
    let seed = *seed;
    let training: Training<'a> = match Algorithm::of(stage) {
        Algorithm::PolicyGradient => {
            let mut stage = Ppo::new(roles, data, ppo, train, seed, groups)?;
            Box::new(move |run: &mut StageRun<'_>| stage.train(run))
        }
        Algorithm::OnlineDpo => {
            let settings = Settings { rollouts: ppo, algorithm: &config.dpo, train, seed };
            let mut stage = OnlineDpo::new(roles, data, &settings, groups)?;
            Box::new(move |run: &mut StageRun<'_>| stage.train(run))
        }
        Algorithm::Distillation => {
            let teacher = teacher.expect("a distillation has a teacher");
            let settings = Settings { rollouts: ppo, algorithm: &config.distill, train, seed };
            let mut stage = Gkd::new(roles, teacher, data, &settings, groups)?;
            Box::new(move |run: &mut StageRun<'_>| stage.train(run))
        }
    };
    Ok(training)
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
    reward_list::check_answers(config, &prompts.rows)?;
    let ptx = rows::load_all(&config.data.ptx, tokenizer, &config.data)?;
    check_lengths(config, models, prompts.longest)?;
    models.policy.check_length("the longest ptx row", ptx.longest)?;
    Ok(Inputs { prompts, ptx })
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

/// What is planned for a model: its configuration, and what of it the trunk of the policy holds.
struct PlannedRole {
    config: Config,
    lora: Option<Arc<LoraPlan>>,
    shares_trunk: bool,
}

impl PerRole<PlannedRole> {
    /// What is planned for the models of `folders`.
    fn find_planned(
        config: &RunConfig,
        folders: &PerRole<ModelFolder>,
        adapter: Option<&Arc<LoraPlan>>,
    ) -> anyhow::Result<Self> {
        let kind = config.model.dtype.kind();
        let trunk = TrunkPlace::of_policy(&folders.policy, adapter.is_some(), kind);
        let role = |folder: &ModelFolder, is_scalar: bool, kind| -> anyhow::Result<PlannedRole> {
            let shares_trunk = trunk.as_ref().is_some_and(|trunk| trunk.holds(folder, is_scalar, kind));
            let lora = context::trained_adapter(None, folder)?;
            Ok(PlannedRole { config: folder.config()?, lora, shares_trunk })
        };
        let policy = context::trained_adapter(adapter, &folders.policy)?;
        Ok(Self {
            // The trunk is counted here.
            policy: PlannedRole { config: folders.policy.config()?, lora: policy, shares_trunk: false },
            reference: folders.reference.as_ref().map(|folder| role(folder, false, kind)).transpose()?,
            critic: folders.critic.as_ref().map(|folder| role(folder, true, kind)).transpose()?,
            // It has weights of its own, because its vocabulary may have been larger.
            teacher: folders
                .teacher
                .as_ref()
                .map(|folder| {
                    Ok::<_, anyhow::Error>(PlannedRole { shares_trunk: false, ..role(folder, false, kind)? })
                })
                .transpose()?,
            rewards: folders
                .rewards
                .iter()
                .map(|folder| role(folder, true, Kind::Float))
                .collect::<Result<_, _>>()?,
        })
    }

    /// What is loaded of each model. Only the policy and the critic are trained.
    fn planned(&self, config: &RunConfig) -> Vec<PlannedModel<'_>> {
        fn planned<'a>(
            role: &'static str,
            planned: &'a PlannedRole,
            head: HeadKind,
            kind: Kind,
        ) -> PlannedModel<'a> {
            let PlannedRole { config, lora, shares_trunk } = planned;
            let (lora, shares_trunk) = (lora.as_ref(), *shares_trunk);
            PlannedModel { lora, shares_trunk, ..PlannedModel::trained(role, config, head, kind) }
        }
        fn frozen(model: PlannedModel<'_>) -> PlannedModel<'_> {
            PlannedModel { is_trained: false, ..model }
        }
        let kind = config.model.dtype.kind();
        let mut models = vec![
            planned("policy", &self.policy, HeadKind::Vocabulary, kind)
                .with_adapter(self.policy.lora.as_ref()),
        ];
        models.extend(self.critic.iter().map(|critic| planned("critic", critic, HeadKind::Scalar, kind)));
        let reference = self.reference.iter();
        models.extend(reference.map(|model| frozen(planned("reference", model, HeadKind::Vocabulary, kind))));
        let teacher = self.teacher.iter();
        models.extend(teacher.map(|model| frozen(planned("teacher", model, HeadKind::Vocabulary, kind))));
        let rewards = self.rewards.iter();
        models.extend(rewards.map(|reward| frozen(planned("reward", reward, HeadKind::Scalar, Kind::Float))));
        models
    }

    /// The plan for these models.
    fn plan(
        &self,
        config: &RunConfig,
        ctx: &StageContext<'_>,
        inputs: &Inputs,
        task_replies: Option<TaskReplies>,
    ) -> anyhow::Result<Plan> {
        let Inputs { prompts, ptx } = inputs;
        let prompt = RowTokens::mean(&prompts.rows, |row| ([row.input_ids.len()], 0));
        let positions = self.policy.config.max_positions() as usize;
        let (per_row, learned_per_prompt) = Algorithm::of(ctx.stage).rows(config);
        let bytes = config.model.dtype.kind().elt_size_in_bytes();
        let states = self.teacher.iter().map(|teacher| teacher.config.architecture().hidden_size as usize);
        let lengths = SequenceLengths {
            new_tokens: config.ppo.max_new_tokens.min(positions),
            reply_tokens: reply_tokens(config, positions),
            learned_per_prompt,
            task_replies,
            ptx: (config.ppo.ptx_coef > 0.0).then(|| sft::mean_row(&ptx.rows)),
            frozen_state: states.map(|state| state * bytes).sum(),
            ..SequenceLengths::of(prompts, per_row, prompt)
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

impl PerRole<ModelFolder> {
    /// Returns the folders to load from. In a resumed run, the policy and the critic are in the checkpoint.
    fn resumed_from(self, checkpoint: Option<&Path>) -> anyhow::Result<Self> {
        let Some(path) = checkpoint else { return Ok(self) };
        let critic = self.critic.map(|_| ModelFolder::open(path.join(CRITIC_FOLDER))).transpose()?;
        Ok(Self { policy: ModelFolder::open(path.to_owned())?, critic, ..self })
    }

    /// Refuses models whose tokenizer differs from `own`, the tokenizer of the policy: all models receive
    /// the ids that it produces.
    fn check_tokenizers(&self, own: &Tokenizer, groups: &ProcessGroups) -> anyhow::Result<()> {
        let mut seen = vec![&self.policy];
        for (role, folder) in self.others() {
            if seen.contains(&folder) {
                continue;
            }
            seen.push(folder);
            context::check_tokenizer_of(own, role, folder, groups)?;
        }
        Ok(())
    }
}

impl ModelSet {
    fn load(
        config: &RunConfig,
        folders: &PerRole<ModelFolder>,
        adapter: Option<&Arc<LoraPlan>>,
        ctx: &StageContext<'_>,
    ) -> anyhow::Result<Self> {
        let options = trainable_options(config, ctx)?;
        let trunk = PolicyTrunk::load(&folders.policy, adapter.is_some(), &options)?;
        // What does not lie on the policy's trunk has weights of its own, as numbers.
        let options = LoadOptions { quantize: None, ..options };
        let frozen = |kind| LoadOptions { kind, trainable: false, ..options.clone() };
        let scalar_model = |folder: &ModelFolder, options: &LoadOptions| {
            PolicyTrunk::scalar_model(trunk.as_ref(), folder, config.seed, options)
        };
        Ok(Self {
            policy: match (&trunk, adapter) {
                (Some(trunk), Some(lora)) => trunk.weights.with_new_adapter(lora, config.seed)?,
                _ => PolicyTrunk::causal_lm(trunk.as_ref(), &folders.policy, &options)?,
            },
            reference: match &folders.reference {
                Some(folder) => Some(PolicyTrunk::causal_lm(trunk.as_ref(), folder, &frozen(options.kind))?),
                None => None,
            },
            critic: match &folders.critic {
                Some(folder) => Some(scalar_model(folder, &options)?),
                None => None,
            },
            teacher: match &folders.teacher {
                // Rows of the teacher's vocabulary that no token has are left out.
                Some(folder) => {
                    let vocab_size = folders.policy.config()?.vocab_size();
                    Some(CausalLm::load_resized(folder.path(), vocab_size, &frozen(options.kind))?)
                }
                None => None,
            },
            rewards: folders
                .rewards
                .iter()
                .map(|folder| scalar_model(folder, &frozen(Kind::Float)))
                .collect::<Result<_, _>>()?,
        })
    }
}

/// Where the frozen weights are that the policy's adapter belongs to, and the dtype in which they are held.
/// Every other model that is an adapter of them, or is these weights themselves, shares their memory.
struct TrunkPlace {
    folder: PathBuf,
    kind: Kind,
}

impl TrunkPlace {
    /// The trunk of a policy that is an adapter, or gets one; `None` for one that is trained whole.
    fn of_policy(policy: &ModelFolder, gets_adapter: bool, kind: Kind) -> Option<Self> {
        let has_adapter = gets_adapter || policy.base().is_some();
        has_adapter.then(|| Self { folder: policy.trunk_path(), kind })
    }

    /// Whether the trunk holds the weights of `folder` in this dtype, apart from an adapter. A whole scalar
    /// model has weights of its own.
    fn holds(&self, folder: &ModelFolder, is_scalar: bool, kind: Kind) -> bool {
        let is_on_trunk = !is_scalar || folder.base().is_some();
        is_on_trunk && folder.trunk_path() == self.folder && kind == self.kind
    }
}

/// The weights to which the policy's adapter belongs.
struct PolicyTrunk {
    place: TrunkPlace,
    weights: Trunk,
}

impl PolicyTrunk {
    /// Loads the trunk of the policy, if it has one.
    fn load(
        policy: &ModelFolder,
        gets_adapter: bool,
        options: &LoadOptions,
    ) -> Result<Option<Self>, models::Error> {
        let Some(place) = TrunkPlace::of_policy(policy, gets_adapter, options.kind) else { return Ok(None) };
        Ok(Some(Self { place, weights: Trunk::load(policy, options)? }))
    }

    /// Loads a language model, on the trunk if it belongs there.
    fn causal_lm(
        trunk: Option<&Self>,
        folder: &ModelFolder,
        options: &LoadOptions,
    ) -> Result<CausalLm, models::Error> {
        match trunk.filter(|trunk| trunk.place.holds(folder, false, options.kind)) {
            None => folder.causal_lm(options),
            Some(trunk) => trunk.weights.causal_lm(folder, options.trainable),
        }
    }

    /// Loads a scalar model, on the trunk if it belongs there.
    fn scalar_model(
        trunk: Option<&Self>,
        folder: &ModelFolder,
        seed: u64,
        options: &LoadOptions,
    ) -> Result<ScalarModel, models::Error> {
        match trunk.filter(|trunk| trunk.place.holds(folder, true, options.kind)) {
            None if options.trainable => rm::load(folder, None, seed, options),
            None => folder.scalar_model(options),
            Some(trunk) => trunk.weights.scalar_model(folder, None, options.trainable),
        }
    }
}
