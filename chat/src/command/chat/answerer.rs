//! A model that answers in a chat: one on this machine, or one behind an endpoint.
//!
//! A conversation that no longer fits into the context loses its oldest messages, is summarized, or is
//! refused, as the user chose. Room for a reply of `max_new_tokens`, but of at most a quarter of the context,
//! is kept free.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use datasets::{Message, Role};
use inference::engine::{self, Engine, EngineOptions};
use inference::generate::{self, SingleReply};
use inference::remote::{RemoteModel, RemoteOptions, is_endpoint};
use inference::request::{FinishReason, Request};
use inference::sample::SamplingParams;
use inference::scheduler::Order;
use inference::session::Session;
use inference::shared_weights::SharedWeights;
use models::causal_lm::CausalLm;
use parallel::LocalRank;
use tui::chat::event::{ContextPolicy, Sampling};
use tui::line::Statistics;

use crate::failure::Failure;
use crate::session::{self, ModelSource, Speculation};

/// The longest summary of earlier messages, in tokens.
const SUMMARY: usize = 200;

/// The room of a new conversation in tokens. Most conversations need no more.
const LEAST_ROOM: usize = 1024;

/// What is asked.
pub(super) struct Question {
    /// The conversation up to the message that is answered.
    pub(super) messages: Vec<Message>,
    /// The text with which the answer already begins.
    pub(super) prefix: String,
    /// How the answer is drawn.
    pub(super) sampling: Sampling,
    /// What happens when the context is full.
    pub(super) policy: ContextPolicy,
    /// Whether the answer runs to its limit.
    pub(super) ignore_eos: bool,
}

/// What happens while an answer is written.
#[derive(Clone, Copy)]
pub(super) enum Update<'a> {
    /// The model got a prompt of this many tokens, without the `dropped` oldest messages.
    Started { prompt_tokens: u64, dropped: usize },
    /// The next piece of the answer, perhaps empty. `new_tokens` counts all tokens so far.
    Piece { text: &'a str, new_tokens: u64, rate: Option<f64> },
    /// Something that the user should know.
    Notice(&'a str),
}

/// Takes in updates, and may stop the answer.
pub(super) type Listener<'a> = dyn FnMut(Update<'_>) -> ControlFlow<()> + 'a;

/// The engine of a conversation. It keeps the keys and values of all turns, so that each turn computes its
/// new tokens alone.
pub(super) struct OwnEngine {
    engine: Option<Engine>,
    /// The tokens that are guessed in a step, and the model that guesses them.
    speculative_tokens: usize,
    draft: Option<CausalLm>,
}

/// A model that answers.
pub(super) enum Answerer {
    /// A model in this process.
    Local {
        session: Box<Session<CausalLm>>,
        engine: Box<OwnEngine>,
        /// The newest summary, and the messages that it stands for.
        summary: Option<(Vec<Message>, String)>,
    },
    /// A model behind an endpoint.
    Remote(RemoteModel),
}

impl Answerer {
    /// Loads the model of a folder or hub name, or connects to an endpoint. Models of one base share their
    /// `weights`.
    pub(super) fn load(
        source: &ModelSource,
        speculation: &Speculation,
        weights: &mut SharedWeights,
    ) -> anyhow::Result<Self> {
        if is_endpoint(&source.model) {
            return Ok(Self::Remote(RemoteModel::connect(&source.model)?));
        }
        let (session, trunk) = session::causal_lm_on(weights, source, LocalRank::SINGLE)?;
        // A chat needs a tokenizer, and a template in it.
        session.tokenizer()?.encode_prompt(&[Message::user("?")])?;
        weights.keep(trunk);
        let speculative_tokens = speculation.tokens;
        let engine = OwnEngine {
            engine: None,
            speculative_tokens,
            draft: weights.draft(|| speculation.load_draft())?,
        };
        Ok(Self::Local { session: Box::new(session), engine: Box::new(engine), summary: None })
    }

    /// The context length in tokens, if known.
    pub(super) fn context(&self) -> Option<u64> {
        match self {
            Self::Local { session, .. } => Some(session.model.config().max_positions() as u64),
            Self::Remote(model) => model.context(),
        }
    }

    /// What the user should know about the model.
    pub(super) fn detail(&self) -> String {
        match self {
            Self::Local { session, .. } => {
                let config = session.model.config();
                let device = format!("{:?}", session.model.device()).to_lowercase();
                let size = text::number::count(config.architecture().num_parameters());
                format!("{size} parameters, context {} tokens, on {device}", config.max_positions())
            }
            Self::Remote(model) => format!("{} behind an endpoint", model.name()),
        }
    }

    /// The model of this process, or an error that says what cannot be done with an endpoint.
    pub(super) fn local(&self, what: &str) -> anyhow::Result<&Session<CausalLm>> {
        match self {
            Self::Local { session, .. } => Ok(session),
            Self::Remote(model) => Err(needs_local(what, model)),
        }
    }

    /// Uses another chat template.
    pub(super) fn set_template(&mut self, template: &str) -> anyhow::Result<()> {
        match self {
            Self::Local { session, .. } => Ok(session.set_template(template)?),
            Self::Remote(model) => Err(needs_local("a chat template", model)),
        }
    }

    /// The text that the model would get, and its length in tokens.
    pub(super) fn prompt(&mut self, question: &Question) -> anyhow::Result<(String, usize)> {
        match self {
            Self::Local { session, engine, summary } => {
                let mut listen = |_: Update<'_>| ControlFlow::Continue(());
                let prompt = fitting_prompt(session, engine, summary, question, &mut listen)?;
                let text = session.tokenizer()?.render(&prompt.messages, true)?.text;
                Ok((text + &question.prefix, prompt.ids.len()))
            }
            Self::Remote(model) => Err(needs_local("the prompt", model)),
        }
    }

    /// Writes an answer.
    pub(super) fn answer(
        &mut self,
        question: &Question,
        listen: &mut Listener<'_>,
    ) -> anyhow::Result<Statistics> {
        match self.begin(question, listen)? {
            Answer::Local(mut answer) => loop {
                if let Some(statistics) = answer.step(listen)? {
                    return Ok(statistics);
                }
            },
            Answer::Remote(model) => answer_remotely(model, question, listen),
        }
    }

    /// Begins an answer, which may be written beside the answers of others.
    pub(super) fn begin(
        &mut self,
        question: &Question,
        listen: &mut Listener<'_>,
    ) -> anyhow::Result<Answer<'_>> {
        Ok(match self {
            Self::Local { session, engine, summary } => {
                let prompt = fitting_prompt(session, engine, summary, question, listen)?;
                Answer::Local(Box::new(LocalAnswer::begin(session, engine, &prompt, question, listen)?))
            }
            Self::Remote(model) => Answer::Remote(model),
        })
    }
}

/// An answer that has begun.
pub(super) enum Answer<'a> {
    /// It is written step by step.
    Local(Box<LocalAnswer<'a>>),
    /// [`answer_remotely`] waits for it.
    Remote(&'a RemoteModel),
}

fn needs_local(what: &str, model: &RemoteModel) -> anyhow::Error {
    anyhow::anyhow!("{what} needs a model on this machine; {} is behind an endpoint", model.name())
}

/// A prompt that fits into the context.
struct Prompt {
    /// The messages, perhaps with a summary of the ones that were left out.
    messages: Vec<Message>,
    /// Their ids, with the beginning of the answer.
    ids: Vec<i64>,
    /// The number of messages that were left out.
    dropped: usize,
}

/// Shortens the conversation until it fits.
fn fitting_prompt(
    session: &Session<CausalLm>,
    engine: &mut OwnEngine,
    summary: &mut Option<(Vec<Message>, String)>,
    question: &Question,
    listen: &mut Listener<'_>,
) -> anyhow::Result<Prompt> {
    let tokenizer = session.tokenizer()?;
    let prefix =
        if question.prefix.is_empty() { Vec::new() } else { tokenizer.encode(&question.prefix, false)? };
    let context = session.model.config().max_positions() as usize;
    let room = context.saturating_sub(question.sampling.max_new_tokens.min(context / 4).max(1));
    let encode = |messages: &[Message]| -> anyhow::Result<Vec<i64>> {
        Ok([tokenizer.encode_prompt(messages)?, prefix.clone()].concat())
    };
    let ids = encode(&question.messages)?;
    if ids.len() <= room {
        return Ok(Prompt { messages: question.messages.clone(), ids, dropped: 0 });
    }
    if question.policy == ContextPolicy::Stop {
        let longest = context as i64;
        let error =
            anyhow::Error::from(inference::Error::LongPrompt { index: 0, length: ids.len(), longest });
        return Err(error.context(
            "the context is full: /context drop leaves the oldest messages out, /new starts afresh",
        ));
    }

    let system = usize::from(question.messages.first().is_some_and(|first| first.role == Role::System));
    let keeps_summary = question.policy == ContextPolicy::Summarize;
    let room_for_text =
        if keeps_summary { room.saturating_sub(summary_tokens(context as i64)) } else { room };
    let mut was_summarized = false;
    // A conversation goes on with a user turn, whichever turns are left out.
    let begins = |from: &usize| question.messages[*from].role == Role::User;
    for from in (system + 1..question.messages.len()).filter(begins) {
        let mut kept = [&question.messages[..system], &question.messages[from..]].concat();
        if encode(&kept)?.len() > room_for_text {
            continue;
        }
        if keeps_summary {
            let text = summarized(session, engine, summary, &question.messages[system..from], listen)?;
            kept[system].content = format!("(What was said before: {text})\n\n{}", kept[system].content);
        }
        // The words around a summary count as well, and its text may have more tokens than were generated.
        let ids = encode(&kept)?;
        if ids.len() <= room {
            return Ok(Prompt { ids, messages: kept, dropped: from - system });
        }
        was_summarized = keeps_summary;
    }
    anyhow::ensure!(
        !was_summarized,
        "even the last message leaves no room for a summary of the others: /context drop leaves them out"
    );
    let last = &question.messages[question.messages.len() - 1..];
    let length = encode(&[&question.messages[..system], last].concat())?.len();
    Err(Failure::LongMessage { length, room, context }.into())
}

/// The most tokens of a summary in a context of `context` tokens.
fn summary_tokens(context: i64) -> usize {
    SUMMARY.min(context as usize / 4).max(1)
}

/// The summary of the oldest messages, written by the model itself. It is kept until other messages are left
/// out.
fn summarized(
    session: &Session<CausalLm>,
    engine: &mut OwnEngine,
    summary: &mut Option<(Vec<Message>, String)>,
    messages: &[Message],
    listen: &mut Listener<'_>,
) -> anyhow::Result<String> {
    if let Some((_, text)) = summary.as_ref().filter(|(old, _)| old == messages) {
        return Ok(text.clone());
    }
    let _ = listen(Update::Notice("the context is full: the model summarizes the oldest messages"));

    let tokenizer = session.tokenizer()?;
    let room = session.model.config().max_positions() as usize / 2;
    // An earlier summary stands for the messages that it covers.
    let covered = summary.as_ref().filter(|(old, _)| messages.starts_with(old));
    let mut lines: Vec<String> = covered.map(|(_, text)| format!("Earlier: {text}")).into_iter().collect();
    lines.extend(
        messages
            .iter()
            .skip(covered.map_or(0, |(old, _)| old.len()))
            .map(|message| format!("{}: {}", message.role, message.content)),
    );
    let ids = loop {
        let request = format!("Summarize this conversation in a few sentences.\n\n{}", lines.join("\n"));
        let ids = tokenizer.encode_prompt(&[Message::user(request)])?;
        if ids.len() <= room || lines.len() == 1 {
            break ids;
        }
        lines.remove(0);
    };
    anyhow::ensure!(
        ids.len() <= room,
        "a message is too long to be summarized: /context drop leaves the oldest messages out"
    );
    let request = Request {
        max_new_tokens: summary_tokens(session.model.config().max_positions()),
        stop_ids: session.stop_ids().into(),
        ..Request::new(ids.into(), SamplingParams::greedy())
    };
    let engine = engine.with_room(session, &request)?;
    let mut listen = |_: i64| listen(Update::Piece { text: "", new_tokens: 0, rate: None });
    let made = generate::complete(engine, request, &mut listen)?;
    anyhow::ensure!(made.finish_reason != FinishReason::Interrupted, "stopped while summarizing");
    let text = tokenizer.decode(&made.ids, true)?.trim().to_owned();
    *summary = Some((messages.to_vec(), text.clone()));
    Ok(text)
}

impl OwnEngine {
    /// The engine with room for a request. The one that is there goes on if it is large enough.
    fn with_room(&mut self, session: &Session<CausalLm>, request: &Request) -> anyhow::Result<&mut Engine> {
        let longest = session.model.config().max_positions() as usize;
        let needed = engine::cached_tokens(1, (request.prompt.len() + request.max_new_tokens).min(longest));
        if self.engine.as_ref().is_none_or(|engine| engine.cached_tokens() < needed) {
            // The conversation becomes longer, and a new engine computes it anew: it gets twice the room.
            let options = EngineOptions {
                sequences: 1,
                cached_tokens: needed
                    .max(LEAST_ROOM)
                    .next_power_of_two()
                    .min(engine::cached_tokens(1, longest)),
                batched_tokens: engine::BATCHED_TOKENS,
                order: Order::Arrival,
                speculative_tokens: self.speculative_tokens,
            };
            self.engine = None;
            let engine = Engine::new(&session.model, options)?;
            self.engine = Some(match &self.draft {
                Some(draft) => engine.with_draft(draft)?,
                None => engine,
            });
        }
        Ok(self.engine.as_mut().expect("there is one"))
    }
}

/// The answer of a model of this process.
pub(super) struct LocalAnswer<'a> {
    reply: SingleReply<'a>,
    stop_ids: Vec<i64>,
    stream: Stream<'a>,
    prompt_tokens: u64,
    context: u64,
}

impl<'a> LocalAnswer<'a> {
    /// Begins the answer to a prompt of ids.
    fn begin(
        session: &'a Session<CausalLm>,
        engine: &'a mut OwnEngine,
        prompt: &Prompt,
        question: &Question,
        listen: &mut Listener<'_>,
    ) -> anyhow::Result<Self> {
        let Sampling { temperature, top_k, top_p, max_new_tokens, seed } = question.sampling;
        let sampling = SamplingParams { temperature, top_k, top_p, ..SamplingParams::default() };
        let stop_ids = if question.ignore_eos { Vec::new() } else { session.stop_ids() };
        let request = Request {
            seed,
            max_new_tokens,
            stop_ids: stop_ids.as_slice().into(),
            ..Request::new(prompt.ids.as_slice().into(), sampling)
        };

        let _ = listen(Update::Started { prompt_tokens: prompt.ids.len() as u64, dropped: prompt.dropped });
        let mut stream = Stream::new(session, &question.prefix)?;
        // The model computes in steps alone.
        stream.clock.pause();
        Ok(Self {
            stream,
            reply: SingleReply::begin(engine.with_room(session, &request)?, request)?,
            stop_ids,
            prompt_tokens: prompt.ids.len() as u64,
            context: session.model.config().max_positions() as u64,
        })
    }

    /// Whether a token has been drawn.
    pub(super) fn has_begun(&self) -> bool {
        self.stream.new_tokens > 0
    }

    /// Writes on for a step. Returns the statistics once the answer has ended.
    pub(super) fn step(&mut self, listen: &mut Listener<'_>) -> anyhow::Result<Option<Statistics>> {
        let Self { reply, stop_ids, stream, .. } = self;
        stream.clock.go_on();
        let mut failed = None;
        let goes_on = reply.step(&mut |id| {
            let text = if stop_ids.contains(&id) { Ok(String::new()) } else { stream.decoder.push(id) };
            stream.count();
            match text {
                Ok(text) => listen(stream.piece(&text)),
                // The engine knows no errors of a callback: this one stops it and is returned below.
                Err(problem) => {
                    failed = Some(problem);
                    ControlFlow::Break(())
                }
            }
        })?;
        if let Some(problem) = failed {
            return Err(problem.into());
        }
        if goes_on {
            stream.clock.pause();
            return Ok(None);
        }

        let (reply, clock) = (reply.completion(), &stream.clock);
        let rest = stream.decoder.clone().finish()?;
        let new_tokens = reply.ids.len() as u64;
        let _ = listen(Update::Piece { text: &rest, new_tokens, rate: clock.rate(new_tokens) });
        Ok(Some(clock.statistics(self.prompt_tokens, new_tokens, self.context, reply.finish_reason)))
    }
}

/// An answer that is being decoded.
struct Stream<'a> {
    decoder: datasets::StreamDecoder<'a>,
    clock: Clock,
    new_tokens: u64,
}

impl<'a> Stream<'a> {
    /// A stream that goes on after `prefix`. The decoder has to know it: the text of a token may depend on
    /// the one before.
    fn new(session: &'a Session<CausalLm>, prefix: &str) -> anyhow::Result<Self> {
        let tokenizer = session.tokenizer()?;
        let mut decoder = tokenizer.stream_decoder(true);
        if !prefix.is_empty() {
            for id in tokenizer.encode(prefix, false)? {
                decoder.push(id)?;
            }
        }
        Ok(Self { decoder, clock: Clock::start(), new_tokens: 0 })
    }

    fn count(&mut self) {
        self.new_tokens += 1;
        self.clock.note_token();
    }

    fn piece<'t>(&self, text: &'t str) -> Update<'t> {
        Update::Piece { text, new_tokens: self.new_tokens, rate: self.clock.rate(self.new_tokens) }
    }
}

/// Measures an answer. It stands still while other models have their turn.
struct Clock {
    /// The time before it last stood still.
    worked: Duration,
    /// Since when it goes on.
    since: Option<Instant>,
    first_token: Option<Duration>,
}

impl Clock {
    fn start() -> Self {
        Self { worked: Duration::ZERO, since: Some(Instant::now()), first_token: None }
    }

    fn pause(&mut self) {
        self.worked = self.elapsed();
        self.since = None;
    }

    fn go_on(&mut self) {
        self.since = Some(Instant::now());
    }

    fn elapsed(&self) -> Duration {
        self.worked + self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    fn note_token(&mut self) {
        let elapsed = self.elapsed();
        self.first_token.get_or_insert(elapsed);
    }

    fn rate(&self, new_tokens: u64) -> Option<f64> {
        self.statistics(0, new_tokens, 0, FinishReason::Stop).tokens_per_second()
    }

    fn statistics(
        &self,
        prompt_tokens: u64,
        new_tokens: u64,
        context: u64,
        reason: FinishReason,
    ) -> Statistics {
        let finish_reason = match reason {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Interrupted => "interrupted",
        };
        Statistics {
            prompt_tokens,
            new_tokens,
            context,
            first_token: self.first_token.unwrap_or_default(),
            total: self.elapsed(),
            finish_reason: finish_reason.to_owned(),
        }
    }
}

/// Asks a model behind an endpoint for an answer.
pub(super) fn answer_remotely(
    model: &RemoteModel,
    question: &Question,
    listen: &mut Listener<'_>,
) -> anyhow::Result<Statistics> {
    anyhow::ensure!(
        question.prefix.is_empty(),
        "an endpoint begins answers by itself: /prefill and /continue need a model on this machine"
    );
    let sampling = question.sampling;
    let options = RemoteOptions {
        temperature: sampling.temperature,
        top_p: sampling.top_p,
        top_k: sampling.top_k,
        max_new_tokens: sampling.max_new_tokens,
        seed: sampling.seed,
    };

    // A server streams pieces of text, not tokens: until its count comes with the last one, pieces count.
    let (mut clock, mut pieces) = (Clock::start(), 0);
    let reply = model.chat(&question.messages, &options, &mut |text| {
        if !text.is_empty() {
            pieces += 1;
            clock.note_token();
        }
        listen(Update::Piece { text, new_tokens: pieces, rate: clock.rate(pieces) })
    })?;

    for notice in &reply.notices {
        let _ = listen(Update::Notice(notice));
    }
    if let Some(problem) = reply.problem {
        return Err(problem.into());
    }
    let prompt_tokens = reply.prompt_tokens.unwrap_or_default();
    Ok(clock.statistics(
        prompt_tokens,
        reply.new_tokens,
        reply.context.unwrap_or_default(),
        reply.finish_reason,
    ))
}
