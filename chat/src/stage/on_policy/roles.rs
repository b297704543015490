//! The models of a stage that learns from rollouts: the settings that name them, what is planned for each of
//! them, and the weights. Models that are adapters of the policy's trunk share its memory.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use datasets::Tokenizer;
use inference::model_folder::{ModelFolder, Trunk};
use models::causal_lm::{CausalLm, LoadOptions};
use models::config::Config;
use models::decoder::HeadKind;
use models::lora::LoraPlan;
use models::scalar_model::ScalarModel;
use parallel::ProcessGroups;
use rlhf::ppo::CRITIC_FOLDER;
use tch::Kind;

use super::super::context::{self, StageContext, trainable_options};
use super::super::model_memory::PlannedModel;
use super::super::{distill, rm};
use super::algorithm::Algorithm;
use crate::config::{ConfigError, RunConfig, StageSchema};
use crate::reward_list;

/// The loaded models. Those that are adapters of the same model share its weights.
pub(super) struct ModelSet {
    pub(super) policy: CausalLm,
    pub(super) reference: Option<CausalLm>,
    pub(super) critic: Option<ScalarModel>,
    pub(super) teacher: Option<CausalLm>,
    pub(super) rewards: Vec<ScalarModel>,
}

/// One value for each model.
pub(super) struct PerRole<T> {
    pub(super) policy: T,
    /// `None` without a KL penalty, and if the loss of pairs has none.
    pub(super) reference: Option<T>,
    /// `None` if there are no advantages, or if they come from the other replies to the same prompt.
    pub(super) critic: Option<T>,
    /// The teacher of a distillation.
    pub(super) teacher: Option<T>,
    pub(super) rewards: Vec<T>,
}

impl<T: Clone> PerRole<T> {
    /// Calls `find` for each model with the setting that names it and the name that the setting gives. By
    /// default the reference is the policy, and the critic starts as the first reward model.
    pub(super) fn find(
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
    pub(super) fn map<U>(&self, mut to: impl FnMut(&T) -> anyhow::Result<U>) -> anyhow::Result<PerRole<U>> {
        Ok(PerRole {
            policy: to(&self.policy)?,
            reference: self.reference.as_ref().map(&mut to).transpose()?,
            critic: self.critic.as_ref().map(&mut to).transpose()?,
            teacher: self.teacher.as_ref().map(&mut to).transpose()?,
            rewards: self.rewards.iter().map(&mut to).collect::<Result<_, _>>()?,
        })
    }

    /// The models besides the policy, with their roles.
    pub(super) fn others(&self) -> Vec<(&'static str, &T)> {
        let rewards = self.rewards.iter().map(|reward| ("reward", reward));
        let critic = self.critic.iter().map(|critic| ("critic", critic));
        let teacher = self.teacher.iter().map(|teacher| ("teacher", teacher));
        let reference = self.reference.iter().map(|reference| ("reference", reference));
        reference.chain(rewards).chain(critic).chain(teacher).collect()
    }

    /// All models, the policy first.
    pub(super) fn all(&self) -> Vec<&T> {
        std::iter::once(&self.policy).chain(self.others().into_iter().map(|(_, model)| model)).collect()
    }
}

/// What is planned for a model: its configuration, and what of it the trunk of the policy holds.
pub(super) struct PlannedRole {
    pub(super) config: Config,
    lora: Option<Arc<LoraPlan>>,
    shares_trunk: bool,
}

impl PerRole<PlannedRole> {
    /// What is planned for the models of `folders`.
    pub(super) fn find_planned(
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
    pub(super) fn planned(&self, config: &RunConfig) -> Vec<PlannedModel<'_>> {
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
}

impl PerRole<ModelFolder> {
    /// Returns the folders to load from. In a resumed run, the policy and the critic are in the checkpoint.
    pub(super) fn resumed_from(self, checkpoint: Option<&Path>) -> anyhow::Result<Self> {
        let Some(path) = checkpoint else { return Ok(self) };
        let critic = self.critic.map(|_| ModelFolder::open(path.join(CRITIC_FOLDER))).transpose()?;
        Ok(Self { policy: ModelFolder::open(path.to_owned())?, critic, ..self })
    }

    /// Refuses models whose tokenizer differs from `own`, the tokenizer of the policy: all models receive
    /// the ids that it produces.
    pub(super) fn check_tokenizers(&self, own: &Tokenizer, groups: &ProcessGroups) -> anyhow::Result<()> {
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
    pub(super) fn load(
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
