//! What the configuration knows of a training stage. The stages themselves are in [`crate::stage`]. Which
//! keys a stage reads follows from the sections that there are ([`super::run_config`], `StageSchema::reads`).

use super::error::ConfigError;
use super::location::SourceLocation;
use super::tree::{self, Tree};

/// A key or section without effect, and the reason.
pub(crate) type IgnoredKey = (&'static str, &'static str);

/// `[data] ptx`, which few stages read.
pub(crate) const PTX: IgnoredKey = ("data.ptx", "ptx rows are read by ppo, grpo, rloo and reinforce");

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
    /// A run file with the defaults of the stage where they are not those of the sections.
    pub(crate) defaults: Option<&'static str>,
}

impl StageSchema {
    /// The defaults of the stage that are not those of the sections.
    pub(super) fn own_defaults(&self) -> Result<Tree, ConfigError> {
        let read = |text| tree::parse_included(text, &SourceLocation::Stage(self.name));
        self.defaults.map_or_else(|| Ok(Tree::new()), read)
    }
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
