//! The algorithm of a stage: what it learns of its rollouts, and the learner that does so.

use std::sync::Arc;

use models::causal_lm::CausalLm;
use parallel::ProcessGroups;
use rlhf::loss::preference::PreferenceLoss;
use rlhf::on_policy::Data;
use rlhf::online::Settings;
use rlhf::online::distill::Gkd;
use rlhf::online::dpo::OnlineDpo;
use rlhf::ppo::Ppo;
use rlhf::rollout::RolloutModels;
use rlhf::run::StageRun;

use crate::config::{RunConfig, StageSchema};

/// Trains the models of a stage.
pub(super) type Training<'a> = Box<dyn FnMut(&mut StageRun<'_>) -> Result<(), rlhf::Error> + 'a>;

/// What a stage learns of its rollouts. The keys that the stage reads tell which it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Algorithm {
    /// Tokens with advantages: PPO, GRPO, RLOO, REINFORCE++ and kin.
    PolicyGradient,
    /// Pairs of replies.
    OnlineDpo,
    /// What a teacher says of the replies.
    Distillation,
}

impl Algorithm {
    pub(super) fn of(stage: &StageSchema) -> Self {
        if stage.reads("distill.teacher") {
            Self::Distillation
        } else if stage.reads("dpo.beta") {
            Self::OnlineDpo
        } else {
            Self::PolicyGradient
        }
    }

    /// Whether it compares the policy with a reference.
    pub(super) fn has_reference(self, config: &RunConfig) -> bool {
        match self {
            Self::PolicyGradient => config.ppo.has_reference(),
            Self::OnlineDpo => config.dpo.has_reference(),
            Self::Distillation => false,
        }
    }

    /// The sequences of a row of an optimizer step.
    pub(super) fn sequences_per_row(self) -> usize {
        if self == Self::OnlineDpo { 2 } else { 1 }
    }

    /// The replies to a prompt that become rows of the optimizer steps; `None` if the steps read replies.
    pub(super) fn learned_per_prompt(self, config: &RunConfig) -> Option<usize> {
        match self {
            Self::PolicyGradient => None,
            Self::OnlineDpo => Some(2),
            Self::Distillation => Some(config.ppo.samples_per_prompt),
        }
    }

    /// Begins what trains the models: this algorithm in the loop of all of them.
    pub(super) fn training<'a>(
        self,
        config: &'a RunConfig,
        (roles, teacher): (RolloutModels<'a>, Option<&'a CausalLm>),
        data: Data<'a>,
        groups: &'a Arc<ProcessGroups>,
    ) -> Result<Training<'a>, rlhf::Error> {
        let RunConfig { ppo, train, seed, .. } = config;
        let seed = *seed;

        let training: Training<'a> = match self {
            Self::PolicyGradient => {
                let mut stage = Ppo::new(roles, data, ppo, train, seed, groups)?;
                Box::new(move |run: &mut StageRun<'_>| stage.train(run))
            }
            Self::OnlineDpo => {
                let settings = Settings { rollouts: ppo, algorithm: &config.dpo, train, seed };
                let mut stage = OnlineDpo::new(roles, data, &settings, groups)?;
                Box::new(move |run: &mut StageRun<'_>| stage.train(run))
            }
            Self::Distillation => {
                let teacher = teacher.expect("a distillation has a teacher");
                let settings = Settings { rollouts: ppo, algorithm: &config.distill, train, seed };
                let mut stage = Gkd::new(roles, teacher, data, &settings, groups)?;
                Box::new(move |run: &mut StageRun<'_>| stage.train(run))
            }
        };

        Ok(training)
    }
}
