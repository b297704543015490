//! The address space that no tensor uses: which parts of it have memory, and which part serves a request.
//!
//! ```text
//!   tensor | memory | no memory | memory | tensor     free extents between two tensors
//!          |<-------- a run of them -----------|      serves one request, whatever of it has memory
//! ```
//! Neighbours that both have memory, or both have none, are one extent. A request is served by the smallest
//! extent with memory that is large enough (best fit; Wilson et al. 1995, "Dynamic Storage Allocation: A
//! Survey and Critical Review", section 3.5), and otherwise by the place that needs the least new memory.
//!
//! This module knows addresses only. It makes no system calls and counts nothing for others.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A part of the free space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    end: usize,
    /// Whether its pages are in memory.
    has_memory: bool,
    /// When the newest part of it became free, as a number of [`FreeSpace::num_freed`].
    freed: u64,
}

/// Free extents by address.
#[derive(Debug)]
pub(super) struct FreeSpace {
    extents: BTreeMap<usize, Extent>,
    /// Bytes and address of each extent with memory.
    by_bytes: BTreeSet<(usize, usize)>,
    /// How often something became free.
    num_freed: u64,
}

/// A place for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) range: Range<usize>,
    /// The parts of the range that have memory, by address.
    pub(super) in_memory: Vec<Range<usize>>,
}

impl Place {
    /// The bytes that already have memory.
    pub(super) fn bytes_in_memory(&self) -> usize {
        self.in_memory.iter().map(Range::len).sum()
    }

    /// The bytes for which memory is missing.
    pub(super) fn missing_bytes(&self) -> usize {
        self.range.len() - self.bytes_in_memory()
    }
}

impl FreeSpace {
    pub(super) const fn new() -> Self {
        Self { extents: BTreeMap::new(), by_bytes: BTreeSet::new(), num_freed: 0 }
    }

    /// Adds a range that a tensor has given back: all of it is in memory.
    pub(super) fn add(&mut self, range: Range<usize>) {
        self.num_freed += 1;
        self.insert(range, true, self.num_freed);
    }

    /// Adds a range without memory.
    pub(super) fn add_absent(&mut self, range: Range<usize>) {
        self.insert(range, false, 0);
    }

    /// Adds a place as it was taken.
    pub(super) fn put_back(&mut self, place: &Place) {
        let mut start = place.range.start;
        for part in &place.in_memory {
            self.add_absent(start..part.start);
            self.add(part.clone());
            start = part.end;
        }
        self.add_absent(start..place.range.end);
    }

    /// Takes `bytes` that are in memory as a whole; `None` if no extent is that large.
    pub(super) fn take_in_memory(&mut self, bytes: usize) -> Option<usize> {
        let &(_, start) = self.by_bytes.range((bytes, 0)..).next()?;
        self.cut(start..start + bytes);
        Some(start)
    }

    /// Takes the `bytes` for which the least memory is missing; `None` if no run is that long.
    pub(super) fn take(&mut self, bytes: usize) -> Option<Place> {
        let mut best: Option<Place> = None;
        for run in self.runs().filter(|run| run.len() >= bytes) {
            // The best window begins where an extent with memory begins, or ends where one ends.
            let last = run.end - bytes;
            let extents = self.extents.range(run.clone()).filter(|(_, extent)| extent.has_memory);
            let begins = extents.flat_map(|(&start, extent)| [start, extent.end.saturating_sub(bytes)]);
            for start in begins.chain([run.start]).map(|start| start.clamp(run.start, last)) {
                let place = self.place(start..start + bytes);
                if best.as_ref().is_none_or(|best| place.missing_bytes() < best.missing_bytes()) {
                    best = Some(place);
                }
            }
        }
        let place = best?;
        self.cut(place.range.clone());
        Some(place)
    }

    /// Takes `bytes` of memory, or what there is, from what became free first. The addresses stay free, without
    /// memory: the caller gives the memory of these ranges back to the system.
    pub(super) fn take_memory(&mut self, bytes: usize) -> Vec<Range<usize>> {
        let mut taken = Vec::new();
        let mut missing = bytes;
        while missing > 0 {
            let in_memory = self.extents.iter().filter(|(_, extent)| extent.has_memory);
            let Some((&start, extent)) = in_memory.min_by_key(|(_, extent)| extent.freed) else { break };
            let range = start..extent.end.min(start + missing);
            missing -= range.len();
            self.cut(range.clone());
            self.add_absent(range.clone());
            taken.push(range);
        }
        taken
    }

    /// The runs of extents without a tensor between them, by address.
    fn runs(&self) -> impl Iterator<Item = Range<usize>> {
        let mut extents = self.extents.iter().peekable();
        std::iter::from_fn(move || {
            let (&start, extent) = extents.next()?;
            let mut end = extent.end;
            while let Some((_, next)) = extents.next_if(|&(&next, _)| next == end) {
                end = next.end;
            }
            Some(start..end)
        })
    }

    /// The place of a range inside a run.
    fn place(&self, range: Range<usize>) -> Place {
        let (&first, _) = self.extents.range(..=range.start).next_back().expect("the range is free");
        let extents = self.extents.range(first..range.end).filter(|(_, extent)| extent.has_memory);
        let parts = extents.map(|(&start, extent)| start.max(range.start)..extent.end.min(range.end));
        let in_memory = parts.filter(|part| !part.is_empty()).collect();
        Place { range, in_memory }
    }

    /// Removes a range inside a run. What is left of its extents stays as it was.
    fn cut(&mut self, range: Range<usize>) {
        let (&first, _) = self.extents.range(..=range.start).next_back().expect("the range is free");
        let starts: Vec<usize> = self.extents.range(first..range.end).map(|(&start, _)| start).collect();
        for start in starts {
            let extent = self.remove(start);
            for left in [start..range.start.min(extent.end), range.end.max(start)..extent.end] {
                if !left.is_empty() {
                    self.store(left.start, Extent { end: left.end, ..extent });
                }
            }
        }
    }

    /// Adds a range, merged with its neighbours.
    fn insert(&mut self, range: Range<usize>, has_memory: bool, freed: u64) {
        if range.is_empty() {
            return;
        }
        let mut merged = Extent { end: range.end, has_memory, freed };
        let mut start = range.start;
        let before = self.extents.range(..start).next_back().map(|(&start, &extent)| (start, extent));
        if let Some((neighbour, extent)) = before
            && extent.end == start
            && extent.has_memory == has_memory
        {
            self.remove(neighbour);
            (start, merged.freed) = (neighbour, merged.freed.max(extent.freed));
        }
        if let Some(&extent) = self.extents.get(&range.end)
            && extent.has_memory == has_memory
        {
            self.remove(range.end);
            (merged.end, merged.freed) = (extent.end, merged.freed.max(extent.freed));
        }
        self.store(start, merged);
    }

    fn store(&mut self, start: usize, extent: Extent) {
        if extent.has_memory {
            self.by_bytes.insert((extent.end - start, start));
        }
        self.extents.insert(start, extent);
    }

    fn remove(&mut self, start: usize) -> Extent {
        let extent = self.extents.remove(&start).expect("an extent begins there");
        self.by_bytes.remove(&(extent.end - start, start));
        extent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Free space of ranges in this order, as start, end and whether they have memory.
    fn space(ranges: &[(usize, usize, bool)]) -> FreeSpace {
        let mut space = FreeSpace::new();
        for &(start, end, has_memory) in ranges {
            if has_memory { space.add(start..end) } else { space.add_absent(start..end) }
        }
        space
    }

    /// The extents as start, end and whether they have memory.
    fn extents(space: &FreeSpace) -> Vec<(usize, usize, bool)> {
        space.extents.iter().map(|(&start, extent)| (start, extent.end, extent.has_memory)).collect()
    }

    #[test]
    fn neighbors_become_one() {
        let mut space = space(&[(0, 2, true), (4, 6, true), (6, 8, false)]);
        space.add(2..4);
        assert_eq!(extents(&space), [(0, 6, true), (6, 8, false)]);
        space.add_absent(8..9);
        assert_eq!(extents(&space), [(0, 6, true), (6, 9, false)]);
        assert_eq!(space.take_in_memory(6), Some(0));
        assert_eq!(space.take_in_memory(1), None);
    }

    #[test]
    fn the_smallest_extent_that_is_large_enough_serves() {
        let mut space = space(&[(0, 8, true), (10, 13, true), (20, 24, true), (24, 99, false)]);
        assert_eq!(space.take_in_memory(3), Some(10));
        assert_eq!(space.take_in_memory(3), Some(20));
        assert_eq!(space.take_in_memory(3), Some(0));
        assert_eq!(extents(&space), [(3, 8, true), (23, 24, true), (24, 99, false)]);
    }

    #[test]
    fn a_place_needs_as_little_new_memory_as_possible() {
        // The second run has more memory than the first, but no 6 bytes with more than 4 of it.
        let all = [
            (0, 2, false),
            (2, 5, true),
            (5, 7, false),
            (7, 9, true),
            (20, 24, true),
            (24, 29, false),
            (29, 33, true),
        ];
        let mut space = space(&all);
        let place = space.take(6).unwrap();
        // 2..8 has 4 of 6 and 3..9 does, too: the first of them.
        assert_eq!(place, Place { range: 2..8, in_memory: vec![2..5, 7..8] });
        assert_eq!((place.bytes_in_memory(), place.missing_bytes()), (4, 2));
        assert_eq!(extents(&space)[..2], [(0, 2, false), (8, 9, true)]);
        // All of the second run, which is 13 long. No run is longer.
        assert_eq!(space.take(14), None);
        let longest = space.take(13).unwrap();
        assert_eq!(longest, Place { range: 20..33, in_memory: vec![20..24, 29..33] });
        // As they were.
        space.put_back(&longest);
        space.put_back(&place);
        assert_eq!(extents(&space), all);
    }

    #[test]
    fn memory_that_became_free_first_goes_first() {
        let mut space = space(&[(10, 14, true), (0, 4, true), (20, 24, true)]);
        assert_eq!(space.take_memory(6), [10..14, 0..2]);
        assert_eq!(extents(&space), [(0, 2, false), (2, 4, true), (10, 14, false), (20, 24, true)]);
        // 14..15 is newer than 20..24, and what it meets has no memory.
        space.add(14..15);
        assert_eq!(space.take_memory(99), [2..4, 20..24, 14..15]);
        assert_eq!(space.take_memory(1), []);
        assert_eq!(extents(&space), [(0, 4, false), (10, 15, false), (20, 24, false)]);
    }

    /// What one page is.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Page {
        Used,
        InMemory,
        Absent,
    }

    /// The extents that the pages mean.
    fn extents_of(pages: &[Page]) -> Vec<(usize, usize, bool)> {
        let mut start = 0;
        let mut extents = Vec::new();
        for run in pages.chunk_by(|left, right| left == right) {
            if run[0] != Page::Used {
                extents.push((start, start + run.len(), run[0] == Page::InMemory));
            }
            start += run.len();
        }
        extents
    }

    /// The least number of pages without memory among `len` free ones in a row, by trying all.
    fn least_missing(pages: &[Page], len: usize) -> Option<usize> {
        let free = pages.windows(len).filter(|window| !window.contains(&Page::Used));
        free.map(|window| window.iter().filter(|&&page| page == Page::Absent).count()).min()
    }

    #[test]
    fn random_requests_agree_with_a_list_of_pages() {
        const PAGES: usize = 60;
        let mut state = 1_u64;
        let mut random = |below: usize| {
            // The generator of Knuth's MMIX; its high bits are the good ones.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        let mut space = space(&[(0, PAGES, false)]);
        let mut pages = vec![Page::Absent; PAGES];
        let mut tensors: Vec<Range<usize>> = Vec::new();
        let mut served = [0; 3];
        for _ in 0..20_000 {
            let len = 1 + random(12);
            match random(8) {
                0..4 => {
                    if let Some(start) = space.take_in_memory(len) {
                        assert!(pages[start..start + len].iter().all(|&page| page == Page::InMemory));
                        let whole = extents_of(&pages).into_iter().filter(|&(.., has_memory)| has_memory);
                        let fits = whole.map(|(start, end, _)| end - start).filter(|&bytes| bytes >= len);
                        let next = pages[start..].iter().take_while(|&&page| page == Page::InMemory).count();
                        assert_eq!(Some(next), fits.min(), "the smallest that is large enough");
                        tensors.push(start..start + len);
                        served[0] += 1;
                    } else {
                        assert_ne!(least_missing(&pages, len), Some(0));
                        let place = space.take(len);
                        let missing = place.as_ref().map(Place::missing_bytes);
                        assert_eq!(missing, least_missing(&pages, len));
                        served[1] += usize::from(place.is_some());
                        tensors.extend(place.map(|place| place.range));
                    }
                    tensors.last().into_iter().for_each(|range| pages[range.clone()].fill(Page::Used));
                }
                4..7 if !tensors.is_empty() => {
                    let range = tensors.swap_remove(random(tensors.len()));
                    pages[range.clone()].fill(Page::InMemory);
                    space.add(range);
                }
                _ => {
                    let in_memory = pages.iter().filter(|&&page| page == Page::InMemory).count();
                    let released = space.take_memory(len);
                    assert_eq!(released.iter().map(Range::len).sum::<usize>(), len.min(in_memory));
                    for range in released {
                        assert!(pages[range.clone()].iter().all(|&page| page == Page::InMemory));
                        pages[range].fill(Page::Absent);
                        served[2] += 1;
                    }
                }
            }
            assert_eq!(extents(&space), extents_of(&pages));
            let by_bytes = space.by_bytes.iter().map(|&(bytes, start)| (start, start + bytes, true));
            let mut in_memory: Vec<_> = by_bytes.collect();
            in_memory.sort_unstable();
            let expected = extents_of(&pages).into_iter().filter(|&(.., has_memory)| has_memory);
            assert_eq!(in_memory, expected.collect::<Vec<_>>());
        }
        assert!(served.iter().all(|&times| times > 1000), "{served:?}");
    }
}
