//! `plan`: prints what a stage would do, on this machine or on hardware that a file describes.

use std::ffi::OsStr;
use std::path::Path;

use anyhow::Context;
use planner::trace;

use crate::args::{PlanArgs, TrainArgs};
use crate::command::train;
use crate::config::ConfigError;
use crate::console::print_stderr;
use crate::hardware;
use crate::output::{check_named_file, write_atomically};
use crate::stage::context::{PlanRequest, RunMode};
use crate::stage::plan::Plan;
use crate::stage::quantities;
use crate::stage::search::SearchScope;

/// Prints the plan of one stage, or the fastest layouts for it.
pub(crate) fn run(arguments: &PlanArgs, threads: Option<usize>) -> anyhow::Result<()> {
    let PlanArgs { stage, config, overrides, nproc, search, hardware, trace, force, json } = arguments;
    let trace = trace.as_deref().map(|path| TraceFile::check(path, *force)).transpose()?;
    let hardware = hardware.as_deref().map(hardware::find).transpose()?;
    let search = search.then_some(SearchScope { ranks: *nproc, keeps_micro_batch: false });
    // One process reads the rows for all layouts.
    let nproc = if search.is_some() { 1 } else { *nproc };
    let request = PlanRequest { search, hardware, trace: trace.is_some() };
    let (config, overrides) = (config.clone(), overrides.clone());
    let arguments = TrainArgs { config, overrides, dry_run: true, resume: false, nproc, ui: false };
    let planned = train::run_for(RunMode::Plan(&request), stage, &arguments, threads);
    let Some(plan) = planned.map_err(name_hardware)? else { return Ok(()) };
    plan.print(*json)?;
    trace.map_or(Ok(()), |file| file.write(&plan))
}

/// Names the flag whose hardware lacks something for the plan, such as links for as many ranks.
fn name_hardware(error: anyhow::Error) -> anyhow::Error {
    match error.downcast::<planner::Error>() {
        Ok(error) => {
            ConfigError::Argument { argument: "--hardware".to_owned(), problem: error.to_string() }.into()
        }
        Err(error) => error,
    }
}

/// The file of `--trace`.
struct TraceFile<'a> {
    path: &'a Path,
    is_drawing: bool,
}

impl<'a> TraceFile<'a> {
    /// Refuses a file of another kind, and one that exists.
    fn check(path: &'a Path, force: bool) -> Result<Self, ConfigError> {
        let is_drawing = match path.extension().and_then(OsStr::to_str) {
            Some("json") => false,
            Some("svg") => true,
            _ => {
                let argument = format!("--trace {}", path.display());
                let problem =
                    "name a file that ends with .json (a trace of Chrome) or .svg (a drawing)".to_owned();
                return Err(ConfigError::Argument { argument, problem });
            }
        };
        check_named_file("--trace", path, force, &[])?;
        Ok(Self { path, is_drawing })
    }

    fn write(&self, plan: &Plan) -> anyhow::Result<()> {
        let found = plan.trace.as_ref().context("a plan with a trace has a step")?;
        let seconds = quantities::in_seconds(found.seconds);
        let title = format!("{}: a step of {seconds} on {}", plan.stage, plan.mesh);
        let text = if self.is_drawing { trace::svg(&[(title, found.clone())]) } else { found.chrome() };
        write_atomically(self.path, text.as_bytes())?;
        print_stderr(&self.path.display().to_string());
        Ok(())
    }
}
