//! The stage `gkd`: a model learns what a larger one says of its own replies ([`rlhf::online::distill`]).

use tui::dashboard::{Charts, THROUGHPUT};

use super::definition::{
    CommandHelp, InitKey, InitSizes, InitSpec, OtherModel, PipelineFolder, RowKind, Stage,
};
use super::on_policy;
use super::online::{WITHOUT_ADVANTAGES, joined};
use crate::config::stage::IgnoredKey;
use crate::config::{RunConfig, StageSchema};

/// The stage `gkd`.
pub(super) static STAGE: Stage = Stage {
    schema: StageSchema {
        name: "gkd",
        units: on_policy::UNITS,
        has_rollouts: true,
        sections: &["ppo", "environment", "distill"],
        ignored_keys: &IGNORED_KEYS,
        defaults: Some(include_str!("defaults/gkd.toml")),
    },
    command: Some(CommandHelp {
        about: "Teach a small model what a larger one says of its own replies (on-policy distillation)",
        title: "On-policy distillation",
        examples: "\
Examples:
  colossal-chat gkd --config run.toml --set distill.teacher=runs/large/final
  colossal-chat gkd --config run.toml --set distill.divergence=jsd --set distill.beta=0.1",
    }),
    init: Some(InitSpec {
        rows: RowKind::Prompts,
        after: None,
        is_in_all: false,
        other_model: Some(OtherModel {
            flag: "--teacher",
            question: "The teacher: a larger model with the same tokenizer",
            key: "distill.teacher",
            comment: "The model to learn from, a folder or a hub name. It has the same tokenizer.",
            is_reward_model: false,
        }),
        lr: ["1e-6", "1e-4"],
        keys: init_keys,
    }),
    curves: &["loss", "objective/entropy", "response_length/mean"],
    charts: CHARTS,
    set_pipeline_paths,
    preflight: |preflight, config| on_policy::preflight(&STAGE.schema, preflight, config),
    run: on_policy::run,
};

const NO_REWARD: &str = "this stage learns from a teacher, and a reply has no reward";

const OWN_KEYS: &[IgnoredKey] = &[
    ("ppo.dynamic_sampling", NO_REWARD),
    ("ppo.max_refills", NO_REWARD),
    ("ppo.score_clip", NO_REWARD),
    ("ppo.missing_eos_penalty", NO_REWARD),
    ("ppo.overlong_buffer", NO_REWARD),
    ("ppo.overlong_penalty", NO_REWARD),
    ("ppo.reward_model", NO_REWARD),
    ("ppo.reference_model", "this stage compares the model with its teacher alone"),
];

const KEYS: usize = on_policy::IGNORED_KEYS.len() + WITHOUT_ADVANTAGES.len() + OWN_KEYS.len();

const IGNORED_KEYS: [IgnoredKey; KEYS] = joined(&[on_policy::IGNORED_KEYS, WITHOUT_ADVANTAGES, OWN_KEYS]);

const CHARTS: Charts = &[
    ("loss", &["loss"]),
    ("divergence", &["divergence"]),
    ("entropy", &["objective/entropy"]),
    ("reply length", &["response_length/mean"]),
    ("cut replies", &["truncated_rate"]),
    ("repetition", &["monitor/repetition"]),
    ("gradient norm", &["grad_norm"]),
    ("learning rate", &["lr"]),
    ("throughput, tokens/s", &[THROUGHPUT]),
];

fn init_keys(sizes: &InitSizes) -> Vec<InitKey> {
    let (iterations, batch) = if sizes.is_quick { ("3", "8") } else { ("100", "64") };
    let comment = "Iterations. In each the model answers prompts, and the teacher corrects every token.";
    vec![
        InitKey::new(comment, "iterations", iterations),
        InitKey::new("Prompts of one iteration.", "rollout_batch_size", batch),
        InitKey::new("Replies of one optimizer step.", "mini_batch_size", batch),
        InitKey::new("The longest reply in tokens.", "max_new_tokens", &sizes.max_new_tokens.to_string()),
    ]
}

fn set_pipeline_paths(config: &mut RunConfig, pipeline: &PipelineFolder<'_>) {
    pipeline.set_path(&mut config.model.path, "base/final");
    pipeline.set_files(&mut config.data.train, "data/prompts.parquet");
}
