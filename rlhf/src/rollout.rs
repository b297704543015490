//! The experience of a rollout: replies of the policy, and what the models of PPO compute for them.
//!
//! ```text
//!   policy     -> a reply to each prompt, and log p of each token of the reply
//!   reference  -> log p of the same tokens
//!   critic     -> the value before each token, if there is a critic
//!   rewards    -> one score of the full reply each; the scores are added
//! ```
//! A reply is stored as the prompt ids followed by the new ids. Where the prompt ends is stored as a length
//! and never inferred from the ids. All models run on the flat batch without padding. Log-probabilities
//! are computed at the sampling temperature. They come from a forward pass over the full replies, as in
//! training, and not from the sampler, so that the ratio of the first update is one up to rounding. This
//! module contains no reward formula and no loss.

use std::sync::Arc;

use gemini::ChunkManager;
use models::batch::Batch;
use models::causal_lm::CausalLm;
use models::generate::{Completion, FinishReason};
use models::head::{self, LogprobsOptions, RowLoss, RowSums, TokenLogprobs};
use models::scalar_model::ScalarModel;
use parallel::pipeline::forward_only;
use parallel::{Segmented, upload};
use serde::{Deserialize, Serialize};
use tch::{Device, Tensor, no_grad};

use crate::advantage::ScoreSlot;
use crate::{Error, reward};

/// One prompt with one reply and the numbers computed for it. Vectors over tokens have one entry per token of
/// the reply.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Experience {
    /// The ids of the prompt followed by the ids of the reply.
    pub ids: Vec<i64>,
    /// Number of tokens of the prompt.
    pub prompt_length: usize,
    /// Whether the reply ended with a stop token. If not, it was cut at a length limit.
    pub stopped: bool,
    /// The slot to whose reward the score is added.
    pub score_slot: ScoreSlot,
    /// Log-probability of each token, from the sampler.
    pub sampler_logprobs: Vec<f32>,
    /// Log-probability of each token, from the policy at the time of the rollout.
    pub logprobs: Vec<f32>,
    /// Entropy of the policy before each token.
    pub entropy: Vec<f32>,
    /// Log-probability of each token, from the reference.
    pub reference_logprobs: Vec<f32>,
    /// Value before each token, from the critic at the time of the rollout; also after the last token if the
    /// score is added there. Empty without a critic.
    pub values: Vec<f32>,
    /// Sum of the scores that the reward models give the full reply.
    pub score: f32,
}

impl Experience {
    /// Creates the experience of a prompt and its generated completion. The numbers of the models are still
    /// empty.
    pub fn new(prompt: &[i64], completion: &Completion, score_slot: ScoreSlot) -> Self {
        Self {
            ids: [prompt, &completion.ids].concat(),
            prompt_length: prompt.len(),
            score_slot,
            stopped: completion.finish_reason == FinishReason::Stop,
            sampler_logprobs: completion.logprobs.clone(),
            ..Self::default()
        }
    }

    /// Number of slots of reward and value: the tokens of the reply, plus one if the score is added after
    /// them.
    pub fn num_slots(&self) -> usize {
        self.reply().len() + usize::from(self.score_slot == ScoreSlot::AfterEos)
    }

    /// The ids of the reply.
    pub fn reply(&self) -> &[i64] {
        &self.ids[self.prompt_length..]
    }
}

/// The models of PPO and of the group algorithms, by role.
pub struct PpoModels<'a> {
    /// The policy, which generates the replies.
    pub policy: &'a CausalLm,
    /// The reference: the KL penalty keeps the policy close to it.
    pub reference: &'a CausalLm,
    /// The critic (value model): predicts the return from each token onwards. Group algorithms have none.
    pub critic: Option<&'a ScalarModel>,
    /// The reward models: each scores full replies, and the scores are added.
    pub reward_models: Vec<&'a ScalarModel>,
    /// The memory that the models share.
    pub memory: &'a Arc<ChunkManager>,
}

impl PpoModels<'_> {
    /// Refuses models whose vocabularies differ in size.
    pub fn check(&self) -> Result<(), Error> {
        let policy = self.policy.config().vocab_size();
        let reference = std::iter::once(("reference", self.reference.config()));
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

    /// Fills in the numbers of all models, `micro_batch_size` replies at a time. Each model runs on all
    /// replies before the next model starts, so that only one of them has to be in memory.
    /// verl: `compute_log_prob`, `compute_values`; OpenRLHF, trlX: second half of `make_experience`.
    pub fn score_rollout(
        &self,
        experiences: &mut [Experience],
        micro_batch_size: usize,
        temperature: f64,
    ) -> Result<(), Error> {
        let (device, size) = (self.policy.device(), micro_batch_size);
        score_with(self.policy, device, experiences.chunks_mut(size), |batch, replies, hidden| {
            let policy = batch.logprobs(self.policy, hidden, temperature)?;
            let entropies = split_by_reply(&policy.entropy, replies);
            let logprobs = split_by_reply(&policy.logprobs, replies);
            for (experience, (logprobs, entropy)) in replies.iter_mut().zip(logprobs.zip(entropies)) {
                (experience.logprobs, experience.entropy) = (logprobs, entropy);
            }
            Ok(())
        })?;

        score_with(self.reference, device, experiences.chunks_mut(size), |batch, replies, hidden| {
            let reference = batch.logprobs(self.reference, hidden, temperature)?;
            let logprobs = split_by_reply(&reference.logprobs, replies);
            for (experience, logprobs) in replies.iter_mut().zip(logprobs) {
                experience.reference_logprobs = logprobs;
            }
            Ok(())
        })?;

        if let Some(critic) = self.critic {
            score_with(critic, device, experiences.chunks_mut(size), |batch, replies, hidden| {
                let values = batch.values(critic, hidden)?;
                let num_slots: Vec<usize> = replies.iter().map(Experience::num_slots).collect();
                for (experience, values) in replies.iter_mut().zip(split_by_length(&values, &num_slots)) {
                    experience.values = values;
                }
                Ok(())
            })?;
        }

        for &reward_model in &self.reward_models {
            score_with(reward_model, device, experiences.chunks_mut(size), |batch, replies, hidden| {
                let scores = to_vec_f32(&reward::last_scores(reward_model, &batch.batch, hidden)?);
                for (experience, score) in replies.iter_mut().zip(scores) {
                    experience.score += score;
                }
                Ok(())
            })?;
        }
        Ok(())
    }
}

/// Runs `model` on micro-batches of replies without gradients. `head` gets each micro-batch with its last
/// hidden states.
fn score_with<M: Segmented<Context = Batch>>(
    model: &M,
    device: Device,
    micro_batches: std::slice::ChunksMut<'_, Experience>,
    mut head: impl FnMut(&ExperienceBatch, &mut [Experience], &Tensor) -> Result<(), Error>,
) -> Result<(), Error> {
    let micro_batches = micro_batches.map(|replies| (ExperienceBatch::of(replies, device), replies));
    no_grad(|| {
        forward_only(
            model,
            micro_batches,
            |(batch, _)| &batch.batch,
            |(batch, replies), hidden| head(&batch, replies, hidden),
        )
    })
}

/// Splits a flat vector over the tokens of the replies, `[R]`, into one vector per reply.
fn split_by_reply(flat: &Tensor, experiences: &[Experience]) -> std::vec::IntoIter<Vec<f32>> {
    let lengths: Vec<usize> = experiences.iter().map(|experience| experience.reply().len()).collect();
    split_by_length(flat, &lengths).into_iter()
}

/// The flat batch of some experiences, and the indices of the replies in it, which stand for the
/// `response_mask` of verl and the `action_mask` of OpenRLHF.
pub(crate) struct ExperienceBatch {
    pub(crate) batch: Batch,
    /// Index of the hidden state whose logits predict each token of each reply, `[R]`.
    logit_indices: Tensor,
    /// Index of the hidden state of each slot of each reply, from which the critic reads a value, `[S]`.
    value_indices: Tensor,
    /// The tokens of the replies, `[R]`.
    targets: Tensor,
}

impl ExperienceBatch {
    fn of(experiences: &[Experience], device: Device) -> Self {
        Self::new(&experiences.iter().collect::<Vec<_>>(), device)
    }

    pub(crate) fn new(experiences: &[&Experience], device: Device) -> Self {
        let ids: Vec<&[i64]> = experiences.iter().map(|experience| experience.ids.as_slice()).collect();
        let (mut logit_indices, mut value_indices, mut targets, mut offset) =
            (Vec::new(), Vec::new(), Vec::new(), 0usize);
        for experience in experiences {
            // The hidden state at position `t - 1` predicts the token at `t`, so the first one is at the end
            // of the prompt.
            let first = offset + experience.prompt_length - 1;
            logit_indices.extend((first..first + experience.reply().len()).map(|position| position as i64));
            value_indices.extend((first..first + experience.num_slots()).map(|position| position as i64));
            targets.extend_from_slice(experience.reply());
            offset += experience.ids.len();
        }

        let tensor = |values: &[i64]| upload(values, device);
        Self {
            batch: Batch::new(&ids, device),
            logit_indices: tensor(&logit_indices),
            value_indices: tensor(&value_indices),
            targets: tensor(&targets),
        }
    }

    /// Computes `log p` and entropy of the tokens of the replies, `[R]`, from the last hidden states.
    pub(crate) fn logprobs(
        &self,
        model: &CausalLm,
        hidden: &Tensor,
        temperature: f64,
    ) -> Result<TokenLogprobs, Error> {
        let rows = hidden.index_select(0, &self.logit_indices);
        Ok(head::logprobs(&rows, model.head(), &self.targets, temperature)?)
    }

    /// Computes a loss over the tokens of the replies, from the last hidden states.
    pub(crate) fn token_loss(
        &self,
        model: &CausalLm,
        hidden: &Tensor,
        options: LogprobsOptions,
        row_loss: &mut RowLoss<'_, Error>,
    ) -> Result<RowSums, Error> {
        let rows = hidden.index_select(0, &self.logit_indices);
        head::token_loss(&rows, model.head(), &self.targets, options, row_loss)
    }

    /// Computes the value of each slot, `[S]`.
    pub(crate) fn values(&self, critic: &ScalarModel, hidden: &Tensor) -> Result<Tensor, Error> {
        Ok(critic.values(&hidden.index_select(0, &self.value_indices))?)
    }
}

fn to_vec_f32(tensor: &Tensor) -> Vec<f32> {
    Vec::<f32>::try_from(tensor.detach().to_kind(tch::Kind::Float)).expect("a vector of numbers")
}

/// Splits a flat tensor into vectors of the given `lengths`.
fn split_by_length(flat: &Tensor, lengths: &[usize]) -> Vec<Vec<f32>> {
    let values = to_vec_f32(flat);
    let mut rest = values.as_slice();
    lengths
        .iter()
        .map(|&length| {
            let (head, tail) = rest.split_at(length);
            rest = tail;
            head.to_vec()
        })
        .collect()
}
