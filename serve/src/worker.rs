//! The thread that owns a model and its adapters, which take turns, a step each. The HTTP side sends messages
//! through a channel, and each request gets its answer through a bounded channel of its own: a client that
//! does not read loses its request, and costs no memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::time::Instant;

use datasets::{StreamDecoder, Tokenizer};
use inference::engine::Engine;
use inference::request::{Event, Failure, FinishReason, ReplyId, Request, TopLogprob};
use inference::stop_text::StopText;
use models::causal_lm::CausalLm;
use models::scalar_model::ScalarModel;
use tch::{Kind, Tensor};
use tokio::sync::mpsc::Sender;

use crate::error::{ApiError, BoxError};
use crate::metrics::{Metrics, ModelLabel, ReasonLabel, observe};

/// What the thread gets. A place is that of a model among those of the thread.
pub(crate) enum Message {
    /// A model is asked something.
    Command { place: usize, command: Box<Command> },
    /// Load the weights of a model again. The answer says what went wrong.
    Reload { place: usize, answer: tokio::sync::oneshot::Sender<Result<(), String>> },
}

/// What a model is asked.
pub(crate) enum Command {
    /// Answer a request.
    Generate(Job),
    /// End a request, which may have ended already.
    Abort(u64),
    /// Make one vector of each row of tokens.
    Pool(PoolJob),
    /// End all requests, because the server is being stopped.
    EndAll,
}

/// A request with the way back.
pub(crate) struct Job {
    pub(crate) request: Request,
    pub(crate) text: TextOptions,
    pub(crate) pieces: Sender<Piece>,
    pub(crate) arrived: Instant,
    /// Counts the request until it has ended.
    pub(crate) ticket: Ticket,
}

/// How the tokens of a reply become text.
#[derive(Clone, Debug)]
pub(crate) struct TextOptions {
    /// The strings before which a reply ends.
    pub(crate) stops: Vec<String>,
    /// Whether the reply goes on with the text of the prompt: then its first token keeps a leading space.
    pub(crate) continues_prompt: bool,
}

/// Rows of tokens, of each of which a model makes one vector: its final hidden state, or its score.
pub(crate) struct PoolJob {
    pub(crate) rows: Vec<Vec<i64>>,
    pub(crate) answer: tokio::sync::oneshot::Sender<Result<Vec<Vec<f32>>, ApiError>>,
    /// Counts the request until it has ended.
    pub(crate) _ticket: Ticket,
}

/// A part of an answer.
#[derive(Debug)]
pub(crate) enum Piece {
    /// The log-probabilities of the next tokens of the prompt, from the second one on.
    Prompt { logprobs: Vec<f32>, top: Vec<Vec<TopLogprob>> },
    /// A sample has one more token. The text may be empty.
    Token { sample: u32, text: String, token: TokenLogprob },
    /// A sample has ended. `text` is its last text.
    Finished { sample: u32, text: String, reason: FinishReason },
    /// The request has failed.
    Failed(ApiError),
}

/// A token of a reply with its log-probability, and the most likely tokens in its place.
#[derive(Clone, Debug)]
pub(crate) struct TokenLogprob {
    pub(crate) id: i64,
    pub(crate) logprob: f32,
    pub(crate) top: Vec<TopLogprob>,
}

/// Counts one request among those that are under way or wait.
pub(crate) struct Ticket(Arc<AtomicUsize>);

impl Ticket {
    /// A ticket, unless `limit` of them are out.
    pub(crate) fn take(open: &Arc<AtomicUsize>, limit: usize) -> Option<Self> {
        let one_more = |count| (count < limit).then_some(count + 1);
        open.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).ok()?;
        Some(Self(Arc::clone(open)))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A request that the engine works on.
struct Running<'a> {
    pieces: Sender<Piece>,
    stop_ids: Arc<[i64]>,
    /// The samples that have not ended.
    samples: BTreeMap<u32, Reply<'a>>,
    arrived: Instant,
    last_token: Option<Instant>,
    _ticket: Ticket,
}

/// A reply that is being written.
struct Reply<'a> {
    decoder: StreamDecoder<'a>,
    stops: StopText,
}

/// A model of the thread.
pub(crate) enum Served<'a> {
    /// It writes replies.
    Language(Box<Worker<'a>>),
    /// It gives scores.
    Reward(Box<ScalarModel>),
}

/// Loads the weights of the model at a place again.
pub(crate) type Reload<'r, 'a> = dyn FnMut(&mut [Served<'a>], usize) -> Result<(), BoxError> + 'r;

/// Works until nobody can send messages any more and all requests have ended.
pub(crate) fn run<'a>(
    served: &mut [Served<'a>],
    messages: &Receiver<Message>,
    reload: &mut Reload<'_, 'a>,
) -> Result<(), inference::Error> {
    loop {
        if served.iter().all(Served::is_idle) {
            let Ok(message) = messages.recv() else { return Ok(()) };
            handle(served, message, reload);
        }
        while let Ok(message) = messages.try_recv() {
            handle(served, message, reload);
        }
        for model in &mut *served {
            if let Served::Language(worker) = model {
                worker.step()?;
            }
        }
    }
}

fn handle<'a>(served: &mut [Served<'a>], message: Message, reload: &mut Reload<'_, 'a>) {
    match message {
        Message::Command { place, command } => match &mut served[place] {
            Served::Language(worker) => worker.handle(*command),
            Served::Reward(model) => score(model, *command),
        },
        Message::Reload { place, answer } => {
            let _ = answer.send(reload(served, place).map_err(|error| error.to_string()));
        }
    }
}

impl Served<'_> {
    fn is_idle(&self) -> bool {
        match self {
            Self::Language(worker) => worker.engine.is_idle(),
            Self::Reward(_) => true,
        }
    }
}

/// The work of a language model.
pub(crate) struct Worker<'a> {
    engine: Engine,
    tokenizer: &'a Tokenizer,
    running: BTreeMap<u64, Running<'a>>,
    metrics: &'a Metrics,
    label: ModelLabel,
    events: Vec<Event>,
    /// What the engine had counted when the metrics were last brought up to date.
    counted: inference::scheduler::Counts,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(
        engine: Engine,
        tokenizer: &'a Tokenizer,
        metrics: &'a Metrics,
        label: ModelLabel,
    ) -> Self {
        let counted = engine.counts();
        Self { engine, tokenizer, running: BTreeMap::new(), metrics, label, events: Vec::new(), counted }
    }

    /// Goes on with the weights of another model of the same architecture.
    pub(crate) fn reload_weights(&mut self, model: &CausalLm) -> Result<(), inference::Error> {
        self.engine.reload_weights(model)
    }

    fn step(&mut self) -> Result<(), inference::Error> {
        let mut events = std::mem::take(&mut self.events);
        self.engine.step(&mut events)?;
        events.drain(..).for_each(|event| self.pass_on(event));
        self.events = events;
        self.update_metrics();
        Ok(())
    }

    fn handle(&mut self, command: Command) {
        match command {
            Command::Generate(job) => self.start(job),
            Command::Abort(id) => self.cancel(id),
            Command::EndAll => self.end_all(),
            Command::Pool(PoolJob { rows, answer, .. }) => {
                let embed = |rows: &[&[i64]]| self.engine.embed(rows).map_err(|error| error.to_string());
                let _ = answer.send(pool(&rows, embed));
            }
        }
    }

    fn start(&mut self, job: Job) {
        let Job { request, text, pieces, arrived, ticket } = job;
        let (id, stop_ids) = (request.id, Arc::clone(&request.stop_ids));
        let before = if text.continues_prompt { &*request.prompt } else { &[] };
        let decoder = match self.tokenizer.stream_decoder_after(before, true) {
            Ok(decoder) => decoder,
            Err(error) => {
                let _ = pieces.try_send(Piece::Failed(ApiError::body(error.to_string())));
                return;
            }
        };
        let reply = || Reply { decoder: decoder.clone(), stops: StopText::new(text.stops.clone()) };
        let samples = (0..request.samples).map(|sample| (sample, reply())).collect();
        if let Err(error) = self.engine.add(request) {
            let _ = pieces.try_send(Piece::Failed(ApiError::body(error.to_string())));
            return;
        }
        let running = Running { pieces, stop_ids, samples, arrived, last_token: None, _ticket: ticket };
        self.running.insert(id, running);
    }

    /// Ends a request whose client went away.
    fn cancel(&mut self, id: u64) {
        if self.running.remove(&id).is_some() {
            self.engine.abort(id);
            self.metrics.cancelled.get_or_create(&self.label).inc();
        }
    }

    fn end_all(&mut self) {
        for (id, running) in std::mem::take(&mut self.running) {
            let _ = running.pieces.try_send(Piece::Failed(ApiError::stopping()));
            self.engine.abort(id);
        }
    }

    fn pass_on(&mut self, event: Event) {
        match event {
            Event::Prompt { request, logprobs, top } => self.send(request, Piece::Prompt { logprobs, top }),
            Event::Token { reply, token, top } => {
                let token_logprob = TokenLogprob { id: token.id, logprob: token.logprob, top };
                self.pass_token_on(reply, token_logprob);
            }
            Event::Finished { reply, reason } => self.finish(reply, reason),
            Event::Failed { request, failure } => {
                let message = match failure {
                    Failure::LogitsNotFinite => {
                        "the output of the model is not finite: values overflow in its dtype".to_owned()
                    }
                    Failure::NoRoom { needed, pages } => {
                        format!(
                            "the reply needs {needed} pages of the KV cache, which has {pages}: raise --kv-cache-tokens"
                        )
                    }
                };
                self.send(request, Piece::Failed(ApiError::failed(message)));
                self.running.remove(&request);
            }
        }
    }

    fn pass_token_on(&mut self, reply: ReplyId, token: TokenLogprob) {
        let Some(running) = self.running.get_mut(&reply.request) else { return };
        let is_only_sample = running.samples.len() == 1;
        // A step may give a reply several tokens, and a stop string in the first of them has ended it.
        let Some(writer) = running.samples.get_mut(&reply.sample) else { return };
        self.metrics.generation_tokens.get_or_create(&self.label).inc();
        let now = Instant::now();
        match running.last_token.replace(now) {
            Some(before) if is_only_sample => {
                observe(&self.metrics.time_per_output_token, &self.label, now - before);
            }
            Some(_) => {}
            None => observe(&self.metrics.time_to_first_token, &self.label, now - running.arrived),
        }

        let is_stop = running.stop_ids.contains(&token.id);
        let text = if is_stop { Ok(String::new()) } else { writer.decoder.push(token.id) };
        let (text, has_ended) = match text {
            Ok(text) => writer.stops.push(&text),
            Err(problem) => {
                self.send(reply.request, Piece::Failed(ApiError::failed(problem.to_string())));
                return self.cancel(reply.request);
            }
        };
        self.send(reply.request, Piece::Token { sample: reply.sample, text, token });
        if has_ended {
            self.engine.abort_reply(reply);
            self.end(reply, String::new(), FinishReason::Stop);
        }
    }

    /// Ends a reply that the engine has ended.
    fn finish(&mut self, reply: ReplyId, reason: FinishReason) {
        let Some(running) = self.running.get_mut(&reply.request) else { return };
        let Some(writer) = running.samples.remove(&reply.sample) else { return };
        let Reply { decoder, mut stops } = writer;
        // The rest is an incomplete character, or text that might have become a stop string.
        let rest = decoder.finish().unwrap_or_default();
        let (text, has_ended) = stops.push(&rest);
        let text = if has_ended { text } else { text + &stops.finish() };
        let reason = if has_ended { FinishReason::Stop } else { reason };
        self.end(reply, text, reason);
    }

    /// Notes the end of a reply, and of its request after the last one.
    fn end(&mut self, reply: ReplyId, text: String, reason: FinishReason) {
        let label = ReasonLabel {
            model_name: self.label.model_name.clone(),
            finished_reason: reason.name().to_owned(),
        };
        self.metrics.finished.get_or_create(&label).inc();
        self.send(reply.request, Piece::Finished { sample: reply.sample, text, reason });
        let Some(running) = self.running.get_mut(&reply.request) else { return };
        running.samples.remove(&reply.sample);
        if running.samples.is_empty() {
            observe(&self.metrics.request_seconds, &self.label, running.arrived.elapsed());
            self.running.remove(&reply.request);
        }
    }

    /// Sends a piece. A client that is gone, or does not read, loses its request.
    fn send(&mut self, request: u64, piece: Piece) {
        let Some(running) = self.running.get(&request) else { return };
        if running.pieces.try_send(piece).is_err() {
            self.cancel(request);
        }
    }

    fn update_metrics(&mut self) {
        let counts = self.engine.counts();
        let (metrics, label) = (self.metrics, &self.label);
        metrics.prompt_tokens.get_or_create(label).inc_by(counts.prefilled - self.counted.prefilled);
        metrics.shared_prompt_tokens.get_or_create(label).inc_by(counts.shared - self.counted.shared);
        metrics.preemptions.get_or_create(label).inc_by(counts.preempted - self.counted.preempted);
        metrics.draft_tokens.get_or_create(label).inc_by(counts.guessed - self.counted.guessed);
        metrics.accepted_tokens.get_or_create(label).inc_by(counts.accepted - self.counted.accepted);
        self.counted = counts;
        let stats = self.engine.stats();
        metrics.requests_running.get_or_create(label).set(stats.running as i64);
        metrics.requests_waiting.get_or_create(label).set(stats.waiting as i64);
        metrics.cached_tokens_used.get_or_create(label).set(stats.cached_tokens as i64);
    }
}

/// What a reward model does.
fn score(model: &ScalarModel, command: Command) {
    match command {
        Command::Generate(job) => {
            let _ = job.pieces.try_send(Piece::Failed(ApiError::failed("a reward model writes no replies")));
        }
        Command::Abort(_) | Command::EndAll => {}
        Command::Pool(PoolJob { rows, answer, .. }) => {
            let score = |rows: &[&[i64]]| {
                let scores = rlhf::reward::score(model, rows).map_err(|error| error.to_string())?;
                Ok(scores.unsqueeze(1))
            };
            let _ = answer.send(pool(&rows, score));
        }
    }
}

/// One vector for each row, from a function that gives `[B, width]` for a few rows.
fn pool(
    rows: &[Vec<i64>],
    compute: impl Fn(&[&[i64]]) -> Result<Tensor, String>,
) -> Result<Vec<Vec<f32>>, ApiError> {
    let mut vectors = Vec::with_capacity(rows.len());
    // Row by row: rows of a request are few, and the longest of them decides what memory they take.
    for row in rows {
        let vector = compute(&[row.as_slice()]).map_err(ApiError::body)?;
        let vector = Vec::<f32>::try_from(vector.to_kind(Kind::Float).reshape([-1]));
        let vector = vector.map_err(|error| ApiError::failed(error.to_string()))?;
        if vector.iter().any(|number| !number.is_finite()) {
            return Err(ApiError::failed(
                "the output of the model is not finite: values overflow in its dtype",
            ));
        }
        vectors.push(vector);
    }
    Ok(vectors)
}
