//! `sft`, `rm` and `ppo`: one stage from a run file.

use std::sync::Arc;

use parallel::Groups;

use crate::args::TrainArgs;
use crate::command::tell;
use crate::config::{self, ConfigError, Stage};
use crate::display::Display;
use crate::folder::{self, Request, RunFolder};
use crate::interrupt;
use crate::launch::{self, Job, Start};
use crate::stage::{self, Around, Goal};

/// Runs one stage. `threads` is the flag, which wins over the file.
pub(crate) fn run(stage: Stage, arguments: &TrainArgs, threads: Option<usize>) -> anyhow::Result<()> {
    let goal = if arguments.dry_run { Goal::DryRun } else { Goal::Train };
    run_for(goal, stage, arguments, threads)
}

/// Runs one stage for `goal`.
pub(crate) fn run_for(
    goal: Goal,
    stage: Stage,
    arguments: &TrainArgs,
    threads: Option<usize>,
) -> anyhow::Result<()> {
    let loaded = config::load(&arguments.config, &arguments.sets, stage)?;
    let starts_others = launch::starts_others(arguments.nproc)?;
    if starts_others && goal == Goal::Train {
        if arguments.resume && !folder::holds_run(&loaded.config.out)? {
            return Err(ConfigError::NothingToResume(loaded.config.out).into());
        }
        folder::claim(&loaded.config.out, &folder::RUN_NAMES, arguments.resume)?;
        let job = Job::on_this_host(arguments.nproc, &loaded.config.out)?;
        return launch::run(&job, &launch::own_arguments());
    }

    // Below, this process is a rank, or the only one; a plan is made by one process for all of them.
    interrupt::listen()?;
    let settings = loaded.config.to_toml(stage)?;
    let parallel = &loaded.config.parallel;
    let (groups, mesh) = if starts_others {
        (Arc::new(Groups::single()), launch::mesh(parallel, 0, arguments.nproc)?)
    } else {
        let start = Start { command: stage.name(), resume: arguments.resume, settings: &settings };
        let groups = launch::join(threads.or(loaded.config.threads), parallel, &start)?;
        let mesh = groups.mesh().clone();
        (groups, mesh)
    };
    if groups.is_first() {
        loaded.warnings.iter().for_each(|warning| tell(&format!("warning: {warning}")));
    }

    let request = Request {
        out: &loaded.config.out,
        settings: &settings,
        run_file: Some(&arguments.config),
        resume: arguments.resume,
        writes: goal == Goal::Train,
    };
    let folder = match goal {
        Goal::Plan { .. } => RunFolder::planned(&loaded.config.out),
        Goal::Train | Goal::DryRun => RunFolder::prepare(&request, &groups)?,
    };
    if folder.is_finished() {
        if groups.is_first() {
            tell(&format!("this run is finished: {}", loaded.config.out.join("final").display()));
        }
        return Ok(());
    }

    let mut display = Display::new();
    let mut around = Around { groups: &groups, mesh: &mesh, recorder: &mut display, folder: &folder, goal };
    stage::run(stage, &loaded.config, &mut around)?;
    if goal == Goal::Train && groups.is_first() {
        tell(&format!("{}", loaded.config.out.join("final").display()));
    }
    Ok(())
}
