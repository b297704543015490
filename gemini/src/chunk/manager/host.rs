//! The host tier: chunks of a device in pinned memory of the host.
//!
//! ```text
//!   device  --copy-->  pinned buffer  --write-->  scratch file
//!           <--copy--                 <--read---
//! ```
//! A chunk that leaves the device is copied to a buffer of the host, and one that comes back is copied from
//! there. The copy stays valid until the chunk changes on the device. If `host_memory` is used up, the copies
//! go to the disk whose chunks are used last ([`choose_evictions`]). A copy whose values are elsewhere, too,
//! on the disk, in the file of a frozen model or unchanged on the device, is just dropped.

use std::collections::HashMap;
use std::sync::Arc;

use parallel::arena::Arena;
use parallel::disk::Transfer;
use parallel::driver::{Driver, Event};

use super::{Backing, ChunkId, Memory, State};
use crate::Error;
use crate::placement::{Candidate, choose_evictions};

/// The values of a chunk in memory of the host.
#[derive(Debug)]
pub(super) struct HostCopy {
    pub(super) buffer: Arc<Arena>,
    /// The last copy from or to the device.
    pub(super) copied: Option<Arc<Event>>,
    /// Whether the backing of the chunk has the same values.
    pub(super) is_saved: bool,
    /// Its way to the disk.
    pub(super) saving: Option<Transfer>,
}

/// The pinned memory of a process.
#[derive(Debug)]
pub(super) struct HostTier {
    driver: Arc<Driver>,
    /// The most bytes of all buffers.
    limit: usize,
    /// The bytes of all buffers.
    bytes: usize,
    peak_bytes: usize,
    /// Unused buffers by their bytes. Pinning memory takes longer than copying it, so they stay.
    free: HashMap<usize, Vec<Arc<Arena>>>,
}

impl HostTier {
    /// A tier of at most `limit` bytes; unlimited if that is `None`.
    pub(super) fn new(driver: &Arc<Driver>, limit: Option<usize>) -> Self {
        let limit = limit.unwrap_or(usize::MAX);
        Self { driver: Arc::clone(driver), limit, bytes: 0, peak_bytes: 0, free: HashMap::new() }
    }

    /// The driver of the device.
    pub(super) fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }

    /// The most bytes that buffers took.
    pub(super) fn peak_bytes(&self) -> usize {
        self.peak_bytes
    }

    /// A buffer of `bytes`, if there is room for it.
    fn take(&mut self, bytes: usize) -> Result<Option<Arc<Arena>>, Error> {
        if let Some(buffer) = self.free.get_mut(&bytes).and_then(Vec::pop) {
            return Ok(Some(buffer));
        }
        for unused in self.free.values_mut() {
            while self.limit - self.bytes < bytes {
                let Some(buffer) = unused.pop() else { break };
                self.bytes -= buffer.len();
            }
        }
        if self.limit - self.bytes < bytes {
            return Ok(None);
        }
        let buffer = Arena::reserve(bytes)?;
        buffer.pin(&self.driver)?;
        self.bytes += bytes;
        self.peak_bytes = self.peak_bytes.max(self.bytes);
        Ok(Some(buffer))
    }

    /// Takes a buffer back that neither the device nor the disk uses any more.
    pub(super) fn give_back(&mut self, copy: HostCopy) -> Result<(), Error> {
        debug_assert!(copy.saving.is_none(), "a buffer on its way to the disk is in use");
        if let Some(copied) = &copy.copied {
            copied.wait()?;
        }
        self.free.entry(copy.buffer.len()).or_default().push(copy.buffer);
        Ok(())
    }
}

impl State {
    /// The tier of the host; only for a manager of a device.
    pub(super) fn host(&mut self) -> &mut HostTier {
        self.host.as_mut().expect("chunks of a device have a host tier")
    }

    /// A buffer of `bytes`, for which other copies go to the disk if necessary.
    pub(super) fn take_buffer(&mut self, bytes: usize) -> Result<Arc<Arena>, Error> {
        self.drop_saved_copies()?;
        loop {
            if let Some(buffer) = self.host().take(bytes)? {
                return Ok(buffer);
            }
            self.evict_from_host(bytes)?;
        }
    }

    /// Drops the copy of a chunk, whose values are elsewhere or not needed any more.
    pub(super) fn drop_copy(&mut self, id: ChunkId) -> Result<(), Error> {
        let Self { chunks, queue, host, .. } = self;
        let chunk = chunks.get_mut(&id).expect("the chunk is registered");
        let Some(mut copy) = chunk.copy.take() else { return Ok(()) };
        if let (Some(saving), Some(queue)) = (copy.saving.take(), queue) {
            queue.wait(saving)?;
        }
        host.as_mut().expect("a copy has a host tier").give_back(copy)
    }

    /// Starts to write the copy of a chunk to its scratch file.
    pub(super) fn start_saving(&mut self, id: ChunkId) -> Result<(), Error> {
        let Self { chunks, queue, traffic, .. } = self;
        let chunk = chunks.get_mut(&id).expect("the chunk is registered");
        let (Some(copy), Some(scratch)) = (&mut chunk.copy, &chunk.scratch) else { return Ok(()) };
        if copy.is_saved || copy.saving.is_some() {
            return Ok(());
        }
        if let Some(copied) = &copy.copied {
            copied.wait()?;
        }
        let queue = queue.as_mut().expect("a manager with a budget has a queue");
        let range = 0..copy.buffer.len();
        copy.saving = Some(queue.write(&scratch.file, scratch.offset, &copy.buffer, range)?);
        traffic.written_bytes += copy.buffer.len() as u64;
        Ok(())
    }

    /// Waits until the copy of a chunk is on the disk.
    fn finish_saving(&mut self, id: ChunkId) -> Result<(), Error> {
        let Self { chunks, queue, .. } = self;
        let chunk = chunks.get_mut(&id).expect("the chunk is registered");
        let Some(copy) = &mut chunk.copy else { return Ok(()) };
        let Some(saving) = copy.saving.take() else { return Ok(()) };
        queue.as_mut().expect("a transfer has a queue").wait(saving)?;
        copy.is_saved = true;
        chunk.backing = Backing::Scratch;
        Ok(())
    }

    /// Drops the copies that have come to the disk.
    fn drop_saved_copies(&mut self) -> Result<(), Error> {
        let Self { chunks, queue, .. } = self;
        let Some(queue) = queue else { return Ok(()) };
        let mut saved = Vec::new();
        for (&id, chunk) in chunks.iter() {
            let copy = chunk.copy.as_ref().filter(|_| !chunk.is_moving());
            if let Some(saving) = copy.and_then(|copy| copy.saving.as_ref())
                && queue.is_done(saving)?
            {
                saved.push(id);
            }
        }
        saved.sort_unstable();
        for id in saved {
            self.finish_saving(id)?;
            self.drop_copy(id)?;
        }
        Ok(())
    }

    /// Frees at least `bytes` of buffers.
    fn evict_from_host(&mut self, bytes: usize) -> Result<(), Error> {
        let mut ids: Vec<ChunkId> =
            self.chunks.iter().filter(|(_, chunk)| chunk.has_idle_copy()).map(|(&id, _)| id).collect();
        ids.sort_unstable();
        let candidate = |id: &ChunkId| {
            let chunk = &self.chunks[id];
            let is_elsewhere = chunk.has_memory() || chunk.copy.as_ref().is_some_and(|copy| copy.is_saved);
            Candidate { bytes: chunk.range.len(), next_use: self.trace.next_use(*id), dirty: !is_elsewhere }
        };
        let candidates: Vec<Candidate> = ids.iter().map(candidate).collect();
        let evictable = candidates.iter().map(|candidate| candidate.bytes).sum();
        let Some(victims) = choose_evictions(&candidates, bytes) else {
            let host = self.host();
            return Err(Error::OverHostMemory { needed: host.bytes + bytes, evictable, limit: host.limit });
        };

        for &victim in &victims {
            let chunk = self.chunk(ids[victim]);
            if chunk.has_memory() {
                // The values are on the device, too, and have to be copied again when they leave it.
                let is_saved = chunk.copy.as_ref().is_some_and(|copy| copy.is_saved);
                chunk.is_dirty |= !is_saved;
            } else {
                self.start_saving(ids[victim])?;
            }
        }
        for victim in victims {
            self.finish_saving(ids[victim])?;
            self.drop_copy(ids[victim])?;
        }
        Ok(())
    }
}

impl super::Chunk {
    /// Whether it is on its way to the device or from it.
    pub(super) fn is_moving(&self) -> bool {
        matches!(self.memory, Memory::Reading(_) | Memory::Writing(_))
    }

    /// Whether it has a copy that may go.
    fn has_idle_copy(&self) -> bool {
        let can_go = |copy: &HostCopy| self.has_memory() || copy.is_saved || self.scratch.is_some();
        !self.is_moving() && self.copy.as_ref().is_some_and(can_go)
    }
}
