//! The stage `grpo`: group relative policy optimization, which compares the replies to a prompt.

use super::definition::{CommandHelp, InitSpec, RowKind, Stage};
use super::on_policy;
use crate::config::StageSchema;

/// The stage `grpo`.
pub(crate) static STAGE: Stage = Stage {
    schema: StageSchema {
        name: "grpo",
        units: on_policy::UNITS,
        has_rollouts: true,
        sections: on_policy::SECTIONS,
        ignored_keys: on_policy::IGNORED_KEYS,
        defaults: Some(include_str!("defaults/grpo.toml")),
    },
    command: Some(CommandHelp {
        about: "Improve a model by its rewards, comparing several replies to each prompt (GRPO and kin)",
        title: "Group relative policy optimization",
        examples: "\
Examples:
  colossal-chat grpo --config run.toml
  colossal-chat grpo --config run.toml --set preset=dapo --set ppo.samples_per_prompt=16",
    }),
    init: Some(InitSpec {
        rows: RowKind::Prompts,
        after: Some("sft"),
        is_in_all: false,
        other_model: Some(on_policy::REWARD_MODEL),
        lr: ["1e-6", "5e-5"],
        keys: |sizes| on_policy::group_init_keys(sizes, "0.04"),
    }),
    curves: on_policy::CURVES,
    charts: on_policy::CHARTS,
    set_pipeline_paths: on_policy::set_pipeline_paths,
    preflight: |preflight, config| on_policy::preflight(&STAGE.schema, preflight, config),
    run: on_policy::run,
};
