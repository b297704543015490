//! The stage `ppo`: four models in one process.

use std::path::{Path, PathBuf};

use datasets::{PromptRow, SftRow, Tokenizer};
use models::causal_lm::{CausalLm, LoadOptions};
use models::config::Config;
use models::scalar_model::ScalarModel;
use parallel::Groups;
use rlhf::ppo::{CRITIC_FOLDER, Data, Ppo};
use rlhf::rollout::Judges;
use tch::Kind;

use super::{Around, Plan, in_run_folder, num_values, rm, rows, tokenizer, trainable};
use crate::command::tell;
use crate::config::section::Dtype;
use crate::config::{ConfigError, RunConfig, Stage};
use crate::session;

/// The four models, as models of their own.
struct Models {
    policy: CausalLm,
    reference: CausalLm,
    critic: ScalarModel,
    reward: ScalarModel,
}

/// The same thing of each of the four models.
pub(super) struct Roles<T> {
    pub(super) policy: T,
    pub(super) reference: T,
    pub(super) critic: T,
    pub(super) reward: T,
}

/// The rows of the stage, which fit its models.
pub(super) struct Inputs {
    pub(super) prompts: rows::Encoded<PromptRow>,
    pub(super) ptx: rows::Encoded<SftRow>,
}

impl<T: Clone> Roles<T> {
    /// Finds something of each model by the setting that names it and the name there. Unless the
    /// configuration names them, the reference is the policy and the critic starts as the reward model.
    pub(super) fn find(
        config: &RunConfig,
        mut find: impl FnMut(&'static str, &str) -> anyhow::Result<T>,
    ) -> anyhow::Result<Self> {
        let policy = find("model.path", &config.model.path)?;
        let reward = find("ppo.reward_model", &config.ppo.reward_model)?;
        let mut named = |key, name: Option<&str>, otherwise: &T| match name {
            Some(name) => find(key, name),
            None => Ok(otherwise.clone()),
        };
        let reference = named("ppo.reference_model", config.ppo.reference_model.as_deref(), &policy)?;
        let critic = named("ppo.critic_model", config.ppo.critic_model.as_deref(), &reward)?;
        Ok(Self { policy, reference, critic, reward })
    }
}

impl<T> Roles<T> {
    /// The same thing of each model, made from another.
    pub(super) fn map<U>(&self, mut to: impl FnMut(&T) -> anyhow::Result<U>) -> anyhow::Result<Roles<U>> {
        Ok(Roles {
            policy: to(&self.policy)?,
            reference: to(&self.reference)?,
            critic: to(&self.critic)?,
            reward: to(&self.reward)?,
        })
    }

    /// The models beside the policy, by name.
    pub(super) fn others(&self) -> [(&'static str, &T); 3] {
        [("reference", &self.reference), ("reward", &self.reward), ("critic", &self.critic)]
    }

    /// Policy, reference, critic and reward model.
    pub(super) fn all(&self) -> [&T; 4] {
        [&self.policy, &self.reference, &self.critic, &self.reward]
    }
}

pub(super) fn run(config: &RunConfig, around: &mut Around<'_>) -> anyhow::Result<()> {
    let folders = Roles::find(config, |_, name| session::folder(name))?;
    let configs = folders.map(|folder| Ok(Config::from_folder(folder)?))?;
    let tokenizer = tokenizer(config, &folders.policy)?;
    folders.check_tokenizers(&tokenizer, around.groups)?;
    let Inputs { prompts, ptx } = inputs(config, &configs, &tokenizer)?;
    let models = Models::load(config, &folders.resumed_from(around.folder.checkpoint()), around.groups)?;
    super::tell_dropout(
        around.groups,
        &[("policy", models.policy.config()), ("critic", models.critic.config())],
    );
    super::check_split(config, &models.configs(), around)?;
    let plan = models.plan(config, around, &prompts)?;
    let stop_ids = session::stop_ids(&tokenizer, models.policy.config());
    // Only for people to read: an id that cannot be decoded is shown as such and stops nothing.
    let decode = |ids: &[i64]| tokenizer.decode(ids, true).unwrap_or_else(|error| format!("<{error}>"));
    let judges = Judges {
        policy: &models.policy,
        reference: &models.reference,
        critic: &models.critic,
        reward: &models.reward,
    };
    let data = Data {
        prompts: &prompts.rows,
        shuffle: config.data.shuffle,
        ptx: &ptx.rows,
        stop_ids: &stop_ids,
        decode: &decode,
    };
    let mut stage = Ppo::new(judges, data, &config.ppo, &config.train, config.seed, around.groups)?;
    let companions = |folder: &Path| session::save_companions(folder, &tokenizer, models.policy.config());
    in_run_folder(Stage::Ppo, config, plan, &companions, around, |run| stage.train(run))
}

/// Reads the rows and checks them against the configurations of the models. Reads no weights.
pub(super) fn inputs(
    config: &RunConfig,
    models: &Roles<Config>,
    tokenizer: &Tokenizer,
) -> anyhow::Result<Inputs> {
    session::check_vocabulary(tokenizer, &models.policy)?;
    let prompts = rows::prompts(&config.data.train, tokenizer, &config.data)?;
    rows::refuse_none(&prompts, Stage::Ppo)?;
    let ptx = rows::demonstrations(&config.data.ptx, tokenizer, &config.data)?;
    check_lengths(models, prompts.longest, config.ppo.max_new_tokens)?;
    models.policy.check_length("the longest ptx row", ptx.longest)?;
    Ok(Inputs { prompts, ptx })
}

/// Refuses prompts that leave no room for a reply, and replies that a model has no positions for.
fn check_lengths(models: &Roles<Config>, longest: usize, max_new_tokens: usize) -> anyhow::Result<()> {
    let room = models.policy.max_positions() as usize;
    if longest >= room {
        return Err(ConfigError::NoRoom { longest, room }.into());
    }
    let whole = longest.saturating_add(max_new_tokens).min(room);
    for config in [&models.reference, &models.critic, &models.reward] {
        config.check_reply("the longest prompt with its reply", whole)?;
    }
    Ok(())
}

impl Roles<PathBuf> {
    /// The folders to load from: those of the models that are trained lie in the checkpoint of a resumed run.
    fn resumed_from(self, checkpoint: Option<&Path>) -> Self {
        match checkpoint {
            Some(path) => Self { policy: path.to_owned(), critic: path.join(CRITIC_FOLDER), ..self },
            None => self,
        }
    }

    /// Refuses models of another tokenizer than `own`, the policy's: all four are given the ids that it
    /// makes.
    fn check_tokenizers(&self, own: &Tokenizer, groups: &Groups) -> anyhow::Result<()> {
        let mut seen = vec![&self.policy];
        for (role, folder) in self.others() {
            if seen.contains(&folder) {
                continue;
            }
            seen.push(folder);
            match Tokenizer::from_folder(folder) {
                Ok(other) => check_tokenizer(own, role, folder, &other)?,
                Err(datasets::Error::TokenizerMissing { .. }) if groups.is_first() => {
                    let folder = folder.display();
                    tell(&format!(
                        "warning: {folder} has no tokenizer.json: whether the {role} model reads the same tokens as the \
                         policy cannot be checked"
                    ));
                }
                Err(datasets::Error::TokenizerMissing { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Refuses a model whose tokenizer is not the policy's.
pub(super) fn check_tokenizer(
    own: &Tokenizer,
    role: &'static str,
    folder: &Path,
    other: &Tokenizer,
) -> Result<(), ConfigError> {
    let different = |difference| ConfigError::Tokenizers { role, folder: folder.to_owned(), difference };
    own.difference(other).map_or(Ok(()), |difference| Err(different(difference)))
}

impl Models {
    fn load(config: &RunConfig, folders: &Roles<PathBuf>, groups: &Groups) -> anyhow::Result<Self> {
        let options = trainable(config, groups);
        let frozen = |kind| LoadOptions { split: options.split.clone(), ..session::frozen(kind) };
        Ok(Self {
            policy: CausalLm::load(&folders.policy, &options)?,
            reference: CausalLm::load(&folders.reference, &frozen(options.kind))?,
            critic: rm::load(&folders.critic, config.seed, &options)?,
            reward: ScalarModel::load(&folders.reward, &frozen(Kind::Float))?,
        })
    }

    /// Of policy, reference, critic and reward model.
    fn configs(&self) -> [&Config; 4] {
        [self.policy.config(), self.reference.config(), self.critic.config(), self.reward.config()]
    }

    fn plan(
        &self,
        config: &RunConfig,
        around: &Around<'_>,
        prompts: &rows::Encoded<PromptRow>,
    ) -> anyhow::Result<Plan> {
        let groups = around.groups;
        let parameters = vec![
            ("policy", num_values(&self.policy, groups)?),
            ("critic", num_values(&self.critic, groups)?),
            ("reference", num_values(&self.reference, groups)?),
            ("reward", num_values(&self.reward, groups)?),
        ];

        // Policy and critic are trained.
        let trained = parameters[0].1 + parameters[1].1;
        let dtype = config.model.dtype;
        Ok(Plan {
            stage: Stage::Ppo.name(),
            rows: prompts.rows.len(),
            dropped: prompts.dropped,
            tokens: prompts.tokens,
            steps: config.ppo.iterations,
            rows_per_step: config.ppo.replies()?,
            mesh: around.mesh.clone(),
            loaded_bytes: Vec::new(),
            model_bytes: trained * dtype.trained_bytes()
                + parameters[2].1 * dtype.bytes()
                + parameters[3].1 * Dtype::Float32.bytes(),
            parameters,
        })
    }
}
