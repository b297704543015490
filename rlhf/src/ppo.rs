//! Proximal policy optimisation with four co-located models (Schulman et al. 2017, arXiv 1707.06347; Ouyang et al. 2022,
//! arXiv 2203.02155).
//!
//! ```text
//! each iteration
//!   sample a reply to each prompt                                    rollout
//!   log p of policy and reference, values, scores                    rollout::Judges
//!   r_t = -kl_coef KL_t + [t = last] score                           advantage::token_rewards
//!   A_t, R_t by GAE(gamma, lambda); A whitened                       advantage::gae, whiten
//!   for each epoch, for each mini-batch of a fresh permutation
//!     policy: max(-A rho, -A clip(rho))                              loss::policy
//!     critic: half the larger of two squares, one clipped            loss::value
//! ```
//! Policy and critic have an optimiser each. A loss is a sum over the reply tokens of a mini-batch divided by their number, so
//! micro-batches do not change it. Dropout is off in all four. Metrics are named as in TRL and explained in `docs/ppo.md`.
//!
//! A checkpoint is the folder of the policy, with that of the critic inside it under [`CRITIC_FOLDER`]; each
//! has the state of its optimiser. The seed of every draw is made from the seed of the run and the iteration,
//! so no generator has a state to save. Reference and reward model do not change: a resumed run loads them
//! from where they were.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use datasets::{PromptRow, Sampler, SamplerState, SftRow};
use gemini::{Engine, TrainConfig, checkpoint};
use models::batch::Batch;
use models::generate::{self, GenerationOptions};
use models::sample::SamplingParams;
use parallel::{ProcessGroups, Segmented};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use tch::Tensor;

use crate::advantage::{self, Advantages};
use crate::config::PpoConfig;
use crate::event::{Event, Metrics};
use crate::kl::KlController;
use crate::loss::{self, PolicyClip, PolicyStatistics, ValueStatistics};
use crate::rollout::{Experience, ExperienceBatch, PpoModels};
use crate::run::StageRun;
use crate::score::ScoreShaping;
use crate::whiten::whiten;
use crate::{Error, check, sft};

/// The folder of the critic inside a checkpoint.
pub const CRITIC_FOLDER: &str = "critic";

/// What a PPO stage learns from.
pub struct Data<'a> {
    /// Prompts to reply to.
    pub prompts: &'a [PromptRow],
    /// Whether the order of the prompts, and of the rows of the language-modelling term, is shuffled.
    pub shuffle: bool,
    /// Rows of the language-modelling term; may be empty when `ptx_coef` is 0.
    pub ptx: &'a [SftRow],
    /// Tokens that end a reply.
    pub stop_ids: &'a [i64],
    /// Turns ids into text, for samples that people read.
    pub decode: &'a dyn Fn(&[i64]) -> String,
}

/// One PPO stage.
pub struct Ppo<'a> {
    models: PpoModels<'a>,
    data: Data<'a>,
    config: &'a PpoConfig,
    train: &'a TrainConfig,
    policy: Engine,
    critic: Engine,
    groups: Arc<ProcessGroups>,
    controller: KlController,
    prompts: Sampler,
    ptx: Option<Sampler>,
    seed: u64,
}

/// What a checkpoint holds beside the models and their optimisers.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    /// Iterations that are done.
    iteration: u64,
    prompts: SamplerState,
    ptx: Option<SamplerState>,
    controller: KlController,
}

/// One reply with what the update needs of it.
struct Trajectory<'a> {
    experience: &'a Experience,
    /// Whitened if asked, one a token.
    advantages: Vec<f32>,
    /// One a slot.
    returns: Vec<f32>,
}

/// Sums over the updates of one iteration.
#[derive(Default)]
struct UpdateStats {
    steps: f64,
    policy_loss: f64,
    value_loss: f64,
    ptx_loss: f64,
    policy: PolicyStatistics,
    value: ValueStatistics,
    grad_norm: f64,
    critic_grad_norm: f64,
    lr: f64,
}

impl<'a> Ppo<'a> {
    /// Checks that the models fit together and prepares both optimisers.
    pub fn new(
        models: PpoModels<'a>,
        data: Data<'a>,
        config: &'a PpoConfig,
        train: &'a TrainConfig,
        seed: u64,
        groups: &Arc<ProcessGroups>,
    ) -> Result<Self, Error> {
        config.check()?;
        models.check()?;
        if data.prompts.is_empty() {
            return Err(Error::NoRows { stage: "ppo", fix: "look at [data] train and max_length" });
        }
        if config.ptx_coef > 0.0 && data.ptx.is_empty() {
            return Err(Error::NoRows {
                stage: "ppo's ptx term",
                fix: "give [data] ptx, or set [ppo] ptx_coef = 0",
            });
        }
        let replies = config.replies()?;
        let updates = (config.epochs * (replies / config.mini_batch_size)) as u64;
        let critic_train = TrainConfig { lr: config.critic_lr, ..train.clone() };
        let policy_iterations = config.iterations.saturating_sub(config.critic_warmup);
        Ok(Self {
            policy: Engine::new(models.policy.parameters(), train, policy_iterations * updates, groups)?,
            critic: Engine::new(
                models.critic.parameters(),
                &critic_train,
                config.iterations * updates,
                groups,
            )?,
            groups: Arc::clone(groups),
            controller: KlController::new(config.kl_coef, config.kl_target, config.kl_horizon),
            prompts: Sampler::new(data.prompts.len(), seed, data.shuffle)?,
            ptx: if config.ptx_coef > 0.0 {
                Some(Sampler::new(data.ptx.len(), seed, data.shuffle)?)
            } else {
                None
            },
            models,
            data,
            config,
            train,
            seed,
        })
    }

    /// Runs the iterations that are left and saves the policy.
    pub fn train(&mut self, run: &mut StageRun<'_>) -> Result<(), Error> {
        let total = self.config.iterations;
        let done = match &run.resume {
            Some(folder) => self.restore(folder)?,
            None => 0,
        };
        run.check_step(done, total)?;
        run.record(&Event::Started { stage: run.stage, total_steps: total, step: done })?;
        let mut tokens_since_log = 0;
        for iteration in done + 1..=total {
            let started = Instant::now();
            let mut experiences = self.generate_rollout(iteration)?;
            let rolled_out = started.elapsed().as_secs_f64();
            self.models.score_rollout(
                &mut experiences,
                self.train.micro_batch_size,
                self.config.temperature,
            )?;
            let experiences = self.groups.weight_replicas().all_gather_object(experiences)?;
            let (trajectories, mut metrics) = self.compute_advantages(&experiences)?;
            let scored_seconds = started.elapsed().as_secs_f64() - rolled_out;
            self.update(trajectories, iteration)?.push_metrics(&mut metrics);
            let seconds = started.elapsed().as_secs_f64();
            let tokens = experiences.iter().map(|experience| experience.ids.len()).sum::<usize>();
            tokens_since_log += tokens as u64;
            metrics.push("tokens", tokens as f64);
            metrics.push("timing/rollout", rolled_out);
            metrics.push("timing/score", scored_seconds);
            metrics.push("timing/update", seconds - rolled_out - scored_seconds);
            metrics.push("seconds", seconds);
            if run.should_log(iteration, total) {
                run.record_step(iteration, &metrics, std::mem::take(&mut tokens_since_log))?;
                self.log_sample(iteration, &experiences[0], run)?;
            }
            run.save_or_stop(iteration, &|folder| self.save(folder, iteration))?;
        }
        let policy = self.models.policy;
        run.finish(&|folder| Ok(policy.save(folder)?))
    }

    /// Writes policy, critic and the state of both optimisers after `iteration`.
    fn save(&self, folder: &Path, iteration: u64) -> Result<(), Error> {
        let critic = folder.join(CRITIC_FOLDER);
        if self.groups.is_rank_zero() {
            checkpoint::create_folder(&critic)?;
        }
        self.models.critic.save(&critic)?;
        checkpoint::save_state(&critic, &self.critic, &())?;

        let state = State {
            iteration,
            prompts: self.prompts.state(),
            ptx: self.ptx.as_ref().map(Sampler::state),
            controller: self.controller,
        };
        self.models.policy.save(folder)?;
        Ok(checkpoint::save_state(folder, &self.policy, &state)?)
    }

    /// Restores what [`Self::save`] wrote beside the models; gives the iterations that are done.
    fn restore(&mut self, folder: &Path) -> Result<u64, Error> {
        checkpoint::load_state::<()>(&folder.join(CRITIC_FOLDER), &mut self.critic)?;
        let state: State = checkpoint::load_state(folder, &mut self.policy)?;
        self.prompts = Sampler::resume(self.data.prompts.len(), state.prompts)?;
        if let Some(ptx) = &mut self.ptx {
            let problem = "its state has no order of the ptx rows: remove this checkpoint, and --resume goes on from the one before";
            let missing = || Error::RunFolder { path: folder.to_owned(), problem: problem.to_owned() };
            *ptx = Sampler::resume(self.data.ptx.len(), state.ptx.ok_or_else(missing)?)?;
        }
        self.controller = state.controller;
        Ok(state.iteration)
    }

    /// Samples `samples_per_prompt` replies to each of the next prompts; gives this process' share of them.
    fn generate_rollout(&mut self, iteration: u64) -> Result<Vec<Experience>, Error> {
        let config = self.config;
        let rows = self.prompts.next_batch(config.rollout_batch_size);
        let prompts: Vec<Vec<i64>> = rows
            .iter()
            .flat_map(|&row| {
                std::iter::repeat_n(&self.data.prompts[row].input_ids, config.samples_per_prompt)
            })
            .cloned()
            .collect();
        let share = self.groups.weight_replicas().shard_range(prompts.len());
        let prompts = &prompts[share.clone()];
        let options = GenerationOptions {
            sampling: SamplingParams { temperature: config.temperature, ..SamplingParams::default() },
            max_new_tokens: config.max_new_tokens,
            stop_ids: self.data.stop_ids.to_vec(),
            seed: derived_seed(self.seed, iteration, 0),
            request_offset: share.start as u64,
            max_num_seqs: config.rollout_micro_batch_size.unwrap_or(prompts.len()),
        };
        let completions =
            generate::generate(self.models.policy, prompts, &options, &mut |_, _| ControlFlow::Continue(()))?;
        let lengths: Vec<i64> = completions.iter().map(|completion| completion.ids.len() as i64).collect();
        let slots = config.score_slot.of_replies(&lengths, config.max_new_tokens as i64);
        let parts = prompts.iter().zip(&completions).zip(slots);
        Ok(parts.map(|((prompt, completion), slot)| Experience::new(prompt, completion, slot)).collect())
    }

    /// Computes token rewards, advantages and returns of a rollout, and the rollout metrics.
    fn compute_advantages<'e>(
        &mut self,
        experiences: &'e [Experience],
    ) -> Result<(Vec<Trajectory<'e>>, Metrics), Error> {
        let config = self.config;
        let lengths: Vec<i64> =
            experiences.iter().map(|experience| experience.reply().len() as i64).collect();
        let slots: Vec<_> = experiences.iter().map(|experience| experience.score_slot).collect();
        let kl = config.kl_estimator.estimate(
            &flatten(experiences, |experience| &experience.logprobs),
            &flatten(experiences, |experience| &experience.reference_logprobs),
        )?;
        let raw =
            Tensor::from_slice(&experiences.iter().map(|experience| experience.score).collect::<Vec<f32>>());
        let ended: Vec<bool> = experiences.iter().map(|experience| experience.stopped).collect();
        let scores = shaping(config).apply(&raw, &ended)?;
        let kl_coef = self.controller.coefficient();
        let mut rewards = advantage::token_rewards(&kl, &scores, &lengths, kl_coef, &slots)?;
        // What was earned, and not what whitening makes of it.
        let rlhf_reward = check::to_f64_vec(&rewards.rewards).iter().sum::<f64>();
        if config.whiten_rewards {
            rewards.rewards = whiten(&rewards.rewards, false)?;
        }
        let values = flatten(experiences, |experience| &experience.values);
        let Advantages { advantages, returns } =
            advantage::gae(&rewards, &values, config.gamma, config.gae_lambda)?;
        let mut of_tokens = advantages.index_select(0, &rewards.tokens);
        if config.whiten_advantages {
            of_tokens = whiten(&of_tokens, true)?;
        }
        let replies_count = experiences.len() as f64;
        let sequence_kl = check::to_f64_vec(&kl).iter().sum::<f64>() / replies_count;
        let mut metrics = Metrics::default();
        metrics.push("objective/scores", check::to_f64_vec(&raw).iter().sum::<f64>() / replies_count);
        metrics.push("objective/rlhf_reward", rlhf_reward / replies_count);
        metrics.push("objective/kl", sequence_kl);
        metrics.push("objective/kl_coef", kl_coef);
        rollout_metrics(experiences, &mut metrics);
        self.controller.update(sequence_kl, experiences.len())?;
        Ok((trajectories(experiences, &check::to_f64_vec(&of_tokens), &check::to_f64_vec(&returns)), metrics))
    }

    /// Several passes over a rollout, each in a fresh order.
    fn update(
        &mut self,
        mut trajectories: Vec<Trajectory<'_>>,
        iteration: u64,
    ) -> Result<UpdateStats, Error> {
        let mut updates = UpdateStats::default();
        for epoch in 0..self.config.epochs {
            let mut order = ChaCha8Rng::seed_from_u64(derived_seed(self.seed, iteration, 1 + epoch as u64));
            trajectories.shuffle(&mut order);
            for mini_batch in trajectories.chunks(self.config.mini_batch_size) {
                if iteration > self.config.critic_warmup {
                    self.update_policy(mini_batch, &mut updates)?;
                }
                self.update_critic(mini_batch, &mut updates)?;
                updates.steps += 1.0;
            }
        }
        updates.all_reduce(&self.groups)?;
        Ok(updates)
    }

    /// One optimiser step of the policy.
    fn update_policy(
        &mut self,
        mini_batch: &[Trajectory<'_>],
        updates: &mut UpdateStats,
    ) -> Result<(), Error> {
        let (config, policy) = (self.config, self.models.policy);
        let clip = PolicyClip {
            low: config.clip_range,
            high: config.clip_range_high.unwrap_or(config.clip_range),
            ..PolicyClip::default()
        };
        let tokens: usize = mini_batch.iter().map(|trajectory| trajectory.advantages.len()).sum();
        let ptx = self.next_ptx(mini_batch.len());
        let micro_batches = self.policy.split_micro_batches(mini_batch, self.train.micro_batch_size);
        let ptx_micro_batches = self.policy.split_micro_batches(&ptx, self.train.micro_batch_size);
        let aux_loss_coef = policy.config().router_aux_loss_coef() / num_tokens(mini_batch) as f64;
        let rows: Vec<ExperienceBatch> = micro_batches
            .iter()
            .map(|micro| experience_batch(micro, aux_loss_coef, policy.device()))
            .collect();
        let batches: Vec<&Batch> = rows.iter().map(|rows| &rows.batch).collect();
        updates.policy_loss += self.policy.accumulate(policy, &batches, |micro, hidden| {
            let (rows, micro) = (&rows[micro], micro_batches[micro]);
            let old = flatten(micro, |trajectory| &trajectory.experience.logprobs).to_device(policy.device());
            let advantages = flatten(micro, |trajectory| &trajectory.advantages).to_device(policy.device());
            let new = rows.logprobs(policy, hidden, config.temperature)?;
            let part = loss::policy(&new.logprobs, &old, &advantages, &clip)?;
            updates.policy += part.statistics;
            let bonus = match config.entropy_coef {
                0.0 => Tensor::from(0.0),
                weight => loss::entropy_bonus(&new.entropy, weight),
            };
            Ok::<_, Error>((part.loss + bonus) / tokens as f64)
        })?;
        if !ptx_micro_batches.is_empty() {
            let weight = config.ptx_coef / sft::num_labels(&ptx) as f64;
            let aux_loss_coef =
                config.ptx_coef * policy.config().router_aux_loss_coef() / sft::num_tokens(&ptx) as f64;
            let (loss, _) =
                sft::accumulate(policy, &ptx_micro_batches, [weight, aux_loss_coef], &mut self.policy)?;
            updates.ptx_loss += loss / config.ptx_coef;
        }
        let report = self.policy.step()?;
        updates.grad_norm += report.grad_norm;
        updates.lr = report.lr;
        Ok(())
    }

    /// The next `count` rows of the language-modelling term; none without that term.
    fn next_ptx(&mut self, count: usize) -> Vec<Vec<&'a SftRow>> {
        let Some(sampler) = &mut self.ptx else { return Vec::new() };
        let rows: &'a [SftRow] = self.data.ptx;
        sampler.next_batch(count).into_iter().map(|row| vec![&rows[row]]).collect()
    }

    /// One optimiser step of the critic.
    fn update_critic(
        &mut self,
        mini_batch: &[Trajectory<'_>],
        updates: &mut UpdateStats,
    ) -> Result<(), Error> {
        let (config, critic) = (self.config, self.models.critic);
        let slots: usize = mini_batch.iter().map(|trajectory| trajectory.returns.len()).sum();
        let micro_batches = self.critic.split_micro_batches(mini_batch, self.train.micro_batch_size);
        let aux_loss_coef = critic.config().router_aux_loss_coef() / num_tokens(mini_batch) as f64;
        let rows: Vec<ExperienceBatch> = micro_batches
            .iter()
            .map(|micro| experience_batch(micro, aux_loss_coef, critic.device()))
            .collect();
        let batches: Vec<&Batch> = rows.iter().map(|rows| &rows.batch).collect();
        updates.value_loss += self.critic.accumulate(critic, &batches, |micro, hidden| {
            let (rows, micro) = (&rows[micro], micro_batches[micro]);
            let old = flatten(micro, |trajectory| &trajectory.experience.values).to_device(critic.device());
            let returns = flatten(micro, |trajectory| &trajectory.returns).to_device(critic.device());
            let new = rows.values(critic, hidden)?;
            let part = loss::value(&new, &old, &returns, Some(config.clip_range_value))?;
            updates.value += part.statistics;
            Ok::<_, Error>(part.loss * (config.vf_coef / slots as f64))
        })?;
        updates.critic_grad_norm += self.critic.step()?.grad_norm;
        Ok(())
    }

    fn log_sample(&self, step: u64, experience: &Experience, run: &mut StageRun<'_>) -> Result<(), Error> {
        let (prompt, reply) = experience.ids.split_at(experience.prompt_length);
        let (prompt, reply) = ((self.data.decode)(prompt), (self.data.decode)(reply));
        let score = f64::from(experience.score);
        run.record(&Event::Sample { step, prompt: &prompt, reply: &reply, score })
    }
}

impl UpdateStats {
    /// Adds up what the processes that share the updates have seen.
    fn all_reduce(&mut self, groups: &ProcessGroups) -> Result<(), Error> {
        let losses = [self.policy_loss, self.value_loss, self.ptx_loss];
        [self.policy_loss, self.value_loss, self.ptx_loss] = groups.loss_group().all_reduce_sum(losses)?;
        let all = groups.loss_group().all_gather_object(vec![(self.policy, self.value)])?;
        (self.policy, self.value) = Default::default();
        for (policy, value) in all {
            self.policy += policy;
            self.value += value;
        }
        Ok(())
    }

    fn push_metrics(&self, metrics: &mut Metrics) {
        let (steps, tokens, slots) =
            (self.steps.max(1.0), self.policy.tokens.max(1.0), self.value.tokens.max(1.0));
        metrics.push("loss", self.policy_loss / steps);
        metrics.push("loss/policy_avg", self.policy_loss / steps);
        metrics.push("loss/value_avg", self.value_loss / steps);
        metrics.push("loss/ptx_avg", self.ptx_loss / steps);
        metrics.push("policy/approxkl_avg", self.policy.half_squared_log_ratio / tokens);
        metrics.push("policy/clipfrac_avg", self.policy.clipped / tokens);
        metrics.push("val/clipfrac_avg", self.value.clipped / slots);
        metrics.push("val/ratio", self.policy.ratio / tokens);
        metrics.push("val/explained_variance", self.value.explained_variance().unwrap_or(f64::NAN));
        metrics.push("grad_norm", self.grad_norm / steps);
        metrics.push("critic_grad_norm", self.critic_grad_norm / steps);
        metrics.push("lr", self.lr);
    }
}

/// A seed for one purpose of one iteration.
fn derived_seed(seed: u64, iteration: u64, purpose: u64) -> u64 {
    let mut generator = ChaCha8Rng::seed_from_u64(seed);
    generator.set_stream(iteration);
    generator.set_word_pos(u128::from(purpose) * 2);
    rand::Rng::random(&mut generator)
}

fn shaping(config: &PpoConfig) -> ScoreShaping {
    ScoreShaping { clip: config.score_clip, missing_eos_penalty: config.missing_eos_penalty }
}

/// Lengths, ends, entropy, and how far sampler and trainer disagree.
fn rollout_metrics(experiences: &[Experience], metrics: &mut Metrics) {
    let count = experiences.len() as f64;
    let tokens = experiences.iter().map(|experience| experience.reply().len()).sum::<usize>().max(1) as f64;
    let entropy: f64 =
        experiences.iter().flat_map(|experience| &experience.entropy).map(|&value| f64::from(value)).sum();
    let stopped = experiences.iter().filter(|experience| experience.stopped).count() as f64;
    let mismatch = experiences
        .iter()
        .flat_map(|experience| experience.logprobs.iter().zip(&experience.sampler_logprobs))
        .map(|(trainer, sampler)| f64::from((trainer - sampler).abs()))
        .fold(0.0, f64::max);
    metrics.push("objective/entropy", entropy / tokens);
    metrics.push("response_length/mean", tokens / count);
    metrics.push("truncated_rate", 1.0 - stopped / count);
    metrics.push("sampling/logp_difference/max", mismatch);
}

/// Cuts flat numbers into replies.
fn trajectories<'a>(
    experiences: &'a [Experience],
    advantages: &[f64],
    returns: &[f64],
) -> Vec<Trajectory<'a>> {
    let (mut tokens, mut slots) = (advantages.iter(), returns.iter());
    let narrow = |values: &mut std::slice::Iter<'_, f64>, count| {
        values.take(count).map(|&value| value as f32).collect()
    };
    experiences
        .iter()
        .map(|experience| Trajectory {
            experience,
            advantages: narrow(&mut tokens, experience.reply().len()),
            returns: narrow(&mut slots, experience.num_slots()),
        })
        .collect()
}

/// Tokens of prompts and replies.
fn num_tokens(trajectories: &[Trajectory<'_>]) -> usize {
    trajectories.iter().map(|trajectory| trajectory.experience.ids.len()).sum::<usize>().max(1)
}

fn experience_batch(micro: &[Trajectory<'_>], aux_loss_coef: f64, device: tch::Device) -> ExperienceBatch {
    let experiences: Vec<&Experience> = micro.iter().map(|trajectory| trajectory.experience).collect();
    let mut rows = ExperienceBatch::new(&experiences, device);
    rows.batch.aux_loss_coef = aux_loss_coef;
    rows
}

/// One part of every item, end to end.
fn flatten<T>(items: impl IntoIterator<Item = T>, part: impl Fn(&T) -> &Vec<f32>) -> Tensor {
    let mut flat: Vec<f32> = Vec::new();
    for item in items {
        flat.extend_from_slice(part(&item));
    }
    Tensor::from_slice(&flat)
}
