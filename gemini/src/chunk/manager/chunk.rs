//! One chunk of a manager: where its values are, and whether it has memory.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use parallel::arena::Arena;
use parallel::disk::{DiskFile, DiskQueue, Transfer};
use parallel::driver::Event;

use super::pinned::HostCopy;
use crate::Error;

/// A chunk of a [`ChunkManager`](super::ChunkManager).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ChunkId(pub(in crate::chunk) usize);

/// Fills a chunk with its values. It is called when the chunk is fetched and was never written.
pub(crate) type Fill = Box<dyn Fn() -> Result<(), parallel::Error> + Send>;

/// Where the values of a chunk are while it is not in memory.
pub(super) enum Backing {
    /// It has no values yet: it reads as zeros.
    Zeros,
    /// They can be computed or read again, from the file of a frozen model for example.
    Source(Arc<Mutex<Fill>>),
    /// In the scratch file.
    Scratch,
}

/// Whether a chunk has memory.
#[derive(Debug)]
pub(super) enum Memory {
    /// It has none.
    Absent,
    /// Its values are in memory.
    Resident,
    /// They are being read.
    Reading(Moving),
    /// They are in memory and being written, after which the memory can be given back.
    Writing(Moving),
}

/// The way of values that are read or written.
#[derive(Debug)]
pub(super) enum Moving {
    /// From or to the disk. A chunk of a device is in a buffer of the host at the other end.
    Disk(Transfer),
    /// Between a device and a buffer of the host.
    Device(Arc<Event>),
}

impl Moving {
    pub(super) fn is_done(&self, queue: &mut DiskQueue) -> Result<bool, Error> {
        Ok(match self {
            Self::Disk(transfer) => queue.is_done(transfer)?,
            Self::Device(event) => event.is_done()?,
        })
    }
}

/// A chunk, and the way of its values.
pub(super) struct Chunk {
    pub(super) arena: Arc<Arena>,
    pub(super) range: Range<usize>,
    /// The place of its values in a scratch file, if they change.
    pub(super) scratch: Option<ScratchPlace>,
    pub(super) backing: Backing,
    /// Of a chunk of a device: its values in memory of the host, as they were when it left.
    pub(super) copy: Option<HostCopy>,
    pub(super) memory: Memory,
    /// Whether the values in memory exist nowhere else.
    pub(super) is_dirty: bool,
    /// Whether it is in memory for a later moment, and was not used since it was read.
    pub(super) is_ahead: bool,
    /// Whether it never leaves memory.
    pub(super) stays: bool,
    pub(super) pins: usize,
}

/// A place in a scratch file.
#[derive(Clone, Debug)]
pub(crate) struct ScratchPlace {
    pub(crate) file: Arc<DiskFile>,
    /// In bytes.
    pub(crate) offset: u64,
}

/// Whether memory that a chunk gets reads as zeros.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum IsCleared {
    Yes,
    /// What it holds is undefined.
    No,
}

impl Chunk {
    pub(super) fn has_memory(&self) -> bool {
        !matches!(self.memory, Memory::Absent)
    }

    /// Whether it may leave memory now.
    pub(super) fn is_evictable(&self) -> bool {
        self.pins == 0 && !self.stays && matches!(self.memory, Memory::Resident)
    }

    /// Whether its memory is given back as soon as it is written.
    pub(super) fn is_leaving(&self) -> bool {
        self.pins == 0 && matches!(self.memory, Memory::Writing(_))
    }
}
