//! Looking ahead along a recorded order of use: fetching before the use, and simulating the policy `auto`.
//!
//! ```text
//!   moment        0       1       2       3       4       capacity: three chunks
//!   uses          d       a       c       b       d
//!   in memory   a b d   a b d   c b d   c b d   c b d     c replaces a, which is not used again
//! ```
//! A prefetch must not cost a fetch. It is not enough that the evicted chunk is used later than the fetched
//! one: at moment 0 of the picture, c could replace b, but then b would be fetched again at moment 3, and a
//! would stay for nothing. So a chunk is prefetched only in place of the chunk that would make room for it at
//! its use, and only once that chunk is idle until then. (Cao et al. 1995, "A study of integrated prefetching
//! and caching strategies": the rules `optimal replacement` and `do no harm`.)

use std::collections::BTreeMap;

use super::{Candidate, choose_evictions};

/// The search for chunks to prefetch ends after this many moments: what is used later can be fetched later.
const LOOKAHEAD_MOMENTS: usize = 64;

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
    fn recorded(&self, moment: usize) -> usize {
        if self.repeats { moment % self.moments.len() } else { moment }
    }

    /// The moments after `now` that are looked at: at most up to the end, or once around.
    fn moments_after(&self, now: usize) -> std::ops::Range<usize> {
        let end = if self.repeats { now + self.moments.len() } else { self.moments.len() };
        now + 1..end.min(now + 1 + LOOKAHEAD_MOMENTS)
    }
}

/// A chunk that is in the memory of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// The chunk.
    pub chunk: usize,
    /// Whether it has changed since it was fetched.
    pub dirty: bool,
    /// Whether it cannot be evicted now: it is in use, or a copy of it is under way.
    pub pinned: bool,
}

/// A chunk to fetch before its use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefetch {
    /// The chunk.
    pub chunk: usize,
    /// The moment that uses it.
    pub moment: usize,
    /// The chunks to evict first.
    pub evict: Vec<usize>,
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
    fn new(order: &'a RecordedOrder, resident: &[Resident]) -> Self {
        let chunks: BTreeMap<usize, bool> = resident.iter().map(|one| (one.chunk, one.dirty)).collect();
        let bytes = chunks.keys().map(|&chunk| order.bytes(chunk)).sum();
        Self { order, chunks, bytes }
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

/// Decides which chunks to fetch while moment `now` runs, in order of their use, and what to evict first.
/// `resident` has all chunks in memory, those of `now` included. `capacity` gives the bytes for chunks at a
/// moment, by its index in the recording. At most `max_prefetch` chunks are fetched.
///
/// The search follows the order of use. It stops at the first absent chunk for which there is no room yet,
/// and never takes a later one instead. A chunk that the policy will evict before its next use is not fetched
/// either. For chunks of equal size, prefetching does not change the number of fetches. For chunks of
/// different sizes it rarely changes the later evictions, for the better or for the worse.
pub fn choose_prefetches(
    order: &RecordedOrder,
    now: usize,
    resident: &[Resident],
    capacity: impl Fn(usize) -> usize,
    max_prefetch: usize,
) -> Vec<Prefetch> {
    let capacity = |moment: usize| capacity(order.recorded(moment));
    let mut lookahead = Lookahead {
        residency: ResidentSet::new(order, resident),
        evictable: resident.iter().filter(|one| !one.pinned).map(|one| one.chunk).collect(),
        evicted: Vec::new(),
        free: Vec::new(),
        now,
    };
    lookahead.free.push(signed_difference(capacity(now), lookahead.residency.bytes));

    let mut prefetches = Vec::new();
    for moment in order.moments_after(now) {
        if prefetches.len() >= max_prefetch {
            break;
        }
        let Ok(victims) = lookahead.residency.victims(moment, capacity(moment)) else { break };
        let absent = lookahead.residency.absent(moment);
        let room_for = max_prefetch - prefetches.len();
        let found = lookahead.prefetch(moment, &absent, &victims);
        let is_complete = found.len() == absent.len();
        prefetches.extend(found.into_iter().take(room_for));
        if !is_complete {
            break;
        }
        lookahead.advance(moment, capacity(moment), &victims, &absent);
    }
    prefetches
}

/// The state of [`choose_prefetches`]: what would happen after `now` if every chunk was fetched at its use.
struct Lookahead<'a> {
    residency: ResidentSet<'a>,
    /// The chunks that may be evicted at `now`.
    evictable: Vec<usize>,
    /// The chunks that are evicted after `now`, or at `now` in favor of a prefetch.
    evicted: Vec<usize>,
    /// The free bytes at `now` and at each moment after it, with the prefetches so far. Negative if more is
    /// in memory than the moment has room for.
    free: Vec<i64>,
    now: usize,
}

impl Lookahead<'_> {
    /// The chunks of `moment` that can be fetched at `now`, up to the first that cannot. Each of them has to
    /// fit into the memory at `now` and at all moments before `moment`. Of `victims`, which are evicted at
    /// `moment` at the latest, those that are idle until then are evicted now as far as necessary.
    fn prefetch(&mut self, moment: usize, absent: &[usize], victims: &[usize]) -> Vec<Prefetch> {
        if absent.iter().any(|chunk| self.evicted.contains(chunk)) {
            return Vec::new();
        }
        let order = self.residency.order;
        let is_idle_until =
            |chunk: usize| order.next_use(chunk, self.now + 1).is_none_or(|next| next > moment);
        let mut idle =
            victims.iter().copied().filter(|&chunk| self.evictable.contains(&chunk) && is_idle_until(chunk));

        let mut prefetches = Vec::new();
        for &chunk in absent {
            let least_free = self.free.iter().min().expect("`now` has an entry");
            let mut missing = order.bytes(chunk) as i64 - least_free;
            let mut evict = Vec::new();
            while missing > 0 {
                let Some(victim) = idle.next() else { return prefetches };
                missing -= order.bytes(victim) as i64;
                evict.push(victim);
            }
            let freed: usize = evict.iter().map(|&victim| order.bytes(victim)).sum();
            let change = signed_difference(freed, order.bytes(chunk));
            self.free.iter_mut().for_each(|free| *free += change);
            prefetches.push(Prefetch { chunk, moment, evict });
        }
        prefetches
    }

    /// Goes on to the next moment.
    fn advance(&mut self, moment: usize, capacity: usize, victims: &[usize], absent: &[usize]) {
        for &victim in victims {
            self.residency.evict(victim);
        }
        self.evicted.extend(victims);
        for &chunk in absent {
            self.residency.fetch(chunk);
        }
        self.residency.mark_writes(moment);
        self.free.push(signed_difference(capacity, self.residency.bytes));
    }
}

fn signed_difference(left: usize, right: usize) -> i64 {
    left as i64 - right as i64
}

/// Runs the policy `auto` from empty memory: chunks are fetched at their use, and up to `max_prefetch` chunks
/// per moment before it. An order that repeats runs `passes` times. `capacity` gives the bytes for chunks at
/// a moment, by its index in the recording. Returns what was moved, or the first moment whose chunks do not
/// fit. What a training step moves is the difference between three passes and two.
pub fn simulate(
    order: &RecordedOrder,
    passes: usize,
    capacity: impl Fn(usize) -> usize,
    max_prefetch: usize,
) -> Result<Moves, DoesNotFit> {
    let end = order.num_moments() * if order.repeats { passes } else { 1 };
    let mut residency = ResidentSet::new(order, &[]);
    let mut moves = Moves::default();
    for moment in 0..end {
        let capacity_now = capacity(order.recorded(moment));
        let victims = residency.victims(moment, capacity_now)?;
        moves.evict(&mut residency, &victims);
        for chunk in residency.absent(moment) {
            moves.fetch(&mut residency, chunk);
        }
        residency.mark_writes(moment);

        let pinned = |chunk| order.is_used_at(chunk, moment);
        let resident: Vec<Resident> = residency
            .chunks
            .iter()
            .map(|(&chunk, &dirty)| Resident { chunk, dirty, pinned: pinned(chunk) })
            .collect();
        let prefetches = choose_prefetches(order, moment, &resident, &capacity, max_prefetch);
        for prefetch in prefetches.iter().take_while(|prefetch| prefetch.moment < end) {
            moves.evict(&mut residency, &prefetch.evict);
            moves.fetch(&mut residency, prefetch.chunk);
            moves.prefetches += 1;
        }
        assert!(residency.bytes <= capacity_now, "no more is in memory than there is room for");
    }
    Ok(moves)
}

impl Moves {
    fn fetch(&mut self, residency: &mut ResidentSet<'_>, chunk: usize) {
        residency.fetch(chunk);
        self.fetches += 1;
        self.fetched_bytes += residency.order.bytes(chunk);
        self.peak_bytes = self.peak_bytes.max(residency.bytes);
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

    /// Chunks in memory of which none is pinned.
    fn resident(chunks: &[usize]) -> Vec<Resident> {
        chunks.iter().map(|&chunk| Resident { chunk, dirty: false, pinned: false }).collect()
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
    fn a_prefetch_waits_for_the_right_chunk() {
        // The picture at the top: a, b, c, d = 0, 1, 2, 3.
        let order = order(&[&[3], &[0], &[2], &[1], &[3]], &[1; 4], false);
        let mut in_memory = resident(&[0, 1, 3]);
        in_memory[2].pinned = true;
        assert_eq!(choose_prefetches(&order, 0, &in_memory, |_| 3, 9), []);
        // With room for a fourth chunk nothing has to go.
        let prefetch = Prefetch { chunk: 2, moment: 2, evict: vec![] };
        assert_eq!(choose_prefetches(&order, 0, &in_memory, |_| 4, 9), [prefetch]);
        // Unless one of the moments before the use has no such room.
        let capacity = |moment| if moment == 1 { 3 } else { 4 };
        assert_eq!(choose_prefetches(&order, 0, &in_memory, capacity, 9), []);
        assert_eq!(choose_prefetches(&order, 0, &in_memory, |_| 4, 0), []);
    }

    #[test]
    fn prefetches_keep_the_order_and_evict_what_is_farthest() {
        let order = order(&[&[0], &[1], &[2], &[3], &[2], &[4]], &[1, 1, 1, 2, 1], true);
        // Chunk 3 needs two bytes at moment 3. Of 0, 1 and 2, which are used again at 6, 7 and 4, it replaces
        // 1 and 0, and both are idle already at moment 2. Chunk 4 will replace 3, and has to wait for it.
        let mut in_memory = resident(&[0, 1, 2]);
        in_memory[2].pinned = true;
        let three = Prefetch { chunk: 3, moment: 3, evict: vec![1, 0] };
        assert_eq!(choose_prefetches(&order, 2, &in_memory, |_| 3, 9), [three]);
        // A pinned chunk stays, and chunk 4, which is smaller, does not overtake.
        in_memory[0].pinned = true;
        assert_eq!(choose_prefetches(&order, 2, &in_memory, |_| 3, 9), []);
        // With room for all, the lookahead goes once around.
        let chunks = |prefetches: Vec<Prefetch>| prefetches.iter().map(|one| one.chunk).collect::<Vec<_>>();
        assert_eq!(chunks(choose_prefetches(&order, 2, &in_memory[2..], |_| 6, 9)), [3, 4, 0, 1]);
        assert_eq!(chunks(choose_prefetches(&order, 2, &in_memory[2..], |_| 6, 2)), [3, 4]);
    }

    #[test]
    fn a_chunk_that_has_to_go_first_is_not_prefetched() {
        // Moment 1 has room for 4 of the 6 bytes, and 0 goes, which is clean; 1 is used again as late, but is
        // dirty. Chunk 2 replaces 1, which frees 2 bytes more than it takes. Chunk 0 would fit there, but it
        // is in memory still.
        let order = order(&[&[3], &[3], &[3, 2], &[0, 1]], &[2, 3, 1, 1], false);
        let mut in_memory = resident(&[0, 1, 3]);
        (in_memory[1].dirty, in_memory[2].pinned) = (true, true);
        let two = Prefetch { chunk: 2, moment: 2, evict: vec![1] };
        assert_eq!(choose_prefetches(&order, 0, &in_memory, |moment| [6, 4, 4, 9][moment], 9), [two]);
    }

    #[test]
    fn moves_by_hand() {
        // Chunk 0 is written at moment 0, and chunk 1 is read, at a capacity of one chunk: fetch 0, write 0
        // back, fetch 1, drop 1, fetch 0.
        let uses =
            [(0, true), (1, false), (0, false)].map(|(chunk, writes)| vec![ChunkUse { chunk, writes }]);
        let order = RecordedOrder::new(uses.to_vec(), vec![10, 7], false);
        let moves = simulate(&order, 1, |_| 10, 4).unwrap();
        let expected = Moves {
            fetches: 3,
            fetched_bytes: 27,
            prefetches: 0,
            evictions: 2,
            written_bytes: 10,
            peak_bytes: 10,
        };
        assert_eq!(moves, expected);
        // With room for both, chunk 1 comes early and nothing goes.
        let moves = simulate(&order, 1, |_| 17, 4).unwrap();
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
            for max_prefetch in [0, 1, 3] {
                let fetches = |passes| simulate(&order, passes, |_| c, max_prefetch).unwrap().fetches;
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
        // A moment ahead that does not fit only ends the lookahead.
        assert_eq!(choose_prefetches(&order, 0, &resident(&[0]), |_| 4, 1), []);
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
            for max_prefetch in [0, 1, 2, 10] {
                let moves = simulate(&order, 1, |moment| capacities[moment], max_prefetch);
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
