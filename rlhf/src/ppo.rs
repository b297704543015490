//! Proximal policy optimization (PPO) with policy, reference, critic and reward models (Schulman et al. 2017,
//! arXiv 1707.06347; Ouyang et al. 2022, arXiv 2203.02155), and the algorithms that compare the replies to a
//! prompt in place of a critic (GRPO, RLOO, REINFORCE++ and kin).
//!
//! ```text
//! each iteration of on_policy
//!   prepare
//!     score_tokens        log p of policy and reference, values                       rollout::score
//!     Estimates::new      rewards of tokens, advantages and returns                   ppo::estimate
//!   update                mini-batches of a fresh permutation in each epoch
//!     update_policy       all mini-batches: the policy loss                           loss::PolicyRule
//!     Critic::update      afterwards, all mini-batches: the clipped value loss        loss::value_loss
//! ```
//! The algorithms differ in settings alone: the estimator of advantages, the policy loss, the mean over
//! tokens and the place of the KL penalty.
//!
//! Policy and critic have one optimizer each. Each loss is a sum over the tokens (policy) or the slots
//! (critic) of a mini-batch, with weights from the counts of the full mini-batch. The split into
//! micro-batches therefore does not change the loss. Replies without a reward are in no mini-batch. Dropout
//! is off in all models. Metrics have the names of TRL; `docs/grpo.md` explains them.
//!
//! A checkpoint contains the model folder of the critic under [`CRITIC_FOLDER`], with the state of its
//! optimizer.

mod critic;
mod estimate;
mod metrics;
mod mini_batch;
mod ptx;

use std::path::Path;
use std::sync::Arc;

use datasets::{Sampler, SamplerState};
use gemini::{Engine, TrainConfig, checkpoint};
use models::batch::Batch;
use models::causal_lm::CausalLm;
use models::head::{self, LogprobsOptions, RowSums};
use parallel::ProcessGroups;
use serde::{Deserialize, Serialize};
use tch::Tensor;

pub use self::estimate::Estimates;

use self::critic::Critic;
use self::metrics::{UpdateStats, push_model_metrics};
use self::mini_batch::{MiniBatch, PolicyInputs};
use self::ptx::Ptx;
use crate::Error;
use crate::config::PpoConfig;
use crate::event::Metrics;
use crate::kl::KlController;
use crate::loss::{EntropyController, PolicyLoss, PolicyRule, PolicyStatistics, PolicyTokens};
use crate::on_policy::{self, Data, Learner, OnPolicy};
use crate::rollout::RolloutModels;
use crate::rollout::batch::Reads;
use crate::rollout::data::Rollout;
use crate::rollout::score::Pass;
use crate::rollout_sampler::Sampled;
use crate::sft::Sft;
use crate::trainer::Objective;

/// The name of the critic folder inside a checkpoint.
pub const CRITIC_FOLDER: &str = "critic";

/// The algorithm: the models, their optimizers and the coefficients that it adapts.
pub struct Ppo<'a> {
    models: RolloutModels<'a>,
    config: &'a PpoConfig,
    train: &'a TrainConfig,
    policy_engine: Engine,
    critic: Option<Critic<'a>>,
    groups: &'a Arc<ProcessGroups>,
    kl: KlController,
    entropy: EntropyController,
    /// The ptx term. `None` when `ptx_coef` is 0.
    ptx: Option<Ptx<'a>>,
    seed: u64,
}

/// What a checkpoint holds besides models, optimizers and the sampler.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PpoState {
    ptx: Option<SamplerState>,
    controller: KlController,
    /// `None` in checkpoints of earlier versions.
    #[serde(default)]
    entropy: Option<EntropyController>,
}

impl<'a> Ppo<'a> {
    /// Checks the configuration, the models and the data, and creates both optimizers.
    pub fn new(
        models: RolloutModels<'a>,
        data: Data<'a>,
        config: &'a PpoConfig,
        train: &'a TrainConfig,
        seed: u64,
        groups: &'a Arc<ProcessGroups>,
    ) -> Result<OnPolicy<'a, Self>, Error> {
        config.check()?;
        models.check()?;
        let has_critic = config.advantage_estimator.has_critic();
        assert_eq!(
            models.critic.is_some(),
            has_critic,
            "a critic is given if and only if the estimator is GAE"
        );
        assert_eq!(
            models.reference.is_some(),
            config.has_reference(),
            "a reference is given for a KL penalty"
        );
        if config.ptx_coef > 0.0 && data.ptx.is_empty() {
            return Err(Error::NoRows {
                stage: "ppo's ptx term",
                fix: "give [data] ptx, or set [ppo] ptx_coef = 0",
            });
        }

        let policy_steps = config.policy_steps(config.iterations);
        let learner = Self {
            policy_engine: Engine::new(models.policy, train, policy_steps, groups, models.memory)?,
            critic: models
                .critic
                .map(|model| Critic::new(model, config, train, groups, models.memory))
                .transpose()?,
            groups,
            kl: KlController::new(config.kl_coef, config.kl_target, config.kl_horizon),
            entropy: EntropyController::new(config.entropy_coef, config.entropy_target, config.entropy_delta),
            ptx: if config.ptx_coef > 0.0 {
                let objective = Sft::new(models.policy, data.ptx, &[], None)?;
                let sampler = Sampler::new(data.ptx.len(), seed, data.shuffle)?;
                Some(Ptx { objective, sampler, coef: config.ptx_coef })
            } else {
                None
            },
            models,
            config,
            train,
            seed,
        };
        OnPolicy::new(learner, data, (config, train), seed, groups)
    }
}

impl<'a> Learner<'a> for Ppo<'a> {
    /// The estimates, and the loss with the coefficients of this iteration.
    type TrainingData = (Estimates, PolicyRule);
    type State = PpoState;

    fn models(&self) -> &RolloutModels<'a> {
        &self.models
    }

    fn engine(&self) -> &Engine {
        &self.policy_engine
    }

    fn engine_mut(&mut self) -> &mut Engine {
        &mut self.policy_engine
    }

    /// Computes log-probabilities and values, and of them the rewards of tokens, advantages and returns of
    /// the full rollout. Then updates the coefficients of the next iteration.
    fn prepare(
        &mut self,
        sampled: &mut Sampled,
        pass: &mut Pass<'_>,
        metrics: &mut Metrics,
    ) -> Result<(Estimates, PolicyRule), Error> {
        let (config, rollout) = (self.config, &mut sampled.rollout);
        self.models.score_tokens(pass, rollout, config.temperature, config.old_logprobs)?;
        push_model_metrics(rollout, metrics);
        // The update has the coefficients of this iteration, as the rewards of tokens do.
        let rule = config.policy_rule(self.kl.coefficient(), self.entropy.applied());
        let estimates = Estimates::new(sampled, config, self.kl.coefficient(), metrics)?;
        if config.entropy_target.is_some() {
            metrics.push("objective/entropy_coef", self.entropy.applied());
        }

        self.kl.update(estimates.sequence_kl, sampled.rollout.len())?;
        if let Some(entropy) = metrics.get("objective/entropy") {
            self.entropy.update(entropy)?;
        }
        Ok((estimates, rule))
    }

    /// Runs all steps of the policy before all steps of the critic, so that only one of the two models has to
    /// be in memory. This is exact, because neither depends on the steps of the other.
    fn update(
        &mut self,
        rollout: &Rollout,
        (estimates, rule): &(Estimates, PolicyRule),
        iteration: u64,
        metrics: &mut Metrics,
    ) -> Result<f64, Error> {
        let layout = rollout.layout();
        let mini_batches = on_policy::mini_batches(self.config, rollout, self.seed, iteration);
        let (steps, lr) = (mini_batches.len() as f64, self.policy_engine.next_lr());
        let mut updates = UpdateStats { steps, lr, ..UpdateStats::default() };
        if iteration > self.config.critic_warmup() {
            for replies in &mini_batches {
                let counted: Vec<usize> =
                    replies.iter().copied().filter(|&reply| estimates.is_counted[reply]).collect();
                // Without a reply that counts there is nothing to learn.
                if !counted.is_empty() {
                    let batch = MiniBatch { rollout, layout: &layout, estimates, replies: &counted };
                    self.update_policy(&batch, rule, &mut updates)?;
                }
            }
        }
        if let Some(critic) = &mut self.critic {
            let (config, micro_batch_size) = (self.config, self.train.micro_batch_size);
            for replies in &mini_batches {
                let scored: Vec<usize> =
                    replies.iter().copied().filter(|&reply| !estimates.is_excluded[reply]).collect();
                if !scored.is_empty() {
                    let batch = MiniBatch { rollout, layout: &layout, estimates, replies: &scored };
                    critic.update(&batch, config, micro_batch_size, &mut updates)?;
                }
            }
        }
        updates.all_reduce(self.groups)?;
        updates.push_metrics(self.critic.is_some(), rule.kl.is_some(), metrics);
        Ok(updates.tokens)
    }

    fn state(&self) -> PpoState {
        PpoState {
            ptx: self.ptx.as_ref().map(|ptx| ptx.sampler.state()),
            controller: self.kl,
            entropy: Some(self.entropy),
        }
    }

    fn restore(&mut self, state: PpoState, folder: &Path) -> Result<(), Error> {
        if let Some(ptx) = &mut self.ptx {
            let problem = "its state.json has no sampler state for the ptx rows: remove this checkpoint, and --resume continues from the previous one";
            let missing = || Error::RunFolder { path: folder.to_owned(), problem: problem.to_owned() };
            ptx.sampler = Sampler::resume(ptx.objective.num_examples(), state.ptx.ok_or_else(missing)?)?;
        }
        self.kl = state.controller;
        if let Some(entropy) = state.entropy {
            self.entropy = entropy;
        }
        Ok(())
    }

    fn save_others(&self, folder: &Path) -> Result<(), Error> {
        let Some(critic) = &self.critic else { return Ok(()) };
        let folder = folder.join(CRITIC_FOLDER);
        if self.groups.is_rank_zero() {
            checkpoint::create_folder(&folder)?;
        }
        critic.model.save(&folder)?;
        Ok(checkpoint::save_state(&folder, &critic.engine, &())?)
    }

    fn restore_others(&mut self, folder: &Path) -> Result<(), Error> {
        let Some(critic) = &mut self.critic else { return Ok(()) };
        Ok(checkpoint::load_state::<()>(&folder.join(CRITIC_FOLDER), &mut critic.engine)?)
    }

    fn check_others(&self) -> Result<(), Error> {
        let Some(critic) = &self.critic else { return Ok(()) };
        Ok(critic.engine.check_replicas(critic.model)?)
    }
}

impl Ppo<'_> {
    /// Runs one optimizer step of the policy on a mini-batch.
    fn update_policy(
        &mut self,
        mini_batch: &MiniBatch<'_>,
        rule: &PolicyRule,
        updates: &mut UpdateStats,
    ) -> Result<(), Error> {
        let (config, policy, micro_batch_size) =
            (self.config, self.models.policy, self.train.micro_batch_size);
        // These counts cover the full mini-batch: every micro-batch on every rank weighs its tokens by them.
        let counts = mini_batch.counts();
        let micro_batches = self.policy_engine.split_micro_batches(mini_batch.replies, micro_batch_size);
        let batches = mini_batch.collate(&micro_batches, Reads::Tokens, policy.decoder());
        let contexts: Vec<&Batch> = batches.iter().map(|batch| &batch.batch).collect();
        // All rows of the step are split before its first micro-batch runs.
        let ptx_micro_batches = self
            .ptx
            .as_mut()
            .map(|ptx| {
                let (count, engine) = (config.mini_batch_size, &mut self.policy_engine);
                ptx.next_micro_batches(count, micro_batch_size, engine, self.groups)
            })
            .transpose()?;

        updates.policy_loss += self.policy_engine.accumulate(policy, &contexts, |index, hidden| {
            updates.tokens += contexts[index].num_real_tokens() as f64;
            let inputs = mini_batch.policy_inputs(micro_batches[index], config, &counts, policy.device());
            let states = (hidden, &batches[index].targets);
            let (loss, statistics) = policy_loss(policy, states, &inputs, rule, config.temperature)?;
            updates.policy += statistics;
            Ok::<_, Error>(loss)
        })?;

        // The ptx loss accumulates into the same gradients, with as many rows as the mini-batch has replies.
        if let (Some(ptx), Some(micro_batches)) = (&self.ptx, ptx_micro_batches) {
            updates.ptx_loss += ptx.accumulate_ptx_loss(&micro_batches, &mut self.policy_engine)?;
        }

        let report = self.policy_engine.step()?;
        updates.grad_norm += report.grad_norm;
        updates.lr = report.lr;
        Ok(())
    }
}

/// The policy loss of a micro-batch, and its statistics. `states` are the last hidden states of the policy,
/// `[M, hidden]`, and the token that each of them predicts.
fn policy_loss(
    policy: &CausalLm,
    (hidden, targets): (&Tensor, &Tensor),
    inputs: &PolicyInputs,
    rule: &PolicyRule,
    temperature: f64,
) -> Result<(Tensor, PolicyStatistics), Error> {
    let PolicyInputs { lengths, old, advantages, weights, correction, reference } = inputs;
    // The loss of a token is computed chunk by chunk, so what it needs of its whole reply comes first.
    let sequence = if rule.needs_sequences() {
        let logprobs = head::logprobs(hidden, policy.head(), targets, temperature)?.logprobs;
        rule.sequence_log_ratios(&logprobs, old, advantages, lengths)?
    } else {
        None
    };
    let options = LogprobsOptions { temperature, entropy: rule.entropy_coef != 0.0 };
    let sums = head::token_loss(hidden, policy.head(), targets, options, &mut |rows, new| {
        let of = |values: &Option<Tensor>| values.as_ref().map(|values| rows.of(values));
        let [old, advantages, weights] = [old, advantages, weights].map(|values| rows.of(values));
        let (correction, reference) = (of(correction), of(reference));
        let PolicyLoss { loss, statistics } = rule.loss(&PolicyTokens {
            logprobs: &new.logprobs,
            old: &old,
            advantages: &advantages,
            weights: &weights,
            correction: correction.as_ref(),
            reference: reference.as_ref(),
            entropy: new.entropy.as_ref(),
            sequence: of(&sequence).as_ref(),
        })?;
        Ok::<_, Error>(RowSums { loss, statistics: Some(statistics) })
    })?;
    let statistics = sums.statistics.as_ref().map(PolicyStatistics::from).unwrap_or_default();
    Ok((sums.loss, statistics))
}
