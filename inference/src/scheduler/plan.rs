//! What goes into the scheduler and comes out of it: limits, the plan of a step, and how requests ended.

use crate::pages::PageId;
use crate::request::{FinishReason, ReplyId};

/// The limits of a step.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The most tokens of a step.
    /// vLLM: `max_num_batched_tokens`.
    pub batched_tokens: usize,
    /// The most replies that are under way at once.
    /// vLLM: `max_num_seqs`.
    pub sequences: usize,
    /// The most tokens of a prompt with its reply.
    pub positions: usize,
    /// Whether a prompt may be computed in several steps, and may read the pages of others. If not, a prompt
    /// of more than `batched_tokens` tokens is computed beside single tokens only.
    pub splits_prompts: bool,
    /// The most tokens of a reply that are guessed in a step ([`Scheduler::guess`](super::Scheduler::guess)).
    /// vLLM: `num_speculative_tokens`.
    pub speculative_tokens: usize,
}

/// In which order waiting requests of one priority are admitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// As they came.
    #[default]
    Arrival,
    /// The longest prompt first, so that no long prompt is left for the end, when nothing else runs beside
    /// it.
    LongestFirst,
}

/// The tokens of one sequence in a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The sequence: a reply, or the prompt of all replies of a request, which has the name of the first.
    pub sequence: ReplyId,
    /// The tokens that are computed.
    pub tokens: Vec<i64>,
    /// The most guesses that the pages have room for.
    /// vLLM: `num_lookahead_tokens`.
    pub lookahead: usize,
    /// The number of tokens at the end that are guesses. A token is drawn after each of them that is right,
    /// and after the token before them.
    pub guesses: usize,
    /// The position of the first token. All tokens before it are in the cache.
    pub first: usize,
    /// The pages of the sequence, up to the page of the last token and of the last guess that may come.
    pub pages: Vec<PageId>,
    /// The number of tokens that are drawn from the output of the last token: 0 if the prompt goes on, one
    /// for each sample at the end of a prompt, otherwise 1.
    pub draws: u32,
    /// The tokens of the prompt whose log-probabilities are wanted now. Each follows a token of the slice.
    pub scored: Vec<i64>,
    /// The index in the slice of the token before the first of them.
    pub scored_after: usize,
}

impl Slice {
    /// The reply of the token that is drawn at this place among the draws of the slice.
    pub fn drawn_reply(&self, draw: u32) -> ReplyId {
        if self.draws > 1 { ReplyId { sample: draw, ..self.sequence } } else { self.sequence }
    }
}

/// What a step computes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepPlan {
    /// Pages that are copied before the step: from the first to the second.
    pub copies: Vec<(PageId, PageId)>,
    /// The tokens.
    pub slices: Vec<Slice>,
}

/// A reply that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// The reply.
    pub sequence: ReplyId,
    /// Why the reply ended.
    pub reason: FinishReason,
}

/// A request whose next page is more than the whole cache, with nothing else in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom {
    /// The request.
    pub request: u64,
    /// The pages that the request needs.
    pub needed: usize,
    /// The pages that there are.
    pub pages: usize,
}

/// What the scheduler has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Tokens that were computed for prompts and for replies that were preempted.
    pub prefilled: u64,
    /// Tokens that were found in pages and not computed.
    pub shared: u64,
    /// Sequences that gave up their pages.
    pub preempted: u64,
    /// Tokens that were guessed.
    pub guessed: u64,
    /// Guesses that were right.
    pub accepted: u64,
}

impl std::ops::Add for Counts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            prefilled: self.prefilled + other.prefilled,
            shared: self.shared + other.shared,
            preempted: self.preempted + other.preempted,
            guessed: self.guessed + other.guessed,
            accepted: self.accepted + other.accepted,
        }
    }
}
