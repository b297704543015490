//! Pinned memory of the host, in buffers that each hold one chunk of a device.

use std::collections::HashMap;
use std::sync::Arc;

use parallel::arena::Arena;
use parallel::disk::Transfer;
use parallel::driver::{Driver, Event};
use parallel::memory;

use crate::Error;

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

    /// The bytes of all buffers.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The most bytes of all buffers.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// The most bytes that buffers took.
    pub(super) fn peak_bytes(&self) -> usize {
        self.peak_bytes
    }

    /// A buffer of `bytes`, if there is room for it.
    pub(super) fn take(&mut self, bytes: usize) -> Result<Option<Arc<Arena>>, Error> {
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
    pub(super) fn has_room(&self, bytes: usize) -> bool {
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
