//! The stage `dpo`: direct preference optimization and its family ([`rlhf::loss::preference`]).

use datasets::PreferenceRow;
use rlhf::config::DpoConfig;
use rlhf::loss::preference::PreferenceLoss;
use rlhf::offline::pairs::Pairwise;

use super::definition::{CommandHelp, Stage};
use super::offline::{self, Algorithm};
use crate::config::{RunConfig, StageSchema, Units};

/// The stage `dpo`.
pub(super) static STAGE: Stage = Stage {
    schema: StageSchema {
        name: "dpo",
        units: Units::PAIRS,
        has_rollouts: false,
        sections: &["dpo", "reference"],
        ignored_keys: offline::IGNORED_KEYS,
    },
    command: Some(CommandHelp {
        about: "Learn from pairs of a better and a worse answer, without a reward model (DPO)",
        title: "Direct preference optimization",
        examples: "\
Examples:
  colossal-chat dpo --config run.toml
  colossal-chat dpo --config run.toml --set dpo.loss=ipo --set dpo.beta=0.2",
    }),
    curves: &["loss", "rewards/accuracies", "rewards/margins"],
    set_pipeline_paths: offline::set_pipeline_paths,
    preflight: offline::preflight::<Dpo>,
    run: offline::run::<Dpo>,
};

/// The algorithm.
struct Dpo;

impl Algorithm for Dpo {
    type Row = PreferenceRow;
    type Loss = Pairwise<DpoConfig>;

    fn schema() -> &'static StageSchema {
        &STAGE.schema
    }

    fn loss(config: &RunConfig) -> Self::Loss {
        Pairwise(config.dpo.clone())
    }

    fn rows(rows: Vec<PreferenceRow>, _: &RunConfig) -> Vec<PreferenceRow> {
        rows
    }

    fn runs_before_step(config: &RunConfig) -> bool {
        config.dpo.compares_pairs()
    }

    fn lengths(row: &PreferenceRow) -> (Vec<usize>, usize) {
        offline::pair_lengths(row)
    }
}
