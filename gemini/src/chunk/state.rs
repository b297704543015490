//! The states of the parameters of a chunk, and what they allow.
//!
//! ```text
//!   FREE <-> HOLD <-> COMPUTE <-> HOLD_AFTER_BWD -> READY_FOR_REDUCE -> HOLD
//!   FREE -> COMPUTE, HOLD -> READY_FOR_REDUCE
//! ```
//! A chunk may be evicted while none of its parameters is in use, and its gradients are reduced once all of
//! them are complete. Where the memory of a chunk is, is not a matter of these states: a chunk that is
//! evicted between two micro-batches stays in `HoldAfterBackward`.
//! (Fang et al. 2022, arXiv 2108.05818. Colossal-AI: `TensorState`, `STATE_TRANS`.)

use std::fmt;

/// What a parameter is in use for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TensorState {
    /// Not needed: its memory is given back or holds something else.
    Free,
    /// Read by the segment that runs.
    Compute,
    /// Idle.
    Hold,
    /// Idle, and a backward pass has used it: its gradient has begun.
    HoldAfterBackward,
    /// Its gradient is complete on this rank.
    ReadyForReduce,
}

use TensorState::{Compute, Free, Hold, HoldAfterBackward, ReadyForReduce};

/// The legal transitions: the nine of Colossal-AI and one more.
///
/// - Several micro-batches: after a backward pass, the next forward pass goes `HOLD_AFTER_BWD` -> `COMPUTE`
///   -> `HOLD`. Only the backward pass of the last micro-batch goes on to `READY_FOR_REDUCE`.
/// - A tied weight is used twice in one backward pass: `COMPUTE` -> `HOLD_AFTER_BWD` -> `COMPUTE` ->
///   `HOLD_AFTER_BWD`. It is ready for the reduction after the second use.
/// - Activation checkpointing: the second forward pass of a segment is part of its backward pass, so it adds
///   no transition. In a zero-bubble pipeline, the separate computation of the weight gradient goes
///   `HOLD_AFTER_BWD` -> `COMPUTE` -> `HOLD_AFTER_BWD`.
/// - A frozen parameter gets no gradient, and goes `COMPUTE` -> `HOLD` after a backward pass as well.
pub const LEGAL_TRANSITIONS: [(TensorState, TensorState); 10] = [
    (Free, Hold),
    (Free, Compute),
    (Hold, Free),
    (Hold, Compute),
    (Compute, Hold),
    (Compute, HoldAfterBackward),
    (HoldAfterBackward, Compute),
    (HoldAfterBackward, ReadyForReduce),
    (ReadyForReduce, Hold),
    // Not in Colossal-AI: a rank without rows runs no segment in this step, but takes part in the reduction
    // with zeros.
    (Hold, ReadyForReduce),
];

impl TensorState {
    /// All states.
    pub const ALL: [Self; 5] = [Free, Compute, Hold, HoldAfterBackward, ReadyForReduce];

    /// Whether a parameter may go from this state to `to`.
    pub fn can_become(self, to: Self) -> bool {
        LEGAL_TRANSITIONS.contains(&(self, to))
    }
}

impl fmt::Display for TensorState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Free => "FREE",
            Compute => "COMPUTE",
            Hold => "HOLD",
            HoldAfterBackward => "HOLD_AFTER_BWD",
            ReadyForReduce => "READY_FOR_REDUCE",
        })
    }
}

/// A transition that the table does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("parameter {param} is in state {from} and cannot become {to}")]
pub struct IllegalTransition {
    /// The index of the parameter in the model.
    pub param: usize,
    /// Its state.
    pub from: TensorState,
    /// The state it was to have.
    pub to: TensorState,
}

/// The states of the parameters of one chunk.
#[derive(Clone, Debug)]
pub struct ChunkStates {
    /// The parameters with their states, ordered by index.
    states: Vec<(usize, TensorState)>,
    /// The number of parameters in each state, in the order of [`TensorState::ALL`].
    counts: [usize; 5],
}

impl ChunkStates {
    /// The states of a chunk with these parameters, which are all free.
    pub fn new(params: impl IntoIterator<Item = usize>) -> Self {
        let mut states: Vec<(usize, TensorState)> = params.into_iter().map(|param| (param, Free)).collect();
        states.sort_unstable_by_key(|&(param, _)| param);
        let mut counts = [0; 5];
        counts[Free as usize] = states.len();
        Self { states, counts }
    }

    /// The state of a parameter of this chunk.
    pub fn state(&self, param: usize) -> TensorState {
        self.states[self.position(param)].1
    }

    /// The number of parameters in this state.
    pub fn count(&self, state: TensorState) -> usize {
        self.counts[state as usize]
    }

    /// Moves a parameter of this chunk to the state `to`. After an error nothing has changed.
    pub fn transition(&mut self, param: usize, to: TensorState) -> Result<(), IllegalTransition> {
        let position = self.position(param);
        let from = self.states[position].1;
        if !from.can_become(to) {
            return Err(IllegalTransition { param, from, to });
        }
        self.states[position].1 = to;
        self.counts[from as usize] -= 1;
        self.counts[to as usize] += 1;
        Ok(())
    }

    /// Whether the chunk may be evicted: no parameter is in use, and no gradient waits for its reduction.
    pub fn can_release(&self) -> bool {
        self.count(Compute) == 0 && self.count(ReadyForReduce) == 0
    }

    /// Whether the gradients of the chunk can be reduced: all are complete.
    pub fn can_reduce(&self) -> bool {
        self.count(ReadyForReduce) == self.states.len()
    }

    fn position(&self, param: usize) -> usize {
        self.states
            .binary_search_by_key(&param, |&(param, _)| param)
            .expect("only parameters of this chunk are asked for")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_of_states() {
        // Rows: from; columns: to; both FREE, COMPUTE, HOLD, HOLD_AFTER_BWD, READY_FOR_REDUCE.
        let legal = [[0, 1, 1, 0, 0], [0, 0, 1, 1, 0], [1, 1, 0, 0, 1], [0, 1, 0, 0, 1], [0, 0, 1, 0, 0]];
        for (row, from) in TensorState::ALL.into_iter().enumerate() {
            for (column, to) in TensorState::ALL.into_iter().enumerate() {
                let mut states = ChunkStates { states: vec![(7, from)], counts: [0; 5] };
                states.counts[row] = 1;
                let result = states.transition(7, to);
                if legal[row][column] == 1 {
                    assert_eq!((result, states.state(7)), (Ok(()), to));
                    assert_eq!((states.count(from), states.count(to)), (0, 1));
                } else {
                    assert_eq!(result, Err(IllegalTransition { param: 7, from, to }));
                    assert_eq!((states.state(7), states.count(from)), (from, 1));
                }
            }
        }
    }

    #[test]
    fn an_error_names_both_states() {
        let error = ChunkStates::new([3]).transition(3, ReadyForReduce).unwrap_err();
        assert_eq!(error.to_string(), "parameter 3 is in state FREE and cannot become READY_FOR_REDUCE");
    }

    /// Moves a parameter through states and returns after each move whether the chunk can be released and
    /// reduced.
    fn walk(states: &mut ChunkStates, param: usize, path: &[TensorState]) -> Vec<(bool, bool)> {
        let mut step = |&to: &TensorState| {
            states.transition(param, to).unwrap();
            (states.can_release(), states.can_reduce())
        };
        path.iter().map(&mut step).collect()
    }

    #[test]
    fn two_micro_batches_and_a_tied_weight() {
        let (released, busy, reduced) = ((true, false), (false, false), (false, true));
        let mut states = ChunkStates::new([4]);
        let one_micro_batch = [Compute, Hold, Compute, HoldAfterBackward];
        assert_eq!(walk(&mut states, 4, &one_micro_batch), [busy, released, busy, released]);
        assert_eq!(walk(&mut states, 4, &one_micro_batch), [busy, released, busy, released]);
        // The second use in the same backward pass, as the embedding.
        let rest = [Compute, HoldAfterBackward, ReadyForReduce, Hold, Free];
        assert_eq!(walk(&mut states, 4, &rest), [busy, released, reduced, released, released]);
    }

    #[test]
    fn a_chunk_is_as_busy_as_its_busiest_parameter() {
        let mut states = ChunkStates::new([9, 2]);
        assert!(states.can_release() && !states.can_reduce());
        walk(&mut states, 2, &[Compute, HoldAfterBackward]);
        assert!(states.can_release());
        walk(&mut states, 9, &[Compute]);
        assert!(!states.can_release());
        walk(&mut states, 9, &[HoldAfterBackward]);
        assert!(states.can_release());
        walk(&mut states, 2, &[ReadyForReduce]);
        assert!(!states.can_release() && !states.can_reduce());
        walk(&mut states, 9, &[ReadyForReduce]);
        assert!(!states.can_release() && states.can_reduce());
        assert_eq!(TensorState::ALL.map(|state| states.count(state)), [0, 0, 0, 0, 2]);
    }
}
