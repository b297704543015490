//! The loop of every algorithm that learns from its own replies, with co-located models.
//!
//! ```text
//! OnPolicy::train, each iteration
//!   sample              prompts, replies, and one reward for each reply        rollout_sampler
//!   Learner::prepare    log-probabilities of the models; advantages, pairs or rows for the update
//!   Learner::update     optimizer steps on mini-batches of the rollout
//!   log, save a checkpoint, ask tasks                                          run
//! ```
//! | learner | what it learns of a rollout |
//! |---|---|
//! | `ppo::Ppo` | tokens with an advantage: PPO, GRPO, RLOO, REINFORCE++ and kin |
//! | `online::dpo::OnlineDpo` | pairs of the best and the worst reply to a prompt |
//! | `online::distill::Gkd` | what a teacher says at each token of the replies |
//!
//! A checkpoint is the model folder of the policy with the state of its optimizer, of the learner and of the
//! sampler; with `staleness`, it holds the rollout that was drawn ahead as well. No random generator has a
//! state that must be saved, because every seed is derived from the seed of the run and the iteration. Models
//! that do not change during a run are loaded from their original folders when it is resumed. The loop
//! contains no loss and no formula.

mod metrics;
mod order;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use datasets::{PromptRow, SamplerState, SftRow};
use gemini::{Engine, TrainConfig, checkpoint};
use parallel::ProcessGroups;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Error;
use crate::config::PpoConfig;
use crate::episodes::{Generation, Turns};
use crate::event::{Event, Metrics};
use crate::monitor;
use crate::reward_function::RewardFunction;
use crate::rollout::RolloutModels;
use crate::rollout::data::Rollout;
use crate::rollout::score::Pass;
use crate::rollout_sampler::{self, RolloutSampler, Sampled, SamplerProgress};
use crate::run::{Phase, StageRun};

pub(crate) use self::metrics::push_entropy;
pub(crate) use self::order::{mini_batches, orders};

/// The number of replies that are logged as text at a step: of the lowest reward to the highest.
const SAMPLES: usize = 3;

/// What a stage that learns from rollouts gets besides its models.
pub struct Data<'a> {
    /// The prompts that the policy replies to.
    pub prompts: &'a [PromptRow],
    /// Whether prompts, and rows of the language-modelling term, are shuffled in each epoch.
    pub shuffle: bool,
    /// Rows of the language-modelling term of PPO. May be empty when `ptx_coef` is 0.
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

/// An algorithm that learns from rollouts: what it reads of them, its optimizer steps, and its state.
pub trait Learner<'a> {
    /// What an update reads of a rollout besides its replies: advantages, pairs or rows.
    type TrainingData;
    /// What a checkpoint holds of the algorithm besides models and optimizers.
    type State: Serialize + DeserializeOwned;

    /// The models.
    fn models(&self) -> &RolloutModels<'a>;

    /// The optimizer of the policy.
    fn engine(&self) -> &Engine;

    /// The optimizer of the policy, to restore its state.
    fn engine_mut(&mut self) -> &mut Engine;

    /// Whether replies have rewards. Without them there are no metrics of scores.
    fn has_rewards(&self) -> bool {
        true
    }

    /// Runs the models that say something of the replies, makes of it what the update learns, and adds the
    /// metrics of the algorithm. Every rank gets the same.
    fn prepare(
        &mut self,
        sampled: &mut Sampled,
        pass: &mut Pass<'_>,
        metrics: &mut Metrics,
    ) -> Result<Self::TrainingData, Error>;

    /// Runs the optimizer steps on a rollout, and adds their metrics. Returns the number of tokens that went
    /// forward and backward, on all ranks.
    fn update(
        &mut self,
        rollout: &Rollout,
        data: &Self::TrainingData,
        iteration: u64,
        metrics: &mut Metrics,
    ) -> Result<f64, Error>;

    /// The state of the algorithm.
    fn state(&self) -> Self::State;

    /// Goes on with the state of the checkpoint `folder`. An algorithm without a state has nothing to do.
    fn restore(&mut self, _state: Self::State, _folder: &Path) -> Result<(), Error> {
        Ok(())
    }

    /// Writes the other models that are trained, with their optimizers.
    fn save_others(&self, _folder: &Path) -> Result<(), Error> {
        Ok(())
    }

    /// Restores the optimizers of the other models that are trained.
    fn restore_others(&mut self, _folder: &Path) -> Result<(), Error> {
        Ok(())
    }

    /// Checks that the ranks hold the same copies of the models besides those that every algorithm has.
    fn check_others(&self) -> Result<(), Error> {
        Ok(())
    }
}

/// One stage that learns from rollouts: the algorithm, and the position in the data.
pub struct OnPolicy<'a, L> {
    learner: L,
    config: &'a PpoConfig,
    train: &'a TrainConfig,
    groups: &'a Arc<ProcessGroups>,
    sampler: RolloutSampler<'a>,
    decode: &'a dyn Fn(&[i64]) -> String,
    /// The hash of the prompts and the rows of the language-modelling term.
    content_hash: String,
}

/// The state of a checkpoint besides the models and their optimizers.
#[derive(Serialize, Deserialize)]
struct State {
    /// Number of completed iterations.
    iteration: u64,
    /// The progress of the rollouts. `None` in checkpoints of earlier versions, which have `prompts`.
    #[serde(default)]
    sampler: Option<SamplerProgress>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    prompts: Option<SamplerState>,
    /// The hash of the prompts and the rows of the language-modelling term. `None` in checkpoints of earlier
    /// versions.
    #[serde(default)]
    content_hash: Option<String>,
    /// Number of iterations of the full run. `None` in checkpoints of earlier versions.
    #[serde(default)]
    total_steps: Option<u64>,
    /// The state of the learner, whose fields stand beside these.
    #[serde(flatten)]
    learner: Map<String, Value>,
}

impl<'a, L: Learner<'a>> OnPolicy<'a, L> {
    /// Begins before the first prompt. `learner` has checked its configuration and its models.
    pub(crate) fn new(
        learner: L,
        data: Data<'a>,
        (config, train): (&'a PpoConfig, &'a TrainConfig),
        seed: u64,
        groups: &'a Arc<ProcessGroups>,
    ) -> Result<Self, Error> {
        if data.prompts.is_empty() {
            return Err(Error::NoRows { stage: "this stage", fix: "check [data] train and max_length" });
        }
        let ids = data.prompts.iter().map(|row| &row.input_ids);
        let ptx = data.ptx.iter().flat_map(|row| [&row.input_ids, &row.labels]);
        let content_hash = datasets::rows::content_hash(ids.chain(ptx));

        let generation = Generation {
            policy: learner.models().policy,
            rows: data.prompts,
            stop_ids: data.stop_ids,
            max_new_tokens: config.max_new_tokens,
            temperature: config.temperature,
            max_num_seqs: config.rollout_micro_batch_size,
            score_slot: config.score_slot,
            decode: data.decode,
            groups,
        };
        let sampler = RolloutSampler::new(config, generation, data.turns, data.rewards, seed, data.shuffle)?;
        Ok(Self { learner, config, train, groups, sampler, decode: data.decode, content_hash })
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

        let (groups, mut tokens_since_log) = (self.groups, 0);
        for iteration in completed + 1..=total {
            let started = Instant::now();
            (run.progress)(Phase::Rollout, iteration - 1);
            run.begin_step()?;

            // 1. Rollout: the model replicas share the prompts and the replies, and each rank has all replies
            // with their rewards afterwards.
            let mut pass = Pass::new(groups, self.train.micro_batch_size);
            let mut sampled = self.sample(iteration, &mut pass, run)?;
            let rollout_seconds = started.elapsed().as_secs_f64();

            // 2. What the update reads: every rank computes it from all replies, because much of it needs
            // the statistics of the full rollout.
            (run.progress)(Phase::Score, iteration - 1);
            let mut metrics = self.rollout_metrics(&sampled);
            let data = self.learner.prepare(&mut sampled, &mut pass, &mut metrics)?;
            let scored_seconds = started.elapsed().as_secs_f64() - rollout_seconds;

            // 3. Update: `epochs` passes over the rollout.
            (run.progress)(Phase::Update, iteration - 1);
            let trained_tokens = self.learner.update(&sampled.rollout, &data, iteration, &mut metrics)?;
            // The scorers have worked beside the update. The next iteration begins with these scores, and a
            // checkpoint holds them.
            self.sampler.complete_ahead()?;
            self.learner.models().memory.end_step();
            let seconds = started.elapsed().as_secs_f64();

            tokens_since_log += sampled.rollout.ids.len() as u64;
            self.push_work(&sampled, &pass, trained_tokens, &mut metrics)?;
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
                self.learner.engine().finish_updates()?;
                run.ask_tasks(iteration)?;
            }
        }

        if let Some(message) = self.sampler.summary()? {
            run.record(&Event::Message(&message))?;
        }
        self.check_replicas()?;
        let policy = self.learner.models().policy;
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
        let sampled = self.sampler.next(iteration, self.learner.models(), pass, &mut messages);
        for message in &messages {
            run.record(&Event::Message(message))?;
        }
        sampled
    }

    /// The metrics that every rollout has.
    fn rollout_metrics(&self, sampled: &Sampled) -> Metrics {
        let mut metrics = Metrics::default();
        let has_rewards = self.learner.has_rewards();
        if has_rewards {
            metrics::push_scores(sampled, &mut metrics);
            self.sampler.push_metrics(sampled, &mut metrics);
        }
        metrics::push_replies(&sampled.rollout, &mut metrics);
        metrics::push_monitors(sampled, has_rewards, &mut metrics);
        metrics
    }

    /// Adds the number of tokens of the rollout, and the work of the iteration in units of a forward pass
    /// over them. `pass` has scored the replies, and `trained_tokens` went forward and backward on all ranks.
    fn push_work(
        &self,
        sampled: &Sampled,
        pass: &Pass<'_>,
        trained_tokens: f64,
        metrics: &mut Metrics,
    ) -> Result<(), Error> {
        let tokens = sampled.rollout.ids.len() as f64;
        let [scored_tokens] = self.groups.model_replicas().all_reduce_sum([pass.tokens as f64])?;
        metrics.push("tokens", tokens);
        metrics.push("units/score", scored_tokens / tokens);
        metrics.push("units/update", self.units_per_trained_token() * trained_tokens / tokens);
        Ok(())
    }

    /// Checks that the ranks hold the same copies of all models.
    fn check_replicas(&self) -> Result<(), Error> {
        let models = self.learner.models();
        self.learner.engine().check_replicas(models.policy)?;
        self.learner.check_others()?;
        if let Some(reference) = models.reference {
            gemini::check_replicas(reference, self.groups)?;
        }
        let mut rewards = models.reward_models.iter();
        Ok(rewards.try_for_each(|reward| gemini::check_replicas(*reward, self.groups))?)
    }

    /// Writes the models that are trained, and the state of their optimizers, after `iteration`.
    fn save(&self, folder: &Path, iteration: u64) -> Result<(), Error> {
        self.learner.save_others(folder)?;
        let state = State {
            iteration,
            sampler: Some(self.sampler.progress()),
            prompts: None,
            content_hash: Some(self.content_hash.clone()),
            total_steps: Some(self.config.iterations),
            learner: fields(&self.learner.state()),
        };
        self.learner.models().policy.save(folder)?;
        checkpoint::save_state(folder, self.learner.engine(), &state)?;
        self.sampler.save_ahead(folder)
    }

    /// Restores the state that [`Self::save`] wrote, apart from the models, and returns the number of
    /// completed iterations.
    fn restore(&mut self, folder: &Path, run: &mut StageRun<'_>) -> Result<u64, Error> {
        self.learner.restore_others(folder)?;
        let state: State = checkpoint::load_state(folder, self.learner.engine_mut())?;
        run.check_content(state.content_hash.as_deref(), &self.content_hash)?;
        run.check_total_steps(state.total_steps, state.iteration, self.config.iterations, |iterations| {
            self.learner.engine().next_lr_of(self.config.policy_steps(iterations))
        })?;
        let progress = state.sampler.or_else(|| state.prompts.map(SamplerProgress::at));
        let problem = "its state.json has no position in the prompts: remove this checkpoint, and --resume continues from the previous one";
        let missing = || Error::RunFolder { path: folder.to_owned(), problem: problem.to_owned() };
        self.sampler.restore(progress.ok_or_else(missing)?, folder)?;
        let learner = serde_json::from_value(Value::Object(state.learner)).map_err(|error| {
            let problem = format!("its state.json does not fit to this stage: {error}");
            Error::RunFolder { path: folder.to_owned(), problem }
        })?;
        self.learner.restore(learner, folder)?;
        Ok(state.iteration)
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
            let score = totals[reply].filter(|_| self.learner.has_rewards()).unwrap_or(f64::NAN);
            run.record(&Event::Sample { step, prompt: &prompt, reply: &text, score })?;
        }
        Ok(())
    }
}

/// The fields of the state of a learner, which is a struct.
fn fields(state: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(state) {
        Ok(Value::Object(fields)) => fields,
        other => panic!("the state of a learner is a struct of numbers, texts and lists: {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::online::NoState;
    use crate::ppo::PpoState;

    /// The fields of a learner stand beside the others, as in the versions whose only learner was PPO.
    #[test]
    fn states_of_earlier_versions_are_read() {
        let prompts = json!({"rows": 9, "epoch": 1, "position": 2, "seed": 4, "shuffle": true});
        let controller = json!({"kind": "adaptive", "coefficient": 0.1, "target": 6.0, "horizon": 100.0});
        let old = json!({"iteration": 3, "prompts": prompts, "ptx": null, "controller": controller});
        let state: State = serde_json::from_value(old).unwrap();
        assert!(state.iteration == 3 && state.prompts.is_some() && state.sampler.is_none());
        let written = serde_json::to_value(&state).unwrap();
        assert_eq!((&written["controller"], &written["prompts"]), (&controller, &prompts));
        let learner = Value::Object(state.learner);
        let read: PpoState = serde_json::from_value(learner.clone()).unwrap();
        assert_eq!(Value::Object(fields(&read))["controller"], controller);
        // Another algorithm has other fields.
        assert!(serde_json::from_value::<NoState>(learner).is_err());
        assert!(serde_json::from_value::<PpoState>(json!({"ptx": null})).is_err());
    }

    #[test]
    fn a_learner_without_a_state_adds_nothing() {
        let text = r#"{"iteration":7,"sampler":null,"content_hash":"a","total_steps":9}"#;
        let mut state: State = serde_json::from_str(text).unwrap();
        state.learner = fields(&NoState {});
        let written = serde_json::to_value(&state).unwrap();
        assert_eq!(written, serde_json::from_str::<Value>(text).unwrap());
    }
}
