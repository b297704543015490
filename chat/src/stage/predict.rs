//! The memory and the time that a stage needs in each process, before anything is loaded.

use parallel::{launch, memory};
use planner::Hardware;
use rlhf::config::OldLogprobs;
use tch::Device;

use super::context::{RunMode, StageContext};
use super::fit::{Shortage, Work};
use super::model_memory::{PlannedModel, num_parameters, of_fullest_process};
use super::peak_memory::{self, SequenceLengths};
use super::plan::StagePlan;
use super::step_time::{DtypeTime, PlannedRun};
use crate::config::RunConfig;
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
        return Ok(StagePlan {
            parameters,
            models: state,
            peak: None,
            step_time: None,
            time_problem: None,
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
    let hardware = hardware::load(threads(config, ctx))?;
    let (mut step_time, mut other_dtype, mut time_problem) = (None, None, None);
    if let Some(hardware) = &hardware {
        match run.step_time(hardware) {
            Ok(time) => {
                step_time = Some(time);
                other_dtype = Some(in_other_dtype(run, hardware)?);
            }
            // Such as more processes than the file has links for.
            Err(error) => time_problem = Some(error.downcast::<planner::Error>()?.to_string()),
        }
    }
    let peak = Some(peak_memory::predict(config, mesh, models, &state, lengths));
    Ok(StagePlan { parameters, models: state, peak, step_time, time_problem, other_dtype, shortage })
}

/// The time of a step of the same run with weights in the other dtype.
fn in_other_dtype(run: PlannedRun<'_>, hardware: &Hardware) -> anyhow::Result<DtypeTime> {
    let mut config = run.config.clone();
    config.model.dtype = config.model.dtype.other();
    // In bfloat16 the sampler's log-probabilities are refused.
    config.ppo.old_logprobs = OldLogprobs::Trainer;
    let dtype = config.model.dtype;
    let models: Vec<PlannedModel<'_>> =
        run.models.iter().map(|&model| PlannedModel { kind: dtype.kind(), ..model }).collect();
    let state = of_fullest_process(&config, run.mesh, &models)?;
    let run = PlannedRun { config: &config, models: &models, state: &state, ..run };
    Ok(DtypeTime { dtype, seconds: run.step_time(hardware)?.seconds })
}

/// The threads of an operation in each process of the run.
fn threads(config: &RunConfig, ctx: &StageContext<'_>) -> usize {
    let processes = ctx.mesh.world_size();
    if processes == ctx.groups.world().size() {
        return usize::try_from(tch::get_num_threads()).unwrap_or(1);
    }
    config.threads.unwrap_or((launch::cores() / processes).max(1))
}
