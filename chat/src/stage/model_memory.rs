//! The memory that the models of a stage need in each process, from their configurations alone: before
//! anything is loaded, and for any number of processes.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use gemini::placement::PlacementPolicy;
use gemini::{Error, StateBytes};
use models::causal_lm::LoadOptions;
use models::config::Config;
use models::decoder::{HeadKind, weight_specs};
use parallel::{Axis, Mesh, ProcessGroups, memory};
use serde::Serialize;
use tch::{Device, Kind};

use super::context::{RunMode, StageContext, model_parallel};
use super::peak_memory::{self, PeakMemory, SequenceLengths};
use crate::config::RunConfig;
use crate::device;

/// A model of a stage.
pub(crate) struct PlannedModel<'a> {
    pub(crate) role: &'static str,
    pub(crate) config: &'a Config,
    pub(crate) head: HeadKind,
    pub(crate) kind: Kind,
    pub(crate) is_trained: bool,
}

/// The memory of one model in one process.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ModelBytes {
    /// What the model is for.
    pub(crate) role: &'static str,
    /// Its bytes.
    #[serde(flatten)]
    pub(crate) bytes: StateBytes,
}

/// The memory of all models of a stage in the process that needs most.
#[derive(Clone, Debug)]
pub(crate) struct StageMemory {
    /// Weights, gradients and optimizer state.
    pub(crate) models: Vec<ModelBytes>,
    /// The peak of the process; `None` for models on a GPU, for which there is no prediction.
    pub(crate) peak: Option<PeakMemory>,
}

impl StageMemory {
    /// The bytes of weights, gradients and optimizer state of all models.
    pub(crate) fn model_bytes(&self) -> usize {
        self.models.iter().map(|model| model.bytes.total()).sum()
    }
}

/// Computes the memory that the models need in the fullest process if they run over sequences of these
/// `lengths`, and refuses a run that cannot have it. Nothing is refused in mode [`RunMode::Plan`].
pub(super) fn check(
    config: &RunConfig,
    ctx: &StageContext<'_>,
    models: &[PlannedModel<'_>],
    lengths: &SequenceLengths,
) -> anyhow::Result<StageMemory> {
    let most = of_fullest_process(config, ctx.mesh, models)?;
    let is_on_host = device::resolve(config.model.device, ctx.groups.local_rank())? == Device::Cpu;
    let peak = is_on_host.then(|| peak_memory::predict(config, ctx.mesh, models, &most, lengths));
    if !matches!(ctx.mode, RunMode::Plan { .. }) {
        refuse_too_large(config, is_on_host, &most)?;
    }
    Ok(StageMemory { models: most, peak })
}

/// Refuses models whose weights and states alone are too much.
fn refuse_too_large(config: &RunConfig, is_on_host: bool, most: &[ModelBytes]) -> Result<(), Error> {
    let needed: usize = most.iter().map(|model| model.bytes.total()).sum();
    let optimizer: usize = most.iter().map(|model| model.bytes.optimizer).sum();

    if let Some(budget) = config.gemini.device_memory.map(|size| size.0 as usize) {
        // What these two placements never move has to fit, whatever else the run needs.
        let stays = match config.gemini.placement {
            PlacementPolicy::Cuda => needed,
            PlacementPolicy::Static => needed - optimizer,
            _ => 0,
        };
        if stays > budget {
            return Err(Error::OverBudget { needed: stays, evictable: 0, budget });
        }
    } else if is_on_host
        && let Some(available) = memory::total_bytes().map(|bytes| bytes as usize)
        && needed > available
    {
        return Err(Error::TooLarge { needed, available });
    }
    Ok(())
}

/// The memory of the models in the process that needs most.
fn of_fullest_process(
    config: &RunConfig,
    mesh: &Mesh,
    models: &[PlannedModel<'_>],
) -> anyhow::Result<Vec<ModelBytes>> {
    // Processes that differ along the other axes hold the same parameters.
    const AXES: [Axis; 5] = [Axis::Pipeline, Axis::Expert, Axis::Depth, Axis::Row, Axis::Tensor];
    let mut seen: HashMap<[usize; 5], Vec<ModelBytes>> = HashMap::new();
    for rank in 0..mesh.world_size() {
        let place = mesh.for_rank(rank);
        let key = AXES.map(|axis| place.coordinate(axis));
        if let Entry::Vacant(new) = seen.entry(key) {
            let groups = ProcessGroups::fake(&place);
            let bytes = models.iter().map(|model| bytes_of(config, &groups, model));
            new.insert(bytes.collect::<Result<_, _>>()?);
        }
    }
    let total = |models: &Vec<ModelBytes>| models.iter().map(|model| model.bytes.total()).sum::<usize>();
    Ok(seen.into_values().max_by_key(total).unwrap_or_default())
}

fn bytes_of(
    config: &RunConfig,
    groups: &ProcessGroups,
    model: &PlannedModel<'_>,
) -> Result<ModelBytes, models::Error> {
    let options = LoadOptions {
        kind: model.kind,
        device: Device::Cpu,
        trainable: model.is_trained,
        model_parallel: model_parallel(config, groups),
        memory: None,
    };
    let specs = weight_specs(model.config, model.head, &options)?;
    let (stage, moments) = (config.parallel.zero, config.train.moments_dtype);
    Ok(ModelBytes { role: model.role, bytes: StateBytes::of(&specs, stage, groups, moments) })
}
