//! The subcommands that train: runs one stage from a run file.

use std::path::Path;
use std::sync::Arc;

use gemini::placement::PlacementPolicy;
use parallel::{LocalRank, Mesh, ProcessGroups};

use crate::args::TrainArgs;
use crate::command::train_ui;
use crate::config::section::ParallelSection;
use crate::config::{self, ConfigError, DeviceSetting, LENGTH_KEYS, RunConfig, StageSchema};
use crate::console::print_stderr;
use crate::display::Display;
use crate::folder::{self, FolderRequest, RunFolder};
use crate::launch::{self, Job, StartupSpec};
use crate::stage::context::{PlanRequest, RunMode, StageContext, chunk_manager};
use crate::stage::{self, Stage};
use crate::{device, interrupt};

/// Runs one stage. `threads` is the command-line flag, which takes precedence over the run file.
pub(crate) fn run(
    stage: &'static Stage,
    arguments: &TrainArgs,
    threads: Option<usize>,
) -> anyhow::Result<()> {
    let mode = if arguments.dry_run { RunMode::DryRun } else { RunMode::Train };
    run_for(mode, stage, arguments, threads)
}

/// Runs one stage in the given mode.
pub(crate) fn run_for(
    mode: RunMode<'_>,
    stage: &'static Stage,
    arguments: &TrainArgs,
    threads: Option<usize>,
) -> anyhow::Result<()> {
    let schema = &stage.schema;
    let sets = arguments.overrides.sets();
    let mut loaded = config::load(&arguments.config, &sets, schema, &stage::schemas())?;
    if let RunMode::Plan(PlanRequest { search: Some(_), .. }) = mode {
        // The search chooses all but how bytes are sent.
        let transport = loaded.config.parallel.transport;
        let chosen = ParallelSection { transport, ..ParallelSection::default() };
        if loaded.config.parallel != chosen {
            print_stderr(
                "warning: --search chooses the keys of [parallel]: those of the run file are not used",
            );
        }
        loaded.config.parallel = chosen;
    }
    if arguments.ui && mode == RunMode::Train {
        return train_ui::run(&loaded.config.out);
    }
    let starts_others = launch::is_launcher(arguments.nproc)?;
    if starts_others && mode == RunMode::Train {
        return start_ranks(arguments, &loaded.config.out);
    }

    // From here on, this process is a rank or the only process. In a dry run or a plan, a single process
    // stands in for all ranks.
    interrupt::listen()?;
    let settings = loaded.config.to_toml(schema)?;
    let last = LocalRank::last_of(arguments.nproc, loaded.config.parallel.transport);
    load_device(mode, starts_others.then_some(last), &mut loaded.config)?;
    let (groups, mesh) = if starts_others {
        // For the predictions.
        loaded.config.threads = threads.or(loaded.config.threads);
        (Arc::new(ProcessGroups::single()), launch::mesh(&loaded.config.parallel, 0, arguments.nproc)?)
    } else {
        let start = StartupSpec { command: schema.name, resume: arguments.resume, settings: &settings };
        let groups = launch::join(threads.or(loaded.config.threads), &loaded.config.parallel, &start)?;
        let mesh = groups.mesh().clone();
        (groups, mesh)
    };
    // A missing device is named before any row is read.
    device::resolve(loaded.config.model.device, groups.local_rank())?;
    if groups.is_rank_zero() {
        loaded.warnings.iter().for_each(|warning| print_stderr(&format!("warning: {warning}")));
    }
    run_as_rank(mode, stage, arguments, &loaded.config, (&groups, &mesh))
}

/// Runs one stage as one rank of a job, which knows its process groups and the mesh of the job.
fn run_as_rank(
    mode: RunMode<'_>,
    stage: &'static Stage,
    arguments: &TrainArgs,
    config: &RunConfig,
    (groups, mesh): (&Arc<ProcessGroups>, &Mesh),
) -> anyhow::Result<()> {
    let schema = &stage.schema;
    let request = FolderRequest {
        stage: schema,
        config,
        run_file: Some(&arguments.config),
        resume: arguments.resume,
        writes: mode == RunMode::Train,
        used_by: Vec::new(),
    };
    let folder = match mode {
        RunMode::Plan(_) => RunFolder::for_plan(&config.out),
        RunMode::Train | RunMode::DryRun => RunFolder::prepare(&request, groups)?,
    };
    if folder.is_finished() {
        if groups.is_rank_zero() {
            report_finished(&config.out, schema);
        }
        return Ok(());
    }

    let mut display = Display::new(schema.units.step);
    let mut ctx = StageContext {
        stage: schema,
        groups,
        memory: chunk_manager(config, groups)?,
        mesh,
        recorder: &mut display,
        folder: &folder,
        mode,
        has_trained: false,
    };
    (stage.run)(config, &mut ctx)?;
    if mode == RunMode::Train && groups.is_rank_zero() {
        print_stderr(&format!("{}", config.out.join("final").display()));
    }
    Ok(())
}

/// Loads what the device of a run needs. A plan is for any machine, and a process that stands in for all
/// processes of this machine up to the `last` one needs no GPU itself: both load the models on the CPU.
fn load_device(
    mode: RunMode<'_>,
    last: Option<LocalRank>,
    config: &mut RunConfig,
) -> Result<(), ConfigError> {
    if matches!(mode, RunMode::Plan(_)) {
        stay_on_cpu(config);
        return Ok(());
    }
    device::load([config.model.device]);
    if let Some(last) = last {
        device::resolve(config.model.device, last)?;
        stay_on_cpu(config);
    }
    Ok(())
}

/// Sets the CPU as the device. What leaves a device goes to the host, and what leaves the CPU to the disk.
fn stay_on_cpu(config: &mut RunConfig) {
    if config.model.device == DeviceSetting::Cpu {
        return;
    }
    config.model.device = DeviceSetting::Cpu;
    config.gemini.host_memory = None;
    if config.gemini.placement == PlacementPolicy::Cpu {
        config.gemini.placement = PlacementPolicy::Disk;
    }
}

/// Starts the ranks of this machine as processes of the same command.
fn start_ranks(arguments: &TrainArgs, out: &Path) -> anyhow::Result<()> {
    folder::lock_for_launcher(out, &folder::RUN)?;
    let job = Job::on_this_host(arguments.nproc, out)?;
    launch::run(&job, &launch::own_arguments())
}

/// Prints the result of a run that has nothing left to do, and the keys that would extend it.
fn report_finished(out: &Path, stage: &StageSchema) {
    let keys: Vec<&str> = LENGTH_KEYS.into_iter().filter(|key| stage.reads(key)).collect();
    print_stderr(&format!(
        "this run is finished: {} (a larger {}, given with --set, extends it)",
        out.join("final").display(),
        keys.join(" or ")
    ));
}
