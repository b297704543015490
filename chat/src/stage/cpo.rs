//! The stage `cpo`: contrastive preference optimization.

use datasets::PreferenceRow;
use rlhf::config::CpoConfig;
use rlhf::offline::pairs::Pairwise;

use super::definition::{CommandHelp, Stage};
use super::offline::{self, Algorithm};
use crate::config::{RunConfig, StageSchema, Units};

/// The stage `cpo`.
pub(super) static STAGE: Stage = Stage {
    schema: StageSchema {
        name: "cpo",
        units: Units::PAIRS,
        has_rollouts: false,
        sections: &["cpo"],
        ignored_keys: offline::IGNORED_KEYS,
    },
    command: Some(CommandHelp {
        about: "Learn from pairs and imitate the better answer, without a reference (CPO)",
        title: "Contrastive preference optimization",
        examples: "\
Examples:
  colossal-chat cpo --config run.toml --set cpo.nll_coef=0.5",
    }),
    curves: &["loss", "rewards/accuracies", "rewards/margins"],
    set_pipeline_paths: offline::set_pipeline_paths,
    preflight: offline::preflight::<Cpo>,
    run: offline::run::<Cpo>,
};

/// The algorithm.
struct Cpo;

impl Algorithm for Cpo {
    type Row = PreferenceRow;
    type Loss = Pairwise<CpoConfig>;

    fn schema() -> &'static StageSchema {
        &STAGE.schema
    }

    fn loss(config: &RunConfig) -> Self::Loss {
        Pairwise(config.cpo.clone())
    }

    fn rows(rows: Vec<PreferenceRow>, _: &RunConfig) -> Vec<PreferenceRow> {
        rows
    }

    fn lengths(row: &PreferenceRow) -> (Vec<usize>, usize) {
        offline::pair_lengths(row)
    }
}
