//! The ranks that share a model write the same replies: one of them draws the tokens, and the others take
//! its tokens. So all of them go on alike, even where their logits differ in the last bits.
//!
//! ```text
//!   first stage ──hidden──> last stage ──logits──> the rank that draws
//!        ^                                               │ tokens, over the ranks of its stage,
//!        └───────────────────────────────────────────────┘ and from there to the other stages
//! ```

use std::sync::Arc;

use models::decoder::Decoder;
use parallel::comm::ProcessGroup;
use parallel::pipeline::PendingSends;
use parallel::{PipelineStages, Segmented};
use tch::{Device, Kind, Tensor};

use crate::draw::Drawn;
use crate::sample::SampledToken;
use crate::scheduler::{Slice, StepPlan};

/// Numbers in place of the id of a token: its logits are not finite, or a guess before it was wrong.
const NOT_FINITE: f64 = -1.0;
const NOT_DRAWN: f64 = -2.0;
/// The id of a token, its log-probability and its entropy.
const NUMBERS_PER_TOKEN: usize = 3;

/// The ranks that share a model.
#[derive(Debug)]
pub(crate) struct Ranks {
    /// The ranks with the same layers.
    stage: Vec<Arc<ProcessGroup>>,
    pipeline: Option<PipelineStages>,
}

impl Ranks {
    /// The ranks that share the model of a decoder.
    pub(crate) fn new(decoder: &Decoder) -> Self {
        let stage = decoder.model_parallel().same_stage_groups().cloned().collect();
        Self { stage, pipeline: decoder.pipeline().cloned() }
    }

    /// Whether this process has the whole model.
    pub(crate) fn is_single(&self) -> bool {
        self.stage.is_empty() && self.pipeline.is_none()
    }

    /// Whether this rank has the last layers, and so the logits.
    pub(crate) fn has_logits(&self) -> bool {
        self.pipeline.as_ref().is_none_or(PipelineStages::is_last_stage)
    }

    /// Whether this rank draws the tokens.
    pub(crate) fn draws(&self) -> bool {
        self.has_logits() && self.stage.iter().all(|group| group.rank() == 0)
    }

    /// Gives the tokens of a step to all ranks. All ranks with logits call this, and the one that draws has
    /// them in `drawn`. Only it has the most likely tokens in their places.
    pub(crate) fn share(
        &self,
        plan: &StepPlan,
        drawn: Option<Vec<Vec<Drawn>>>,
        sends: &mut PendingSends,
    ) -> Result<Vec<Vec<Drawn>>, parallel::Error> {
        if self.is_single() {
            return Ok(drawn.expect("a process that has the whole model draws"));
        }
        let message = match &drawn {
            Some(drawn) => message(plan, drawn),
            None => Tensor::empty(shape(plan), (Kind::Double, Device::Cpu)),
        };
        // A group whose first rank does not know the tokens yet gets them from a later group.
        for group in &self.stage {
            group.broadcast(&message, 0)?;
        }
        if let Some(pipeline) = &self.pipeline {
            pipeline.send_from_last_stage(&message, sends)?;
        }
        Ok(drawn.unwrap_or_else(|| read(plan, &message)))
    }

    /// Takes the tokens of a step on a rank without logits.
    pub(crate) fn receive(&self, plan: &StepPlan) -> Result<Vec<Vec<Drawn>>, parallel::Error> {
        let shape = shape(plan);
        if shape[0] == 0 {
            return Ok(Vec::new());
        }
        let pipeline = self.pipeline.as_ref().expect("a rank without logits has an earlier stage");
        let message = pipeline.receive_from_last_stage(&shape, (Kind::Double, Device::Cpu))?;
        Ok(read(plan, &message))
    }
}

/// The slices of a plan that draw, and the most tokens that each of them gets.
fn drawing(plan: &StepPlan) -> impl Iterator<Item = (&Slice, usize)> {
    let slices = plan.slices.iter().filter(|slice| slice.draws > 0);
    slices.map(|slice| (slice, slice.draws as usize + slice.guesses))
}

fn shape(plan: &StepPlan) -> [i64; 2] {
    let tokens: usize = drawing(plan).map(|(_, most)| most).sum();
    [tokens as i64, NUMBERS_PER_TOKEN as i64]
}

/// The tokens of a step as fp64 numbers, `[M, 3]`.
fn message(plan: &StepPlan, drawn: &[Vec<Drawn>]) -> Tensor {
    let mut numbers: Vec<f64> = Vec::new();
    for ((_, most), drawn) in drawing(plan).zip(drawn) {
        for index in 0..most {
            numbers.extend(match drawn.get(index).map(|drawn| drawn.token) {
                Some(Some(SampledToken { id, logprob, entropy })) => {
                    [id as f64, f64::from(logprob), f64::from(entropy)]
                }
                Some(None) => [NOT_FINITE; NUMBERS_PER_TOKEN],
                None => [NOT_DRAWN; NUMBERS_PER_TOKEN],
            });
        }
    }
    Tensor::from_slice(&numbers).view(shape(plan))
}

/// Reads a [`message`].
fn read(plan: &StepPlan, message: &Tensor) -> Vec<Vec<Drawn>> {
    let mut numbers = vec![0.0; message.numel()];
    message.copy_data(&mut numbers, message.numel());
    let mut tokens = numbers.chunks_exact(NUMBERS_PER_TOKEN);
    let slices = drawing(plan).map(|(slice, most)| {
        let tokens = tokens.by_ref().take(most).enumerate();
        let drawn = tokens.filter(|(_, numbers)| numbers[0] != NOT_DRAWN).map(|(index, numbers)| {
            let is_finite = numbers[0] != NOT_FINITE;
            let token = is_finite.then(|| SampledToken {
                id: numbers[0] as i64,
                logprob: numbers[1] as f32,
                entropy: numbers[2] as f32,
            });
            Drawn { reply: slice.drawn_reply(index as u32), token, top: Vec::new() }
        });
        drawn.collect()
    });
    slices.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::ReplyId;

    fn slice(draws: u32, guesses: usize) -> Slice {
        Slice {
            sequence: ReplyId { request: 3, sample: 0 },
            tokens: vec![1; 1 + guesses],
            lookahead: guesses,
            guesses,
            first: 0,
            pages: Vec::new(),
            draws,
            scored: Vec::new(),
            scored_after: 0,
        }
    }

    fn drawn(sample: u32, id: Option<i64>) -> Drawn {
        let token = id.map(|id| SampledToken { id, logprob: -0.1 - id as f32, entropy: 0.3 });
        Drawn { reply: ReplyId { request: 3, sample }, token, top: Vec::new() }
    }

    #[test]
    fn a_message_says_what_was_drawn_and_what_was_not() {
        // Three samples that begin, a piece of a prompt, a reply whose second guess was wrong, and one whose
        // logits are not finite.
        let plan = StepPlan {
            slices: vec![slice(3, 0), slice(0, 0), slice(1, 3), slice(1, 0)],
            ..StepPlan::default()
        };
        let tokens = vec![
            vec![drawn(0, Some(7)), drawn(1, Some(0)), drawn(2, Some(151_000))],
            vec![drawn(0, Some(5)), drawn(0, Some(6))],
            vec![drawn(0, None)],
        ];
        let message = message(&plan, &tokens);
        assert_eq!(message.size(), [8, 3]);
        let read = read(&plan, &message);
        let flat = |slices: &[Vec<Drawn>]| -> Vec<(usize, ReplyId, Option<SampledToken>)> {
            let slices = slices.iter().enumerate();
            slices
                .flat_map(|(at, slice)| slice.iter().map(move |drawn| (at, drawn.reply, drawn.token)))
                .collect()
        };
        assert_eq!(flat(&read), flat(&tokens));
    }
}
