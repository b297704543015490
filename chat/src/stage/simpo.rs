//! The stage `simpo`: simple preference optimization.

use rlhf::config::SimpoConfig;

use super::definition::{CommandHelp, InitKey, InitSizes, InitSpec, RowKind, Stage};
use super::offline::{self, PairAlgorithm};
use crate::config::{RunConfig, StageSchema, Units};

/// The stage `simpo`.
pub(super) static STAGE: Stage = Stage {
    schema: StageSchema {
        name: "simpo",
        units: Units::PAIRS,
        has_rollouts: false,
        sections: &["simpo"],
        ignored_keys: offline::IGNORED_KEYS,
        defaults: None,
    },
    command: Some(CommandHelp {
        about: "Learn from pairs by the mean log-probability of a token, without a reference (SimPO)",
        title: "Simple preference optimization",
        examples: "\
Examples:
  colossal-chat simpo --config run.toml --set simpo.beta=2.5 --set simpo.gamma=1.25",
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
    preflight: offline::preflight::<Simpo>,
    run: offline::run::<Simpo>,
};

fn init_keys(_: &InitSizes) -> Vec<InitKey> {
    vec![
        InitKey::new("The factor of the mean log-probability of a token.", "beta", "2.0"),
        InitKey::new("The margin by which the better answer has to win.", "gamma", "1.0"),
    ]
}

/// The algorithm.
struct Simpo;

impl PairAlgorithm for Simpo {
    type Settings = SimpoConfig;

    fn schema() -> &'static StageSchema {
        &STAGE.schema
    }

    fn settings(config: &RunConfig) -> &SimpoConfig {
        &config.simpo
    }
}
