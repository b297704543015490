//! The stage `reinforce`: REINFORCE++, without a critic and with one reply to a prompt.

use super::definition::{CommandHelp, InitKey, InitSizes, InitSpec, RowKind, Stage};
use super::on_policy;
use crate::config::StageSchema;

/// The stage `reinforce`.
pub(crate) static STAGE: Stage = Stage {
    schema: StageSchema {
        name: "reinforce",
        units: on_policy::UNITS,
        has_rollouts: true,
        sections: on_policy::SECTIONS,
        ignored_keys: on_policy::IGNORED_KEYS,
        defaults: Some(include_str!("defaults/reinforce.toml")),
    },
    command: Some(CommandHelp {
        about: "Improve a model by its rewards without a critic, with one reply to a prompt (REINFORCE++)",
        title: "REINFORCE++",
        examples: "\
Examples:
  colossal-chat reinforce --config run.toml
  colossal-chat reinforce --config run.toml --set ppo.advantage_estimator=remax",
    }),
    init: Some(InitSpec {
        rows: RowKind::Prompts,
        after: Some("sft"),
        is_in_all: false,
        other_model: Some(on_policy::REWARD_MODEL),
        lr: ["1e-6", "5e-5"],
        keys: init_keys,
    }),
    curves: on_policy::CURVES,
    charts: on_policy::CHARTS,
    set_pipeline_paths: on_policy::set_pipeline_paths,
    preflight: |preflight, config| on_policy::preflight(&STAGE.schema, preflight, config),
    run: on_policy::run,
};

fn init_keys(sizes: &InitSizes) -> Vec<InitKey> {
    let (iterations, batch) = if sizes.is_quick { ("3", "8") } else { ("100", "64") };
    let comment = "Iterations. In each the model answers prompts and learns from the scores.";
    let tie = "What keeps the model near the one it started from. Raise it when the replies degenerate.";
    vec![
        InitKey::new(comment, "iterations", iterations),
        InitKey::new("Prompts of one iteration.", "rollout_batch_size", batch),
        InitKey::new("Replies of one optimizer step.", "mini_batch_size", batch),
        InitKey::new("The longest reply in tokens.", "max_new_tokens", &sizes.max_new_tokens.to_string()),
        InitKey::new(tie, "kl_coef", "0.01"),
    ]
}
