//! A smaller model guesses the next tokens of replies (Leviathan et al. 2023, arXiv 2211.17192; Chen et al.
//! 2023, arXiv 2302.01318).
//!
//! The draft model has a cache of its own with the same pages, and computes every token that the model
//! computes. It draws its guesses with copies of the generators of the replies. So draft and model draw the
//! same token wherever their distributions put the same token at the drawn number.

use models::cache::KvCache;
use models::cached_batch::{CachedRow, Outputs};
use models::causal_lm::CausalLm;
use tch::{Kind, no_grad};

use crate::Error;
use crate::draw::Sampler;
use crate::request::ReplyId;
use crate::scheduler::{Slice, StepPlan};

/// A draft model with its cache.
#[derive(Debug)]
pub(crate) struct Draft {
    model: CausalLm,
    cache: KvCache,
    /// Draws the guesses of a step.
    sampler: Sampler,
}

impl Draft {
    /// A draft for `model`, with a cache of `num_pages` pages. Returns an error if it cannot read what the
    /// model reads.
    pub(crate) fn new(
        draft: &CausalLm,
        model: &CausalLm,
        num_pages: usize,
        page_size: usize,
    ) -> Result<Self, Error> {
        let (own, other) = (draft.config(), model.config());
        if own.vocab_size() != other.vocab_size() {
            let (draft, model) = (own.vocab_size(), other.vocab_size());
            return Err(Error::Draft { what: "has a vocabulary of", draft, wanted: "exactly", model });
        }
        if own.max_positions() < other.max_positions() {
            let (draft, model) = (own.max_positions(), other.max_positions());
            return Err(Error::Draft { what: "takes rows of", draft, wanted: "at least", model });
        }
        if !draft.decoder().can_continue_rows() {
            return Err(Error::DraftRecomputesRows);
        }
        let model = draft.for_decoding()?;
        Ok(Self { cache: model.decoder().cache(num_pages, page_size), model, sampler: Sampler::default() })
    }

    /// Computes the tokens of a plan, and guesses as many of the next tokens of each slice as it has room
    /// for.
    pub(crate) fn guess(&mut self, plan: &StepPlan, sampler: &Sampler) -> Result<Vec<Vec<i64>>, Error> {
        self.sampler.copy_replies(sampler, plan);
        for &(from, to) in &plan.copies {
            self.cache.copy_page(from, to);
        }
        let mut guesses: Vec<Vec<i64>> = vec![Vec::new(); plan.slices.len()];
        let most = plan.slices.iter().map(|slice| slice.lookahead).max().unwrap_or(0);

        // The last round writes the keys and values of the last guesses, for the case that they are right.
        for round in 0..=most {
            let guessed = plan.slices.iter().zip(&guesses);
            let rows: Vec<CachedRow<'_>> =
                guessed.filter_map(|(slice, guesses)| row_of_round(slice, guesses, round)).collect();
            let hidden = self.model.step(&rows, &mut self.cache)?;

            let draws =
                |index: &usize| plan.slices[*index].lookahead > round && guesses[*index].len() == round;
            let drawing: Vec<usize> = (0..plan.slices.len()).filter(draws).collect();
            if drawing.is_empty() {
                break;
            }
            let logits = no_grad(|| self.model.head().logits(&hidden))?.to_kind(Kind::Float).contiguous();
            let reply = |(row, &index): (usize, &usize)| (row, plan.slices[index].sequence);
            let places: Vec<(usize, ReplyId)> = drawing.iter().enumerate().map(reply).collect();
            for (index, drawn) in drawing.into_iter().zip(self.sampler.draw_places(&places, &logits)) {
                // Where the draft overflows, it has no guess.
                guesses[index].extend(drawn.token.map(|token| token.id));
            }
        }
        Ok(guesses)
    }
}

/// What the draft computes of a slice: its tokens in the first round, and then the guess of the round before.
/// `None` if there was no such guess.
fn row_of_round<'a>(slice: &'a Slice, guesses: &'a [i64], round: usize) -> Option<CachedRow<'a>> {
    let (tokens, past) = match round.checked_sub(1) {
        None => (slice.tokens.as_slice(), slice.first),
        Some(last) => (guesses.get(last..=last)?, slice.first + slice.tokens.len() + last),
    };
    let outputs = if slice.lookahead > round { Outputs::Last } else { Outputs::None };
    Some(CachedRow { tokens, past, pages: &slice.pages, outputs })
}
