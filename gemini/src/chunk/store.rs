//! One tensor per parameter of a model, stored in chunks: the weights, or the gradients, the master weights
//! or a moment of the optimizer. Colossal-AI: a chunk group (`fp16_param`, `fp32_param`).
//!
//! On the CPU the chunks lie one after the other in an [`Arena`], so the tensors keep their addresses while
//! the [`ChunkManager`] moves chunks to the disk and back. On another device each chunk is one tensor that
//! stays.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use parallel::Parameter;
use parallel::arena::{Arena, page_bytes};
use parallel::disk::DiskFile;
use parallel::residency::{
    Access, ModelPart, Residency, WeightAllocator, WeightSource, WeightSpec, WeightStore, Weights,
};
use tch::{Device, Kind, Tensor};

use super::layout::{ChunkGroup, ChunkLayout, ParamSpec, SearchBounds, ZeroSize, search_chunk_configuration};
use super::manager::{ChunkId, ChunkManager};
use crate::Error;

/// The place of one tensor of a store.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// Its shape.
    pub(crate) shape: Vec<i64>,
    /// Its dtype, the same for all tensors of a chunk.
    pub(crate) kind: Kind,
    /// Whether the matrix `[out, in]` is stored column by column.
    pub(crate) is_column_major: bool,
}

/// One tensor per parameter of a model.
pub(crate) struct ChunkStore {
    manager: Arc<ChunkManager>,
    layout: Arc<ChunkLayout>,
    parts: HashMap<ModelPart, Vec<usize>>,
    /// The id of each chunk. Empty if the chunks stay in memory.
    ids: Vec<ChunkId>,
    scratch: Option<Scratch>,
    tensors: Mutex<Tensors>,
}

/// The arena of a store whose chunks may leave memory.
struct Scratch {
    arena: Arc<Arena>,
    file: Mutex<Option<Arc<DiskFile>>>,
}

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
    /// Reserves the memory of one tensor per place. `layout` has one parameter per place. With `changes`,
    /// values will be written after they were loaded, so the space on the disk is taken at once.
    pub(crate) fn new(
        manager: &Arc<ChunkManager>,
        layout: &Arc<ChunkLayout>,
        places: &[Place],
        device: Device,
        changes: bool,
    ) -> Result<Self, Error> {
        let kinds: Vec<Kind> =
            layout.chunks().iter().map(|chunk| places[chunk.params[0].param].kind).collect();
        let mut params: Vec<Option<[Tensor; 2]>> = places.iter().map(|_| None).collect();
        let (mut chunks, mut ids, mut scratch) = (Vec::new(), Vec::new(), None);

        if device == Device::Cpu {
            let (ranges, bytes) = ranges(layout, &kinds);
            let arena = Arena::reserve(bytes)?;
            for ((chunk, range), &kind) in layout.chunks().iter().zip(&ranges).zip(&kinds) {
                chunks.push(arena.tensor(range.start, &[chunk.numel as i64], &[1], kind)?);
                for slot in &chunk.params {
                    let place = &places[slot.param];
                    let offset = range.start + slot.offset * kind.elt_size_in_bytes();
                    let tensor = || arena.tensor(offset, &place.shape, &place.strides(), kind);
                    params[slot.param] = Some([tensor()?, tensor()?]);
                }
            }
            for range in &ranges {
                arena.prefer_huge_pages(range.clone())?;
            }
            if manager.is_limited() {
                let file = if changes { Some(new_scratch(manager, bytes)?) } else { None };
                ids =
                    ranges.into_iter().map(|range| manager.register(&arena, range, file.as_ref())).collect();
                scratch = Some(Scratch { arena, file: Mutex::new(file) });
            }
        } else {
            for (chunk, &kind) in layout.chunks().iter().zip(&kinds) {
                let flat = Tensor::zeros([chunk.numel as i64], (kind, device));
                for slot in &chunk.params {
                    let place = &places[slot.param];
                    let numel = place.shape.iter().product::<i64>();
                    let view = flat.narrow(0, slot.offset as i64, numel).view(place.shape.as_slice());
                    params[slot.param] = Some([view.detach(), view]);
                }
                chunks.push(flat);
            }
        }

        let loading = layout.chunks().iter().map(|_| Vec::new()).collect();
        let (params, targets) = params
            .into_iter()
            .map(|tensors| tensors.expect("each parameter has a chunk"))
            .map(|[param, target]| (param, target))
            .unzip();
        Ok(Self {
            manager: Arc::clone(manager),
            layout: Arc::clone(layout),
            parts: HashMap::new(),
            ids,
            scratch,
            tensors: Mutex::new(Tensors { params, targets, chunks, loading }),
        })
    }

    /// The tensor of parameter `param`.
    pub(crate) fn param(&self, param: usize) -> Tensor {
        self.lock().params[param].shallow_clone()
    }

    fn target(&self, param: usize) -> Tensor {
        self.lock().targets[param].shallow_clone()
    }

    /// Chunk `chunk` as a flat tensor, with its padding.
    pub(crate) fn chunk(&self, chunk: usize) -> Tensor {
        self.lock().chunks[chunk].shallow_clone()
    }

    /// Brings chunk `chunk` into memory.
    pub(crate) fn fetch_chunk(&self, chunk: usize, access: Access) -> Result<(), Error> {
        match self.ids.get(chunk) {
            Some(&id) => self.manager.fetch(&[id], access == Access::Write),
            None => Ok(()),
        }
    }

    /// Ends a [`fetch_chunk`](Self::fetch_chunk).
    pub(crate) fn release_chunk(&self, chunk: usize) {
        if let Some(&id) = self.ids.get(chunk) {
            self.manager.release(&[id]);
        }
    }

    /// Declares that the values of chunk `chunk` are not needed any more.
    pub(crate) fn discard_chunk(&self, chunk: usize) -> Result<(), Error> {
        match self.ids.get(chunk) {
            Some(&id) => self.manager.discard(&[id]),
            None => Ok(()),
        }
    }

    /// The ids of the chunks that hold `weights`, each once, in order.
    fn ids_of(&self, weights: Weights<'_>) -> Vec<ChunkId> {
        let params = match &weights {
            Weights::Parameter(param) => std::slice::from_ref(param),
            Weights::Parameters(params) => params,
            Weights::Part(part) => self.parts.get(part).map_or(&[][..], Vec::as_slice),
        };
        let mut ids: Vec<ChunkId> =
            params.iter().map(|&param| self.ids[self.layout.slot_of(param).0]).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    fn lock(&self) -> MutexGuard<'_, Tensors> {
        self.tensors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loads a weight. A chunk stays pinned from its first weight to its last, because until then its values
    /// exist nowhere else.
    fn load_param(&self, param: usize, source: WeightSource, keep: bool) -> Result<(), Error> {
        let chunk = self.layout.slot_of(param).0;
        if self.lock().loading[chunk].is_empty() {
            self.fetch_chunk(chunk, Access::Read)?;
        }
        source(&self.target(param))?;

        let sources = {
            let mut tensors = self.lock();
            let loading = &mut tensors.loading[chunk];
            loading.push((param, keep.then_some(source)));
            if loading.len() < self.layout.chunks()[chunk].params.len() {
                return Ok(());
            }
            std::mem::take(loading)
        };
        let Some(&id) = self.ids.get(chunk) else { return Ok(()) };
        let targets: Option<Vec<(Tensor, WeightSource)>> =
            sources.into_iter().map(|(param, source)| Some((self.target(param), source?))).collect();
        if let Some(targets) = targets {
            let fill = move || targets.iter().try_for_each(|(target, source)| source(target));
            self.manager.set_source(id, Box::new(fill));
        } else {
            let file = self.scratch_file()?;
            self.manager.set_changed(id, &file);
        }
        self.release_chunk(chunk);
        Ok(())
    }

    /// The scratch file of this store, which is created at its first use.
    fn scratch_file(&self) -> Result<Arc<DiskFile>, Error> {
        let scratch = self.scratch.as_ref().expect("a store with chunk ids has an arena");
        let mut file = scratch.file.lock().unwrap_or_else(PoisonError::into_inner);
        if file.is_none() {
            *file = Some(new_scratch(&self.manager, scratch.arena.len())?);
        }
        Ok(Arc::clone(file.as_ref().expect("it was just created")))
    }
}

impl Drop for ChunkStore {
    fn drop(&mut self) {
        self.manager.unregister(&self.ids);
    }
}

impl Residency for ChunkStore {
    fn fetch(&self, weights: Weights<'_>, access: Access) -> Result<(), parallel::Error> {
        if self.ids.is_empty() {
            return Ok(());
        }
        let fetched = self.manager.fetch(&self.ids_of(weights), access == Access::Write);
        fetched.map_err(|error| parallel::Error::Residency(Box::new(error)))
    }

    fn release(&self, weights: Weights<'_>) {
        if !self.ids.is_empty() {
            self.manager.release(&self.ids_of(weights));
        }
    }

    fn is_limited(&self) -> bool {
        !self.ids.is_empty()
    }
}

impl WeightStore for ChunkStore {
    fn tensor(&self, index: usize) -> Tensor {
        self.param(index)
    }

    fn load(&self, index: usize, source: WeightSource, keep: bool) -> Result<(), parallel::Error> {
        self.load_param(index, source, keep).map_err(|error| match error {
            Error::Parallel(error) => error,
            error => parallel::Error::Residency(Box::new(error)),
        })
    }
}

/// The memory of the weights of models on one device.
#[derive(Debug)]
pub struct WeightMemory {
    manager: Arc<ChunkManager>,
    device: Device,
}

impl WeightMemory {
    /// Weights on `device`, in chunks of `manager`.
    pub fn new(manager: &Arc<ChunkManager>, device: Device) -> Self {
        Self { manager: Arc::clone(manager), device }
    }
}

impl WeightAllocator for WeightMemory {
    fn is_limited(&self) -> bool {
        self.manager.is_limited() && self.device == Device::Cpu
    }

    fn allocate(
        &self,
        specs: Vec<WeightSpec>,
        parts: Vec<(ModelPart, Vec<usize>)>,
    ) -> Result<Arc<dyn WeightStore>, parallel::Error> {
        let layout = chunk_layout(
            specs.iter().map(|spec| (&spec.parameter, spec.shape.as_slice(), spec.kind, !spec.trainable)),
        );
        let places: Vec<Place> = specs
            .iter()
            .map(|spec| Place {
                shape: spec.shape.clone(),
                kind: spec.kind,
                is_column_major: spec.is_column_major,
            })
            .collect();
        let changes = specs.iter().any(|spec| spec.trainable);
        let store = ChunkStore::new(&self.manager, &Arc::new(layout), &places, self.device, changes);
        let mut store = store.map_err(|error| parallel::Error::Residency(Box::new(error)))?;
        store.parts = parts.into_iter().collect();
        Ok(Arc::new(store))
    }
}

impl Place {
    /// A tensor in the usual memory layout.
    pub(crate) fn row_major(shape: Vec<i64>, kind: Kind) -> Self {
        Self { shape, kind, is_column_major: false }
    }

    /// The strides in elements.
    fn strides(&self) -> Vec<i64> {
        if self.is_column_major {
            return vec![1, self.shape[0]];
        }
        let mut strides = vec![1; self.shape.len()];
        for dim in (1..self.shape.len()).rev() {
            strides[dim - 1] = strides[dim] * self.shape[dim];
        }
        strides
    }
}

/// The layout of parameters, given with the shape of the local shard, the dtype, and whether they are frozen.
pub(crate) fn chunk_layout<'a>(
    parameters: impl Iterator<Item = (&'a Parameter, &'a [i64], Kind, bool)>,
) -> ChunkLayout {
    let specs: Vec<ParamSpec> = parameters
        .map(|(parameter, shape, kind, is_frozen)| ParamSpec {
            numel: shape.iter().product::<i64>() as usize,
            group: ChunkGroup {
                is_expert: parameter.is_expert,
                partial_grad: parameter.partial_grad,
                is_tied: parameter.tied_group.is_some(),
                is_frozen,
                element_bytes: kind.elt_size_in_bytes(),
            },
        })
        .collect();
    let found = search_chunk_configuration(&specs, SearchBounds::for_params(&specs), ZeroSize::ONE);
    ChunkLayout::new(&specs, found.chunk_size, ZeroSize::ONE)
}

/// The byte range of each chunk, which starts at a page, and the length of all of them.
fn ranges(layout: &ChunkLayout, kinds: &[Kind]) -> (Vec<std::ops::Range<usize>>, usize) {
    let mut start = 0;
    let ranges = layout.chunks().iter().zip(kinds).map(|(chunk, kind)| {
        let bytes = (chunk.numel * kind.elt_size_in_bytes()).next_multiple_of(page_bytes());
        start += bytes;
        start - bytes..start
    });
    let ranges: Vec<_> = ranges.collect();
    (ranges, start)
}

fn new_scratch(manager: &ChunkManager, bytes: usize) -> Result<Arc<DiskFile>, Error> {
    let budget = manager.budget().expect("only a limited manager writes chunks");
    Ok(Arc::new(DiskFile::scratch(&budget.disk_path, bytes as u64)?))
}
