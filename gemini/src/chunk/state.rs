//! The states of a chunk whose memory depends on its use.
//!
//! ```text
//!   sharded weights   FREE -> HOLD (being gathered) -> COMPUTE -> FREE
//!                     FREE -> COMPUTE -> FREE (this rank changes its own shard)
//!   gradients         FREE -> HOLD_AFTER_BWD -> READY_FOR_REDUCE -> FREE
//! ```
//! Where the memory of a chunk is, is not a matter of these states: a chunk of gradients that is evicted
//! between two micro-batches stays in `HoldAfterBackward`. In Colossal-AI gradients overwrite the weights in
//! one chunk, so that its table joins both rows. Here they have chunks of their own. (Fang et al. 2022, arXiv
//! 2108.05818. Colossal-AI: `TensorState`, `STATE_TRANS`.)

use std::fmt;

/// What a chunk is in use for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ChunkState {
    /// Not needed: of weights, this rank has its own shard only; gradients there are none.
    #[default]
    Free,
    /// The weights are being gathered for a segment that runs soon.
    Hold,
    /// A segment reads the weights, or the optimizer changes this rank's shard of them.
    Compute,
    /// A backward pass has added gradients, and others of this step will follow.
    HoldAfterBackward,
    /// All gradients of this step have been added on this rank.
    ReadyForReduce,
}

use ChunkState::{Compute, Free, Hold, HoldAfterBackward, ReadyForReduce};

/// The legal transitions.
pub const LEGAL_TRANSITIONS: [(ChunkState, ChunkState); 9] = [
    (Free, Hold),
    (Free, Compute),
    (Hold, Compute),
    // A gathered part is not used after all, because a segment before it failed.
    (Hold, Free),
    (Compute, Free),
    (Free, HoldAfterBackward),
    (HoldAfterBackward, ReadyForReduce),
    // A rank without rows has added nothing, but takes part in the reduction with zeros.
    (Free, ReadyForReduce),
    (ReadyForReduce, Free),
];

impl ChunkState {
    /// All states.
    pub const ALL: [Self; 5] = [Free, Hold, Compute, HoldAfterBackward, ReadyForReduce];

    /// Whether a chunk may go from this state to `to`.
    pub fn can_become(self, to: Self) -> bool {
        LEGAL_TRANSITIONS.contains(&(self, to))
    }

    /// Moves to the state `to`, which the callers' order of calls makes legal.
    pub(crate) fn enter(&mut self, to: Self) {
        assert!(self.can_become(to), "a chunk in state {self} cannot become {to}");
        *self = to;
    }
}

impl fmt::Display for ChunkState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Free => "FREE",
            Hold => "HOLD",
            Compute => "COMPUTE",
            HoldAfterBackward => "HOLD_AFTER_BWD",
            ReadyForReduce => "READY_FOR_REDUCE",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_of_states() {
        // Rows: from; columns: to; both in the order of `ALL`.
        let legal = [[0, 1, 1, 1, 1], [1, 0, 1, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 1], [1, 0, 0, 0, 0]];
        for (row, from) in legal.iter().zip(ChunkState::ALL) {
            for (&is_legal, to) in row.iter().zip(ChunkState::ALL) {
                assert_eq!(from.can_become(to), is_legal == 1, "{from} -> {to}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "a chunk in state COMPUTE cannot become HOLD_AFTER_BWD")]
    fn an_illegal_transition_names_both_states() {
        let mut state = Compute;
        state.enter(HoldAfterBackward);
    }
}
