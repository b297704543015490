//! The subcommands that train: runs one stage from a run file.

use std::path::Path;
use std::sync::Arc;

use parallel::{LocalRank, Mesh, ProcessGroups};

use crate::args::TrainArgs;
use crate::command::auto_layout::OpenRun;
use crate::command::train_ui;
use crate::config::{self, ConfigError, DeviceSetting, LENGTH_KEYS, Loaded, RunConfig, StageSchema};
use crate::console::print_stderr;
use crate::display::Display;
use crate::folder::{self, FolderRequest, RunFolder};
use crate::launch::{self, Job, StartupSpec};
use crate::stage::context::{PlanRequest, RunMode, StageContext, chunk_manager};
use crate::stage::plan::Plan;
use crate::stage::{self, Stage};
use crate::{device, interrupt};

/// Runs one stage. `threads` is the command-line flag, which takes precedence over the run file.
pub(crate) fn run(
    stage: &'static Stage,
    arguments: &TrainArgs,
    threads: Option<usize>,
) -> anyhow::Result<()> {
    let mode = if arguments.dry_run { RunMode::DryRun } else { RunMode::Train };
    run_for(mode, stage, arguments, threads).map(drop)
}

/// Runs one stage in the given mode. Returns its plan on rank 0 in mode [`RunMode::Plan`].
pub(crate) fn run_for(
    mode: RunMode<'_>,
    stage: &'static Stage,
    arguments: &TrainArgs,
    threads: Option<usize>,
) -> anyhow::Result<Option<Plan>> {
    let mut loaded = load(mode, stage, arguments)?;
    let config = &mut loaded.config;
    if arguments.ui && mode == RunMode::Train {
        return train_ui::run(&config.out).map(|()| None);
    }
    let starts_others = launch::is_launcher(arguments.nproc)?;
    if starts_others && mode == RunMode::Train {
        return start_ranks(arguments, &config.out).map(|()| None);
    }

    // From here on, this process is a rank or the only process. In a dry run or a plan, a single process
    // stands in for all ranks.
    interrupt::listen()?;
    let start = Start { stage, arguments, threads: threads.or(config.threads), device: config.model.device };
    let (groups, mesh) =
        if starts_others { start.stand_in(mode, config)? } else { start.join(mode, config)? };
    // A missing device is named before any row is read.
    device::resolve(config.model.device, groups.local_rank())?;
    if groups.is_rank_zero() {
        loaded.warnings.iter().for_each(|warning| print_stderr(&format!("warning: {warning}")));
    }
    if let RunMode::Plan(request) = mode {
        let plan = stage.plan(request, &loaded.config, (&groups, &mesh))?;
        return Ok(groups.is_rank_zero().then_some(plan));
    }
    run_as_rank(mode, stage, arguments, &loaded.config, (&groups, &mesh)).map(|()| None)
}

/// Reads the configuration of a run.
fn load(
    mode: RunMode<'_>,
    stage: &'static Stage,
    arguments: &TrainArgs,
) -> Result<Loaded<RunConfig>, ConfigError> {
    let sets = arguments.overrides.sets();
    let mut loaded = config::load(&arguments.config, &sets, &stage.schema, &stage::schemas())?;
    let parallel = &mut loaded.config.parallel;
    if let RunMode::Plan(PlanRequest { search: Some(_), .. }) = mode {
        // The search chooses all but how bytes are sent.
        if *parallel != parallel.undivided() {
            print_stderr(
                "warning: --search chooses the keys of [parallel]: those of the run file are not used",
            );
        }
        *parallel = parallel.open();
    }
    Ok(loaded)
}

/// What a process needs to find its place in a job.
struct Start<'a> {
    stage: &'static Stage,
    arguments: &'a TrainArgs,
    /// The threads of an operation, if they are given.
    threads: Option<usize>,
    /// The device that the run file names.
    device: DeviceSetting,
}

impl Start<'_> {
    /// Prepares this process to stand in for all ranks of the job. Returns its own process groups, and the
    /// mesh of the job.
    fn stand_in(
        &self,
        mode: RunMode<'_>,
        config: &mut RunConfig,
    ) -> anyhow::Result<(Arc<ProcessGroups>, Mesh)> {
        let ranks = self.arguments.nproc;
        let last = LocalRank::last_of(ranks, config.parallel.transport);
        load_device(mode, Some(last), config)?;
        if config.parallel.auto {
            let layout = self.open_run(mode, config, ranks, ranks).choose()?;
            config.set_layout(layout, &self.stage.schema)?;
        }
        // For the predictions.
        config.threads = self.threads;
        Ok((Arc::new(ProcessGroups::single()), launch::mesh(&config.parallel, 0, ranks)?))
    }

    /// Joins the job as one of its ranks. Returns the process groups and the mesh of the job.
    fn join(&self, mode: RunMode<'_>, config: &mut RunConfig) -> anyhow::Result<(Arc<ProcessGroups>, Mesh)> {
        let schema = &self.stage.schema;
        let settings = config.to_toml(schema)?;
        load_device(mode, None, config)?;
        let start = StartupSpec { command: schema.name, resume: self.arguments.resume, settings: &settings };
        let world = launch::join_world(self.threads, config.parallel.transport, &start)?;
        if config.parallel.auto {
            let open = self.open_run(mode, config, world.size(), world.ranks_sharing_cores());
            let layout = open.choose_for(&world)?;
            config.set_layout(layout, schema)?;
        }
        let groups = launch::groups(&world, &config.parallel)?;
        let mesh = groups.mesh().clone();
        Ok((groups, mesh))
    }

    /// The run of which `[parallel] auto` chooses the layout. `local_ranks` is the number of ranks that share
    /// the cores of this machine.
    fn open_run<'b>(
        &self,
        mode: RunMode<'b>,
        config: &'b RunConfig,
        ranks: usize,
        local_ranks: usize,
    ) -> OpenRun<'b> {
        let Self { stage, arguments, device, .. } = *self;
        let threads = self.threads.unwrap_or((parallel::launch::cores() / local_ranks).max(1));
        OpenRun {
            stage,
            config,
            mode,
            resume: arguments.resume,
            ranks,
            threads,
            is_on_gpu: device::is_gpu(device),
        }
    }
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
    let folder = RunFolder::prepare(&request, groups)?;
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
        plan: None,
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
        config.stay_on_cpu();
        return Ok(());
    }
    device::load([config.model.device]);
    if let Some(last) = last {
        device::resolve(config.model.device, last)?;
        config.stay_on_cpu();
    }
    Ok(())
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
