//! The configuration sections `[rm]` and `[ppo]`. The sections of the other algorithms are defined beside
//! their losses, and only re-exported here.

use datasets::Names;
use gemini::config::LARGEST_BATCH;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::advantage::GroupRule;
use crate::correction::{Correction, CorrectionMode};
use crate::kl::{KlEstimator, KlGradient, KlLoss};
use crate::loss::{LossAggMode, PolicyClip, PolicyLossKind, PolicyRule};
use crate::score::OverlongPenalty;
use crate::setting::{not_negative, positive, refuse};
use crate::whiten::{Variance, Whitening};

pub use crate::advantage::{AdvantageEstimator, AdvantageScale, ScoreSlot};
pub use crate::best_of::RejectConfig;
pub use crate::distill::DistillConfig;
pub use crate::loss::preference::{CpoConfig, DpoConfig, OrpoConfig, SimpoConfig};
pub use crate::offline::kto::KtoConfig;

/// The `[rm]` section.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RmConfig {
    /// The weight of the mean squared sum of the two scores of a pair, which keeps scores near zero. 0.01 is
    /// usual, 0 is off.
    pub center_rewards_coefficient: f64,
}

/// The `[ppo]` section, which every stage reads that learns from rollouts. A stage has defaults of its own;
/// those below are of `ppo`. Where other implementations differ, `docs/ppo.md` names the default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a key of the section, and on or off")]
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
    /// Whether prompts whose replies all have the same reward are replaced by further prompts, until there
    /// are `rollout_batch_size` others (DAPO).
    pub dynamic_sampling: bool,
    /// How often a rollout is filled up by `dynamic_sampling`. What is missing then is taken from the
    /// replaced prompts.
    pub max_refills: usize,
    /// How many iterations the policy that writes a rollout may be behind the one that learns from it: 0, or
    /// 1, which lets programs and servers score replies while the policy learns.
    pub staleness: usize,
    /// What each epoch brings into a new order: `replies`, as TRL does, or `prompts` with all their replies,
    /// which takes less time.
    pub shuffle: Shuffle,
    /// The maximum length of a reply, in tokens.
    pub max_new_tokens: usize,
    /// Divides the logits in sampling, and in the training of stages with advantages.
    pub temperature: f64,
    /// Where the log-probabilities of the policy at the time of the rollout come from: `trainer`, a pass over
    /// the replies as in training, or `sampler`, which saves that pass and needs fp32.
    pub old_logprobs: OldLogprobs,
    /// Weight of the KL penalty, in the reward or in the loss.
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
    /// Where the KL penalty is: `reward`, subtracted from the reward of each token, or `loss`, a term beside
    /// the policy loss. `kl_coef = 0` is neither, and then no reference is loaded.
    pub kl_place: KlPlace,
    /// The gradient of a KL penalty in the loss: `direct`, of the estimate, or `straight_through`, which has
    /// the value of the estimate and the gradient of `k2`.
    /// verl: `low_var_kl+`.
    pub kl_gradient: KlGradient,
    /// Whether a KL penalty in the loss is multiplied by the ratio of the policy to the rollout, which makes
    /// its gradient unbiased.
    /// TRL: `use_bias_correction_kl`.
    pub kl_importance: bool,
    /// How advantages are computed: `gae` with a critic; `grpo`, `rloo`, `reinforce_plus_plus_baseline`,
    /// `opo`, `maxrl` and `pass_at_k` by comparing the replies to the same prompt; `reinforce_plus_plus` from
    /// the rewards to come; `remax` by comparing with a greedy reply.
    pub advantage_estimator: AdvantageEstimator,
    /// What `advantage_estimator = "grpo"` and `"pass_at_k"` divide by: the standard deviation of the `group`
    /// or of the `batch`, or nothing (`none`, Dr. GRPO).
    /// TRL: `scale_rewards`.
    pub advantage_scale: AdvantageScale,
    /// The number of replies whose best one `advantage_estimator = "pass_at_k"` raises. If absent, all
    /// replies to a prompt.
    pub pass_k: Option<usize>,
    /// Discount of GAE and of `reinforce_plus_plus`.
    pub gamma: f64,
    /// Decay of GAE.
    pub gae_lambda: f64,
    /// Decay of GAE for the returns that the critic learns. If absent, the same as `gae_lambda`.
    pub critic_gae_lambda: Option<f64>,
    /// The loss of the policy: `clip` (PPO), `gspo`, `cispo`, `gmpo`, `sapo`, `dppo_tv`, `dppo_kl` or `gpg`.
    pub policy_loss: PolicyLossKind,
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
    /// The temperature of `policy_loss = "sapo"` for positive advantages.
    pub sapo_temperature: f64,
    /// The temperature of `policy_loss = "sapo"` for negative advantages.
    pub sapo_temperature_negative: f64,
    /// The mean over the tokens of a mini-batch in the policy loss and the entropy bonus: `token_mean`,
    /// `seq_mean_token_mean`, `seq_mean_token_sum` or `seq_mean_token_sum_norm`.
    pub loss_agg_mode: LossAggMode,
    /// What `loss_agg_mode = "seq_mean_token_sum_norm"` divides each reply by, in tokens. If absent,
    /// `max_new_tokens`.
    pub loss_norm: Option<usize>,
    /// How the policy loss accounts for a policy that is not the one that wrote the reply: `off`,
    /// `token_truncate`, `token_mask`, `sequence_truncate`, `sequence_mask` or `geometric_mask`.
    pub correction: CorrectionMode,
    /// The lowest importance weight that the masks of `correction` keep.
    pub correction_low: f64,
    /// The highest importance weight that `correction` keeps, or truncates to.
    pub correction_high: f64,
    /// Clip range of the values: their maximum distance from the values of the rollout.
    pub clip_range_value: f64,
    /// Weight of the value loss. The critic has its own optimizer.
    pub vf_coef: f64,
    /// Weight of the entropy bonus; the first one with `entropy_target`.
    pub entropy_coef: f64,
    /// The mean entropy of a token, in nats, below which the weight of the entropy bonus is raised. If
    /// absent, the weight is fixed.
    pub entropy_target: Option<f64>,
    /// By how much `entropy_target` changes the weight of the entropy bonus in an iteration.
    pub entropy_delta: f64,
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
    /// The number of tokens before `max_new_tokens` over which a penalty for long replies grows from 0 to
    /// `overlong_penalty` (DAPO); 0 is off.
    pub overlong_buffer: usize,
    /// The penalty of a reply of `max_new_tokens` tokens, if `overlong_buffer` is above 0.
    pub overlong_penalty: f64,
    /// Whether replies that did not end by themselves are left out of the policy loss. They still count in
    /// the baseline of their prompt.
    /// TRL: `mask_truncated_completions`.
    pub mask_truncated: bool,
    /// The peak learning rate of the critic. The peak of the policy is `[train] lr`.
    pub critic_lr: f64,
    /// Number of iterations at the start in which only the critic is trained.
    pub critic_warmup: u64,
    /// A sequence-classification folder, or a list of them, whose scores are added: a short form of
    /// `[[reward]]` with `kind = "model"` and the weight 1.
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

/// Where the KL penalty is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KlPlace {
    /// Subtracted from the reward of each token: PPO, RLOO, REINFORCE++.
    #[default]
    Reward,
    /// A term of the loss: GRPO.
    Loss,
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
    #[expect(clippy::too_many_lines, reason = "one line for each key")]
    fn default() -> Self {
        Self {
            iterations: 100,
            rollout_batch_size: 64,
            samples_per_prompt: 1,
            rollout_micro_batch_size: None,

            epochs: 4,
            mini_batch_size: 64,
            dynamic_sampling: false,
            max_refills: 10,
            staleness: 0,
            shuffle: Shuffle::Replies,
            max_new_tokens: 64,
            temperature: 1.0,
            old_logprobs: OldLogprobs::Trainer,

            kl_coef: 0.05,
            kl_target: None,
            kl_horizon: 10_000.0,
            kl_estimator: KlEstimator::K1,
            kl_clamp: 20.0,
            kl_place: KlPlace::Reward,
            kl_gradient: KlGradient::Direct,
            kl_importance: false,

            advantage_estimator: AdvantageEstimator::Gae,
            advantage_scale: AdvantageScale::Group,
            pass_k: None,
            gamma: 1.0,
            gae_lambda: 0.95,
            critic_gae_lambda: None,

            policy_loss: PolicyLossKind::Clip,

            clip_range: 0.2,
            clip_range_high: None,
            clip_ratio_c: None,
            log_ratio_clamp: 20.0,
            sapo_temperature: 1.0,
            sapo_temperature_negative: 1.05,
            loss_agg_mode: LossAggMode::TokenMean,
            loss_norm: None,
            correction: CorrectionMode::Off,
            correction_low: 0.5,
            correction_high: 2.0,
            clip_range_value: 0.2,
            vf_coef: 0.5,
            entropy_coef: 0.0,
            entropy_target: None,
            entropy_delta: 0.005,
            ptx_coef: 0.0,

            whiten_advantages: true,
            whiten_rewards: false,
            whiten_variance: Variance::Unbiased,
            whiten_epsilon: 1e-8,
            advantage_epsilon: 1e-6,
            score_slot: ScoreSlot::Eos,
            score_clip: None,
            missing_eos_penalty: None,
            overlong_buffer: 0,
            overlong_penalty: 1.0,
            mask_truncated: false,

            critic_lr: 1e-5,
            critic_warmup: 0,

            reward_model: Names::default(),
            reference_model: None,
            critic_model: None,
        }
    }
}

impl PpoConfig {
    /// The settings of rollouts, for an algorithm without advantages: everything else has its default, and
    /// there is neither a critic nor a KL penalty.
    #[must_use]
    pub fn rollout_settings(&self) -> Self {
        Self {
            iterations: self.iterations,
            rollout_batch_size: self.rollout_batch_size,
            samples_per_prompt: self.samples_per_prompt,
            rollout_micro_batch_size: self.rollout_micro_batch_size,
            epochs: self.epochs,
            mini_batch_size: self.mini_batch_size,
            dynamic_sampling: self.dynamic_sampling,
            max_refills: self.max_refills,
            staleness: self.staleness,
            shuffle: self.shuffle,
            max_new_tokens: self.max_new_tokens,
            temperature: self.temperature,
            score_clip: self.score_clip,
            missing_eos_penalty: self.missing_eos_penalty,
            overlong_buffer: self.overlong_buffer,
            overlong_penalty: self.overlong_penalty,
            reward_model: self.reward_model.clone(),
            reference_model: self.reference_model.clone(),
            kl_coef: 0.0,
            // This estimator needs neither a critic nor several replies to a prompt.
            advantage_estimator: AdvantageEstimator::ReinforcePlusPlus,
            ..Self::default()
        }
    }

    /// The same settings for an algorithm without rewards: those of rewards have their defaults.
    #[must_use]
    pub fn without_rewards(self) -> Self {
        let default = Self::default();
        Self {
            dynamic_sampling: default.dynamic_sampling,
            max_refills: default.max_refills,
            score_clip: default.score_clip,
            missing_eos_penalty: default.missing_eos_penalty,
            overlong_buffer: default.overlong_buffer,
            overlong_penalty: default.overlong_penalty,
            reward_model: default.reward_model,
            ..self
        }
    }

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

        let compares = self.advantage_estimator.compares_replies() || self.dynamic_sampling;
        if compares && self.samples_per_prompt < 2 {
            let wanted = "must be at least 2 for this advantage_estimator, and for dynamic_sampling, which compare the replies to a \
                 prompt";
            return refuse("ppo", "samples_per_prompt", &self.samples_per_prompt, wanted);
        }
        if let Some(pass_k) = self.pass_k.filter(|pass_k| !(2..=self.samples_per_prompt).contains(pass_k)) {
            let wanted = "must be at least 2, and at most samples_per_prompt";
            return refuse("ppo", "pass_k", &pass_k, wanted);
        }
        if self.staleness > 0 && self.old_logprobs == OldLogprobs::Sampler {
            let wanted = "the policy that samples is one update behind: take old_logprobs = \"trainer\"";
            return refuse("ppo", "staleness", &self.staleness, wanted);
        }
        if self.staleness > 1 {
            let wanted = "must be 0 or 1: a rollout is drawn one step ahead at most";
            return refuse("ppo", "staleness", &self.staleness, wanted);
        }
        if self.overlong_buffer >= self.max_new_tokens {
            let wanted = format!(
                "must be below max_new_tokens ({}), or the penalty begins before the first token; where a preset has set \
                 it for longer replies, set it too",
                self.max_new_tokens
            );
            return refuse("ppo", "overlong_buffer", &self.overlong_buffer, &wanted);
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

    /// Whether the log-probabilities of a reference are needed.
    pub fn has_reference(&self) -> bool {
        self.kl_coef > 0.0
    }

    /// The loss of the policy. The weight of the entropy bonus is the one of this update.
    pub fn policy_rule(&self, kl_coef: f64, entropy_coef: f64) -> PolicyRule {
        let kl = KlLoss {
            estimator: self.kl_estimator,
            clamp: self.kl_clamp,
            gradient: self.kl_gradient,
            importance: self.kl_importance,
        };
        PolicyRule {
            kind: self.policy_loss,
            clip: self.policy_clip(),
            sapo: [self.sapo_temperature, self.sapo_temperature_negative],
            kl: (self.has_reference() && self.kl_place == KlPlace::Loss).then_some((kl_coef, kl)),
            entropy_coef,
        }
    }

    /// How the rewards of the replies to a prompt become advantages.
    pub fn group_rule(&self) -> GroupRule {
        GroupRule {
            estimator: self.advantage_estimator,
            scale: self.advantage_scale,
            epsilon: self.advantage_epsilon,
            pass_k: self.pass_k.unwrap_or(self.samples_per_prompt),
        }
    }

    /// How the policy loss accounts for the policy that wrote a reply.
    pub fn correction(&self) -> Correction {
        Correction { mode: self.correction, low: self.correction_low, high: self.correction_high }
    }

    /// The penalty for long replies, if there is one.
    pub fn overlong(&self) -> Option<OverlongPenalty> {
        (self.overlong_buffer > 0).then_some(OverlongPenalty {
            max_new_tokens: self.max_new_tokens,
            buffer: self.overlong_buffer,
            penalty: self.overlong_penalty,
        })
    }

    /// How ratios of the policy are clipped.
    fn policy_clip(&self) -> PolicyClip {
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
        let critic_lambda = self.critic_gae_lambda.unwrap_or(self.gae_lambda);
        for (key, value) in
            [("gamma", self.gamma), ("gae_lambda", self.gae_lambda), ("critic_gae_lambda", critic_lambda)]
        {
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
            ("sapo_temperature", self.sapo_temperature),
            ("sapo_temperature_negative", self.sapo_temperature_negative),
            ("entropy_target", self.entropy_target.unwrap_or(1.0)),
            ("entropy_delta", self.entropy_delta),
            ("correction_low", self.correction_low),
            ("correction_high", self.correction_high),
        ] {
            positive("ppo", key, value)?;
        }
        for (key, value) in [("kl_clamp", self.kl_clamp), ("log_ratio_clamp", self.log_ratio_clamp)] {
            if value.is_nan() || value <= 0.0 {
                return refuse("ppo", key, &value, "must be more than 0; inf is off");
            }
        }
        if self.loss_norm == Some(0) {
            return refuse("ppo", "loss_norm", &0, "must be at least 1");
        }
        // The weight of a policy that has not changed is 1, and a bound beyond it would change every token.
        if self.correction != CorrectionMode::Off
            && !(self.correction_low <= 1.0 && self.correction_high >= 1.0)
        {
            let value = format!("{} and {}", self.correction_low, self.correction_high);
            let wanted = "1, the weight of an unchanged policy, must lie between them";
            return refuse("ppo", "correction_low and correction_high", &value, wanted);
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
            ("overlong_penalty", self.overlong_penalty),
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
