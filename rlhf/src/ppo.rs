//! Learning from rollouts, with co-located models: proximal policy optimization (PPO) with policy, reference,
//! critic and reward models (Schulman et al. 2017, arXiv 1707.06347; Ouyang et al. 2022, arXiv 2203.02155), and
//! the algorithms that compare the replies to a prompt in place of a critic (GRPO, RLOO, REINFORCE++ and kin).
//!
//! ```text
//! Ppo::train, each iteration
//!   sample              prompts, replies, and one reward for each reply             rollout_sampler
//!   score_tokens        log p of policy and reference, values                       rollout::score
//!   estimate            rewards of tokens, advantages and returns                   ppo::estimate
//!   update              mini-batches of a fresh permutation in each epoch
//!     update_policy     all mini-batches: the policy loss                           loss::PolicyRule
//!     Critic::update    afterwards, all mini-batches: the clipped value loss        loss::value_loss
//! ```
//! The algorithms differ in settings alone: the estimator of advantages, the policy loss, the mean over tokens
//! and the place of the KL penalty.
//!
//! Policy and critic have one optimizer each. Each loss is a sum over the tokens (policy) or the slots (critic)
//! of a mini-batch, with weights from the counts of the full mini-batch. The split into micro-batches therefore
//! does not change the loss. Replies without a reward are in no mini-batch. Dropout is off in all models.
//! Metrics have the names of TRL; `docs/grpo.md` explains them.
//!
//! A checkpoint is the model folder of the policy, which contains the model folder of the critic under
//! [`CRITIC_FOLDER`]. Both contain the state of their optimizer. No random generator has a state that must be
//! saved, because every seed is derived from the seed of the run and the iteration. The reference and the
//! reward models do not change during a run, so a resumed run loads them from their original folders.

mod critic;
mod estimate;
mod metrics;
mod mini_batch;
mod ptx;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use datasets::{PromptRow, Sampler, SamplerState, SftRow};
use gemini::{Engine, TrainConfig, checkpoint};
use models::batch::Batch;
use models::head::{self, LogprobsOptions, RowSums};
use parallel::ProcessGroups;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use self::critic::Critic;
use self::estimate::Estimates;
use self::metrics::{UpdateStats, push_rollout_metrics};
use self::mini_batch::MiniBatch;
use self::ptx::Ptx;
use crate::Error;
use crate::config::{PpoConfig, Shuffle};
use crate::episodes::{Generation, Turns};
use crate::event::{Event, Metrics};
use crate::kl::KlController;
use crate::loss::{EntropyController, PolicyLoss, PolicyRule, PolicyStatistics, PolicyTokens};
use crate::monitor;
use crate::reward_function::RewardFunction;
use crate::rollout::RolloutModels;
use crate::rollout::batch::Reads;
use crate::rollout::data::Rollout;
use crate::rollout::score::Pass;
use crate::rollout_sampler::{self, RolloutSampler, Sampled, SamplerProgress};
use crate::run::{Phase, StageRun};
use crate::sft::Sft;
use crate::trainer::Objective;

/// The name of the critic folder inside a checkpoint.
pub const CRITIC_FOLDER: &str = "critic";
/// The number of replies that are logged as text at a step: of the lowest reward to the highest.
const SAMPLES: usize = 3;

/// What a stage that learns from rollouts gets besides its models.
pub struct Data<'a> {
    /// The prompts that the policy replies to.
    pub prompts: &'a [PromptRow],
    /// Whether prompts, and rows of the language-modelling term, are shuffled in each epoch.
    pub shuffle: bool,
    /// Rows of the language-modelling term. May be empty when `ptx_coef` is 0.
    pub ptx: &'a [SftRow],
    /// The tokens that end a turn.
    pub stop_ids: &'a [i64],
    /// Decodes ids into text, for scorers, environments and the samples that people read.
    pub decode: &'a dyn Fn(&[i64]) -> String,
    /// The reward of a reply.
    pub rewards: RewardFunction,
    /// What answers the policy, if an episode has several turns.
    pub turns: Option<Turns<'a>>,
}

/// One stage that learns from rollouts: the models, their optimizers and the position in the data.
pub struct Ppo<'a> {
    models: RolloutModels<'a>,
    config: &'a PpoConfig,
    train: &'a TrainConfig,
    policy_engine: Engine,
    critic: Option<Critic<'a>>,
    groups: &'a Arc<ProcessGroups>,
    kl: KlController,
    entropy: EntropyController,
    sampler: RolloutSampler<'a>,
    decode: &'a dyn Fn(&[i64]) -> String,
    /// The ptx term. `None` when `ptx_coef` is 0.
    ptx: Option<Ptx<'a>>,
    seed: u64,
    /// The hash of the prompts and the rows of the language-modelling term.
    content_hash: String,
}

/// The state of a checkpoint besides the models and their optimizers.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    /// Number of completed iterations.
    iteration: u64,
    /// The progress of the rollouts. `None` in checkpoints of earlier versions, which have `prompts`.
    #[serde(default)]
    sampler: Option<SamplerProgress>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    prompts: Option<SamplerState>,
    ptx: Option<SamplerState>,
    controller: KlController,
    /// `None` in checkpoints of earlier versions.
    #[serde(default)]
    entropy: Option<EntropyController>,
    /// The hash of the prompts and the rows of the language-modelling term. `None` in checkpoints of earlier
    /// versions.
    #[serde(default)]
    content_hash: Option<String>,
    /// Number of iterations of the full run. `None` in checkpoints of earlier versions.
    #[serde(default)]
    total_steps: Option<u64>,
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
    ) -> Result<Self, Error> {
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
        if data.prompts.is_empty() {
            return Err(Error::NoRows { stage: "ppo", fix: "check [data] train and max_length" });
        }
        if config.ptx_coef > 0.0 && data.ptx.is_empty() {
            return Err(Error::NoRows {
                stage: "ppo's ptx term",
                fix: "give [data] ptx, or set [ppo] ptx_coef = 0",
            });
        }

        let content_hash = content_hash(&data);
        let generation = Generation {
            policy: models.policy,
            rows: data.prompts,
            stop_ids: data.stop_ids,
            max_new_tokens: config.max_new_tokens,
            temperature: config.temperature,
            max_num_seqs: config.rollout_micro_batch_size,
            score_slot: config.score_slot,
            decode: data.decode,
            groups,
        };

        let policy_steps = config.policy_steps(config.iterations);
        Ok(Self {
            policy_engine: Engine::new(models.policy, train, policy_steps, groups, models.memory)?,
            critic: models
                .critic
                .map(|model| Critic::new(model, config, train, groups, models.memory))
                .transpose()?,
            groups,
            kl: KlController::new(config.kl_coef, config.kl_target, config.kl_horizon),
            entropy: EntropyController::new(config.entropy_coef, config.entropy_target, config.entropy_delta),
            sampler: RolloutSampler::new(config, generation, data.turns, data.rewards, seed, data.shuffle)?,
            ptx: if config.ptx_coef > 0.0 {
                let objective = Sft::new(models.policy, data.ptx, &[], None)?;
                let sampler = Sampler::new(data.ptx.len(), seed, data.shuffle)?;
                Some(Ptx { objective, sampler, coef: config.ptx_coef })
            } else {
                None
            },
            decode: data.decode,
            models,
            config,
            train,
            seed,
            content_hash,
        })
    }

    /// Runs the remaining iterations, starting from the checkpoint of a resumed run, and saves the policy.
    pub fn train(&mut self, run: &mut StageRun<'_>) -> Result<(), Error> {
        let total = self.config.iterations;
        let completed = match run.resume.clone() {
            Some(folder) => self.restore(&folder, run)?,
            None => 0,
        };
        run.check_step(completed)?;
        run.begin(total, completed)?;

        let mut tokens_since_log = 0;
        for iteration in completed + 1..=total {
            let started = Instant::now();
            (run.progress)(Phase::Rollout, iteration - 1);
            run.begin_step()?;

            // 1. Rollout: the model replicas share the prompts and the replies, and each rank has all replies
            // with their rewards afterwards.
            let groups = Arc::clone(self.groups);
            let mut pass = Pass::new(&groups, self.train.micro_batch_size);
            let mut sampled = self.sample(iteration, &mut pass, run)?;
            let rollout_seconds = started.elapsed().as_secs_f64();
            (run.progress)(Phase::Score, iteration - 1);
            let (config, rollout) = (self.config, &mut sampled.rollout);
            self.models.score_tokens(&mut pass, rollout, config.temperature, config.old_logprobs)?;

            // 2. Advantages: every rank computes them from all replies, because whitening and the KL
            // controller need the statistics of the full rollout. The update has the coefficients of this
            // iteration, as the rewards of tokens do.
            let rule = config.policy_rule(self.kl.coefficient(), self.entropy.applied());
            let (estimates, mut metrics) = self.estimate(&sampled)?;
            let scored_seconds = started.elapsed().as_secs_f64() - rollout_seconds;

            // 3. Update: `epochs` passes over the rollout.
            (run.progress)(Phase::Update, iteration - 1);
            let updates = self.update(&sampled.rollout, &estimates, &rule, iteration)?;
            updates.push_metrics(self.critic.is_some(), rule.kl.is_some(), &mut metrics);
            // The scorers have worked beside the update. The next iteration begins with these scores, and a
            // checkpoint holds them.
            self.sampler.complete_ahead()?;
            self.models.memory.end_step();
            let seconds = started.elapsed().as_secs_f64();

            let tokens = sampled.rollout.ids.len();
            tokens_since_log += tokens as u64;
            let [scored_tokens] = self.groups.model_replicas().all_reduce_sum([pass.tokens as f64])?;
            metrics.push("tokens", tokens as f64);
            metrics.push("units/score", scored_tokens / tokens as f64);
            metrics.push("units/update", self.units_per_trained_token() * updates.tokens / tokens as f64);
            metrics.push("timing/rollout", rollout_seconds);
            metrics.push("timing/score", scored_seconds);
            metrics.push("timing/update", seconds - rollout_seconds - scored_seconds);
            metrics.push("seconds", seconds);

            if run.should_log(iteration, total) {
                run.record_step(iteration, &metrics, std::mem::take(&mut tokens_since_log))?;
                self.log_samples(iteration, &sampled, run)?;
            }
            run.save_or_stop(iteration, total, &|folder| self.save(folder, iteration))?;
            if run.should_ask_tasks(iteration, total)? {
                self.policy_engine.finish_updates()?;
                run.ask_tasks(iteration)?;
            }
        }

        self.check_replicas()?;
        let policy = self.models.policy;
        run.finish(total, &|folder| Ok(policy.save(folder)?))
    }

    /// Draws the rollout of an iteration, and tells the user why replies have no reward.
    fn sample(
        &mut self,
        iteration: u64,
        pass: &mut Pass<'_>,
        run: &mut StageRun<'_>,
    ) -> Result<Sampled, Error> {
        let mut messages = Vec::new();
        let sampled = self.sampler.next(iteration, &self.models, pass, &mut messages);
        for message in &messages {
            run.record(&Event::Message(message))?;
        }
        sampled
    }

    /// Checks that the ranks hold the same copies of all models.
    fn check_replicas(&self) -> Result<(), Error> {
        self.policy_engine.check_replicas(self.models.policy)?;
        if let Some(critic) = &self.critic {
            critic.engine.check_replicas(critic.model)?;
        }
        if let Some(reference) = self.models.reference {
            gemini::check_replicas(reference, self.groups)?;
        }
        let mut rewards = self.models.reward_models.iter();
        Ok(rewards.try_for_each(|reward| gemini::check_replicas(*reward, self.groups))?)
    }

    /// Writes the policy, the critic and the state of both optimizers after `iteration`.
    fn save(&self, folder: &Path, iteration: u64) -> Result<(), Error> {
        if let Some(critic) = &self.critic {
            let folder = folder.join(CRITIC_FOLDER);
            if self.groups.is_rank_zero() {
                checkpoint::create_folder(&folder)?;
            }
            critic.model.save(&folder)?;
            checkpoint::save_state(&folder, &critic.engine, &())?;
        }

        let state = State {
            iteration,
            sampler: Some(self.sampler.progress()),
            prompts: None,
            ptx: self.ptx.as_ref().map(|ptx| ptx.sampler.state()),
            controller: self.kl,
            entropy: Some(self.entropy),
            content_hash: Some(self.content_hash.clone()),
            total_steps: Some(self.config.iterations),
        };
        self.models.policy.save(folder)?;
        checkpoint::save_state(folder, &self.policy_engine, &state)?;
        self.sampler.save_ahead(folder)
    }

    /// Restores the state that [`Self::save`] wrote, apart from the models, and returns the number of
    /// completed iterations.
    fn restore(&mut self, folder: &Path, run: &mut StageRun<'_>) -> Result<u64, Error> {
        if let Some(critic) = &mut self.critic {
            checkpoint::load_state::<()>(&folder.join(CRITIC_FOLDER), &mut critic.engine)?;
        }
        let state: State = checkpoint::load_state(folder, &mut self.policy_engine)?;
        run.check_content(state.content_hash.as_deref(), &self.content_hash)?;
        run.check_total_steps(state.total_steps, state.iteration, self.config.iterations, |iterations| {
            self.policy_engine.next_lr_of(self.config.policy_steps(iterations))
        })?;
        let progress = state.sampler.or_else(|| state.prompts.map(SamplerProgress::at));
        let problem = "its state.json has no position in the prompts: remove this checkpoint, and --resume continues from the previous one";
        let missing = || Error::RunFolder { path: folder.to_owned(), problem: problem.to_owned() };
        self.sampler.restore(progress.ok_or_else(missing)?, folder)?;
        if let Some(ptx) = &mut self.ptx {
            let problem = "its state.json has no sampler state for the ptx rows: remove this checkpoint, and --resume continues from the previous one";
            let missing = || Error::RunFolder { path: folder.to_owned(), problem: problem.to_owned() };
            ptx.sampler = Sampler::resume(ptx.objective.num_examples(), state.ptx.ok_or_else(missing)?)?;
        }
        self.kl = state.controller;
        if let Some(entropy) = state.entropy {
            self.entropy = entropy;
        }
        Ok(state.iteration)
    }

    /// Computes the rewards of tokens, advantages and returns of the full rollout, and the rollout metrics.
    /// Then updates the coefficients of the next iteration.
    fn estimate(&mut self, sampled: &Sampled) -> Result<(Estimates, Metrics), Error> {
        let mut metrics = Metrics::default();
        let estimates = Estimates::new(sampled, self.config, self.kl.coefficient(), &mut metrics)?;
        push_rollout_metrics(&sampled.rollout, &mut metrics);
        self.sampler.push_metrics(sampled, &mut metrics);
        metrics::push_monitors(sampled, &mut metrics);
        if self.config.entropy_target.is_some() {
            metrics.push("objective/entropy_coef", self.entropy.applied());
        }

        self.kl.update(estimates.sequence_kl, sampled.rollout.len())?;
        if let Some(entropy) = metrics.get("objective/entropy") {
            self.entropy.update(entropy)?;
        }
        Ok((estimates, metrics))
    }

    /// Runs `epochs` passes over the rollout, each in a new order. Runs all steps of the policy before all
    /// steps of the critic, so that only one of the two models has to be in memory. This is exact, because
    /// neither depends on the steps of the other.
    fn update(
        &mut self,
        rollout: &Rollout,
        estimates: &Estimates,
        rule: &PolicyRule,
        iteration: u64,
    ) -> Result<UpdateStats, Error> {
        let layout = rollout.layout();
        let mini_batches: Vec<Vec<usize>> = self
            .orders(rollout.len(), iteration)
            .iter()
            .flat_map(|order| order.chunks(self.config.mini_batch_size))
            .map(|replies| {
                // The order within a mini-batch does not change its loss. Replies to the same prompt stand
                // together, so that they share its tokens.
                let mut replies = replies.to_vec();
                if self.config.samples_per_prompt > 1 {
                    replies.sort_by_key(|&reply| rollout.groups[reply]);
                }
                replies
            })
            .collect();

        let mut updates = UpdateStats { steps: mini_batches.len() as f64, ..UpdateStats::default() };
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
        Ok(updates)
    }

    /// Returns the order of the replies in each epoch of an iteration. Each epoch shuffles the order of the
    /// previous epoch.
    fn orders(&self, num_replies: usize, iteration: u64) -> Vec<Vec<usize>> {
        let group_size = match self.config.shuffle {
            Shuffle::Replies => 1,
            Shuffle::Prompts => self.config.samples_per_prompt,
        };
        let mut groups: Vec<usize> = (0..num_replies / group_size).collect();
        let shuffled = |epoch: usize| {
            let seed = rollout_sampler::shuffle_seed(self.seed, iteration, epoch);
            groups.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
            groups.iter().flat_map(|group| group * group_size..(group + 1) * group_size).collect()
        };
        (0..self.config.epochs).map(shuffled).collect()
    }

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

        let options = LogprobsOptions { temperature: config.temperature, entropy: rule.entropy_coef != 0.0 };
        updates.policy_loss += self.policy_engine.accumulate(policy, &contexts, |index, hidden| {
            let targets = &batches[index].targets;
            updates.tokens += contexts[index].num_real_tokens() as f64;
            let inputs = mini_batch.policy_inputs(micro_batches[index], config, &counts, policy.device());
            // The loss of a token is computed chunk by chunk, so what it needs of its whole reply comes first.
            let sequence = if rule.needs_sequences() {
                let logprobs = head::logprobs(hidden, policy.head(), targets, config.temperature)?.logprobs;
                let lengths = mini_batch.lengths(micro_batches[index]);
                rule.sequence_log_ratios(&logprobs, &inputs.old, &inputs.advantages, &lengths)?
            } else {
                None
            };
            let sums = head::token_loss(hidden, policy.head(), targets, options, &mut |rows, new| {
                let of = |values: &Option<tch::Tensor>| values.as_ref().map(|values| rows.of(values));
                let [old, advantages, weights] =
                    [&inputs.old, &inputs.advantages, &inputs.weights].map(|values| rows.of(values));
                let (correction, reference) = (of(&inputs.correction), of(&inputs.reference));
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
            updates.policy += sums.statistics.as_ref().map(PolicyStatistics::from).unwrap_or_default();
            Ok::<_, Error>(sums.loss)
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

    /// The work of a trained token in units, of which a forward pass is 1 and a backward pass 2: recomputed
    /// activations take another forward pass.
    fn units_per_trained_token(&self) -> f64 {
        if self.train.activation_checkpointing { 4.0 } else { 3.0 }
    }

    /// Records some replies as text with their rewards, from the lowest reward to the highest.
    fn log_samples(&self, step: u64, sampled: &Sampled, run: &mut StageRun<'_>) -> Result<(), Error> {
        let totals = sampled.totals();
        for reply in monitor::by_quantile(&totals, SAMPLES) {
            let (prompt, text) = rollout_sampler::as_text(&sampled.rollout, reply, self.decode);
            let score = totals[reply].unwrap_or(f64::NAN);
            run.record(&Event::Sample { step, prompt: &prompt, reply: &text, score })?;
        }
        Ok(())
    }
}

/// The hash of the prompts and the rows of the language-modelling term.
fn content_hash(data: &Data<'_>) -> String {
    let ids = data.prompts.iter().map(|row| &row.input_ids);
    let ptx = data.ptx.iter().flat_map(|row| [&row.input_ids, &row.labels]);
    datasets::rows::content_hash(ids.chain(ptx))
}
