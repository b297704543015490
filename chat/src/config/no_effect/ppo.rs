//! Keys of `[ppo]` that have no effect under its other settings, each with the reason. The algorithms that
//! learn from rollouts share the section, and each of them reads a part of it.

use rlhf::config::{AdvantageEstimator, AdvantageScale, KlPlace, OldLogprobs, PpoConfig};
use rlhf::correction::CorrectionMode;
use rlhf::loss::{LossAggMode, PolicyLossKind};

use crate::config::stage::IgnoredKey;

/// The keys of the trust region of the policy loss, and the losses that read each of them.
const TRUST_REGION: [(&str, &[PolicyLossKind], &str); 6] = {
    use PolicyLossKind::{Cispo, Clip, DppoKl, DppoTv, Gmpo, Gspo, Sapo};
    const NO_CLIP: &str = "this policy_loss has no clip range";
    const NO_GATE: &str = "only policy_loss = \"sapo\" has temperatures";
    [
        ("ppo.clip_range", &[Clip, Gspo, Gmpo, Cispo, DppoTv, DppoKl], NO_CLIP),
        ("ppo.clip_range_high", &[Clip, Gspo, Gmpo, Cispo, DppoTv, DppoKl], NO_CLIP),
        ("ppo.clip_ratio_c", &[Clip, Gspo, DppoTv, DppoKl], "this policy_loss has no such bound"),
        (
            "ppo.log_ratio_clamp",
            &[Clip, Gspo, Gmpo, Cispo, Sapo, DppoTv, DppoKl],
            "policy_loss = \"gpg\" has no ratios",
        ),
        ("ppo.sapo_temperature", &[Sapo], NO_GATE),
        ("ppo.sapo_temperature_negative", &[Sapo], NO_GATE),
    ]
};

/// The keys of the critic.
const CRITIC_KEYS: [&str; 8] = [
    "ppo.critic_model",
    "ppo.critic_lr",
    "ppo.critic_warmup",
    "ppo.vf_coef",
    "ppo.clip_range_value",
    "ppo.gae_lambda",
    "ppo.critic_gae_lambda",
    "ppo.whiten_rewards",
];

/// Returns the keys of `[ppo]` without effect.
pub(super) fn by_ppo(ppo: &PpoConfig) -> Vec<IgnoredKey> {
    [
        by_rollout(ppo),
        by_kl(ppo),
        by_estimator(ppo),
        by_critic(ppo),
        by_whitening(ppo),
        by_policy_loss(ppo),
        by_correction(ppo),
        by_single_step(ppo),
    ]
    .concat()
}

/// Whether one mini-batch holds all replies of a rollout.
fn has_one_mini_batch(ppo: &PpoConfig) -> bool {
    ppo.replies().is_ok_and(|replies| replies == ppo.mini_batch_size)
}

fn by_rollout(ppo: &PpoConfig) -> Vec<IgnoredKey> {
    let mut keys = Vec::new();
    if !ppo.dynamic_sampling {
        keys.push(("ppo.max_refills", "without dynamic_sampling no prompt is replaced"));
    }
    if ppo.overlong_buffer == 0 {
        keys.push(("ppo.overlong_penalty", "with overlong_buffer = 0 no reply pays for its length"));
    }
    if ppo.samples_per_prompt == 1 {
        keys.push((
            "ppo.shuffle",
            "with samples_per_prompt = 1 a prompt has one reply, which is alone anyway",
        ));
    } else if has_one_mini_batch(ppo) {
        keys.push((
            "ppo.shuffle",
            "one mini-batch holds all replies of a rollout, in the order of the prompts",
        ));
    }
    if ppo.entropy_target.is_none() {
        keys.push(("ppo.entropy_delta", "without entropy_target the weight of the entropy bonus is fixed"));
    }
    keys
}

fn by_kl(ppo: &PpoConfig) -> Vec<IgnoredKey> {
    if !ppo.has_reference() {
        let names = [
            "ppo.kl_target",
            "ppo.kl_horizon",
            "ppo.kl_estimator",
            "ppo.kl_clamp",
            "ppo.kl_place",
            "ppo.kl_gradient",
            "ppo.kl_importance",
            "ppo.reference_model",
        ];
        return names.map(|key| (key, "with kl_coef = 0 there is no KL penalty and no reference")).into();
    }
    let mut keys = Vec::new();
    if ppo.kl_target.is_none() {
        keys.push(("ppo.kl_horizon", "without kl_target the coefficient is fixed"));
    }
    if ppo.kl_place != KlPlace::Loss {
        let reason = "only with kl_place = \"loss\" does the KL penalty have a gradient";
        keys.extend([("ppo.kl_gradient", reason), ("ppo.kl_importance", reason)]);
    }
    keys
}

fn by_estimator(ppo: &PpoConfig) -> Vec<IgnoredKey> {
    use AdvantageEstimator::{Grpo, Maxrl, PassAtK};
    let estimator = ppo.advantage_estimator;
    let mut keys = Vec::new();
    if !matches!(estimator, Grpo | PassAtK) {
        let reason = "only advantage_estimator = \"grpo\" and \"pass_at_k\" divide by a deviation";
        keys.push(("ppo.advantage_scale", reason));
        if estimator != Maxrl {
            keys.push(("ppo.advantage_epsilon", reason));
        }
    } else if ppo.advantage_scale == AdvantageScale::None {
        keys.push(("ppo.advantage_epsilon", "with advantage_scale = \"none\" nothing is divided by"));
    }
    if estimator != PassAtK {
        keys.push(("ppo.pass_k", "only advantage_estimator = \"pass_at_k\" asks for the best of k replies"));
    }
    if !estimator.has_token_rewards() {
        let reason = "with this advantage_estimator a reply has one advantage for all of its tokens";
        keys.extend([("ppo.gamma", reason), ("ppo.score_slot", reason)]);
    }
    keys
}

fn by_critic(ppo: &PpoConfig) -> Vec<IgnoredKey> {
    if !ppo.advantage_estimator.has_critic() {
        return CRITIC_KEYS.map(|key| (key, "only advantage_estimator = \"gae\" has a critic")).into();
    }
    if ppo.critic_lr == 0.0 {
        let reason = "with critic_lr = 0 the critic does not learn";
        return vec![("ppo.vf_coef", reason), ("ppo.clip_range_value", reason)];
    }
    if ppo.vf_coef == 0.0 {
        return vec![("ppo.clip_range_value", "with vf_coef = 0 the values have no loss")];
    }
    Vec::new()
}

fn by_whitening(ppo: &PpoConfig) -> Vec<IgnoredKey> {
    use AdvantageEstimator::{Gae, ReinforcePlusPlus, ReinforcePlusPlusBaseline};
    let can_whiten = matches!(ppo.advantage_estimator, Gae | ReinforcePlusPlus | ReinforcePlusPlusBaseline);
    let whitens_rewards = ppo.whiten_rewards && ppo.advantage_estimator.has_critic();
    let mut keys = Vec::new();
    if !can_whiten {
        keys.push(("ppo.whiten_advantages", "with this advantage_estimator advantages are not whitened"));
    }
    if !(whitens_rewards || (can_whiten && ppo.whiten_advantages)) {
        let reason = "neither advantages nor rewards are whitened";
        keys.extend([("ppo.whiten_variance", reason), ("ppo.whiten_epsilon", reason)]);
    }
    keys
}

fn by_policy_loss(ppo: &PpoConfig) -> Vec<IgnoredKey> {
    let unread = TRUST_REGION.iter().filter(|(_, readers, _)| !readers.contains(&ppo.policy_loss));
    let mut keys: Vec<IgnoredKey> = unread.map(|&(key, _, reason)| (key, reason)).collect();
    if ppo.policy_loss == PolicyLossKind::Cispo && ppo.clip_range_high.is_some() {
        keys.push((
            "ppo.clip_range",
            "policy_loss = \"cispo\" has an upper bound alone, which is clip_range_high",
        ));
    }
    if ppo.loss_agg_mode != LossAggMode::SeqMeanTokenSumNorm {
        keys.push((
            "ppo.loss_norm",
            "only loss_agg_mode = \"seq_mean_token_sum_norm\" divides by a number of tokens",
        ));
    }
    keys
}

fn by_correction(ppo: &PpoConfig) -> Vec<IgnoredKey> {
    let (low, high) = ("ppo.correction_low", "ppo.correction_high");
    match ppo.correction {
        CorrectionMode::Off => {
            let reason = "with correction = \"off\" there are no importance weights";
            vec![(low, reason), (high, reason)]
        }
        _ if ppo.old_logprobs == OldLogprobs::Sampler => {
            let reason =
                "old_logprobs = \"sampler\" takes those of the sampler, so every importance weight is 1";
            vec![("ppo.correction", reason), (low, reason), (high, reason)]
        }
        CorrectionMode::TokenTruncate | CorrectionMode::SequenceTruncate => {
            vec![(low, "only the masks of correction have a lowest weight")]
        }
        _ => Vec::new(),
    }
}

/// The first step on a rollout has the weights that the rollout had: every ratio is 1, and the gradient of
/// every loss is that of REINFORCE.
fn by_single_step(ppo: &PpoConfig) -> Vec<IgnoredKey> {
    if ppo.epochs > 1 || !has_one_mini_batch(ppo) {
        return Vec::new();
    }
    let reason = "with one optimizer step for each rollout the policy and the values have not moved yet";
    let region = TRUST_REGION.iter().map(|&(key, ..)| (key, reason));
    region.chain([("ppo.clip_range_value", reason)]).collect()
}
