//! The experience of a rollout: replies of the policy, and what the models of PPO compute for them.
//!
//! ```text
//!   policy     -> a reply to each prompt, and log p of each token of the reply
//!   reference  -> log p of the same tokens
//!   critic     -> the value before each token, if there is a critic
//!   rewards    -> one score of the full reply each; the scores are added
//! ```
//! A reply is stored as the prompt ids followed by the new ids. Where the prompt ends is stored as a length
//! and never inferred from the ids. All models run on the flat batch without padding, in which neighbouring
//! replies to the same prompt share its tokens. Log-probabilities are computed at the sampling temperature.
//! They come from a forward pass over the full replies, as in training, so that the ratio of the first update
//! is one up to rounding; or from the sampler ([`OldLogprobs`]), which saves that pass. This module contains
//! no reward formula and no loss.

use std::sync::Arc;

use gemini::ChunkManager;
use inference::generate::Completion;
use inference::request::FinishReason;
use models::batch::Batch;
use models::causal_lm::CausalLm;
use models::decoder::Decoder;
use models::head;
use models::scalar_model::ScalarModel;
use parallel::pipeline::forward_only;
use parallel::{Segmented, upload};
use serde::{Deserialize, Serialize};
use tch::{Tensor, no_grad};

use crate::Error;
use crate::advantage::ScoreSlot;
use crate::config::OldLogprobs;

/// The largest difference between the log-probabilities of sampler and trainer at temperature 1 that counts
/// as rounding. In fp32 they differ by 1e-5 at most; bfloat16 is coarser. A temperature below 1 magnifies it.
pub const LARGEST_DIFFERENCE: f32 = 1e-3;

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
    /// Entropy before each token, from the sampler.
    pub sampler_entropy: Vec<f32>,
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
            sampler_entropy: completion.entropies.clone(),
            ..Self::default()
        }
    }

    /// Number of slots of reward and value: the tokens of the reply, plus one if the score is added after
    /// them.
    pub fn num_slots(&self) -> usize {
        self.reply().len() + usize::from(self.score_slot == ScoreSlot::AfterEos)
    }

    /// The largest difference between the log-probabilities of the policy and of the sampler; NaN if one of
    /// them is.
    pub fn logprob_difference(&self) -> f32 {
        let pairs = self.logprobs.iter().zip(&self.sampler_logprobs);
        pairs.map(|(policy, sampler)| (policy - sampler).abs()).fold(0.0, larger)
    }

    /// The ids of the prompt.
    pub fn prompt(&self) -> &[i64] {
        &self.ids[..self.prompt_length]
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
    /// replies before the next model starts, so that only one of them has to be in memory. Returns the number
    /// of tokens that went through the models.
    /// verl: `compute_log_prob`, `compute_values`; OpenRLHF, trlX: second half of `make_experience`.
    pub fn score_rollout(
        &self,
        experiences: &mut [Experience],
        micro_batch_size: usize,
        temperature: f64,
        old_logprobs: OldLogprobs,
    ) -> Result<i64, Error> {
        let tokens = self.score_policy(experiences, micro_batch_size, temperature, old_logprobs)?;
        let reference = self.reference;
        let mut rollout = Rollout { experiences, micro_batch_size, tokens };
        rollout.score(reference, reference.decoder(), Reads::Tokens, |batch, replies, hidden| {
            let found = head::logprobs(hidden, reference.head(), &batch.targets, temperature)?;
            let logprobs = split_by_reply(&found.logprobs, replies);
            for (experience, logprobs) in replies.iter_mut().zip(logprobs) {
                experience.reference_logprobs = logprobs;
            }
            Ok(())
        })?;

        if let Some(critic) = self.critic {
            rollout.score(critic, critic.decoder(), Reads::Slots, |_, replies, hidden| {
                let values = critic.values(hidden)?;
                let num_slots: Vec<usize> = replies.iter().map(Experience::num_slots).collect();
                for (experience, values) in replies.iter_mut().zip(split_by_length(&values, &num_slots)) {
                    experience.values = values;
                }
                Ok(())
            })?;
        }

        for &reward_model in &self.reward_models {
            rollout.score(reward_model, reward_model.decoder(), Reads::LastToken, |_, replies, hidden| {
                let scores = to_vec_f32(&reward_model.values(hidden)?);
                for (experience, score) in replies.iter_mut().zip(scores) {
                    experience.score += score;
                }
                Ok(())
            })?;
        }
        Ok(rollout.tokens)
    }

    /// Fills in the log-probabilities and entropies of the policy. Returns the number of tokens that went
    /// through it.
    fn score_policy(
        &self,
        experiences: &mut [Experience],
        micro_batch_size: usize,
        temperature: f64,
        old_logprobs: OldLogprobs,
    ) -> Result<i64, Error> {
        let policy = self.policy;
        let computed = match old_logprobs {
            OldLogprobs::Trainer => experiences.len(),
            OldLogprobs::Sampler => micro_batch_size.min(experiences.len()),
        };
        let (by_trainer, by_sampler) = experiences.split_at_mut(computed);
        for experience in by_sampler {
            experience.logprobs = experience.sampler_logprobs.clone();
            experience.entropy = experience.sampler_entropy.clone();
        }

        let mut rollout = Rollout { experiences: &mut *by_trainer, micro_batch_size, tokens: 0 };
        rollout.score(policy, policy.decoder(), Reads::Tokens, |batch, replies, hidden| {
            let found = head::logprobs(hidden, policy.head(), &batch.targets, temperature)?;
            let entropies = split_by_reply(&found.entropy, replies);
            let logprobs = split_by_reply(&found.logprobs, replies);
            for (experience, (logprobs, entropy)) in replies.iter_mut().zip(logprobs.zip(entropies)) {
                (experience.logprobs, experience.entropy) = (logprobs, entropy);
            }
            Ok(())
        })?;
        let tokens = rollout.tokens;
        if old_logprobs == OldLogprobs::Sampler {
            check_sampler(by_trainer, temperature)?;
        }
        Ok(tokens)
    }
}

/// The largest [`Experience::logprob_difference`]; NaN if one of them is.
pub(crate) fn largest_difference(experiences: &[Experience]) -> f32 {
    experiences.iter().map(Experience::logprob_difference).fold(0.0, larger)
}

/// The larger of two numbers, or NaN, unlike `f32::max`, which passes over NaN.
fn larger(left: f32, right: f32) -> f32 {
    if right > left || right.is_nan() { right } else { left }
}

/// Refuses replies whose sampler did not give the log-probabilities of the trainer.
fn check_sampler(experiences: &[Experience], temperature: f64) -> Result<(), Error> {
    let difference = largest_difference(experiences);
    let most = LARGEST_DIFFERENCE / temperature.min(1.0) as f32;
    // A log-probability that is no number ends the run elsewhere, under its own name.
    if difference > most { Err(Error::SamplerDiffers { difference, most }) } else { Ok(()) }
}

/// The replies that are scored, and the number of tokens that went through the models so far.
struct Rollout<'e> {
    experiences: &'e mut [Experience],
    micro_batch_size: usize,
    tokens: i64,
}

impl Rollout<'_> {
    /// Runs `model`, which has this trunk, on micro-batches of replies without gradients. `head` gets each
    /// micro-batch with the hidden states that it reads.
    fn score<M: Segmented<Context = Batch>>(
        &mut self,
        model: &M,
        trunk: &Decoder,
        reads: Reads,
        mut head: impl FnMut(&ExperienceBatch, &mut [Experience], &Tensor) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let micro_batches = self.experiences.chunks_mut(self.micro_batch_size).map(|replies| {
            let batch = ExperienceBatch::new(&replies.iter().collect::<Vec<_>>(), reads, trunk);
            self.tokens += batch.batch.num_real_tokens();
            (batch, replies)
        });
        no_grad(|| {
            forward_only(
                model,
                micro_batches,
                |(batch, _)| &batch.batch,
                |(batch, replies), hidden| head(&batch, replies, hidden),
            )
        })
    }
}

/// Splits a flat vector over the tokens of the replies, `[R]`, into one vector per reply.
fn split_by_reply(flat: &Tensor, experiences: &[Experience]) -> std::vec::IntoIter<Vec<f32>> {
    let lengths: Vec<usize> = experiences.iter().map(|experience| experience.reply().len()).collect();
    split_by_length(flat, &lengths).into_iter()
}

/// What a head reads of each reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reads {
    /// The hidden state whose logits predict each token: the one before it.
    Tokens,
    /// The hidden state from which the critic predicts the value of each slot.
    Slots,
    /// The hidden state of the last token, from which a reward model predicts its score.
    LastToken,
}

impl Reads {
    /// The positions in the sequence of prompt and reply.
    fn positions(self, experience: &Experience) -> std::ops::Range<usize> {
        // The hidden state at position `t - 1` predicts the token at `t`, so the first one is at the end of
        // the prompt.
        let first = experience.prompt_length - 1;
        match self {
            Self::Tokens => first..first + experience.reply().len(),
            Self::Slots => first..first + experience.num_slots(),
            Self::LastToken => experience.ids.len() - 1..experience.ids.len(),
        }
    }
}

/// The flat batch of some experiences. Its outputs are the hidden states that the head reads, reply after
/// reply; they stand for the `response_mask` of verl and the `action_mask` of OpenRLHF.
pub(crate) struct ExperienceBatch {
    pub(crate) batch: Batch,
    /// The tokens of the replies, `[R]`.
    pub(crate) targets: Tensor,
}

impl ExperienceBatch {
    /// Builds the batch for a model with this trunk. Neighbouring replies to the same prompt continue one row
    /// that holds the prompt, if the trunk gives them the numbers that each of them has alone.
    pub(crate) fn new(experiences: &[&Experience], reads: Reads, trunk: &Decoder) -> Self {
        let (mut rows, mut prefixes, mut outputs) = (Vec::<&[i64]>::new(), Vec::new(), Vec::new());
        let mut num_tokens = 0;
        // Adds a row, and returns its number and the place of its first token.
        let mut push = |row, prefix| {
            rows.push(row);
            prefixes.push(prefix);
            num_tokens += row.len();
            (rows.len() - 1, num_tokens - row.len())
        };
        for same_prompt in experiences.chunk_by(|left, right| left.prompt() == right.prompt()) {
            let has_tokens = |experience: &&Experience| !experience.reply().is_empty();
            let shares =
                same_prompt.len() > 1 && same_prompt.iter().all(has_tokens) && trunk.can_share_prefixes();
            let prompt = shares.then(|| push(same_prompt[0].prompt(), None));
            for experience in same_prompt {
                // The sequence begins with `shared` tokens at `prompt_start`, and goes on at `start`.
                let (shared, prompt_start, start) = match prompt {
                    Some((row, prompt_start)) => {
                        (experience.prompt_length, prompt_start, push(experience.reply(), Some(row)).1)
                    }
                    None => (0, 0, push(&experience.ids, None).1),
                };
                outputs.extend(reads.positions(experience).map(|position| {
                    let token = match position.checked_sub(shared) {
                        Some(behind) => start + behind,
                        None => prompt_start + position,
                    };
                    token as i64
                }));
            }
        }

        let targets: Vec<i64> =
            experiences.iter().flat_map(|experience| experience.reply()).copied().collect();
        Self {
            batch: Batch::with_prefixes(&rows, &prefixes, trunk.device()).with_outputs(&outputs),
            targets: upload(&targets, trunk.device()),
        }
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
