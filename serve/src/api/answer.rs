//! What the answers of chat and completions have in common, and the answer as a whole: what its pieces add up
//! to.

use inference::request::{FinishReason, TopLogprob};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::state::{Model, Pieces, unix_seconds};
use crate::worker::{Piece, TokenLogprob};

/// What every answer begins with.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) model: String,
}

impl Head {
    /// A head whose id begins with `kind`.
    pub(crate) fn new(kind: &str, model: &Model) -> Self {
        let id = format!("{kind}-{:016x}", rand::random::<u64>());
        Self { id, created: unix_seconds(), model: model.name.clone() }
    }
}

/// What a stream contains.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
pub(crate) struct StreamOptions {
    /// Whether the last event counts the tokens.
    #[serde(default)]
    pub(crate) include_usage: bool,
}

/// Numbers of tokens.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[expect(clippy::struct_field_names, reason = "the names of the API")]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: usize,
    pub(crate) completion_tokens: usize,
    pub(crate) total_tokens: usize,
}

impl Usage {
    pub(crate) fn of(prompt_tokens: usize, completion_tokens: usize) -> Self {
        Self { prompt_tokens, completion_tokens, total_tokens: prompt_tokens + completion_tokens }
    }
}

/// A reply.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    pub(crate) text: String,
    pub(crate) tokens: Vec<TokenLogprob>,
    pub(crate) reason: Option<FinishReason>,
}

/// Everything that came of a request.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) replies: Vec<Reply>,
    /// The log-probabilities of the prompt from its second token on, if they were asked for.
    pub(crate) prompt_logprobs: Vec<f32>,
    pub(crate) prompt_top: Vec<Vec<TopLogprob>>,
}

impl Answer {
    /// Waits for all replies.
    pub(crate) async fn collect(mut pieces: Pieces, samples: u32) -> Result<Self, ApiError> {
        let mut answer =
            Self { replies: (0..samples).map(|_| Reply::default()).collect(), ..Self::default() };
        let mut open = samples;
        while open > 0 {
            match pieces.next().await {
                Piece::Prompt { logprobs, top } => {
                    answer.prompt_logprobs.extend(logprobs);
                    answer.prompt_top.extend(top);
                }
                Piece::Token { sample, text, token } => {
                    let reply = &mut answer.replies[sample as usize];
                    reply.text.push_str(&text);
                    reply.tokens.push(token);
                }
                Piece::Finished { sample, text, reason } => {
                    let reply = &mut answer.replies[sample as usize];
                    reply.text.push_str(&text);
                    reply.reason = Some(reason);
                    open -= 1;
                }
                Piece::Failed(error) => return Err(error),
            }
        }
        Ok(answer)
    }

    /// The tokens of all replies.
    pub(crate) fn completion_tokens(&self) -> usize {
        self.replies.iter().map(|reply| reply.tokens.len()).sum()
    }
}
