//! What a manager knows of its chunks and of the memory that they share.

use std::collections::{BTreeSet, HashMap};

use parallel::disk::DiskQueue;

use super::budget::Traffic;
use super::chunk::{Chunk, ChunkId};
use super::freed::FreedMemory;
use super::pinned::HostTier;
use super::tensors::TensorMemory;
use crate::Error;
use crate::chunk::trace::Trace;

/// The chunks of a manager, and the memory of its device and of the host.
#[derive(Default)]
pub(super) struct State {
    pub(super) chunks: HashMap<ChunkId, Chunk>,
    pub(super) next_id: usize,
    /// The ids of chunks that are gone.
    pub(super) free_ids: BTreeSet<ChunkId>,
    pub(super) resident_bytes: usize,
    /// What chunks and tensors may take; 0 without a budget.
    pub(super) device_bytes: usize,
    pub(super) freed: FreedMemory,
    pub(super) tensors: TensorMemory,
    /// The tier of the host; only for the chunks of a device.
    pub(super) host: Option<HostTier>,
    /// Whether copies of chunks go on to the disk as soon as they are in memory of the host.
    pub(super) leaves_host: bool,
    /// What tensors will hold when the last request for memory is served.
    pub(super) promised_bytes: usize,
    pub(super) queue: Option<DiskQueue>,
    pub(super) trace: Trace,
    pub(super) traffic: Traffic,
    /// What failed on the thread that reads ahead. The next fetch reports it.
    pub(super) failure: Option<Error>,
}

impl State {
    /// The lowest id that is free. A store that each step makes anew gets the ids of the last step, by which
    /// the order of use knows its chunks.
    pub(super) fn new_id(&mut self) -> ChunkId {
        self.free_ids.pop_first().unwrap_or_else(|| {
            self.next_id += 1;
            ChunkId(self.next_id - 1)
        })
    }

    pub(super) fn chunk(&mut self, id: ChunkId) -> &mut Chunk {
        self.chunks.get_mut(&id).expect("the chunk is registered")
    }
}
