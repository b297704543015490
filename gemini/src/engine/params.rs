//! The state of the trained parameters of an [`Engine`](super::Engine): gradients, masters and moments, in
//! chunks.

use std::ops::Range;
use std::sync::Arc;

use parallel::elements::ElementNumbers;
use parallel::residency::{Access, HeldWeights, Residency, WeightStore, Weights};
use parallel::safetensors_file::NamedTensor;
use parallel::{Parameter, Placement, ProcessGroups, fnv1a};
use tch::{Device, Kind, Tensor, no_grad};

use crate::chunk::layout::{ChunkLayout, ZeroSize};
use crate::chunk::manager::ChunkManager;
use crate::chunk::store::memory::chunk_layout;
use crate::chunk::store::{ChunkStore, Content, Place};
use crate::optimizer::{AdamwParam, Moments};
use crate::replicas::{self, digest};
use crate::zero::{Kept, Sharding};
use crate::{Error, ZeroStage};

/// A trained parameter with its fp32 master weight, its moments and its gradient.
/// Megatron: `main_param`.
pub(super) struct ParamState {
    pub(super) parameter: Parameter,
    /// Its index among the parameters of the model.
    pub(super) index: usize,
    /// The fp32 sum of the gradients of the step. Megatron: `main_grad`.
    pub(super) grad: Tensor,
    /// Whether `grad` has a value in this step.
    pub(super) has_grad: bool,
    /// What this rank updates: the whole parameter, or with ZeRO a flat piece of it, which may be empty.
    pub(super) own: AdamwParam,
}

impl ParamState {
    /// Whether a checkpoint has the tensor `kind` of this parameter. An fp32 weight is its own master.
    pub(super) fn has_saved(&self, kind: &str) -> bool {
        kind != "master" || self.parameter.tensor.kind() != Kind::Float
    }
}

/// The chunks of the trained parameters. All stores have the same layout.
pub(super) struct Stores {
    pub(super) layout: Arc<ChunkLayout>,
    pub(super) manager: Arc<ChunkManager>,
    /// The weights; `None` if each of them was allocated on its own.
    pub(super) weights: Option<Arc<dyn WeightStore>>,
    /// The indices among the parameters of the model, of the parameters of each chunk.
    pub(super) indices: Vec<Vec<usize>>,
    /// `None` if all weights are fp32.
    pub(super) masters: Option<Arc<ChunkStore>>,
    pub(super) exp_avgs: Arc<ChunkStore>,
    pub(super) exp_avg_sqs: Arc<ChunkStore>,
    pub(super) grads: Arc<ChunkStore>,
}

impl Stores {
    /// Reserves the state of `trained` parameters, given with their indices in the model.
    pub(super) fn new(
        trained: &[(usize, &Parameter)],
        weights: Option<Arc<dyn WeightStore>>,
        groups: &ProcessGroups,
        manager: &Arc<ChunkManager>,
        moments_kind: Kind,
    ) -> Result<Self, Error> {
        let shapes: Vec<Vec<i64>> = trained.iter().map(|(_, parameter)| parameter.tensor.size()).collect();
        let sharding = |kept: Kept| match manager.zero_stage() {
            ZeroStage::None => Ok(None),
            _ => Sharding::new(groups, kept),
        };
        let shards = sharding(Kept::OwnShard)?;
        let layout = Arc::new(chunk_layout(
            trained.iter().zip(&shapes).map(|((_, parameter), shape)| {
                (*parameter, shape.as_slice(), parameter.tensor.kind(), false)
            }),
            shards.as_ref().map_or(ZeroSize::ONE, |shards| shards.zero_size(manager.shard_alignment())),
            Some(groups),
        )?);

        let device = trained.first().map_or(Device::Cpu, |(_, parameter)| parameter.tensor.device());
        if device != Device::Cpu && moments_kind != Kind::Float {
            let (key, value) = ("moments_dtype", "bfloat16".to_owned());
            return Err(Error::Setting { key, value, wanted: "moments on a GPU are float32" });
        }

        let store = |kind: Kind, content: Content, sharding: &Option<Sharding>| {
            let places: Vec<Place> =
                shapes.iter().map(|shape| Place { shape: shape.clone(), kind }).collect();
            let store = ChunkStore::new(manager, &layout, sharding.clone(), &places, device, content);
            Ok::<_, Error>(Arc::new(store?))
        };
        let state = Content::OptimizerState;
        let keeps_all_grads = manager.zero_stage() < ZeroStage::Gradients;
        let grads = sharding(if keeps_all_grads { Kept::Whole } else { Kept::UntilReduced })?;
        let has_masters = trained.iter().any(|(_, parameter)| parameter.tensor.kind() != Kind::Float);
        let stores = Self {
            masters: if has_masters { Some(store(Kind::Float, state, &shards)?) } else { None },
            exp_avgs: store(moments_kind, state, &shards)?,
            exp_avg_sqs: store(moments_kind, state, &shards)?,
            grads: store(Kind::Float, Content::Gradients, &grads)?,
            manager: Arc::clone(manager),
            indices: layout
                .chunks()
                .iter()
                .map(|chunk| chunk.params.iter().map(|slot| trained[slot.param].0).collect())
                .collect(),
            weights,
            layout,
        };
        stores.check_weight_shards(trained)?;
        Ok(stores)
    }

    /// Checks that the weights are divided over the ranks as their gradients are.
    fn check_weight_shards(&self, trained: &[(usize, &Parameter)]) -> Result<(), Error> {
        for (param, (index, parameter)) in trained.iter().enumerate() {
            let own = self.grads.own_elements_of(param);
            let all = 0..parameter.tensor.numel();
            let of_weight = self.weights.as_ref().map_or(all, |weights| weights.own_elements(*index));
            if own != of_weight {
                return Err(Error::Unsharded { name: parameter.name.clone() });
            }
        }
        Ok(())
    }

    pub(super) fn weight_residency(&self) -> Option<&dyn Residency> {
        self.weights.as_deref().map(|store| -> &dyn Residency { store })
    }

    /// The hashes of the masters and moments of `states`, of which a rank has all elements or its own.
    pub(super) fn copies<'a>(&self, states: &'a [ParamState]) -> Result<Vec<replicas::Copy<'a>>, Error> {
        let mut copies = Vec::new();
        for (kind, store) in self.saved() {
            for (param, state) in states.iter().enumerate().filter(|(_, state)| state.has_saved(kind)) {
                let chunk = self.layout.slot_of(param).0;
                let _held = HeldShards::fetch([(store, Access::Read)], chunk)?;
                let own = own_piece(store.param(param).detach(), &store.own_elements_of(param));
                copies.push(replicas::Copy {
                    state: Some(kind),
                    parameter: &state.parameter,
                    digest: digest(&own),
                    is_on_data_ranks: self.manager.zero_stage() == ZeroStage::None,
                });
            }
        }
        Ok(copies)
    }

    /// The stores of a checkpoint, by the name that their tensors have in it.
    pub(super) fn saved(&self) -> impl Iterator<Item = (&'static str, &ChunkStore)> {
        let masters = self.masters.iter().map(|store| ("master", &**store));
        [("exp_avg", &*self.exp_avgs), ("exp_avg_sq", &*self.exp_avg_sqs)].into_iter().chain(masters)
    }
}

/// This rank's shard of a chunk of each of some stores, which stays in memory until this value is dropped.
pub(super) struct HeldShards<'a> {
    stores: Vec<&'a ChunkStore>,
    chunk: usize,
}

impl<'a> HeldShards<'a> {
    pub(super) fn fetch(
        stores: impl IntoIterator<Item = (&'a ChunkStore, Access)>,
        chunk: usize,
    ) -> Result<Self, Error> {
        let mut held = Self { stores: Vec::new(), chunk };
        for (store, access) in stores {
            store.fetch_shard(chunk, access)?;
            held.stores.push(store);
        }
        Ok(held)
    }
}

impl Drop for HeldShards<'_> {
    fn drop(&mut self) {
        self.stores.iter().for_each(|store| store.release_shard(self.chunk));
    }
}

/// Adds a gradient of parameter `param`.
pub(super) fn add_grad(
    state: &mut ParamState,
    param: usize,
    stores: &Stores,
    grad: &Tensor,
) -> Result<(), Error> {
    let _grads = HeldChunk::fetch(&stores.grads, stores.layout.slot_of(param).0)?;
    no_grad(|| {
        if std::mem::replace(&mut state.has_grad, true) {
            let _ = state.grad.g_add_(grad);
        } else {
            state.grad.copy_(grad);
        }
    });
    Ok(())
}

/// Sets the gradients of a chunk to zero that this rank has not computed. Other ranks may have them: those of
/// an expert that has got no tokens here, for example.
pub(super) fn add_missing_grads(
    states: &mut [ParamState],
    stores: &Stores,
    chunk: usize,
) -> Result<(), Error> {
    let _grads = HeldChunk::fetch(&stores.grads, chunk)?;
    for slot in &stores.layout.chunks()[chunk].params {
        let state = &mut states[slot.param];
        if !std::mem::replace(&mut state.has_grad, true) {
            let _ = state.grad.zero_();
        }
    }
    Ok(())
}

/// A chunk of gradients that stays in memory until this value is dropped, while a gradient is added.
struct HeldChunk<'a> {
    grads: &'a ChunkStore,
    chunk: usize,
}

impl<'a> HeldChunk<'a> {
    fn fetch(grads: &'a ChunkStore, chunk: usize) -> Result<Self, Error> {
        grads.fetch_chunk(chunk, Access::Write)?;
        Ok(Self { grads, chunk })
    }
}

impl Drop for HeldChunk<'_> {
    fn drop(&mut self) {
        self.grads.release_chunk(self.chunk);
    }
}

/// The states of the trained parameters, given with their indices in the model. Master weights get their
/// values here.
pub(super) fn param_states(
    trained: &[(usize, &Parameter)],
    stores: &Stores,
) -> Result<Vec<ParamState>, Error> {
    let residency = stores.weight_residency();
    let mut states = Vec::with_capacity(trained.len());
    for (param, &(index, parameter)) in trained.iter().enumerate() {
        let own = stores.grads.own_elements_of(param);
        let piece = |tensor: Tensor| own_piece(tensor.detach(), &own);
        let own_weight = piece(parameter.tensor.shallow_clone());
        let masters = stores.masters.as_ref().filter(|_| own_weight.kind() != Kind::Float);
        let master = match masters {
            None => own_weight.shallow_clone(),
            Some(masters) => {
                let _weight = HeldWeights::fetch(residency, Weights::Parameter(index), Access::ReadOwn)?;
                let chunk = stores.layout.slot_of(param).0;
                let _master = HeldShards::fetch([(&**masters, Access::Write)], chunk)?;
                let mut master = piece(masters.param(param));
                no_grad(|| master.copy_(&own_weight));
                master
            }
        };
        states.push(ParamState {
            parameter: parameter.clone(),
            index,
            grad: stores.grads.param(param),
            has_grad: false,
            own: AdamwParam {
                weight: masters.map(|_| own_weight),
                master,
                moments: Moments {
                    exp_avg: piece(stores.exp_avgs.param(param)),
                    exp_avg_sq: piece(stores.exp_avg_sqs.param(param)),
                },
                grad: piece(stores.grads.param(param)),
                weight_decay: parameter.weight_decay,
                seed: fnv1a(&parameter.name),
                elements: element_numbers(parameter).skip(own.start as u64),
            },
        });
    }
    Ok(states)
}

/// The numbers of the elements of this rank's shard in the full parameter.
fn element_numbers(parameter: &Parameter) -> ElementNumbers {
    let placement = &parameter.placement;
    placement.element_numbers(&placement.global_shape(&parameter.tensor.size()))
}

/// Some elements of a contiguous tensor: the tensor itself if they are all, otherwise a flat view.
fn own_piece(tensor: Tensor, own: &Range<usize>) -> Tensor {
    if own.len() == tensor.numel() {
        return tensor;
    }
    tensor.view([-1]).narrow(0, own.start as i64, own.len() as i64)
}

/// One tensor of the optimizer's state.
pub(crate) struct StateTensor<'a> {
    pub(crate) name: String,
    /// This rank's shard, whose values are in memory while it is held.
    pub(crate) tensor: Tensor,
    pub(crate) placement: &'a Placement,
    pub(super) is_expert: bool,
    /// Whether this rank owns the parameter. In a pipeline-expert group, exactly one rank owns each.
    pub(crate) owns_parameter: bool,
    /// The store that holds the tensor, and its index there.
    pub(super) residency: (&'a ChunkStore, usize),
}

impl StateTensor<'_> {
    /// The tensor as an entry of a safetensors file.
    pub(crate) fn named(&self) -> NamedTensor<'_> {
        let (store, param) = self.residency;
        NamedTensor {
            name: &self.name,
            tensor: &self.tensor,
            placement: self.placement,
            is_expert: self.is_expert,
            residency: Some((store, param)),
        }
    }

    /// Sets the values.
    pub(crate) fn set(&self, values: &Tensor) -> Result<(), Error> {
        let (store, param) = self.residency;
        store.set_param(param, values)
    }
}
