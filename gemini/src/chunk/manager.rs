//! Keeps chunks in memory while they are used, within a budget. Colossal-AI: `ChunkManager` and
//! `GeminiManager`.
//!
//! ```text
//!   fetch(chunks)   absent chunks: make room by evicting others, read them, pin all of them;
//!                   then start to read what the next moments need, and to write what they replace
//!   release(chunks) unpin: they stay until their memory is needed
//!   begin_step(), end_step()   the order of use between them predicts the next step
//! ```
//! The budget covers all chunks of all models of this process, and all tensors of libtorch (activations,
//! logits, KV caches), which libtorch's allocator counts.
//! [`choose_evictions`](crate::placement::choose_evictions) decides which chunk leaves, and
//! [`choose_prefetches`](crate::placement::choose_prefetches) which is read ahead. A chunk that was changed
//! is written to its place in the scratch file before its memory is used for something else; an unchanged one
//! is dropped. A chunk keeps its address all the time, so tensors over it never have to be made again.
//!
//! This module knows no parameter and no model.

mod budget;
mod freed;
mod host;
mod prefetch;
mod room;
mod tensors;
mod transfers;

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use parallel::ProcessGroups;
use parallel::arena::Arena;
use parallel::disk::{DiskFile, DiskQueue, Transfer};
use parallel::driver::{Driver, Event};
use parallel::error_class::NO_MEMORY_FOR_TENSOR;
use tch::{Device, Kind};

pub use self::budget::{Budget, Traffic};
use self::freed::FreedMemory;
use self::host::{HostCopy, HostTier};
use self::room::Tenant;
use self::tensors::TensorMemory;
use super::layout::SHARD_ALIGNMENT;
use super::trace::Trace;
use crate::placement::PlacementPolicy;
use crate::{Error, ZeroStage};

/// A chunk of a [`ChunkManager`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ChunkId(usize);

impl ChunkId {
    #[cfg(test)]
    pub(super) fn of(number: usize) -> Self {
        Self(number)
    }
}

/// Fills a chunk with its values. It is called when the chunk is fetched and was never written.
pub(crate) type Fill = Box<dyn Fn() -> Result<(), parallel::Error> + Send>;

/// What is left to do when chunks are in memory.
struct Brought {
    /// These fill some of the chunks.
    sources: Vec<(ChunkId, Arc<Mutex<Fill>>)>,
    /// Whether reading ahead has to wait until something is written.
    prefetch_waits: bool,
}

/// Where the values of a chunk are while it is not in memory.
enum Backing {
    /// It has no values yet: it reads as zeros.
    Zeros,
    /// They can be computed or read again, from the file of a frozen model for example.
    Source(Arc<Mutex<Fill>>),
    /// In the scratch file.
    Scratch,
}

/// Whether a chunk has memory.
#[derive(Debug)]
enum Memory {
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
enum Moving {
    /// From or to the disk. A chunk of a device is in a buffer of the host at the other end.
    Disk(Transfer),
    /// Between a device and a buffer of the host.
    Device(Arc<Event>),
}

impl Moving {
    fn is_done(&self, queue: &mut DiskQueue) -> Result<bool, Error> {
        Ok(match self {
            Self::Disk(transfer) => queue.is_done(transfer)?,
            Self::Device(event) => event.is_done()?,
        })
    }
}

struct Chunk {
    arena: Arc<Arena>,
    range: Range<usize>,
    /// The place of its values in a scratch file, if they change.
    scratch: Option<ScratchPlace>,
    backing: Backing,
    /// Of a chunk of a device: its values in memory of the host, as they were when it left.
    copy: Option<HostCopy>,
    memory: Memory,
    /// Whether the values in memory exist nowhere else.
    is_dirty: bool,
    /// Whether it is in memory for a later moment, and was not used since it was read.
    is_ahead: bool,
    /// Whether it never leaves memory.
    stays: bool,
    pins: usize,
}

/// A place in a scratch file.
#[derive(Clone, Debug)]
pub(crate) struct ScratchPlace {
    pub(crate) file: Arc<DiskFile>,
    /// In bytes.
    pub(crate) offset: u64,
}

/// The chunks of all models of a process.
pub struct ChunkManager {
    budget: Option<Budget>,
    zero_stage: ZeroStage,
    state: Mutex<State>,
    /// Wakes the thread that reads ahead; `None` if nothing is read ahead.
    wake_prefetch: Option<SyncSender<()>>,
}

#[derive(Default)]
struct State {
    chunks: HashMap<ChunkId, Chunk>,
    next_id: usize,
    /// The ids of chunks that are gone.
    free_ids: BTreeSet<ChunkId>,
    resident_bytes: usize,
    /// What chunks and tensors may take; 0 without a budget.
    device_bytes: usize,
    freed: FreedMemory,
    tensors: TensorMemory,
    /// The tier of the host; only for the chunks of a device.
    host: Option<HostTier>,
    /// Whether copies of chunks go on to the disk as soon as they are in memory of the host.
    leaves_host: bool,
    /// What tensors will hold when the last request for memory is served.
    promised_bytes: usize,
    queue: Option<DiskQueue>,
    trace: Trace,
    traffic: Traffic,
    /// What failed on the thread that reads ahead. The next fetch reports it.
    failure: Option<Error>,
}

/// Whether memory that a chunk gets reads as zeros.
#[derive(Clone, Copy, PartialEq, Eq)]
enum IsCleared {
    Yes,
    /// What it holds is undefined.
    No,
}

/// Other processes that take memory make the budget smaller in steps of one part in this number.
const BUDGET_UNITS: usize = 64;

thread_local! {
    /// Whether this thread holds the lock of a manager, so that allocations under it do not ask for the lock
    /// again.
    static IS_MANAGING: Cell<bool> = const { Cell::new(false) };
}

impl std::fmt::Debug for ChunkManager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChunkManager").field("budget", &self.budget).finish_non_exhaustive()
    }
}

impl ChunkManager {
    /// A manager without a budget: every chunk stays in memory.
    pub fn unlimited() -> Arc<Self> {
        Self::sharded(ZeroStage::None)
    }

    /// A manager without a budget, whose chunks are divided over the data-parallel ranks.
    pub fn sharded(zero_stage: ZeroStage) -> Arc<Self> {
        Arc::new(Self { budget: None, zero_stage, state: Mutex::default(), wake_prefetch: None })
    }

    /// A manager that keeps chunks and tensors of this process within `budget`. A process has one of them at
    /// a time, because the tensors of all models share one allocator.
    pub fn limited(budget: Budget, zero_stage: ZeroStage) -> Result<Arc<Self>, Error> {
        let host = match budget.device {
            Device::Cpu => None,
            device => Some(HostTier::new(&Driver::open(device)?, budget.buffer_bytes())),
        };
        let state = State {
            queue: Some(DiskQueue::open()?),
            device_bytes: budget.device_bytes,
            leaves_host: budget.placement == PlacementPolicy::Disk,
            host,
            ..State::default()
        };
        let (wake, woken) = sync_channel(1);
        let wake_prefetch = (budget.placement == PlacementPolicy::Auto).then_some(wake);
        let (device, state) = (budget.device, Mutex::new(state));
        let manager = Arc::new(Self { budget: Some(budget), zero_stage, state, wake_prefetch });
        if manager.wake_prefetch.is_some() {
            let weak = Arc::downgrade(&manager);
            let thread = std::thread::Builder::new().name("prefetch".to_owned());
            thread.spawn(move || prefetch::run_thread(&weak, &woken)).map_err(Error::Thread)?;
        }
        let weak = Arc::downgrade(&manager);
        let tensors = TensorMemory::watch(
            device,
            Box::new(move |bytes| match weak.upgrade() {
                Some(manager) => manager.make_room_for_tensor(bytes),
                None => Ok(()),
            }),
        )?;
        manager.lock().tensors = tensors;
        Ok(manager)
    }

    /// The driver of the device whose memory is managed; `None` on the host, and without a budget.
    pub(crate) fn driver(&self) -> Option<Arc<Driver>> {
        self.lock().host.as_ref().map(|host| Arc::clone(host.driver()))
    }

    /// The shards of chunks have a multiple of this number of elements, which in bf16 is a piece of memory.
    pub(crate) fn shard_alignment(&self) -> usize {
        let granularity = self.driver().map_or(0, |driver| driver.granularity());
        (granularity / Kind::BFloat16.elt_size_in_bytes()).max(SHARD_ALIGNMENT)
    }

    /// The budget; `None` if everything stays in memory.
    pub fn budget(&self) -> Option<&Budget> {
        self.budget.as_ref()
    }

    /// Whether chunks may leave memory.
    pub fn is_limited(&self) -> bool {
        self.budget.is_some()
    }

    /// Whether chunks may go to the disk.
    pub(crate) fn uses_disk(&self) -> bool {
        self.budget.as_ref().is_some_and(Budget::uses_disk)
    }

    /// What the data-parallel ranks divide among themselves.
    pub fn zero_stage(&self) -> ZeroStage {
        self.zero_stage
    }

    /// Adds a chunk without values. `scratch` is where its values go when it is evicted after a change. One
    /// that `stays` never leaves memory once it is there.
    pub(crate) fn register(
        &self,
        arena: &Arc<Arena>,
        range: Range<usize>,
        scratch: Option<ScratchPlace>,
        stays: bool,
    ) -> ChunkId {
        let mut state = self.lock();
        let id = state.new_id();
        let chunk = Chunk {
            arena: Arc::clone(arena),
            range,
            scratch,
            backing: Backing::Zeros,
            copy: None,
            memory: Memory::Absent,
            is_dirty: false,
            is_ahead: false,
            stays,
            pins: 0,
        };
        state.chunks.insert(id, chunk);
        id
    }

    /// Removes chunks whose tensors are gone.
    pub(crate) fn unregister(&self, ids: &[ChunkId]) {
        let mut state = self.lock();
        for id in ids {
            // The mapping goes with its tensors in any case, but nothing may be copied to it any more.
            let _ = if state.chunks.contains_key(id) { state.abandon_transfers(*id) } else { Ok(()) };
            let Some(chunk) = state.chunks.remove(id) else { continue };
            state.free_ids.insert(*id);
            if chunk.has_memory() {
                state.resident_bytes -= chunk.range.len();
                // The tensors of a host keep its mapping. On a device, the memory is free for others.
                if chunk.arena.driver().is_some() {
                    let _ = state.freed.add(&chunk.arena, chunk.range.clone());
                }
            }
            let _ = state.freed.forget(&chunk.arena);
        }
    }

    /// Sets how a chunk, which is in memory and unchanged since, gets its values when it is fetched again.
    pub(crate) fn set_source(&self, id: ChunkId, fill: Fill) {
        let mut state = self.lock();
        let chunk = state.chunk(id);
        chunk.backing = Backing::Source(Arc::new(Mutex::new(fill)));
        chunk.is_dirty = false;
    }

    /// Declares that a chunk in memory has values that exist nowhere else, and sets the file for them.
    pub(crate) fn set_changed(&self, id: ChunkId, scratch: Option<ScratchPlace>) {
        let mut state = self.lock();
        let chunk = state.chunk(id);
        chunk.scratch = scratch;
        chunk.is_dirty = true;
    }

    /// Brings chunks into memory and pins them. With `writes`, their values are about to change.
    pub(crate) fn fetch(&self, ids: &[ChunkId], writes: bool) -> Result<(), Error> {
        let mut state = self.lock();
        let Some(budget) = &self.budget else {
            // Only shards are registered without a budget. They are counted, and there is room for all.
            for &id in ids {
                state.chunk(id).pins += 1;
                if !state.chunk(id).has_memory() {
                    state.take_memory(id, IsCleared::Yes)?;
                }
            }
            state.note_peak();
            return Ok(());
        };
        if ids.is_empty() {
            return Ok(());
        }
        if let Some(failure) = state.failure.take() {
            return Err(failure);
        }
        state.promised_bytes = 0;
        let State { trace, chunks, tensors, .. } = &mut *state;
        let sizes = ids.iter().map(|id| (*id, chunks[id].range.len()));
        trace.record(sizes, writes, tensors.peak_live_bytes());
        tensors.reset_peak();
        for id in ids {
            let chunk = state.chunk(*id);
            chunk.pins += 1;
            chunk.is_ahead = false;
        }

        let fetched = state.bring(budget, ids, writes).map(|Brought { sources, prefetch_waits }| {
            if let (Some(wake), true) = (&self.wake_prefetch, prefetch_waits) {
                // A full channel means that the thread is awake.
                let _ = wake.try_send(());
            }
            sources
        });
        drop(state);
        let mut unfilled = Vec::new();
        let result = fetched.and_then(|sources| {
            // Sources read files and may fetch other chunks, so they run without the lock.
            let fill = |(_, source): &(ChunkId, Arc<Mutex<Fill>>)| {
                let fill = source.lock().unwrap_or_else(PoisonError::into_inner);
                Ok(fill()?)
            };
            sources.iter().try_for_each(fill).inspect_err(|_| unfilled = sources)
        });
        if result.is_err() {
            self.release(ids);
            let mut state = self.lock();
            unfilled.into_iter().try_for_each(|(id, _)| state.drop_memory(id))?;
        }
        result
    }

    /// Ends a fetch of the same chunks.
    pub(crate) fn release(&self, ids: &[ChunkId]) {
        let mut state = self.lock();
        for id in ids {
            let chunk = state.chunk(*id);
            chunk.pins = chunk.pins.checked_sub(1).expect("a chunk is released as often as it was fetched");
            let leaves = self.budget.as_ref().is_some_and(|budget| {
                use PlacementPolicy::{Cpu, Disk, Static};
                matches!(budget.placement, Cpu | Disk | Static)
            });
            if leaves && state.chunk(*id).is_evictable() {
                // If the disk refuses the request, the chunk stays as it is, and the next eviction reports
                // the error. An error of the transfer is reported when the transfer is waited for.
                let _ = state.start_eviction(*id);
            }
        }
    }

    /// Declares that the values of chunks are not needed any more: they read as zeros when they are fetched
    /// again. Without a budget the memory stays, with its old values.
    pub(crate) fn discard(&self, ids: &[ChunkId]) -> Result<(), Error> {
        if self.is_limited() { self.free(ids) } else { Ok(()) }
    }

    /// [Discards](Self::discard) the values of chunks, and gives their memory back also without a budget.
    pub(crate) fn free(&self, ids: &[ChunkId]) -> Result<(), Error> {
        let mut state = self.lock();
        for &id in ids {
            state.drop_memory(id)?;
            state.drop_copy(id)?;
            state.chunk(id).backing = Backing::Zeros;
        }
        Ok(())
    }

    /// Starts a step. Between the end of a step and this call, the order of use does not count.
    ///
    /// If other processes have taken memory of a device, less than the budget may be left. The ranks agree on
    /// what each of them has, and keep within that from now on. Returns the bytes if they have changed.
    pub fn begin_step(&self, groups: &ProcessGroups) -> Result<Option<usize>, Error> {
        self.lock().trace.begin_step();
        let Some(budget) = self.budget.as_ref().filter(|budget| budget.device != Device::Cpu) else {
            return Ok(None);
        };
        // Not every small change is worth other decisions.
        let unit = (budget.device_bytes / BUDGET_UNITS).max(1);
        let (before, own) = {
            let mut state = self.lock();
            let available = state.available_bytes()?;
            let rounded = if available < budget.device_bytes { available / unit * unit } else { available };
            let own = rounded.clamp(unit, budget.device_bytes);
            // The thread that reads ahead must not use up meanwhile what was found to be missing.
            (std::mem::replace(&mut state.device_bytes, own), own)
        };
        let [least] = groups.world().all_reduce_max([-(own as f64)])?;
        let least = (-least) as usize;
        self.lock().device_bytes = least;
        Ok((before != least).then_some(least))
    }

    /// Ends a step, whose order of use predicts the next step.
    pub fn end_step(&self) {
        let mut state = self.lock();
        let device_bytes = state.device_bytes;
        state.trace.end_step(device_bytes);
    }

    /// Whether `bytes` of chunks fit beside the tensors of the moment at which a chunk is used next. `false`
    /// as long as no order of use is known.
    pub(crate) fn has_room_at_next_use(&self, id: ChunkId, bytes: usize) -> bool {
        if !self.is_limited() {
            return true;
        }
        let state = self.lock();
        let tensors = state.trace.tensor_bytes_at_next_use(id);
        tensors.is_some_and(|tensors| tensors + bytes <= state.device_bytes)
    }

    /// Goes on with reading ahead. Returns whether it has to wait until something is written.
    fn continue_prefetch(&self) -> bool {
        let Some(budget) = &self.budget else { return false };
        let mut state = self.lock();
        let prefetched = state.drop_written().and_then(|()| state.prefetch(budget));
        prefetched.unwrap_or_else(|error| {
            state.failure = Some(error);
            false
        })
    }

    /// The bytes of chunks that are in memory. Without a budget, only those of sharded chunks are counted.
    pub fn resident_bytes(&self) -> usize {
        self.lock().resident_bytes
    }

    /// What was moved so far.
    pub fn traffic(&self) -> Traffic {
        let state = self.lock();
        let host_peak_bytes = state.host.as_ref().map_or(0, HostTier::peak_bytes);
        Traffic { host_peak_bytes, ..state.traffic }
    }

    /// Called before libtorch takes `bytes` of memory for a tensor.
    fn make_room_for_tensor(&self, bytes: usize) -> Result<(), String> {
        let Some(budget) = &self.budget else { return Ok(()) };
        if IS_MANAGING.get() {
            return Ok(());
        }
        let mut state = self.lock();
        let refused = |error: Error| format!("{NO_MEMORY_FOR_TENSOR}{error}");
        state.make_room(budget, bytes, Tenant::Tensor).map_err(refused)?;
        state.promised_bytes = state.tensors.held_bytes() + bytes;
        state.note_peak();
        Ok(())
    }

    fn lock(&self) -> Locked<'_> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        IS_MANAGING.set(true);
        Locked(state)
    }
}

/// The locked state of a manager.
struct Locked<'a>(MutexGuard<'a, State>);

impl std::ops::Deref for Locked<'_> {
    type Target = State;
    fn deref(&self) -> &State {
        &self.0
    }
}

impl std::ops::DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.0
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        IS_MANAGING.set(false);
    }
}

impl Chunk {
    fn has_memory(&self) -> bool {
        !matches!(self.memory, Memory::Absent)
    }

    /// Whether it may leave memory now.
    fn is_evictable(&self) -> bool {
        self.pins == 0 && !self.stays && matches!(self.memory, Memory::Resident)
    }

    /// Whether its memory is given back as soon as it is written.
    fn is_leaving(&self) -> bool {
        self.pins == 0 && matches!(self.memory, Memory::Writing(_))
    }
}

impl State {
    /// The lowest id that is free. A store that each step makes anew gets the ids of the last step, by which
    /// the order of use knows its chunks.
    fn new_id(&mut self) -> ChunkId {
        self.free_ids.pop_first().unwrap_or_else(|| {
            self.next_id += 1;
            ChunkId(self.next_id - 1)
        })
    }

    fn chunk(&mut self, id: ChunkId) -> &mut Chunk {
        self.chunks.get_mut(&id).expect("the chunk is registered")
    }

    /// Makes pinned chunks resident.
    fn bring(&mut self, budget: &Budget, ids: &[ChunkId], writes: bool) -> Result<Brought, Error> {
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
