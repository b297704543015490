//! The stage `ppo`: four models in one process.

use std::path::Path;

use models::causal_lm::{CausalLm, LoadOptions};
use models::config::Config;
use models::scalar_model::ScalarModel;
use parallel::Groups;
use rlhf::ppo::{Data, Ppo};
use rlhf::rollout::Judges;
use tch::Kind;

use super::{Around, Plan, in_run_folder, num_values, rm, rows, tokenizer, trainable};
use crate::config::section::Dtype;
use crate::config::{ConfigError, RunConfig, Stage};
use crate::session;

/// The roles, as models of their own.
struct Models {
    policy: CausalLm,
    reference: CausalLm,
    critic: ScalarModel,
    reward: ScalarModel,
}

pub(super) fn run(config: &RunConfig, around: &mut Around<'_>) -> anyhow::Result<()> {
    if around.resume {
        return Err(ConfigError::PpoResume(config.out.clone()).into());
    }
    let folder = session::folder(&config.model.path)?;
    let tokenizer = tokenizer(config, &folder)?;
    let models = Models::load(config, &folder, around.groups)?;
    session::check_vocabulary(&tokenizer, models.policy.config())?;
    let prompts = rows::prompts(&config.data.train, &tokenizer, &config.data)?;
    let ptx = rows::demonstrations(&config.data.ptx, &tokenizer, &config.data)?;
    super::check_split(config, &models.configs(), around)?;
    models.check_lengths(prompts.longest, config.ppo.max_new_tokens)?;
    models.policy.config().check_length("the longest ptx row", ptx.longest)?;
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

impl Models {
    fn load(config: &RunConfig, policy: &Path, groups: &Groups) -> anyhow::Result<Self> {
        let options = trainable(config, groups);
        let frozen = |kind| LoadOptions { split: options.split.clone(), ..session::frozen(kind) };
        let reward = session::folder(&config.ppo.reward_model)?;
        let critic =
            config.ppo.critic_model.as_deref().map_or_else(|| Ok(reward.clone()), session::folder)?;
        let reference =
            config.ppo.reference_model.as_deref().map_or_else(|| Ok(policy.to_owned()), session::folder)?;
        Ok(Self {
            policy: CausalLm::load(policy, &options)?,
            reference: CausalLm::load(&reference, &frozen(options.kind))?,
            critic: rm::load(&critic, config.seed, &options)?,
            reward: ScalarModel::load(&reward, &frozen(Kind::Float))?,
        })
    }

    /// Of policy, reference, critic and reward model.
    fn configs(&self) -> [&Config; 4] {
        [self.policy.config(), self.reference.config(), self.critic.config(), self.reward.config()]
    }

    /// Refuses prompts that leave no room for a reply, and replies that a model has no positions for.
    fn check_lengths(&self, longest: usize, max_new_tokens: usize) -> anyhow::Result<()> {
        let room = self.policy.config().max_positions() as usize;
        if longest >= room {
            return Err(ConfigError::NoRoom { longest, room }.into());
        }
        let whole = (longest + max_new_tokens).min(room);
        let [_, others @ ..] = self.configs();
        for config in others {
            config.check_length("the longest prompt with its reply", whole)?;
        }
        Ok(())
    }

    fn plan(
        &self,
        config: &RunConfig,
        around: &Around<'_>,
        prompts: &rows::Encoded<datasets::PromptRow>,
    ) -> anyhow::Result<Plan> {
        let groups = around.groups;
        let parameters = vec![
            ("policy", num_values(&self.policy, groups)?),
            ("critic", num_values(&self.critic, groups)?),
            ("reference", num_values(&self.reference, groups)?),
            ("reward", num_values(&self.reward, groups)?),
        ];
        let trained = parameters[0].1 + parameters[1].1;
        let dtype = config.model.dtype;
        Ok(Plan {
            stage: Stage::Ppo.name(),
            rows: prompts.rows.len(),
            dropped: prompts.dropped,
            tokens: prompts.tokens,
            steps: config.ppo.iterations,
            rows_per_step: config.ppo.rollout_batch_size * config.ppo.samples_per_prompt,
            mesh: around.mesh.clone(),
            loaded_bytes: Vec::new(),
            model_bytes: trained * dtype.trained_bytes()
                + parameters[2].1 * dtype.bytes()
                + parameters[3].1 * Dtype::Float32.bytes(),
            parameters,
        })
    }
}
