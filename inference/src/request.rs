//! What the engine is asked, and what it answers.

use std::sync::Arc;

use serde::Serialize;

use crate::sample::{SampledToken, SamplingParams};

/// A prompt and how it is continued.
#[derive(Clone, Debug)]
pub struct Request {
    /// Names the request in events. No two requests of an engine have the same id at the same time.
    pub id: u64,
    /// The token ids of the prompt.
    pub prompt: Arc<[i64]>,
    /// The number of replies. The prompt is computed once for all of them.
    pub samples: u32,
    /// How tokens are drawn.
    pub sampling: SamplingParams,
    /// What is added to the logits of some tokens, each of which is in the vocabulary and comes once.
    pub logit_bias: Arc<[(i64, f32)]>,
    /// How many of the most likely tokens come with each new token.
    pub top_logprobs: usize,
    /// Whether the log-probability of each token of the prompt is wanted.
    pub prompt_logprobs: bool,
    /// The seed of the draws.
    pub seed: u64,
    /// The stream of draws of the first sample under the seed; the next sample has the next stream. The draws
    /// depend on seed and stream alone, and not on what else the engine computes.
    pub stream: u64,
    /// The longest reply in tokens, including its stop token.
    pub max_new_tokens: usize,
    /// The tokens that end a reply; without any, every reply runs to its longest length.
    pub stop_ids: Arc<[i64]>,
    /// Waiting requests of higher priority come first.
    pub priority: i32,
    /// Requests share the pages of a common prefix only if their salts are equal.
    pub salt: u64,
}

impl Request {
    /// A request for one reply of one token, without a stop token.
    pub fn new(prompt: Arc<[i64]>, sampling: SamplingParams) -> Self {
        Self {
            id: 0,
            prompt,
            samples: 1,
            sampling,
            logit_bias: Arc::new([]),
            top_logprobs: 0,
            prompt_logprobs: false,
            seed: 0,
            stream: 0,
            max_new_tokens: 1,
            stop_ids: Arc::new([]),
            priority: 0,
            salt: 0,
        }
    }
}

/// Names a reply: a sample of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplyId {
    /// The id of the request.
    pub request: u64,
    /// The index of the sample.
    pub sample: u32,
}

/// Why a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FinishReason {
    /// The reply contains a stop token.
    Stop,
    /// The reply has `max_new_tokens` tokens, or the sequence has as many as the model takes.
    Length,
    /// The request was aborted.
    Interrupted,
}

impl FinishReason {
    /// The name in OpenAI's API, which vLLM extends by `abort`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Interrupted => "abort",
        }
    }
}

/// Something that has happened to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Some tokens of a prompt have been computed.
    Prompt {
        /// The id of the request.
        request: u64,
        /// The log-probability of each of the next tokens of the prompt at temperature 1, beginning with the
        /// second token.
        logprobs: Vec<f32>,
        /// The most likely tokens at the same places.
        top: Vec<Vec<TopLogprob>>,
    },
    /// A reply has one more token.
    Token {
        /// The reply.
        reply: ReplyId,
        /// The token.
        token: SampledToken,
        /// The most likely tokens in its place, best first.
        top: Vec<TopLogprob>,
    },
    /// A reply has ended.
    Finished {
        /// The reply.
        reply: ReplyId,
        /// Why the reply ended.
        reason: FinishReason,
    },
    /// A request has ended without the rest of its replies.
    Failed {
        /// The id of the request.
        request: u64,
        /// Why.
        failure: Failure,
    },
}

/// A token and its log-probability.
pub type TopLogprob = (i64, f32);

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The logits of one of its tokens are not finite.
    LogitsNotFinite,
    /// The cache has fewer pages than one of its replies needs.
    NoRoom {
        /// The pages that the reply needs.
        needed: usize,
        /// The pages that there are.
        pages: usize,
    },
}
