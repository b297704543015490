//! What the models of a stage need in each process, from their configurations alone: before anything is
//! loaded, and for any number of processes.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use gemini::StateBytes;
use models::causal_lm::LoadOptions;
use models::config::Config;
use models::decoder::HeadKind;
use models::decoder::load::weight_specs;
use models::model_parallel::ModelParallel;
use parallel::{Axis, Mesh, ProcessGroups, launch, memory};
use rlhf::config::OldLogprobs;
use serde::Serialize;
use tch::{Device, Kind};

use super::context::{RunMode, StageContext, model_parallel};
use super::fit::{Shortage, Work};
use super::peak_memory::{self, PeakMemory, SequenceLengths};
use super::step_time::{DtypeTime, PlannedRun, StepTime};
use crate::config::RunConfig;
use crate::device;
use crate::failure::Failure;
use crate::machine_speed::{Machine, MachineSpeed};

/// A model of a stage.
#[derive(Clone, Copy)]
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

/// The memory of all models of a stage in the process that needs most, and the time of its steps.
#[derive(Clone, Debug)]
pub(crate) struct StagePlan {
    /// The number of parameters of each model, by role.
    pub(crate) parameters: Vec<(&'static str, usize)>,
    /// Weights, gradients and optimizer state.
    pub(crate) models: Vec<ModelBytes>,
    /// The peak of the process; `None` for models on a GPU, for which there is no prediction.
    pub(crate) peak: Option<PeakMemory>,
    /// The time of a step; `None` if it is not known.
    pub(crate) step_time: Option<StepTime>,
    /// The time of a step with weights in the other dtype; `None` if it is not known.
    pub(crate) other_dtype: Option<DtypeTime>,
    /// The memory that the run lacks, if it lacks any.
    pub(crate) shortage: Option<Shortage>,
}

impl StagePlan {
    /// The bytes of weights, gradients and optimizer state of all models.
    pub(crate) fn model_bytes(&self) -> usize {
        self.models.iter().map(|model| model.bytes.total()).sum()
    }
}

/// Predicts the memory that the models need in the fullest process and the time that a step takes if they run
/// over sequences of these `lengths`, and refuses a run that cannot have the memory. Nothing is refused in
/// mode [`RunMode::Plan`].
pub(super) fn check(
    config: &RunConfig,
    ctx: &StageContext<'_>,
    models: &[PlannedModel<'_>],
    lengths: &SequenceLengths,
) -> anyhow::Result<StagePlan> {
    let mesh = ctx.mesh;
    let state = of_fullest_process(config, mesh, models)?;
    let parameters = models.iter().map(|model| Ok((model.role, num_parameters(model)?)));
    let parameters = parameters.collect::<Result<_, models::Error>>()?;
    if device::resolve(config.model.device, ctx.groups.local_rank())? != Device::Cpu {
        return Ok(StagePlan {
            parameters,
            models: state,
            peak: None,
            step_time: None,
            other_dtype: None,
            shortage: None,
        });
    }

    let machine_bytes = memory::total_bytes().map(|bytes| bytes as usize);
    let shortage = Shortage::find(config, mesh, Work { models, lengths, machine_bytes })?;
    if let Some(shortage) = shortage.as_ref().filter(|shortage| shortage.is_certain)
        && !matches!(ctx.mode, RunMode::Plan { .. })
    {
        return Err(Failure::DoesNotFit(shortage.to_string()).into());
    }
    let run = PlannedRun { config, mesh, models, state: &state, lengths };
    let speed = MachineSpeed::load(&Machine::here(threads(config, ctx)))?;
    let step_time = speed.as_ref().map(|speed| run.step_time(speed));
    let other_dtype = speed.map(|speed| in_other_dtype(run, &speed)).transpose()?;
    let peak = Some(peak_memory::predict(config, mesh, models, &state, lengths));
    Ok(StagePlan { parameters, models: state, peak, step_time, other_dtype, shortage })
}

/// The time of a step of the same run with weights in the other dtype.
fn in_other_dtype(run: PlannedRun<'_>, speed: &MachineSpeed) -> anyhow::Result<DtypeTime> {
    let mut config = run.config.clone();
    config.model.dtype = config.model.dtype.other();
    // In bfloat16 the sampler's log-probabilities are refused.
    config.ppo.old_logprobs = OldLogprobs::Trainer;
    let dtype = config.model.dtype;
    let models: Vec<PlannedModel<'_>> =
        run.models.iter().map(|&model| PlannedModel { kind: dtype.kind(), ..model }).collect();
    let state = of_fullest_process(&config, run.mesh, &models)?;
    let run = PlannedRun { config: &config, models: &models, state: &state, ..run };
    Ok(DtypeTime { dtype, seconds: run.step_time(speed).seconds })
}

/// The threads of an operation in each process of the run.
fn threads(config: &RunConfig, ctx: &StageContext<'_>) -> usize {
    let processes = ctx.mesh.world_size();
    if processes == ctx.groups.world().size() {
        return usize::try_from(tch::get_num_threads()).unwrap_or(1);
    }
    config.threads.unwrap_or((launch::cores() / processes).max(1))
}

/// The memory of the models in the process that needs most.
pub(super) fn of_fullest_process(
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

/// The parameters of a full model.
fn num_parameters(model: &PlannedModel<'_>) -> Result<usize, models::Error> {
    let options = LoadOptions {
        kind: model.kind,
        device: Device::Cpu,
        trainable: model.is_trained,
        model_parallel: ModelParallel::NONE,
        memory: None,
    };
    let specs = weight_specs(model.config, model.head, &options)?;
    Ok(specs.iter().map(|spec| spec.shape.iter().product::<i64>() as usize).sum())
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
