//! The address space that no tensor uses: which parts of it have memory, and which part serves a request.
//!
//! ```text
//!   tensor | memory | no memory | memory | tensor     free extents between two tensors
//!          |<-------- a run of them -----------|      serves one request, whatever of it has memory
//! ```
//! An extent with memory is called resident. Neighbours that are both resident, or both not, are one
//! extent. The smallest resident extent that is large enough serves a request (best fit; Wilson et al.
//! 1995, "Dynamic Storage Allocation: A Survey and Critical Review"), and otherwise the place that needs
//! the least new memory.
//!
//! This module knows addresses only. It makes no system calls and counts nothing for others.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A part of the free space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    end: usize,
    is_resident: bool,
    /// When the newest part of it became free, as a number of [`FreeSpace::num_freed`].
    freed: u64,
}

/// Free extents by address.
#[derive(Debug)]
pub(super) struct FreeSpace {
    extents: BTreeMap<usize, Extent>,
    /// Bytes and address of each resident extent.
    by_bytes: BTreeSet<(usize, usize)>,
    /// When each resident extent became free, and its address.
    by_age: BTreeSet<(u64, usize)>,
    /// How often something became free.
    num_freed: u64,
}

/// Addresses for a request, only parts of which may have memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reservation {
    pub(super) range: Range<usize>,
    /// The resident parts of the range, by address.
    pub(super) resident: Vec<Range<usize>>,
}

impl Reservation {
    /// The bytes that have memory.
    pub(super) fn resident_bytes(&self) -> usize {
        self.resident.iter().map(Range::len).sum()
    }

    /// The bytes for which memory is missing.
    pub(super) fn missing_bytes(&self) -> usize {
        self.range.len() - self.resident_bytes()
    }
}

impl FreeSpace {
    pub(super) const fn new() -> Self {
        Self { extents: BTreeMap::new(), by_bytes: BTreeSet::new(), by_age: BTreeSet::new(), num_freed: 0 }
    }

    /// Adds a range that a tensor has given back: all of it has memory.
    pub(super) fn add(&mut self, range: Range<usize>) {
        self.num_freed += 1;
        self.insert(range, true, self.num_freed);
    }

    /// Adds a range without memory.
    pub(super) fn add_absent(&mut self, range: Range<usize>) {
        self.insert(range, false, 0);
    }

    /// Undoes a [reservation](Self::reserve).
    pub(super) fn cancel(&mut self, reservation: &Reservation) {
        let mut start = reservation.range.start;
        for part in &reservation.resident {
            self.add_absent(start..part.start);
            self.add(part.clone());
            start = part.end;
        }
        self.add_absent(start..reservation.range.end);
    }

    /// Whether [`take_resident`](Self::take_resident) can serve a request.
    pub(super) fn has_resident(&self, bytes: usize) -> bool {
        self.by_bytes.range((bytes, 0)..).next().is_some()
    }

    /// Takes `bytes` that all have memory; `None` if no extent is that large.
    pub(super) fn take_resident(&mut self, bytes: usize) -> Option<usize> {
        let &(_, start) = self.by_bytes.range((bytes, 0)..).next()?;
        self.cut(start..start + bytes);
        Some(start)
    }

    /// Takes the `bytes` for which the least memory is missing; `None` if no run is that long.
    pub(super) fn reserve(&mut self, bytes: usize) -> Option<Reservation> {
        // Bytes with memory, and the range.
        let mut best: Option<(usize, Range<usize>)> = None;
        for run in self.runs().filter(|run| run.len() >= bytes) {
            // The best window begins where a resident extent begins, or ends where one ends.
            let last = run.end - bytes;
            let extents = self.extents.range(run.clone()).filter(|(_, extent)| extent.is_resident);
            let begins = extents.flat_map(|(&start, extent)| [start, extent.end.saturating_sub(bytes)]);
            for start in begins.chain([run.start]).map(|start| start.clamp(run.start, last)) {
                let range = start..start + bytes;
                let resident = self.resident(&range).map(|part| part.len()).sum();
                if best.as_ref().is_none_or(|(most, _)| resident > *most) {
                    best = Some((resident, range));
                }
            }
        }
        let (_, range) = best?;
        let resident = self.resident(&range).collect();
        self.cut(range.clone());
        Some(Reservation { range, resident })
    }

    /// Takes up to `bytes` that have memory, those that became free first before the others. The caller gives
    /// the memory back to the system, and then [adds](Self::add_absent) the ranges again.
    pub(super) fn take_oldest(&mut self, bytes: usize) -> Vec<Range<usize>> {
        let mut taken = Vec::new();
        let mut missing = bytes;
        while missing > 0 {
            let Some(&(_, start)) = self.by_age.first() else { break };
            let range = start..self.extents[&start].end.min(start + missing);
            missing -= range.len();
            self.cut(range.clone());
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

    /// The resident parts of a range inside a run.
    fn resident(&self, range: &Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let (&first, _) = self.extents.range(..=range.start).next_back().expect("the range is free");
        let Range { start: low, end: high } = *range;
        let extents = self.extents.range(first..high).filter(|(_, extent)| extent.is_resident);
        let parts = extents.map(move |(&start, extent)| start.max(low)..extent.end.min(high));
        parts.filter(|part| !part.is_empty())
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
    fn insert(&mut self, range: Range<usize>, is_resident: bool, freed: u64) {
        if range.is_empty() {
            return;
        }
        let mut merged = Extent { end: range.end, is_resident, freed };
        let mut start = range.start;
        let before = self.extents.range(..start).next_back().map(|(&start, &extent)| (start, extent));
        if let Some((neighbour, extent)) = before
            && extent.end == start
            && extent.is_resident == is_resident
        {
            self.remove(neighbour);
            (start, merged.freed) = (neighbour, merged.freed.max(extent.freed));
        }
        if let Some(&extent) = self.extents.get(&range.end)
            && extent.is_resident == is_resident
        {
            self.remove(range.end);
            (merged.end, merged.freed) = (extent.end, merged.freed.max(extent.freed));
        }
        self.store(start, merged);
    }

    fn store(&mut self, start: usize, extent: Extent) {
        if extent.is_resident {
            self.by_bytes.insert((extent.end - start, start));
            self.by_age.insert((extent.freed, start));
        }
        self.extents.insert(start, extent);
    }

    fn remove(&mut self, start: usize) -> Extent {
        let extent = self.extents.remove(&start).expect("an extent begins there");
        self.by_bytes.remove(&(extent.end - start, start));
        self.by_age.remove(&(extent.freed, start));
        extent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Free space of ranges in this order, as start, end and whether they are resident.
    fn space(ranges: &[(usize, usize, bool)]) -> FreeSpace {
        let mut space = FreeSpace::new();
        for &(start, end, is_resident) in ranges {
            if is_resident { space.add(start..end) } else { space.add_absent(start..end) }
        }
        space
    }

    /// Gives memory back to the system.
    fn give_back(space: &mut FreeSpace, bytes: usize) -> Vec<Range<usize>> {
        let ranges = space.take_oldest(bytes);
        ranges.iter().cloned().for_each(|range| space.add_absent(range));
        ranges
    }

    /// The extents as start, end and whether they are resident.
    fn extents(space: &FreeSpace) -> Vec<(usize, usize, bool)> {
        space.extents.iter().map(|(&start, extent)| (start, extent.end, extent.is_resident)).collect()
    }

    #[test]
    fn neighbors_become_one() {
        let mut space = space(&[(0, 2, true), (4, 6, true), (6, 8, false)]);
        space.add(2..4);
        assert_eq!(extents(&space), [(0, 6, true), (6, 8, false)]);
        space.add_absent(8..9);
        assert_eq!(extents(&space), [(0, 6, true), (6, 9, false)]);
        assert_eq!(space.take_resident(6), Some(0));
        assert_eq!(space.take_resident(1), None);
    }

    #[test]
    fn the_smallest_extent_that_is_large_enough_serves() {
        let mut space = space(&[(0, 8, true), (10, 13, true), (20, 24, true), (24, 99, false)]);
        assert_eq!(space.take_resident(3), Some(10));
        assert_eq!(space.take_resident(3), Some(20));
        assert_eq!(space.take_resident(3), Some(0));
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
        let place = space.reserve(6).unwrap();
        // 2..8 has 4 of 6 and 3..9 does, too: the first of them.
        assert_eq!(place, Reservation { range: 2..8, resident: vec![2..5, 7..8] });
        assert_eq!((place.resident_bytes(), place.missing_bytes()), (4, 2));
        assert_eq!(extents(&space)[..2], [(0, 2, false), (8, 9, true)]);
        // All of the second run, which is 13 long. No run is longer.
        assert_eq!(space.reserve(14), None);
        let longest = space.reserve(13).unwrap();
        assert_eq!(longest, Reservation { range: 20..33, resident: vec![20..24, 29..33] });
        // As they were.
        space.cancel(&longest);
        space.cancel(&place);
        assert_eq!(extents(&space), all);
    }

    #[test]
    fn memory_that_became_free_first_goes_first() {
        let mut space = space(&[(10, 14, true), (0, 4, true), (20, 24, true)]);
        assert_eq!(give_back(&mut space, 6), [10..14, 0..2]);
        assert_eq!(extents(&space), [(0, 2, false), (2, 4, true), (10, 14, false), (20, 24, true)]);
        // 14..15 is newer than 20..24, and what it meets has no memory.
        space.add(14..15);
        assert_eq!(give_back(&mut space, 99), [2..4, 20..24, 14..15]);
        assert_eq!(give_back(&mut space, 1), []);
        assert_eq!(extents(&space), [(0, 4, false), (10, 15, false), (20, 24, false)]);
    }

    /// What one page is.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Page {
        Used,
        Resident,
        Absent,
    }

    /// The extents that the pages mean.
    fn extents_of(pages: &[Page]) -> Vec<(usize, usize, bool)> {
        let mut start = 0;
        let mut extents = Vec::new();
        for run in pages.chunk_by(|left, right| left == right) {
            if run[0] != Page::Used {
                extents.push((start, start + run.len(), run[0] == Page::Resident));
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
                    if let Some(start) = space.take_resident(len) {
                        assert!(pages[start..start + len].iter().all(|&page| page == Page::Resident));
                        let whole = extents_of(&pages).into_iter().filter(|&(.., is_resident)| is_resident);
                        let fits = whole.map(|(start, end, _)| end - start).filter(|&bytes| bytes >= len);
                        let next = pages[start..].iter().take_while(|&&page| page == Page::Resident).count();
                        assert_eq!(Some(next), fits.min(), "the smallest that is large enough");
                        tensors.push(start..start + len);
                        served[0] += 1;
                    } else {
                        assert_ne!(least_missing(&pages, len), Some(0));
                        let place = space.reserve(len);
                        let missing = place.as_ref().map(Reservation::missing_bytes);
                        assert_eq!(missing, least_missing(&pages, len));
                        served[1] += usize::from(place.is_some());
                        tensors.extend(place.map(|place| place.range));
                    }
                    tensors.last().into_iter().for_each(|range| pages[range.clone()].fill(Page::Used));
                }
                4..7 if !tensors.is_empty() => {
                    let range = tensors.swap_remove(random(tensors.len()));
                    pages[range.clone()].fill(Page::Resident);
                    space.add(range);
                }
                _ => {
                    let resident = pages.iter().filter(|&&page| page == Page::Resident).count();
                    let released = give_back(&mut space, len);
                    assert_eq!(released.iter().map(Range::len).sum::<usize>(), len.min(resident));
                    for range in released {
                        assert!(pages[range.clone()].iter().all(|&page| page == Page::Resident));
                        pages[range].fill(Page::Absent);
                        served[2] += 1;
                    }
                }
            }
            assert_eq!(extents(&space), extents_of(&pages));
            let by_bytes = space.by_bytes.iter().map(|&(bytes, start)| (start, start + bytes, true));
            let mut resident: Vec<_> = by_bytes.collect();
            resident.sort_unstable();
            let expected = extents_of(&pages).into_iter().filter(|&(.., is_resident)| is_resident);
            assert_eq!(resident, expected.collect::<Vec<_>>());
        }
        assert!(served.iter().all(|&times| times > 1000), "{served:?}");
    }
}
