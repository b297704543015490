//! `/v1/chat/completions`.

use std::slice;
use std::sync::Arc;

use axum::Extension;
use axum::extract::State as Shared;
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use datasets::{Message, Role};
use inference::request::{FinishReason, Request, TopLogprob};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::answer::{Answer, Head, Reply, StreamOptions, Usage};
use super::sampling::{Sampling, Wanted, new_tokens};
use super::stream::{self, ChunkWriter, json_event};
use super::tokens::{TokenText, off_thread};
use crate::auth::Caller;
use crate::error::{ApiError, Failures};
use crate::json::Json;
use crate::state::{Limits, Model, ModelKind, State};
use crate::worker::{TextOptions, TokenLogprob};

/// A conversation to continue.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
pub(crate) struct ChatRequest {
    /// A name of `/v1/models`.
    model: String,
    /// The conversation, which ends with a message of the user.
    messages: Vec<ChatMessage>,
    /// The most tokens of a reply. All that fit, if absent.
    max_completion_tokens: Option<usize>,
    /// The old name of `max_completion_tokens`.
    max_tokens: Option<usize>,
    /// Whether the reply comes as server-sent events while it is written.
    #[serde(default)]
    stream: bool,
    stream_options: Option<StreamOptions>,
    /// Whether each token comes with its log-probability.
    #[serde(default)]
    logprobs: bool,
    /// How many of the most likely tokens come with each token.
    top_logprobs: Option<usize>,
    #[serde(flatten)]
    sampling: Sampling,
    // What this server does not do is refused by name, so that nobody takes it for done.
    #[schema(ignore)]
    tools: Option<Value>,
    #[schema(ignore)]
    tool_choice: Option<Value>,
    #[schema(ignore)]
    functions: Option<Value>,
    #[schema(ignore)]
    response_format: Option<Value>,
    #[schema(ignore)]
    audio: Option<Value>,
}

/// A turn of a conversation.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
pub(crate) struct ChatMessage {
    /// `system`, `developer`, `user` or `assistant`.
    role: String,
    /// A text, or parts of type `text`.
    content: Content,
}

/// The content of a message.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a text, or an array of parts")]
pub(crate) enum Content {
    /// A text.
    Text(String),
    /// Parts, which follow one another.
    Parts(Vec<Part>),
}

/// A part of a message.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
pub(crate) struct Part {
    /// `text`.
    r#type: String,
    text: Option<String>,
}

/// Replies to a conversation.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatResponse {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    choices: Vec<ChatChoice>,
    usage: Usage,
}

/// A reply.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatChoice {
    index: u32,
    message: ChatReply,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
}

/// The message of a reply.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatReply {
    role: &'static str,
    content: String,
}

/// A part of a streamed reply.
#[derive(Debug, Serialize)]
struct ChatChunk {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    choices: Vec<ChunkChoice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
}

#[derive(Debug, Serialize)]
struct ChunkChoice {
    index: u32,
    delta: Delta,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
}

#[derive(Debug, Default, Serialize)]
struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
}

/// The log-probabilities of a reply.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatLogprobs {
    content: Vec<ChatLogprob>,
}

/// The log-probability of a token.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatLogprob {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
    top_logprobs: Vec<ChatTopLogprob>,
}

/// One of the most likely tokens.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChatTopLogprob {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

/// Continues a conversation.
#[utoipa::path(
    post, path = "/v1/chat/completions", request_body = ChatRequest,
    responses((status = 200, body = ChatResponse), Failures)
)]
pub(crate) async fn complete(
    Shared(state): Shared<Arc<State>>,
    Extension(caller): Extension<Caller>,
    Json(request): Json<ChatRequest>,
) -> Result<Response, ApiError> {
    let model = Arc::clone(state.model(&request.model)?);
    let engine_request = request.engine_request(&model, &state.limits, caller).await?;
    let head = Head::new("chatcmpl", &model);
    let (prompt_tokens, samples) = (engine_request.prompt.len(), engine_request.samples);
    let text = TextOptions { stops: request.sampling.stops(&state.limits)?, continues_prompt: false };
    let pieces = model.send(engine_request, text, state.limits.requests)?;

    if request.stream {
        let include_usage = request.stream_options.unwrap_or_default().include_usage;
        let writer = ChatWriter { head, model, wants_logprobs: request.logprobs };
        return Ok(stream::respond(pieces, samples, prompt_tokens, include_usage, writer));
    }

    let answer = Answer::collect(pieces, samples).await?;
    let usage = Usage::of(prompt_tokens, answer.completion_tokens());
    let choice = |(index, reply): (u32, Reply)| ChatChoice {
        index,
        logprobs: request.logprobs.then(|| ChatLogprobs::new(&model, &reply.tokens)),
        finish_reason: reply.reason.map(FinishReason::name),
        message: ChatReply { role: "assistant", content: reply.text },
    };
    let choices = (0..).zip(answer.replies).map(choice).collect();
    let Head { id, created, model } = head;
    Ok(axum::Json(ChatResponse { id, object: "chat.completion", created, model, choices, usage })
        .into_response())
}

impl ChatRequest {
    /// The request that the engine gets, with the tokens of the conversation.
    async fn engine_request(
        &self,
        model: &Arc<Model>,
        limits: &Limits,
        caller: Caller,
    ) -> Result<Request, ApiError> {
        self.refuse_what_is_not_done()?;
        let top_logprobs = self.top_logprobs.unwrap_or(0);
        if top_logprobs > limits.top_logprobs {
            return Err(ApiError::field(
                "top_logprobs",
                format!("{top_logprobs}; at most {}", limits.top_logprobs),
            ));
        }
        if top_logprobs > 0 && !self.logprobs {
            return Err(ApiError::field("top_logprobs", "needs logprobs = true"));
        }
        let ready = model.ready_as(ModelKind::Language)?;
        // Faults of other fields are found before the work of the template.
        let _ = self.sampling.request(Arc::new([]), ready, limits)?;
        let prompt = self.prompt(Arc::clone(model)).await?;
        let max_new_tokens = new_tokens(self.wanted()?, prompt.len(), ready)?;
        Ok(Request {
            max_new_tokens,
            top_logprobs,
            salt: caller.salt,
            ..self.sampling.request(prompt, ready, limits)?
        })
    }

    /// The number of new tokens that the request names.
    fn wanted(&self) -> Result<Option<Wanted>, ApiError> {
        let named = [("max_completion_tokens", self.max_completion_tokens), ("max_tokens", self.max_tokens)];
        let wanted = named.into_iter().find_map(|(field, tokens)| Some(Wanted { field, tokens: tokens? }));
        match wanted {
            Some(Wanted { field, tokens: 0 }) => Err(ApiError::field(field, "0; at least 1")),
            wanted => Ok(wanted),
        }
    }

    fn refuse_what_is_not_done(&self) -> Result<(), ApiError> {
        let is_text = |format: &Value| format.get("type").is_none_or(|kind| kind == "text");
        let refused = [
            (
                "tools",
                self.tools
                    .as_ref()
                    .is_some_and(|tools| tools.as_array().is_none_or(|tools| !tools.is_empty())),
            ),
            (
                "tool_choice",
                self.tool_choice.as_ref().is_some_and(|choice| choice != "none" && !choice.is_null()),
            ),
            ("functions", self.functions.as_ref().is_some_and(|functions| !functions.is_null())),
            (
                "response_format",
                self.response_format.as_ref().is_some_and(|format| !format.is_null() && !is_text(format)),
            ),
            ("audio", self.audio.as_ref().is_some_and(|audio| !audio.is_null())),
        ];
        match refused.into_iter().find(|(_, is_given)| *is_given) {
            Some((field, _)) => Err(ApiError::field(field, "this server does not do this: leave it out")),
            None => Ok(()),
        }
    }

    /// The tokens of the conversation. The template runs on a thread of its own, since it may take long.
    async fn prompt(&self, model: Arc<Model>) -> Result<Arc<[i64]>, ApiError> {
        let messages = to_messages(&self.messages)?;
        let encode = move || {
            let encoded = model.ready()?.tokenizer.encode_prompt(&messages);
            encoded.map(Into::into).map_err(|error| ApiError::template(error.to_string()))
        };
        off_thread(encode).await
    }
}

/// The messages of a conversation, of which there is one at least.
pub(crate) fn to_messages(messages: &[ChatMessage]) -> Result<Vec<Message>, ApiError> {
    if messages.is_empty() {
        return Err(ApiError::field("messages", "no message; at least one"));
    }
    messages.iter().enumerate().map(|(index, message)| message.to_message(index)).collect()
}

impl ChatMessage {
    fn to_message(&self, index: usize) -> Result<Message, ApiError> {
        let role = match self.role.as_str() {
            "system" | "developer" => Role::System,
            "user" => Role::User,
            "assistant" => Role::Assistant,
            other => {
                let problem = format!("`{other}`; system, developer, user or assistant");
                return Err(ApiError::field(&format!("messages[{index}].role"), problem));
            }
        };
        let content = match &self.content {
            Content::Text(text) => text.clone(),
            Content::Parts(parts) => {
                let text = |part: &Part| part.text.clone().filter(|_| part.r#type == "text");
                let texts: Option<Vec<String>> = parts.iter().map(text).collect();
                let field = || format!("messages[{index}].content");
                texts
                    .ok_or_else(|| ApiError::field(&field(), "only parts of type `text` are taken"))?
                    .concat()
            }
        };
        Ok(Message::new(role, content))
    }
}

impl ChatLogprobs {
    fn new(model: &Model, drawn: &[TokenLogprob]) -> Self {
        let top = |&(id, logprob): &TopLogprob| {
            let TokenText { text: token, bytes } = TokenText::new(model, id);
            ChatTopLogprob { token, logprob, bytes }
        };
        let logprob = |token: &TokenLogprob| {
            let TokenLogprob { id, logprob, top: most_likely } = token;
            let TokenText { text: token, bytes } = TokenText::new(model, *id);
            let top_logprobs = most_likely.iter().map(top).collect();
            ChatLogprob { token, logprob: *logprob, bytes, top_logprobs }
        };
        Self { content: drawn.iter().map(logprob).collect() }
    }
}

/// Writes the chunks of a streamed reply.
struct ChatWriter {
    head: Head,
    model: Arc<Model>,
    wants_logprobs: bool,
}

impl ChatWriter {
    fn choice(
        &self,
        index: u32,
        delta: Delta,
        logprobs: Option<ChatLogprobs>,
        finish_reason: Option<&'static str>,
    ) -> Event {
        self.chunk(vec![ChunkChoice { index, delta, logprobs, finish_reason }], None)
    }

    fn chunk(&self, choices: Vec<ChunkChoice>, usage: Option<Usage>) -> Event {
        let Head { id, created, model } = self.head.clone();
        json_event(&ChatChunk { id, object: "chat.completion.chunk", created, model, choices, usage })
    }
}

impl ChunkWriter for ChatWriter {
    fn begin(&mut self, sample: u32) -> Option<Event> {
        let delta = Delta { role: Some("assistant"), content: Some(String::new()) };
        Some(self.choice(sample, delta, None, None))
    }

    fn token(&mut self, sample: u32, text: String, token: &TokenLogprob) -> Option<Event> {
        if text.is_empty() && !self.wants_logprobs {
            return None;
        }
        let logprobs = self.wants_logprobs.then(|| ChatLogprobs::new(&self.model, slice::from_ref(token)));
        Some(self.choice(sample, Delta { role: None, content: Some(text) }, logprobs, None))
    }

    fn finished(&mut self, sample: u32, text: String, reason: &'static str) -> Event {
        let content = (!text.is_empty()).then_some(text);
        self.choice(sample, Delta { role: None, content }, None, Some(reason))
    }

    fn usage(&mut self, usage: Usage) -> Event {
        self.chunk(Vec::new(), Some(usage))
    }
}
