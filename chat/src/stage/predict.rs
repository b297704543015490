//! The memory and the time that a stage needs in each process, before anything is loaded.

use parallel::{launch, memory};
use planner::Hardware;
use rlhf::config::OldLogprobs;
use tch::Device;

use super::context::{PlanRequest, RunMode, StageContext};
use super::fit::Shortage;
use super::lengths::SequenceLengths;
use super::model_memory::{PlannedModel, num_parameters, of_fullest_process};
use super::peak_memory;
use super::plan::StagePlan;
use super::search::{self, Found, SearchScope};
use super::segments::Numbers;
use super::step_time::DtypeTime;
use super::work::{PlannedRun, Work};
use crate::config::{ConfigError, RunConfig, StageSchema};
use crate::device;
use crate::failure::Failure;
use crate::hardware;

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
        return Ok(StagePlan::of(parameters, state));
    }

    let request = match ctx.mode {
        RunMode::Plan(request) => Some(request),
        RunMode::Train | RunMode::DryRun => None,
    };
    let search = request.and_then(|request| request.search);
    let processes = search.map_or(mesh.world_size(), |scope| scope.ranks);
    let other = other_hardware(config, request)?;
    let measured = if other.is_none() { hardware::load(threads(config, ctx, processes))? } else { None };
    let hardware = other.as_ref().or(measured.as_ref());

    let program = hardware.and_then(|hardware| hardware.device.program);
    let program_bytes = program.map_or(peak_memory::PROGRAM_BYTES, |bytes| bytes as usize);
    let machine_bytes = match &other {
        Some(hardware) => Some(hardware.device.memory_of_rank() as usize),
        None => memory::total_bytes().map(|bytes| bytes as usize),
    };
    let numbers = Numbers::new(config, models);
    let work = Work { models, numbers: &numbers, lengths, program_bytes, machine_bytes };

    let shortage = Shortage::find(config, mesh, work)?;
    if let Some(shortage) = shortage.as_ref().filter(|shortage| shortage.is_certain)
        && request.is_none()
    {
        return Err(Failure::DoesNotFit(shortage.to_string()).into());
    }

    let run = PlannedRun { config, mesh, work, state: &state };
    let peak = Some(peak_memory::predict(run)?);
    let search =
        search.map(|scope| search_layouts((ctx.stage, config), work, hardware, scope)).transpose()?;
    let communication = if mesh.world_size() > 1 { run.communication()? } else { Vec::new() };
    let plan =
        StagePlan { peak, shortage, search, communication, ..StagePlan::of(parameters, state.clone()) };
    let wants_trace = request.is_some_and(|request| request.trace);
    match hardware {
        None if wants_trace => Err(unknown_speeds("--trace")),
        None => Ok(plan),
        Some(hardware) => {
            let trace = wants_trace.then(|| run.trace(hardware)).transpose()?;
            with_time(StagePlan { trace, ..plan }, run, hardware)
        }
    }
}

/// The hardware that a plan is made for in place of this machine: the command line names it, or
/// `[parallel] hardware` does.
fn other_hardware(config: &RunConfig, request: Option<&PlanRequest>) -> Result<Option<Hardware>, Failure> {
    let Some(request) = request else { return Ok(None) };
    match &request.hardware {
        Some(hardware) => Ok(Some(hardware.clone())),
        None => config.parallel.hardware.as_deref().map(hardware::find).transpose(),
    }
}

/// The plan with the time of a step, or why it cannot be told.
fn with_time(plan: StagePlan, run: PlannedRun<'_>, hardware: &Hardware) -> anyhow::Result<StagePlan> {
    Ok(match run.step_time(hardware) {
        Ok(time) => {
            let other_dtype = in_other_dtype(run, hardware)?;
            StagePlan { step_time: Some(time), other_dtype, ..plan }
        }
        // Such as more processes than the file has links for.
        Err(error) => {
            StagePlan { time_problem: Some(error.downcast::<planner::Error>()?.to_string()), ..plan }
        }
    })
}

/// Finds the layouts in which a step is fastest.
fn search_layouts(
    stage: (&StageSchema, &RunConfig),
    work: Work<'_>,
    hardware: Option<&Hardware>,
    scope: SearchScope,
) -> anyhow::Result<Found> {
    let hardware = hardware.ok_or_else(|| unknown_speeds("--search"))?;
    // Ranks on this machine share its memory.
    let machine_bytes = Some(hardware.device.memory_of_rank() as usize);
    search::fastest(stage, Work { machine_bytes, ..work }, hardware, scope)
}

/// Nothing is known of this machine's speeds, which a flag needs.
fn unknown_speeds(flag: &str) -> anyhow::Error {
    let problem =
        "the speeds of this machine are not known: run `colossal-chat doctor --bench` once, or name other \
                   hardware with --hardware"
            .to_owned();
    ConfigError::Argument { argument: flag.to_owned(), problem }.into()
}

/// The time of a step of the same run with weights in the other dtype; `None` if the hardware lacks what that
/// takes, such as a place for the chunks of a budget.
fn in_other_dtype(run: PlannedRun<'_>, hardware: &Hardware) -> anyhow::Result<Option<DtypeTime>> {
    let mut config = run.config.clone();
    config.model.dtype = config.model.dtype.other();
    // In bfloat16 the sampler's log-probabilities are refused.
    config.ppo.old_logprobs = OldLogprobs::Trainer;
    let dtype = config.model.dtype;
    let models: Vec<PlannedModel<'_>> =
        run.work.models.iter().map(|&model| PlannedModel { kind: dtype.kind(), ..model }).collect();
    let state = of_fullest_process(&config, run.mesh, &models)?;
    let numbers = Numbers::new(&config, &models);
    let work = Work { models: &models, numbers: &numbers, ..run.work };
    let run = PlannedRun { config: &config, work, state: &state, ..run };
    match run.step_time(hardware) {
        Ok(time) => Ok(Some(DtypeTime { dtype, seconds: time.seconds })),
        Err(error) if error.is::<planner::Error>() => Ok(None),
        Err(error) => Err(error),
    }
}

/// The threads of an operation in each of the `processes` of the run.
fn threads(config: &RunConfig, ctx: &StageContext<'_>, processes: usize) -> usize {
    if processes == ctx.groups.world().size() {
        return usize::try_from(tch::get_num_threads()).unwrap_or(1);
    }
    config.threads.unwrap_or((launch::cores() / processes).max(1))
}
