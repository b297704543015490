//! The stage `rloo`: REINFORCE with the other replies to a prompt as baseline.

use super::definition::{CommandHelp, InitSpec, RowKind, Stage};
use super::on_policy;
use crate::config::StageSchema;

/// The stage `rloo`.
pub(crate) static STAGE: Stage = Stage {
    schema: StageSchema {
        name: "rloo",
        units: on_policy::UNITS,
        has_rollouts: true,
        sections: on_policy::SECTIONS,
        ignored_keys: on_policy::IGNORED_KEYS,
        defaults: Some(include_str!("defaults/rloo.toml")),
    },
    command: Some(CommandHelp {
        about: "Improve a model by its rewards, with the other replies to a prompt as baseline (RLOO)",
        title: "REINFORCE leave-one-out",
        examples: "\
Examples:
  colossal-chat rloo --config run.toml
  colossal-chat rloo --config run.toml --set ppo.samples_per_prompt=4",
    }),
    init: Some(InitSpec {
        rows: RowKind::Prompts,
        after: Some("sft"),
        is_in_all: false,
        other_model: Some(on_policy::REWARD_MODEL),
        lr: ["1e-6", "5e-5"],
        keys: |sizes| on_policy::group_init_keys(sizes, "0.05"),
    }),
    curves: on_policy::CURVES,
    charts: on_policy::CHARTS,
    set_pipeline_paths: on_policy::set_pipeline_paths,
    preflight: |preflight, config| on_policy::preflight(&STAGE.schema, preflight, config),
    run: on_policy::run,
};
