//! The stage `orpo`: odds ratio preference optimization, which needs neither a reference nor a stage `sft`
//! before it.

use rlhf::config::OrpoConfig;

use super::definition::{CommandHelp, InitKey, InitSpec, RowKind, Stage};
use super::offline::{self, PairAlgorithm};
use crate::config::{RunConfig, StageSchema, Units};

/// The stage `orpo`.
pub(super) static STAGE: Stage = Stage {
    schema: StageSchema {
        name: "orpo",
        units: Units::PAIRS,
        has_rollouts: false,
        sections: &["orpo"],
        ignored_keys: offline::IGNORED_KEYS,
        defaults: None,
    },
    command: Some(CommandHelp {
        about: "Learn to answer and to prefer at the same time, without a reference (ORPO)",
        title: "Odds ratio preference optimization",
        examples: "\
Examples:
  colossal-chat orpo --config run.toml --set model.path=base/final",
    }),
    init: Some(InitSpec {
        rows: RowKind::Pairs,
        after: None,
        is_in_all: false,
        other_model: None,
        lr: ["8e-6", "1e-3"],
        keys: |_| vec![InitKey::new("The weight of the preference beside the imitation.", "beta", "0.1")],
    }),
    curves: &["loss", "rewards/accuracies", "rewards/margins"],
    charts: offline::PAIR_CHARTS,
    set_pipeline_paths: offline::set_pipeline_paths,
    preflight: offline::preflight::<Orpo>,
    run: offline::run::<Orpo>,
};

/// The algorithm.
struct Orpo;

impl PairAlgorithm for Orpo {
    type Settings = OrpoConfig;

    fn schema() -> &'static StageSchema {
        &STAGE.schema
    }

    fn settings(config: &RunConfig) -> &OrpoConfig {
        &config.orpo
    }
}
