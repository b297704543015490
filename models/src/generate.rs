//! The generation engine, with continuous batching (vLLM): prompts in, replies out, as token ids.
//!
//! Each prompt runs through the model once, and its keys and values are cached. After that, each step runs
//! one token of every running reply. When a reply finishes, the next waiting prompt takes its slot. When no
//! prompt waits, idle slots are removed, so that a long reply does not keep computing finished ones. The
//! random draws of a request depend on the seed and on its index among the prompts, never on the batch. This
//! module knows nothing about tokenizers or templates.

use std::ops::ControlFlow;

use parallel::softmax::RowWeights;
use parallel::upload;
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use tch::{Device, Kind, Tensor, no_grad};

use crate::Error;
use crate::batch::Batch;
use crate::cache::KvCache;
use crate::causal_lm::CausalLm;
use crate::sample::{SampledToken, SamplingParams};

/// The options of a generation run.
#[derive(Clone, Debug)]
pub struct GenerationOptions {
    /// The sampling parameters.
    pub sampling: SamplingParams,
    /// The maximum number of tokens of a reply, including its stop token.
    pub max_new_tokens: usize,
    /// The tokens that end a reply; if empty, every reply runs to the length limit.
    pub stop_ids: Vec<i64>,
    /// The seed of the random draws.
    pub seed: u64,
    /// The number of each prompt. The draws of its reply depend on the seed and on this number.
    pub request_ids: RequestIds,
    /// The maximum number of replies that are generated at the same time.
    pub max_num_seqs: usize,
}

/// How prompts are numbered.
#[derive(Clone, Debug)]
pub enum RequestIds {
    /// From this number on: the index of the first prompt among the prompts of all processes.
    From(u64),
    /// Each prompt has its own number.
    Given(Vec<u64>),
}

impl RequestIds {
    /// The number of the prompt at `index`.
    fn of(&self, index: usize) -> u64 {
        match self {
            Self::From(first) => first + index as u64,
            Self::Given(ids) => ids[index],
        }
    }
}

/// Why a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FinishReason {
    /// The reply contains a stop token.
    Stop,
    /// The reply reached `max_new_tokens`, or the sequence reached the model's maximum length.
    Length,
    /// The callback stopped the reply.
    Interrupted,
}

/// One reply.
/// vLLM: `CompletionOutput`.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// The new tokens, including the stop token.
    pub ids: Vec<i64>,
    /// The log-probability of each token at the sampling temperature, before top-k and top-p.
    pub logprobs: Vec<f32>,
    /// The entropy of the distribution of each token, in nats.
    pub entropies: Vec<f32>,
    /// Why the reply ended.
    pub finish_reason: FinishReason,
}

/// Token streaming: called with the prompt's index and each new token. Returning `Break` ends that reply.
pub type TokenCallback<'a> = dyn FnMut(usize, i64) -> ControlFlow<()> + 'a;

/// Generates one reply per prompt, in the order of the prompts.
pub fn generate(
    model: &CausalLm,
    prompts: &[Vec<i64>],
    options: &GenerationOptions,
    on_token: &mut TokenCallback<'_>,
) -> Result<Vec<Completion>, Error> {
    options.sampling.check()?;
    check_prompts(model, prompts)?;
    let model = model.for_decoding()?;
    let completions = no_grad(|| GenerationEngine::new(&model, prompts, options).run(on_token))?;
    check_agreement(&model, &completions)?;
    Ok(completions)
}

/// Checks that all tensor-parallel ranks drew the same tokens. If they differ, each rank has continued a
/// different text.
fn check_agreement(model: &CausalLm, completions: &[Completion]) -> Result<(), Error> {
    let Some(group) = model.decoder().model_parallel().tensor_parallel.as_ref() else { return Ok(()) };
    let mut sum = 0u32;
    for id in completions.iter().flat_map(|completion| &completion.ids) {
        sum = sum.wrapping_mul(31).wrapping_add(*id as u32);
    }
    let [largest, smallest] = group.all_reduce_max([f64::from(sum), -f64::from(sum)])?;
    if largest == -smallest { Ok(()) } else { Err(Error::RanksDiverged { ranks: group.size() }) }
}

fn check_prompts(model: &CausalLm, prompts: &[Vec<i64>]) -> Result<(), Error> {
    let (vocab_size, longest) = (model.config().vocab_size(), model.config().max_positions());
    for (index, prompt) in prompts.iter().enumerate() {
        if prompt.is_empty() {
            return Err(Error::EmptyPrompt { index });
        }
        if prompt.len() as i64 >= longest {
            return Err(Error::LongPrompt { index, length: prompt.len(), longest });
        }
        if let Some(&id) = prompt.iter().find(|&&id| id < 0 || id >= vocab_size) {
            return Err(Error::TokenOutsideVocabulary { index, id, vocab_size });
        }
    }
    Ok(())
}

/// A reply that is being generated.
/// vLLM: a request in the state `RUNNING`.
struct RunningSequence {
    /// The index of its prompt.
    request_index: usize,
    /// The maximum number of tokens of the reply.
    max_tokens: usize,
    /// The newest token, which the next step feeds to the model.
    last_token: i64,
    generator: ChaCha8Rng,
}

/// The scheduler of waiting and running requests, with their replies so far.
/// vLLM: `LLMEngine` and `Scheduler`.
struct GenerationEngine<'a> {
    model: &'a CausalLm,
    prompts: &'a [Vec<i64>],
    options: &'a GenerationOptions,
    /// The index of the next waiting prompt.
    next_request: usize,
    /// One entry per slot of the KV cache; `None` for an idle slot.
    slots: Vec<Option<RunningSequence>>,
    completions: Vec<Completion>,
    /// Working memory of the sampler: the logits of a step on the host, and the weights of a row.
    host_logits: Vec<f32>,
    row: RowWeights,
}

impl<'a> GenerationEngine<'a> {
    fn new(model: &'a CausalLm, prompts: &'a [Vec<i64>], options: &'a GenerationOptions) -> Self {
        let empty = Completion {
            ids: Vec::new(),
            logprobs: Vec::new(),
            entropies: Vec::new(),
            finish_reason: FinishReason::Length,
        };
        let slots = prompts.len().min(options.max_num_seqs.max(1));
        Self {
            model,
            prompts,
            options,
            next_request: 0,
            slots: (0..slots).map(|_| None).collect(),
            completions: vec![empty; prompts.len()],
            host_logits: Vec::new(),
            row: RowWeights::default(),
        }
    }

    fn run(mut self, on_token: &mut TokenCallback<'_>) -> Result<Vec<Completion>, Error> {
        if self.prompts.is_empty() || self.options.max_new_tokens == 0 {
            return Ok(self.completions);
        }

        let device = self.model.device();
        let capacity =
            self.prompts.iter().map(|prompt| prompt.len() + self.max_tokens(prompt.len())).max().unwrap_or(0);
        let mut cache = self.model.decoder().cache(self.slots.len() as i64, capacity as i64);

        loop {
            self.schedule_prefills(&mut cache, on_token)?;
            self.compact_slots(&mut cache);
            if self.slots.is_empty() {
                return Ok(self.completions);
            }
            let tokens: Vec<i64> = self
                .slots
                .iter()
                .map(|slot| slot.as_ref().map_or(0, |sequence| sequence.last_token))
                .collect();
            let hidden = self.model.decode(&upload(&tokens, device), &mut cache)?;
            let slots: Vec<usize> = (0..self.slots.len()).collect();
            self.sample_tokens(&hidden, &slots, &mut cache, on_token)?;
        }
    }

    /// The maximum number of new tokens after a prompt of `prompt_length` tokens.
    fn max_tokens(&self, prompt_length: usize) -> usize {
        self.options.max_new_tokens.min(self.model.config().max_positions() as usize - prompt_length)
    }

    /// Prefills waiting prompts into idle slots and samples their first tokens.
    fn schedule_prefills(
        &mut self,
        cache: &mut KvCache,
        on_token: &mut TokenCallback<'_>,
    ) -> Result<(), Error> {
        while self.next_request < self.prompts.len() {
            let idle: Vec<usize> = (0..self.slots.len()).filter(|&slot| self.slots[slot].is_none()).collect();
            let idle = &idle[..idle.len().min(self.prompts.len() - self.next_request)];
            if idle.is_empty() {
                return Ok(());
            }

            for &slot in idle {
                cache.reset_slot(slot as i64);
                let request_id = self.options.request_ids.of(self.next_request);
                let generator = SamplingParams::generator(self.options.seed, request_id);
                let max_tokens = self.max_tokens(self.prompts[self.next_request].len());
                self.slots[slot] = Some(RunningSequence {
                    request_index: self.next_request,
                    max_tokens,
                    last_token: 0,
                    generator,
                });
                self.next_request += 1;
            }

            let first = self.next_request - idle.len();
            let rows: Vec<&[i64]> =
                self.prompts[first..self.next_request].iter().map(Vec::as_slice).collect();
            let batch = Batch::new(&rows, self.model.device()).with_last_outputs();
            let slot_ids: Vec<i64> = idle.iter().map(|&slot| slot as i64).collect();
            let hidden = self.model.prefill(&batch, cache, &slot_ids)?;
            self.sample_tokens(&hidden, idle, cache, on_token)?;
        }
        Ok(())
    }

    /// Samples one token for each of `slots` from the rows of `hidden`, and ends finished replies.
    fn sample_tokens(
        &mut self,
        hidden: &Tensor,
        slots: &[usize],
        cache: &mut KvCache,
        on_token: &mut TokenCallback<'_>,
    ) -> Result<(), Error> {
        let logits = self.model.head().logits(hidden)?.to_kind(Kind::Float);
        let sampled = if logits.device() == Device::Cpu {
            self.sample_on_host(&logits.contiguous(), slots)
        } else {
            self.sample_on_device(&logits, slots)
        };

        for (token, &slot) in sampled.into_iter().zip(slots) {
            let Some(sequence) = &mut self.slots[slot] else { continue };
            let SampledToken { id, logprob, entropy } =
                token.ok_or(Error::LogitsNotFinite { index: sequence.request_index })?;
            let completion = &mut self.completions[sequence.request_index];
            completion.ids.push(id);
            completion.logprobs.push(logprob);
            completion.entropies.push(entropy);
            sequence.last_token = id;
            let stops = self.options.stop_ids.contains(&id);
            let interrupted = on_token(sequence.request_index, id).is_break();
            if stops || interrupted || completion.ids.len() == sequence.max_tokens {
                completion.finish_reason = match (stops, interrupted) {
                    (true, _) => FinishReason::Stop,
                    (_, true) => FinishReason::Interrupted,
                    _ => FinishReason::Length,
                };
                self.slots[slot] = None;
                // An idle slot still runs in each step. Reset, it attends to one token and cannot outgrow the
                // cache.
                cache.reset_slot(slot as i64);
            }
        }
        Ok(())
    }

    /// Samples from each row of `logits` `[B, V]`, which are in host memory. Idle slots get no token.
    fn sample_on_host(&mut self, logits: &Tensor, slots: &[usize]) -> Vec<Option<SampledToken>> {
        let (width, count) = (logits.size()[1] as usize, logits.numel());
        self.host_logits.resize(count, 0.0);
        logits.copy_data(&mut self.host_logits, count);
        let rows = self.host_logits.chunks_exact(width).zip(slots).map(|(row, &slot)| {
            let sequence = self.slots[slot].as_mut()?;
            self.options.sampling.sample(row, &mut sequence.generator, &mut self.row)
        });
        rows.collect()
    }

    /// Samples from all rows of `logits` `[B, V]` on their device.
    fn sample_on_device(&mut self, logits: &Tensor, slots: &[usize]) -> Vec<Option<SampledToken>> {
        let draw =
            |&slot: &usize| self.slots[slot].as_mut().map_or(0.0, |sequence| sequence.generator.random());
        let draws: Vec<f64> = slots.iter().map(draw).collect();
        self.options.sampling.sample_rows(logits, &draws)
    }

    /// Removes idle slots when at least a quarter of all slots is idle and no prompt waits. It does not
    /// remove them earlier, because moving the other slots costs a copy.
    fn compact_slots(&mut self, cache: &mut KvCache) {
        let active_slots: Vec<i64> = (0..self.slots.len())
            .filter(|&slot| self.slots[slot].is_some())
            .map(|slot| slot as i64)
            .collect();
        if active_slots.len() * 4 > self.slots.len() * 3 && self.next_request == self.prompts.len() {
            for slot in 0..self.slots.len() {
                if self.slots[slot].is_none() {
                    cache.reset_slot(slot as i64);
                }
            }
            return;
        }
        if active_slots.len() < self.slots.len() {
            if !active_slots.is_empty() {
                cache.compact(&active_slots);
            }
            self.slots.retain(Option::is_some);
        }
    }
}
