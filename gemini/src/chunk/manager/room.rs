//! Makes room within the budget.

use super::Budget;
use super::chunk::{Chunk, ChunkId};
use super::state::State;
use crate::Error;
use crate::placement::{Candidate, PlacementPolicy, choose_evictions};

/// Who asks for memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Tenant {
    Chunk,
    Tensor,
}

impl State {
    /// The bytes of the device that this process takes or could take.
    pub(super) fn available_bytes(&mut self) -> Result<usize, Error> {
        let (free, _) = self.host().driver().memory_info()?;
        Ok(free + self.resident_bytes + self.freed.bytes() + self.tensors.reserved_bytes()?)
    }

    /// Makes room for `needed` more bytes of `tenant`: first the freed tensors go that the allocator keeps
    /// and that the next moments will not need, then chunks, and at last all freed tensors. The memory of
    /// freed chunks counts as room.
    pub(super) fn make_room(&mut self, budget: &Budget, needed: usize, tenant: Tenant) -> Result<(), Error> {
        let excess = |state: &Self| {
            let taken = state.resident_bytes + state.tensors.held_bytes() + needed;
            taken.saturating_sub(state.device_bytes)
        };
        let (expected, tensors) = (self.trace.expected_tensor_bytes(), self.tensors);
        let soon = tensors.live_bytes() + if tenant == Tenant::Tensor { needed } else { 0 };
        tensors.trim_to(expected.saturating_sub(soon), excess(self));
        if excess(self) > 0 {
            self.drop_written()?;
        }
        if excess(self) == 0 {
            return self.release_freed(tenant, needed);
        }

        // Chunks that are being written leave anyway. Freed tensors that will be needed, and chunks that are
        // being read, are the last to go.
        for is_last_resort in [false, true] {
            if is_last_resort {
                tensors.trim_to(0, excess(self));
                self.finish_reads()?;
            }
            let missing = excess(self).saturating_sub(self.bytes_where(Chunk::is_leaving));
            let (ids, candidates) = if budget.placement == PlacementPolicy::Cuda {
                <_>::default()
            } else {
                self.candidates(|_| true)
            };
            if let Some(victims) = choose_evictions(&candidates, missing) {
                for victim in victims {
                    self.start_eviction(ids[victim])?;
                }
                self.finish_evictions(|state| excess(state) == 0)?;
                return self.release_freed(tenant, needed);
            }
        }
        let needed = self.resident_bytes + tensors.held_bytes() + needed;
        if self.device_bytes < budget.device_bytes {
            return Err(Error::SharedDevice { needed, left: self.device_bytes, budget: budget.device_bytes });
        }
        let evictable = self.bytes_where(Chunk::is_evictable);
        Err(Error::OverBudget { needed, evictable, budget: budget.device_bytes })
    }

    /// Gives as much memory of freed chunks back to the system as `needed` bytes for tensors require. A chunk
    /// takes it over.
    fn release_freed(&mut self, tenant: Tenant, needed: usize) -> Result<(), Error> {
        if tenant == Tenant::Chunk {
            return Ok(());
        }
        let taken = self.resident_bytes + self.freed.bytes() + self.tensors.held_bytes() + needed;
        self.freed.release(taken.saturating_sub(self.device_bytes))
    }

    /// Those chunks that may leave memory and that `is_wanted` accepts, in order of registration.
    pub(super) fn candidates(&self, is_wanted: impl Fn(&Chunk) -> bool) -> (Vec<ChunkId>, Vec<Candidate>) {
        let evictable = self.chunks.iter().filter(|(_, chunk)| chunk.is_evictable() && is_wanted(chunk));
        let mut ids: Vec<ChunkId> = evictable.map(|(&id, _)| id).collect();
        ids.sort_unstable();
        let candidate = |id: &ChunkId| Candidate {
            bytes: self.chunks[id].range.len(),
            next_use: self.trace.next_use(*id),
            dirty: self.chunks[id].is_dirty,
        };
        let candidates = ids.iter().map(candidate).collect();
        (ids, candidates)
    }

    pub(super) fn bytes_where(&self, is_counted: impl Fn(&Chunk) -> bool) -> usize {
        self.chunks.values().filter(|chunk| is_counted(chunk)).map(|chunk| chunk.range.len()).sum()
    }
}
