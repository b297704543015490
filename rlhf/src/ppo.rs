//! Proximal policy optimization with co-located models: policy, reference, critic and reward models (Schulman
//! et al. 2017, arXiv 1707.06347; Ouyang et al. 2022, arXiv 2203.02155). GRPO and RLOO are the same loop
//! without a critic: only the advantages are computed in another way.
//!
//! ```text
//! Ppo::train, each iteration
//!   generate_rollout      sample replies to the prompts of the iteration
//!   score_rollout         log p of policy and reference, values, one score per reply
//!   compute_advantages    r_t = -kl_coef KL_t + [t = slot of the score] score    advantage::token_rewards
//!                         A_t, R_t by GAE(gamma, lambda); A whitened             advantage::gae, whiten
//!   update                mini-batches of a fresh permutation in each epoch
//!     update_policy       all mini-batches: clipped surrogate loss               loss::policy_loss
//!     Critic::update      afterwards, all mini-batches: clipped value loss       loss::value_loss
//! ```
//!
//! Without a critic, `A_t` comes from the replies to the same prompt
//! (`advantage::group_relative_advantages`), and `Critic::update` does not run.
//!
//! Policy and critic have one optimizer each. Each loss is a sum over the reply tokens (policy) or the slots
//! (critic) of a mini-batch, divided by their number in the full mini-batch. The split into micro-batches
//! therefore does not change the loss. Dropout is off in all models. Metrics have the names of TRL;
//! `docs/ppo.md` explains them.
//!
//! A checkpoint is the model folder of the policy, which contains the model folder of the critic under
//! [`CRITIC_FOLDER`]. Both contain the state of their optimizer. No random generator has a state that must be
//! saved, because every seed is derived from the seed of the run and the iteration. The reference and the
//! reward models do not change during a run, so a resumed run loads them from their original folders.

mod critic;
mod metrics;
mod ptx;
mod trajectory;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use datasets::{PromptRow, Sampler, SamplerState, SftRow};
use gemini::{Engine, TrainConfig, checkpoint};
use inference::generate::{self, GenerationOptions, GeneratorOptions, RequestIds};
use inference::sample::SamplingParams;
use models::batch::Batch;
use models::head::{self, LogprobsOptions, RowSums};
use parallel::{ProcessGroups, upload};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use tch::{Device, Tensor};

use self::critic::Critic;
use self::metrics::{UpdateStats, push_rollout_metrics};
use self::ptx::Ptx;
use self::trajectory::{Trajectory, collate, flatten, num_tokens, trajectories};
use crate::advantage::{self, Advantages};
use crate::config::{PpoConfig, Shuffle};
use crate::event::{Event, Metrics};
use crate::kl::KlController;
use crate::loss::{self, LossAggMode, PolicyLoss, PolicyStatistics};
use crate::rollout::{Experience, PpoModels, Reads};
use crate::run::{Phase, StageRun};
use crate::score::ScoreShaping;
use crate::sft::Sft;
use crate::whiten::whiten;
use crate::{Error, check};

/// The name of the critic folder inside a checkpoint.
pub const CRITIC_FOLDER: &str = "critic";

/// The training data of a PPO stage.
pub struct Data<'a> {
    /// The prompts that the policy replies to.
    pub prompts: &'a [PromptRow],
    /// Whether prompts, and rows of the language-modelling term, are shuffled in each epoch.
    pub shuffle: bool,
    /// Rows of the language-modelling term. May be empty when `ptx_coef` is 0.
    pub ptx: &'a [SftRow],
    /// The tokens that end a reply.
    pub stop_ids: &'a [i64],
    /// Decodes ids into text, for the samples that are logged for people.
    pub decode: &'a dyn Fn(&[i64]) -> String,
}

/// One PPO stage: the models, their optimizers and the position in the data.
pub struct Ppo<'a> {
    models: PpoModels<'a>,
    data: Data<'a>,
    config: &'a PpoConfig,
    train: &'a TrainConfig,
    policy_engine: Engine,
    critic: Option<Critic<'a>>,
    groups: Arc<ProcessGroups>,
    controller: KlController,
    prompts: Sampler,
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
    prompts: SamplerState,
    ptx: Option<SamplerState>,
    controller: KlController,
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
        models: PpoModels<'a>,
        data: Data<'a>,
        config: &'a PpoConfig,
        train: &'a TrainConfig,
        seed: u64,
        groups: &Arc<ProcessGroups>,
    ) -> Result<Self, Error> {
        config.check()?;
        models.check()?;
        assert_eq!(
            models.critic.is_some(),
            config.advantage_estimator.has_critic(),
            "a critic is given if and only if the estimator is GAE"
        );
        assert!(!models.reward_models.is_empty(), "PPO needs a reward model");
        if data.prompts.is_empty() {
            return Err(Error::NoRows { stage: "ppo", fix: "check [data] train and max_length" });
        }
        if config.ptx_coef > 0.0 && data.ptx.is_empty() {
            return Err(Error::NoRows {
                stage: "ppo's ptx term",
                fix: "give [data] ptx, or set [ppo] ptx_coef = 0",
            });
        }

        let ids = data.prompts.iter().map(|row| &row.input_ids);
        let ptx = data.ptx.iter().flat_map(|row| [&row.input_ids, &row.labels]);
        let content_hash = datasets::rows::content_hash(ids.chain(ptx));

        Ok(Self {
            policy_engine: Engine::new(
                models.policy,
                train,
                config.policy_steps(config.iterations),
                groups,
                models.memory,
            )?,
            critic: models
                .critic
                .map(|model| Critic::new(model, config, train, groups, models.memory))
                .transpose()?,
            groups: Arc::clone(groups),
            controller: KlController::new(config.kl_coef, config.kl_target, config.kl_horizon),
            prompts: Sampler::new(data.prompts.len(), seed, data.shuffle)?,
            ptx: if config.ptx_coef > 0.0 {
                let objective = Sft::new(models.policy, data.ptx, &[], None)?;
                let sampler = Sampler::new(data.ptx.len(), seed, data.shuffle)?;
                Some(Ptx { objective, sampler, coef: config.ptx_coef })
            } else {
                None
            },
            models,
            data,
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

            // 1. Rollout: the model replicas share the prompts. Each one generates replies to its prompts
            // and runs all models on them.
            let mut experiences = self.generate_rollout(iteration)?;
            let rollout_seconds = started.elapsed().as_secs_f64();
            (run.progress)(Phase::Score, iteration - 1);
            let scored_tokens = self.models.score_rollout(
                &mut experiences,
                self.train.micro_batch_size,
                self.config.temperature,
                self.config.old_logprobs,
            )?;

            // 2. Advantages: every rank computes them from all replies, because whitening and the KL
            // controller need the statistics of the full rollout.
            let experiences = self.groups.model_replicas().all_gather_object(experiences)?;
            let (trajectories, mut metrics) = self.compute_advantages(&experiences)?;
            let scored_seconds = started.elapsed().as_secs_f64() - rollout_seconds;

            // 3. Update: `epochs` passes over the rollout.
            (run.progress)(Phase::Update, iteration - 1);
            let updates = self.update(&trajectories, iteration)?;
            updates.push_metrics(self.critic.is_some(), &mut metrics);
            self.models.memory.end_step();
            let seconds = started.elapsed().as_secs_f64();

            let tokens = experiences.iter().map(|experience| experience.ids.len()).sum::<usize>();
            tokens_since_log += tokens as u64;
            let [scored_tokens] = self.groups.model_replicas().all_reduce_sum([scored_tokens as f64])?;
            metrics.push("tokens", tokens as f64);
            metrics.push("units/score", scored_tokens / tokens as f64);
            metrics.push("units/update", self.units_per_trained_token() * updates.tokens / tokens as f64);
            metrics.push("timing/rollout", rollout_seconds);
            metrics.push("timing/score", scored_seconds);
            metrics.push("timing/update", seconds - rollout_seconds - scored_seconds);
            metrics.push("seconds", seconds);

            if run.should_log(iteration, total) {
                run.record_step(iteration, &metrics, std::mem::take(&mut tokens_since_log))?;
                self.log_sample(iteration, &experiences[0], run)?;
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

    /// Checks that the ranks hold the same copies of all models.
    fn check_replicas(&self) -> Result<(), Error> {
        self.policy_engine.check_replicas(self.models.policy)?;
        if let Some(critic) = &self.critic {
            critic.engine.check_replicas(critic.model)?;
        }
        gemini::check_replicas(self.models.reference, &self.groups)?;
        let mut rewards = self.models.reward_models.iter();
        Ok(rewards.try_for_each(|reward| gemini::check_replicas(*reward, &self.groups))?)
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
            prompts: self.prompts.state(),
            ptx: self.ptx.as_ref().map(|ptx| ptx.sampler.state()),
            controller: self.controller,
            content_hash: Some(self.content_hash.clone()),
            total_steps: Some(self.config.iterations),
        };
        self.models.policy.save(folder)?;
        Ok(checkpoint::save_state(folder, &self.policy_engine, &state)?)
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
        self.prompts = Sampler::resume(self.data.prompts.len(), state.prompts)?;
        if let Some(ptx) = &mut self.ptx {
            let problem = "its state.json has no sampler state for the ptx rows: remove this checkpoint, and --resume continues from the previous one";
            let missing = || Error::RunFolder { path: folder.to_owned(), problem: problem.to_owned() };
            ptx.sampler = Sampler::resume(self.data.ptx.len(), state.ptx.ok_or_else(missing)?)?;
        }
        self.controller = state.controller;
        Ok(state.iteration)
    }

    /// Samples `samples_per_prompt` replies to each of the next `rollout_batch_size` prompts. Returns the
    /// replies of this rank's share of the prompts.
    /// verl: `generate_sequences`; OpenRLHF, trlX: first half of `make_experience`.
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

        // Each weight replica generates the replies to one contiguous range of prompts. `request_ids` tie
        // the random draws to the global index of a request, so they do not depend on how the prompts are
        // split.
        let share = self.groups.model_replicas().shard_range(prompts.len());
        let prompts = &prompts[share.clone()];

        let options = GenerationOptions {
            sampling: SamplingParams { temperature: config.temperature, ..SamplingParams::default() },
            max_new_tokens: config.max_new_tokens,
            stop_ids: self.data.stop_ids.to_vec(),
            seed: derived_seed(self.seed, iteration, 0),
            request_ids: RequestIds::From(share.start as u64),
        };
        let policy = self.models.policy;
        let max_num_seqs = config.rollout_micro_batch_size.unwrap_or(prompts.len());
        let room = GeneratorOptions::for_prompts(policy, prompts, config.max_new_tokens, max_num_seqs);
        let on_token = &mut |_: usize, _: i64| ControlFlow::Continue(());
        let completions = generate::generate(policy, prompts, &room, &options, on_token)?;

        let lengths: Vec<i64> = completions.iter().map(|completion| completion.ids.len() as i64).collect();
        let score_slots = config.score_slot.of_replies(&lengths, config.max_new_tokens as i64);
        let replies = prompts.iter().zip(&completions).zip(score_slots);
        Ok(replies
            .map(|((prompt, completion), score_slot)| Experience::new(prompt, completion, score_slot))
            .collect())
    }

    /// Computes token rewards, advantages and returns of the full rollout, and the rollout metrics. Then
    /// updates the KL coefficient of the next iteration.
    fn compute_advantages<'e>(
        &mut self,
        experiences: &'e [Experience],
    ) -> Result<(Vec<Trajectory<'e>>, Metrics), Error> {
        let config = self.config;
        let lengths: Vec<i64> =
            experiences.iter().map(|experience| experience.reply().len() as i64).collect();
        let score_slots: Vec<_> = experiences.iter().map(|experience| experience.score_slot).collect();

        // Token rewards: the KL penalty at each token, and the shaped score in one slot of each reply.
        let kl = config.kl_estimator.estimate(
            &upload(&flatten(experiences, |experience| &experience.logprobs), Device::Cpu),
            &upload(&flatten(experiences, |experience| &experience.reference_logprobs), Device::Cpu),
            config.kl_clamp,
        )?;

        let raw =
            upload(&experiences.iter().map(|experience| experience.score).collect::<Vec<f32>>(), Device::Cpu);
        let has_eos: Vec<bool> = experiences.iter().map(|experience| experience.stopped).collect();
        let scores = shaping(config).apply(&raw, &has_eos)?;
        let kl_coef = self.controller.coefficient();
        let mut rewards = advantage::token_rewards(&kl, &scores, &lengths, kl_coef, &score_slots)?;
        // This metric is taken before whitening, which would change its scale.
        let rlhf_reward = check::to_f64_vec(&rewards.rewards).iter().sum::<f64>();
        if config.whiten_rewards && config.advantage_estimator.has_critic() {
            rewards.rewards = whiten(&rewards.rewards, false, config.whitening())?;
        }

        let (advantages, returns) = if config.advantage_estimator.has_critic() {
            // Returns come from the advantages before whitening. Slots without a token train only the critic.
            let values = upload(&flatten(experiences, |experience| &experience.values), Device::Cpu);
            let Advantages { advantages, returns } =
                advantage::gae(&rewards, &values, config.gamma, config.gae_lambda)?;
            let advantages = advantages.index_select(0, &rewards.token_slots);
            let whitened = if config.whiten_advantages {
                whiten(&advantages, true, config.whitening())?
            } else {
                advantages
            };
            (whitened, check::to_f64_vec(&returns))
        } else {
            let (size, estimator) = (config.samples_per_prompt, config.advantage_estimator);
            let epsilon = config.advantage_epsilon;
            (advantage::group_relative_advantages(&rewards, size, estimator, epsilon)?, Vec::new())
        };

        let replies_count = experiences.len() as f64;
        let sequence_kl = check::to_f64_vec(&kl).iter().sum::<f64>() / replies_count;
        let mut metrics = Metrics::default();
        metrics.push("objective/scores", check::to_f64_vec(&raw).iter().sum::<f64>() / replies_count);
        metrics.push("objective/rlhf_reward", rlhf_reward / replies_count);
        metrics.push("objective/kl", sequence_kl);
        metrics.push("objective/kl_coef", kl_coef);
        push_rollout_metrics(experiences, &mut metrics);

        self.controller.update(sequence_kl, experiences.len())?;
        Ok((trajectories(experiences, &check::to_f64_vec(&advantages), &returns), metrics))
    }

    /// Runs `epochs` passes over the rollout, each in a new order. Runs all steps of the policy before all
    /// steps of the critic, so that only one of the two models has to be in memory. This is exact, because
    /// neither depends on the steps of the other.
    fn update(&mut self, trajectories: &[Trajectory<'_>], iteration: u64) -> Result<UpdateStats, Error> {
        let orders = self.orders(trajectories.len(), iteration);
        let mini_batches: Vec<Vec<&Trajectory<'_>>> = orders
            .iter()
            .flat_map(|order| order.chunks(self.config.mini_batch_size))
            .map(|indices| {
                // The order within a mini-batch does not change its loss. Replies to the same prompt stand
                // together, so that they share its tokens.
                let mut indices = indices.to_vec();
                if self.config.samples_per_prompt > 1 {
                    indices.sort_by_key(|index| index / self.config.samples_per_prompt);
                }
                indices.into_iter().map(|index| &trajectories[index]).collect()
            })
            .collect();

        let mut updates = UpdateStats { steps: mini_batches.len() as f64, ..UpdateStats::default() };
        if iteration > self.config.critic_warmup() {
            mini_batches.iter().try_for_each(|mini_batch| self.update_policy(mini_batch, &mut updates))?;
        }
        if let Some(critic) = &mut self.critic {
            let (config, micro_batch_size) = (self.config, self.train.micro_batch_size);
            mini_batches.iter().try_for_each(|mini_batch| {
                critic.update(mini_batch, config, micro_batch_size, &mut updates)
            })?;
        }
        updates.all_reduce(&self.groups)?;
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
            let seed = derived_seed(self.seed, iteration, 1 + epoch as u64);
            groups.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
            groups.iter().flat_map(|group| group * group_size..(group + 1) * group_size).collect()
        };
        (0..self.config.epochs).map(shuffled).collect()
    }

    /// Runs one optimizer step of the policy on `mini_batch`.
    fn update_policy(
        &mut self,
        mini_batch: &[&Trajectory<'_>],
        updates: &mut UpdateStats,
    ) -> Result<(), Error> {
        let (config, policy, micro_batch_size) =
            (self.config, self.models.policy, self.train.micro_batch_size);
        let clip = config.policy_clip();
        // These counts cover the full mini-batch: every micro-batch on every rank divides its loss by them.
        let tokens: usize = mini_batch.iter().map(|trajectory| trajectory.advantages.len()).sum();
        let divisor = config.loss_agg_mode.divisor(tokens, mini_batch.len(), config.max_new_tokens);
        let micro_batches = self.policy_engine.split_micro_batches(mini_batch, micro_batch_size);
        let experience_batches =
            collate(&micro_batches, num_tokens(mini_batch), Reads::Tokens, policy.decoder());
        let batches: Vec<&Batch> =
            experience_batches.iter().map(|experience_batch| &experience_batch.batch).collect();
        // All rows of the step are split before its first micro-batch runs.
        let ptx_micro_batches = self
            .ptx
            .as_mut()
            .map(|ptx| {
                let (count, engine) = (mini_batch.len(), &mut self.policy_engine);
                ptx.next_micro_batches(count, micro_batch_size, engine, &self.groups)
            })
            .transpose()?;

        updates.policy_loss += self.policy_engine.accumulate(policy, &batches, |index, hidden| {
            let (experience_batch, micro_batch) = (&experience_batches[index], micro_batches[index]);
            updates.tokens += experience_batch.batch.num_real_tokens() as f64;
            let old =
                upload(&flatten(micro_batch, |trajectory| &trajectory.experience.logprobs), policy.device());
            let advantages =
                upload(&flatten(micro_batch, |trajectory| &trajectory.advantages), policy.device());
            let weights = token_weights(micro_batch, config.loss_agg_mode, policy.device());
            let options =
                LogprobsOptions { temperature: config.temperature, entropy: config.entropy_coef != 0.0 };
            let targets = &experience_batch.targets;
            let sums = head::token_loss(hidden, policy.head(), targets, options, &mut |rows, new| {
                let weights = weights.as_ref().map(|weights| rows.of(weights));
                let (old, advantages) = (rows.of(&old), rows.of(&advantages));
                let PolicyLoss { mut loss, statistics } =
                    loss::policy_loss(&new.logprobs, &old, &advantages, weights.as_ref(), &clip)?;
                if let Some(entropy) = &new.entropy {
                    loss += loss::entropy_loss(entropy, weights.as_ref(), config.entropy_coef);
                }
                Ok::<_, Error>(RowSums { loss, statistics: Some(statistics) })
            })?;
            updates.policy += sums.statistics.as_ref().map(PolicyStatistics::from).unwrap_or_default();
            Ok::<_, Error>(sums.loss / divisor)
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

    /// Records one reply as text, with its score.
    fn log_sample(&self, step: u64, experience: &Experience, run: &mut StageRun<'_>) -> Result<(), Error> {
        let (prompt, reply) = experience.ids.split_at(experience.prompt_length);
        let (prompt, reply) = ((self.data.decode)(prompt), (self.data.decode)(reply));
        let score = f64::from(experience.score);
        run.record(&Event::Sample { step, prompt: &prompt, reply: &reply, score })
    }
}

/// Derives the seed for one `purpose` of one iteration: 0 is sampling, `1 + epoch` is the shuffle of that
/// epoch. With it, a resumed run needs no saved `rng_state`.
fn derived_seed(seed: u64, iteration: u64, purpose: u64) -> u64 {
    let mut generator = ChaCha8Rng::seed_from_u64(seed);
    generator.set_stream(iteration);
    // Each purpose reads its own two 32-bit words of the stream of the iteration.
    generator.set_word_pos(u128::from(purpose) * 2);
    rand::Rng::random(&mut generator)
}

/// The weight of each token of some replies in the policy loss, `[N]`; `None` if all weights are 1.
fn token_weights(replies: &[&Trajectory<'_>], mode: LossAggMode, device: Device) -> Option<Tensor> {
    let of_reply = |reply: &&Trajectory<'_>| {
        let length = reply.advantages.len();
        Some(vec![mode.token_weight(length)? as f32; length])
    };
    let weights: Vec<Vec<f32>> = replies.iter().map(of_reply).collect::<Option<_>>()?;
    Some(upload(&weights.concat(), device))
}

fn shaping(config: &PpoConfig) -> ScoreShaping {
    ScoreShaping { clip: config.score_clip, missing_eos_penalty: config.missing_eos_penalty }
}
