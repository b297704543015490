//! `sft`, `rm` and `ppo`: runs one stage from a run file.

use std::sync::Arc;

use parallel::ProcessGroups;

use crate::args::TrainArgs;
use crate::config::{self, ConfigError, Stage};
use crate::console::print_stderr;
use crate::display::Display;
use crate::folder::{self, FolderRequest, RunFolder};
use crate::launch::{self, Job, StartupSpec};
use crate::stage;
use crate::stage::context::{RunMode, StageContext};
use crate::{device, interrupt};

/// Runs one stage. `threads` is the command-line flag, which takes precedence over the run file.
pub(crate) fn run(stage: Stage, arguments: &TrainArgs, threads: Option<usize>) -> anyhow::Result<()> {
    let mode = if arguments.dry_run { RunMode::DryRun } else { RunMode::Train };
    run_for(mode, stage, arguments, threads)
}

/// Runs one stage in the given mode.
pub(crate) fn run_for(
    mode: RunMode,
    stage: Stage,
    arguments: &TrainArgs,
    threads: Option<usize>,
) -> anyhow::Result<()> {
    let loaded = config::load(&arguments.config, &arguments.overrides.sets(), stage)?;
    let starts_others = launch::is_launcher(arguments.nproc)?;
    if starts_others && mode == RunMode::Train {
        if arguments.resume && !folder::holds_run(&loaded.config.out)? {
            return Err(ConfigError::NothingToResume(loaded.config.out).into());
        }
        folder::lock_for_launcher(&loaded.config.out, &folder::RUN_NAMES, arguments.resume)?;
        let job = Job::on_this_host(arguments.nproc, &loaded.config.out)?;
        return launch::run(&job, &launch::own_arguments());
    }

    // From here on, this process is a rank or the only process. In a dry run or a plan, a single process
    // stands in for all ranks.
    interrupt::listen()?;
    device::load([loaded.config.model.device]);
    let settings = loaded.config.to_toml(stage)?;
    let parallel = &loaded.config.parallel;
    let (groups, mesh) = if starts_others {
        (Arc::new(ProcessGroups::single()), launch::mesh(parallel, 0, arguments.nproc)?)
    } else {
        let start = StartupSpec { command: stage.name(), resume: arguments.resume, settings: &settings };
        let groups = launch::join(threads.or(loaded.config.threads), parallel, &start)?;
        let mesh = groups.mesh().clone();
        (groups, mesh)
    };
    if groups.is_rank_zero() {
        loaded.warnings.iter().for_each(|warning| print_stderr(&format!("warning: {warning}")));
    }

    let request = FolderRequest {
        stage,
        config: &loaded.config,
        run_file: Some(&arguments.config),
        resume: arguments.resume,
        writes: mode == RunMode::Train,
    };
    let folder = match mode {
        RunMode::Plan { .. } => RunFolder::for_plan(&loaded.config.out),
        RunMode::Train | RunMode::DryRun => RunFolder::prepare(&request, &groups)?,
    };
    if folder.is_finished() {
        if groups.is_rank_zero() {
            print_stderr(&format!(
                "this run is finished: {} (a larger {}, given with --set, extends it)",
                loaded.config.out.join("final").display(),
                if stage == Stage::Ppo { "ppo.iterations" } else { "train.steps or train.epochs" }
            ));
        }
        return Ok(());
    }

    let mut display = Display::new();
    let mut ctx =
        StageContext { groups: &groups, mesh: &mesh, recorder: &mut display, folder: &folder, mode };
    stage::run(stage, &loaded.config, &mut ctx)?;
    if mode == RunMode::Train && groups.is_rank_zero() {
        print_stderr(&format!("{}", loaded.config.out.join("final").display()));
    }
    Ok(())
}
