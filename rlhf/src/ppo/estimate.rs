//! From the rewards of replies to what the losses read: rewards of tokens, advantages, returns and importance
//! weights of a full rollout.

use crate::Error;
use crate::advantage::{self, AdvantageEstimator, Advantages, Replies, TokenRewards};
use crate::config::{KlPlace, PpoConfig};
use crate::correction::{self, CorrectionMode};
use crate::event::Metrics;
use crate::rollout::data::Rollout;
use crate::rollout_sampler::Sampled;
use crate::whiten::whiten;

/// What the losses read of a rollout.
#[derive(Debug)]
pub struct Estimates {
    /// The advantage of each token, `[N]`.
    pub(super) advantages: Vec<f32>,
    /// The return of each slot, `[S]`; empty without a critic.
    pub(super) returns: Vec<f32>,
    /// The importance weight of each token, `[N]`; empty without a correction.
    pub(super) correction: Vec<f32>,
    /// Whether a reply has no reward, `[B]`.
    pub(super) is_excluded: Vec<bool>,
    /// Whether a reply is in the policy loss, `[B]`.
    pub(super) is_counted: Vec<bool>,
    /// The KL divergence from the reference, summed over a reply, the mean over the replies.
    pub(super) sequence_kl: f64,
}

impl Estimates {
    /// Computes the estimates, and adds the metrics of rewards and divergence. `kl_coef` is the weight of the
    /// KL penalty in this iteration.
    pub(super) fn new(
        sampled: &Sampled,
        config: &PpoConfig,
        kl_coef: f64,
        metrics: &mut Metrics,
    ) -> Result<Self, Error> {
        let rollout = &sampled.rollout;
        let is_excluded = sampled.excluded();
        let replies = Replies { lengths: &rollout.lengths, groups: &rollout.groups, excluded: &is_excluded };

        // Rewards of tokens: the KL penalty at each token, and the shaped reward in one slot of each reply.
        let kl = kl_of_tokens(rollout, config)?;
        let scores: Vec<f64> = sampled.scores.iter().map(|score| score.unwrap_or(0.0)).collect();
        let in_reward = if config.kl_place == KlPlace::Reward { kl_coef } else { 0.0 };
        let mut rewards = advantage::token_rewards(
            &kl,
            &scores,
            &rollout.turn_rewards,
            &replies,
            in_reward,
            &rollout.score_slots,
        )?;
        push_reward_metrics(sampled, &rewards, metrics);
        let sequence_kl = kl.iter().sum::<f64>() / rollout.len() as f64;
        if config.has_reference() {
            metrics.push("objective/kl", sequence_kl);
            metrics.push("objective/kl_coef", kl_coef);
        }

        let (advantages, returns) = if config.advantage_estimator.has_critic() {
            with_critic(&mut rewards, &replies, rollout, config)?
        } else {
            (without_critic(sampled, &rewards, &replies, config)?, Vec::new())
        };

        let correction = if config.correction == CorrectionMode::Off {
            Vec::new()
        } else {
            let (policy, sampler) = (&rollout.logprobs, &rollout.sampler_logprobs);
            let corrected = correction::correct(policy, sampler, &replies, config.correction())?;
            corrected.statistics.push_metrics(metrics);
            narrow(&corrected.weights)
        };
        let stays =
            |(&is_excluded, &stopped): (&bool, &bool)| !is_excluded && (stopped || !config.mask_truncated);
        Ok(Self {
            advantages: narrow(&advantages),
            returns: narrow(&returns),
            correction,
            is_counted: is_excluded.iter().zip(&rollout.stopped).map(stays).collect(),
            is_excluded,
            sequence_kl,
        })
    }
}

/// The estimate of the KL divergence at each token, `[N]`; zeros without a reference.
fn kl_of_tokens(rollout: &Rollout, config: &PpoConfig) -> Result<Vec<f64>, Error> {
    if rollout.reference_logprobs.is_empty() {
        return Ok(vec![0.0; rollout.logprobs.len()]);
    }
    let [logprobs, reference] = [&rollout.logprobs, &rollout.reference_logprobs].map(|values| widen(values));
    config.kl_estimator.estimate_f64(&logprobs, &reference, config.kl_clamp)
}

/// Advantages of tokens, `[N]`, and returns of slots, `[S]`, by GAE. Returns come from the advantages before
/// whitening. Slots without a token train only the critic.
fn with_critic(
    rewards: &mut TokenRewards,
    replies: &Replies<'_>,
    rollout: &Rollout,
    config: &PpoConfig,
) -> Result<(Vec<f64>, Vec<f64>), Error> {
    let counted = spread_flags(replies.excluded, &rewards.lengths);
    if config.whiten_rewards && counted.contains(&true) {
        rewards.rewards = whiten(&rewards.rewards, Some(&counted), false, config.whitening())?;
    }
    let critic_lambda = config.critic_gae_lambda.unwrap_or(config.gae_lambda);
    let Advantages { advantages, returns } =
        advantage::gae(rewards, &widen(&rollout.values), config.gamma, config.gae_lambda, critic_lambda)?;
    let advantages: Vec<f64> = rewards.token_slots.iter().map(|&slot| advantages[slot]).collect();
    Ok((whitened(advantages, replies, config)?, returns))
}

/// Advantages of tokens, `[N]`, without a critic.
fn without_critic(
    sampled: &Sampled,
    rewards: &TokenRewards,
    replies: &Replies<'_>,
    config: &PpoConfig,
) -> Result<Vec<f64>, Error> {
    if config.advantage_estimator.has_token_rewards() {
        let returns = advantage::returns_to_go(rewards, config.gamma);
        let advantages = rewards.token_slots.iter().map(|&slot| returns[slot]).collect();
        return whitened(advantages, replies, config);
    }
    let totals = rewards.totals();
    let greedy = sampled.greedy.as_deref();
    let by_reply = advantage::reply_advantages(&totals, greedy, replies, &config.group_rule())?;
    let advantages = advantage::spread(&by_reply, replies.lengths);
    if config.advantage_estimator == AdvantageEstimator::ReinforcePlusPlusBaseline {
        return whitened(advantages, replies, config);
    }
    Ok(advantages)
}

/// Whitens the advantages of the tokens of replies that have a reward, if that is asked for.
fn whitened(mut advantages: Vec<f64>, replies: &Replies<'_>, config: &PpoConfig) -> Result<Vec<f64>, Error> {
    let counted = spread_flags(replies.excluded, replies.lengths);
    if config.whiten_advantages && counted.contains(&true) {
        advantages = whiten(&advantages, Some(&counted), true, config.whitening())?;
    }
    for (advantage, _) in advantages.iter_mut().zip(&counted).filter(|(_, counted)| !**counted) {
        *advantage = 0.0;
    }
    Ok(advantages)
}

/// Adds the mean reward of the replies that have one, shaped and after the KL penalty.
fn push_reward_metrics(sampled: &Sampled, rewards: &TokenRewards, metrics: &mut Metrics) {
    // A rollout without any reward has no mean.
    if sampled.rewards.totals.iter().all(Option::is_none) {
        return;
    }
    let totals = rewards.totals();
    let scored = totals.iter().zip(&sampled.scores).filter(|(_, score)| score.is_some());
    let (sum, count) = scored.fold((0.0, 0.0), |(sum, count), (total, _)| (sum + total, count + 1.0));
    metrics.push("objective/rlhf_reward", sum / count);
}

/// For each number of some replies, whether its reply counts. `lengths` has the numbers of each reply.
fn spread_flags(excluded: &[bool], lengths: &[usize]) -> Vec<bool> {
    excluded
        .iter()
        .zip(lengths)
        .flat_map(|(&excluded, &length)| std::iter::repeat_n(!excluded, length))
        .collect()
}

fn narrow(values: &[f64]) -> Vec<f32> {
    values.iter().map(|&value| value as f32).collect()
}

fn widen(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}
