//! The answer to a request as a whole: what its pieces add up to.

use inference::request::{FinishReason, TopLogprob};

use crate::error::ApiError;
use crate::state::Pieces;
use crate::worker::{Piece, TokenLogprob};

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

/// The name of a reason in OpenAI's API.
pub(crate) fn reason_name(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Interrupted => "abort",
    }
}
