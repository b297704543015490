//! The memory of chunks that have left, kept for those that come.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use parallel::arena::{Arena, HUGE_PAGE_BYTES};

use crate::Error;

/// The place of kept memory.
type Place = (Arc<Arena>, Range<usize>);

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
        let can_move = range.len() < HUGE_PAGE_BYTES || range.start.is_multiple_of(HUGE_PAGE_BYTES);
        if !can_move {
            return Ok(arena.release(range)?);
        }
        self.bytes += range.len();
        self.ranges.entry(range.len()).or_default().push((Arc::clone(arena), range));
        Ok(())
    }

    /// Moves kept memory to a range. Returns `false` if there is none of that size. What the memory holds is
    /// undefined.
    pub(super) fn move_to(&mut self, arena: &Arc<Arena>, range: &Range<usize>) -> Result<bool, Error> {
        let Some(kept) = self.ranges.get_mut(&range.len()) else { return Ok(false) };
        // Its own memory need not be moved.
        let own = kept.iter().position(|(owner, at)| Arc::ptr_eq(owner, arena) && at == range);
        let taken = match own {
            Some(own) => Some(kept.swap_remove(own)),
            None => kept.pop(),
        };
        let Some((owner, at)) = taken else { return Ok(false) };
        self.bytes -= range.len();
        arena.move_memory(range.clone(), &owner, at)?;
        Ok(true)
    }

    /// Gives at least `bytes` back to the system, or everything.
    pub(super) fn release(&mut self, bytes: usize) -> Result<(), Error> {
        let keep = self.bytes.saturating_sub(bytes);
        for kept in self.ranges.values_mut() {
            while self.bytes > keep {
                let Some((arena, range)) = kept.pop() else { break };
                self.bytes -= range.len();
                arena.release(range)?;
            }
        }
        Ok(())
    }

    /// Gives the memory of an arena back that is not used any more.
    pub(super) fn forget(&mut self, arena: &Arc<Arena>) -> Result<(), Error> {
        for kept in self.ranges.values_mut() {
            for (owner, range) in kept.extract_if(.., |(owner, _)| Arc::ptr_eq(owner, arena)) {
                self.bytes -= range.len();
                owner.release(range)?;
            }
        }
        Ok(())
    }
}
