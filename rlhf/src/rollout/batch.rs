//! The flat batches on which the models of a rollout run.
//!
//! Neighbouring replies to the same prompt continue one row that holds the prompt, so that it is computed
//! once. The outputs of a batch are the hidden states that a head reads, reply after reply; they stand for the
//! `response_mask` of verl and the `action_mask` of OpenRLHF.

use models::batch::Batch;
use models::decoder::Decoder;
use parallel::upload;
use tch::Tensor;

use super::data::{Layout, Rollout};
use crate::advantage::ScoreSlot;

/// What a head reads of each reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// The hidden state whose logits predict each token that the policy wrote: the one before it.
    Tokens,
    /// The hidden state from which the critic predicts the value of each slot.
    Slots,
    /// The hidden state of the last token, from which a reward model predicts its score.
    LastToken,
}

/// The flat batch of some replies.
#[derive(Debug)]
pub struct RolloutBatch {
    /// The batch, whose outputs are what the head reads.
    pub batch: Batch,
    /// The tokens that the policy wrote, `[M]`.
    pub targets: Tensor,
}

impl RolloutBatch {
    /// Builds the batch of the replies `indices` for a model with this trunk.
    pub fn new(rollout: &Rollout, layout: &Layout, indices: &[usize], reads: Reads, trunk: &Decoder) -> Self {
        let mut rows = Rows::default();
        let prompt = |reply: usize| &sequence(rollout, layout, reply)[..rollout.prompt_lengths[reply]];
        for same_prompt in indices.chunk_by(|&left, &right| prompt(left) == prompt(right)) {
            let goes_on = |&reply: &usize| rollout.sequence_lengths[reply] > rollout.prompt_lengths[reply];
            let shares =
                same_prompt.len() > 1 && same_prompt.iter().all(goes_on) && trunk.can_share_prefixes();
            let shared = shares.then(|| rows.push(prompt(same_prompt[0]), None));
            for &reply in same_prompt {
                let ids = sequence(rollout, layout, reply);
                let read = positions(rollout, layout, reply, reads);
                let Some(place) = shared else {
                    let start = rows.push(ids, None).start;
                    rows.read(read.map(|position| start + position));
                    continue;
                };
                let length = rollout.prompt_lengths[reply];
                let start = rows.push(&ids[length..], Some(place.row)).start;
                rows.read(read.map(|position| match position.checked_sub(length) {
                    Some(behind) => start + behind,
                    None => place.start + position,
                }));
            }
        }

        let written = |&reply: &usize| {
            let ids = sequence(rollout, layout, reply);
            written_positions(rollout, layout, reply).map(|position| ids[position])
        };
        let targets: Vec<i64> = indices.iter().flat_map(written).collect();
        let Rows { ids, prefixes, outputs, .. } = rows;
        Self {
            batch: Batch::with_prefixes(&ids, &prefixes, trunk.device()).with_outputs(&outputs),
            targets: upload(&targets, trunk.device()),
        }
    }
}

/// The ids of a reply with its prompt.
pub(crate) fn sequence<'r>(rollout: &'r Rollout, layout: &Layout, reply: usize) -> &'r [i64] {
    &rollout.ids[layout.sequences[reply].clone()]
}

/// The positions in a sequence whose tokens the policy wrote.
pub(crate) fn written_positions<'r>(
    rollout: &'r Rollout,
    layout: &Layout,
    reply: usize,
) -> impl DoubleEndedIterator<Item = usize> + use<'r> {
    let is_written = &rollout.is_written[layout.sequences[reply].clone()];
    is_written.iter().enumerate().filter(|(_, is_written)| **is_written).map(|(position, _)| position)
}

/// The positions in a sequence whose hidden states a head reads.
fn positions(rollout: &Rollout, layout: &Layout, reply: usize, reads: Reads) -> std::vec::IntoIter<usize> {
    let length = rollout.sequence_lengths[reply];
    // The hidden state at position `t - 1` predicts the token at `t`.
    let before = || written_positions(rollout, layout, reply).map(|position| position - 1);
    let after = || written_positions(rollout, layout, reply).next_back().unwrap_or(length - 1);
    let positions: Vec<usize> = match reads {
        Reads::Slots if rollout.score_slots[reply] == ScoreSlot::AfterEos => {
            before().chain([after()]).collect()
        }
        Reads::Tokens | Reads::Slots => before().collect(),
        Reads::LastToken => vec![length - 1],
    };
    positions.into_iter()
}

/// The rows of a batch while it is built.
#[derive(Default)]
struct Rows<'r> {
    ids: Vec<&'r [i64]>,
    prefixes: Vec<Option<usize>>,
    outputs: Vec<i64>,
    num_tokens: usize,
}

/// Where a row lies: its number, and the place of its first token.
#[derive(Clone, Copy)]
struct Place {
    row: usize,
    start: usize,
}

impl<'r> Rows<'r> {
    fn push(&mut self, row: &'r [i64], prefix: Option<usize>) -> Place {
        let place = Place { row: self.ids.len(), start: self.num_tokens };
        self.ids.push(row);
        self.prefixes.push(prefix);
        self.num_tokens += row.len();
        place
    }

    fn read(&mut self, places: impl Iterator<Item = usize>) {
        self.outputs.extend(places.map(|place| place as i64));
    }
}
