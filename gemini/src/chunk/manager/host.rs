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

use std::sync::Arc;

use parallel::arena::Arena;

use super::chunk::{Backing, Chunk, ChunkId, Memory};
use super::pinned::{HostCopy, HostTier};
use super::state::State;
use crate::Error;
use crate::placement::{Candidate, choose_evictions};

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
            return Err(Error::OverHostMemory {
                needed: host.bytes() + bytes,
                evictable,
                limit: host.limit(),
            });
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

impl Chunk {
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
