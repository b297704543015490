//! What the stages share that learn from rollouts without advantages: the keys of `[ppo]` that none of them
//! reads.

use crate::config::stage::{IgnoredKey, PTX};

const NO_ADVANTAGES: &str = "this stage has no advantages and no ratios of policies, which the key is about";
const NO_PENALTY: &str = "this stage has no KL penalty and no entropy bonus";
const NO_CRITIC: &str = "this stage has no critic";

/// The keys that have no effect without advantages.
pub(super) const WITHOUT_ADVANTAGES: &[IgnoredKey] = &[
    PTX,
    ("ppo.old_logprobs", NO_ADVANTAGES),
    ("ppo.kl_coef", NO_PENALTY),
    ("ppo.kl_target", NO_PENALTY),
    ("ppo.kl_horizon", NO_PENALTY),
    ("ppo.kl_estimator", NO_PENALTY),
    ("ppo.kl_clamp", NO_PENALTY),
    ("ppo.kl_place", NO_PENALTY),
    ("ppo.kl_gradient", NO_PENALTY),
    ("ppo.kl_importance", NO_PENALTY),
    ("ppo.advantage_estimator", NO_ADVANTAGES),
    ("ppo.advantage_scale", NO_ADVANTAGES),
    ("ppo.advantage_epsilon", NO_ADVANTAGES),
    ("ppo.pass_k", NO_ADVANTAGES),
    ("ppo.gamma", NO_ADVANTAGES),
    ("ppo.gae_lambda", NO_CRITIC),
    ("ppo.critic_gae_lambda", NO_CRITIC),
    ("ppo.policy_loss", NO_ADVANTAGES),
    ("ppo.clip_range", NO_ADVANTAGES),
    ("ppo.clip_range_high", NO_ADVANTAGES),
    ("ppo.clip_ratio_c", NO_ADVANTAGES),
    ("ppo.log_ratio_clamp", NO_ADVANTAGES),
    ("ppo.sapo_temperature", NO_ADVANTAGES),
    ("ppo.sapo_temperature_negative", NO_ADVANTAGES),
    ("ppo.loss_agg_mode", NO_ADVANTAGES),
    ("ppo.loss_norm", NO_ADVANTAGES),
    ("ppo.correction", NO_ADVANTAGES),
    ("ppo.correction_low", NO_ADVANTAGES),
    ("ppo.correction_high", NO_ADVANTAGES),
    ("ppo.clip_range_value", NO_CRITIC),
    ("ppo.vf_coef", NO_CRITIC),
    ("ppo.entropy_coef", NO_PENALTY),
    ("ppo.entropy_target", NO_PENALTY),
    ("ppo.entropy_delta", NO_PENALTY),
    ("ppo.ptx_coef", "this stage has no language-modelling term"),
    ("ppo.whiten_advantages", NO_ADVANTAGES),
    ("ppo.whiten_rewards", NO_CRITIC),
    ("ppo.whiten_variance", NO_ADVANTAGES),
    ("ppo.whiten_epsilon", NO_ADVANTAGES),
    ("ppo.score_slot", NO_ADVANTAGES),
    ("ppo.mask_truncated", "this stage learns from replies that were cut as from others"),
    ("ppo.critic_lr", NO_CRITIC),
    ("ppo.critic_warmup", NO_CRITIC),
    ("ppo.critic_model", NO_CRITIC),
];

/// Joins lists of keys, which have `N` keys together.
pub(super) const fn joined<const N: usize>(lists: &[&[IgnoredKey]]) -> [IgnoredKey; N] {
    let mut all = [("", ""); N];
    let (mut list, mut key, mut index) = (0, 0, 0);
    while index < N {
        if key == lists[list].len() {
            (list, key) = (list + 1, 0);
        } else {
            all[index] = lists[list][key];
            (key, index) = (key + 1, index + 1);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::definition::Stage;
    use super::super::{gkd, online_dpo};
    use super::*;
    use crate::config::{RunConfig, flatten_toml};

    #[test]
    fn lists_are_joined_in_their_order() {
        assert_eq!(
            joined::<3>(&[&[("a", "1")], &[], &[("b", "2"), ("c", "3")]]).map(|(key, _)| key),
            ["a", "b", "c"]
        );
    }

    /// A new key of the section is read by these stages, or has no effect and a reason.
    #[test]
    fn every_key_is_read_or_has_a_reason() {
        let of_rollouts = [
            "ppo.iterations",
            "ppo.rollout_batch_size",
            "ppo.samples_per_prompt",
            "ppo.epochs",
            "ppo.mini_batch_size",
            "ppo.staleness",
            "ppo.max_new_tokens",
            "ppo.temperature",
        ];
        let of_rewards = [
            "ppo.dynamic_sampling",
            "ppo.max_refills",
            "ppo.overlong_buffer",
            "ppo.overlong_penalty",
            "ppo.reward_model",
        ];
        let all = flatten_toml(&toml::to_string(&RunConfig::default()).unwrap()).unwrap();
        let check = |stage: &Stage, read: &[&str]| {
            for key in all.keys().filter(|key| key.starts_with("ppo.")) {
                assert_eq!(
                    stage.schema.reads(key),
                    read.contains(&key.as_str()),
                    "{}: {key}",
                    stage.schema.name
                );
            }
        };
        check(&online_dpo::STAGE, &[&of_rollouts[..], &of_rewards].concat());
        check(&gkd::STAGE, &[&of_rollouts[..], &["ppo.shuffle"]].concat());
        // These have no default.
        let reads = |stage: &Stage, keys: &[&str]| keys.iter().all(|key| stage.schema.reads(key));
        assert!(reads(
            &online_dpo::STAGE,
            &["ppo.score_clip", "ppo.missing_eos_penalty", "ppo.reference_model"]
        ));
        assert!(
            [&online_dpo::STAGE, &gkd::STAGE]
                .iter()
                .all(|stage| reads(stage, &["ppo.rollout_micro_batch_size"]))
        );
        assert!(
            !gkd::STAGE.schema.reads("ppo.reference_model") && !gkd::STAGE.schema.reads("ppo.score_clip")
        );
    }
}
