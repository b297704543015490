//! Reads ahead.
//!
//! ```text
//!   main thread     | fetch: the write of A starts | compute                           | fetch: B is there
//!   prefetch thread |                              | A is written, B read in its place |
//! ```
//! A part of the budget is for chunks that are read before their use (see [`choose_prefetches`]). Mostly it
//! becomes free only when other chunks are written. The thread that computes would not notice that before its
//! next fetch, so a thread of the manager looks after it.

use std::sync::mpsc::Receiver;
use std::time::Duration;

use parallel::SysError;

use super::Budget;
use super::chunk::{Backing, Chunk, ChunkId, IsCleared, Memory, Moving};
use super::state::State;
use crate::Error;
use crate::placement::{
    LOOKAHEAD_MOMENTS, PlacementPolicy, READ_AHEAD_PARTS, choose_evictions, choose_prefetches,
};

/// The time between two looks at the chunks that are being written. Writing a chunk takes milliseconds.
const POLL: Duration = Duration::from_millis(1);

/// After each message of `wake`, calls `continue_prefetch` until reading ahead has nothing to wait for.
pub(super) fn run_thread(wake: &Receiver<()>, continue_prefetch: impl Fn() -> bool) {
    for () in wake {
        loop {
            std::thread::sleep(POLL);
            if !continue_prefetch() {
                break;
            }
        }
    }
}

impl Budget {
    /// The bytes, of those on the device, for chunks that are read ahead.
    fn read_ahead_bytes(&self, device_bytes: usize) -> usize {
        if self.placement == PlacementPolicy::Auto { device_bytes / READ_AHEAD_PARTS } else { 0 }
    }
}

impl State {
    /// Lets chunks go until there is memory for reading ahead, if possible, and starts to read what the next
    /// moments need. Returns whether reads wait until something is written.
    pub(super) fn read_ahead(&mut self, budget: &Budget) -> Result<bool, Error> {
        let read_ahead_bytes = budget.read_ahead_bytes(self.device_bytes);
        if read_ahead_bytes == 0 || self.trace.order().is_none() {
            return Ok(false);
        }
        self.forget_unused()?;
        let counts = |chunk: &Chunk| chunk.has_memory() && !chunk.is_leaving() && !chunk.is_ahead;
        let tensors = self.trace.expected_tensor_bytes().max(self.tensors.live_bytes());
        let taken = self.bytes_where(counts) + tensors + read_ahead_bytes;
        let (ids, candidates) = self.candidates(|chunk| !chunk.is_ahead);
        let excess = taken.saturating_sub(self.device_bytes);
        let evictable = candidates.iter().map(|candidate| candidate.bytes).sum();
        for victim in choose_evictions(&candidates, excess.min(evictable)).unwrap_or_default() {
            self.start_eviction(ids[victim])?;
        }
        self.prefetch(budget)
    }

    /// Chunks that were read ahead and will not be used soon after all, because a step differs from the last
    /// one, count as the others.
    fn forget_unused(&mut self) -> Result<(), Error> {
        let is_far = |id: ChunkId| self.trace.next_use(id).is_none_or(|moments| moments > LOOKAHEAD_MOMENTS);
        let ahead = self.chunks.iter().filter(|(_, chunk)| chunk.is_ahead).map(|(&id, _)| id);
        let unused: Vec<ChunkId> = ahead.filter(|&id| is_far(id)).collect();
        for id in unused {
            self.finish_transfer(id)?;
            self.chunk(id).is_ahead = false;
        }
        Ok(())
    }

    /// Starts to read what the next moments need. Returns whether reads wait until something is written.
    pub(super) fn prefetch(&mut self, budget: &Budget) -> Result<bool, Error> {
        let Some((order, now)) = self.trace.order() else { return Ok(false) };
        let is_in_memory = |index: usize| {
            // A chunk that does not exist any more will not be used, and one with a source is filled at its
            // use.
            let chunk = self.chunks.get(&self.trace.id(index));
            let is_filled =
                |chunk: &Chunk| chunk.copy.is_none() && matches!(chunk.backing, Backing::Source(_));
            let chunk = chunk.filter(|chunk| !is_filled(chunk));
            chunk.is_none_or(|chunk| chunk.has_memory() && !chunk.is_leaving())
        };
        let ahead_bytes = self.bytes_where(|chunk| chunk.is_ahead);
        let capacity = |moment: usize| {
            let tensors = self.trace.tensor_bytes(moment).max(self.tensors.live_bytes());
            self.device_bytes.saturating_sub(tensors)
        };
        let read_ahead_bytes = budget.read_ahead_bytes(self.device_bytes);
        let chosen = choose_prefetches(order, now, is_in_memory, ahead_bytes, read_ahead_bytes, capacity);
        let chosen: Vec<ChunkId> = chosen.into_iter().map(|index| self.trace.id(index)).collect();

        for id in chosen {
            let bytes = self.chunks[&id].range.len();
            let (promised, tensors) = (self.promised_bytes, self.tensors);
            let excess = |tensors: usize| {
                (self.resident_bytes + tensors.max(promised) + bytes).saturating_sub(self.device_bytes)
            };
            let expected = self.trace.expected_tensor_bytes();
            // What it replaces is still being written, or the chunk itself.
            if self.chunks[&id].is_leaving() || excess(expected.max(tensors.live_bytes())) > 0 {
                return Ok(self.chunks.values().any(Chunk::is_leaving));
            }
            tensors.trim_to(expected.saturating_sub(tensors.live_bytes()), excess(tensors.held_bytes()));
            if excess(tensors.held_bytes()) > 0 {
                return Ok(false);
            }
            // Nobody waits for a device or for other processes before a chunk is used.
            if !self.freed.is_ready(bytes)? {
                return Ok(true);
            }
            let chunk = &self.chunks[&id];
            let started = match chunk.backing {
                _ if chunk.copy.is_some() => self.start_read(id),
                Backing::Scratch if !self.has_buffer_for(bytes) => return Ok(false),
                Backing::Scratch => self.start_read(id),
                Backing::Zeros => self.take_memory(id, IsCleared::Yes),
                Backing::Source(_) => continue,
            };
            match started {
                Err(Error::Sys(SysError::DeviceMemory { .. })) => return Ok(false),
                started => started?,
            }
            self.chunk(id).is_ahead = true;
            self.note_peak();
        }
        // What comes from the disk still has to be copied to the device.
        let comes_by_host = |chunk: &Chunk| matches!(chunk.memory, Memory::Reading(Moving::Disk(_)));
        Ok(self.host.is_some() && self.chunks.values().any(comes_by_host))
    }
}
