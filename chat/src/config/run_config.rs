//! The resolved configuration of one stage, and what refuses its values.

use std::fmt::Display;
use std::path::PathBuf;

use gemini::{GeminiConfig, TrainConfig};
use rewards::environment::EnvironmentSection;
use rewards::{RewardEntry, RewardKind};
use rlhf::config::{
    CpoConfig, DistillConfig, DpoConfig, KtoConfig, OldLogprobs, OrpoConfig, PpoConfig, RejectConfig,
    RmConfig, Shuffle, SimpoConfig,
};
use rlhf::loss::preference::PreferenceLoss;
use serde::{Deserialize, Serialize};

use super::error::ConfigError;
use super::origins::Origins;
use super::read;
use super::section::{
    BaseSection, CheckpointSection, DataSection, Dtype, EvalSection, LogSection, ModelSection,
    ParallelSection, ReferenceSection, SequenceMode, TensorMode, TokenizerSection,
};
use super::stage::{IgnoredKey, StageSchema};

/// The resolved configuration of one stage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RunConfig {
    /// Determines initial values, the order of rows and random draws.
    pub(crate) seed: u64,
    /// Required. The run folder. It is refused if it holds a run, unless `--resume` is given, or if it holds
    /// files of somebody else.
    pub(crate) out: PathBuf,
    /// The threads of one operation, at least 1. If absent, one per core; several processes share the cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) threads: Option<usize>,
    /// How the ranks share the work.
    pub(crate) parallel: ParallelSection,
    /// How much memory the models may take.
    pub(crate) gemini: GeminiConfig,
    /// The model that the stage starts from.
    pub(crate) model: ModelSection,
    /// The tokenizer of the model.
    pub(crate) tokenizer: TokenizerSection,
    /// The training data.
    pub(crate) data: DataSection,
    /// The settings of the optimizer steps.
    pub(crate) train: TrainConfig,
    /// When checkpoints are saved.
    pub(crate) checkpoint: CheckpointSection,
    /// When metrics are logged.
    pub(crate) log: LogSection,
    /// When held-out rows are evaluated.
    pub(crate) eval: EvalSection,
    /// Settings specific to reward-model training.
    pub(crate) rm: RmConfig,
    /// Settings of the stages that learn from rollouts.
    pub(crate) ppo: PpoConfig,
    /// Rewards, whose weighted sum is the reward of a reply, together with that of `ppo.reward_model`. If
    /// absent, that one alone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) reward: Vec<RewardEntry>,
    /// What answers the policy between its turns. If absent, an episode is one reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) environment: Option<EnvironmentSection>,
    /// Settings specific to rejection sampling.
    pub(crate) reject: RejectConfig,
    /// The model that offline algorithms compare the policy with.
    pub(crate) reference: ReferenceSection,
    /// Settings specific to DPO and its family.
    pub(crate) dpo: DpoConfig,
    /// Settings specific to KTO.
    pub(crate) kto: KtoConfig,
    /// Settings specific to ORPO.
    pub(crate) orpo: OrpoConfig,
    /// Settings specific to `SimPO`.
    pub(crate) simpo: SimpoConfig,
    /// Settings specific to CPO.
    pub(crate) cpo: CpoConfig,
    /// Settings specific to distillation.
    pub(crate) distill: DistillConfig,
    /// What the pipeline gives its base stage.
    #[serde(skip)]
    pub(crate) base: NewModel,
    /// Where the values come from.
    #[serde(skip)]
    pub(crate) origins: Origins,
}

/// The sections of algorithms, which stages read them, and what refuses their values. A stage names the
/// sections that it reads.
pub(crate) const ALGORITHM_SECTIONS: [(&str, &str, SectionCheck); 12] = [
    ("rm", "[rm] is read by rm", |_| Ok(())),
    ("ppo", "[ppo] is read by ppo, grpo, rloo, reinforce, online-dpo and gkd", |config| {
        Ok(config.ppo.check()?)
    }),
    ("reward", "[[reward]] is read by ppo, grpo, rloo, reinforce and online-dpo", RunConfig::check_rewards),
    (
        "environment",
        "[environment] is read by ppo, grpo, rloo, reinforce and gkd",
        RunConfig::check_environment,
    ),
    ("reject", "[reject] is read by reject", |config| Ok(config.reject.check()?)),
    ("reference", "[reference] is read by dpo and kto; online-dpo has [ppo] reference_model", |_| Ok(())),
    ("dpo", "[dpo] is read by dpo and online-dpo", |config| Ok(config.dpo.check()?)),
    ("kto", "[kto] is read by kto", |config| Ok(config.kto.check()?)),
    ("orpo", "[orpo] is read by orpo", |config| Ok(config.orpo.check()?)),
    ("simpo", "[simpo] is read by simpo", |config| Ok(config.simpo.check()?)),
    ("cpo", "[cpo] is read by cpo", |config| Ok(config.cpo.check()?)),
    ("distill", "[distill] is read by distill and gkd", |config| Ok(config.distill.check()?)),
];

/// Refuses the values of a section.
pub(crate) type SectionCheck = fn(&RunConfig) -> Result<(), ConfigError>;

/// A model that is trained from random weights.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct NewModel {
    /// The sizes of the network.
    pub(crate) network: BaseSection,
    /// The folder of its tokenizer, which the pipeline trains.
    pub(crate) tokenizer: PathBuf,
    /// The size of the vocabulary of this tokenizer.
    pub(crate) vocab_size: usize,
}

impl StageSchema {
    /// Whether the key or section `key` has an effect on the stage.
    pub(crate) fn reads(&self, key: &str) -> bool {
        let covers = |(ignored, _): &IgnoredKey| {
            key.strip_prefix(ignored).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        !self.ignored_keys().iter().any(covers)
    }

    /// The keys and sections that have no effect on the stage, each with the reason.
    pub(crate) fn ignored_keys(&self) -> Vec<IgnoredKey> {
        let others = ALGORITHM_SECTIONS.iter().filter(|(section, ..)| !self.sections.contains(section));
        let others = others.map(|&(section, readers, _)| (section, readers));
        others.chain(self.ignored_keys.iter().copied()).collect()
    }
}

impl RunConfig {
    /// The configuration without what a stage does not read that learns from rollouts and has no advantages,
    /// or no rewards: a section of rollouts may be common to several stages.
    pub(super) fn of_stage(mut self, stage: &StageSchema) -> Self {
        if !stage.has_rollouts || stage.reads("ppo.advantage_estimator") {
            return self;
        }
        self.ppo = self.ppo.rollout_settings();
        if !stage.reads("reward") {
            self.ppo = self.ppo.without_rewards();
            self.reward.clear();
        }
        if !stage.reads("environment") {
            self.environment = None;
        }
        if !stage.reads("ppo.shuffle") {
            self.ppo.shuffle = Shuffle::default();
        }
        if !stage.reads("ppo.reference_model") {
            self.ppo.reference_model = None;
        }
        self.data.ptx.0.clear();
        self
    }

    /// The defaults of `stage`.
    pub(crate) fn default_of(stage: &StageSchema) -> Self {
        let defaults = stage.own_defaults().and_then(|tree| read::read(&tree));
        defaults.expect("a test reads the defaults of every stage")
    }

    /// Refuses invalid or contradictory settings and missing required ones.
    pub(crate) fn check(&self, stage: &StageSchema) -> Result<(), ConfigError> {
        self.check_bounds(stage)?;
        required_out(self.out.clone(), stage.name)?;
        if stage.reads("model.path") {
            self.model_path(stage)?;
        }
        if self.data.train.0.is_empty() {
            let (key, what) = ("data.train", "rows to learn from");
            return Err(ConfigError::Needed { key, stage: stage.name, what });
        }
        if stage.reads("reward") {
            self.need_rewards(stage)?;
        }

        // Settings that contradict each other.
        if stage.reads("data.ptx") && self.ppo.ptx_coef == 0.0 && !self.data.ptx.0.is_empty() {
            let message =
                "has no effect while [ppo] ptx_coef is 0: set that, or leave the rows out".to_owned();
            return Err(ConfigError::Value { place: None, key: "data.ptx".to_owned(), message });
        }
        if stage.reads("ppo")
            && self.ppo.old_logprobs == OldLogprobs::Sampler
            && self.model.dtype == Dtype::Bfloat16
        {
            let wanted = "in bfloat16 the sampler and the training pass round differently: take \"trainer\", or [model] \
                          dtype = \"float32\"";
            return refuse("ppo.old_logprobs", "sampler", wanted);
        }
        let held_out = self.data.eval_fraction > 0.0 || !self.data.eval.0.is_empty();
        let has_tasks = !self.eval.tasks.0.is_empty() && stage.reads("eval.tasks");
        if self.eval.every > 0 && !held_out && !has_tasks && stage.reads("data.eval") {
            let wanted = "there are neither held-out rows nor tasks: give [data] eval, eval_fraction or [eval] tasks, \
                          or leave this key out";
            return refuse("eval.every", self.eval.every, wanted);
        }
        Ok(())
    }

    /// The optimizer steps of the run (for PPO: of the policy), if no row has to be counted for it.
    pub(super) fn optimizer_steps(&self, stage: &StageSchema) -> Option<u64> {
        if stage.has_rollouts { Some(self.ppo.policy_steps(self.ppo.iterations)) } else { self.train.steps }
    }

    /// What is wrong with a warm-up that is longer than a run of `steps` optimizer steps.
    pub(crate) fn long_warmup(&self, steps: u64) -> Option<String> {
        let warmup = self.train.warmup_steps;
        (warmup > steps).then(|| {
            format!(
                "{warmup} steps of warm-up are more than the run has ({steps}), so the rate never reaches [train] lr: lower \
                 this, or train longer"
            )
        })
    }

    /// Returns the model that `stage` starts from.
    pub(crate) fn model_path(&self, stage: &StageSchema) -> Result<&str, ConfigError> {
        let (key, what) = ("model.path", "a model to start from");
        self.model.path.as_deref().ok_or(ConfigError::Needed { key, stage: stage.name, what })
    }

    /// Refuses a stage in which no reply has a reward, and one whose critic has nothing to start as.
    fn need_rewards(&self, stage: &StageSchema) -> Result<(), ConfigError> {
        if !self.has_other_rewards() && self.reward.iter().all(|entry| entry.weight == 0.0) {
            return Err(ConfigError::NoReward { stage: stage.name });
        }

        let is_model = |entry: &RewardEntry| matches!(entry.kind, RewardKind::Model(_));
        let has_model = !self.ppo.reward_model.0.is_empty() || self.reward.iter().any(is_model);
        if self.ppo.advantage_estimator.has_critic() && !has_model && self.ppo.critic_model.is_none() {
            let what = "a model that the critic starts as, because there is no reward model, or an advantage_estimator \
                        without a critic";
            return Err(ConfigError::Needed { key: "ppo.critic_model", stage: stage.name, what });
        }
        Ok(())
    }

    /// Whether replies have rewards beside those of `[[reward]]`.
    fn has_other_rewards(&self) -> bool {
        let may_reward = self.environment.as_ref().is_some_and(EnvironmentSection::may_reward);
        !self.ppo.reward_model.0.is_empty() || may_reward
    }

    /// Refuses entries of `[[reward]]` that cannot work.
    pub(super) fn check_rewards(&self) -> Result<(), ConfigError> {
        match rewards::check(&self.reward) {
            // Then all of them are measured only.
            Err(rewards::Error::NoWeight) if self.has_other_rewards() => {}
            checked => checked.map_err(of_rewards)?,
        }
        let taken = |name: &String| self.reward.iter().position(|entry| entry.name == *name);
        let own = reward_model_names(self.ppo.reward_model.0.len());
        let same = own.into_iter().find_map(|name| taken(&name).map(|index| (index, name)));
        same.map_or(Ok(()), |(index, name)| {
            let message = format!(
                "{name:?} is what metrics call a model of [ppo] reward_model: give this entry another name, or list \
                 the model as an entry"
            );
            Err(ConfigError::Value { place: None, key: format!("reward[{index}].name"), message })
        })
    }

    /// Refuses settings of `[environment]` that cannot work.
    fn check_environment(&self) -> Result<(), ConfigError> {
        self.environment.as_ref().map_or(Ok(()), |section| section.check().map_err(of_rewards))
    }

    /// Refuses invalid values. Does not require paths, because `pipeline` fills them in later.
    pub(super) fn check_bounds(&self, stage: &StageSchema) -> Result<(), ConfigError> {
        check_parallel(&self.parallel, self.threads)?;
        if let Some((key, reason)) = self.gemini.refused_key() {
            return Err(ConfigError::Value { place: None, key: key.to_owned(), message: reason.to_owned() });
        }

        let optional = [
            ("model.path", &self.model.path),
            ("tokenizer.path", &self.tokenizer.path),
            ("ppo.reference_model", &self.ppo.reference_model),
            ("ppo.critic_model", &self.ppo.critic_model),
            ("reference.model", &self.reference.model),
            ("distill.teacher", &self.distill.teacher),
        ];
        let names = optional.into_iter().filter_map(|(key, name)| Some((key, name.as_ref()?)));
        for (key, name) in names.chain(self.ppo.reward_model.0.iter().map(|name| ("ppo.reward_model", name)))
        {
            if name.trim().is_empty() {
                let message =
                    "is empty: name a folder or a model of the hub, or leave the key out".to_owned();
                return Err(ConfigError::Value { place: None, key: key.to_owned(), message });
            }
        }
        self.train.check().map_err(rlhf::Error::from)?;
        if stage.has_rollouts && stage.reads("dpo") {
            rlhf::online::dpo::check_sizes(&self.ppo)?;
        }
        let mut read = ALGORITHM_SECTIONS.iter().filter(|(section, ..)| stage.reads(section));
        read.try_for_each(|(.., check)| check(self))?;
        self.data.check()?;
        self.eval.check()?;
        if self.log.every == 0 {
            return refuse("log.every", 0, "must be at least 1");
        }
        if self.checkpoint.every > 0 && self.checkpoint.keep == 0 {
            return refuse("checkpoint.keep", 0, "must be at least 1, or set [checkpoint] every = 0");
        }
        Ok(())
    }

    /// The number of steps (for PPO: iterations) of the run, if no row has to be counted for it.
    pub(crate) fn fixed_length(&self, stage: &StageSchema) -> Option<u64> {
        if stage.has_rollouts { Some(self.ppo.iterations) } else { self.train.steps }
    }
}

/// Refuses parallel settings that contradict each other or are not implemented yet.
fn check_parallel(parallel: &ParallelSection, threads: Option<usize>) -> Result<(), ConfigError> {
    if threads == Some(0) {
        return refuse("threads", 0, "must be at least 1; leave it out for a fair share of the cores");
    }
    let (sequence, tensor) = (&parallel.sequence, parallel.tensor.size);
    if parallel.auto && *parallel != parallel.undivided() {
        let wanted = "chooses the layout: leave out the other keys of [parallel] (all but transport and hardware), or set \
                      this to false";
        return refuse("parallel.auto", true, wanted);
    }
    for (key, size) in [
        ("parallel.data", parallel.data.unwrap_or(1)),
        ("parallel.pipeline.size", parallel.pipeline.size),
        ("parallel.pipeline.chunks", parallel.pipeline.chunks),
        ("parallel.expert.size", parallel.expert.size),
        ("parallel.tensor.size", tensor),
        ("parallel.sequence.size", sequence.size),
    ] {
        if size == 0 {
            return refuse(key, 0, "must be at least 1");
        }
    }

    // The other modes would create a mesh with an axis that no collective uses, and the job would hang.
    if parallel.tensor.mode != TensorMode::OneDimension {
        let message = "layers in two and three dimensions are not there yet: use \"1d\"".to_owned();
        return Err(ConfigError::Value { place: None, key: "parallel.tensor.mode".to_owned(), message });
    }
    if let Some(depth) = parallel.tensor.depth {
        return refuse("parallel.tensor.depth", depth as u64, "has no effect on mode = \"1d\": leave it out");
    }

    let size = sequence.size as u64;
    match sequence.mode {
        SequenceMode::None if size > 1 => {
            refuse("parallel.sequence.size", size, "needs mode = \"ulysses\" or \"ring\" in the same section")
        }
        SequenceMode::Megatron if size > 1 => {
            let wanted =
                "must be 1: mode = \"megatron\" shares tokens among the processes of [parallel.tensor]";
            refuse("parallel.sequence.size", size, wanted)
        }
        SequenceMode::Megatron if tensor == 1 => {
            refuse("parallel.tensor.size", 1, "must be above 1 for [parallel.sequence] mode = \"megatron\"")
        }
        _ => Ok(()),
    }
}

/// The names of the rewards of the models of `[ppo] reward_model`, of which there are `count`.
fn reward_model_names(count: usize) -> Vec<String> {
    let name = |number: usize| if number == 1 { "reward".to_owned() } else { format!("reward_{number}") };
    (1..=count).map(name).collect()
}

/// What is wrong with a reward or an environment, with its key.
pub(crate) fn of_rewards(error: rewards::Error) -> ConfigError {
    let (key, message) = match error {
        rewards::Error::Setting { place, problem, fix } => (place, format!("{problem}; {fix}")),
        rewards::Error::SameName { second, .. } => (format!("reward[{second}].name"), error.to_string()),
        error => ("reward".to_owned(), error.to_string()),
    };
    ConfigError::Value { place: None, key, message }
}

pub(super) fn required_out(out: PathBuf, stage: &'static str) -> Result<PathBuf, ConfigError> {
    if out.as_os_str().is_empty() {
        return Err(ConfigError::Needed { key: "out", stage, what: "a folder for the run" });
    }
    Ok(out)
}

fn refuse(key: &str, value: impl Display, wanted: &str) -> Result<(), ConfigError> {
    Err(ConfigError::Value { place: None, key: key.to_owned(), message: format!("{value}: {wanted}") })
}
