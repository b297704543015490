//! `/v1/completions`: texts that are continued as they are, without a template.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State as Shared;
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use futures_util::future::try_join_all;
use inference::request::{FinishReason, Request, TopLogprob};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::answer::{Answer, Head, Reply, StreamOptions, Usage};
use super::sampling::{Sampling, Wanted, new_tokens};
use super::stream::{self, ChunkWriter, json_event};
use super::tokens::{TextOffset, TokenText, off_thread};
use crate::auth::Caller;
use crate::error::{ApiError, Failures};
use crate::json::Json;
use crate::state::{Limits, Model, ModelKind, Pieces, State};
use crate::worker::{TextOptions, TokenLogprob};

/// The most tokens of a reply if the request does not say.
const DEFAULT_NEW_TOKENS: usize = 16;

/// Texts to continue.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
pub(crate) struct CompletionRequest {
    /// A name of `/v1/models`.
    model: String,
    /// One text or several, or their token ids.
    prompt: Prompts,
    /// The most tokens of a reply; 16 if absent. 0 only with `echo`.
    max_tokens: Option<usize>,
    /// Whether the answer begins with the prompt.
    #[serde(default)]
    echo: bool,
    /// How many of the most likely tokens come with each token, whose log-probability comes then too. With
    /// `echo`, also for the tokens of the prompt.
    logprobs: Option<usize>,
    #[serde(default)]
    stream: bool,
    stream_options: Option<StreamOptions>,
    #[serde(flatten)]
    sampling: Sampling,
    #[schema(ignore)]
    suffix: Option<String>,
    #[schema(ignore)]
    best_of: Option<u32>,
}

/// One prompt or several.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(
    untagged,
    expecting = "expected a text, an array of texts, token ids, or an array of arrays of token ids"
)]
pub(crate) enum Prompts {
    /// A text.
    Text(String),
    /// Several texts.
    Texts(Vec<String>),
    /// The token ids of a text.
    Ids(Vec<i64>),
    /// The token ids of several texts.
    ManyIds(Vec<Vec<i64>>),
}

/// Continued texts.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CompletionResponse {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    choices: Vec<CompletionChoice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
}

/// A continued text.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CompletionChoice {
    index: usize,
    text: String,
    logprobs: Option<CompletionLogprobs>,
    finish_reason: Option<&'static str>,
}

/// The log-probabilities of the tokens of a text.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct CompletionLogprobs {
    tokens: Vec<String>,
    /// `null` for the first token of a prompt, before which there is nothing.
    token_logprobs: Vec<Option<f32>>,
    /// For each token, the most likely tokens in its place.
    #[schema(value_type = Vec<Object>)]
    top_logprobs: Vec<Option<Map<String, Value>>>,
    /// Where each token begins, in characters.
    text_offset: Vec<usize>,
}

/// Continues texts.
#[utoipa::path(
    post, path = "/v1/completions", request_body = CompletionRequest,
    responses((status = 200, body = CompletionResponse), Failures)
)]
pub(crate) async fn complete(
    Shared(state): Shared<Arc<State>>,
    Extension(caller): Extension<Caller>,
    Json(request): Json<CompletionRequest>,
) -> Result<Response, ApiError> {
    let model = Arc::clone(state.model(&request.model)?);
    let requests = request.engine_requests(&model, &state.limits, caller).await?;
    let text = TextOptions { stops: request.sampling.stops(&state.limits)?, continues_prompt: true };
    let head = Head::new("cmpl", &model);
    let samples = request.sampling.samples(&state.limits)?;
    let prompts: Vec<Arc<[i64]>> = requests.iter().map(|request| Arc::clone(&request.prompt)).collect();
    let send = |request: Request| model.send(request, text.clone(), state.limits.requests);
    let mut pieces: Vec<Pieces> = requests.into_iter().map(send).collect::<Result<_, _>>()?;

    if request.stream {
        let include_usage = request.stream_options.unwrap_or_default().include_usage;
        let (wants_logprobs, offsets) =
            (request.logprobs.is_some(), vec![TextOffset::default(); samples as usize]);
        let writer = CompletionWriter { head, model, wants_logprobs, offsets };
        return Ok(stream::respond(pieces.remove(0), samples, prompts[0].len(), include_usage, writer));
    }

    // All answers are read at once: none waits until its channel is full.
    let answers = try_join_all(pieces.into_iter().map(|pieces| Answer::collect(pieces, samples))).await?;
    let usage = Usage::of(
        prompts.iter().map(|prompt| prompt.len()).sum(),
        if request.is_scored_only() { 0 } else { answers.iter().map(Answer::completion_tokens).sum() },
    );
    let mut choices = Vec::new();
    for (ids, Answer { replies, prompt_logprobs, prompt_top }) in prompts.iter().zip(answers) {
        let prompt = ScoredPrompt { ids, logprobs: &prompt_logprobs, top: &prompt_top };
        let prompt = request.echo.then_some(&prompt);
        for reply in replies {
            choices.push(choice(&request, &model, choices.len(), prompt, reply)?);
        }
    }

    let Head { id, created, model } = head;
    let usage = Some(usage);
    Ok(axum::Json(CompletionResponse { id, object: "text_completion", created, model, choices, usage })
        .into_response())
}

impl CompletionRequest {
    /// Whether only the prompt is looked at.
    fn is_scored_only(&self) -> bool {
        self.max_tokens == Some(0)
    }

    /// The requests that the engine gets.
    async fn engine_requests(
        &self,
        model: &Arc<Model>,
        limits: &Limits,
        caller: Caller,
    ) -> Result<Vec<Request>, ApiError> {
        let refuse = |field, problem: String| Err(ApiError::field(field, problem));
        if self.suffix.as_ref().is_some_and(|suffix| !suffix.is_empty()) {
            return refuse("suffix", "this server does not do this: leave it out".to_owned());
        }
        if self.best_of.is_some_and(|best_of| best_of > 1) {
            return refuse("best_of", "this server does not do this: leave it out".to_owned());
        }
        let top_logprobs = self.logprobs.unwrap_or(0);
        if top_logprobs > limits.top_logprobs {
            return refuse("logprobs", format!("{top_logprobs}; at most {}", limits.top_logprobs));
        }
        let tokens = self.max_tokens.unwrap_or(DEFAULT_NEW_TOKENS);
        if tokens == 0 && !self.echo {
            return refuse("max_tokens", "0 is for `echo` alone".to_owned());
        }
        if self.stream && self.echo {
            return refuse("echo", "not with `stream`".to_owned());
        }

        let wanted = Wanted { field: "max_tokens", tokens: tokens.max(1) };
        let ready = model.ready_as(ModelKind::Language)?;
        if self.stream && self.prompt.count() > 1 {
            return refuse("prompt", "several prompts are not streamed: send them one by one".to_owned());
        }
        let prompts = self.prompt.tokens(Arc::clone(model), "prompt", limits).await?;
        let request = |prompt: Arc<[i64]>| {
            Ok(Request {
                // A prompt that is only scored needs room for a token all the same, which nobody sees.
                max_new_tokens: new_tokens(Some(wanted), prompt.len(), ready)?,
                top_logprobs,
                prompt_logprobs: self.echo && self.logprobs.is_some(),
                salt: caller.salt,
                ..self.sampling.request(prompt, ready, limits)?
            })
        };
        prompts.into_iter().map(request).collect()
    }
}

impl Prompts {
    /// The number of prompts.
    fn count(&self) -> usize {
        match self {
            Self::Text(_) | Self::Ids(_) => 1,
            Self::Texts(texts) => texts.len(),
            Self::ManyIds(prompts) => prompts.len(),
        }
    }

    /// The tokens of the prompts, of which each has one at least.
    pub(crate) async fn tokens(
        &self,
        model: Arc<Model>,
        field: &str,
        limits: &Limits,
    ) -> Result<Vec<Arc<[i64]>>, ApiError> {
        let (count, most) = (self.count(), limits.prompts);
        if !(1..=most).contains(&count) {
            return Err(ApiError::field(field, format!("{count} texts; from 1 to {most}")));
        }
        let vocab_size = model.ready()?.vocab_size;
        let prompts = self.encoded(model).await?;
        for (index, prompt) in prompts.iter().enumerate() {
            if prompt.is_empty() {
                return Err(ApiError::field(field, format!("text {index} has no tokens")));
            }
            if let Some(id) = prompt.iter().find(|id| !(0..vocab_size).contains(*id)) {
                return Err(ApiError::field(field, format!("{id} is no token id below {vocab_size}")));
            }
        }
        Ok(prompts)
    }

    async fn encoded(&self, model: Arc<Model>) -> Result<Vec<Arc<[i64]>>, ApiError> {
        let texts = match self {
            Self::Text(text) => vec![text.clone()],
            Self::Texts(texts) => texts.clone(),
            Self::Ids(ids) => return Ok(vec![ids.as_slice().into()]),
            Self::ManyIds(prompts) => return Ok(prompts.iter().map(|ids| ids.as_slice().into()).collect()),
        };
        let encode = move || -> Result<Vec<Arc<[i64]>>, ApiError> {
            let tokenizer = &model.ready()?.tokenizer;
            let ids = |text: &String| tokenizer.encode(text, true).map(Into::into);
            let encoded: Result<_, datasets::Error> = texts.iter().map(ids).collect();
            encoded.map_err(|error| ApiError::body(error.to_string()))
        };
        off_thread(encode).await
    }
}

/// The choice of a reply. Its text begins with the prompt if the request wants that.
fn choice(
    request: &CompletionRequest,
    model: &Model,
    index: usize,
    prompt: Option<&ScoredPrompt<'_>>,
    reply: Reply,
) -> Result<CompletionChoice, ApiError> {
    let is_scored_only = request.is_scored_only();
    let reply = if is_scored_only { Reply { reason: reply.reason, ..Reply::default() } } else { reply };

    let (mut logprobs, mut offset) = (CompletionLogprobs::default(), TextOffset::default());
    if let Some(prompt) = prompt {
        logprobs.add_prompt(model, prompt, &mut offset);
    }
    for token in &reply.tokens {
        logprobs.add(model, token.id, &mut offset, Some((token.logprob, &token.top)));
    }

    let echoed = prompt.map(|prompt| text_of(model, prompt.ids)).transpose()?;
    Ok(CompletionChoice {
        index,
        text: echoed.unwrap_or_default() + &reply.text,
        logprobs: request.logprobs.is_some().then_some(logprobs),
        finish_reason: if is_scored_only { Some("length") } else { reply.reason.map(FinishReason::name) },
    })
}

/// A prompt with its log-probabilities from the second token on.
struct ScoredPrompt<'a> {
    ids: &'a [i64],
    logprobs: &'a [f32],
    top: &'a [Vec<TopLogprob>],
}

impl CompletionLogprobs {
    /// Adds the tokens of a prompt, of which the first has no log-probability.
    fn add_prompt(&mut self, model: &Model, prompt: &ScoredPrompt<'_>, offset: &mut TextOffset) {
        let Some((&first, rest)) = prompt.ids.split_first() else { return };
        self.add(model, first, offset, None);
        for ((&id, &logprob), top) in rest.iter().zip(prompt.logprobs).zip(prompt.top) {
            self.add(model, id, offset, Some((logprob, top)));
        }
    }

    /// Adds a token with its log-probability and the most likely tokens in its place.
    fn add(
        &mut self,
        model: &Model,
        id: i64,
        offset: &mut TextOffset,
        scored: Option<(f32, &Vec<TopLogprob>)>,
    ) {
        let token = match scored {
            None => TokenText::first(model, id),
            Some(_) => TokenText::new(model, id),
        };
        let entry = |&(id, logprob): &TopLogprob| (TokenText::new(model, id).text, Value::from(logprob));

        self.text_offset.push(offset.add(&token.bytes));
        self.tokens.push(token.text);
        self.token_logprobs.push(scored.map(|(logprob, _)| logprob));
        self.top_logprobs.push(scored.map(|(_, top)| top.iter().map(entry).collect()));
    }
}

fn text_of(model: &Model, ids: &[i64]) -> Result<String, ApiError> {
    model.ready()?.tokenizer.decode(ids, false).map_err(|error| ApiError::body(error.to_string()))
}

/// Writes the chunks of a streamed text.
struct CompletionWriter {
    head: Head,
    model: Arc<Model>,
    wants_logprobs: bool,
    /// Where the next token of each sample begins.
    offsets: Vec<TextOffset>,
}

impl CompletionWriter {
    fn choice(
        &self,
        index: u32,
        text: String,
        logprobs: Option<CompletionLogprobs>,
        finish_reason: Option<&'static str>,
    ) -> Event {
        let choice = CompletionChoice { index: index as usize, text, logprobs, finish_reason };
        self.chunk(vec![choice], None)
    }

    fn chunk(&self, choices: Vec<CompletionChoice>, usage: Option<Usage>) -> Event {
        let Head { id, created, model } = self.head.clone();
        json_event(&CompletionResponse { id, object: "text_completion", created, model, choices, usage })
    }
}

impl ChunkWriter for CompletionWriter {
    fn begin(&mut self, _: u32) -> Option<Event> {
        None
    }

    fn token(&mut self, sample: u32, text: String, token: &TokenLogprob) -> Option<Event> {
        if !self.wants_logprobs {
            return (!text.is_empty()).then(|| self.choice(sample, text, None, None));
        }
        let mut logprobs = CompletionLogprobs::default();
        let offset = &mut self.offsets[sample as usize];
        logprobs.add(&self.model, token.id, offset, Some((token.logprob, &token.top)));
        Some(self.choice(sample, text, Some(logprobs), None))
    }

    fn finished(&mut self, sample: u32, text: String, reason: &'static str) -> Event {
        self.choice(sample, text, None, Some(reason))
    }

    fn usage(&mut self, usage: Usage) -> Event {
        self.chunk(Vec::new(), Some(usage))
    }
}
