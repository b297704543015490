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

mod bring;
mod budget;
mod chunk;
mod freed;
mod host;
mod pinned;
mod prefetch;
mod room;
mod state;
mod tensors;
mod transfers;

use std::cell::Cell;
use std::ops::Range;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use parallel::ProcessGroups;
use parallel::arena::Arena;
use parallel::disk::DiskQueue;
use parallel::driver::Driver;
use parallel::error_class::NO_MEMORY_FOR_TENSOR;
use tch::{Device, Kind};

use self::bring::Brought;
pub use self::budget::{Budget, Traffic};
use self::chunk::{Backing, Chunk, IsCleared, Memory};
pub(crate) use self::chunk::{ChunkId, Fill, ScratchPlace};
use self::pinned::HostTier;
use self::room::Tenant;
use self::state::State;
use self::tensors::TensorMemory;
use super::layout::SHARD_ALIGNMENT;
use crate::placement::PlacementPolicy;
use crate::{Error, ZeroStage};

/// The chunks of all models of a process.
pub struct ChunkManager {
    budget: Option<Budget>,
    zero_stage: ZeroStage,
    state: Mutex<State>,
    /// Wakes the thread that reads ahead; `None` if nothing is read ahead.
    wake_prefetch: Option<SyncSender<()>>,
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
            let continue_prefetch = move || weak.upgrade().is_some_and(|manager| manager.continue_prefetch());
            thread.spawn(move || prefetch::run_thread(&woken, continue_prefetch)).map_err(Error::Thread)?;
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

    /// The bytes that the budget leaves beside `bytes` of chunks that come and go and the chunks that never
    /// leave. `None` without a budget.
    pub(crate) fn room_beside(&self, bytes: usize) -> Option<usize> {
        let budget = self.budget.as_ref()?;
        let needed = match budget.placement {
            PlacementPolicy::Cuda => self.lock().bytes_where(|_| true),
            _ => self.lock().bytes_where(|chunk| chunk.stays) + bytes,
        };
        Some(budget.device_bytes.saturating_sub(needed))
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
