//! Generates the replies to a batch of prompts: an [`Engine`] that runs until all of them have ended.

use std::ops::ControlFlow;
use std::sync::Arc;

use models::causal_lm::CausalLm;

use crate::Error;
use crate::engine::{self, Engine, EngineOptions};
use crate::request::{Event, Failure, FinishReason, ReplyId, Request};
use crate::sample::{SampledToken, SamplingParams};
use crate::scheduler::Order;

/// The options of a generation run.
#[derive(Clone, Debug)]
pub struct GenerationOptions<'a> {
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
    /// How many tokens of each reply are guessed in a step ([`EngineOptions::speculative_tokens`]).
    pub speculative_tokens: usize,
    /// The model that guesses them, if it is not the reply itself.
    pub draft: Option<&'a CausalLm>,
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

impl Completion {
    fn empty() -> Self {
        Self {
            ids: Vec::new(),
            logprobs: Vec::new(),
            entropies: Vec::new(),
            finish_reason: FinishReason::Length,
        }
    }

    fn push(&mut self, token: SampledToken) {
        self.ids.push(token.id);
        self.logprobs.push(token.logprob);
        self.entropies.push(token.entropy);
    }
}

/// Token streaming: called with the prompt's index and each new token. Returning `Break` ends that reply.
pub type TokenCallback<'a> = dyn FnMut(usize, i64) -> ControlFlow<()> + 'a;

/// Generates one reply per prompt, in the order of the prompts. A prompt that comes several times in a row is
/// computed once.
pub fn generate(
    model: &CausalLm,
    prompts: &[Vec<i64>],
    options: &GenerationOptions<'_>,
    on_token: &mut TokenCallback<'_>,
) -> Result<Vec<Completion>, Error> {
    if prompts.is_empty() || options.max_new_tokens == 0 {
        return Ok(vec![Completion::empty(); prompts.len()]);
    }

    let longest = |prompt: &Vec<i64>| prompt.len() + options.max_new_tokens;
    let longest = prompts.iter().map(longest).max().unwrap_or(0).min(model.config().max_positions() as usize);
    let sequences = prompts.len().min(options.max_num_seqs.max(1));
    let engine_options = EngineOptions {
        sequences,
        cached_tokens: engine::cached_tokens(sequences, longest),
        batched_tokens: engine::BATCHED_TOKENS,
        order: Order::Arrival,
        speculative_tokens: options.speculative_tokens,
    };
    let mut engine = Engine::new(model, engine_options)?;
    if let Some(draft) = options.draft {
        engine = engine.with_draft(draft)?;
    }
    add_requests(&mut engine, prompts, options, sequences)?;
    let completions = finish(&mut engine, prompts.len(), on_token)?;
    check_agreement(model, &completions)?;
    Ok(completions)
}

/// Continues one prompt on an engine that works on nothing else and has room for it. The callback gets each
/// new token, and may end the reply.
pub fn complete(
    engine: &mut Engine,
    request: Request,
    on_token: &mut TokenCallback<'_>,
) -> Result<Completion, Error> {
    engine.add(Request { id: 0, samples: 1, ..request })?;
    let completions = finish(engine, 1, on_token);
    engine.abort(0); // There still is a request after an error alone.
    Ok(completions?.remove(0))
}

/// Runs an engine until all its requests have ended. The id of a request is the index of its first reply.
fn finish(
    engine: &mut Engine,
    replies: usize,
    on_token: &mut TokenCallback<'_>,
) -> Result<Vec<Completion>, Error> {
    let mut completions = vec![Completion::empty(); replies];
    let index_of = |reply: ReplyId| reply.request as usize + reply.sample as usize;

    let mut events = Vec::new();
    while !engine.is_idle() {
        engine.step(&mut events)?;
        let mut events = events.drain(..).peekable();
        while let Some(event) = events.next() {
            match event {
                // A step may give a reply several tokens, of which the caller need not want all.
                Event::Token { reply, .. } | Event::Finished { reply, .. }
                    if completions[index_of(reply)].finish_reason == FinishReason::Interrupted => {}
                Event::Token { reply, token, .. } => {
                    let index = index_of(reply);
                    completions[index].push(token);
                    if on_token(index, token.id).is_continue() {
                        continue;
                    }
                    // The last token of a reply ends it before the caller can.
                    let goes_on =
                        |next: &Event| matches!(next, Event::Token { reply: next, .. } if *next == reply);
                    if engine.abort_reply(reply) || events.peek().is_some_and(goes_on) {
                        completions[index].finish_reason = FinishReason::Interrupted;
                    }
                }
                Event::Finished { reply, reason } => completions[index_of(reply)].finish_reason = reason,
                Event::Failed { request, failure } => return Err(failed(request, failure)),
                Event::Prompt { .. } => {} // No request of `generate` asks for log-probabilities of its prompt.
            }
        }
    }
    Ok(completions)
}

/// Adds the prompts as requests, of which none has more than `sequences` samples. Equal neighbours are the
/// samples of one request.
fn add_requests(
    engine: &mut Engine,
    prompts: &[Vec<i64>],
    options: &GenerationOptions<'_>,
    sequences: usize,
) -> Result<(), Error> {
    // The samples of a request draw from consecutive streams, so neighbours are samples of one request only
    // if their numbers follow each other.
    let stream = |index: usize| options.request_ids.of(index);
    let are_samples = |&left: &usize, &right: &usize| {
        prompts[left] == prompts[right] && stream(left).checked_add(1) == Some(stream(right))
    };
    let indices: Vec<usize> = (0..prompts.len()).collect();
    let groups = indices.chunk_by(are_samples).flat_map(|group| group.chunks(sequences));

    let stop_ids: Arc<[i64]> = options.stop_ids.as_slice().into();
    for group in groups {
        engine.add(Request {
            id: group[0] as u64,
            samples: group.len() as u32,
            seed: options.seed,
            stream: stream(group[0]),
            max_new_tokens: options.max_new_tokens,
            stop_ids: Arc::clone(&stop_ids),
            ..Request::new(prompts[group[0]].as_slice().into(), options.sampling)
        })?;
    }
    Ok(())
}

fn failed(request: u64, failure: Failure) -> Error {
    match failure {
        Failure::LogitsNotFinite => Error::LogitsNotFinite { index: request as usize },
        Failure::NoRoom { needed, pages } => Error::NoRoom { index: request as usize, needed, pages },
    }
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
