//! What the configuration knows of a training stage. The stages themselves are in [`crate::stage`]. Which keys
//! a stage reads follows from the sections that there are ([`super::run_config`], `StageSchema::reads`).

/// A key or section without effect, and the reason.
pub(crate) type IgnoredKey = (&'static str, &'static str);

/// Keys of `[ppo]` without effect if advantages come from the other replies to the same prompt.
pub(super) const CRITIC_KEYS: [IgnoredKey; 12] = {
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
        ("ppo.whiten_variance", ONE_ADVANTAGE),
        ("ppo.whiten_epsilon", ONE_ADVANTAGE),
        ("ppo.score_slot", ONE_ADVANTAGE),
    ]
};

/// `[data] ptx`, which few stages read.
pub(crate) const PTX: IgnoredKey = ("data.ptx", "ptx rows are read by ppo");

/// The name of a stage, and the sections and keys that it reads.
#[derive(Debug)]
pub(crate) struct StageSchema {
    /// The name in the configuration and on the command line.
    pub(crate) name: &'static str,
    /// What the stage counts.
    pub(crate) units: Units,
    /// Whether the stage generates what it learns from. Its length is then `[ppo] iterations`.
    pub(crate) has_rollouts: bool,
    /// The sections of algorithms that the stage reads. It reads every other section, as all stages do.
    pub(crate) sections: &'static [&'static str],
    /// The keys of other sections that have no effect on the stage, each with the reason.
    pub(crate) ignored_keys: &'static [IgnoredKey],
}

/// The words for what a stage counts, in the singular.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Units {
    /// A row of the training data.
    pub(crate) row: &'static str,
    /// A step of the training loop.
    pub(crate) step: &'static str,
    /// What a step trains on.
    pub(crate) sample: &'static str,
}

impl Units {
    /// The words of a stage that trains on the rows themselves.
    pub(crate) const ROWS: Self = Self { row: "row", step: "step", sample: "row" };
    /// The words of a stage that trains on pairs.
    pub(crate) const PAIRS: Self = Self { row: "pair", step: "step", sample: "pair" };
}
