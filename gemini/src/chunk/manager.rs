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
//! logits, KV caches), which [`allocator`] counts. [`choose_evictions`] decides which chunk leaves, and
//! [`choose_prefetches`] which is read ahead. A chunk that was changed is written to its place in the scratch
//! file before its memory is given back; an unchanged one is dropped. A chunk keeps its address all the time,
//! so tensors over it never have to be made again.
//!
//! This module knows no parameter and no model.

use std::cell::Cell;
use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use parallel::allocator;
use parallel::arena::Arena;
use parallel::disk::{DiskFile, DiskQueue, Transfer};

use super::trace::Trace;
use crate::placement::{Candidate, PlacementPolicy, Resident, choose_evictions, choose_prefetches};
use crate::{Error, ZeroStage};

/// The beginning of the message of libtorch if the manager has no memory for a tensor. The reason follows.
pub const NO_MEMORY_FOR_TENSOR: &str = "no memory for a tensor: ";

/// The most chunks that are read ahead at a time.
const MAX_PREFETCH: usize = 8;

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
    Reading(Transfer),
    /// They are in memory and being written, after which the memory can be given back.
    Writing(Transfer),
}

struct Chunk {
    arena: Arc<Arena>,
    range: Range<usize>,
    /// The place of its values in a scratch file, if they change.
    scratch: Option<ScratchPlace>,
    backing: Backing,
    memory: Memory,
    /// Whether the values in memory differ from those of the backing.
    is_dirty: bool,
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

/// The budget of the memory on the device, and the folder of the disk tier.
#[derive(Clone, Debug, PartialEq)]
pub struct Budget {
    /// Which chunks leave memory.
    pub placement: PlacementPolicy,
    /// The bytes that all models of this process may take: chunks, activations, logits, caches.
    pub device_bytes: usize,
    /// The folder of the scratch files.
    pub disk_path: PathBuf,
}

/// What a manager has moved so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Chunks that were brought into memory from a file.
    pub fetches: u64,
    /// Their bytes.
    pub fetched_bytes: u64,
    /// Bytes of chunks that were written to the scratch files.
    pub written_bytes: u64,
    /// The most bytes that chunks and tensors took at the same time.
    pub peak_bytes: usize,
}

/// The chunks of all models of a process.
pub struct ChunkManager {
    budget: Option<Budget>,
    zero_stage: ZeroStage,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    chunks: HashMap<ChunkId, Chunk>,
    next_id: usize,
    resident_bytes: usize,
    queue: Option<DiskQueue>,
    trace: Trace,
    traffic: Traffic,
}

/// Who asks for memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tenant {
    Chunk,
    Tensor,
}

/// Unmaps up to `bytes` of the freed tensors that the allocator keeps, but leaves `kept_bytes` of them.
fn trim_to(kept_bytes: usize, bytes: usize) {
    let cached = allocator::cached_bytes();
    if bytes > 0 && cached > kept_bytes {
        allocator::trim(cached.saturating_sub(bytes).max(kept_bytes));
    }
}

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
        Arc::new(Self { budget: None, zero_stage, state: Mutex::default() })
    }

    /// A manager that keeps chunks and tensors of this process within `budget`. A process has one of them at
    /// a time, because the tensors of all models share one allocator.
    pub fn limited(budget: Budget, zero_stage: ZeroStage) -> Result<Arc<Self>, Error> {
        let queue = DiskQueue::open()?;
        let state = State { queue: Some(queue), ..State::default() };
        let manager = Arc::new(Self { budget: Some(budget), zero_stage, state: Mutex::new(state) });
        allocator::install()?;
        let weak = Arc::downgrade(&manager);
        allocator::set_budget(Some(Box::new(move |bytes| match weak.upgrade() {
            Some(manager) => manager.make_room_for_tensor(bytes),
            None => Ok(()),
        })));
        Ok(manager)
    }

    /// The budget; `None` if everything stays in memory.
    pub fn budget(&self) -> Option<&Budget> {
        self.budget.as_ref()
    }

    /// Whether chunks may leave memory.
    pub fn is_limited(&self) -> bool {
        self.budget.is_some()
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
        let id = ChunkId(state.next_id);
        state.next_id += 1;
        let chunk = Chunk {
            arena: Arc::clone(arena),
            range,
            scratch,
            backing: Backing::Zeros,
            memory: Memory::Absent,
            is_dirty: false,
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
            if let Some(chunk) = state.chunks.remove(id).filter(Chunk::has_memory) {
                state.resident_bytes -= chunk.range.len();
            }
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
                    state.take_memory(id, Memory::Resident);
                }
            }
            state.note_peak();
            return Ok(());
        };
        if ids.is_empty() {
            return Ok(());
        }
        state.trace.record(ids, writes, allocator::peak_live_bytes());
        allocator::reset_peak();
        for id in ids {
            state.chunk(*id).pins += 1;
        }

        let fetched = state.bring(budget, ids, writes);
        drop(state);
        let result = fetched.and_then(|sources| {
            // Sources read files and may fetch other chunks, so they run without the lock.
            sources.iter().try_for_each(|source| {
                let fill = source.lock().unwrap_or_else(PoisonError::into_inner);
                Ok(fill()?)
            })
        });
        if result.is_err() {
            self.release(ids);
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
                matches!(budget.placement, PlacementPolicy::Disk | PlacementPolicy::Static)
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
            state.chunk(id).backing = Backing::Zeros;
        }
        Ok(())
    }

    /// Starts a step. Between the end of a step and this call, the order of use does not count.
    pub fn begin_step(&self) {
        self.lock().trace.begin_step();
    }

    /// Ends a step, whose order of use predicts the next step.
    pub fn end_step(&self) {
        let mut state = self.lock();
        let State { trace, chunks, .. } = &mut *state;
        trace.end_step(|id| Some(chunks.get(&id)?.range.len()));
    }

    /// The bytes of chunks that are in memory. Without a budget, only those of sharded chunks are counted.
    pub fn resident_bytes(&self) -> usize {
        self.lock().resident_bytes
    }

    /// What was moved so far.
    pub fn traffic(&self) -> Traffic {
        self.lock().traffic
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
}

impl State {
    fn chunk(&mut self, id: ChunkId) -> &mut Chunk {
        self.chunks.get_mut(&id).expect("the chunk is registered")
    }

    /// Makes pinned chunks resident. Returns the sources that fill some of them.
    fn bring(
        &mut self,
        budget: &Budget,
        ids: &[ChunkId],
        writes: bool,
    ) -> Result<Vec<Arc<Mutex<Fill>>>, Error> {
        self.drop_written()?;
        let mut absent: Vec<ChunkId> =
            ids.iter().copied().filter(|id| !self.chunks[id].has_memory()).collect();
        absent.dedup();
        let needed: usize = absent.iter().map(|id| self.chunks[id].range.len()).sum();
        if needed > 0 {
            self.make_room(budget, needed, Tenant::Chunk)?;
        }

        let mut sources = Vec::new();
        for id in absent {
            match &self.chunks[&id].backing {
                Backing::Source(fill) => {
                    sources.push(Arc::clone(fill));
                    self.count_fetch(id);
                    self.take_memory(id, Memory::Resident);
                }
                Backing::Zeros => self.take_memory(id, Memory::Resident),
                Backing::Scratch => self.start_read(id)?,
            }
        }
        self.note_peak();
        // What the next moments need is read while this one waits and computes.
        self.prefetch(budget)?;
        for &id in ids {
            self.finish_transfer(id)?;
            self.chunk(id).is_dirty |= writes;
        }
        Ok(sources)
    }

    /// Makes room for `needed` more bytes of `tenant`: first the freed tensors go that the allocator keeps
    /// and that the next moments will not need, then chunks, and at last all freed tensors.
    fn make_room(&mut self, budget: &Budget, needed: usize, tenant: Tenant) -> Result<(), Error> {
        let excess = |state: &Self| {
            let taken = state.resident_bytes + allocator::held_bytes() + needed;
            taken.saturating_sub(budget.device_bytes)
        };
        let expected = self.trace.expected_tensor_bytes();
        let soon = allocator::live_bytes() + if tenant == Tenant::Tensor { needed } else { 0 };
        trim_to(expected.saturating_sub(soon), excess(self));
        if excess(self) > 0 {
            self.drop_written()?;
        }
        if excess(self) == 0 {
            return Ok(());
        }

        // Chunks that are being written leave anyway. Freed tensors that will be needed, and chunks that were
        // read ahead, are the last to go.
        for is_last_resort in [false, true] {
            if is_last_resort {
                trim_to(0, excess(self));
                self.finish_reads()?;
            }
            let is_leaving = |chunk: &Chunk| chunk.pins == 0 && matches!(chunk.memory, Memory::Writing(_));
            let missing = excess(self).saturating_sub(self.bytes_where(is_leaving));
            let (ids, candidates) =
                if budget.placement == PlacementPolicy::Cuda { <_>::default() } else { self.candidates() };
            if let Some(victims) = choose_evictions(&candidates, missing) {
                for victim in victims {
                    self.start_eviction(ids[victim])?;
                }
                return self.finish_evictions(|state| excess(state) == 0);
            }
        }
        Err(Error::OverBudget {
            needed: self.resident_bytes + allocator::held_bytes() + needed,
            budget: budget.device_bytes,
            evictable: self.bytes_where(Chunk::is_evictable),
        })
    }

    /// Starts to read what the next moments need, and to write what it replaces.
    fn prefetch(&mut self, budget: &Budget) -> Result<(), Error> {
        if budget.placement != PlacementPolicy::Auto {
            return Ok(());
        }
        let Some((order, now)) = self.trace.order() else { return Ok(()) };
        let in_memory = self.chunks.iter().filter(|(_, chunk)| chunk.has_memory());
        let mut other_bytes = 0;
        let mut resident = Vec::new();
        for (&id, chunk) in in_memory {
            match self.trace.index(id) {
                Some(index) => {
                    let pinned = !chunk.is_evictable();
                    resident.push(Resident { chunk: index, dirty: chunk.is_dirty, pinned });
                }
                None => other_bytes += chunk.range.len(),
            }
        }
        resident.sort_by_key(|one| one.chunk);
        let capacity = |moment: usize| {
            let tensors = self.trace.tensor_bytes(moment).max(allocator::live_bytes());
            budget.device_bytes.saturating_sub(tensors + other_bytes)
        };
        let chosen = choose_prefetches(order, now, &resident, capacity, MAX_PREFETCH);
        let chosen: Vec<(ChunkId, Vec<ChunkId>)> = chosen
            .into_iter()
            .map(|one| {
                let evict = one.evict.into_iter().map(|index| self.trace.id(index)).collect();
                (self.trace.id(one.chunk), evict)
            })
            .collect();

        for (id, evict) in chosen {
            for victim in evict {
                self.start_eviction(victim)?;
            }
            let bytes = self.chunks[&id].range.len();
            let excess =
                |tensors: usize| (self.resident_bytes + tensors + bytes).saturating_sub(budget.device_bytes);
            let expected = self.trace.expected_tensor_bytes();
            // What it replaces is still being written: the next fetch finds the room.
            if excess(expected.max(allocator::live_bytes())) > 0 {
                return Ok(());
            }
            trim_to(expected.saturating_sub(allocator::live_bytes()), excess(allocator::held_bytes()));
            if excess(allocator::held_bytes()) > 0 {
                return Ok(());
            }
            if matches!(self.chunks[&id].backing, Backing::Scratch) {
                self.start_read(id)?;
            }
        }
        Ok(())
    }

    /// The chunks that may leave memory, in order of registration.
    fn candidates(&self) -> (Vec<ChunkId>, Vec<Candidate>) {
        let mut ids: Vec<ChunkId> =
            self.chunks.iter().filter(|(_, chunk)| chunk.is_evictable()).map(|(&id, _)| id).collect();
        ids.sort_unstable();
        let candidate = |id: &ChunkId| Candidate {
            bytes: self.chunks[id].range.len(),
            next_use: self.trace.next_use(*id),
            dirty: self.chunks[id].is_dirty,
        };
        let candidates = ids.iter().map(candidate).collect();
        (ids, candidates)
    }

    fn bytes_where(&self, is_counted: impl Fn(&Chunk) -> bool) -> usize {
        self.chunks.values().filter(|chunk| is_counted(chunk)).map(|chunk| chunk.range.len()).sum()
    }

    /// Drops an unchanged chunk, and starts to write a changed one.
    fn start_eviction(&mut self, id: ChunkId) -> Result<(), Error> {
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
    fn finish_evictions(&mut self, is_enough: impl Fn(&Self) -> bool) -> Result<(), Error> {
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
    fn drop_written(&mut self) -> Result<(), Error> {
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

    fn finish_reads(&mut self) -> Result<(), Error> {
        let reading = self.chunks.iter().filter(|(_, chunk)| matches!(chunk.memory, Memory::Reading(_)));
        let ids: Vec<ChunkId> = reading.map(|(&id, _)| id).collect();
        ids.into_iter().try_for_each(|id| self.finish_transfer(id))
    }

    /// Waits until a chunk is neither read nor written.
    fn finish_transfer(&mut self, id: ChunkId) -> Result<(), Error> {
        let Self { chunks, queue, .. } = self;
        let chunk = chunks.get_mut(&id).expect("the chunk is registered");
        match std::mem::replace(&mut chunk.memory, Memory::Resident) {
            Memory::Reading(transfer) | Memory::Writing(transfer) => {
                let queue = queue.as_mut().expect("a transfer has a queue");
                Ok(queue.wait(transfer)?)
            }
            other => {
                chunk.memory = other;
                Ok(())
            }
        }
    }

    fn start_read(&mut self, id: ChunkId) -> Result<(), Error> {
        let Self { chunks, queue, .. } = self;
        let chunk = &chunks[&id];
        let (queue, scratch) = (queue.as_mut(), chunk.scratch.as_ref());
        let (queue, scratch) = queue.zip(scratch).expect("a chunk on disk has a file");
        let transfer = queue.read(&scratch.file, scratch.offset, &chunk.arena, chunk.range.clone())?;
        self.count_fetch(id);
        self.take_memory(id, Memory::Reading(transfer));
        Ok(())
    }

    fn count_fetch(&mut self, id: ChunkId) {
        self.traffic.fetches += 1;
        self.traffic.fetched_bytes += self.chunks[&id].range.len() as u64;
    }

    fn take_memory(&mut self, id: ChunkId, memory: Memory) {
        let chunk = self.chunk(id);
        chunk.memory = memory;
        self.resident_bytes += self.chunks[&id].range.len();
    }

    /// Gives the memory of a chunk back, whatever it holds.
    fn drop_memory(&mut self, id: ChunkId) -> Result<(), Error> {
        self.finish_transfer(id)?;
        let chunk = self.chunk(id);
        chunk.is_dirty = false;
        if chunk.has_memory() {
            chunk.memory = Memory::Absent;
            let bytes = chunk.range.len();
            chunk.arena.release(chunk.range.clone())?;
            self.resident_bytes -= bytes;
        }
        Ok(())
    }

    fn note_peak(&mut self) {
        let taken = self.resident_bytes + allocator::held_bytes();
        self.traffic.peak_bytes = self.traffic.peak_bytes.max(taken);
    }
}
