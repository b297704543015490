//! The stage `dpo`: direct preference optimization and its family ([`rlhf::loss::preference`]).

use rlhf::config::DpoConfig;

use super::definition::{CommandHelp, InitKey, InitSizes, InitSpec, RowKind, Stage};
use super::offline::{self, PairAlgorithm};
use crate::config::{RunConfig, StageSchema, Units};

/// The stage `dpo`.
pub(super) static STAGE: Stage = Stage {
    schema: StageSchema {
        name: "dpo",
        units: Units::PAIRS,
        has_rollouts: false,
        sections: &["dpo", "reference"],
        ignored_keys: offline::IGNORED_KEYS,
        defaults: None,
    },
    command: Some(CommandHelp {
        about: "Learn from pairs of a better and a worse answer, without a reward model (DPO)",
        title: "Direct preference optimization",
        examples: "\
Examples:
  colossal-chat dpo --config run.toml
  colossal-chat dpo --config run.toml --set dpo.loss=ipo --set dpo.beta=0.2",
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
    preflight: offline::preflight::<Dpo>,
    run: offline::run::<Dpo>,
};

fn init_keys(_: &InitSizes) -> Vec<InitKey> {
    vec![
        InitKey::new("How strongly the model is tied to the reference.", "beta", "0.1"),
        InitKey::new(
            "The loss, or a list of losses: docs/preference.md has them all.",
            "loss",
            "\"sigmoid\"",
        ),
    ]
}

/// The algorithm.
struct Dpo;

impl PairAlgorithm for Dpo {
    type Settings = DpoConfig;

    fn schema() -> &'static StageSchema {
        &STAGE.schema
    }

    fn settings(config: &RunConfig) -> &DpoConfig {
        &config.dpo
    }
}
