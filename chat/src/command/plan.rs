//! `plan`: prints what a stage would do.

use crate::args::{PlanArgs, TrainArgs};
use crate::command::train;
use crate::stage::context::RunMode;

/// Prints the plan of one stage.
pub(crate) fn run(arguments: &PlanArgs, threads: Option<usize>) -> anyhow::Result<()> {
    let PlanArgs { stage, config, overrides, nproc, json } = arguments;
    let (config, overrides) = (config.clone(), overrides.clone());
    let arguments = TrainArgs { config, overrides, dry_run: true, resume: false, nproc: *nproc, ui: false };
    train::run_for(RunMode::Plan { json: *json }, stage, &arguments, threads)
}
