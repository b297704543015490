//! The setup that all stages share: the folder to start from, the split of the model over the mesh, and the
//! run folder.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datasets::Tokenizer;
use gemini::{Budget, ChunkManager, Traffic, WeightMemory, ZeroStage, checkpoint};
use inference::model_folder::ModelFolder;
use inference::session::load_tokenizer;
use models::causal_lm::{CausalLm, LoadOptions};
use models::config::Config;
use models::decoder;
use models::lora::{AdapterFile, AdapterFolder, LoraPlan};
use models::weights::WeightFolder;
use parallel::comm::SentByGroup;
use parallel::{Axis, Mesh, ProcessGroups, Transport, memory};
use planner::Hardware;
use rlhf::event::Recorder;
use rlhf::run::{SaveFn, StageRun, StepIntervals, TaskEvaluationFn, TaskScores};
use tch::Device;
use text::number;

use crate::config::{ConfigError, RunConfig, StageSchema};
use crate::console::print_stderr;
use crate::folder::{COMMUNICATION, RunFolder};
use crate::live::Live;
use crate::output::check_writable;
use crate::record::{FolderRecorder, JsonlRecorder, MultiRecorder, TensorboardRecorder};
use crate::stage::model_memory::places_in_model;
use crate::stage::model_parallel::model_parallel;
use crate::stage::plan::Plan;
use crate::stage::quantities;
use crate::stage::search::SearchScope;
use crate::{device, interrupt, model_folder, own_file};

/// The context of a stage.
pub(crate) struct StageContext<'a> {
    pub(crate) stage: &'static StageSchema,
    /// The process groups of the job.
    pub(crate) groups: &'a Arc<ProcessGroups>,
    /// The memory of the models of the stage.
    pub(crate) memory: Arc<ChunkManager>,
    /// The mesh of the ranks; for a dry run, the mesh of the real run.
    pub(crate) mesh: &'a Mesh,
    /// Receives the events of the stage.
    pub(crate) recorder: &'a mut dyn Recorder,
    /// The run folder, and the checkpoint that a resumed run continues from.
    pub(crate) folder: &'a RunFolder,
    /// The purpose of this run.
    pub(crate) mode: RunMode<'a>,
    /// Whether the stage has trained: a finished run does not.
    pub(crate) has_trained: bool,
    /// What the stage has planned, in mode [`RunMode::Plan`].
    pub(crate) plan: Option<Plan>,
}

/// The purpose of a run. All modes but `Train` stop before the run folder is created.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum RunMode<'a> {
    Train,
    /// Check everything and print the plan to stderr.
    DryRun,
    /// Leave the plan in the context.
    Plan(&'a PlanRequest),
}

/// What is to be planned.
#[derive(Debug, PartialEq)]
pub(crate) struct PlanRequest {
    /// The layouts among which the fastest are searched.
    pub(crate) search: Option<SearchScope>,
    /// The hardware of the run; if absent, this machine.
    pub(crate) hardware: Option<Hardware>,
    /// Whether a step is simulated.
    pub(crate) trace: bool,
}

/// Returns the folder to load the model from: the checkpoint of a resumed run, or the folder that
/// `[model] path` names.
pub(super) fn start_folder(config: &RunConfig, ctx: &StageContext<'_>) -> anyhow::Result<ModelFolder> {
    match ctx.folder.checkpoint() {
        Some(path) => Ok(ModelFolder::open(path.to_owned())?),
        None => model_folder::find(config.model_path(ctx.stage)?),
    }
}

/// Loads the tokenizer of a stage: the one that `[tokenizer] path` names, or the tokenizer of the model.
pub(crate) fn tokenizer(config: &RunConfig, model: &ModelFolder) -> anyhow::Result<Tokenizer> {
    Ok(load_tokenizer(&tokenizer_folder(config, model)?, config.tokenizer.template.as_deref())?)
}

pub(super) fn tokenizer_folder(config: &RunConfig, model: &ModelFolder) -> anyhow::Result<PathBuf> {
    Ok(match &config.tokenizer.path {
        Some(path) => model_folder::find(path)?.tokenizer_path().to_owned(),
        None => model.tokenizer_path().to_owned(),
    })
}

/// Returns the memory of the models of a stage.
pub(crate) fn chunk_manager(config: &RunConfig, groups: &ProcessGroups) -> anyhow::Result<Arc<ChunkManager>> {
    let (zero, gemini) = (config.parallel.zero, &config.gemini);
    let Some(device_memory) = gemini.device_memory else { return Ok(ChunkManager::sharded(zero)) };
    let device = device::resolve(config.model.device, groups.local_rank())?;
    if device == Device::Cpu
        && let Some((key, message)) = gemini.refused_on_cpu()
    {
        return Err(refused(key, message));
    }

    check_disk_path(config)?;
    // The run folder does not exist before the run starts, and a dry run does not create it.
    let mut folders = config.out.ancestors().filter(|folder| folder.is_dir());
    let nearest = || folders.next().map_or_else(|| PathBuf::from("."), Path::to_owned);
    let budget = Budget {
        placement: gemini.placement,
        device,
        device_bytes: device_memory.0 as usize,
        host_bytes: gemini.host_memory.map(|size| size.0 as usize),
        disk_path: gemini.disk_path.clone().unwrap_or_else(nearest),
    };
    Ok(ChunkManager::limited(budget, zero)?)
}

/// Refuses a folder for scratch files that does not exist or cannot be written.
pub(crate) fn check_disk_path(config: &RunConfig) -> Result<(), ConfigError> {
    let Some(path) = &config.gemini.disk_path else { return Ok(()) };
    let problem =
        if path.is_dir() { check_writable(path).err() } else { Some("there is no such folder".to_owned()) };
    problem.map_or(Ok(()), |problem| {
        let message = format!("{:?}: {problem}: make it, or name another folder", path.display().to_string());
        Err(ConfigError::Value { place: None, key: "gemini.disk_path".to_owned(), message })
    })
}

fn refused(key: &str, message: &str) -> anyhow::Error {
    ConfigError::Value { place: None, key: key.to_owned(), message: message.to_owned() }.into()
}

/// Returns the options for loading trainable weights. Each rank loads its shards of the model.
pub(super) fn trainable_options(config: &RunConfig, ctx: &StageContext<'_>) -> anyhow::Result<LoadOptions> {
    let device = device::resolve(config.model.device, ctx.groups.local_rank())?;
    if ctx.memory.zero_stage() > ZeroStage::None && device != Device::Cpu && !ctx.memory.is_limited() {
        let message = "on a device needs a budget: set [gemini] device_memory, or [model] device = \"cpu\"";
        return Err(refused("parallel.zero", message));
    }

    if config.parallel.transport != Transport::Auto && ctx.mesh.world_size() == 1 {
        print_stderr(
            "warning: [parallel] transport has no effect: there is one process, which sends nothing",
        );
    }
    let replicas = [Axis::Data, Axis::Expert, Axis::Sequence].map(|axis| ctx.mesh.size(axis));
    if ctx.memory.zero_stage() > ZeroStage::None && replicas == [1; 3] && ctx.groups.is_rank_zero() {
        print_stderr(
            "warning: [parallel] zero has no effect: no two processes hold the same weights and have different rows",
        );
    }

    let model_parallel = model_parallel(config, ctx.groups);
    let memory = WeightMemory::for_device(&ctx.memory, device, ctx.groups);
    let kind = config.model.dtype.kind();
    let quantize = config.model.quantize.filter(|_| ctx.stage.reads("model.quantize"));
    Ok(LoadOptions { kind, device, trainable: true, model_parallel, memory, quantize })
}

/// The adapters that a run begins with, if it trains any: those of `[model.lora]` on a whole model. A run
/// that starts from an adapter, or goes on from a checkpoint of one, trains that one.
pub(super) fn new_adapter(
    config: &RunConfig,
    folder: &ModelFolder,
    ctx: &StageContext<'_>,
) -> anyhow::Result<Option<Arc<LoraPlan>>> {
    if config.model.quantize.is_some() && config.model.lora.is_none() && folder.base().is_none() {
        let message =
            "weights that are trained have to be numbers: leave it out, or train adapters, with [model.lora]";
        return Err(refused("model.quantize", message));
    }
    if config.model.lora.is_none() && folder.base().is_none() {
        check_numbers(folder)?;
    }
    let (Some(_), Some(checkpoint)) = (&config.model.lora, ctx.folder.checkpoint()) else {
        return first_adapter(config, folder);
    };
    if folder.base().is_some() {
        return Ok(None);
    }
    let message = format!(
        "the checkpoint {} holds a whole model and no adapter: it belongs to a run without this section",
        checkpoint.display()
    );
    Err(refused("model.lora", &message))
}

/// Returns an error for a model whose weights are codes and cannot be trained.
fn check_numbers(folder: &ModelFolder) -> anyhow::Result<()> {
    let Some(quantization) = folder.config()?.quantization() else { return Ok(()) };
    let message = format!(
        "{}: the files of this model hold {} codes, which are not trained: train adapters, with [model.lora], or make \
         numbers of them with `model dequantize`",
        folder.path().display(),
        quantization.name()
    );
    Err(refused("model.path", &message))
}

/// The adapters of `[model.lora]` on the model of a folder, if the section is there.
pub(super) fn first_adapter(
    config: &RunConfig,
    folder: &ModelFolder,
) -> anyhow::Result<Option<Arc<LoraPlan>>> {
    let Some(lora) = &config.model.lora else { return Ok(None) };
    if folder.base().is_some() {
        let message = "the model is an adapter already, which is trained on with its own settings: leave the section \
                       out, or merge the adapter first with `model merge`";
        return Err(refused("model.lora", message));
    }
    let (base, revision) = model_folder::name_of_base(folder.path());
    let base_hash = Some(WeightFolder::open(folder.path())?.content_hash()?);
    let file = AdapterFile { lora: lora.clone(), base: Some(base), revision, base_hash };
    Ok(Some(Arc::new(file.plan("[model.lora]")?)))
}

/// The adapters that a stage trains: new ones, or those of its folder. `None` for a model that is trained
/// whole.
pub(super) fn trained_adapter(
    new_adapter: Option<&Arc<LoraPlan>>,
    folder: &ModelFolder,
) -> Result<Option<Arc<LoraPlan>>, models::Error> {
    match new_adapter {
        None if folder.base().is_some() => Ok(Some(Arc::clone(AdapterFolder::open(folder.path())?.plan()))),
        lora => Ok(lora.cloned()),
    }
}

/// Loads the language model that a stage trains: whole, or as a frozen trunk with the adapters `new_adapter`,
/// or with those of its folder. A model that is whole is never quantised.
pub(super) fn load_trained(
    folder: &ModelFolder,
    new_adapter: Option<&Arc<LoraPlan>>,
    seed: u64,
    options: &LoadOptions,
) -> Result<CausalLm, models::Error> {
    match new_adapter {
        None if folder.base().is_none() => {
            folder.causal_lm(&LoadOptions { quantize: None, ..options.clone() })
        }
        None => folder.causal_lm(options),
        Some(lora) => load_trunk(folder, options)?.with_new_adapter(lora, seed, true),
    }
}

/// Loads a whole language model with frozen weights, for adapters.
pub(super) fn load_trunk(folder: &ModelFolder, options: &LoadOptions) -> Result<CausalLm, models::Error> {
    CausalLm::load(folder.path(), &LoadOptions { trainable: false, ..options.clone() })
}

/// Whether only the plan is wanted, of a run whose models cannot be loaded: they do not fit, or are for other
/// hardware. The plan is then in the context.
pub(super) fn ends_with_plan(plan: &Plan, ctx: &mut StageContext<'_>) -> bool {
    let RunMode::Plan(request) = ctx.mode else { return false };
    if plan.shortage.is_none() && request.search.is_none() && request.hardware.is_none() {
        return false;
    }
    ctx.plan = Some(plan.clone());
    true
}

/// Shows the plan, and says whether there is something to train.
fn is_to_train(config: &RunConfig, plan: &mut Plan, ctx: &mut StageContext<'_>) -> anyhow::Result<bool> {
    let groups = ctx.groups;
    plan.loaded_bytes = groups.world().all_gather_object(vec![memory::peak_rss_bytes()])?;
    match ctx.mode {
        RunMode::Plan(_) => ctx.plan = Some(plan.clone()),
        RunMode::Train | RunMode::DryRun if groups.is_rank_zero() => plan.show(),
        RunMode::Train | RunMode::DryRun => {}
    }
    // Of a length that the file says, the configuration knows already.
    if groups.is_rank_zero()
        && config.fixed_length(ctx.stage).is_none()
        && let Some(problem) = config.long_warmup(plan.steps)
    {
        print_stderr(&format!("warning: `train.warmup_steps`: {problem}"));
    }
    ctx.folder.check_length(plan.steps, ctx.stage)?;
    if ctx.mode != RunMode::Train {
        return Ok(false);
    }

    if ctx.folder.is_finished_at(plan.steps) {
        if groups.is_rank_zero() {
            print_stderr(&format!("this run is finished: it has had its {} steps already", plan.steps));
        }
        return Ok(false);
    }
    Ok(true)
}

/// What a stage does besides its steps.
pub(super) struct Hooks<'a> {
    /// Writes the files of a model folder besides the model.
    pub(super) save_tokenizer: &'a SaveFn<'a>,
    /// Asks the tasks of `[eval]`.
    pub(super) evaluate_tasks: Option<&'a TaskEvaluationFn<'a>>,
}

impl<'a> Hooks<'a> {
    /// Takes the function that asks the tasks, if there is one.
    pub(super) fn new<F>(save_tokenizer: &'a SaveFn<'a>, evaluate_tasks: Option<&'a F>) -> Self
    where
        F: Fn(u64) -> Result<TaskScores, rlhf::Error> + 'a,
    {
        let evaluate_tasks = evaluate_tasks.map(|evaluate| evaluate as &TaskEvaluationFn<'a>);
        Self { save_tokenizer, evaluate_tasks }
    }
}

/// Prints the plan. In mode [`RunMode::Train`], also opens the run folder and runs `train` in it.
pub(super) fn run_in_folder(
    config: &RunConfig,
    mut plan: Plan,
    hooks: &Hooks<'_>,
    ctx: &mut StageContext<'_>,
    train: impl FnOnce(&mut StageRun<'_>) -> Result<(), rlhf::Error>,
) -> anyhow::Result<()> {
    if !is_to_train(config, &mut plan, ctx)? {
        return Ok(());
    }
    let groups = ctx.groups;
    // A sandbox is a process of its own, and its memory is not measured here.
    let predicted_bytes = plan.peak_memory.map(|peak| peak.total - peak.sandbox);
    let predicted_seconds = plan.step_time.map(|time| time.seconds);

    let live = Live::new(&config.out, groups, &ctx.memory)?;
    let mut events = live.recorder();
    let mut step_seconds = StepSeconds::default();
    // The files of the run folder come first.
    let mut recorder = file_recorders(config, plan, ctx.folder, ctx.stage)?;
    recorder.0.push(Box::new(&mut events));
    recorder.0.push(Box::new(&mut step_seconds));
    recorder.0.push(Box::new(&mut *ctx.recorder));
    let mut run = StageRun {
        stage: ctx.stage.name,
        out: &config.out,
        groups: Arc::clone(groups),
        memory: Arc::clone(&ctx.memory),
        seed: config.seed,
        intervals: intervals(config),
        resume: ctx.folder.checkpoint().map(Path::to_owned),
        interrupted: interrupt::stop_flag(),
        save_requested: interrupt::save_flag(),
        paused: interrupt::pause_flag(),
        progress: &|phase, step| live.progress(phase, step),
        recorder: &mut recorder,
        save_tokenizer: hooks.save_tokenizer,
        evaluate_tasks: hooks.evaluate_tasks,
    };

    ctx.has_trained = true;
    // The stages of a pipeline share their process groups.
    let sent_before = groups.sent();
    // From here on, a signal lets the current step finish and be saved.
    let work = interrupt::enter_graceful();
    // In a pipeline, the stages before this one had peaks of their own. Where the system does not forget
    // them, the peak is that of the whole process.
    let _ = memory::reset_peak_rss();
    let trained = train(&mut run);
    drop(recorder);
    // The last state and the last event are written before a signal ends this process at once, and while it
    // has the lock of the folder, so nobody sees an end that the run did not tell.
    drop(live);
    events.end(&trained);
    drop(work);
    trained.inspect_err(|error| report_newest_checkpoint(&config.out, error, groups))?;
    report_communication(&config.out, &sent_before, groups)?;
    step_seconds.report(predicted_seconds, ctx.stage);
    report_memory(&ctx.memory, predicted_bytes, groups)
}

/// Returns the recorders of the files of the run folder `out`. The first one opens the folder when the run
/// begins, and saves the configuration and `plan` in it.
fn file_recorders<'a>(
    config: &'a RunConfig,
    plan: Plan,
    folder: &'a RunFolder,
    stage: &StageSchema,
) -> anyhow::Result<MultiRecorder<'a>> {
    let settings = config.to_annotated_toml(stage)?;
    let open = move || -> anyhow::Result<()> {
        folder.open(&settings)?;
        plan.write(&config.out)
    };
    Ok(MultiRecorder(vec![
        Box::new(FolderRecorder(open)),
        Box::new(JsonlRecorder::new(&config.out)),
        Box::new(TensorboardRecorder::new(&config.out)),
    ]))
}

fn intervals(config: &RunConfig) -> StepIntervals {
    StepIntervals {
        save_steps: config.checkpoint.every,
        save_total_limit: config.checkpoint.keep,
        logging_steps: config.log.every,
        eval_steps: config.eval.every,
    }
}

/// Prints what the models of rank 0 took of their budget, and what was moved for it.
fn report_traffic(memory: &ChunkManager, groups: &ProcessGroups) {
    let Some(budget) = memory.budget().filter(|_| groups.is_rank_zero()) else { return };
    let mebibytes = |bytes: u64| bytes >> 20;
    let traffic @ Traffic { fetches, fetched_bytes, written_bytes, .. } = memory.traffic();
    let on_device = match budget.device {
        Device::Cpu => String::new(),
        _ => format!(
            " on the device, and {} MiB on the host; {} MiB copied to the device, {} MiB from it",
            mebibytes(traffic.host_peak_bytes as u64),
            mebibytes(traffic.to_device_bytes),
            mebibytes(traffic.to_host_bytes)
        ),
    };
    print_stderr(&format!(
        "memory of the models: at most {} of {} MiB{on_device}; {} MiB read from the disk in {}, {} MiB written to it",
        mebibytes(traffic.peak_bytes as u64),
        mebibytes(budget.device_bytes as u64),
        mebibytes(fetched_bytes),
        number::counted(fetches, "piece"),
        mebibytes(written_bytes)
    ));
}

/// Writes what each rank has sent in this run beside what it had sent `before`, and prints the sum of rank 0.
fn report_communication(out: &Path, before: &SentByGroup, groups: &ProcessGroups) -> anyhow::Result<()> {
    let path = out.join(COMMUNICATION);
    if groups.world().size() == 1 {
        // An earlier part of the run may have had several processes.
        return match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(own_file::io_error(&path)(error).into()),
            _ => Ok(()),
        };
    }
    let sent = groups.world().all_gather_object(vec![groups.sent().since(before)])?;
    if groups.is_rank_zero() {
        own_file::write(&path, serde_json::to_string_pretty(&sent)?.as_bytes())?;
        print_stderr(&format!("sent by rank 0: {}", quantities::mebibytes(&[sent[0].bytes()])));
    }
    Ok(())
}

/// Prints what the models took of their budget, and the peak of each process.
fn report_memory(
    memory: &ChunkManager,
    predicted: Option<usize>,
    groups: &ProcessGroups,
) -> anyhow::Result<()> {
    report_traffic(memory, groups);
    report_peak_memory(predicted, groups)
}

/// Prints the peak memory of each process, beside the one that was `predicted` for the process that needs
/// most.
fn report_peak_memory(predicted: Option<usize>, groups: &ProcessGroups) -> anyhow::Result<()> {
    let peaks = groups.world().all_gather_object(vec![memory::peak_rss_bytes()])?;
    if groups.is_rank_zero() {
        let of = if peaks.len() > 1 { " of the processes" } else { "" };
        let predicted =
            predicted.map(|bytes| format!(" (predicted: {})", quantities::mebibytes(&[bytes as u64])));
        let predicted = predicted.unwrap_or_default();
        print_stderr(&format!("peak memory{of}: {}{predicted}", quantities::mebibytes(&peaks)));
    }
    Ok(())
}

/// Prints a warning on rank 0 if a `config.json` sets dropout, which is not applied.
pub(super) fn warn_about_dropout(groups: &ProcessGroups, models: &[(&str, &Config)]) {
    let described = |(role, config): &(&str, &Config)| {
        let shares: Vec<String> =
            config.dropout().iter().map(|(key, share)| format!("`{key}` {share}")).collect();
        (!shares.is_empty()).then(|| format!("{} of the {role}", shares.join(", ")))
    };
    let described: Vec<String> = models.iter().filter_map(described).collect();
    if groups.is_rank_zero() && !described.is_empty() {
        print_stderr(&format!("warning: dropout of config.json is not applied: {}", described.join("; ")));
    }
}

/// Refuses the model of a folder whose tokenizer differs from `own`, that of the model in training. Without a
/// tokenizer in the folder, rank 0 warns.
pub(super) fn check_tokenizer_of(
    own: &Tokenizer,
    role: &'static str,
    folder: &ModelFolder,
    groups: &ProcessGroups,
) -> anyhow::Result<()> {
    let folder = folder.tokenizer_path();
    match Tokenizer::from_folder(folder) {
        Ok(other) => check_tokenizer(own, role, folder, &other)?,
        Err(datasets::Error::TokenizerMissing { .. }) if groups.is_rank_zero() => print_stderr(&format!(
            "warning: {} has no tokenizer.json: whether the {role} model reads the same tokens as the model in \
             training cannot be checked",
            folder.display()
        )),
        Err(datasets::Error::TokenizerMissing { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// Refuses a model whose tokenizer differs from that of the model in training.
pub(super) fn check_tokenizer(
    own: &Tokenizer,
    role: &'static str,
    folder: &Path,
    other: &Tokenizer,
) -> Result<(), ConfigError> {
    let different = |difference| ConfigError::Tokenizers { role, folder: folder.to_owned(), difference };
    own.difference(other).map_or(Ok(()), |difference| Err(different(difference)))
}

/// Checks that the models of a stage can be split over `mesh`. In a dry run the ranks of the mesh do not
/// exist, so loading the models would not detect it.
pub(super) fn check_split(
    config: &RunConfig,
    models: &[&Config],
    ctx: &StageContext<'_>,
) -> anyhow::Result<()> {
    let is_running = ctx.mesh.world_size() == ctx.groups.world().size();
    if is_running { check_experts(config, models) } else { check_mesh(config, models, ctx.mesh) }
}

fn check_experts(config: &RunConfig, models: &[&Config]) -> anyhow::Result<()> {
    if config.parallel.expert.size > 1 && models.iter().all(|model| model.architecture().experts.is_none()) {
        let key = "parallel.expert.size".to_owned();
        let message = format!("{}: no model of this stage has experts", config.parallel.expert.size);
        return Err(ConfigError::Value { place: None, key, message }.into());
    }
    Ok(())
}

/// Refuses models that cannot be split over `mesh`. Only the configurations of the models are needed.
pub(super) fn check_mesh(config: &RunConfig, models: &[&Config], mesh: &Mesh) -> anyhow::Result<()> {
    check_experts(config, models)?;
    for place in places_in_model(mesh) {
        let split = model_parallel(config, &ProcessGroups::fake(&place));
        models.iter().try_for_each(|model| decoder::build::check_model_parallel(model, &split))?;
    }
    Ok(())
}

/// Prints the newest checkpoint of a failed run, if there is one. An interrupted run reports its checkpoint
/// itself.
fn report_newest_checkpoint(out: &Path, error: &rlhf::Error, groups: &ProcessGroups) {
    if !groups.is_rank_zero() || matches!(error, rlhf::Error::Interrupted { .. }) {
        return;
    }
    let newest =
        checkpoint::list(&out.join("checkpoints")).ok().and_then(|mut checkpoints| checkpoints.pop());
    match newest {
        Some((_, path)) => print_stderr(&format!("the newest checkpoint of this run is {}", path.display())),
        None => print_stderr("this run has saved no checkpoint"),
    }
}

/// The seconds of the logged steps. Only rank 0 records events.
#[derive(Default)]
struct StepSeconds(Vec<f64>);

impl StepSeconds {
    /// Prints the median beside the `predicted` seconds, if there is a prediction.
    fn report(self, predicted: Option<f64>, stage: &StageSchema) {
        if let (Some(predicted), Some(median)) = (predicted, number::median(self.0)) {
            let (median, predicted) = (quantities::in_seconds(median), quantities::in_seconds(predicted));
            let step = stage.units.step;
            print_stderr(&format!("{step} time: {median}, the median (predicted: {predicted})"));
        }
    }
}

impl Recorder for StepSeconds {
    fn record(&mut self, event: &rlhf::event::Event<'_>) -> Result<(), rlhf::Error> {
        if let rlhf::event::Event::Step { metrics, .. } = event {
            self.0.extend(metrics.get("seconds"));
        }
        Ok(())
    }
}
