//! Looking ahead along a recorded order of use: fetching before the use, and simulating the policy `auto`.
//!
//! ```text
//!   memory of the device | chunks of this moment and those used again soonest | read ahead | tensors |
//!                          chosen by `choose_evictions`                         of fixed size
//! ```
//! A prefetch must not cost a fetch. Therefore chunks that are read ahead never take the place of a chunk
//! that the eviction rule would keep: they have a part of the memory of their own. At its use, such a chunk
//! counts as one of the others, and what the rule then evicts makes room for the next. So the fetches are
//! those of the best policy for the memory without that part, in the same order, only earlier. (With no
//! memory of their own, the only harmless prefetches are those in place of a chunk that the rule evicts
//! anyway; in an order that repeats, this is the chunk in use, and nothing can be read while the device
//! computes. See Cao et al. 1995, "A study of integrated prefetching and caching strategies".)

use std::collections::BTreeMap;

use super::eviction::{Candidate, choose_evictions};

/// `auto` keeps one part in this number of the budget for chunks that are read ahead. The larger the part,
/// the more can be read during one segment; and the less is left for chunks that stay, so the more has to be
/// read.
pub const READ_AHEAD_PARTS: usize = 8;

/// The search for chunks to prefetch ends after this many moments: what is used later can be fetched later.
pub(crate) const LOOKAHEAD_MOMENTS: usize = 64;

/// The use of a chunk at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkUse {
    /// The chunk.
    pub chunk: usize,
    /// Whether it changes at this moment.
    pub writes: bool,
}

/// The chunks that each moment needs, as one step has recorded them.
#[derive(Clone, Debug)]
pub struct RecordedOrder {
    moments: Vec<Vec<ChunkUse>>,
    chunk_bytes: Vec<usize>,
    /// The moments at which each chunk is used, ascending.
    uses: Vec<Vec<usize>>,
    repeats: bool,
}

impl RecordedOrder {
    /// An order of use of chunks of these sizes. If it `repeats`, the last moment is followed by the first
    /// one, as in training; otherwise no chunk is used again after the last moment.
    pub fn new(moments: Vec<Vec<ChunkUse>>, chunk_bytes: Vec<usize>, repeats: bool) -> Self {
        let mut uses = vec![Vec::new(); chunk_bytes.len()];
        for (moment, chunk_uses) in moments.iter().enumerate() {
            for chunk_use in chunk_uses {
                uses[chunk_use.chunk].push(moment);
            }
        }
        Self { moments, chunk_bytes, uses, repeats }
    }

    /// The number of recorded moments.
    pub fn num_moments(&self) -> usize {
        self.moments.len()
    }

    /// The chunks of a moment. Moments count on over repetitions.
    pub fn uses_at(&self, moment: usize) -> &[ChunkUse] {
        match self.moments.len() {
            0 => &[],
            length if self.repeats => &self.moments[moment % length],
            _ => self.moments.get(moment).map_or(&[], Vec::as_slice),
        }
    }

    /// The first moment, `from` or later, that uses the chunk.
    pub fn next_use(&self, chunk: usize, from: usize) -> Option<usize> {
        let uses = &self.uses[chunk];
        let first_after = |moment| uses.get(uses.partition_point(|&used| used < moment)).copied();
        if !self.repeats {
            return first_after(from);
        }
        let (length, first) = (self.moments.len(), *uses.first()?);
        let start = from - from % length;
        Some(first_after(from - start).map_or(start + length + first, |moment| start + moment))
    }

    /// The size of a chunk.
    pub fn bytes(&self, chunk: usize) -> usize {
        self.chunk_bytes[chunk]
    }

    fn is_used_at(&self, chunk: usize, moment: usize) -> bool {
        self.uses_at(moment).iter().any(|chunk_use| chunk_use.chunk == chunk)
    }

    /// The index in the recording of a moment that counts on over repetitions.
    pub(crate) fn recorded(&self, moment: usize) -> usize {
        if self.repeats { moment % self.moments.len() } else { moment }
    }

    /// The moments after `now` that are looked at: at most up to the end, or once around.
    fn moments_after(&self, now: usize) -> std::ops::Range<usize> {
        let end = if self.repeats { now + self.moments.len() } else { self.moments.len() };
        now + 1..end.min(now + 1 + LOOKAHEAD_MOMENTS)
    }
}

/// The chunks that one moment needs do not fit into the memory that it leaves for chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("moment {moment} needs chunks of {needed} bytes at once and has room for {capacity}")]
pub struct DoesNotFit {
    /// The moment.
    pub moment: usize,
    /// The bytes of its chunks.
    pub needed: usize,
    /// The bytes it has room for.
    pub capacity: usize,
}

/// What a simulated run has moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moves {
    /// The number of chunks fetched.
    pub fetches: usize,
    /// Their bytes.
    pub fetched_bytes: usize,
    /// How many of the fetches were made before the moment of the use.
    pub prefetches: usize,
    /// The number of chunks evicted.
    pub evictions: usize,
    /// The bytes of those evicted chunks that had to be written.
    pub written_bytes: usize,
    /// The most bytes that were in memory at once.
    pub peak_bytes: usize,
}

/// The chunks in memory during a simulation.
struct ResidentSet<'a> {
    order: &'a RecordedOrder,
    /// Each chunk, and whether it is dirty.
    chunks: BTreeMap<usize, bool>,
    bytes: usize,
}

impl<'a> ResidentSet<'a> {
    fn new(order: &'a RecordedOrder) -> Self {
        Self { order, chunks: BTreeMap::new(), bytes: 0 }
    }

    fn fetch(&mut self, chunk: usize) {
        if self.chunks.insert(chunk, false).is_none() {
            self.bytes += self.order.bytes(chunk);
        }
    }

    /// Returns whether the chunk was dirty.
    fn evict(&mut self, chunk: usize) -> bool {
        let dirty = self.chunks.remove(&chunk).expect("only chunks in memory are evicted");
        self.bytes -= self.order.bytes(chunk);
        dirty
    }

    fn mark_writes(&mut self, moment: usize) {
        for chunk_use in self.order.uses_at(moment).iter().filter(|chunk_use| chunk_use.writes) {
            self.chunks.insert(chunk_use.chunk, true);
        }
    }

    /// The chunks of a moment that are not in memory, without repetition.
    fn absent(&self, moment: usize) -> Vec<usize> {
        let mut absent = Vec::new();
        for &ChunkUse { chunk, .. } in self.order.uses_at(moment) {
            if !self.chunks.contains_key(&chunk) && !absent.contains(&chunk) {
                absent.push(chunk);
            }
        }
        absent
    }

    /// The chunks to evict so that all chunks of `moment` fit into `capacity` bytes.
    fn victims(&self, moment: usize, capacity: usize) -> Result<Vec<usize>, DoesNotFit> {
        let absent_bytes: usize = self.absent(moment).iter().map(|&chunk| self.order.bytes(chunk)).sum();
        let is_idle = |&(&chunk, _): &(&usize, &bool)| !self.order.is_used_at(chunk, moment);
        let (idle, candidates): (Vec<usize>, Vec<Candidate>) = self
            .chunks
            .iter()
            .filter(is_idle)
            .map(|(&chunk, &dirty)| {
                let next_use = self.order.next_use(chunk, moment).map(|next_use| next_use - moment);
                (chunk, Candidate { bytes: self.order.bytes(chunk), next_use, dirty })
            })
            .unzip();

        let wanted = self.bytes + absent_bytes;
        let Some(chosen) = choose_evictions(&candidates, wanted.saturating_sub(capacity)) else {
            let idle_bytes: usize = candidates.iter().map(|candidate| candidate.bytes).sum();
            return Err(DoesNotFit { moment, needed: wanted - idle_bytes, capacity });
        };
        Ok(chosen.into_iter().map(|index| idle[index]).collect())
    }
}

/// Decides which chunks to fetch while moment `now` runs, in order of their use. `is_in_memory` tells of a
/// chunk whether it is there or on its way, and `ahead_bytes` how many bytes of these were fetched for later
/// moments. With the chosen ones, these are at most `read_ahead_bytes`. `capacity` gives the bytes for all
/// chunks at a moment, by its index in the recording: at every moment before its use, a chunk fits beside
/// those in use.
pub fn choose_prefetches(
    order: &RecordedOrder,
    now: usize,
    is_in_memory: impl Fn(usize) -> bool,
    mut ahead_bytes: usize,
    read_ahead_bytes: usize,
    capacity: impl Fn(usize) -> usize,
) -> Vec<usize> {
    let mut limit = read_ahead_bytes;
    let mut chosen: Vec<usize> = Vec::new();
    for moment in order.moments_after(now) {
        // What is not in memory yet comes in the order of use: a smaller chunk does not overtake a larger
        // one.
        let in_use = order.uses_at(moment).iter().map(|chunk_use| order.bytes(chunk_use.chunk)).sum();
        for &ChunkUse { chunk, .. } in order.uses_at(moment) {
            if is_in_memory(chunk) || chosen.contains(&chunk) {
                continue;
            }
            ahead_bytes += order.bytes(chunk);
            if ahead_bytes > limit {
                return chosen;
            }
            chosen.push(chunk);
        }
        limit = limit.min(capacity(order.recorded(moment)).saturating_sub(in_use));
    }
    chosen
}

/// Runs the policy `auto` from empty memory. An order that repeats runs `passes` times. `capacity` gives the
/// bytes for chunks at a moment, by its index in the recording, and `read_ahead_bytes` more for chunks that
/// are fetched before their moment. Returns what was moved, or the first moment whose chunks do not fit. What
/// a training step moves is the difference between three passes and two.
pub fn simulate(
    order: &RecordedOrder,
    passes: usize,
    capacity: impl Fn(usize) -> usize,
    read_ahead_bytes: usize,
) -> Result<Moves, DoesNotFit> {
    let end = order.num_moments() * if order.repeats { passes } else { 1 };
    let (mut residency, mut ahead) = (ResidentSet::new(order), ResidentSet::new(order));
    let mut moves = Moves::default();
    for moment in 0..end {
        let capacity_now = capacity(order.recorded(moment));
        let victims = residency.victims(moment, capacity_now)?;
        moves.evict(&mut residency, &victims);
        for chunk in residency.absent(moment) {
            if ahead.chunks.contains_key(&chunk) {
                ahead.evict(chunk);
            } else {
                moves.fetch(chunk, order);
            }
            residency.fetch(chunk);
        }
        residency.mark_writes(moment);
        moves.peak_bytes = moves.peak_bytes.max(residency.bytes + ahead.bytes);

        let is_in_memory =
            |chunk: usize| residency.chunks.contains_key(&chunk) || ahead.chunks.contains_key(&chunk);
        let whole = |moment| capacity(moment) + read_ahead_bytes;
        for chunk in choose_prefetches(order, moment, is_in_memory, ahead.bytes, read_ahead_bytes, whole) {
            // What is used after the end is not fetched.
            if order.next_use(chunk, moment + 1).is_some_and(|next| next < end) {
                moves.fetch(chunk, order);
                moves.prefetches += 1;
                ahead.fetch(chunk);
            }
        }
        moves.peak_bytes = moves.peak_bytes.max(residency.bytes + ahead.bytes);
        assert!(residency.bytes <= capacity_now && ahead.bytes <= read_ahead_bytes, "there is room for all");
    }
    Ok(moves)
}

impl Moves {
    fn fetch(&mut self, chunk: usize, order: &RecordedOrder) {
        self.fetches += 1;
        self.fetched_bytes += order.bytes(chunk);
    }

    fn evict(&mut self, residency: &mut ResidentSet<'_>, chunks: &[usize]) {
        for &chunk in chunks {
            self.evictions += 1;
            if residency.evict(chunk) {
                self.written_bytes += residency.order.bytes(chunk);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(moments: &[&[usize]], chunk_bytes: &[usize], repeats: bool) -> RecordedOrder {
        let reads = |chunks: &&[usize]| {
            chunks.iter().map(|&chunk| ChunkUse { chunk, writes: false }).collect::<Vec<ChunkUse>>()
        };
        RecordedOrder::new(moments.iter().map(reads).collect(), chunk_bytes.to_vec(), repeats)
    }

    #[test]
    fn next_uses_wrap_around_if_the_order_repeats() {
        let moments: [&[usize]; 4] = [&[0], &[1], &[0, 2], &[1]];
        let once = order(&moments, &[1; 4], false);
        assert_eq!([0, 1, 2, 3].map(|from| once.next_use(0, from)), [Some(0), Some(2), Some(2), None]);
        let again = order(&moments, &[1; 4], true);
        assert_eq!([2, 3, 5, 7].map(|from| again.next_use(0, from)), [2, 4, 6, 8].map(Some));
        assert_eq!(again.next_use(2, 7), Some(10));
        assert_eq!(again.next_use(3, 0), None);
        assert_eq!(again.uses_at(6).len(), 2);
    }

    #[test]
    fn prefetches_follow_the_order_of_use() {
        let order = order(&[&[0], &[1], &[2], &[3], &[2], &[4]], &[1, 1, 1, 2, 1], true);
        let prefetch = |in_memory: &[usize], ahead_bytes: usize, read_ahead_bytes: usize| {
            choose_prefetches(
                &order,
                2,
                |chunk| in_memory.contains(&chunk),
                ahead_bytes,
                read_ahead_bytes,
                |_| 9,
            )
        };
        // While 2 is in use, the next are 3, 4, 0 and 1.
        assert_eq!(prefetch(&[2], 0, 9), [3, 4, 0, 1]);
        assert_eq!(prefetch(&[2], 0, 3), [3, 4]);
        assert_eq!(prefetch(&[2, 3], 2, 4), [4, 0]);
        // Chunk 3 has two bytes. Chunk 4, which is smaller, does not overtake it.
        assert!(prefetch(&[2], 0, 1).is_empty());
        assert!(prefetch(&[0, 1, 2], 1, 2).is_empty());
    }

    #[test]
    fn a_prefetch_fits_beside_the_chunks_that_are_used_before_it() {
        let order = order(&[&[0], &[1], &[2]], &[1, 3, 1], false);
        let prefetch = |capacity: usize| choose_prefetches(&order, 0, |chunk| chunk < 2, 0, 9, |_| capacity);
        assert_eq!(prefetch(4), [2]);
        assert!(prefetch(3).is_empty());
    }

    #[test]
    fn moves_by_hand() {
        // Chunk 0 is written at moment 0, and chunk 1 is read, at a capacity of one chunk: fetch 0, write 0
        // back, fetch 1, drop 1, fetch 0.
        let uses =
            [(0, true), (1, false), (0, false)].map(|(chunk, writes)| vec![ChunkUse { chunk, writes }]);
        let order = RecordedOrder::new(uses.to_vec(), vec![10, 7], false);
        let moves = simulate(&order, 1, |_| 10, 0).unwrap();
        let expected = Moves {
            fetches: 3,
            fetched_bytes: 27,
            prefetches: 0,
            evictions: 2,
            written_bytes: 10,
            peak_bytes: 10,
        };
        assert_eq!(moves, expected);
        // With memory for reading ahead, the same moves are made earlier: 1 while 0 is in use, but 0 only
        // after it was evicted.
        let ahead = Moves { prefetches: 2, peak_bytes: 17, ..expected };
        assert_eq!(simulate(&order, 1, |_| 10, 10), Ok(ahead));
        // With room for both, nothing goes.
        let moves = simulate(&order, 1, |_| 17, 10).unwrap();
        assert_eq!((moves.fetches, moves.prefetches, moves.evictions, moves.peak_bytes), (2, 1, 0, 17));
    }

    #[test]
    fn a_cycle_misses_as_little_as_possible() {
        // Over a cycle of n equal chunks with room for c < n, keeping c - 1 chunks for good would fetch
        // n - c + 1 per pass. Belady's rule keeps c - 1 at every moment, too, but lets the fetched chunk stay
        // in place of the one just used: it fetches (n - c) / (n - 1) of the uses. In n - 1 passes that are
        // (n - c) n fetches. (Least recently used: all of them.)
        for (n, c) in [(4, 2), (5, 3), (6, 2), (7, 5), (8, 7)] {
            let moments: Vec<Vec<ChunkUse>> =
                (0..n).map(|chunk| vec![ChunkUse { chunk, writes: false }]).collect();
            let order = RecordedOrder::new(moments, vec![1; n], true);
            for read_ahead in [0, 1, 3] {
                let fetches = |passes| simulate(&order, passes, |_| c, read_ahead).unwrap().fetches;
                assert_eq!(fetches(1), n, "the first pass fetches everything");
                assert_eq!(fetches(2 * n - 1) - fetches(n), (n - c) * n, "n = {n}, c = {c}");
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let order = order(&[&[0], &[0, 1, 1], &[0]], &[2, 3], false);
        assert!(simulate(&order, 1, |_| 5, 1).is_ok());
        let error = DoesNotFit { moment: 1, needed: 5, capacity: 4 };
        assert_eq!(simulate(&order, 1, |moment| 6 - 2 * moment, 1), Err(error));
        assert_eq!(simulate(&order, 1, |_| 1, 0), Err(DoesNotFit { moment: 0, needed: 2, capacity: 1 }));
    }

    #[test]
    fn chunks_of_different_sizes_may_move_more_than_necessary() {
        // Capacity 4, sizes A 2, b 1, c 1, d 1. When d comes, A is farthest and goes; it comes back at the
        // end: 2 + 1 + 1 + 1 + 2 bytes. To drop c, and later d for c, would move 2 + 1 + 1 + 1 + 1.
        let moments: [&[usize]; 7] = [&[0], &[1], &[2], &[3], &[1], &[2], &[0]];
        let sizes = [2, 1, 1, 1];
        assert_eq!(simulate(&order(&moments, &sizes, false), 1, |_| 4, 0).unwrap().fetched_bytes, 7);
        let moments: Vec<Vec<usize>> = moments.iter().map(|chunks| chunks.to_vec()).collect();
        assert_eq!(least_fetched(&moments, &sizes, |_| 4), Some(6));
    }

    /// The fewest bytes that any schedule fetches, by trying every set of chunks in memory at every moment.
    fn least_fetched(
        moments: &[Vec<usize>],
        chunk_bytes: &[usize],
        capacity: impl Fn(usize) -> usize,
    ) -> Option<usize> {
        let sets = 1_usize << chunk_bytes.len();
        let bytes = |set: usize| {
            (0..chunk_bytes.len()).filter(|chunk| set >> chunk & 1 == 1).map(|chunk| chunk_bytes[chunk]).sum()
        };
        let sizes: Vec<usize> = (0..sets).map(bytes).collect();
        let mut least: Vec<Option<usize>> = vec![None; sets];
        least[0] = Some(0);
        for (moment, chunks) in moments.iter().enumerate() {
            let needed = chunks.iter().fold(0, |set, chunk| set | 1 << chunk);
            let reach = |set: usize| {
                if set & needed != needed || sizes[set] > capacity(moment) {
                    return None;
                }
                (0..sets).filter_map(|before| Some(least[before]? + sizes[set & !before])).min()
            };
            least = (0..sets).map(reach).collect();
        }
        least.into_iter().flatten().min()
    }

    /// A generator of pseudo-random numbers below a bound (Knuth's MMIX constants).
    fn random_numbers(seed: u64) -> impl FnMut(usize) -> usize {
        let mut state = seed;
        move |bound| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % bound
        }
    }

    /// Compares 200 random orders with the optimum: `per_moment` chunks of one size at each moment, and a
    /// capacity that is between `least` and `most` chunks.
    fn compare_with_optimum(seed: u64, per_moment: usize, least: usize, most: usize) {
        let mut random = random_numbers(seed);
        let mut prefetched = 0;
        for _ in 0..200 {
            let num_chunks = 3 + random(4);
            let moments: Vec<Vec<usize>> =
                (0..4 + random(12)).map(|_| (0..per_moment).map(|_| random(num_chunks)).collect()).collect();
            let capacities: Vec<usize> = moments.iter().map(|_| least + random(most - least + 1)).collect();
            let uses = |chunks: &Vec<usize>| {
                chunks.iter().map(|&chunk| ChunkUse { chunk, writes: chunk % 2 == 1 }).collect()
            };
            let order = RecordedOrder::new(moments.iter().map(uses).collect(), vec![1; num_chunks], false);

            let optimum = least_fetched(&moments, &vec![1; num_chunks], |moment| capacities[moment]);
            for read_ahead in [0, 1, 2, 10] {
                let moves = simulate(&order, 1, |moment| capacities[moment], read_ahead);
                assert_eq!(moves.ok().map(|moves| moves.fetches), optimum, "{moments:?} {capacities:?}");
                prefetched += moves.map_or(0, |moves| moves.prefetches);
            }
        }
        assert!(prefetched > 200, "{prefetched}");
    }

    #[test]
    fn one_chunk_per_moment_is_optimal() {
        compare_with_optimum(1, 1, 2, 2);
        compare_with_optimum(2, 1, 3, 3);
    }

    #[test]
    fn two_chunks_per_moment_are_optimal() {
        compare_with_optimum(3, 2, 3, 3);
        compare_with_optimum(4, 2, 4, 4);
    }

    #[test]
    fn capacities_that_change_are_optimal() {
        compare_with_optimum(5, 1, 1, 5);
        compare_with_optimum(6, 2, 2, 5);
        // Some of these moments do not fit at all, which the optimum finds as well.
        compare_with_optimum(7, 2, 1, 4);
    }
}
