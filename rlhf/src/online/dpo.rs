//! Online DPO: direct preference optimization on pairs that the policy has just written (Guo et al. 2024,
//! arXiv 2402.04792; TRL: `OnlineDPOTrainer`).
//!
//! ```text
//!   r_i           the shaped reward of reply i to a prompt
//!   pair          y_w = the reply with the highest r_i, y_l = the one with the lowest
//!   loss          of [dpo] loss, with beta and the reference                       loss::preference
//! ```
//! The paper and TRL sample two replies to a prompt. Of more, the best and the worst are taken, and the
//! others teach nothing. Where all rewards are equal, or fewer than two replies have one, there is no pair,
//! and the prompt is counted. The loss is the mean over the pairs of a mini-batch, which has the pairs of
//! `mini_batch_size / samples_per_prompt` prompts.
//!
//! Log-probabilities are at temperature 1, as in DPO on given rows and in TRL, whatever the temperature of
//! sampling is. The reference runs once over the replies of each rollout. At the temperature of sampling it
//! also gives `objective/kl`: the log-ratio of sampler and reference, summed over a reply, the mean over the
//! replies. This module knows neither an advantage nor an episode of several turns: what an environment
//! writes is not the policy's, and a pair is of two completions.

use std::sync::Arc;

use datasets::PreferenceRow;
use gemini::{Engine, TrainConfig};
use models::head;
use parallel::{ProcessGroups, upload};
use tch::Tensor;

use super::{NoState, Settings};
use crate::config::{DpoConfig, PpoConfig};
use crate::event::Metrics;
use crate::loss::preference::PreferenceLoss;
use crate::offline::pairs::Pairwise;
use crate::offline::{Offline, OfflineLoss, Rows};
use crate::on_policy::{self, Data, Learner, OnPolicy};
use crate::rollout::RolloutModels;
use crate::rollout::batch::{Reads, sequence};
use crate::rollout::data::Rollout;
use crate::rollout::score::Pass;
use crate::rollout_sampler::Sampled;
use crate::setting::refuse;
use crate::{Error, advantage, check};

/// The algorithm: the models and the optimizer of the policy.
pub struct OnlineDpo<'a> {
    models: RolloutModels<'a>,
    config: &'a PpoConfig,
    loss: Pairwise<DpoConfig>,
    train: &'a TrainConfig,
    engine: Engine,
    groups: &'a Arc<ProcessGroups>,
    seed: u64,
}

/// The pairs of a rollout.
#[derive(Debug)]
pub struct Pairs {
    rows: Vec<PreferenceRow>,
    /// The log-probabilities of the completions under the reference, in the layout of [`Rows`].
    reference: Vec<f64>,
    /// The pair of each prompt, if it has one.
    of_prompts: Vec<Option<usize>>,
}

/// Refuses mini-batches that would take a prompt without all of its replies, and prompts with a single reply.
pub fn check_sizes(config: &PpoConfig) -> Result<(), Error> {
    if config.samples_per_prompt < 2 {
        let wanted = "must be at least 2: a pair is of two replies to a prompt";
        return refuse("ppo", "samples_per_prompt", &config.samples_per_prompt, wanted);
    }
    if !config.mini_batch_size.is_multiple_of(config.samples_per_prompt) {
        let wanted = format!(
            "must be a multiple of samples_per_prompt = {}: a step takes prompts with all of their replies",
            config.samples_per_prompt
        );
        return refuse("ppo", "mini_batch_size", &config.mini_batch_size, &wanted);
    }
    Ok(())
}

impl<'a> OnlineDpo<'a> {
    /// Checks the configuration, the models and the data, and creates the optimizer.
    pub fn new(
        models: RolloutModels<'a>,
        data: Data<'a>,
        settings: &Settings<'a, DpoConfig>,
        groups: &'a Arc<ProcessGroups>,
    ) -> Result<OnPolicy<'a, Self>, Error> {
        let Settings { rollouts: config, algorithm: dpo, train, seed } = *settings;
        config.check()?;
        check_sizes(config)?;
        dpo.check()?;
        models.check()?;
        assert!(*config == config.rollout_settings(), "the settings are those of rollouts");
        let has_reference = dpo.has_reference();
        assert_eq!(models.reference.is_some(), has_reference, "a reference is given if the loss has one");
        assert!(data.turns.is_none(), "a pair is of two single replies");

        let steps = config.policy_steps(config.iterations);
        let engine = Engine::new(models.policy, train, steps, groups, models.memory)?;
        let loss = Pairwise(dpo.clone());
        let learner = Self { models, config, loss, train, engine, groups, seed };
        OnPolicy::new(learner, data, (config, train), seed, groups)
    }
}

impl<'a> Learner<'a> for OnlineDpo<'a> {
    type TrainingData = Pairs;
    type State = NoState;

    fn models(&self) -> &RolloutModels<'a> {
        &self.models
    }

    fn engine(&self) -> &Engine {
        &self.engine
    }

    fn engine_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// Runs the reference, and pairs the replies.
    fn prepare(
        &mut self,
        sampled: &mut Sampled,
        pass: &mut Pass<'_>,
        metrics: &mut Metrics,
    ) -> Result<Pairs, Error> {
        on_policy::push_entropy(&sampled.rollout.sampler_entropy, metrics);
        self.run_reference(&mut sampled.rollout, pass, metrics)?;
        let Sampled { rollout, scores, .. } = sampled;
        let groups: Vec<&[Option<f64>]> = scores.chunks(self.config.samples_per_prompt).collect();
        let pairs: Vec<Option<[usize; 2]>> = groups.iter().map(|scores| best_and_worst(scores)).collect();
        push_pair_metrics(&groups, &pairs, metrics);
        self.pairs(rollout, &pairs)
    }

    fn update(
        &mut self,
        _: &Rollout,
        pairs: &Pairs,
        iteration: u64,
        metrics: &mut Metrics,
    ) -> Result<f64, Error> {
        let mini_batches = self.mini_batches(&pairs.of_prompts, iteration);
        let (train, given) = (Rows::new(&pairs.rows, pairs.reference.clone()), Rows::new(&[], Vec::new()));
        let objective = Offline::new(self.models.policy, self.loss.clone(), train, given)?;
        super::update(&objective, &mini_batches, &mut self.engine, (self.train, self.groups), metrics)
    }

    fn state(&self) -> NoState {
        NoState {}
    }
}

impl OnlineDpo<'_> {
    /// Fills in the log-probabilities of the reference at temperature 1, and adds the divergence from it at
    /// the temperature of sampling.
    fn run_reference(
        &self,
        rollout: &mut Rollout,
        pass: &mut Pass<'_>,
        metrics: &mut Metrics,
    ) -> Result<(), Error> {
        let Some(reference) = self.models.reference else { return Ok(()) };
        let temperature = self.config.temperature;
        let [of_loss, of_sampling] =
            pass.run(rollout, reference, reference.decoder(), Reads::Tokens, |batch, hidden| {
                let logprobs = |temperature: f64| -> Result<Tensor, Error> {
                    Ok(head::logprobs(hidden, reference.head(), &batch.targets, temperature)?.logprobs)
                };
                let of_loss = logprobs(1.0)?;
                let is_same = temperature == 1.0;
                let of_sampling = if is_same { of_loss.shallow_clone() } else { logprobs(temperature)? };
                Ok([of_loss, of_sampling])
            })?;
        let ratios = rollout.sampler_logprobs.iter().zip(&of_sampling);
        let sum: f64 = ratios.map(|(policy, reference)| f64::from(*policy) - f64::from(*reference)).sum();
        metrics.push("objective/kl", sum / rollout.len() as f64);
        rollout.reference_logprobs = of_loss;
        Ok(())
    }

    /// The rows of the pairs. `pairs` has the best and the worst reply to each prompt, by their places among
    /// the replies to it.
    fn pairs(&self, rollout: &Rollout, pairs: &[Option<[usize; 2]>]) -> Result<Pairs, Error> {
        let layout = rollout.layout();
        let (mut rows, mut replies, mut of_prompts) = (Vec::new(), Vec::new(), Vec::new());
        for (prompt, pair) in pairs.iter().enumerate() {
            of_prompts.push(pair.map(|_| rows.len()));
            let Some(places) = pair else { continue };
            let pair = places.map(|place| prompt * self.config.samples_per_prompt + place);
            let [chosen, rejected] = pair.map(|reply| sequence(rollout, &layout, reply).to_vec());
            let prompt_length = rollout.prompt_lengths[pair[0]];
            rows.push(PreferenceRow { chosen, rejected, prompt_length, margin: None });
            replies.push(pair);
        }
        let reference = self.reference_of(rollout, &rows, &replies)?;
        Ok(Pairs { rows, reference, of_prompts })
    }

    /// The log-probabilities of the completions of `rows` under the reference, in the layout of [`Rows`].
    /// `replies` are those of each row.
    fn reference_of(
        &self,
        rollout: &Rollout,
        rows: &[PreferenceRow],
        replies: &[[usize; 2]],
    ) -> Result<Vec<f64>, Error> {
        if !self.loss.has_reference() || rows.is_empty() {
            return Ok(Vec::new());
        }
        let (layout, device) = (rollout.layout(), self.models.policy.device());
        let all = upload(&rollout.reference_logprobs, device);
        let mut of_completions = Vec::new();
        for (row, replies) in rows.iter().zip(replies) {
            for (completion, &reply) in self.loss.sequences(row).iter().zip(replies) {
                let tokens = &layout.tokens[reply];
                let logprobs = all.narrow(0, tokens.start as i64, tokens.len() as i64);
                of_completions.push(completion.completion_logprob(&logprobs));
            }
        }
        let numbers = check::to_f64_vec(&Tensor::stack(&of_completions, 0));
        check::finite("the log-probabilities of completions under the reference", &numbers)?;
        // The baseline of a pair has its own two sequences.
        let copies = if self.loss.baseline(&rows[0]).is_empty() { 1 } else { 2 };
        Ok(numbers.chunks(2).flat_map(|row| row.repeat(copies)).collect())
    }

    /// The pairs of each optimizer step, without steps that have none.
    fn mini_batches(&self, of_prompts: &[Option<usize>], iteration: u64) -> Vec<Vec<usize>> {
        let prompts_per_step = self.config.mini_batch_size / self.config.samples_per_prompt;
        let pairs_of = |prompts: &[usize]| -> Vec<usize> {
            let mut pairs: Vec<usize> = prompts.iter().filter_map(|&prompt| of_prompts[prompt]).collect();
            pairs.sort_unstable();
            pairs
        };
        on_policy::orders(of_prompts.len(), self.config.epochs, self.seed, iteration)
            .iter()
            .flat_map(|order| order.chunks(prompts_per_step))
            .map(pairs_of)
            .filter(|pairs| !pairs.is_empty())
            .collect()
    }
}

/// The places of the replies with the highest and the lowest reward among those to one prompt. `None` if
/// fewer than two have one, or if all rewards are equal up to rounding. Of equal ones, the first counts.
fn best_and_worst(scores: &[Option<f64>]) -> Option<[usize; 2]> {
    let scored: Vec<(usize, f64)> =
        scores.iter().enumerate().filter_map(|(place, score)| Some((place, (*score)?))).collect();
    let rewards: Vec<f64> = scored.iter().map(|&(_, reward)| reward).collect();
    if advantage::is_flat(&rewards) {
        return None;
    }
    // Of equal ones, `max_by` takes the last and `min_by` the first.
    let best = scored.iter().rev().max_by(|left, right| left.1.total_cmp(&right.1))?;
    let worst = scored.iter().min_by(|left, right| left.1.total_cmp(&right.1))?;
    Some([best.0, worst.0])
}

/// Adds the number of pairs, the share of the prompts without one, and the mean difference of the rewards in
/// a pair. `groups` are the rewards of the replies to each prompt.
/// TRL: `objective/scores_margin`.
fn push_pair_metrics(groups: &[&[Option<f64>]], pairs: &[Option<[usize; 2]>], metrics: &mut Metrics) {
    let margin = |(scores, pair): (&&[Option<f64>], &Option<[usize; 2]>)| {
        let [best, worst] = (*pair)?;
        Some(scores[best]? - scores[worst]?)
    };
    let margins: Vec<f64> = groups.iter().zip(pairs).filter_map(margin).collect();
    metrics.push("pairs/count", margins.len() as f64);
    metrics.push("pairs/missing", 1.0 - margins.len() as f64 / pairs.len().max(1) as f64);
    if !margins.is_empty() {
        metrics.push("objective/scores_margin", margins.iter().sum::<f64>() / margins.len() as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_and_the_worst_reply_make_a_pair() {
        assert_eq!(best_and_worst(&[Some(1.0), Some(3.0), Some(-2.0), Some(0.0)]), Some([1, 2]));
        // The first of several, and replies without a reward are in no pair.
        assert_eq!(best_and_worst(&[Some(0.0), None, Some(2.0), Some(2.0), Some(0.0)]), Some([2, 0]));
        assert_eq!(best_and_worst(&[None, Some(-1.0), None, Some(-3.0)]), Some([1, 3]));
    }

    #[test]
    fn equal_rewards_and_single_ones_make_no_pair() {
        assert_eq!(best_and_worst(&[Some(0.5); 4]), None);
        // The sum of 0.1 and 0.2 is 0.3 up to rounding.
        assert_eq!(best_and_worst(&[Some(0.3), Some(0.1 + 0.2)]), None);
        assert_eq!(best_and_worst(&[None, Some(7.0), None]), None);
        assert_eq!(best_and_worst(&[None, None]), None);
        assert_eq!(best_and_worst(&[]), None);
    }

    #[test]
    fn pairs_and_prompts_without_one_are_counted() {
        let groups: [&[Option<f64>]; 4] =
            [&[Some(1.0), Some(4.0)], &[Some(2.0), Some(2.0)], &[None, Some(1.0)], &[Some(0.0), Some(-1.0)]];
        let pairs: Vec<Option<[usize; 2]>> = groups.iter().map(|scores| best_and_worst(scores)).collect();
        assert_eq!(pairs, [Some([1, 0]), None, None, Some([0, 1])]);
        let mut metrics = Metrics::default();
        push_pair_metrics(&groups, &pairs, &mut metrics);
        // Margins of 3 and 1.
        assert_eq!(metrics.get("objective/scores_margin"), Some(2.0));
        assert_eq!((metrics.get("pairs/count"), metrics.get("pairs/missing")), (Some(2.0), Some(0.5)));

        let mut metrics = Metrics::default();
        push_pair_metrics(&groups[1..3], &pairs[1..3], &mut metrics);
        assert_eq!((metrics.get("pairs/missing"), metrics.get("objective/scores_margin")), (Some(1.0), None));
    }

    #[test]
    fn sizes_that_part_a_prompt_are_refused() {
        let of = |samples_per_prompt, mini_batch_size| {
            check_sizes(&PpoConfig { samples_per_prompt, mini_batch_size, ..PpoConfig::default() })
        };
        assert!(of(2, 64).is_ok() && of(4, 8).is_ok());
        let refusal = |samples, size| of(samples, size).unwrap_err().to_string();
        assert!(refusal(1, 64).contains("samples_per_prompt = 1: must be at least 2"));
        assert!(refusal(4, 6).contains("mini_batch_size = 6: must be a multiple of samples_per_prompt = 4"));
    }
}
