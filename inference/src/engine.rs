//! Runs requests on a model, step by step. Requests may come and go between any two steps.

use std::ops::Range;

use models::batch::Batch;
use models::cache::KvCache;
use models::cached_batch::{CachedRow, Outputs};
use models::causal_lm::CausalLm;
use models::decoder::Decoder;
use parallel::pipeline::PendingSends;
use parallel::{Segmented, memory, upload};
use tch::{Kind, Tensor, no_grad};

use crate::draft::Draft;
use crate::draw::{Drawn, Sampler};
use crate::pages::PageTable;
use crate::ranks::Ranks;
use crate::request::{Event, Failure, ReplyId, Request};
use crate::scheduler::{Counts, Limits, NoRoom, Order, Scheduler, Slice, StepPlan};
use crate::{Error, logprobs, ngram};

/// The tokens of a page. A small page wastes little memory at the end of a sequence and shares more of a
/// prefix; 16 is vLLM's value.
const PAGE_SIZE: usize = 16;
/// The usual number of tokens of a step, which bounds its activations. Each weight that is read does 2 x 2048
/// operations: in bf16 these are 2048 for each byte, and an H100 (990 Tflop/s, 3.35 TB/s) wants 295.
pub const BATCHED_TOKENS: usize = 2048;

/// The most tokens of a step where a budget leaves no room for all pages. In bf16 these are 256 operations
/// for each byte of weights, nearly what an H100 wants.
pub const SMALL_STEP: usize = 256;

/// The sizes of an engine.
#[derive(Clone, Copy, Debug)]
pub struct EngineOptions {
    /// The most replies that are under way at once.
    pub sequences: usize,
    /// The number of tokens for which the KV cache has room, if a budget of device memory allows it.
    pub cached_tokens: usize,
    /// The most tokens of a step.
    pub batched_tokens: usize,
    /// The order of the waiting requests.
    pub order: Order,
    /// How many tokens of each reply are guessed in a step, so that one step gives several tokens
    /// (speculative decoding): from what the reply repeats, or by a draft model. Replies stay the same.
    /// vLLM: `num_speculative_tokens`.
    pub speculative_tokens: usize,
}

/// What an engine works on at the moment.
/// vLLM: `SchedulerStats`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineStats {
    /// The sequences that have pages.
    pub running: usize,
    /// The sequences that wait for room.
    pub waiting: usize,
    /// The tokens for which the pages in use have room.
    pub cached_tokens: usize,
}

/// The pages of `sequences` sequences of at most `longest` tokens, in tokens.
pub fn cached_tokens(sequences: usize, longest: usize) -> usize {
    sequences * longest.next_multiple_of(PAGE_SIZE)
}

/// The memory of an engine.
struct Room {
    num_pages: usize,
    batched_tokens: usize,
}

impl Room {
    /// The pages and the step that the options ask for, or as much of them as a budget of device memory
    /// leaves room for. Sequences then wait for pages, or give theirs up and are computed again later.
    fn find(decoder: &Decoder, options: &EngineOptions) -> Result<Self, Error> {
        check_cache(decoder, options.cached_tokens)?;
        let wanted = options.cached_tokens.div_ceil(PAGE_SIZE).max(1);
        let within = |tokens| decoder.pages_within_budget(PAGE_SIZE, tokens, options.sequences);
        if within(0)?.is_none_or(|pages| pages >= wanted) {
            return Ok(Self { num_pages: wanted, batched_tokens: options.batched_tokens });
        }
        let batched_tokens = options.batched_tokens.min(SMALL_STEP);
        let pages = within(batched_tokens)?.unwrap_or(wanted);
        Ok(Self { num_pages: pages.clamp(1, wanted), batched_tokens })
    }
}

/// Checks that the KV cache of `tokens` tokens is not larger than the memory of this machine. The host gives
/// a page its memory at the first write only, so without this check the program would be killed much later. A
/// device refuses at once.
fn check_cache(decoder: &Decoder, tokens: usize) -> Result<(), Error> {
    let bytes = tokens as u128 * decoder.cache_bytes_per_token() as u128;
    match memory::total_bytes() {
        Some(memory) if !decoder.device().is_cuda() && bytes > u128::from(memory) => {
            let gib = |bytes: u128| bytes as f64 / f64::from(1 << 30);
            Err(Error::LargeCache { tokens, gib: gib(bytes), memory_gib: gib(memory.into()) })
        }
        _ => Ok(()),
    }
}

/// A model with a KV cache, and the requests that it works on.
/// vLLM: `LLMEngine`.
#[derive(Debug)]
pub struct Engine {
    model: CausalLm,
    cache: KvCache,
    scheduler: Scheduler,
    sampler: Sampler,
    draft: Option<Draft>,
    ranks: Ranks,
    /// The messages to other ranks that are under way.
    sends: PendingSends,
    begun: Option<BegunStep>,
}

/// A step that has begun.
#[derive(Debug)]
struct BegunStep {
    plan: StepPlan,
    /// The tokens that were drawn. `None` on ranks without the last layers: they get them later.
    drawn: Option<Vec<Vec<Drawn>>>,
}

impl Engine {
    /// An engine over the weights of `model`, which it shares.
    pub fn new(model: &CausalLm, options: EngineOptions) -> Result<Self, Error> {
        let model = model.for_decoding()?;
        let room = Room::find(model.decoder(), &options)?;
        Ok(Self::with_room(model, &options, &room))
    }

    /// As many engines over the same weights as there are `stages`, of which each has its share of the
    /// sequences and pages. There are fewer if one of them could not hold a sequence of `longest` tokens.
    pub(crate) fn of_stages(
        model: &CausalLm,
        options: &EngineOptions,
        stages: usize,
        longest: usize,
    ) -> Result<Vec<Self>, Error> {
        let model = model.for_decoding()?;
        let Room { num_pages, batched_tokens } = Room::find(model.decoder(), options)?;
        let needed = longest.div_ceil(PAGE_SIZE);
        let least_share = |count: usize| num_pages * (options.sequences / count) / options.sequences;
        let holds_sequence = |&count: &usize| least_share(count) >= needed;
        let count = (1..=stages.min(options.sequences)).rev().find(holds_sequence).unwrap_or(1);
        let engine = |index: usize| {
            // The first engines have a sequence more if the division has a rest.
            let sequences = options.sequences / count + usize::from(index < options.sequences % count);
            let room = Room { num_pages: num_pages * sequences / options.sequences, batched_tokens };
            Ok(Self::with_room(model.share()?, &EngineOptions { sequences, ..*options }, &room))
        };
        (0..count).map(engine).collect()
    }

    fn with_room(model: CausalLm, options: &EngineOptions, room: &Room) -> Self {
        let mut pages = PageTable::new(PAGE_SIZE);
        pages.grow(room.num_pages);
        let limits = Limits {
            batched_tokens: room.batched_tokens,
            sequences: options.sequences.max(1),
            positions: model.config().max_positions() as usize,
            splits_prompts: model.decoder().can_continue_rows(),
            speculative_tokens: options.speculative_tokens,
        };
        Self {
            cache: model.decoder().cache(room.num_pages, PAGE_SIZE),
            ranks: Ranks::new(model.decoder()),
            model,
            scheduler: Scheduler::new(limits, options.order, pages),
            sampler: Sampler::default(),
            draft: None,
            sends: PendingSends::default(),
            begun: None,
        }
    }

    /// Lets a smaller model guess the tokens of replies; without one, they are guessed from what a reply
    /// repeats. No request has been added yet. Returns an error if the draft cannot read what the model
    /// reads, or if the model is split over ranks, most of which cannot know what the next draw will be.
    pub fn with_draft(mut self, draft: &CausalLm) -> Result<Self, Error> {
        if !self.ranks.is_single() {
            return Err(Error::DraftOfSplitModel);
        }
        let num_pages = self.scheduler.pages().len();
        self.draft = Some(Draft::new(draft, &self.model, num_pages, PAGE_SIZE)?);
        Ok(self)
    }

    /// The number of tokens for which the KV cache has room.
    pub fn cached_tokens(&self) -> usize {
        self.scheduler.pages().len() * PAGE_SIZE
    }

    /// Adds a request. It wants between one sample and as many as may be under way, at least one new token,
    /// and no request in the engine has its id. Returns an error if its prompt or its sampling is not valid;
    /// the index in the error is the id.
    pub fn add(&mut self, request: Request) -> Result<(), Error> {
        let is_possible = (1..=self.scheduler.limits().sequences as u32).contains(&request.samples);
        assert!(is_possible && request.max_new_tokens > 0, "the request can be answered: {request:?}");
        request.sampling.check()?;
        self.check_tokens(&request.prompt, request.id as usize, self.model.config().max_positions() - 1)?;
        self.check_bias(&request.logit_bias)?;
        self.sampler.add(&request);
        self.scheduler.add(request);
        Ok(())
    }

    /// Checks a prompt of `longest` tokens at most.
    fn check_tokens(&self, prompt: &[i64], index: usize, longest: i64) -> Result<(), Error> {
        let vocab_size = self.model.config().vocab_size();
        if prompt.is_empty() {
            return Err(Error::EmptyPrompt { index });
        }
        if prompt.len() as i64 > longest {
            let longest = self.model.config().max_positions();
            return Err(Error::LongPrompt { index, length: prompt.len(), longest });
        }
        match prompt.iter().find(|id| !(0..vocab_size).contains(*id)) {
            Some(&id) => Err(Error::TokenOutsideVocabulary { index, id, vocab_size }),
            None => Ok(()),
        }
    }

    fn check_bias(&self, bias: &[(i64, f32)]) -> Result<(), Error> {
        let vocab_size = self.model.config().vocab_size();
        match bias.iter().find(|(id, _)| !(0..vocab_size).contains(id)) {
            Some(&(id, _)) => Err(Error::BiasOutsideVocabulary { id, vocab_size }),
            None => Ok(()),
        }
    }

    /// Ends a request; no more events of it come. Returns whether there was such a request.
    pub fn abort(&mut self, request: u64) -> bool {
        self.sampler.forget(request);
        self.scheduler.abort(request)
    }

    /// Ends one reply that has begun, and lets the other samples of its request go on.
    pub fn abort_reply(&mut self, reply: ReplyId) -> bool {
        let is_aborted = self.scheduler.abort_reply(reply);
        if is_aborted {
            self.sampler.finish(reply);
        }
        is_aborted
    }

    /// Whether all requests have ended.
    pub fn is_idle(&self) -> bool {
        self.scheduler.is_idle()
    }

    /// What the engine works on.
    pub fn stats(&self) -> EngineStats {
        let (running, waiting) = self.scheduler.num_sequences();
        EngineStats { running, waiting, cached_tokens: self.scheduler.pages().num_used() * PAGE_SIZE }
    }

    /// Goes on with the weights of another model of the same architecture. What was computed with the old
    /// ones is computed again; the tokens that were drawn stay.
    pub fn reload_weights(&mut self, model: &CausalLm) -> Result<(), Error> {
        self.model = model.for_decoding()?;
        self.scheduler.suspend();
        Ok(())
    }

    /// The most replies that are under way at once.
    pub(crate) fn sequences(&self) -> usize {
        self.scheduler.limits().sequences
    }

    /// Forgets what the pages of ended requests hold, so that the replies to come depend on their requests
    /// alone. No request is under way.
    /// vLLM: `reset_prefix_cache`.
    pub fn reset_prefix_cache(&mut self) {
        self.scheduler.suspend();
    }

    /// The final hidden state of the last token of each row, `[B, H]`. The requests of the engine wait
    /// meanwhile. The index in an error is that of the row.
    pub fn embed(&self, rows: &[&[i64]]) -> Result<Tensor, Error> {
        for (index, row) in rows.iter().enumerate() {
            self.check_tokens(row, index, self.model.config().max_positions())?;
        }
        let batch = Batch::new(rows, self.model.device()).with_last_outputs();
        Ok(no_grad(|| self.model.forward_no_grad(&batch))?)
    }

    /// What was computed so far.
    pub fn counts(&self) -> Counts {
        self.scheduler.counts()
    }

    /// Runs the next tokens of some requests, and appends what happened to `events`. A request that fails
    /// does so alone.
    pub fn step(&mut self, events: &mut Vec<Event>) -> Result<(), Error> {
        self.begin_step(events)?;
        self.finish_step(events)
    }

    /// Runs the layers of this rank for the next tokens of some requests. On the ranks of a pipeline, the
    /// steps of several engines are under way at once.
    pub(crate) fn begin_step(&mut self, events: &mut Vec<Event>) -> Result<(), Error> {
        let mut plan = loop {
            match self.scheduler.schedule() {
                Ok(plan) => break plan,
                Err(NoRoom { request, needed, pages }) => {
                    self.abort(request);
                    events.push(Event::Failed { request, failure: Failure::NoRoom { needed, pages } });
                }
            }
        };
        if plan.slices.is_empty() {
            return Ok(());
        }

        for &(from, to) in &plan.copies {
            self.cache.copy_page(from, to);
        }
        self.guess(&mut plan)?;
        let rows: Vec<CachedRow<'_>> = plan.slices.iter().flat_map(cached_rows).collect();
        let hidden = self.model.decoder().start_step(&rows, &mut self.cache, &mut self.sends)?;
        self.score_prompts(&plan, &hidden, events)?;
        let drawn = if self.ranks.has_logits() { Some(self.draw_tokens(&plan, &hidden)?) } else { None };
        self.begun = Some(BegunStep { plan, drawn });
        Ok(())
    }

    /// Takes the tokens of the step that has begun, if there is one.
    pub(crate) fn finish_step(&mut self, events: &mut Vec<Event>) -> Result<(), Error> {
        let Some(BegunStep { plan, drawn }) = self.begun.take() else { return Ok(()) };
        let drawn = match drawn {
            Some(drawn) => drawn,
            None => self.ranks.receive(&plan)?,
        };
        let ids = self.pass_on(drawn, events);
        for finished in self.scheduler.complete(&plan, &ids) {
            self.sampler.finish(finished.sequence);
            events.push(Event::Finished { reply: finished.sequence, reason: finished.reason });
        }
        Ok(())
    }

    /// Adds guesses of the next tokens to the replies of a plan.
    fn guess(&mut self, plan: &mut StepPlan) -> Result<(), Error> {
        let guess = |slice: &Slice| match slice.lookahead {
            0 => Vec::new(),
            most => ngram::guess(self.scheduler.tokens(slice.sequence), most),
        };
        let guesses: Vec<Vec<i64>> = match &mut self.draft {
            Some(draft) => draft.guess(plan, &self.sampler)?,
            None => plan.slices.iter().map(guess).collect(),
        };
        for (slice, guesses) in plan.slices.iter_mut().zip(guesses) {
            self.scheduler.guess(slice, &guesses);
        }
        Ok(())
    }

    /// The log-probabilities of the tokens of prompts that the plan wants, from its outputs `[M, H]`.
    fn score_prompts(&self, plan: &StepPlan, hidden: &Tensor, events: &mut Vec<Event>) -> Result<(), Error> {
        for (slice, outputs) in outputs(plan).filter(|(slice, _)| !slice.scored.is_empty()) {
            let request = slice.sequence.request;
            let (first, count) = (outputs.start + slice.scored_after, slice.scored.len());
            let hidden = hidden.narrow(0, first as i64, count as i64);
            let top = self.sampler.top_logprobs(request);
            let found = logprobs::of_prompt(&self.model, &hidden, &slice.scored, top)?;
            events.push(Event::Prompt { request, logprobs: found.targets, top: found.top });
        }
        Ok(())
    }

    /// Draws the tokens of a plan from its outputs `[M, H]`, by slice.
    fn draw_tokens(&mut self, plan: &StepPlan, hidden: &Tensor) -> Result<Vec<Vec<Drawn>>, Error> {
        let drawn = |(slice, outputs): (&Slice, Range<usize>)| match slice.draws {
            0 => outputs.end..outputs.end,
            _ => outputs.end - 1 - slice.guesses..outputs.end,
        };
        let rows: Vec<i64> = outputs(plan).flat_map(drawn).map(|row| row as i64).collect();
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let logits = no_grad(|| {
            let is_whole = rows.len() as i64 == hidden.size()[0];
            let selected = || hidden.index_select(0, &upload(&rows, hidden.device()));
            let hidden = if is_whole { hidden.shallow_clone() } else { selected() };
            self.model.head().of_last_stage().logits(&hidden)
        })?;
        let drawn = self.ranks.draws().then(|| {
            let logits = logits.to_kind(Kind::Float).contiguous();
            self.sampler.draw(plan, &logits)
        });
        Ok(self.ranks.share(plan, drawn, &mut self.sends)?)
    }

    /// Appends the drawn tokens to `events`, and returns their ids by slice. A request whose logits are not
    /// finite ends here; its ids are not looked at.
    fn pass_on(&mut self, drawn: Vec<Vec<Drawn>>, events: &mut Vec<Event>) -> Vec<Vec<i64>> {
        let mut ids = Vec::with_capacity(drawn.len());
        for slice in drawn {
            ids.push(slice.iter().filter_map(|drawn| Some(drawn.token?.id)).collect());
            for Drawn { reply, token, top } in slice {
                match token {
                    Some(token) => events.push(Event::Token { reply, token, top }),
                    None if self.abort(reply.request) => {
                        let failure = Failure::LogitsNotFinite;
                        events.push(Event::Failed { request: reply.request, failure });
                    }
                    None => {}
                }
            }
        }
        ids
    }
}

/// The slices of a plan, each with the indices of its outputs.
fn outputs(plan: &StepPlan) -> impl Iterator<Item = (&Slice, Range<usize>)> {
    plan.slices.iter().scan(0, |end, slice| {
        let start = *end;
        *end += match slice.draws {
            _ if !slice.scored.is_empty() => slice.tokens.len(),
            0 => 0,
            _ => 1 + slice.guesses,
        };
        Some((slice, start..*end))
    })
}

/// The rows of a slice. Guesses are rows of their own, so that they attend like tokens that were drawn, and
/// their outputs have the same bits.
fn cached_rows(slice: &Slice) -> impl Iterator<Item = CachedRow<'_>> {
    let outputs = match slice.draws {
        _ if !slice.scored.is_empty() => Outputs::All,
        0 => Outputs::None,
        _ => Outputs::Last,
    };
    let (known, guesses) = slice.tokens.split_at(slice.tokens.len() - slice.guesses);
    let mut past = slice.first;
    std::iter::once(known).chain(guesses.chunks(1)).map(move |tokens| {
        let row = CachedRow { tokens, past, pages: &slice.pages, outputs };
        past += tokens.len();
        row
    })
}
