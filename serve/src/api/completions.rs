//! `/v1/completions`: texts that are continued as they are, without a template.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::State as Shared;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::future::try_join_all;
use futures_util::stream::{self, Stream};
use inference::request::{Request, TopLogprob};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::answer::{Answer, Reply, reason_name};
use super::chat::{Head, StreamOptions, Usage, json_event};
use super::sampling::{Sampling, new_tokens};
use crate::auth::Caller;
use crate::error::{ApiError, Failures};
use crate::json::Json;
use crate::state::{Limits, Model, ModelKind, Pieces, State};
use crate::worker::{Piece, TextOptions};

/// The most tokens of a reply if the request does not say.
const DEFAULT_NEW_TOKENS: usize = 16;

/// Texts to continue.
#[derive(Debug, Deserialize, ToSchema)]
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
#[serde(untagged)]
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
    let head = Head::new(&model);
    let samples = request.sampling.samples(&state.limits)?;
    let prompts: Vec<Arc<[i64]>> = requests.iter().map(|request| Arc::clone(&request.prompt)).collect();
    let send = |request: Request| model.send(request, text.clone(), state.limits.requests);
    let mut pieces: Vec<Pieces> = requests.into_iter().map(send).collect::<Result<_, _>>()?;

    if request.stream {
        let chunks = Chunks { pieces: pieces.remove(0), head, usage: Usage::of(prompts[0].len(), 0) };
        return Ok(chunks.into_response(samples, request.stream_options.unwrap_or_default().include_usage));
    }
    // All answers are read at once: none waits until its channel is full.
    let answers = try_join_all(pieces.into_iter().map(|pieces| Answer::collect(pieces, samples))).await?;
    let usage = Usage::of(
        prompts.iter().map(|prompt| prompt.len()).sum(),
        if request.is_scored_only() { 0 } else { answers.iter().map(Answer::completion_tokens).sum() },
    );
    let writer = Writer { model: &model, request: &request };
    let mut choices = Vec::new();
    for (prompt, answer) in prompts.iter().zip(answers) {
        writer.add_choices(prompt, answer, &mut choices)?;
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
        let wanted = self.max_tokens.unwrap_or(DEFAULT_NEW_TOKENS);
        if wanted == 0 && !self.echo {
            return refuse("max_tokens", "0 is for `echo` alone".to_owned());
        }
        if self.stream && self.echo {
            return refuse("echo", "not with `stream`".to_owned());
        }

        let ready = model.ready_as(ModelKind::Language)?;
        let prompts = self.prompt.tokens(Arc::clone(model), "prompt").await?;
        if prompts.is_empty() || prompts.len() > limits.prompts {
            return refuse("prompt", format!("{} prompts; from 1 to {}", prompts.len(), limits.prompts));
        }
        if self.stream && prompts.len() > 1 {
            return refuse("prompt", "several prompts are not streamed: send them one by one".to_owned());
        }
        let request = |prompt: Arc<[i64]>| {
            Ok(Request {
                // A prompt that is only scored needs room for a token all the same, which nobody sees.
                max_new_tokens: new_tokens(Some(wanted.max(1)), prompt.len(), ready.context)?,
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
    /// The tokens of the prompts, of which each has one at least.
    pub(crate) async fn tokens(&self, model: Arc<Model>, field: &str) -> Result<Vec<Arc<[i64]>>, ApiError> {
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
        tokio::task::spawn_blocking(encode).await.map_err(|error| ApiError::failed(error.to_string()))?
    }
}

/// Writes the choices of an answer.
struct Writer<'a> {
    model: &'a Model,
    request: &'a CompletionRequest,
}

impl Writer<'_> {
    fn add_choices(
        &self,
        prompt: &[i64],
        answer: Answer,
        choices: &mut Vec<CompletionChoice>,
    ) -> Result<(), ApiError> {
        let is_scored_only = self.request.is_scored_only();
        let prompt_text = if self.request.echo { self.text(prompt)? } else { String::new() };
        let Answer { replies, prompt_logprobs, prompt_top } = answer;
        for mut reply in replies {
            if is_scored_only {
                reply = Reply { reason: reply.reason, ..Reply::default() };
            }
            let logprobs = if self.request.logprobs.is_some() {
                let mut logprobs = CompletionLogprobs::default();
                if self.request.echo {
                    self.add_prompt(prompt, &prompt_logprobs, &prompt_top, &mut logprobs)?;
                }
                for token in &reply.tokens {
                    self.add_token(token.id, Some(token.logprob), Some(&token.top), &mut logprobs)?;
                }
                Some(logprobs)
            } else {
                None
            };
            choices.push(CompletionChoice {
                index: choices.len(),
                text: format!("{prompt_text}{}", reply.text),
                logprobs,
                finish_reason: if is_scored_only { Some("length") } else { reply.reason.map(reason_name) },
            });
        }
        Ok(())
    }

    /// Adds the tokens of a prompt, of which the first has no log-probability.
    fn add_prompt(
        &self,
        prompt: &[i64],
        logprobs: &[f32],
        top: &[Vec<TopLogprob>],
        to: &mut CompletionLogprobs,
    ) -> Result<(), ApiError> {
        let Some((&first, rest)) = prompt.split_first() else { return Ok(()) };
        self.add_token(first, None, None, to)?;
        for ((&id, &logprob), top) in rest.iter().zip(logprobs).zip(top) {
            self.add_token(id, Some(logprob), Some(top), to)?;
        }
        Ok(())
    }

    fn add_token(
        &self,
        id: i64,
        logprob: Option<f32>,
        top: Option<&Vec<TopLogprob>>,
        to: &mut CompletionLogprobs,
    ) -> Result<(), ApiError> {
        // The first token of a text has no token before it.
        let is_first = to.tokens.is_empty() && logprob.is_none();
        let text = |id: i64| if is_first { self.text(&[id]) } else { self.token_text(id) };
        let before = to.text_offset.last().zip(to.tokens.last());
        let offset = before.map_or(0, |(offset, token): (&usize, &String)| offset + token.chars().count());
        to.text_offset.push(offset);
        to.tokens.push(text(id)?);
        to.token_logprobs.push(logprob);
        to.top_logprobs.push(match top {
            None => None,
            Some(top) => {
                let entry = |&(id, logprob): &TopLogprob| Ok((text(id)?, Value::from(logprob)));
                Some(top.iter().map(entry).collect::<Result<_, ApiError>>()?)
            }
        });
        Ok(())
    }

    fn token_text(&self, id: i64) -> Result<String, ApiError> {
        self.model.ready()?.tokenizer.token_text(id).map_err(|error| ApiError::body(error.to_string()))
    }

    fn text(&self, ids: &[i64]) -> Result<String, ApiError> {
        let text = self.model.ready()?.tokenizer.decode(ids, false);
        text.map_err(|error| ApiError::body(error.to_string()))
    }
}

/// The events of a streamed text.
struct Chunks {
    pieces: Pieces,
    head: Head,
    usage: Usage,
}

impl Chunks {
    fn into_response(self, samples: u32, include_usage: bool) -> Response {
        let keep_alive = KeepAlive::new().interval(Duration::from_secs(15));
        Sse::new(self.events(samples, include_usage)).keep_alive(keep_alive).into_response()
    }

    fn events(self, samples: u32, include_usage: bool) -> impl Stream<Item = Result<Event, Infallible>> {
        let texts =
            stream::unfold((self, samples, include_usage), |(mut chunks, open, include_usage)| async move {
                if open == 0 {
                    let usage = chunks.usage;
                    let event = include_usage.then(|| json_event(&chunks.chunk(Vec::new(), Some(usage))))?;
                    return Some((Ok(event), (chunks, 0, false)));
                }
                loop {
                    match chunks.pieces.next().await {
                        Piece::Prompt { .. } => {}
                        Piece::Token { sample, text, .. } => {
                            chunks.usage =
                                Usage::of(chunks.usage.prompt_tokens, chunks.usage.completion_tokens + 1);
                            if !text.is_empty() {
                                let event = chunks.choice(sample, text, None);
                                return Some((Ok(event), (chunks, open, include_usage)));
                            }
                        }
                        Piece::Finished { sample, text, reason } => {
                            let event = chunks.choice(sample, text, Some(reason_name(reason)));
                            return Some((Ok(event), (chunks, open - 1, include_usage)));
                        }
                        Piece::Failed(error) => {
                            return Some((Ok(json_event(&error.to_body())), (chunks, 0, false)));
                        }
                    }
                }
            });
        stream::StreamExt::chain(texts, stream::once(async { Ok(Event::default().data("[DONE]")) }))
    }

    fn choice(&self, index: u32, text: String, finish_reason: Option<&'static str>) -> Event {
        let choice = CompletionChoice { index: index as usize, text, logprobs: None, finish_reason };
        json_event(&self.chunk(vec![choice], None))
    }

    fn chunk(&self, choices: Vec<CompletionChoice>, usage: Option<Usage>) -> CompletionResponse {
        let Head { id, created, model } = self.head.clone();
        CompletionResponse { id, object: "text_completion", created, model, choices, usage }
    }
}
