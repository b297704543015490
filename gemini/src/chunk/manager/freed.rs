//! The memory of chunks that have left, kept for those that come.

use std::collections::HashMap;
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

/// Memory that no chunk uses, by its size. The system has to clear new memory and to make it present page by
/// page, and neither is necessary for memory that is moved. Each range stays at the addresses of its last
/// chunk until another chunk takes it.
#[derive(Debug, Default)]
pub(super) struct FreedMemory {
    ranges: HashMap<usize, Vec<Place>>,
    bytes: usize,
}

impl FreedMemory {
    /// Its bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Keeps the memory of a range, or gives it back to the system if it cannot be moved.
    pub(super) fn add(&mut self, arena: &Arc<Arena>, range: Range<usize>) -> Result<(), Error> {
        let can_move = arena.driver().is_some()
            || range.len() < HUGE_PAGE_BYTES
            || range.start.is_multiple_of(HUGE_PAGE_BYTES);
        if !can_move {
            return Ok(arena.release(range)?);
        }
        let used_until = arena.driver().map(Driver::mark).transpose()?;
        self.bytes += range.len();
        let kept = self.ranges.entry(range.len()).or_default();
        kept.push(Place { arena: Arc::clone(arena), range, used_until });
        Ok(())
    }

    /// Moves kept memory to a range. Returns `false` if there is none of that size. What the memory holds is
    /// undefined.
    pub(super) fn move_to(&mut self, arena: &Arc<Arena>, range: &Range<usize>) -> Result<bool, Error> {
        let Some(kept) = self.ranges.get_mut(&range.len()) else { return Ok(false) };
        // Its own memory need not be moved.
        let own = kept.iter().position(|place| Arc::ptr_eq(&place.arena, arena) && place.range == *range);
        let taken = match own {
            Some(own) => Some(kept.remove(own)),
            // On the host, the processor's caches may still have some of the newest. A device is the first to
            // be done with the oldest.
            None if arena.driver().is_some() && !kept.is_empty() => Some(kept.remove(0)),
            None => kept.pop(),
        };
        let Some(place) = taken else { return Ok(false) };
        self.bytes -= range.len();
        place.wait()?;
        arena.move_memory(range.clone(), &place.arena, place.range)?;
        Ok(true)
    }

    /// Whether memory of so many bytes can be moved without a wait for the device, or is new.
    pub(super) fn is_ready(&self, bytes: usize) -> Result<bool, Error> {
        let Some(kept) = self.ranges.get(&bytes) else { return Ok(true) };
        match kept.first().and_then(|place| place.used_until.as_ref()) {
            Some(used_until) => Ok(used_until.is_done()?),
            None => Ok(true),
        }
    }

    /// Gives at least `bytes` back to the system, or everything.
    pub(super) fn release(&mut self, bytes: usize) -> Result<(), Error> {
        let keep = self.bytes.saturating_sub(bytes);
        for kept in self.ranges.values_mut() {
            while self.bytes > keep {
                let Some(place) = kept.pop() else { break };
                self.bytes -= place.range.len();
                place.release()?;
            }
        }
        Ok(())
    }

    /// Gives the memory of an arena back that is not used any more.
    pub(super) fn forget(&mut self, arena: &Arc<Arena>) -> Result<(), Error> {
        for kept in self.ranges.values_mut() {
            for place in kept.extract_if(.., |place| Arc::ptr_eq(&place.arena, arena)) {
                self.bytes -= place.range.len();
                place.release()?;
            }
        }
        Ok(())
    }
}
