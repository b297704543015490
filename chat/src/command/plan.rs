//! `plan`: prints what a stage would do, on this machine or on hardware that a file describes.

use crate::args::{PlanArgs, TrainArgs};
use crate::command::train;
use crate::hardware;
use crate::stage::context::{PlanRequest, RunMode};

/// Prints the plan of one stage, or the fastest layouts for it.
pub(crate) fn run(arguments: &PlanArgs, threads: Option<usize>) -> anyhow::Result<()> {
    let PlanArgs { stage, config, overrides, nproc, search, hardware, json } = arguments;
    let hardware = hardware.as_deref().map(hardware::find).transpose()?;
    let request = PlanRequest { json: *json, search: search.then_some(*nproc), hardware };
    let (config, overrides) = (config.clone(), overrides.clone());
    // One process reads the rows for all layouts.
    let nproc = if *search { 1 } else { *nproc };
    let arguments = TrainArgs { config, overrides, dry_run: true, resume: false, nproc, ui: false };
    train::run_for(RunMode::Plan(&request), stage, &arguments, threads)
}
