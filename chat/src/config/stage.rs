//! The training stages and the configuration keys that each of them ignores.

use serde::{Deserialize, Serialize};

/// A key or section without effect, and the reason.
pub(super) type IgnoredKey = (&'static str, &'static str);

/// Keys of `[ppo]` without effect if advantages come from the other replies to the same prompt.
pub(super) const CRITIC_KEYS: [IgnoredKey; 10] = {
    const NO_CRITIC: &str = "only [ppo] advantage_estimator = \"gae\" has a critic";
    const ONE_ADVANTAGE: &str = "only [ppo] advantage_estimator = \"gae\" has an advantage for each token";
    [
        ("ppo.critic_model", NO_CRITIC),
        ("ppo.critic_lr", NO_CRITIC),
        ("ppo.critic_warmup", NO_CRITIC),
        ("ppo.vf_coef", NO_CRITIC),
        ("ppo.clip_range_value", NO_CRITIC),
        ("ppo.gamma", ONE_ADVANTAGE),
        ("ppo.gae_lambda", ONE_ADVANTAGE),
        ("ppo.whiten_advantages", ONE_ADVANTAGE),
        ("ppo.whiten_rewards", ONE_ADVANTAGE),
        ("ppo.score_slot", ONE_ADVANTAGE),
    ]
};

/// A stage that trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Stage {
    /// The base model, from nothing; a part of `pipeline` alone.
    #[value(skip)]
    Base,
    /// Supervised fine-tuning.
    Sft,
    /// The reward model.
    Rm,
    /// Proximal policy optimisation.
    Ppo,
}

impl Stage {
    /// Every stage, in the order of a pipeline.
    pub(crate) const ALL: [Self; 4] = [Self::Base, Self::Sft, Self::Rm, Self::Ppo];

    /// Returns the name in the configuration and on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Sft => "sft",
            Self::Rm => "rm",
            Self::Ppo => "ppo",
        }
    }

    /// Returns the keys and sections that have no effect on this stage, each with the reason.
    pub(super) fn ignored_keys(self) -> &'static [IgnoredKey] {
        const REWARD: IgnoredKey = ("reward", "[reward] is read by rm");
        const PPO: IgnoredKey = ("ppo", "[ppo] is read by ppo");
        const PTX: IgnoredKey = ("data.ptx", "ptx rows are read by ppo");

        match self {
            Self::Base => &[("model", "the base model starts from [base]"), REWARD, PPO, PTX],
            Self::Sft => &[REWARD, PPO, PTX],
            Self::Rm => &[PPO, PTX, ("data.packing", "pairs are not packed")],
            Self::Ppo => &[
                REWARD,
                ("train.steps", "the length of a PPO run is [ppo] iterations"),
                ("train.epochs", "the length of a PPO run is [ppo] iterations"),
                (
                    "train.gradient_accumulation_steps",
                    "the number of replies per step is [ppo] mini_batch_size",
                ),
                ("data.packing", "prompts are not packed"),
                ("data.eval", "ppo reports the metrics of its rollouts and evaluates no rows"),
                ("data.eval_fraction", "ppo reports the metrics of its rollouts and evaluates no rows"),
                ("eval", "ppo reports the metrics of its rollouts and evaluates no rows"),
            ],
        }
    }
}
