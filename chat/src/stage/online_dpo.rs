//! The stage `online-dpo`: direct preference optimization on replies that the model has just written
//! ([`rlhf::online::dpo`]).

use tui::dashboard::{Charts, THROUGHPUT};

use super::definition::{CommandHelp, InitKey, InitSizes, InitSpec, RowKind, Stage};
use super::on_policy;
use super::online::{WITHOUT_ADVANTAGES, joined};
use crate::config::StageSchema;
use crate::config::stage::IgnoredKey;

/// The stage `online-dpo`.
pub(super) static STAGE: Stage = Stage {
    schema: StageSchema {
        name: "online-dpo",
        units: on_policy::UNITS,
        has_rollouts: true,
        sections: &["ppo", "reward", "dpo"],
        ignored_keys: &IGNORED_KEYS,
        defaults: Some(include_str!("defaults/online-dpo.toml")),
    },
    command: Some(CommandHelp {
        about: "Improve a model by its rewards, from pairs of its best and worst replies (online DPO)",
        title: "Online direct preference optimization",
        examples: "\
Examples:
  colossal-chat online-dpo --config run.toml
  colossal-chat online-dpo --config run.toml --set ppo.samples_per_prompt=4 --set dpo.loss=ipo",
    }),
    init: Some(InitSpec {
        rows: RowKind::Prompts,
        after: Some("sft"),
        is_in_all: false,
        other_model: Some(on_policy::REWARD_MODEL),
        lr: ["5e-7", "5e-5"],
        keys: init_keys,
    }),
    curves: &["objective/scores", "rewards/accuracies", "objective/kl", "response_length/mean"],
    charts: CHARTS,
    set_pipeline_paths: on_policy::set_pipeline_paths,
    preflight: |preflight, config| on_policy::preflight(&STAGE.schema, preflight, config),
    run: on_policy::run,
};

const OWN_KEYS: &[IgnoredKey] = &[("ppo.shuffle", "each epoch shuffles the prompts, each with its pair")];

const KEYS: usize = on_policy::IGNORED_KEYS.len() + WITHOUT_ADVANTAGES.len() + OWN_KEYS.len();

const IGNORED_KEYS: [IgnoredKey; KEYS] = joined(&[on_policy::IGNORED_KEYS, WITHOUT_ADVANTAGES, OWN_KEYS]);

const CHARTS: Charts = &[
    ("reward", &["objective/scores"]),
    ("loss", &["loss"]),
    ("accuracy of the implied rewards", &["rewards/accuracies"]),
    ("margin of the implied rewards", &["rewards/margins"]),
    ("margin of the scores", &["objective/scores_margin"]),
    ("KL to the reference", &["objective/kl"]),
    ("prompts without a pair", &["pairs/missing"]),
    ("log-probability, better and worse", &["logps/chosen", "logps/rejected"]),
    ("entropy", &["objective/entropy"]),
    ("reply length", &["response_length/mean"]),
    ("cut replies", &["truncated_rate"]),
    ("repetition", &["monitor/repetition"]),
    ("gradient norm", &["grad_norm"]),
    ("throughput, tokens/s", &[THROUGHPUT]),
];

fn init_keys(sizes: &InitSizes) -> Vec<InitKey> {
    let (iterations, prompts, replies) = if sizes.is_quick { ("3", "4", "8") } else { ("100", "64", "128") };
    let comment = "Iterations. In each the model answers prompts and learns from its best and worst answers.";
    let samples = "Replies to each prompt, of which the best and the worst make a pair.";
    let step = "Replies of one optimizer step, those to a prompt together.";
    vec![
        InitKey::new(comment, "iterations", iterations),
        InitKey::new("Prompts of one iteration.", "rollout_batch_size", prompts),
        InitKey::new(samples, "samples_per_prompt", "2"),
        InitKey::new(step, "mini_batch_size", replies),
        InitKey::new("The longest reply in tokens.", "max_new_tokens", &sizes.max_new_tokens.to_string()),
    ]
}
