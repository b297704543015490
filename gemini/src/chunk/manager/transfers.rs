//! Moves chunks between memory and their files.

use std::sync::Arc;

use parallel::allocator;

use super::{Backing, ChunkId, IsCleared, Memory, State};
use crate::Error;

impl State {
    /// Drops an unchanged chunk, and starts to write a changed one.
    pub(super) fn start_eviction(&mut self, id: ChunkId) -> Result<(), Error> {
        let Self { chunks, queue, traffic, .. } = self;
        let chunk = chunks.get_mut(&id).expect("the chunk is registered");
        if !chunk.is_dirty {
            return self.drop_memory(id);
        }
        let (queue, scratch) = (queue.as_mut(), chunk.scratch.as_ref());
        let (queue, scratch) = queue.zip(scratch).expect("a chunk that changes has a scratch file");
        let transfer = queue.write(&scratch.file, scratch.offset, &chunk.arena, chunk.range.clone())?;
        traffic.written_bytes += chunk.range.len() as u64;
        (chunk.memory, chunk.backing, chunk.is_dirty) = (Memory::Writing(transfer), Backing::Scratch, false);
        Ok(())
    }

    /// Waits for writes, and gives the memory of the written chunks back, until `is_enough`.
    pub(super) fn finish_evictions(&mut self, is_enough: impl Fn(&Self) -> bool) -> Result<(), Error> {
        let writing = self.chunks.iter().filter(|(_, chunk)| matches!(chunk.memory, Memory::Writing(_)));
        let mut ids: Vec<ChunkId> = writing.map(|(&id, _)| id).collect();
        ids.sort_unstable();
        for id in ids {
            if is_enough(self) {
                break;
            }
            self.finish_transfer(id)?;
            if self.chunks[&id].pins == 0 {
                self.drop_memory(id)?;
            }
        }
        Ok(())
    }

    /// Gives the memory of chunks back whose writes are done.
    pub(super) fn drop_written(&mut self) -> Result<(), Error> {
        let Self { chunks, queue, .. } = self;
        let Some(queue) = queue else { return Ok(()) };
        let mut done = Vec::new();
        for (&id, chunk) in chunks.iter() {
            if let Memory::Writing(transfer) = &chunk.memory
                && chunk.pins == 0
                && queue.is_done(transfer)?
            {
                done.push(id);
            }
        }
        for id in done {
            self.finish_transfer(id)?;
            self.drop_memory(id)?;
        }
        Ok(())
    }

    pub(super) fn finish_reads(&mut self) -> Result<(), Error> {
        let reading = self.chunks.iter().filter(|(_, chunk)| matches!(chunk.memory, Memory::Reading(_)));
        let ids: Vec<ChunkId> = reading.map(|(&id, _)| id).collect();
        ids.into_iter().try_for_each(|id| self.finish_transfer(id))
    }

    /// Waits until a chunk is neither read nor written. If that fails, a chunk that was read has no memory,
    /// and one that was written still has to be.
    pub(super) fn finish_transfer(&mut self, id: ChunkId) -> Result<(), Error> {
        let Self { chunks, queue, resident_bytes, .. } = self;
        let chunk = chunks.get_mut(&id).expect("the chunk is registered");
        let mut wait = |transfer| queue.as_mut().expect("a transfer has a queue").wait(transfer);
        match std::mem::replace(&mut chunk.memory, Memory::Resident) {
            Memory::Reading(transfer) => wait(transfer).or_else(|error| {
                (chunk.memory, chunk.is_ahead) = (Memory::Absent, false);
                *resident_bytes -= chunk.range.len();
                chunk.arena.release(chunk.range.clone())?;
                Err(error.into())
            }),
            Memory::Writing(transfer) => wait(transfer).map_err(|error| {
                chunk.is_dirty = true;
                error.into()
            }),
            other => {
                chunk.memory = other;
                Ok(())
            }
        }
    }

    pub(super) fn start_read(&mut self, id: ChunkId) -> Result<(), Error> {
        self.take_memory(id, IsCleared::No)?;
        let Self { chunks, queue, .. } = self;
        let chunk = chunks.get_mut(&id).expect("the chunk is registered");
        let (queue, scratch) = (queue.as_mut(), chunk.scratch.as_ref());
        let (queue, scratch) = queue.zip(scratch).expect("a chunk on disk has a file");
        match queue.read(&scratch.file, scratch.offset, &chunk.arena, chunk.range.clone()) {
            Ok(transfer) => chunk.memory = Memory::Reading(transfer),
            Err(error) => {
                self.drop_memory(id)?;
                return Err(error.into());
            }
        }
        self.count_fetch(id);
        Ok(())
    }

    pub(super) fn count_fetch(&mut self, id: ChunkId) {
        self.traffic.fetches += 1;
        self.traffic.fetched_bytes += self.chunks[&id].range.len() as u64;
    }

    /// Gives memory to a chunk: that of a freed chunk, if possible. The caller has made room for it beside
    /// everything but the memory of freed chunks, which goes if there is too much of it.
    pub(super) fn take_memory(&mut self, id: ChunkId, is_cleared: IsCleared) -> Result<(), Error> {
        let Self { chunks, freed, .. } = self;
        let chunk = chunks.get_mut(&id).expect("the chunk is registered");
        let (range, bytes) = (chunk.range.clone(), chunk.range.len());
        if freed.move_to(&chunk.arena, &range)? {
            if is_cleared == IsCleared::Yes {
                chunk.arena.clear(range)?;
            }
        } else if freed.bytes() > 0 {
            let taken = self.resident_bytes + freed.bytes() + allocator::held_bytes() + bytes;
            freed.release(taken.saturating_sub(self.device_bytes))?;
        }
        chunk.memory = Memory::Resident;
        self.resident_bytes += bytes;
        Ok(())
    }

    /// Takes the memory of a chunk away, whatever it holds. Under a budget it is kept for other chunks.
    pub(super) fn drop_memory(&mut self, id: ChunkId) -> Result<(), Error> {
        self.finish_transfer(id)?;
        let chunk = self.chunk(id);
        chunk.is_dirty = false;
        if chunk.has_memory() {
            chunk.memory = Memory::Absent;
            chunk.is_ahead = false;
            let bytes = chunk.range.len();
            let (arena, range) = (Arc::clone(&chunk.arena), chunk.range.clone());
            self.resident_bytes -= bytes;
            if self.device_bytes > 0 {
                self.freed.add(&arena, range)?;
            } else {
                arena.release(range)?;
            }
        }
        Ok(())
    }

    pub(super) fn note_peak(&mut self) {
        let taken = self.resident_bytes + self.freed.bytes() + allocator::held_bytes();
        self.traffic.peak_bytes = self.traffic.peak_bytes.max(taken);
    }
}
