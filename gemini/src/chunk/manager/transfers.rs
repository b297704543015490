//! Moves chunks between memory and their files, those of a device by way of the [host tier](super::host).

use std::ops::Range;
use std::sync::Arc;

use super::chunk::{Backing, ChunkId, IsCleared, Memory, Moving};
use super::pinned::HostCopy;
use super::state::State;
use crate::Error;

impl State {
    /// Drops an unchanged chunk, and starts to write a changed one.
    pub(super) fn start_eviction(&mut self, id: ChunkId) -> Result<(), Error> {
        if !self.chunks[&id].is_dirty {
            return self.drop_memory(id);
        }
        if self.host.is_some() {
            return self.start_copy_to_host(id);
        }
        let Self { chunks, queue, traffic, .. } = self;
        let chunk = chunks.get_mut(&id).expect("the chunk is registered");
        let (queue, scratch) = (queue.as_mut(), chunk.scratch.as_ref());
        let (queue, scratch) = queue.zip(scratch).expect("a chunk that changes has a scratch file");
        let transfer = queue.write(&scratch.file, scratch.offset, &chunk.arena, chunk.range.clone())?;
        traffic.written_bytes += chunk.range.len() as u64;
        chunk.memory = Memory::Writing(Moving::Disk(transfer));
        (chunk.backing, chunk.is_dirty) = (Backing::Scratch, false);
        Ok(())
    }

    /// Starts to copy a changed chunk of a device to a buffer of the host.
    fn start_copy_to_host(&mut self, id: ChunkId) -> Result<(), Error> {
        self.drop_copy(id)?;
        let buffer = self.take_buffer(self.chunks[&id].range.len())?;
        let driver = Arc::clone(self.host().driver());
        let chunk = self.chunk(id);
        let started = driver.start_copy_to_host((&chunk.arena, chunk.range.clone()), &buffer);
        let copied = match started {
            Ok(copied) => Arc::new(copied),
            Err(error) => {
                self.host().give_back(buffer, None);
                return Err(error.into());
            }
        };
        chunk.memory = Memory::Writing(Moving::Device(Arc::clone(&copied)));
        chunk.copy = Some(HostCopy { buffer, copied: Some(copied), is_saved: false, saving: None });
        chunk.is_dirty = false;
        self.traffic.to_host_bytes += self.chunks[&id].range.len() as u64;
        Ok(())
    }

    /// Starts to copy a chunk from its buffer of the host to its memory on the device, which it loses if that
    /// fails.
    fn start_copy_to_device(&mut self, id: ChunkId) -> Result<(), Error> {
        let driver = Arc::clone(self.host().driver());
        let chunk = self.chunk(id);
        let copy = chunk.copy.as_mut().expect("the values are in a buffer of the host");
        let started = driver.start_copy_to_device(&copy.buffer, (&chunk.arena, chunk.range.clone()));
        let copied = match started {
            Ok(copied) => Arc::new(copied),
            Err(error) => {
                self.drop_memory(id)?;
                return Err(error.into());
            }
        };
        copy.copied = Some(Arc::clone(&copied));
        chunk.memory = Memory::Reading(Moving::Device(copied));
        self.traffic.to_device_bytes += self.chunks[&id].range.len() as u64;
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
            self.finish_eviction(id)?;
        }
        Ok(())
    }

    /// Waits until a chunk is written, and takes its memory away unless somebody has fetched it again.
    pub(super) fn finish_eviction(&mut self, id: ChunkId) -> Result<(), Error> {
        self.finish_transfer(id)?;
        if self.chunks[&id].pins > 0 {
            return Ok(());
        }
        self.drop_memory(id)?;
        if self.leaves_host { self.start_saving(id) } else { Ok(()) }
    }

    /// Gives the memory of chunks back whose writes are done, and goes on with those that have come from the
    /// disk to the host.
    pub(super) fn drop_written(&mut self) -> Result<(), Error> {
        let Self { chunks, queue, host, .. } = self;
        let Some(queue) = queue else { return Ok(()) };
        let (mut written, mut read) = (Vec::new(), Vec::new());
        for (&id, chunk) in chunks.iter() {
            match &chunk.memory {
                Memory::Writing(moving) if chunk.pins == 0 && moving.is_done(queue)? => written.push(id),
                Memory::Reading(Moving::Disk(transfer)) if host.is_some() && queue.is_done(transfer)? => {
                    read.push(id);
                }
                _ => {}
            }
        }
        written.into_iter().try_for_each(|id| self.finish_eviction(id))?;
        read.into_iter().try_for_each(|id| self.finish_disk_read(id))?;
        self.drop_saved_copies()
    }

    pub(super) fn finish_reads(&mut self) -> Result<(), Error> {
        let reading = self.chunks.iter().filter(|(_, chunk)| matches!(chunk.memory, Memory::Reading(_)));
        let ids: Vec<ChunkId> = reading.map(|(&id, _)| id).collect();
        ids.into_iter().try_for_each(|id| self.finish_transfer(id))
    }

    /// Waits until a chunk is neither read nor written. If that fails, a chunk that was read has no memory,
    /// and one that was written still has to be. A device may still have to copy what it reads: its
    /// operations wait for that.
    pub(super) fn finish_transfer(&mut self, id: ChunkId) -> Result<(), Error> {
        if self.host.is_some() && matches!(self.chunks[&id].memory, Memory::Reading(Moving::Disk(_))) {
            self.finish_disk_read(id)?;
        }
        let Self { chunks, queue, resident_bytes, .. } = self;
        let chunk = chunks.get_mut(&id).expect("the chunk is registered");
        let mut wait = |transfer| queue.as_mut().expect("a transfer has a queue").wait(transfer);
        let finished = match std::mem::replace(&mut chunk.memory, Memory::Resident) {
            Memory::Reading(Moving::Disk(transfer)) => wait(transfer).or_else(|error| {
                (chunk.memory, chunk.is_ahead) = (Memory::Absent, false);
                *resident_bytes -= chunk.range.len();
                chunk.arena.release(chunk.range.clone())?;
                Err(error)
            }),
            Memory::Reading(Moving::Device(copied)) => copied.join(),
            Memory::Writing(Moving::Disk(transfer)) => wait(transfer).inspect_err(|_| chunk.is_dirty = true),
            Memory::Writing(Moving::Device(copied)) => copied.wait().inspect_err(|_| chunk.is_dirty = true),
            other => {
                chunk.memory = other;
                return Ok(());
            }
        };
        Ok(finished?)
    }

    /// Waits until the values of a chunk of a device have come from the disk, and starts to copy them to the
    /// device.
    fn finish_disk_read(&mut self, id: ChunkId) -> Result<(), Error> {
        let Self { chunks, queue, .. } = self;
        let chunk = chunks.get_mut(&id).expect("the chunk is registered");
        let Memory::Reading(Moving::Disk(transfer)) = std::mem::replace(&mut chunk.memory, Memory::Resident)
        else {
            unreachable!("the caller has found a chunk that comes from the disk");
        };
        let read = queue.as_mut().expect("a transfer has a queue").wait(transfer);
        if let Err(error) = read {
            self.drop_copy(id)?;
            self.drop_memory(id)?;
            return Err(error.into());
        }
        self.start_copy_to_device(id)
    }

    /// Starts to read a chunk, which is in a buffer of the host or on the disk.
    pub(super) fn start_read(&mut self, id: ChunkId) -> Result<(), Error> {
        let is_on_device = self.host.is_some();
        if is_on_device && self.chunks[&id].copy.is_some() {
            self.take_memory(id, IsCleared::No)?;
            return self.start_copy_to_device(id);
        }

        // What comes from the disk to a device is read into a buffer of the host first.
        self.take_memory(id, IsCleared::No)?;
        if is_on_device {
            match self.take_buffer(self.chunks[&id].range.len()) {
                Ok(buffer) => {
                    let copy = HostCopy { buffer, copied: None, is_saved: true, saving: None };
                    self.chunk(id).copy = Some(copy);
                }
                Err(error) => {
                    self.drop_memory(id)?;
                    return Err(error);
                }
            }
        }

        let Self { chunks, queue, .. } = self;
        let chunk = chunks.get_mut(&id).expect("the chunk is registered");
        let (queue, scratch) = (queue.as_mut(), chunk.scratch.as_ref());
        let (queue, scratch) = queue.zip(scratch).expect("a chunk on disk has a file");
        let (arena, range) = match &chunk.copy {
            Some(copy) => (&copy.buffer, 0..copy.buffer.len()),
            None => (&chunk.arena, chunk.range.clone()),
        };
        match queue.read(&scratch.file, scratch.offset, arena, range) {
            Ok(transfer) => chunk.memory = Memory::Reading(Moving::Disk(transfer)),
            Err(error) => {
                self.drop_memory(id)?;
                self.drop_copy(id)?;
                return Err(error.into());
            }
        }
        self.count_fetch(id);
        Ok(())
    }

    /// Waits until neither a device nor the disk uses the memory of a chunk that is going to be dropped.
    pub(super) fn abandon_transfers(&mut self, id: ChunkId) -> Result<(), Error> {
        if self.host.is_none() {
            return Ok(());
        }
        self.finish_transfer(id)?;
        self.drop_copy(id)
    }

    pub(super) fn count_fetch(&mut self, id: ChunkId) {
        self.traffic.fetches += 1;
        self.traffic.fetched_bytes += self.chunks[&id].range.len() as u64;
    }

    /// Gives memory to a chunk: that of freed chunks, as far as possible. The caller has made room for it
    /// beside everything but the memory of freed chunks, which goes if there is too much of it.
    pub(super) fn take_memory(&mut self, id: ChunkId, is_cleared: IsCleared) -> Result<(), Error> {
        let Self { chunks, freed, .. } = self;
        let chunk = chunks.get_mut(&id).expect("the chunk is registered");
        let (range, bytes) = (chunk.range.clone(), chunk.range.len());
        let mut undefined = freed.move_to(&chunk.arena, &range)?;
        if undefined.iter().map(Range::len).sum::<usize>() < bytes {
            let tensors = self.tensors.held_bytes().max(self.promised_bytes);
            let taken = self.resident_bytes + freed.bytes() + tensors + bytes;
            freed.release(taken.saturating_sub(self.device_bytes))?;
            // On the host, memory appears at its first use, and is cleared.
            if chunk.arena.driver().is_some() {
                if chunk.arena.commit(range.clone()).is_err() {
                    // Other processes may have taken memory. What is kept for other chunks and for tensors to
                    // come goes first.
                    freed.release(usize::MAX)?;
                    self.tensors.empty_cache()?;
                    chunk.arena.commit(range.clone())?;
                }
                undefined.push(range);
            }
        }
        if is_cleared == IsCleared::Yes {
            undefined.into_iter().try_for_each(|part| chunk.arena.clear(part))?;
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
            if self.device_bytes > 0 || arena.driver().is_some() {
                self.freed.add(&arena, range)?;
            } else {
                arena.release(range)?;
            }
        }
        Ok(())
    }

    pub(super) fn note_peak(&mut self) {
        let taken = self.resident_bytes + self.freed.bytes() + self.tensors.held_bytes();
        self.traffic.peak_bytes = self.traffic.peak_bytes.max(taken);
    }
}
