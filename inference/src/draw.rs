//! Draws the next tokens of all replies of a step.

use std::collections::BTreeMap;

use parallel::softmax::RowWeights;
use parallel::upload;
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use tch::{Device, Tensor};

use crate::adjust::Adjustments;
use crate::logprobs;
use crate::request::{ReplyId, Request, TopLogprob};
use crate::sample::{SampledToken, SamplingParams};
use crate::scheduler::{Slice, StepPlan};

/// The samplers of all replies.
#[derive(Debug, Default)]
pub(crate) struct Sampler {
    replies: BTreeMap<ReplyId, ReplySampler>,
    /// Working memory: the logits of a step on the host, and the weights of a row.
    host_logits: Vec<f32>,
    row: RowWeights,
}

/// How the tokens of one reply are drawn.
#[derive(Clone, Debug)]
struct ReplySampler {
    params: SamplingParams,
    generator: ChaCha8Rng,
    adjustments: Option<Adjustments>,
    top_logprobs: usize,
}

/// A token of a reply.
#[derive(Debug)]
pub(crate) struct Drawn {
    pub(crate) reply: ReplyId,
    /// `None` if the logits are not finite.
    pub(crate) token: Option<SampledToken>,
    /// The most likely tokens in its place, best first.
    pub(crate) top: Vec<TopLogprob>,
}

/// A reply, and the row of the logits from which its token is drawn.
type Place = (usize, ReplyId);

impl Sampler {
    /// Prepares the replies of a request.
    pub(crate) fn add(&mut self, request: &Request) {
        for sample in 0..request.samples {
            let sampler = ReplySampler {
                params: request.sampling,
                generator: SamplingParams::generator(request.seed, request.stream + u64::from(sample)),
                adjustments: Adjustments::new(request),
                top_logprobs: request.top_logprobs,
            };
            self.replies.insert(ReplyId { request: request.id, sample }, sampler);
        }
    }

    /// Becomes a sampler of the guesses of a plan: one that draws what `other` will draw.
    pub(crate) fn copy_replies(&mut self, other: &Self, plan: &StepPlan) {
        let guessed = plan.slices.iter().filter(|slice| slice.lookahead > 0).map(|slice| slice.sequence);
        let copy =
            |reply| Some((reply, ReplySampler { top_logprobs: 0, ..other.replies.get(&reply)?.clone() }));
        self.replies = guessed.filter_map(copy).collect();
    }

    /// Forgets a reply.
    pub(crate) fn finish(&mut self, reply: ReplyId) {
        self.replies.remove(&reply);
    }

    /// Forgets the replies of a request.
    pub(crate) fn forget(&mut self, request: u64) {
        let all = ReplyId { request, sample: 0 }..=ReplyId { request, sample: u32::MAX };
        let replies: Vec<ReplyId> = self.replies.range(all).map(|(&reply, _)| reply).collect();
        for reply in replies {
            self.finish(reply);
        }
    }

    /// How many of the most likely tokens a request wants with each token.
    pub(crate) fn top_logprobs(&self, request: u64) -> usize {
        let mut replies = self.replies.range(ReplyId { request, sample: 0 }..);
        replies
            .next()
            .filter(|(reply, _)| reply.request == request)
            .map_or(0, |(_, reply)| reply.top_logprobs)
    }

    /// Draws the tokens of a plan from the logits `[M, V]`, fp32, of its slices that draw, in the order of
    /// the plan: one list for each of them. The logits of replies with penalties or a bias change in place.
    pub(crate) fn draw(&mut self, plan: &StepPlan, logits: &Tensor) -> Vec<Vec<Drawn>> {
        let mut next_row = 0;
        let mut slices: Vec<(usize, &Slice)> = Vec::new();
        for slice in plan.slices.iter().filter(|slice| slice.draws > 0) {
            slices.push((next_row, slice));
            next_row += 1 + slice.guesses;
        }

        // What is drawn without guesses is drawn together.
        let places: Vec<Place> = slices
            .iter()
            .filter(|(_, slice)| slice.guesses == 0)
            .flat_map(|&(row, slice)| (0..slice.draws).map(move |draw| (row, slice.drawn_reply(draw))))
            .collect();
        let mut together = self.draw_places(&places, logits).into_iter();
        let mut draw = |(row, slice): (usize, &Slice)| match slice.guesses {
            0 => together.by_ref().take(slice.draws as usize).collect(),
            _ => self.draw_after_guesses(row, slice, logits),
        };
        slices.into_iter().map(&mut draw).collect()
    }

    /// Draws the token after the last one of a reply, and as long as the drawn tokens are the guesses, the
    /// ones after them. So the reply has the tokens, each with the draw, that it would have one at a time.
    fn draw_after_guesses(&mut self, first_row: usize, slice: &Slice, logits: &Tensor) -> Vec<Drawn> {
        let guesses = &slice.tokens[slice.tokens.len() - slice.guesses..];
        let mut drawn = Vec::new();
        for index in 0..=slice.guesses {
            drawn.extend(self.draw_places(&[(first_row + index, slice.sequence)], logits));
            let token = drawn.last().and_then(|drawn: &Drawn| drawn.token).map(|token| token.id);
            if token.is_none() || token.as_ref() != guesses.get(index) {
                break;
            }
        }
        drawn
    }

    /// Draws one token at each place. Places are in the order of their rows.
    pub(crate) fn draw_places(&mut self, places: &[Place], logits: &Tensor) -> Vec<Drawn> {
        self.adjust(places, logits);
        let tokens = if logits.device() == Device::Cpu {
            self.draw_on_host(places, logits)
        } else {
            self.draw_on_device(places, logits)
        };

        let mut drawn = Vec::with_capacity(places.len());
        for (&(row, reply), token) in places.iter().zip(tokens) {
            let mut top = Vec::new();
            if let (Some(sampler), Some(token)) = (self.replies.get_mut(&reply), token) {
                sampler.adjustments.iter_mut().for_each(|adjustments| adjustments.push(token.id));
                let (count, temperature) = (sampler.top_logprobs, sampler.params.temperature);
                top = logprobs::top(&logits.narrow(0, row as i64, 1), count, temperature).remove(0);
            }
            drawn.push(Drawn { reply, token, top });
        }
        drawn
    }

    /// The samples of a request that begin have one row of logits, which is adjusted once.
    fn adjust(&self, places: &[Place], logits: &Tensor) {
        let rows = places.chunk_by(|left, right| left.0 == right.0).map(|samples| samples[0]);
        for (row, reply) in rows {
            let sampler = self.replies.get(&reply);
            if let Some(adjustments) = sampler.and_then(|sampler| sampler.adjustments.as_ref()) {
                adjustments.apply(&logits.get(row as i64));
            }
        }
    }

    fn draw_on_host(&mut self, places: &[Place], logits: &Tensor) -> Vec<Option<SampledToken>> {
        let (Some(first), Some(last)) = (places.first(), places.last()) else { return Vec::new() };
        let (first, rows) = (first.0, last.0 - first.0 + 1);
        let logits = logits.narrow(0, first as i64, rows as i64);
        let (width, count) = (logits.size()[1] as usize, logits.numel());
        self.host_logits.resize(count, 0.0);
        logits.copy_data(&mut self.host_logits, count);
        let draw = |(row, reply): &Place| {
            let logits = &self.host_logits[(row - first) * width..(row - first + 1) * width];
            let ReplySampler { params, generator, .. } = self.replies.get_mut(reply)?;
            params.sample(logits, generator, &mut self.row)
        };
        places.iter().map(draw).collect()
    }

    /// Replies with the same parameters are drawn together.
    fn draw_on_device(&mut self, places: &[Place], logits: &Tensor) -> Vec<Option<SampledToken>> {
        let mut groups: Vec<(SamplingParams, Vec<usize>)> = Vec::new();
        for (index, (_, reply)) in places.iter().enumerate() {
            let Some(ReplySampler { params, .. }) = self.replies.get(reply) else { continue };
            match groups.iter_mut().find(|(other, _)| other == params) {
                Some((_, members)) => members.push(index),
                None => groups.push((*params, vec![index])),
            }
        }

        let mut tokens = vec![None; places.len()];
        for (params, members) in groups {
            let rows: Vec<i64> = members.iter().map(|&index| places[index].0 as i64).collect();
            let uniform = |&index: &usize| {
                let reply = self.replies.get_mut(&places[index].1);
                reply.map_or(0.0, |reply| reply.generator.random())
            };
            let uniform: Vec<f64> = members.iter().map(uniform).collect();
            let is_in_place = rows.iter().copied().eq(0..logits.size()[0]);
            let selected = || logits.index_select(0, &upload(&rows, logits.device()));
            let logits = if is_in_place { logits.shallow_clone() } else { selected() };
            for (index, token) in members.into_iter().zip(params.sample_rows(&logits, &uniform)) {
                tokens[index] = token;
            }
        }
        tokens
    }
}
