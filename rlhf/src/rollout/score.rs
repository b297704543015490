//! Runs the models of a rollout: log-probabilities, values and the scores of reward models.
//!
//! Each model runs on all replies before the next model starts, so that only one of them has to be in memory.
//! The model replicas share the replies, and every rank has all numbers afterwards. Log-probabilities are
//! computed at the sampling temperature. They come from a forward pass over the full replies, as in training,
//! so that the ratio of the first update is one up to rounding; or from the sampler ([`OldLogprobs`]), which
//! saves that pass.

use std::ops::Range;
use std::sync::Arc;

use gemini::ChunkManager;
use models::batch::Batch;
use models::causal_lm::CausalLm;
use models::decoder::Decoder;
use models::head;
use models::scalar_model::ScalarModel;
use parallel::pipeline::forward_only;
use parallel::{ProcessGroups, Segmented};
use tch::{Kind, Tensor, no_grad};

use super::batch::{Reads, RolloutBatch};
use super::data::{Layout, Rollout};
use crate::Error;
use crate::config::OldLogprobs;

/// The largest difference between the log-probabilities of sampler and trainer at temperature 1 that counts
/// as rounding. In fp32 they differ by 1e-5 at most; bfloat16 is coarser. A temperature below 1 magnifies it.
pub const LARGEST_DIFFERENCE: f32 = 1e-3;

/// The models of an algorithm that learns from rollouts, by role.
pub struct RolloutModels<'a> {
    /// The policy, which generates the replies.
    pub policy: &'a CausalLm,
    /// The reference, from which the policy must not move far; `None` if no divergence from it is wanted.
    pub reference: Option<&'a CausalLm>,
    /// The critic (value model), which predicts the return from each token onwards; `None` for estimators
    /// that compare replies.
    pub critic: Option<&'a ScalarModel>,
    /// The reward models, each of which scores full replies.
    pub reward_models: Vec<&'a ScalarModel>,
    /// The memory that the models share.
    pub memory: &'a Arc<ChunkManager>,
}

impl RolloutModels<'_> {
    /// Refuses models whose vocabularies differ in size.
    pub fn check(&self) -> Result<(), Error> {
        let policy = self.policy.config().vocab_size();
        let reference = self.reference.iter().map(|reference| ("reference", reference.config()));
        let critic = self.critic.iter().map(|critic| ("critic", critic.config()));
        let rewards = self.reward_models.iter().map(|reward| ("reward", reward.config()));
        for (right, config) in reference.chain(critic).chain(rewards) {
            let right_size = config.vocab_size();
            if right_size != policy {
                return Err(Error::Vocabulary { left: "policy", left_size: policy, right, right_size });
            }
        }
        Ok(())
    }

    /// The scores of each reward model, one for each reply.
    pub fn score_rewards(&self, pass: &mut Pass<'_>, rollout: &Rollout) -> Result<Vec<Vec<f32>>, Error> {
        let of_model = |&model: &&ScalarModel| {
            let [scores] = pass.run(rollout, model, model.decoder(), Reads::LastToken, |_, hidden| {
                Ok([model.values(hidden)?])
            })?;
            Ok(scores)
        };
        self.reward_models.iter().map(of_model).collect()
    }

    /// Fills in the log-probabilities of policy and reference, the entropy, and the values.
    /// verl: `compute_log_prob`, `compute_values`; OpenRLHF: second half of `make_experience`.
    pub fn score_tokens(
        &self,
        pass: &mut Pass<'_>,
        rollout: &mut Rollout,
        temperature: f64,
        old_logprobs: OldLogprobs,
    ) -> Result<(), Error> {
        self.score_policy(pass, rollout, temperature, old_logprobs)?;
        if let Some(reference) = self.reference {
            let trunk = reference.decoder();
            let [logprobs] = pass.run(rollout, reference, trunk, Reads::Tokens, |batch, hidden| {
                Ok([head::logprobs(hidden, reference.head(), &batch.targets, temperature)?.logprobs])
            })?;
            rollout.reference_logprobs = logprobs;
        }
        if let Some(critic) = self.critic {
            let [values] = pass.run(rollout, critic, critic.decoder(), Reads::Slots, |_, hidden| {
                Ok([critic.values(hidden)?])
            })?;
            rollout.values = values;
        }
        Ok(())
    }

    /// Fills in the log-probabilities and entropies of the policy.
    fn score_policy(
        &self,
        pass: &mut Pass<'_>,
        rollout: &mut Rollout,
        temperature: f64,
        old_logprobs: OldLogprobs,
    ) -> Result<(), Error> {
        let policy = self.policy;
        let compute = |pass: &mut Pass<'_>| {
            pass.run(rollout, policy, policy.decoder(), Reads::Tokens, |batch, hidden| {
                let found = head::logprobs(hidden, policy.head(), &batch.targets, temperature)?;
                Ok([found.logprobs, found.entropy])
            })
        };
        match old_logprobs {
            OldLogprobs::Trainer => [rollout.logprobs, rollout.entropy] = compute(pass)?,
            OldLogprobs::Sampler => {
                // The trainer computes one micro-batch of each rank's share.
                let own = pass.share(rollout.len());
                let checked = own.start..own.end.min(own.start + pass.micro_batch_size);
                let mut of_share = Pass { only: Some(checked.clone()), ..pass.clone() };
                let [logprobs, entropy] = compute(&mut of_share)?;
                pass.tokens = of_share.tokens;
                check_sampler(rollout, checked.clone(), &logprobs, temperature)?;

                // What it has computed is taken, so that the metrics show the difference.
                let start = rollout.lengths[..checked.start].iter().sum::<usize>();
                let replicas = pass.groups.model_replicas();
                let computed = replicas.all_gather_object(vec![(start, logprobs, entropy)])?;
                rollout.logprobs = rollout.sampler_logprobs.clone();
                rollout.entropy = rollout.sampler_entropy.clone();
                for (start, logprobs, entropy) in computed {
                    let tokens = start..start + logprobs.len();
                    rollout.logprobs[tokens.clone()].copy_from_slice(&logprobs);
                    rollout.entropy[tokens].copy_from_slice(&entropy);
                }
            }
        }
        Ok(())
    }
}

/// Refuses replies whose sampler did not give `logprobs`, those of the trainer.
fn check_sampler(
    rollout: &Rollout,
    replies: Range<usize>,
    logprobs: &[f32],
    temperature: f64,
) -> Result<(), Error> {
    let indices: Vec<usize> = replies.collect();
    let sampled = rollout.layout().of_tokens(&rollout.sampler_logprobs, &indices);
    let difference = largest_difference(logprobs, &sampled);
    let most = LARGEST_DIFFERENCE / temperature.min(1.0) as f32;
    // A log-probability that is no number ends the run elsewhere, under its own name.
    if difference > most { Err(Error::SamplerDiffers { difference, most }) } else { Ok(()) }
}

/// The largest difference of two log-probabilities of a token; NaN if one of them is.
pub(crate) fn largest_difference(left: &[f32], right: &[f32]) -> f32 {
    // Unlike `f32::max`, which passes over NaN.
    let larger = |left: f32, right: f32| if right > left || right.is_nan() { right } else { left };
    left.iter().zip(right).map(|(left, right)| (left - right).abs()).fold(0.0, larger)
}

/// How models run on a rollout, and how many tokens have gone through them.
#[derive(Clone, Debug)]
pub struct Pass<'g> {
    groups: &'g ProcessGroups,
    micro_batch_size: usize,
    /// The replies to run on, on this rank alone; `None` for its share of all of them.
    only: Option<Range<usize>>,
    /// The tokens that went through models on this rank.
    pub tokens: i64,
}

impl<'g> Pass<'g> {
    /// Runs on `micro_batch_size` replies at a time.
    pub fn new(groups: &'g ProcessGroups, micro_batch_size: usize) -> Self {
        Self { groups, micro_batch_size, only: None, tokens: 0 }
    }

    /// This rank's share of `replies` replies.
    fn share(&self, replies: usize) -> Range<usize> {
        self.groups.model_replicas().shard_range(replies)
    }

    /// Runs `model`, which has this trunk, on micro-batches of replies without gradients. `head` turns each
    /// micro-batch with the hidden states that it reads into K vectors with one number for each state.
    /// Returns these vectors over all replies.
    pub(crate) fn run<M: Segmented<Context = Batch>, const K: usize>(
        &mut self,
        rollout: &Rollout,
        model: &M,
        trunk: &Decoder,
        reads: Reads,
        mut head: impl FnMut(&RolloutBatch, &Tensor) -> Result<[Tensor; K], Error>,
    ) -> Result<[Vec<f32>; K], Error> {
        let layout: Layout = rollout.layout();
        let share = self.only.clone().unwrap_or_else(|| self.share(rollout.len()));
        let indices: Vec<usize> = share.collect();
        let tokens = &mut self.tokens;
        let micro_batches = indices.chunks(self.micro_batch_size).map(|replies| {
            let batch = RolloutBatch::new(rollout, &layout, replies, reads, trunk);
            *tokens += batch.batch.num_real_tokens();
            batch
        });

        let mut columns = [const { Vec::new() }; K];
        no_grad(|| {
            forward_only::<_, _, Error>(
                model,
                micro_batches,
                |batch| &batch.batch,
                |batch, hidden| {
                    for (column, found) in columns.iter_mut().zip(head(&batch, hidden)?) {
                        column.extend(to_f32_vec(&found));
                    }
                    Ok(())
                },
            )
        })?;
        if self.only.is_some() {
            return Ok(columns);
        }
        // The shares are contiguous, so in the order of the ranks they are in the order of the replies.
        let replicas = self.groups.model_replicas();
        let mut all = [const { Vec::new() }; K];
        for (all, own) in all.iter_mut().zip(columns) {
            *all = replicas.all_gather_object(own)?;
        }
        Ok(all)
    }
}

fn to_f32_vec(tensor: &Tensor) -> Vec<f32> {
    Vec::<f32>::try_from(tensor.detach().to_kind(Kind::Float)).expect("a vector of numbers")
}
