//! Generates the replies to batches of prompts: engines that run until all of them have ended.
//!
//! On the stages of a pipeline, a [`Generator`] has one engine for each stage. While one stage computes the
//! step of an engine, the others compute the steps of the other engines (Yu et al. 2022, OSDI, "Orca",
//! section 4.2), so every stage is busy as long as every engine has replies under way.

use std::ops::ControlFlow;
use std::sync::Arc;

use models::causal_lm::CausalLm;
use parallel::Segmented;

use crate::Error;
use crate::engine::{self, Engine, EngineOptions};
use crate::request::{Event, Failure, FinishReason, ReplyId, Request};
use crate::sample::{SampledToken, SamplingParams};
use crate::scheduler::{Counts, Order};

/// How the replies to some prompts are generated.
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
}

/// What a [`Generator`] has room for.
#[derive(Clone, Copy, Debug)]
pub struct GeneratorOptions<'a> {
    /// The maximum number of replies that are generated at the same time; 0 means 1.
    pub max_num_seqs: usize,
    /// The maximum number of tokens of a prompt with its reply.
    pub longest: usize,
    /// The most tokens for which the KV cache has room, if a single reply needs no more.
    pub most_cached_tokens: usize,
    /// How many tokens of each reply are guessed in a step ([`EngineOptions::speculative_tokens`]).
    pub speculative_tokens: usize,
    /// The model that guesses them, if it is not the reply itself.
    pub draft: Option<&'a CausalLm>,
}

impl GeneratorOptions<'_> {
    /// Room for replies to some prompts, at most `max_num_seqs` at the same time, without guesses.
    pub fn for_prompts(
        model: &CausalLm,
        prompts: &[Vec<i64>],
        max_new_tokens: usize,
        max_num_seqs: usize,
    ) -> Self {
        let longest = prompts.iter().map(|prompt| prompt.len().saturating_add(max_new_tokens)).max();
        Self {
            max_num_seqs: prompts.len().min(max_num_seqs),
            longest: longest.unwrap_or(0).min(model.config().max_positions() as usize),
            most_cached_tokens: usize::MAX,
            speculative_tokens: 0,
            draft: None,
        }
    }

    fn engine_options(&self) -> EngineOptions {
        let sequences = self.max_num_seqs.max(1);
        let [one, all] = [1, sequences].map(|count| engine::cached_tokens(count, self.longest));
        EngineOptions {
            sequences,
            cached_tokens: all.min(self.most_cached_tokens.max(one)),
            batched_tokens: engine::BATCHED_TOKENS,
            order: Order::Arrival,
            speculative_tokens: self.speculative_tokens,
        }
    }
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

/// Called with the index of a prompt and its reply, once that has ended. Returning `Break` ends all replies.
pub type ReplyCallback<'a> = dyn FnMut(usize, &Completion) -> ControlFlow<()> + 'a;

/// A model that generates the replies to one batch of prompts after the other.
#[derive(Debug)]
pub struct Generator {
    /// One for each stage of a pipeline, if they have replies and pages enough. With several stages on a rank
    /// there is one engine: such a rank waits for the others in the middle of a step.
    engines: Vec<Engine>,
}

impl Generator {
    /// Makes the KV cache for the replies of a model. All ranks that share the model call this, and
    /// [`generate`](Self::generate), with the same arguments and callbacks that decide alike.
    pub fn new(model: &CausalLm, options: &GeneratorOptions<'_>) -> Result<Self, Error> {
        let pipeline = model.decoder().pipeline().filter(|pipeline| pipeline.has_one_stage_per_rank());
        let stages = pipeline.map_or(1, |pipeline| pipeline.group().size());
        let engines = Engine::of_stages(model, &options.engine_options(), stages, options.longest)?;
        let with_draft = |engine: Engine| match options.draft {
            Some(draft) => engine.with_draft(draft),
            None => Ok(engine),
        };
        Ok(Self { engines: engines.into_iter().map(with_draft).collect::<Result<_, Error>>()? })
    }

    /// Generates one reply per prompt, in the order of the prompts. A prompt that comes several times in a
    /// row is computed once. The replies depend on the arguments alone: nothing is left of the batches
    /// before.
    pub fn generate(
        &mut self,
        prompts: &[Vec<i64>],
        options: &GenerationOptions,
        on_token: &mut TokenCallback<'_>,
    ) -> Result<Vec<Completion>, Error> {
        self.generate_each(prompts, options, on_token, &mut |_, _| ControlFlow::Continue(()))
    }

    /// Like [`generate`](Self::generate), and also passes on each reply as soon as it has ended.
    pub fn generate_each(
        &mut self,
        prompts: &[Vec<i64>],
        options: &GenerationOptions,
        on_token: &mut TokenCallback<'_>,
        on_reply: &mut ReplyCallback<'_>,
    ) -> Result<Vec<Completion>, Error> {
        let mut replies = Replies::new(prompts.len());
        if options.max_new_tokens == 0 {
            let mut ended = replies.completions.iter().enumerate();
            let _ = ended.try_for_each(|(index, completion)| on_reply(index, completion));
            return Ok(replies.completions);
        }
        self.engines.iter_mut().for_each(Engine::reset_prefix_cache);
        let added = self.add_requests(prompts, options);
        let outcome = added.and_then(|()| self.run(&mut replies, on_token, on_reply));
        if !matches!(outcome, Ok(ControlFlow::Continue(()))) {
            self.end_all(prompts.len());
        }
        outcome.map(|_| replies.completions)
    }

    /// Runs the engines until all replies have ended, or until the caller wants no more.
    fn run(
        &mut self,
        replies: &mut Replies,
        on_token: &mut TokenCallback<'_>,
        on_reply: &mut ReplyCallback<'_>,
    ) -> Result<ControlFlow<()>, Error> {
        let mut events = Vec::new();
        // Each engine's next step begins as soon as its last one has ended, while the steps of the others
        // are under way on other stages.
        while self.engines.iter().any(|engine| !engine.is_idle()) {
            for engine in &mut self.engines {
                engine.finish_step(&mut events)?;
                if replies.take(engine, &mut events, on_token, on_reply)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
                engine.begin_step(&mut events)?;
                // A request may have failed before its step.
                let _ = replies.take(engine, &mut events, on_token, on_reply)?;
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Ends all replies of a batch of `count`. The steps that have begun end first, because other ranks have
    /// sent their messages.
    fn end_all(&mut self, count: usize) {
        for engine in &mut self.engines {
            // The error that ends the batch is the first one.
            let _ = engine.finish_step(&mut Vec::new());
            (0..count as u64).for_each(|request| _ = engine.abort(request));
        }
    }

    /// Adds the prompts as requests, of which none has more samples than an engine has replies. Equal
    /// neighbours are the samples of one request. The id of a request is the index of its first reply.
    fn add_requests(&mut self, prompts: &[Vec<i64>], options: &GenerationOptions) -> Result<(), Error> {
        // The samples of a request draw from consecutive streams, so neighbours are samples of one request
        // only if their numbers follow each other.
        let stream = |index: usize| options.request_ids.of(index);
        let are_samples = |&left: &usize, &right: &usize| {
            prompts[left] == prompts[right] && stream(left).checked_add(1) == Some(stream(right))
        };
        let indices: Vec<usize> = (0..prompts.len()).collect();
        let fewest = self.engines.iter().map(Engine::sequences).min().expect("there is an engine");
        let groups = indices.chunk_by(are_samples).flat_map(|group| group.chunks(fewest));

        let stop_ids: Arc<[i64]> = options.stop_ids.as_slice().into();
        let engines = self.engines.len();
        for (number, group) in groups.enumerate() {
            self.engines[number % engines].add(Request {
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

    /// What was computed so far.
    pub fn counts(&self) -> Counts {
        self.engines.iter().fold(Counts::default(), |sum, engine| sum + engine.counts())
    }
}

/// Generates one reply per prompt. See [`Generator::generate`].
pub fn generate(
    model: &CausalLm,
    prompts: &[Vec<i64>],
    room: &GeneratorOptions<'_>,
    options: &GenerationOptions,
    on_token: &mut TokenCallback<'_>,
) -> Result<Vec<Completion>, Error> {
    Generator::new(model, room)?.generate(prompts, options, on_token)
}

/// Continues one prompt on an engine that works on nothing else and has room for it. The callback gets each
/// new token, and may end the reply.
pub fn complete(
    engine: &mut Engine,
    request: Request,
    on_token: &mut dyn FnMut(i64) -> ControlFlow<()>,
) -> Result<Completion, Error> {
    let mut reply = SingleReply::begin(engine, request)?;
    while reply.step(on_token)? {}
    Ok(reply.completion().clone())
}

/// The continuation of one prompt on an engine that works on nothing else and has room for it, step by step.
#[derive(Debug)]
pub struct SingleReply<'e> {
    engine: &'e mut Engine,
    replies: Replies,
    events: Vec<Event>,
}

impl<'e> SingleReply<'e> {
    /// Adds the request to the engine. Returns an error if its prompt or its sampling is not valid.
    pub fn begin(engine: &'e mut Engine, request: Request) -> Result<Self, Error> {
        engine.add(Request { id: 0, samples: 1, ..request })?;
        Ok(Self { engine, replies: Replies::new(1), events: Vec::new() })
    }

    /// Runs a step. Returns whether the reply goes on. The callback gets each new token, and may end the
    /// reply.
    pub fn step(&mut self, on_token: &mut dyn FnMut(i64) -> ControlFlow<()>) -> Result<bool, Error> {
        self.engine.step(&mut self.events)?;
        let on_token = &mut |_: usize, id: i64| on_token(id);
        let on_reply = &mut |_: usize, _: &Completion| ControlFlow::Continue(());
        let _ = self.replies.take(self.engine, &mut self.events, on_token, on_reply)?;
        Ok(!self.engine.is_idle())
    }

    /// The reply so far.
    pub fn completion(&self) -> &Completion {
        &self.replies.completions[0]
    }
}

impl Drop for SingleReply<'_> {
    /// The engine is left for the next reply, whatever ended this one.
    fn drop(&mut self) {
        self.engine.abort(0);
    }
}

/// The replies of a batch. The id of a request is the index of its first reply.
#[derive(Debug)]
struct Replies {
    completions: Vec<Completion>,
}

impl Replies {
    fn new(count: usize) -> Self {
        Self { completions: vec![Completion::empty(); count] }
    }

    /// Takes the events of a step out of `events`. Returns `Break` if the caller wants no more replies.
    fn take(
        &mut self,
        engine: &mut Engine,
        events: &mut Vec<Event>,
        on_token: &mut TokenCallback<'_>,
        on_reply: &mut ReplyCallback<'_>,
    ) -> Result<ControlFlow<()>, Error> {
        let index_of = |reply: ReplyId| reply.request as usize + reply.sample as usize;
        let mut events = events.drain(..).peekable();
        while let Some(event) = events.next() {
            let (index, reason) = match event {
                // A step may give a reply several tokens, of which the caller need not want all.
                Event::Token { reply, .. } | Event::Finished { reply, .. }
                    if self.completions[index_of(reply)].finish_reason == FinishReason::Interrupted =>
                {
                    continue;
                }
                Event::Token { reply, token, .. } => {
                    let index = index_of(reply);
                    self.completions[index].push(token);
                    if on_token(index, token.id).is_continue() {
                        continue;
                    }
                    // The last token of a reply ends it before the caller can.
                    let goes_on =
                        |next: &Event| matches!(next, Event::Token { reply: next, .. } if *next == reply);
                    if !engine.abort_reply(reply) && !events.peek().is_some_and(goes_on) {
                        continue;
                    }
                    (index, FinishReason::Interrupted)
                }
                Event::Finished { reply, reason } => (index_of(reply), reason),
                Event::Failed { request, failure } => return Err(failed(request, failure)),
                Event::Prompt { .. } => continue, // No request here asks for log-probabilities of its prompt.
            };
            self.completions[index].finish_reason = reason;
            if on_reply(index, &self.completions[index]).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

fn failed(request: u64, failure: Failure) -> Error {
    match failure {
        Failure::LogitsNotFinite => Error::LogitsNotFinite { index: request as usize },
        Failure::NoRoom { needed, pages } => Error::NoRoom { index: request as usize, needed, pages },
    }
}
