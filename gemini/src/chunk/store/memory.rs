//! Where the weights of models get their memory, and the layout of their chunks.

use std::sync::Arc;

use parallel::residency::{ModelPart, WeightAllocator, WeightSpec, WeightStore};
use parallel::{Parameter, ProcessGroups};
use tch::{Device, Kind};

use super::{ChunkStore, Content, Place};
use crate::Error;
use crate::chunk::layout::{
    ChunkGroup, ChunkLayout, ChunkSizes, ParamSpec, SearchBounds, ZeroSize, search_chunk_configuration,
};
use crate::chunk::manager::ChunkManager;
use crate::error::residency_error;
use crate::zero::{Kept, Sharding, ZeroStage};

/// The memory of the weights of models on one device.
#[derive(Clone, Debug)]
pub struct WeightMemory {
    manager: Arc<ChunkManager>,
    device: Device,
    groups: Arc<ProcessGroups>,
    /// Whether weights are divided over the data-parallel ranks as the ZeRO stage says.
    is_sharded: bool,
}

impl WeightMemory {
    /// Weights on `device`, in chunks of `manager`, which the data-parallel ranks of `groups` share.
    pub fn new(manager: &Arc<ChunkManager>, device: Device, groups: &Arc<ProcessGroups>) -> Self {
        Self { manager: Arc::clone(manager), device, groups: Arc::clone(groups), is_sharded: true }
    }

    /// The memory of weights on `device`: chunks of `manager` on the processor, and on another device if the
    /// manager has a budget to keep. A device without a budget has libtorch's own allocator, which is `None`.
    ///
    /// On the processor chunks pay even without a budget, because they ask the system for huge pages: each
    /// pass over the weights reads all of them once, and looks up fewer pages.
    pub fn for_device(
        manager: &Arc<ChunkManager>,
        device: Device,
        groups: &Arc<ProcessGroups>,
    ) -> Option<Arc<dyn WeightAllocator>> {
        let has_chunks = device == Device::Cpu || manager.is_limited();
        has_chunks.then(|| Arc::new(Self::new(manager, device, groups)) as Arc<dyn WeightAllocator>)
    }

    /// How a store of these weights is divided over the ranks.
    fn sharding(&self, is_trained: bool) -> Result<Option<Sharding>, Error> {
        match self.manager.zero_stage() {
            _ if !self.is_sharded => Ok(None),
            ZeroStage::Weights => Sharding::new(&self.groups, Kept::OwnShard),
            ZeroStage::OptimizerState | ZeroStage::Gradients if is_trained => {
                Sharding::new(&self.groups, Kept::Whole)
            }
            _ => Ok(None),
        }
    }

    fn new_store(&self, specs: &[WeightSpec]) -> Result<ChunkStore, Error> {
        let is_trained = specs.iter().any(|spec| spec.trainable);
        let sharding = self.sharding(is_trained)?;
        let alignment = self.manager.shard_alignment();
        let zero_size = sharding.as_ref().map_or(ZeroSize::ONE, |sharding| sharding.zero_size(alignment));
        let described =
            specs.iter().map(|spec| (&spec.parameter, spec.shape.as_slice(), spec.kind, !spec.trainable));
        // Weights that are neither reduced nor gathered concern no other rank: replicas of a model may make
        // different numbers of copies to decode with.
        let agreeing = (is_trained || sharding.is_some()).then_some(&*self.groups);
        let layout = Arc::new(chunk_layout(described, zero_size, agreeing)?);
        let place = |spec: &WeightSpec| Place { shape: spec.shape.clone(), kind: spec.kind };
        let places: Vec<Place> = specs.iter().map(place).collect();
        ChunkStore::new(&self.manager, &layout, sharding, &places, self.device, Content::Weights)
    }
}

impl WeightAllocator for WeightMemory {
    fn is_limited(&self) -> bool {
        self.manager.is_limited()
    }

    fn num_shards(&self) -> usize {
        let is_sharded = self.is_sharded && self.manager.zero_stage() == ZeroStage::Weights;
        if is_sharded { self.groups.dense_data_parallel().size() } else { 1 }
    }

    fn unsharded(&self) -> Arc<dyn WeightAllocator> {
        Arc::new(Self { is_sharded: false, ..self.clone() })
    }

    fn allocate(
        &self,
        specs: Vec<WeightSpec>,
        parts: Vec<(ModelPart, Vec<usize>)>,
    ) -> Result<Arc<dyn WeightStore>, parallel::Error> {
        let mut store = self.new_store(&specs).map_err(residency_error)?;
        store.parts = parts.into_iter().collect();
        Ok(Arc::new(store))
    }
}

/// The layout of parameters, given with the shape of the local shard, the dtype, and whether they are frozen.
///
/// The chunks of dense weights are the same on all ranks that reduce or gather them together. The chunks of
/// replicated weights that are trained are the same on all tensor-parallel ranks, although these ranks may
/// hold different numbers of experts and shards of different lengths. They therefore agree on a chunk size,
/// and call this function together. Without `groups`, this rank decides alone.
pub(crate) fn chunk_layout<'a>(
    parameters: impl Iterator<Item = (&'a Parameter, &'a [i64], Kind, bool)>,
    zero_size: ZeroSize,
    groups: Option<&ProcessGroups>,
) -> Result<ChunkLayout, Error> {
    let specs: Vec<ParamSpec> = parameters
        .map(|(parameter, shape, kind, is_frozen)| ParamSpec {
            numel: shape.iter().product::<i64>() as usize,
            group: ChunkGroup {
                is_expert: parameter.is_expert,
                is_replicated: !parameter.placement.is_shard(),
                is_tied: parameter.tied_group.is_some(),
                is_frozen,
                kind,
            },
        })
        .collect();

    let mut chunk_sizes = [false, true].map(|is_frozen| {
        let specs: Vec<ParamSpec> =
            specs.iter().filter(|spec| spec.group.is_frozen == is_frozen).copied().collect();
        search_chunk_configuration(&specs, SearchBounds::for_params(&specs), zero_size).chunk_size as f64
    });
    if let Some(groups) = groups {
        for group in [groups.tensor_parallel(), groups.dense_data_parallel()] {
            chunk_sizes = group.all_reduce_max(chunk_sizes)?;
        }
    }
    let [trained, frozen] = chunk_sizes.map(|size| size as usize);
    Ok(ChunkLayout::new(&specs, ChunkSizes { trained, frozen }, zero_size))
}
