//! The physical memory behind an arena of a device. On a device, memory has to be there before it is used,
//! and is mapped and moved in pieces that stay whole.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Error;
use crate::driver::{Driver, Physical};

/// The device of an arena, and the memory that is mapped in it.
#[derive(Debug)]
pub(super) struct Mapped {
    pub(super) driver: Arc<Driver>,
    /// The address of the arena on the device.
    start: u64,
    /// The length of the arena in bytes.
    len: usize,
    /// By their offset in the arena.
    pieces: Mutex<BTreeMap<usize, Physical>>,
}

impl Mapped {
    pub(super) fn new(driver: &Arc<Driver>, start: u64, len: usize) -> Self {
        Self { driver: Arc::clone(driver), start, len, pieces: Mutex::default() }
    }

    /// Maps new memory behind a range that has none. What it holds is undefined.
    pub(super) fn commit(&self, range: Range<usize>) -> Result<(), Error> {
        let physical = self.driver.create(range.len())?;
        self.map(range.start, physical)
    }

    /// Gives the memory of a range back, which was committed or moved as a whole, or has none.
    pub(super) fn release(&self, range: Range<usize>) -> Result<(), Error> {
        match self.take(&range)? {
            Some(physical) => self.driver.release(&physical),
            None => Ok(()),
        }
    }

    /// Moves the memory of `from` of another arena to `range`.
    pub(super) fn move_memory(
        &self,
        range: Range<usize>,
        others: &Self,
        from: Range<usize>,
    ) -> Result<(), Error> {
        match others.take(&from)? {
            Some(physical) => self.map(range.start, physical),
            None => self.release(range),
        }
    }

    /// The bytes that are mapped inside `range`.
    pub(super) fn mapped_bytes(&self, range: Range<usize>) -> usize {
        self.lock().range(range).map(|(_, physical)| physical.bytes).sum()
    }

    fn map(&self, offset: usize, physical: Physical) -> Result<(), Error> {
        let mut pieces = self.lock();
        if let Err(error) = self.driver.map(self.address(offset), &physical) {
            self.driver.release(&physical)?;
            return Err(error);
        }
        pieces.insert(offset, physical);
        Ok(())
    }

    /// Unmaps the memory of a range.
    fn take(&self, range: &Range<usize>) -> Result<Option<Physical>, Error> {
        let mut pieces = self.lock();
        let Some(physical) = pieces.get(&range.start) else { return Ok(None) };
        if physical.bytes != range.len() {
            let problem = format!("{range:?} has memory of {} bytes, which stays whole", physical.bytes);
            return Err(Error::Arena { call: "release", arena: self.len, problem });
        }
        self.driver.unmap(self.address(range.start), range.len())?;
        Ok(pieces.remove(&range.start))
    }

    /// Gives everything back, with the address space.
    pub(super) fn free(&self) -> Result<(), Error> {
        self.driver.mark()?.wait()?;
        let ranges: Vec<Range<usize>> =
            self.lock().iter().map(|(&offset, physical)| offset..offset + physical.bytes).collect();
        ranges.into_iter().try_for_each(|range| self.release(range))?;
        self.driver.free_addresses(self.start, self.len)
    }

    fn address(&self, offset: usize) -> u64 {
        self.start + offset as u64
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, Physical>> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
