//! The order in which chunks are used: recorded in one step, it predicts the next.
//!
//! Every step of a stage runs the same segments in the same order, so the uses of a chunk in the last step
//! tell when it is needed next, and the tensors of the last step tell how much memory each moment leaves for
//! chunks. A moment is one fetch (and has nothing to do with the moments of AdamW). What happens between two
//! steps (evaluation, a checkpoint) is not part of the order. Where a step differs from the last one, the
//! prediction goes on at the next moment that matches. A chunk that every step makes anew, of the copy of the
//! policy that generates, has the same id each time. Colossal-AI: `MemStats`.

use std::collections::HashMap;

use super::manager::ChunkId;
use crate::placement::{ChunkUse, RecordedOrder};

/// A fetch: its chunks, and the most bytes that tensors hold at once from there to the next fetch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Moment {
    uses: Vec<(ChunkId, bool)>,
    tensor_bytes: usize,
}

/// The recorded order of use.
#[derive(Debug, Default)]
pub(super) struct Trace {
    /// The moments of this step.
    current: Vec<Moment>,
    /// The moments of the last step.
    last: Vec<Moment>,
    /// The same moments. Its chunks are indices into `ids`.
    order: Option<RecordedOrder>,
    ids: Vec<ChunkId>,
    indices: HashMap<ChunkId, usize>,
    /// The size of each chunk when it was used last.
    bytes: HashMap<ChunkId, usize>,
    /// The moment of the last step that is expected next.
    next: usize,
    /// For each moment of the last step, the bytes that tensors need around it.
    tensor_bytes: Vec<usize>,
}

/// The memory that tensors need is taken as the most of this many moments before and after. Memory that goes
/// back and forth between tensors and chunks would have to be made present again, page by page.
const WINDOW: usize = 64;

/// The same for moments at which tensors need more than half of the budget, for logits for example. That much
/// memory is worth more as a place of chunks.
const WINDOW_OF_PEAKS: usize = 8;

impl Trace {
    /// Records a fetch of chunks of these sizes. `tensor_bytes` is what tensors have needed since the fetch
    /// before.
    pub(super) fn record(
        &mut self,
        chunks: impl Iterator<Item = (ChunkId, usize)>,
        writes: bool,
        tensor_bytes: usize,
    ) {
        if let Some(moment) = self.current.last_mut() {
            moment.tensor_bytes = moment.tensor_bytes.max(tensor_bytes);
        }
        let chunks: Vec<(ChunkId, usize)> = chunks.collect();
        self.bytes.extend(chunks.iter().copied());
        let uses: Vec<_> = chunks.iter().map(|&(id, _)| (id, writes)).collect();
        // A fetch of the same chunks again tells nothing new.
        if self.current.last().is_some_and(|moment| moment.uses == uses) {
            return;
        }
        // A step may have moments that the last one did not have, and leave out others.
        if uses.iter().all(|(id, _)| self.indices.contains_key(id)) {
            let found = self.last[self.next..].iter().position(|moment| moment.uses == uses);
            if let Some(skipped) = found {
                self.next += skipped + 1;
            }
        }
        self.current.push(Moment { uses, tensor_bytes });
    }

    /// Starts a step. What was recorded since the end of the last one is forgotten.
    pub(super) fn begin_step(&mut self) {
        self.current.clear();
        self.next = 0;
    }

    /// Ends a step under a budget of `device_bytes`.
    pub(super) fn end_step(&mut self, device_bytes: usize) {
        self.last = std::mem::take(&mut self.current);
        (self.next, self.ids) = (0, Vec::new());
        self.indices.clear();
        for (id, _) in self.last.iter().flat_map(|moment| &moment.uses) {
            self.indices.entry(*id).or_insert_with(|| {
                self.ids.push(*id);
                self.ids.len() - 1
            });
        }

        let most = |moment: usize, window: usize, limit: usize| {
            let window = moment.saturating_sub(window)..(moment + window + 1).min(self.last.len());
            let bytes = self.last[window].iter().map(|moment| moment.tensor_bytes);
            bytes.filter(|&bytes| bytes <= limit).max().unwrap_or(0)
        };
        let around = |moment: usize| {
            most(moment, WINDOW, device_bytes / 2).max(most(moment, WINDOW_OF_PEAKS, usize::MAX))
        };
        self.tensor_bytes = (0..self.last.len()).map(around).collect();

        let chunk_use =
            |(id, writes): &(ChunkId, bool)| ChunkUse { chunk: self.indices[id], writes: *writes };
        let moments = self.last.iter().map(|moment| moment.uses.iter().map(chunk_use).collect()).collect();
        let sizes = self.ids.iter().map(|id| self.bytes[id]).collect();
        self.order = Some(RecordedOrder::new(moments, sizes, true));
    }

    /// The number of moments until a chunk is used next, if the rest of this step and the next step are like
    /// the last one. `None` for a chunk that was not used in the last step.
    pub(super) fn next_use(&self, id: ChunkId) -> Option<usize> {
        let (order, index) = (self.order.as_ref()?, self.indices.get(&id)?);
        Some(order.next_use(*index, self.next)? - self.next)
    }

    /// The bytes that tensors are expected to hold around the next use of a chunk; `None` for a chunk that
    /// was not used in the last step.
    pub(super) fn tensor_bytes_at_next_use(&self, id: ChunkId) -> Option<usize> {
        let (order, index) = (self.order.as_ref()?, self.indices.get(&id)?);
        let moment = order.next_use(*index, self.next)?;
        Some(self.tensor_bytes(order.recorded(moment)))
    }

    /// The recorded order and the moment that runs now, which is the one before the next; `None` in the first
    /// step.
    pub(super) fn order(&self) -> Option<(&RecordedOrder, usize)> {
        let order = self.order.as_ref().filter(|order| order.num_moments() > 0)?;
        // Moments count on over repetitions, so the one before moment 0 is the last one of the step before.
        Some((order, if self.next == 0 { order.num_moments() - 1 } else { self.next - 1 }))
    }

    /// The chunk of an index in [`order`](Self::order).
    pub(super) fn id(&self, index: usize) -> ChunkId {
        self.ids[index]
    }

    /// The most bytes that tensors held around a moment of the last step.
    pub(super) fn tensor_bytes(&self, moment: usize) -> usize {
        self.tensor_bytes[moment]
    }

    /// The bytes that tensors are expected to need now; 0 in the first step.
    pub(super) fn expected_tensor_bytes(&self) -> usize {
        self.order().map_or(0, |(_, now)| self.tensor_bytes(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(trace: &mut Trace, moments: &[usize]) {
        for &moment in moments {
            record_one(trace, moment, 0);
        }
    }

    fn record_one(trace: &mut Trace, chunk: usize, tensor_bytes: usize) {
        trace.record(std::iter::once((ChunkId(chunk), 1)), false, tensor_bytes);
    }

    fn next_uses(trace: &Trace) -> [Option<usize>; 3] {
        [0, 1, 2].map(|id| trace.next_use(ChunkId(id)))
    }

    #[test]
    fn the_last_step_predicts_the_next() {
        let mut trace = Trace::default();
        // Forward 0 1 2, backward 2 1 0. The second use of 2 in a row is no moment of its own.
        record(&mut trace, &[0, 1, 2, 2, 1, 0]);
        assert_eq!(next_uses(&trace), [None; 3]);
        trace.end_step(0);
        assert_eq!(next_uses(&trace), [Some(0), Some(1), Some(2)]);
        record(&mut trace, &[0, 1]);
        // Left: 2 1 0, and then the next step.
        assert_eq!(next_uses(&trace), [Some(2), Some(1), Some(0)]);
        record(&mut trace, &[2, 2, 1]);
        // Left: 0. In the next step 1 is the second moment and 2 the third.
        assert_eq!(next_uses(&trace), [Some(0), Some(2), Some(3)]);
    }

    #[test]
    fn moments_that_only_one_step_has_are_skipped() {
        let mut trace = Trace::default();
        record(&mut trace, &[0, 1, 2, 3]);
        trace.end_step(0);
        // 9 is new, and 1 is left out.
        record(&mut trace, &[0, 9, 2]);
        assert_eq!(trace.next_use(ChunkId(3)), Some(0));
        assert_eq!(trace.next_use(ChunkId(9)), None);
    }

    #[test]
    fn what_happens_between_two_steps_is_forgotten() {
        let mut trace = Trace::default();
        record(&mut trace, &[0, 1, 2, 1]);
        trace.end_step(0);
        record(&mut trace, &[0, 1, 2]);
        trace.begin_step();
        assert_eq!(next_uses(&trace), [Some(0), Some(1), Some(2)]);
        record(&mut trace, &[0, 1]);
        trace.end_step(0);
        assert_eq!(trace.order().unwrap().0.num_moments(), 2);
    }

    #[test]
    fn peaks_above_half_of_the_budget_keep_memory_for_a_shorter_time() {
        let mut trace = Trace::default();
        for moment in 0..100 {
            record_one(&mut trace, moment, 3);
        }
        (trace.current[0].tensor_bytes, trace.current[20].tensor_bytes) = (9, 11);
        trace.end_step(20);
        assert_eq!([8, 12, 28, 29, 64, 65].map(|moment| trace.tensor_bytes(moment)), [9, 11, 11, 9, 9, 3]);
    }

    #[test]
    fn a_moment_keeps_the_most_that_tensors_held() {
        let mut trace = Trace::default();
        for (chunk, tensor_bytes) in [(0, 5), (1, 7), (1, 9), (2, 3)] {
            record_one(&mut trace, chunk, tensor_bytes);
        }
        trace.end_step(0);
        // Until the fetch of 1 tensors held 7 bytes, and until that of 2 they held 9.
        assert_eq!(trace.last.iter().map(|moment| moment.tensor_bytes).collect::<Vec<_>>(), [7, 9, 3]);
        // Each is within the window of the other.
        assert_eq!([0, 1, 2].map(|moment| trace.tensor_bytes(moment)), [9; 3]);
    }
}
