//! What an evaluation asks of a model, and what a model answers.
//!
//! There are three kinds of requests, as in lm-evaluation-harness; multiple choice is several of the first
//! kind. The trait [`LanguageModel`] is all that an evaluation knows of a model: the engine of this program,
//! a remote endpoint and the doubles of the tests implement it.

use datasets::Message;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::Error;
use crate::python_text::is_space;

/// What stands before the text that is scored or generated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Prompt {
    /// Text as it is.
    Text(String),
    /// A conversation, to be rendered by the chat template of the model, with the generation prompt.
    Chat(Vec<Message>),
}

impl Prompt {
    /// The length in bytes, as a measure of cost.
    pub fn len(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Chat(messages) => messages.iter().map(|message| message.content.len()).sum(),
        }
    }

    /// Whether there is no text.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// One question to a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// The log-likelihood of a continuation.
    Loglikelihood {
        /// What stands before it.
        context: Prompt,
        /// The text that is scored.
        continuation: String,
    },
    /// The log-likelihood of a whole text, in windows as long as the model allows.
    LoglikelihoodRolling {
        /// The text.
        text: String,
    },
    /// A reply.
    GenerateUntil {
        /// The prompt.
        context: Prompt,
        /// The reply ends before the first of these texts.
        until: Vec<String>,
        /// The most tokens of the reply.
        max_gen_toks: usize,
        /// The temperature; 0 means greedy decoding.
        temperature: f64,
        /// Which of several replies to the same prompt this is; it seeds the draws.
        sample: u64,
    },
}

impl Request {
    /// A hash of everything in the request, in hexadecimal.
    pub fn key(&self) -> String {
        let text = serde_json::to_string(self).expect("a request is plain data");
        sha256(text.as_bytes())
    }

    /// A measure of the work, for progress and time left: bytes of text, and tokens to generate.
    pub fn cost(&self) -> usize {
        match self {
            Self::Loglikelihood { context, continuation } => context.len() + continuation.len(),
            Self::LoglikelihoodRolling { text } => text.len(),
            Self::GenerateUntil { context, max_gen_toks, .. } => context.len() + 8 * max_gen_toks,
        }
    }
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// A log-likelihood.
    Loglikelihood {
        /// The sum of the log-probabilities of the tokens.
        logprob: f64,
        /// Whether greedy decoding gives exactly this text.
        is_greedy: bool,
        /// The tokens that the context lost at its beginning, because the model takes no more.
        #[serde(default)]
        cut: usize,
    },
    /// A reply.
    Reply {
        /// The text, without the stop text.
        text: String,
        /// The number of generated tokens.
        tokens: usize,
        /// Whether the reply ended by itself, and not at the limit.
        ended: bool,
        /// The tokens that the prompt lost at its beginning, because the model takes no more.
        #[serde(default)]
        cut: usize,
    },
    /// There is no answer: the model refused, the endpoint failed, the prompt is too long.
    Failed {
        /// Why, and what to do.
        problem: String,
    },
}

impl Response {
    /// The tokens that the prompt lost.
    pub fn cut(&self) -> usize {
        match self {
            Self::Loglikelihood { cut, .. } | Self::Reply { cut, .. } => *cut,
            Self::Failed { .. } => 0,
        }
    }
}

/// Where finished answers go: the index of each request, and its answer.
pub type OnResponses<'a> = dyn FnMut(Vec<(usize, Response)>) -> Result<(), Error> + 'a;

/// A model under evaluation.
pub trait LanguageModel {
    /// The name that reports show.
    fn name(&self) -> &str;

    /// A hash of everything that its answers depend on besides the request: weights, tokenizer, template,
    /// dtype, lengths. Answers are kept under it.
    fn digest(&self) -> &str;

    /// Answers requests in batches of its choice. A batch depends on `requests` alone, never on `answered`,
    /// so that an evaluation that was broken off gets the same numbers; a batch whose requests are all
    /// `answered` is left out. `on_responses` gets the answers of a batch as soon as it is done, or one by
    /// one.
    fn respond(
        &mut self,
        requests: &[Request],
        answered: &[bool],
        on_responses: &mut OnResponses<'_>,
    ) -> Result<(), Error>;
}

/// Moves white space at the end of a context to the front of its continuation (`_encode_pair` in
/// `api/model.py` of lm-evaluation-harness). White space is what Python's `str.rstrip` removes.
pub fn move_trailing_space<'a>(context: &'a str, continuation: &str) -> (&'a str, String) {
    let kept = context.trim_end_matches(is_space);
    (kept, format!("{}{continuation}", &context[kept.len()..]))
}

/// The SHA-256 of bytes, in hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}
