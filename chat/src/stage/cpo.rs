//! The stage `cpo`: contrastive preference optimization.

use rlhf::config::CpoConfig;

use super::definition::{CommandHelp, InitKey, InitSizes, InitSpec, RowKind, Stage};
use super::offline::{self, PairAlgorithm};
use crate::config::{RunConfig, StageSchema, Units};

/// The stage `cpo`.
pub(super) static STAGE: Stage = Stage {
    schema: StageSchema {
        name: "cpo",
        units: Units::PAIRS,
        has_rollouts: false,
        sections: &["cpo"],
        ignored_keys: offline::IGNORED_KEYS,
        defaults: None,
    },
    command: Some(CommandHelp {
        about: "Learn from pairs and imitate the better answer, without a reference (CPO)",
        title: "Contrastive preference optimization",
        examples: "\
Examples:
  colossal-chat cpo --config run.toml --set cpo.nll_coef=0.5",
    }),
    init: Some(InitSpec {
        rows: RowKind::Pairs,
        after: Some("sft"),
        is_in_all: false,
        other_model: None,
        lr: ["1e-6", "1e-4"],
        keys: init_keys,
    }),
    curves: &["loss", "rewards/accuracies", "rewards/margins"],
    charts: offline::PAIR_CHARTS,
    set_pipeline_paths: offline::set_pipeline_paths,
    preflight: offline::preflight::<Cpo>,
    run: offline::run::<Cpo>,
};

fn init_keys(_: &InitSizes) -> Vec<InitKey> {
    vec![
        InitKey::new("The factor of the log-probabilities.", "beta", "0.1"),
        InitKey::new("The weight of imitating the better answer.", "nll_coef", "1.0"),
    ]
}

/// The algorithm.
struct Cpo;

impl PairAlgorithm for Cpo {
    type Settings = CpoConfig;

    fn schema() -> &'static StageSchema {
        &STAGE.schema
    }

    fn settings(config: &RunConfig) -> &CpoConfig {
        &config.cpo
    }
}
