//! The settings that `reject` reads, in the words of the configuration.
//!
//! `reject` samples and scores replies with the settings of the stages on rollouts. It reads a run file as a
//! stage does, and tells of keys without effect as a stage does.

use crate::config::stage::{IgnoredKey, PTX};
use crate::config::{StageSchema, Units};

/// The sections and keys that `reject` reads.
pub(super) static SCHEMA: StageSchema = StageSchema {
    name: "reject",
    units: Units { row: "prompt", step: "round", sample: "reply" },
    has_rollouts: false,
    sections: &["ppo", "reward", "reject"],
    ignored_keys: IGNORED_KEYS,
    defaults: Some(DEFAULTS),
};

/// Several replies, of which some are kept. The other keys have no effect, but the bounds of `[ppo]` are
/// checked: this estimator needs neither a critic nor several replies, and 1 divides every number of replies.
const DEFAULTS: &str = "\
[ppo]
samples_per_prompt = 8
advantage_estimator = \"reinforce_plus_plus\"
mini_batch_size = 1
";

const NO_UPDATE: &str = "`reject` samples replies and trains no model";
const NO_RUN: &str = "`reject` is no run of training: it writes its rows at the end";
const ONE_PROCESS: &str = "`reject` runs in one process, whose models stay in memory";
const IN_ORDER: &str = "every prompt is sampled once, and rows keep the order of the prompts";

/// The keys of the sections above, and the other sections, that have no effect.
const IGNORED_KEYS: &[IgnoredKey] = &[
    PTX,
    ("model.lora", NO_UPDATE),
    ("data.eval", NO_UPDATE),
    ("data.eval_fraction", NO_UPDATE),
    ("data.packing", NO_UPDATE),
    ("data.shuffle", IN_ORDER),
    ("parallel", ONE_PROCESS),
    ("gemini", ONE_PROCESS),
    ("checkpoint", NO_RUN),
    ("log", NO_RUN),
    ("eval", NO_RUN),
    ("train.steps", NO_UPDATE),
    ("train.epochs", NO_UPDATE),
    ("train.gradient_accumulation_steps", NO_UPDATE),
    ("train.lr", NO_UPDATE),
    ("train.scheduler", NO_UPDATE),
    ("train.decay_power", NO_UPDATE),
    ("train.decay_ratio", NO_UPDATE),
    ("train.milestones", NO_UPDATE),
    ("train.gamma", NO_UPDATE),
    ("train.warmup_steps", NO_UPDATE),
    ("train.warmup_ratio", NO_UPDATE),
    ("train.min_lr_ratio", NO_UPDATE),
    ("train.optimizer", NO_UPDATE),
    ("train.moments_dtype", NO_UPDATE),
    ("train.betas", NO_UPDATE),
    ("train.eps", NO_UPDATE),
    ("train.weight_decay", NO_UPDATE),
    ("train.max_grad_norm", NO_UPDATE),
    ("train.activation_checkpointing", NO_UPDATE),
    ("ppo.iterations", IN_ORDER),
    ("ppo.epochs", NO_UPDATE),
    ("ppo.mini_batch_size", NO_UPDATE),
    ("ppo.dynamic_sampling", IN_ORDER),
    ("ppo.max_refills", IN_ORDER),
    ("ppo.staleness", NO_UPDATE),
    ("ppo.shuffle", NO_UPDATE),
    ("ppo.old_logprobs", NO_UPDATE),
    ("ppo.kl_coef", NO_UPDATE),
    ("ppo.kl_target", NO_UPDATE),
    ("ppo.kl_horizon", NO_UPDATE),
    ("ppo.kl_estimator", NO_UPDATE),
    ("ppo.kl_clamp", NO_UPDATE),
    ("ppo.kl_place", NO_UPDATE),
    ("ppo.kl_gradient", NO_UPDATE),
    ("ppo.kl_importance", NO_UPDATE),
    ("ppo.advantage_estimator", NO_UPDATE),
    ("ppo.advantage_scale", NO_UPDATE),
    ("ppo.advantage_epsilon", NO_UPDATE),
    ("ppo.pass_k", NO_UPDATE),
    ("ppo.gamma", NO_UPDATE),
    ("ppo.gae_lambda", NO_UPDATE),
    ("ppo.critic_gae_lambda", NO_UPDATE),
    ("ppo.policy_loss", NO_UPDATE),
    ("ppo.clip_range", NO_UPDATE),
    ("ppo.clip_range_high", NO_UPDATE),
    ("ppo.clip_ratio_c", NO_UPDATE),
    ("ppo.log_ratio_clamp", NO_UPDATE),
    ("ppo.sapo_temperature", NO_UPDATE),
    ("ppo.sapo_temperature_negative", NO_UPDATE),
    ("ppo.loss_agg_mode", NO_UPDATE),
    ("ppo.loss_norm", NO_UPDATE),
    ("ppo.correction", NO_UPDATE),
    ("ppo.correction_low", NO_UPDATE),
    ("ppo.correction_high", NO_UPDATE),
    ("ppo.clip_range_value", NO_UPDATE),
    ("ppo.vf_coef", NO_UPDATE),
    ("ppo.entropy_coef", NO_UPDATE),
    ("ppo.entropy_target", NO_UPDATE),
    ("ppo.entropy_delta", NO_UPDATE),
    ("ppo.ptx_coef", NO_UPDATE),
    ("ppo.whiten_advantages", NO_UPDATE),
    ("ppo.whiten_rewards", NO_UPDATE),
    ("ppo.whiten_variance", NO_UPDATE),
    ("ppo.whiten_epsilon", NO_UPDATE),
    ("ppo.score_slot", NO_UPDATE),
    ("ppo.mask_truncated", NO_UPDATE),
    ("ppo.critic_lr", NO_UPDATE),
    ("ppo.critic_warmup", NO_UPDATE),
    ("ppo.reference_model", NO_UPDATE),
    ("ppo.critic_model", NO_UPDATE),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{RunConfig, flatten_toml};

    /// A new key of these sections is read here, or has no effect and a reason.
    #[test]
    fn every_key_is_read_or_has_a_reason() {
        let read = [
            "train.micro_batch_size",
            "ppo.rollout_batch_size",
            "ppo.samples_per_prompt",
            "ppo.max_new_tokens",
            "ppo.temperature",
            "ppo.overlong_buffer",
            "ppo.overlong_penalty",
            "ppo.reward_model",
        ];
        let all = flatten_toml(&toml::to_string(&RunConfig::default()).unwrap()).unwrap();
        for key in all.keys().filter(|key| key.starts_with("ppo.") || key.starts_with("train.")) {
            assert_eq!(SCHEMA.reads(key), read.contains(&key.as_str()), "{key}");
        }
        // These have no default and are read.
        for key in ["ppo.score_clip", "ppo.missing_eos_penalty", "ppo.rollout_micro_batch_size"] {
            assert!(SCHEMA.reads(key), "{key}");
        }
    }

    #[test]
    fn the_defaults_are_valid() {
        let config = RunConfig::default_of(&SCHEMA);
        assert_eq!(config.ppo.samples_per_prompt, 8);
        assert!(config.ppo.check().is_ok() && config.reject.check().is_ok());
    }
}
