//! The names of the advantage estimators, and what each of them needs. Their formulas are in the parent
//! module.

use serde::{Deserialize, Serialize};

/// How advantages are computed from rewards.
/// verl: `algorithm.adv_estimator`; OpenRLHF: `algo.advantage.estimator`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdvantageEstimator {
    /// From the values of a critic.
    #[default]
    Gae,
    /// From the other replies to the same prompt: the distance from their mean, divided by their standard
    /// deviation, or by what [`AdvantageScale`] says.
    /// OpenRLHF: `group_norm`, and `dr_grpo` without a scale.
    Grpo,
    /// From the other replies to the same prompt: the distance from the mean of the others (leave-one-out).
    Rloo,
    /// From the rewards alone: the discounted sum of the rewards of a token and of those after it. The caller
    /// whitens the sums over the rollout.
    /// OpenRLHF: `reinforce`.
    ReinforcePlusPlus,
    /// From the other replies to the same prompt: the distance from their mean. The caller whitens the
    /// distances over the rollout.
    /// OpenRLHF: `reinforce_baseline`.
    ReinforcePlusPlusBaseline,
    /// From a greedy reply to the same prompt: the distance from its reward.
    Remax,
    /// From the other replies to the same prompt: the distance from their mean, in which each reply has its
    /// number of tokens as weight.
    Opo,
    /// From the other replies to the same prompt: the distance from their mean, divided by the mean. Meant
    /// for rewards of 0 and 1, whose mean is the rate of success. A mean of 0 or less has no such meaning,
    /// and the replies to that prompt have the advantage 0.
    Maxrl,
    /// From the other replies to the same prompt: by how much a reply raises the best reward of k replies. If
    /// k is the number of replies, the best reply alone has an advantage: its distance from the second best.
    /// verl: `grpo_passk`.
    PassAtK,
}

impl AdvantageEstimator {
    /// Whether the estimator needs a critic.
    pub fn has_critic(self) -> bool {
        self == Self::Gae
    }

    /// Whether the estimator compares the replies to a prompt, of which there must then be at least two.
    pub fn compares_replies(self) -> bool {
        match self {
            Self::Gae | Self::ReinforcePlusPlus | Self::Remax => false,
            Self::Grpo
            | Self::Rloo
            | Self::ReinforcePlusPlusBaseline
            | Self::Opo
            | Self::Maxrl
            | Self::PassAtK => true,
        }
    }

    /// Whether the estimator compares each reply with a greedy reply to the same prompt.
    pub fn has_greedy_baseline(self) -> bool {
        self == Self::Remax
    }

    /// Whether each token has an advantage of its own, and not each reply.
    pub fn has_token_rewards(self) -> bool {
        matches!(self, Self::Gae | Self::ReinforcePlusPlus)
    }
}

/// What the distance of a reward from its baseline is divided by, in GRPO and in pass@k.
/// TRL: `scale_rewards`; verl: `norm_adv_by_std_in_grpo`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdvantageScale {
    /// The standard deviation of the replies to the prompt.
    #[default]
    Group,
    /// The standard deviation of all replies of the rollout.
    Batch,
    /// Nothing, as in Dr.GRPO.
    None,
}
