//! One tensor per parameter of a model, stored in chunks: the weights, or the gradients, the master weights
//! or a moment of the optimizer. Colossal-AI: a chunk group (`fp16_param`, `fp32_param`).
//!
//! The chunks lie one after the other in an [`Arena`], so the tensors keep their addresses while the
//! [`ChunkManager`] moves chunks to the disk or the host and back. On a device without a budget, each chunk
//! is one tensor that stays.
//!
//! ```text
//!   chunk of 3 ranks, seen by rank 1   | others | own shard | others |
//! ```
//! If the chunks are sharded ([`crate::zero`]), this rank's shard is one piece for the manager, and the
//! others are further pieces, which are in memory for a short time only.

pub mod memory;
mod residency;

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use parallel::arena::{Arena, HUGE_PAGE_BYTES, page_bytes};
use parallel::comm::PendingCollective;
use parallel::disk::DiskFile;
use parallel::residency::{Access, ModelPart, WeightSource, WeightUpdate};
use tch::{Device, Kind, Tensor, no_grad};

use super::layout::{ChunkLayout, ChunkSpec};
use super::manager::{ChunkId, ChunkManager, ScratchPlace};
use super::state::ChunkState;
use crate::Error;
use crate::placement::PlacementPolicy;
use crate::zero::{Kept, Sharding};

/// The place of one tensor of a store.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// Its shape.
    pub(crate) shape: Vec<i64>,
    /// Its dtype, the same for all tensors of a chunk.
    pub(crate) kind: Kind,
}

/// What a store holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Weights, which do not change where their chunks are frozen.
    Weights,
    /// Gradients.
    Gradients,
    /// Masters or a moment.
    OptimizerState,
}

/// One tensor per parameter of a model.
pub(crate) struct ChunkStore {
    manager: Arc<ChunkManager>,
    layout: Arc<ChunkLayout>,
    sharding: Option<Sharding>,
    parts: HashMap<ModelPart, Vec<usize>>,
    /// The pieces of each chunk. Empty if the chunks stay in memory as they are.
    pieces: Vec<Pieces>,
    /// Whether the chunks never leave memory.
    stays: bool,
    /// The system gives memory in multiples of this number of bytes.
    granularity: usize,
    scratch: Option<Scratch>,
    tensors: Mutex<Tensors>,
    /// What is gathered, of sharded weights.
    sharded: Mutex<Vec<ShardedChunk>>,
    /// In the order in which they were deferred.
    updates: Mutex<Vec<DeferredUpdate>>,
}

/// What the manager moves of a chunk.
struct Pieces {
    /// This rank's shard, or the whole chunk.
    own: ChunkId,
    /// The shards of other ranks.
    others: Vec<ChunkId>,
}

impl Pieces {
    fn all(&self) -> Vec<ChunkId> {
        std::iter::once(self.own).chain(self.others.iter().copied()).collect()
    }
}

/// A chunk of sharded weights.
#[derive(Debug, Default)]
struct ShardedChunk {
    state: ChunkState,
    /// How many have fetched or prefetched it.
    holders: usize,
    /// Whether the shards of other ranks are in memory, too.
    is_whole: bool,
    /// The all-gather that runs.
    gathering: Option<PendingCollective>,
}

/// An update that runs before one of its weights is used.
struct DeferredUpdate {
    /// The weights, by index, which are held while it runs.
    params: Vec<usize>,
    /// The chunks that hold them.
    chunks: BTreeSet<usize>,
    run: WeightUpdate,
}

/// The places of the chunks of a store that are not in memory.
struct Scratch {
    /// The offset of each chunk in its file, or of this rank's shard of it.
    offsets: Vec<u64>,
    /// Holds the chunks that change; `None` if none does, or if nothing goes to the disk.
    changing: Option<Arc<DiskFile>>,
    /// Holds the others, if their values cannot be read again. Created when the first of them needs it.
    unchanging: Mutex<Option<Arc<DiskFile>>>,
    unchanging_bytes: u64,
}

/// The lengths of two scratch files.
#[derive(Default)]
struct FileBytes {
    changing: u64,
    unchanging: u64,
}

/// The byte ranges of this rank's shard of a chunk and of the shards of the other ranks.
type Cut = (Range<usize>, Vec<Range<usize>>);

struct Tensors {
    /// One tensor per parameter.
    params: Vec<Tensor>,
    /// The same memory again. Values are loaded through these tensors, because autograd takes a change
    /// through the tensor that a forward pass has used for a change of its values.
    targets: Vec<Tensor>,
    /// One flat tensor per chunk.
    chunks: Vec<Tensor>,
    /// The loaded parameters of each chunk whose parameters are not all loaded yet, with the sources that can
    /// be called again.
    loading: Vec<Vec<(usize, Option<WeightSource>)>>,
}

impl std::fmt::Debug for ChunkStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChunkStore").field("chunks", &self.layout.chunks().len()).finish_non_exhaustive()
    }
}

impl ChunkStore {
    /// Reserves the memory of one tensor per place. `layout` has one parameter per place. The space on the
    /// disk for values that will change, which are those of chunks that are not frozen, is taken at once.
    pub(crate) fn new(
        manager: &Arc<ChunkManager>,
        layout: &Arc<ChunkLayout>,
        sharding: Option<Sharding>,
        places: &[Place],
        device: Device,
        content: Content,
    ) -> Result<Self, Error> {
        let kinds: Vec<Kind> =
            layout.chunks().iter().map(|chunk| places[chunk.params[0].param].kind).collect();
        let is_static = manager.budget().is_some_and(|budget| budget.placement == PlacementPolicy::Static);
        let stays = is_static && content != Content::OptimizerState;

        let (mut pieces, mut scratch) = (Vec::new(), None);
        let driver = manager.driver();
        let granularity = driver.as_ref().map_or_else(page_bytes, |driver| driver.granularity());
        let (chunks, params) = if device == Device::Cpu || driver.is_some() {
            let (ranges, bytes) = ranges(layout, &kinds, granularity);
            let arena = match &driver {
                Some(driver) => Arena::reserve_on(driver, bytes)?,
                None => Arena::reserve(bytes)?,
            };
            let tensors = tensors_in_arena(&arena, layout, &ranges, &kinds, places)?;
            let cut: Vec<Cut> = layout
                .chunks()
                .iter()
                .zip(ranges)
                .zip(&kinds)
                .map(|((chunk, range), &kind)| cut(chunk, range, kind, sharding.as_ref()))
                .collect();
            for range in cut.iter().flat_map(|(own, others)| std::iter::once(own).chain(others)) {
                arena.prefer_huge_pages(range.clone())?;
            }
            let kept = sharding.as_ref().map_or(Kept::Whole, |sharding| sharding.kept);
            if manager.is_limited() || kept != Kept::Whole {
                let changes = layout.chunks().iter().map(|chunk| !chunk.group.is_frozen && !stays);
                let cut: Vec<_> = cut.into_iter().zip(changes).collect();
                (pieces, scratch) = register(manager, &arena, &cut, kept, stays)?;
            }
            tensors
        } else {
            tensors_on_device(device, layout, &kinds, places)
        };

        let loading = layout.chunks().iter().map(|_| Vec::new()).collect();
        let sharded = layout.chunks().iter().map(|_| ShardedChunk::default()).collect();
        let (params, targets) = params.into_iter().map(|[param, target]| (param, target)).unzip();
        Ok(Self {
            manager: Arc::clone(manager),
            layout: Arc::clone(layout),
            sharding,
            parts: HashMap::new(),
            pieces,
            stays,
            granularity,
            scratch,
            tensors: Mutex::new(Tensors { params, targets, chunks, loading }),
            sharded: Mutex::new(sharded),
            updates: Mutex::default(),
        })
    }

    /// The tensor of parameter `param`.
    pub(crate) fn param(&self, param: usize) -> Tensor {
        self.lock().params[param].shallow_clone()
    }

    /// The elements of parameter `param` that this rank owns.
    pub(crate) fn own_elements_of(&self, param: usize) -> Range<usize> {
        let (chunk, offset) = self.layout.slot_of(param);
        let numel = self.lock().params[param].numel();
        let Some(sharding) = &self.sharding else { return 0..numel };
        let shard = sharding.own_elements(&self.layout.chunks()[chunk]);
        let within = |element: usize| element.saturating_sub(offset).min(numel);
        within(shard.start)..within(shard.end)
    }

    /// The bytes that this rank's shard of chunk `chunk` takes.
    pub(crate) fn shard_bytes(&self, chunk: usize) -> usize {
        let spec = &self.layout.chunks()[chunk];
        let kind = self.lock().chunks[chunk].kind();
        let numel = self.sharding.as_ref().map_or(spec.numel, |sharding| sharding.own_elements(spec).len());
        (numel * kind.elt_size_in_bytes()).next_multiple_of(self.granularity)
    }

    /// Chunk `chunk` as a flat tensor, with its padding.
    pub(crate) fn chunk(&self, chunk: usize) -> Tensor {
        self.lock().chunks[chunk].shallow_clone()
    }

    /// Brings chunk `chunk` into memory. The shards of other ranks have the values that this rank has written
    /// there, or none.
    pub(crate) fn fetch_chunk(&self, chunk: usize, access: Access) -> Result<(), Error> {
        self.pieces.get(chunk).map_or(Ok(()), |pieces| self.fetch_pieces(&pieces.all(), access))
    }

    /// Ends a [`fetch_chunk`](Self::fetch_chunk).
    pub(crate) fn release_chunk(&self, chunk: usize) {
        if let Some(pieces) = self.pieces.get(chunk) {
            self.manager.release(&pieces.all());
        }
    }

    /// Sets the values of a parameter, of which this rank keeps its own elements.
    pub(crate) fn set_param(&self, param: usize, values: &Tensor) -> Result<(), Error> {
        let chunk = self.layout.slot_of(param).0;
        // The shards of other ranks get values, too, which are dropped and need not be written.
        self.fetch_chunk(chunk, Access::Read)?;
        self.fetch_shard(chunk, Access::Write)?;
        no_grad(|| self.param(param).copy_(values));
        self.release_shard(chunk);
        self.release_chunk(chunk);
        if self.own_shards().is_some() { self.free_other_shards(chunk) } else { Ok(()) }
    }

    /// Brings this rank's shard of chunk `chunk` into memory; all of it if it is not sharded.
    pub(crate) fn fetch_shard(&self, chunk: usize, access: Access) -> Result<(), Error> {
        self.pieces.get(chunk).map_or(Ok(()), |pieces| self.fetch_pieces(&[pieces.own], access))
    }

    /// Ends a [`fetch_shard`](Self::fetch_shard).
    pub(crate) fn release_shard(&self, chunk: usize) {
        if let Some(pieces) = self.pieces.get(chunk) {
            self.manager.release(&[pieces.own]);
        }
    }

    fn fetch_pieces(&self, pieces: &[ChunkId], access: Access) -> Result<(), Error> {
        self.manager.fetch(pieces, access == Access::Write)
    }

    /// Declares that the values of chunk `chunk` are not needed any more.
    pub(crate) fn discard_chunk(&self, chunk: usize) -> Result<(), Error> {
        self.pieces.get(chunk).map_or(Ok(()), |pieces| self.manager.discard(&pieces.all()))
    }

    /// Gives the memory of the shards of other ranks back.
    pub(crate) fn free_other_shards(&self, chunk: usize) -> Result<(), Error> {
        self.pieces.get(chunk).map_or(Ok(()), |pieces| self.manager.free(&pieces.others))
    }

    fn target(&self, param: usize) -> Tensor {
        self.lock().targets[param].shallow_clone()
    }

    fn lock(&self) -> MutexGuard<'_, Tensors> {
        self.tensors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The place of chunk `chunk` in a scratch file; `None` if it never goes to the disk.
    fn scratch_place(&self, chunk: usize) -> Result<Option<ScratchPlace>, Error> {
        if self.stays || !self.manager.uses_disk() {
            return Ok(None);
        }
        let scratch = self.scratch.as_ref().expect("chunks that leave memory have a place to go");
        let offset = scratch.offsets[chunk];
        if !self.layout.chunks()[chunk].group.is_frozen {
            return Ok(scratch.changing.clone().map(|file| ScratchPlace { file, offset }));
        }
        let mut file = scratch.unchanging.lock().unwrap_or_else(PoisonError::into_inner);
        if file.is_none() {
            *file = Some(new_scratch(&self.manager, scratch.unchanging_bytes)?);
        }
        Ok(file.clone().map(|file| ScratchPlace { file, offset }))
    }
}

impl Drop for ChunkStore {
    fn drop(&mut self) {
        let ids: Vec<ChunkId> = self.pieces.iter().flat_map(Pieces::all).collect();
        self.manager.unregister(&ids);
    }
}

impl Place {
    /// The strides in elements.
    fn strides(&self) -> Vec<i64> {
        let mut strides = vec![1; self.shape.len()];
        for dim in (1..self.shape.len()).rev() {
            strides[dim - 1] = strides[dim] * self.shape[dim];
        }
        strides
    }
}

/// The flat tensor of each chunk, and two tensors of each parameter over the same memory.
type StoreTensors = (Vec<Tensor>, Vec<[Tensor; 2]>);

/// The tensors over an arena, in which the chunks have these byte ranges.
fn tensors_in_arena(
    arena: &Arc<Arena>,
    layout: &ChunkLayout,
    ranges: &[Range<usize>],
    kinds: &[Kind],
    places: &[Place],
) -> Result<StoreTensors, Error> {
    let chunk = |chunk: &ChunkSpec, range: &Range<usize>, kind: Kind| {
        arena.tensor(range.start, &[chunk.numel as i64], &[1], kind)
    };
    let specs = layout.chunks().iter().zip(ranges).zip(kinds);
    let chunks = specs.map(|((spec, range), &kind)| chunk(spec, range, kind)).collect::<Result<_, _>>()?;
    let param = |(param, place): (usize, &Place)| {
        let (chunk, offset) = layout.slot_of(param);
        let offset = ranges[chunk].start + offset * place.kind.elt_size_in_bytes();
        let tensor = || arena.tensor(offset, &place.shape, &place.strides(), place.kind);
        Ok::<_, Error>([tensor()?, tensor()?])
    };
    Ok((chunks, places.iter().enumerate().map(param).collect::<Result<_, _>>()?))
}

/// The tensors on a device that is not the CPU, where each chunk is one tensor.
fn tensors_on_device(device: Device, layout: &ChunkLayout, kinds: &[Kind], places: &[Place]) -> StoreTensors {
    let chunk = |(chunk, &kind): (&ChunkSpec, &Kind)| Tensor::zeros([chunk.numel as i64], (kind, device));
    let chunks: Vec<Tensor> = layout.chunks().iter().zip(kinds).map(chunk).collect();
    let param = |(param, place): (usize, &Place)| {
        let (chunk, offset) = layout.slot_of(param);
        let numel = place.shape.iter().product::<i64>();
        let view = chunks[chunk].narrow(0, offset as i64, numel).view(place.shape.as_slice());
        [view.detach(), view]
    };
    let params = places.iter().enumerate().map(param).collect();
    (chunks, params)
}

/// The byte range of each chunk, a multiple of the `granularity` of memory, and the length of all of them. A
/// large chunk starts at a huge page, so that its memory can be moved.
fn ranges(layout: &ChunkLayout, kinds: &[Kind], granularity: usize) -> (Vec<Range<usize>>, usize) {
    let mut end = 0_usize;
    let ranges = layout.chunks().iter().zip(kinds).map(|(chunk, kind)| {
        let bytes = (chunk.numel * kind.elt_size_in_bytes()).next_multiple_of(granularity);
        let start = if bytes < HUGE_PAGE_BYTES { end } else { end.next_multiple_of(HUGE_PAGE_BYTES) };
        end = start + bytes;
        start..end
    });
    let ranges: Vec<_> = ranges.collect();
    (ranges, end)
}

/// Cuts the byte range of a chunk into this rank's shard and the parts before and after it. A chunk that is
/// kept whole is its own shard.
fn cut(chunk: &ChunkSpec, range: Range<usize>, kind: Kind, sharding: Option<&Sharding>) -> Cut {
    let Some(sharding) = sharding.filter(|sharding| sharding.kept != Kept::Whole) else {
        return (range, Vec::new());
    };
    let own = sharding.own_elements(chunk);
    let byte = |element: usize| range.start + element * kind.elt_size_in_bytes();
    let own = byte(own.start)..byte(own.end);
    // Only a chunk of one rank may end inside a page.
    let end = if own.end == byte(chunk.numel) { range.end } else { own.end };
    let others = [range.start..own.start, end..range.end];
    (own.start..end, others.into_iter().filter(|range| !range.is_empty()).collect())
}

/// Registers the pieces of chunks, given with whether their values change. Those that change get a scratch
/// file, in which the pieces lie one after the other; the shards of other ranks only if their values are kept
/// until they are reduced. Pieces that `stays` is set for never leave memory.
fn register(
    manager: &ChunkManager,
    arena: &Arc<Arena>,
    chunks: &[(Cut, bool)],
    kept: Kept,
    stays: bool,
) -> Result<(Vec<Pieces>, Option<Scratch>), Error> {
    let others_change = kept == Kept::UntilReduced;
    let written = |others: &Vec<Range<usize>>| {
        if others_change { others.iter().map(Range::len).sum() } else { 0 }
    };
    let mut bytes = FileBytes::default();
    let offsets: Vec<u64> = chunks
        .iter()
        .map(|((own, others), changes)| {
            let end = if *changes { &mut bytes.changing } else { &mut bytes.unchanging };
            let offset = *end;
            *end += (own.len() + written(others)) as u64;
            offset
        })
        .collect();
    let has_file = bytes.changing > 0 && manager.uses_disk();
    let file = if has_file { Some(new_scratch(manager, bytes.changing)?) } else { None };

    let pieces = chunks.iter().zip(&offsets).map(|(((own, others), changes), &offset)| {
        let mut next = offset;
        let mut piece = |range: &Range<usize>, has_place: bool| {
            let place = file.as_ref().filter(|_| has_place && *changes);
            let place = place.map(|file| ScratchPlace { file: Arc::clone(file), offset: next });
            next += range.len() as u64;
            manager.register(arena, range.clone(), place, stays)
        };
        Pieces {
            own: piece(own, true),
            others: others.iter().map(|range| piece(range, others_change)).collect(),
        }
    });
    let pieces = pieces.collect();
    let unchanging = Mutex::default();
    Ok((pieces, Some(Scratch { offsets, unchanging_bytes: bytes.unchanging, changing: file, unchanging })))
}

fn new_scratch(manager: &ChunkManager, bytes: u64) -> Result<Arc<DiskFile>, Error> {
    let budget = manager.budget().expect("only a limited manager writes chunks");
    Ok(Arc::new(DiskFile::scratch(&budget.disk_path, bytes)?))
}
