//! The stage `rloo`: REINFORCE with the other replies to a prompt as baseline.

use super::definition::{CommandHelp, InitKey, InitSizes, InitSpec, OtherModel, RowKind, Stage};
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
        other_model: Some(OtherModel {
            flag: "--reward-model",
            question: "The reward model: the folder that `rm` has written",
            key: "reward_model",
            comment: "The model that scores answers. Verifiers and programs are [[reward]] entries.",
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
    let (iterations, prompts, samples, replies) =
        if sizes.is_quick { ("3", "4", "2", "8") } else { ("100", "16", "8", "128") };
    let comment = "Iterations. In each the model answers prompts and learns from the rewards.";
    let tie = "What keeps the model near the one it started from. Raise it when the replies degenerate.";
    vec![
        InitKey::new(comment, "iterations", iterations),
        InitKey::new("Prompts of one iteration.", "rollout_batch_size", prompts),
        InitKey::new("Replies to each prompt, which are compared.", "samples_per_prompt", samples),
        InitKey::new("Replies of one optimizer step.", "mini_batch_size", replies),
        InitKey::new("The longest reply in tokens.", "max_new_tokens", &sizes.max_new_tokens.to_string()),
        InitKey::new(tie, "kl_coef", "0.05"),
    ]
}
