//! The stage `ppo`: proximal policy optimization with a critic.

use super::definition::{CommandHelp, InitKey, InitSizes, InitSpec, OtherModel, RowKind, Stage};
use super::on_policy;
use crate::config::StageSchema;

/// The stage `ppo`.
pub(crate) static STAGE: Stage = Stage {
    schema: StageSchema {
        name: "ppo",
        units: on_policy::UNITS,
        has_rollouts: true,
        sections: on_policy::SECTIONS,
        ignored_keys: on_policy::IGNORED_KEYS,
        defaults: None,
    },
    command: Some(CommandHelp {
        about: "Improve a model by its rewards (proximal policy optimization)",
        title: "Proximal policy optimization",
        examples: "\
Examples:
  colossal-chat ppo --config run.toml
  colossal-chat ppo --config run.toml --set ppo.kl_coef=0.1 --set ppo.iterations=200",
    }),
    init: Some(InitSpec {
        rows: RowKind::Prompts,
        after: Some("sft"),
        is_in_all: true,
        other_model: Some(OtherModel {
            flag: "--reward-model",
            question: "The reward model: the folder that `rm` has written",
            key: "reward_model",
            comment: "The model that scores answers; the critic starts as a copy of it.",
            is_reward_model: true,
        }),
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
        InitKey::new(tie, "kl_coef", "0.05"),
        InitKey::new("The highest learning rate of the critic.", "critic_lr", &sizes.rate("1e-5")),
    ]
}
