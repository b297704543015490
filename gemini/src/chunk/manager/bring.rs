//! Brings chunks into memory.

use std::sync::{Arc, Mutex};

use super::Budget;
use super::chunk::{Backing, ChunkId, Fill, IsCleared};
use super::room::Tenant;
use super::state::State;
use crate::Error;

/// What is left to do when chunks are in memory.
pub(super) struct Brought {
    /// These fill some of the chunks.
    pub(super) sources: Vec<(ChunkId, Arc<Mutex<Fill>>)>,
    /// Whether reading ahead has to wait until something is written.
    pub(super) prefetch_waits: bool,
}

impl State {
    /// Makes pinned chunks resident.
    pub(super) fn bring(&mut self, budget: &Budget, ids: &[ChunkId], writes: bool) -> Result<Brought, Error> {
        let mut sources = Vec::new();
        match self.start_bringing(budget, ids, writes, &mut sources) {
            Ok(prefetch_waits) => Ok(Brought { sources, prefetch_waits }),
            Err(error) => {
                // Nobody fills them any more.
                sources.into_iter().try_for_each(|(id, _)| self.drop_memory(id))?;
                Err(error)
            }
        }
    }

    /// Makes pinned chunks resident, but for those that the caller fills from `sources`. Returns whether
    /// reading ahead has to wait until something is written.
    fn start_bringing(
        &mut self,
        budget: &Budget,
        ids: &[ChunkId],
        writes: bool,
        sources: &mut Vec<(ChunkId, Arc<Mutex<Fill>>)>,
    ) -> Result<bool, Error> {
        self.drop_written()?;
        let mut absent: Vec<ChunkId> =
            ids.iter().copied().filter(|id| !self.chunks[id].has_memory()).collect();
        absent.dedup();
        let needed: usize = absent.iter().map(|id| self.chunks[id].range.len()).sum();
        if needed > 0 {
            self.make_room(budget, needed, Tenant::Chunk)?;
        }

        for id in absent {
            match &self.chunks[&id].backing {
                _ if self.chunks[&id].copy.is_some() => self.start_read(id)?,
                Backing::Source(fill) => {
                    let fill = Arc::clone(fill);
                    self.count_fetch(id);
                    self.take_memory(id, IsCleared::Yes)?;
                    sources.push((id, fill));
                }
                Backing::Zeros => self.take_memory(id, IsCleared::Yes)?,
                Backing::Scratch => self.start_read(id)?,
            }
        }
        self.note_peak();
        // What the next moments need is read while this one waits and computes.
        let prefetch_waits = self.read_ahead(budget)?;
        for &id in ids {
            self.finish_transfer(id)?;
            self.chunk(id).is_dirty |= writes;
            if writes {
                self.drop_copy(id)?;
            }
        }
        Ok(prefetch_waits)
    }
}
