//! The memory of chunks that have left, kept for those that come.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use parallel::arena::{Arena, HUGE_PAGE_BYTES};
use parallel::driver::{Driver, Event};

use crate::Error;

/// The place of kept memory.
#[derive(Debug)]
struct Place {
    arena: Arc<Arena>,
    range: Range<usize>,
    /// What the device had to do when the memory became free: it may still use it.
    used_until: Option<Event>,
}

impl Place {
    /// Waits until nobody uses the memory.
    fn wait(&self) -> Result<(), Error> {
        Ok(self.used_until.as_ref().map_or(Ok(()), Event::wait)?)
    }

    fn release(self) -> Result<(), Error> {
        self.wait()?;
        Ok(self.arena.release(self.range)?)
    }
}

/// Memory that no chunk uses, in pieces by their size. The system has to clear new memory and to make it
/// present page by page, and neither is necessary for memory that is moved. Each piece stays at the addresses
/// of its last chunk until another chunk takes it.
#[derive(Debug, Default)]
pub(super) struct FreedMemory {
    places: BTreeMap<usize, Vec<Place>>,
    bytes: usize,
}

/// The kernel keeps a mapping (VMA) for each piece that was moved, and a process may have 65530 of them
/// (`vm.max_map_count`). An arena is cut into about this many pieces at most; a process has some twenty
/// arenas.
const MAX_PIECES: usize = 2048;

/// The pieces in which the memory of a chunk is moved. On a host each is one huge page, or several in a
/// large arena, and what is left at the end, so that chunks of different sizes serve each other. Memory of
/// at least a huge page that does not begin at one cannot be moved. A device moves the memory of a chunk as
/// a whole.
fn pieces(arena: &Arena, range: &Range<usize>) -> Vec<Range<usize>> {
    let Range { start, end } = *range;
    if arena.driver().is_some() || range.len() < HUGE_PAGE_BYTES {
        return std::iter::once(start..end).collect();
    }
    if !start.is_multiple_of(HUGE_PAGE_BYTES) {
        return Vec::new();
    }
    let piece_bytes = (arena.len() / MAX_PIECES).max(1).next_multiple_of(HUGE_PAGE_BYTES);
    let starts = (start..end).step_by(piece_bytes);
    starts.map(|start| start..end.min(start + piece_bytes)).collect()
}

impl FreedMemory {
    /// Its bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Keeps the memory of a range, or gives it back to the system if it cannot be moved.
    pub(super) fn add(&mut self, arena: &Arc<Arena>, range: Range<usize>) -> Result<(), Error> {
        let pieces = pieces(arena, &range);
        if pieces.is_empty() {
            return Ok(arena.release(range)?);
        }
        // The last one kept is the first one taken: neighbours that are moved in order stay one mapping.
        for range in pieces.into_iter().rev() {
            let used_until = arena.driver().map(Driver::mark).transpose()?;
            self.bytes += range.len();
            let places = self.places.entry(range.len()).or_default();
            places.push(Place { arena: Arc::clone(arena), range, used_until });
        }
        Ok(())
    }

    /// Moves kept memory to a range, as far as it goes. Returns the parts of the range that have memory now.
    /// What they hold is undefined.
    pub(super) fn move_to(
        &mut self,
        arena: &Arc<Arena>,
        range: &Range<usize>,
    ) -> Result<Vec<Range<usize>>, Error> {
        let mut moved = Vec::new();
        for piece in pieces(arena, range) {
            let Some(place) = self.take(arena, &piece) else { continue };
            let result = place
                .wait()
                .and_then(|()| Ok(arena.move_memory(piece.clone(), &place.arena, place.range.clone())?));
            if let Err(error) = result {
                // The chunk stays without memory.
                moved.into_iter().try_for_each(|part| arena.release(part))?;
                return Err(error);
            }
            moved.push(piece);
        }
        Ok(moved)
    }

    /// Takes the memory for a piece.
    fn take(&mut self, arena: &Arc<Arena>, piece: &Range<usize>) -> Option<Place> {
        let places = self.places.get_mut(&piece.len())?;
        // Its own memory need not be moved.
        let own = places.iter().position(|place| Arc::ptr_eq(&place.arena, arena) && place.range == *piece);
        let place = match own {
            Some(own) => places.remove(own),
            // On the host, the processor's caches may still have some of the newest. A device is the first to
            // be done with the oldest.
            None if arena.driver().is_some() && !places.is_empty() => places.remove(0),
            None => places.pop()?,
        };
        self.bytes -= piece.len();
        Some(place)
    }

    /// Whether memory of `bytes` bytes can be moved without a wait for the device, or is new.
    pub(super) fn is_ready(&self, bytes: usize) -> Result<bool, Error> {
        let Some(places) = self.places.get(&bytes) else { return Ok(true) };
        match places.first().and_then(|place| place.used_until.as_ref()) {
            Some(used_until) => Ok(used_until.is_done()?),
            None => Ok(true),
        }
    }

    /// Gives at least `bytes` back to the system, or everything. Small pieces, which few chunks can take, go
    /// first.
    pub(super) fn release(&mut self, bytes: usize) -> Result<(), Error> {
        let keep = self.bytes.saturating_sub(bytes);
        for places in self.places.values_mut() {
            while self.bytes > keep {
                let Some(place) = places.pop() else { break };
                self.bytes -= place.range.len();
                place.release()?;
            }
        }
        Ok(())
    }

    /// Gives the memory of an arena back that is not used any more.
    pub(super) fn forget(&mut self, arena: &Arc<Arena>) -> Result<(), Error> {
        for places in self.places.values_mut() {
            for place in places.extract_if(.., |place| Arc::ptr_eq(&place.arena, arena)) {
                self.bytes -= place.range.len();
                place.release()?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// Memory in ranges of an arena, filled with a byte each.
    fn freed(arena: &Arc<Arena>, ranges: &[Range<usize>]) -> FreedMemory {
        let mut freed = FreedMemory::default();
        for range in ranges {
            arena.write_bytes(range.start, &vec![7; range.len()]).unwrap();
            freed.add(arena, range.clone()).unwrap();
        }
        freed
    }

    fn resident(arena: &Arena, range: Range<usize>) -> usize {
        arena.resident_bytes(range).unwrap()
    }

    #[test]
    fn chunks_of_other_sizes_take_whole_huge_pages() {
        let (old, new) = (Arena::reserve(16 * MIB).unwrap(), Arena::reserve(16 * MIB).unwrap());
        // Two huge pages and 1 MiB; one and 1 MiB.
        let mut freed = freed(&old, &[0..5 * MIB, 6 * MIB..9 * MIB]);
        assert_eq!(freed.bytes(), 8 * MIB);

        // Three huge pages serve 7 MiB, whose last MiB comes from one of the others.
        let moved = freed.move_to(&new, &(2 * MIB..9 * MIB)).unwrap();
        assert_eq!(moved, [2 * MIB..4 * MIB, 4 * MIB..6 * MIB, 6 * MIB..8 * MIB, 8 * MIB..9 * MIB]);
        assert_eq!(freed.bytes(), MIB);
        // A system with huge pages everywhere keeps more than was written, beside these ranges.
        let left = |arena| resident(arena, 0..5 * MIB) + resident(arena, 6 * MIB..9 * MIB);
        if resident(&new, 2 * MIB..9 * MIB) == 0 {
            println!("this system cannot move memory");
        } else {
            assert_eq!((resident(&new, 2 * MIB..9 * MIB), left(&old)), (7 * MIB, MIB));
        }

        // Half a MiB finds nothing of its size.
        assert!(freed.move_to(&new, &(10 * MIB..10 * MIB + MIB / 2)).unwrap().is_empty());
        freed.release(1).unwrap();
        assert_eq!((freed.bytes(), left(&old)), (0, 0));
    }

    #[test]
    fn a_large_arena_has_large_pieces() {
        let arena = Arena::reserve(MAX_PIECES * 3 * MIB).unwrap();
        // 3 MiB for each of the pieces are two huge pages.
        assert_eq!(pieces(&arena, &(4 * MIB..9 * MIB)), [4 * MIB..8 * MIB, 8 * MIB..9 * MIB]);
        assert_eq!(pieces(&arena, &(MIB..2 * MIB)), std::slice::from_ref(&(MIB..2 * MIB)));
        assert_eq!(pieces(&arena, &(MIB..9 * MIB)), []);
    }

    #[test]
    fn what_cannot_be_moved_goes_back_to_the_system() {
        let arena = Arena::reserve(8 * MIB).unwrap();
        // At least a huge page, but not at one.
        let mut freed = freed(&arena, std::slice::from_ref(&(MIB..4 * MIB)));
        assert_eq!((freed.bytes(), resident(&arena, MIB..4 * MIB)), (0, 0));
        // Smaller pieces may begin anywhere, and each finds its own place.
        let pieces = [MIB / 2..MIB, MIB..MIB / 2 * 3];
        for piece in &pieces {
            arena.write_bytes(piece.start, &vec![piece.start.ilog2() as u8; MIB / 2]).unwrap();
            freed.add(&arena, piece.clone()).unwrap();
        }
        for piece in &pieces {
            assert_eq!(freed.move_to(&arena, piece).unwrap(), std::slice::from_ref(piece));
            let mut byte = [0];
            arena.read_bytes(piece.start, &mut byte).unwrap();
            assert_eq!(byte[0], piece.start.ilog2() as u8);
        }
    }
}
