//! Experience: replies of the policy and what the four models say of them.
//!
//! ```text
//!   policy     -> a reply to each prompt, and log p of each of its tokens
//!   reference  -> log p of the same tokens
//!   critic     -> the value before each token
//!   reward     -> one score of the whole reply
//! ```
//! A reply is prompt ids followed by new ids; where it ends is carried as a length and never read off the ids. All four models
//! run over the flat batch without padding. Log-probabilities are taken at the sampling temperature, from the training pass and not
//! from the sampler, so that the ratio of the first update is one up to rounding. Knows no reward formula and no loss.

use models::batch::Batch;
use models::causal_lm::CausalLm;
use models::generate::{Completion, FinishReason};
use models::head::{self, TokenLogprobs};
use models::scalar_model::ScalarModel;
use parallel::Segmented;
use serde::{Deserialize, Serialize};
use tch::{Device, Tensor, no_grad};

use crate::advantage::ScoreSlot;
use crate::{Error, reward};

/// One prompt with one reply and what is known of it. Vectors over tokens have one entry for each token of the reply.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Experience {
    /// Prompt and reply.
    pub ids: Vec<i64>,
    /// Tokens of the prompt.
    pub prompt_length: usize,
    /// Whether the reply ended by itself.
    pub stopped: bool,
    /// Where its score is paid.
    pub score_slot: ScoreSlot,
    /// What the sampler said of each token.
    pub sampler_logprobs: Vec<f32>,
    /// The policy at the time of the rollout.
    pub logprobs: Vec<f32>,
    /// The entropy of the policy before each token.
    pub entropy: Vec<f32>,
    /// The reference.
    pub reference_logprobs: Vec<f32>,
    /// The critic at the time of the rollout: the value before each token, and after the last one if the score is paid there.
    pub values: Vec<f32>,
    /// The reward model's score of the whole reply.
    pub score: f32,
}

impl Experience {
    /// From a prompt and what was generated.
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

    /// Slots of reward and value: the tokens of the reply, and one more if the score is paid after them.
    pub fn num_slots(&self) -> usize {
        self.reply().len() + usize::from(self.score_slot == ScoreSlot::AfterEos)
    }

    /// The reply.
    pub fn reply(&self) -> &[i64] {
        &self.ids[self.prompt_length..]
    }
}

/// The models that look at a rollout.
pub struct PpoModels<'a> {
    /// The policy that made it.
    pub policy: &'a CausalLm,
    /// The policy that it is kept close to.
    pub reference: &'a CausalLm,
    /// The critic (value model): predicts the return from each token on.
    pub critic: &'a ScalarModel,
    /// Scores whole replies.
    pub reward: &'a ScalarModel,
}

impl PpoModels<'_> {
    /// Refuses models with different vocabularies.
    pub fn check(&self) -> Result<(), Error> {
        let policy = self.policy.config().vocab_size();
        for (right, right_size) in [
            ("reference", self.reference.config().vocab_size()),
            ("critic", self.critic.config().vocab_size()),
            ("reward", self.reward.config().vocab_size()),
        ] {
            if right_size != policy {
                return Err(Error::Vocabulary { left: "policy", left_size: policy, right, right_size });
            }
        }
        Ok(())
    }

    /// Fills in everything but the sampler's part, `micro_batch_size` replies at a time.
    pub fn score_rollout(
        &self,
        experiences: &mut [Experience],
        micro_batch_size: usize,
        temperature: f64,
    ) -> Result<(), Error> {
        no_grad(|| {
            for chunk in experiences.chunks_mut(micro_batch_size) {
                self.score_micro_batch(chunk, temperature)?;
            }
            Ok(())
        })
    }

    fn score_micro_batch(&self, chunk: &mut [Experience], temperature: f64) -> Result<(), Error> {
        let rows = ExperienceBatch::new(&chunk.iter().collect::<Vec<_>>(), self.policy.device());
        let policy = rows.logprobs(self.policy, &self.policy.forward_no_grad(&rows.batch)?, temperature)?;
        let reference =
            rows.logprobs(self.reference, &self.reference.forward_no_grad(&rows.batch)?, temperature)?;
        let values = rows.values(self.critic, &self.critic.forward_no_grad(&rows.batch)?)?;
        let ids: Vec<&[i64]> = chunk.iter().map(|experience| experience.ids.as_slice()).collect();
        let scores = to_vec_f32(&reward::score(self.reward, &ids)?);
        let lengths: Vec<usize> = chunk.iter().map(|experience| experience.reply().len()).collect();
        let slots: Vec<usize> = chunk.iter().map(Experience::num_slots).collect();
        let parts = [&policy.logprobs, &policy.entropy, &reference.logprobs]
            .map(|flat| split_by_length(flat, &lengths));
        let [logprobs, entropies, references] = parts.map(Vec::into_iter);
        let values = split_by_length(&values, &slots).into_iter();
        let filled = logprobs.zip(entropies).zip(references.zip(values)).zip(scores);
        for (experience, (((logprobs, entropy), (reference, values)), score)) in chunk.iter_mut().zip(filled)
        {
            experience.logprobs = logprobs;
            experience.entropy = entropy;
            experience.reference_logprobs = reference;
            experience.values = values;
            experience.score = score;
        }
        Ok(())
    }
}

/// The flat batch of some experiences, and where its replies are.
pub(crate) struct ExperienceBatch {
    pub(crate) batch: Batch,
    /// The hidden state before each token of each reply, `[R]`.
    positions: Tensor,
    /// The hidden state of each slot of each reply, `[S]`.
    slots: Tensor,
    /// The tokens themselves, `[R]`.
    targets: Tensor,
}

impl ExperienceBatch {
    pub(crate) fn new(experiences: &[&Experience], device: Device) -> Self {
        let ids: Vec<&[i64]> = experiences.iter().map(|experience| experience.ids.as_slice()).collect();
        let (mut positions, mut slots, mut targets, mut offset) =
            (Vec::new(), Vec::new(), Vec::new(), 0usize);
        for experience in experiences {
            let before = offset + experience.prompt_length - 1;
            positions.extend((before..before + experience.reply().len()).map(|position| position as i64));
            slots.extend((before..before + experience.num_slots()).map(|position| position as i64));
            targets.extend_from_slice(experience.reply());
            offset += experience.ids.len();
        }
        let tensor = |values: &[i64]| Tensor::from_slice(values).to_device(device);
        Self {
            batch: Batch::new(&ids, device),
            positions: tensor(&positions),
            slots: tensor(&slots),
            targets: tensor(&targets),
        }
    }

    /// `log p` and entropy of the replies' tokens, `[R]`, from the last hidden states.
    pub(crate) fn logprobs(
        &self,
        model: &CausalLm,
        hidden: &Tensor,
        temperature: f64,
    ) -> Result<TokenLogprobs, Error> {
        let rows = hidden.index_select(0, &self.positions);
        Ok(head::logprobs(&rows, model.head(), &self.targets, temperature)?)
    }

    /// The value in each slot, `[S]`.
    pub(crate) fn values(&self, critic: &ScalarModel, hidden: &Tensor) -> Result<Tensor, Error> {
        Ok(critic.values(&hidden.index_select(0, &self.slots))?)
    }
}

fn to_vec_f32(tensor: &Tensor) -> Vec<f32> {
    Vec::<f32>::try_from(tensor.detach().to_kind(tch::Kind::Float)).expect("a vector of numbers")
}

/// Cuts a flat `[R]` tensor into one vector a reply.
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
