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
use parallel::memory;

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
    /// Unused buffers by their bytes, each with the last copy that used it. Pinning memory takes longer than
    /// copying it, so they stay.
    free: HashMap<usize, Vec<FreeBuffer>>,
}

/// A buffer that no chunk uses.
type FreeBuffer = (Arc<Arena>, Option<Arc<Event>>);

/// The part of the machine's memory that buffers take at most if no limit is set.
const SHARE_OF_HOST: f64 = 0.75;

impl HostTier {
    /// A tier of at most `limit` bytes; if that is `None`, of most of the memory of the machine.
    pub(super) fn new(driver: &Arc<Driver>, limit: Option<usize>) -> Self {
        let most =
            || memory::total_bytes().map_or(usize::MAX, |bytes| (bytes as f64 * SHARE_OF_HOST) as usize);
        let limit = limit.unwrap_or_else(most);
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
        if let Some((buffer, copied)) = self.free.get_mut(&bytes).and_then(take_first_done) {
            copied.map_or(Ok(()), |copied| copied.wait())?;
            return Ok(Some(buffer));
        }
        for unused in self.free.values_mut() {
            while self.limit - self.bytes < bytes {
                // The buffer goes when its last copy is done.
                let Some((buffer, _copied)) = unused.pop() else { break };
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

    /// Takes a buffer back that the disk does not use any more. The device may still have to do the copy.
    pub(super) fn give_back(&mut self, buffer: Arc<Arena>, copied: Option<Arc<Event>>) {
        self.free.entry(buffer.len()).or_default().push((buffer, copied));
    }

    /// Whether there is a buffer of `bytes` without taking one from another chunk.
    fn has_room(&self, bytes: usize) -> bool {
        let unused: usize = self.free.values().flatten().map(|(buffer, _)| buffer.len()).sum();
        self.limit - self.bytes + unused >= bytes
    }
}

/// Takes a buffer whose last copy is done, or else the one that was given back first.
fn take_first_done(unused: &mut Vec<FreeBuffer>) -> Option<FreeBuffer> {
    let is_done =
        |(_, copied): &FreeBuffer| copied.as_ref().is_none_or(|copied| copied.is_done().unwrap_or(false));
    let found = unused.iter().position(is_done).unwrap_or(0);
    (!unused.is_empty()).then(|| unused.remove(found))
}

impl State {
    /// The tier of the host; only for a manager of a device.
    pub(super) fn host(&mut self) -> &mut HostTier {
        self.host.as_mut().expect("chunks of a device have a host tier")
    }

    /// A buffer of `bytes`, for which other copies go to the disk if necessary.
    pub(super) fn take_buffer(&mut self, bytes: usize) -> Result<Arc<Arena>, Error> {
        self.drop_saved_copies()?;
        let mut is_settled = false;
        loop {
            if let Some(buffer) = self.host().take(bytes)? {
                return Ok(buffer);
            }
            match self.evict_from_host(bytes) {
                // The copies of chunks on their way may not go. When they have arrived, they may.
                Err(Error::OverHostMemory { .. }) if !is_settled => {
                    self.finish_transfers()?;
                    is_settled = true;
                }
                evicted => evicted?,
            }
        }
    }

    /// Whether a chunk that comes from the disk finds a buffer, perhaps that of another chunk.
    pub(super) fn has_buffer_for(&self, bytes: usize) -> bool {
        let Some(host) = &self.host else { return true };
        let idle = self.chunks.values().filter(|chunk| chunk.has_idle_copy());
        host.has_room(bytes) || idle.map(|chunk| chunk.range.len()).sum::<usize>() >= bytes
    }

    /// Waits for all chunks that are on their way between the device and the host or the disk.
    fn finish_transfers(&mut self) -> Result<(), Error> {
        let moving = self.chunks.iter().filter(|(_, chunk)| chunk.is_moving());
        let mut ids: Vec<ChunkId> = moving.map(|(&id, _)| id).collect();
        ids.sort_unstable();
        for id in ids {
            if self.chunks[&id].is_leaving() { self.finish_eviction(id)? } else { self.finish_transfer(id)? }
        }
        Ok(())
    }

    /// Drops the copy of a chunk, whose values are elsewhere or not needed any more.
    pub(super) fn drop_copy(&mut self, id: ChunkId) -> Result<(), Error> {
        let Self { chunks, queue, host, .. } = self;
        let chunk = chunks.get_mut(&id).expect("the chunk is registered");
        let Some(HostCopy { buffer, copied, saving, .. }) = chunk.copy.take() else { return Ok(()) };
        let saved = saving.zip(queue.as_mut()).map_or(Ok(()), |(saving, queue)| queue.wait(saving));
        host.as_mut().expect("a copy has a host tier").give_back(buffer, copied);
        Ok(saved?)
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

    /// Drops the copies that have come to the disk, and where nothing stays on the host those that have come
    /// from it.
    pub(super) fn drop_saved_copies(&mut self) -> Result<(), Error> {
        let Self { chunks, queue, leaves_host, .. } = self;
        let Some(queue) = queue else { return Ok(()) };
        let mut saved = Vec::new();
        for (&id, chunk) in chunks.iter() {
            let Some(copy) = chunk.copy.as_ref().filter(|_| !chunk.is_moving()) else { continue };
            let is_saved = match &copy.saving {
                Some(saving) => queue.is_done(saving)?,
                None => copy.is_saved && *leaves_host,
            };
            if is_saved {
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
