//! The configuration sections `[reward]` and `[ppo]`. The sections of the other algorithms are defined beside
//! their losses, and only re-exported here.

use datasets::Names;
use gemini::config::LARGEST_BATCH;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::kl::KlEstimator;
use crate::loss::{LossAggMode, PolicyClip};
use crate::setting::{not_negative, positive, refuse};
use crate::whiten::{Variance, Whitening};

pub use crate::advantage::{AdvantageEstimator, ScoreSlot};
pub use crate::distill::DistillConfig;
pub use crate::loss::preference::{CpoConfig, DpoConfig, OrpoConfig, SimpoConfig};
pub use crate::offline::kto::KtoConfig;

/// The `[reward]` section.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RewardConfig {
    /// The weight of the mean squared sum of the two scores of a pair, which keeps scores near zero. 0.01 is
    /// usual, 0 is off.
    pub center_rewards_coefficient: f64,
}

/// The `[ppo]` section. Where other implementations differ, `docs/ppo.md` names the default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PpoConfig {
    /// Number of iterations: a rollout and the updates on it.
    pub iterations: u64,
    /// Number of prompts per rollout.
    pub rollout_batch_size: usize,
    /// Number of replies per prompt.
    pub samples_per_prompt: usize,
    /// Number of replies that are generated at the same time, each with its KV cache. If absent, all replies
    /// of a rollout.
    /// vLLM: `max_num_seqs`. It is not the forward batch of OpenRLHF's `micro_rollout_batch_size`.
    pub rollout_micro_batch_size: Option<usize>,
    /// Number of passes over one rollout.
    /// TRL: `num_ppo_epochs`; verl: `ppo_epochs`.
    pub epochs: usize,
    /// Number of replies per optimizer step. It divides `rollout_batch_size` x `samples_per_prompt`.
    pub mini_batch_size: usize,
    /// What each epoch brings into a new order: `replies`, as TRL does, or `prompts` with all their replies,
    /// which takes less time.
    pub shuffle: Shuffle,
    /// The maximum length of a reply, in tokens.
    pub max_new_tokens: usize,
    /// Divides the logits, both in sampling and in training.
    pub temperature: f64,
    /// Where the log-probabilities of the policy at the time of the rollout come from: `trainer`, a pass over
    /// the replies as in training, or `sampler`, which saves that pass and needs fp32.
    pub old_logprobs: OldLogprobs,
    /// Weight of the KL penalty in the reward.
    pub kl_coef: f64,
    /// KL of a full reply, in nats, that the adaptive controller aims for. If absent, `kl_coef` is fixed.
    pub kl_target: Option<f64>,
    /// Number of replies over which a relative KL error of 1 would double the coefficient of the adaptive
    /// controller.
    pub kl_horizon: f64,
    /// The estimator of the KL divergence at one token: `k1`, `k2`, `k3` or `abs`.
    pub kl_estimator: KlEstimator,
    /// The log-ratio to the reference is clamped to plus or minus this value before it is estimated from;
    /// `inf` is off. No healthy run reaches 20, which keeps every estimate finite in fp32.
    pub kl_clamp: f64,
    /// How advantages are computed: `gae` with a critic, or `grpo` and `rloo` by comparing the replies to the
    /// same prompt.
    pub advantage_estimator: AdvantageEstimator,
    /// Discount of GAE.
    pub gamma: f64,
    /// Decay of GAE.
    pub gae_lambda: f64,
    /// The policy ratio is clipped to `1 - clip_range ..= 1 + clip_range_high`.
    pub clip_range: f64,
    /// Upper end of the clip range. If absent, the same as `clip_range`.
    pub clip_range_high: Option<f64>,
    /// The most that a token with a negative advantage A can cost, as a multiple of -A (dual clip). If
    /// absent, there is no bound.
    /// verl: `clip_ratio_c`, 3; OpenRLHF: `dual_clip`.
    pub clip_ratio_c: Option<f64>,
    /// The log-ratio of the policy to the rollout is clamped to plus or minus this value; `inf` is off.
    /// OpenRLHF, verl: 20.
    pub log_ratio_clamp: f64,
    /// The mean over the tokens of a mini-batch in the policy loss and the entropy bonus: `token_mean`,
    /// `seq_mean_token_mean`, `seq_mean_token_sum` or `seq_mean_token_sum_norm`.
    pub loss_agg_mode: LossAggMode,
    /// Clip range of the values: their maximum distance from the values of the rollout.
    pub clip_range_value: f64,
    /// Weight of the value loss. The critic has its own optimizer.
    pub vf_coef: f64,
    /// Weight of the entropy bonus.
    pub entropy_coef: f64,
    /// Weight of the language-modelling loss on the rows of `[data] ptx`.
    pub ptx_coef: f64,
    /// Whether advantages are whitened over all tokens of a rollout.
    pub whiten_advantages: bool,
    /// Whether token rewards are divided by their standard deviation.
    pub whiten_rewards: bool,
    /// The variance of whitening: divided by n - 1 (`unbiased`) or by n (`biased`).
    pub whiten_variance: Variance,
    /// Added to the variance of whitening.
    pub whiten_epsilon: f64,
    /// Added to the standard deviation of a group by `advantage_estimator = "grpo"`.
    /// TRL: 1e-4; verl: 1e-6; OpenRLHF: 1e-9.
    pub advantage_epsilon: f64,
    /// The position to whose reward the score is added: `eos`, the last token of a reply, or `after_eos`, one
    /// slot after it.
    pub score_slot: ScoreSlot,
    /// The (summed) score is clamped to plus or minus this value. If absent, it is not clamped.
    pub score_clip: Option<f64>,
    /// Subtracted from the score of a reply that did not end with a stop token. If absent, nothing is.
    pub missing_eos_penalty: Option<f64>,
    /// The peak learning rate of the critic. The peak of the policy is `[train] lr`.
    pub critic_lr: f64,
    /// Number of iterations at the start in which only the critic is trained.
    pub critic_warmup: u64,
    /// Required. A sequence-classification folder, or a list of them, whose scores are added.
    pub reward_model: Names,
    /// The folder of the reference. If absent, the initial policy.
    pub reference_model: Option<String>,
    /// The folder of the critic. If absent, the first reward model.
    pub critic_model: Option<String>,
}

/// What an epoch of PPO brings into a new order before it is cut into mini-batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shuffle {
    /// The replies: TRL, `OpenAI`.
    #[default]
    Replies,
    /// The prompts. The replies to a prompt stay together, and a mini-batch that holds them runs the prompt
    /// once.
    Prompts,
}

/// Where the log-probabilities of the policy at the time of the rollout come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OldLogprobs {
    /// From a forward pass over the full replies, as in training: `OpenRLHF`, verl.
    #[default]
    Trainer,
    /// From the sampler: TRL. One micro-batch of each rollout is computed by the trainer as well, and the run
    /// ends if they differ by more than [`LARGEST_DIFFERENCE`](crate::rollout::LARGEST_DIFFERENCE).
    Sampler,
}

impl Default for PpoConfig {
    fn default() -> Self {
        Self {
            iterations: 100,
            rollout_batch_size: 64,
            samples_per_prompt: 1,
            rollout_micro_batch_size: None,

            epochs: 4,
            mini_batch_size: 64,
            shuffle: Shuffle::Replies,
            max_new_tokens: 64,
            temperature: 1.0,
            old_logprobs: OldLogprobs::Trainer,

            kl_coef: 0.05,
            kl_target: None,
            kl_horizon: 10_000.0,
            kl_estimator: KlEstimator::K1,
            kl_clamp: 20.0,

            advantage_estimator: AdvantageEstimator::Gae,
            gamma: 1.0,
            gae_lambda: 0.95,

            clip_range: 0.2,
            clip_range_high: None,
            clip_ratio_c: None,
            log_ratio_clamp: 20.0,
            loss_agg_mode: LossAggMode::TokenMean,
            clip_range_value: 0.2,
            vf_coef: 0.5,
            entropy_coef: 0.0,
            ptx_coef: 0.0,

            whiten_advantages: true,
            whiten_rewards: false,
            whiten_variance: Variance::Unbiased,
            whiten_epsilon: 1e-8,
            advantage_epsilon: 1e-6,
            score_slot: ScoreSlot::Eos,
            score_clip: None,
            missing_eos_penalty: None,

            critic_lr: 1e-5,
            critic_warmup: 0,

            reward_model: Names::default(),
            reference_model: None,
            critic_model: None,
        }
    }
}

impl PpoConfig {
    /// Refuses invalid settings.
    pub fn check(&self) -> Result<(), Error> {
        self.check_sizes()?;
        self.check_bounds()
    }

    fn check_sizes(&self) -> Result<(), Error> {
        for (key, value) in [
            ("rollout_batch_size", self.rollout_batch_size),
            ("samples_per_prompt", self.samples_per_prompt),
            ("rollout_micro_batch_size", self.rollout_micro_batch_size.unwrap_or(1)),
            ("epochs", self.epochs),
            ("mini_batch_size", self.mini_batch_size),
            ("max_new_tokens", self.max_new_tokens),
        ] {
            if value == 0 {
                return refuse("ppo", key, &value, "must be at least 1");
            }
        }

        let replies = self.replies()?;
        if !replies.is_multiple_of(self.mini_batch_size) {
            let wanted = format!(
                "must divide rollout_batch_size x samples_per_prompt = {replies}, so that every optimizer step sees as many replies"
            );
            return refuse("ppo", "mini_batch_size", &self.mini_batch_size, &wanted);
        }

        // `Engine` counts optimizer steps, which must not overflow.
        let updates = (self.epochs as u64).checked_mul((replies / self.mini_batch_size) as u64);
        if updates
            .and_then(|updates| updates.checked_mul(self.iterations))
            .is_none_or(|all| all > i64::MAX as u64)
        {
            let value = format!("{} x {}", self.iterations, self.epochs);
            let wanted = "these make more updates than can be counted";
            return refuse("ppo", "iterations x epochs", &value, wanted);
        }

        if !self.advantage_estimator.has_critic() && self.samples_per_prompt < 2 {
            let wanted =
                "must be at least 2 for this advantage_estimator, which compares the replies to a prompt";
            return refuse("ppo", "samples_per_prompt", &self.samples_per_prompt, wanted);
        }

        if self.iterations <= self.critic_warmup() {
            let wanted = "must be more than critic_warmup, or the policy never learns";
            return refuse("ppo", "iterations", &self.iterations, wanted);
        }
        Ok(())
    }

    /// Number of replies per rollout.
    pub fn replies(&self) -> Result<usize, Error> {
        let replies = self.rollout_batch_size.checked_mul(self.samples_per_prompt);
        let wanted = "one rollout has at most 16777216 replies";
        if let Some(replies) = replies.filter(|&replies| replies <= LARGEST_BATCH) {
            return Ok(replies);
        }
        let value = format!("{} x {}", self.rollout_batch_size, self.samples_per_prompt);
        refuse("ppo", "rollout_batch_size x samples_per_prompt", &value, wanted).map(|()| 0)
    }

    /// Number of optimizer steps per iteration: the mini-batches of all epochs. Call [`Self::check`] first.
    pub fn steps_per_iteration(&self) -> u64 {
        (self.epochs * (self.rollout_batch_size * self.samples_per_prompt / self.mini_batch_size)) as u64
    }

    /// Number of iterations at the start in which only the critic is trained: 0 without a critic.
    pub fn critic_warmup(&self) -> u64 {
        if self.advantage_estimator.has_critic() { self.critic_warmup } else { 0 }
    }

    /// How ratios of the policy are clipped.
    pub fn policy_clip(&self) -> PolicyClip {
        PolicyClip {
            low: self.clip_range,
            high: self.clip_range_high.unwrap_or(self.clip_range),
            log_ratio: Some(self.log_ratio_clamp),
            dual: self.clip_ratio_c,
        }
    }

    /// How advantages and rewards are whitened.
    pub fn whitening(&self) -> Whitening {
        Whitening { variance: self.whiten_variance, epsilon: self.whiten_epsilon }
    }

    /// Number of optimizer steps of the policy in a run of `iterations`. The critic warm-up has none.
    pub fn policy_steps(&self, iterations: u64) -> u64 {
        iterations.saturating_sub(self.critic_warmup()).saturating_mul(self.steps_per_iteration())
    }

    fn check_bounds(&self) -> Result<(), Error> {
        for (key, value) in [("gamma", self.gamma), ("gae_lambda", self.gae_lambda)] {
            if !(0.0..=1.0).contains(&value) {
                return refuse("ppo", key, &value, "must be between 0 and 1");
            }
        }

        for (key, value) in [
            ("temperature", self.temperature),
            ("clip_range", self.clip_range),
            ("kl_horizon", self.kl_horizon),
            ("clip_range_value", self.clip_range_value),
            ("clip_range_high", self.clip_range_high.unwrap_or(self.clip_range)),
            ("score_clip", self.score_clip.unwrap_or(1.0)),
            ("kl_target", self.kl_target.unwrap_or(1.0)),
        ] {
            positive("ppo", key, value)?;
        }
        for (key, value) in [("kl_clamp", self.kl_clamp), ("log_ratio_clamp", self.log_ratio_clamp)] {
            if value.is_nan() || value <= 0.0 {
                return refuse("ppo", key, &value, "must be more than 0; inf is off");
            }
        }
        if let Some(most) = self.clip_ratio_c.filter(|most| !(most.is_finite() && *most > 1.0)) {
            return refuse("ppo", "clip_ratio_c", &most, "must be more than 1");
        }

        for (key, value) in [
            ("kl_coef", self.kl_coef),
            ("vf_coef", self.vf_coef),
            ("entropy_coef", self.entropy_coef),
            ("ptx_coef", self.ptx_coef),
            ("critic_lr", self.critic_lr),
            ("missing_eos_penalty", self.missing_eos_penalty.unwrap_or(0.0)),
            ("whiten_epsilon", self.whiten_epsilon),
            ("advantage_epsilon", self.advantage_epsilon),
        ] {
            not_negative("ppo", key, value)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_settings_are_named() {
        assert!(PpoConfig::default().check().is_ok());
        let cases = [
            (PpoConfig { iterations: 3, critic_warmup: 3, ..PpoConfig::default() }, "iterations"),
            (PpoConfig { score_clip: Some(-1.0), ..PpoConfig::default() }, "score_clip"),
            (PpoConfig { kl_target: Some(0.0), ..PpoConfig::default() }, "kl_target"),
            (PpoConfig { critic_lr: -1.0, ..PpoConfig::default() }, "critic_lr"),
            (PpoConfig { kl_coef: f64::NAN, ..PpoConfig::default() }, "kl_coef"),
            (PpoConfig { mini_batch_size: 48, ..PpoConfig::default() }, "mini_batch_size"),
            (
                PpoConfig { rollout_batch_size: usize::MAX, samples_per_prompt: 2, ..PpoConfig::default() },
                "[ppo] rollout_batch_size x samples_per_prompt = 18446744073709551615 x 2",
            ),
            (PpoConfig { iterations: u64::MAX, ..PpoConfig::default() }, "[ppo] iterations x epochs"),
        ];
        for (config, key) in cases {
            let error = config.check().unwrap_err().to_string();
            assert!(error.contains(key), "{error}");
        }
    }
}
